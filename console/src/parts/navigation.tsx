// The ways to the views: a column at the left, on narrow screens a bar with a drawer.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { overview } from "../state/overview";
import { theme, type Theme } from "../state/preferences";
import { place, to } from "../state/routes";
import { logOut, session } from "../state/session";
import { compact } from "../text/numbers";
import { say } from "./dialog";
import { Icon, Mark, type IconName } from "./icons";
import { listKeys } from "./keys";
import { Shape, type Tone } from "./status";

interface Entry {
  readonly room: string;
  readonly name: string;
  readonly icon: IconName;
  readonly count?: "topics" | "groups" | "transactions_open";
}

const ENTRIES: readonly Entry[] = [
  { room: "", name: "Overview", icon: "overview" },
  { room: "topics", name: "Topics", icon: "topics", count: "topics" },
  { room: "groups", name: "Groups", icon: "groups", count: "groups" },
  { room: "transactions", name: "Transactions", icon: "transactions", count: "transactions_open" },
  { room: "quorum", name: "Quorum", icon: "quorum" },
  { room: "brokers", name: "Brokers", icon: "brokers" },
  { room: "security", name: "Security", icon: "security" },
  { room: "schemas", name: "Schemas", icon: "schemas" },
];

export function Navigation({ room }: { readonly room: string }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const address = place.value;
  useEffect(() => setOpen(false), [address]);
  const current = ENTRIES.find((entry) => entry.room === room)?.name ?? "Moldau";
  return (
    <header class="chrome">
      <div class="topbar">
        <button type="button" class="icon-button" aria-label={isOpen ? "Close the navigation" : "Open the navigation"} aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name={isOpen ? "close" : "menu"} size={18} />
        </button>
        <Mark size={22} />
        <span class="topbar-title">{current}</span>
        <HealthMark />
      </div>
      {isOpen && <div class="shade" onClick={() => setOpen(false)} />}
      <div class={isOpen ? "side open" : "side"} onKeyDown={(event) => event.key === "Escape" && setOpen(false)}>
        <a class="brand" href={to("")}>
          <Mark />
          <span class="brand-name">Moldau</span>
        </a>
        <Cluster />
        <nav class="nav" aria-label="Views">
          {ENTRIES.map((entry) => (
            <NavLink key={entry.room} entry={entry} isCurrent={entry.room === room} />
          ))}
        </nav>
        <div class="side-foot">
          <Person />
          <div class="side-tools">
            <ThemeSwitch />
            <button type="button" class="icon-button" aria-label="Keys" title="Keys (?)" onClick={listKeys}>
              <kbd>?</kbd>
            </button>
          </div>
        </div>
      </div>
    </header>
  );
}

function NavLink({ entry, isCurrent }: { readonly entry: Entry; readonly isCurrent: boolean }): JSX.Element {
  const number = entry.count ? overview.value?.counts[entry.count] : null;
  return (
    <a href={to(entry.room)} class="nav-link" aria-current={isCurrent ? "page" : undefined}>
      <Icon name={entry.icon} />
      <span>{entry.name}</span>
      {number ? <span class="nav-count">{compact(number)}</span> : null}
    </a>
  );
}

function capital(word: string): string {
  return word.charAt(0).toUpperCase() + word.slice(1);
}

export const HEALTH_TONES: Readonly<Record<string, Tone>> = { healthy: "ok", degraded: "warn", critical: "bad" };

function HealthMark(): JSX.Element | null {
  const status = overview.value?.health.status;
  if (!status) return null;
  return (
    <a class="topbar-health" href={to("")}>
      <Shape tone={HEALTH_TONES[status] ?? "quiet"} />
      <span>{capital(status)}</span>
    </a>
  );
}

function Cluster(): JSX.Element {
  const status = overview.value?.health.status;
  return (
    <div class="cluster">
      <span class="cluster-line">
        <Shape tone={status ? (HEALTH_TONES[status] ?? "quiet") : "quiet"} />
        <span>{status ? capital(status) : "…"}</span>
      </span>
      <span class="cluster-id" title={`Cluster ${session.value?.cluster_id ?? ""}, ${session.value?.software ?? ""}`}>
        {session.value?.cluster_id}
      </span>
    </div>
  );
}

function Person(): JSX.Element {
  const current = session.value;
  const name = current?.principal.replace(/^User:/, "") ?? "";
  const leave = (): void => {
    logOut().then(
      () => say("Logged out. The server has forgotten your credentials."),
      () => say("Logging out failed: the server does not answer."),
    );
  };
  return (
    <div class="person">
      <Icon name="user" />
      <span class="person-name" title={current?.principal}>
        {current?.is_anonymous ? "Anonymous" : name}
        {current?.read_only && <small>read only</small>}
      </span>
      {current && !current.is_anonymous && (
        <button type="button" class="icon-button" aria-label="Log out" title="Log out" onClick={leave}>
          <Icon name="out" />
        </button>
      )}
    </div>
  );
}

const NEXT: Readonly<Record<Theme, Theme>> = { system: "light", light: "dark", dark: "system" };
const THEME_ICONS: Readonly<Record<Theme, IconName>> = { system: "auto", light: "sun", dark: "moon" };

function ThemeSwitch(): JSX.Element {
  const current = theme.value;
  const label = `Theme: ${current === "system" ? "as the system" : current}`;
  return (
    <button type="button" class="icon-button" aria-label={label} title={label} onClick={() => (theme.value = NEXT[current])}>
      <Icon name={THEME_ICONS[current]} />
    </button>
  );
}
