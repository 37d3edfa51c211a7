// What the keyboard does everywhere: `/` searches, `g` and a letter goes to a view, `?` lists all.
// Must not: act while the person is typing.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { navigate, to } from "../state/routes";
import { state } from "../state/session";
import { Dialog } from "./dialog";

const PLACES: readonly (readonly [string, string, string])[] = [
  ["o", "", "Overview"],
  ["t", "topics", "Topics"],
  ["g", "groups", "Groups"],
  ["x", "transactions", "Transactions"],
  ["q", "quorum", "Quorum"],
  ["b", "brokers", "Brokers"],
  ["s", "security", "Security"],
  ["c", "schemas", "Schemas"],
];

const AFTER_G_MS = 1200;
const isListed = signal(false);

function isTyping(event: KeyboardEvent): boolean {
  const target = event.composedPath()[0];
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement && /^(radio|checkbox)$/.test(target.type)) return false;
  return target.isContentEditable || /^(input|textarea|select)$/i.test(target.tagName);
}

/** Begins to listen to keys. */
export function startKeys(): void {
  let gAt = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
    if (state.value !== "ready" || document.querySelector("dialog[open]")) return;
    if (event.key === "/") {
      const fields = document.querySelectorAll<HTMLInputElement>("[data-search]");
      const field = [...fields].find((entry) => entry.offsetParent !== null);
      if (field) {
        event.preventDefault();
        field.focus();
        field.select();
      }
    } else if (event.key === "?") {
      event.preventDefault();
      isListed.value = true;
    } else if (event.timeStamp - gAt < AFTER_G_MS) {
      const found = PLACES.find(([key]) => key === event.key);
      gAt = 0;
      if (found) {
        event.preventDefault();
        navigate(to(found[1]));
      }
    } else if (event.key === "g") gAt = event.timeStamp;
  });
}

/** Shows the list of keys. */
export function listKeys(): void {
  isListed.value = true;
}

export function KeyList(): JSX.Element | null {
  if (!isListed.value) return null;
  return (
    <Dialog title="Keys" onClose={() => (isListed.value = false)}>
      <div class="dialog-body">
        <dl class="keys">
          <Key keys={["/"]} does="Search on this page" />
          {PLACES.map(([key, , name]) => (
            <Key key={key} keys={["g", key]} does={`Go to ${name}`} />
          ))}
          <Key keys={["↑", "↓"]} does="The record before or after, where one is open" />
          <Key keys={["Esc"]} does="Close what is open" />
          <Key keys={["?"]} does="This list" />
        </dl>
      </div>
    </Dialog>
  );
}

function Key({ keys, does }: { readonly keys: readonly string[]; readonly does: string }): JSX.Element {
  return (
    <div>
      <dt>
        {keys.map((key) => (
          <kbd key={key}>{key}</kbd>
        ))}
      </dt>
      <dd>{does}</dd>
    </div>
  );
}
