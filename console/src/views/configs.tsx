// Configuration of a topic or a broker: what is set and what is default, where a value comes from, and
// changing it.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { ConfigChange } from "../api/cluster";
import type { Config } from "../api/types";
import { Empty } from "../parts/basics";
import { Confirm } from "../parts/dialog";
import { SearchField, Segments, TextField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { Tag, words } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { isReadOnly } from "../state/session";
import { command } from "../text/command";
import { bytes, duration } from "../text/numbers";

interface Props {
  readonly configs: readonly Config[] | null;
  readonly of: "topic" | "broker";
  /** The words of the command before --set. */
  readonly command: readonly string[];
  readonly onAlter: (changes: readonly ConfigChange[]) => Promise<void>;
}

const HUGE = 9_007_199_254_740_991;

/** A value as people read it, where its key says what it counts. */
function reading(config: Config): string | null {
  if (config.value === null || !/^-?\d+$/.test(config.value)) return null;
  const value = Number(config.value);
  if (value >= HUGE) return "unlimited";
  if (/\.ms$/.test(config.name)) return value === 0 ? null : duration(value);
  if (/(^|\.)bytes$/.test(config.name) && value !== 0) return value < 0 ? "unlimited" : bytes(value);
  if (/\.hours$/.test(config.name) && value > 0) return duration(value * 3_600_000);
  return null;
}

function Value({ config }: { readonly config: Config }): JSX.Element {
  if (config.is_sensitive) return <span class="quiet">hidden</span>;
  if (config.value === null) return <span class="quiet">not set</span>;
  const text = reading(config);
  return (
    <span class="config-value">
      <code>{config.value === "" ? "''" : config.value}</code>
      {text && <span class="quiet">{text}</span>}
    </span>
  );
}

export function Configs({ configs, of, command: before, onAlter }: Props): JSX.Element {
  const [q, setQ] = useState("");
  const [which, setWhich] = useState<"all" | "set">("all");
  const [edited, setEdited] = useState<Config | null>(null);
  const columns = useMemo<readonly Column<Config>[]>(
    () => [
      {
        key: "name",
        label: "Key",
        className: "grow",
        sort: (row) => row.name,
        cell: (row) => (
          <span class="config-name">
            <code class={row.is_default ? "" : "strong"}>{row.name}</code>
            {row.documentation && <small title={row.documentation}>{row.documentation}</small>}
          </span>
        ),
      },
      { key: "value", label: "Value", className: "wide", cell: (row) => <Value config={row} /> },
      {
        key: "source",
        label: "Comes from",
        rank: 2,
        sort: (row) => row.source,
        cell: (row) => <Tag tone={row.is_default ? "quiet" : "accent"}>{sourceOf(row)}</Tag>,
      },
      {
        key: "edit",
        label: "",
        className: "act",
        cell: (row) =>
          row.is_read_only || isReadOnly.value ? (
            <span class="quiet" title="It cannot be changed while nodes run">
              <Icon name="lock" />
            </span>
          ) : (
            <button type="button" class="icon-button" aria-label={`Change ${row.name}`} title="Change" onClick={() => setEdited(row)}>
              <Icon name="edit" />
            </button>
          ),
      },
    ],
    [],
  );
  if (configs === null) {
    return <Empty title="Configs are not shown" icon="lock">You may not describe the configs of this {of}.</Empty>;
  }
  const wanted = q.trim().toLowerCase();
  const rows = configs.filter(
    (config) => (which === "all" || !config.is_default) && (wanted === "" || config.name.includes(wanted) || (config.value ?? "").toLowerCase().includes(wanted)),
  );
  const setCount = configs.filter((config) => !config.is_default).length;
  return (
    <>
      <div class="toolbar">
        <SearchField label="Search keys and values" value={q} onChange={setQ} />
        <Segments label="Which keys" value={which} onChange={setWhich} choices={[{ value: "all", label: `All ${configs.length}` }, { value: "set", label: `Set here ${setCount}` }]} />
      </div>
      <div class="sheet">
        <Table
          label="Configs"
          columns={columns}
          rows={rows}
          rowKey={(row) => row.name}
          empty={
            <Empty title={which === "set" && q === "" ? "Nothing is set here" : "No key like this"} icon="search">
              {which === "set" && q === "" ? `All values of this ${of} are defaults.` : "Part of a key or of a value is enough."}
            </Empty>
          }
        />
      </div>
      {edited && <EditConfig config={edited} of={of} before={before} onAlter={onAlter} onClose={() => setEdited(null)} />}
    </>
  );
}

function sourceOf(config: Config): string {
  return words(config.source.replace(/_CONFIG$/, "")).replace("Dynamic", "Set for").replace("Static broker", "Broker's file");
}

function EditConfig({
  config,
  of,
  before,
  onAlter,
  onClose,
}: {
  readonly config: Config;
  readonly of: "topic" | "broker";
  readonly before: readonly string[];
  readonly onAlter: Props["onAlter"];
  readonly onClose: () => void;
}): JSX.Element {
  const [value, setValue] = useState(config.is_sensitive ? "" : (config.value ?? ""));
  const [isReset, setReset] = useState(false);
  const above = config.synonyms.find((entry) => entry.source !== config.source);
  const change: ConfigChange = isReset ? { name: config.name, operation: "DELETE" } : { name: config.name, value, operation: "SET" };
  return (
    <Confirm
      title={config.name}
      action={isReset ? "Reset" : "Set"}
      isReady={isReset || value !== (config.value ?? "") || config.is_default}
      command={command(...before, ...(isReset ? ["--delete", config.name] : ["--set", `${config.name}=${value}`]))}
      says={
        isReset ? (
          <>
            The {of} loses its own value{above ? <> and takes <code>{above.value ?? "null"}</code> from {words(above.source)}</> : " and takes the default"}.
          </>
        ) : (
          <>
            The {of} gets its own value instead of <code>{config.is_sensitive ? "the hidden one" : (config.value ?? "none")}</code>, at once and on all brokers.
          </>
        )
      }
      onDo={async () => {
        await onAlter([change]);
        return isReset ? `${config.name} has been reset.` : `${config.name} has been set.`;
      }}
      onClose={onClose}
    >
      {config.documentation && <p class="lead small">{config.documentation}</p>}
      <TextField label={`Value${config.type ? ` (${config.type.toLowerCase()})` : ""}`} type={config.is_sensitive ? "password" : "text"} value={value} onChange={(next) => { setValue(next); setReset(false); }} isMono autoFocus />
      {!config.is_default && (
        <button type="button" class="button small" aria-pressed={isReset} onClick={() => setReset(!isReset)}>
          {isReset ? "Keep its own value" : "Reset to the default"}
        </button>
      )}
      {config.synonyms.length > 1 && (
        <table class="mini">
          <caption>Where a value is looked for, first wins</caption>
          <tbody>
            {config.synonyms.map((entry) => (
              <tr key={`${entry.source} ${entry.name}`}>
                <td>{words(entry.source)}</td>
                <td><code>{entry.name}</code></td>
                <td><code>{entry.value ?? "null"}</code></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Confirm>
  );
}
