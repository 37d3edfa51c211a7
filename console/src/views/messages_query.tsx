// What is read of a topic: from where, which partitions, by which filters. Owns: the query in the
// page's address, and the form that changes it.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Query } from "../api/http";
import type { Topic } from "../api/types";
import { Editor } from "../parts/editor";
import { SelectField, TextField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { queryOf, setQuery } from "../state/routes";
import { command, each, option } from "../text/command";

/** Everything that says what is read; each part is as the API takes it. */
export interface Wanted {
  readonly from: string;
  readonly partition: string;
  readonly where: string;
  readonly grep: string;
  readonly key: string;
  readonly isolation: string;
  readonly keyFormat: string;
  readonly valueFormat: string;
  readonly limit: number;
}

const FROM = /^(earliest|latest|last:\d+|offset:\d+|timestamp:\d+)$/;

/** The query of the page's address. */
export function wantedOf(): Wanted {
  const from = queryOf("from");
  const limit = Number(queryOf("limit"));
  return {
    from: FROM.test(from) ? from : "last:50",
    partition: /^\d+(,\d+)*$/.test(queryOf("partition")) ? queryOf("partition") : "",
    where: queryOf("where"),
    grep: queryOf("grep"),
    key: queryOf("key"),
    isolation: queryOf("isolation") === "read_committed" ? "read_committed" : "",
    keyFormat: queryOf("key_format"),
    valueFormat: queryOf("value_format"),
    limit: Number.isInteger(limit) && limit > 0 && limit <= 1000 ? limit : 50,
  };
}

/** As parameters of the API. */
export function parametersOf(wanted: Wanted): Query {
  return {
    from: wanted.from,
    partition: wanted.partition,
    where: wanted.where,
    grep: wanted.grep,
    key: wanted.key,
    isolation: wanted.isolation,
    key_format: wanted.keyFormat,
    value_format: wanted.valueFormat,
    limit: wanted.limit,
  };
}

/** The command that prints the same records. */
export function commandOf(topic: string, wanted: Wanted, isLive: boolean): string {
  const [kind, value] = wanted.from.split(":");
  return command(
    "consume",
    topic,
    !isLive && kind === "earliest" && "--from-beginning",
    !isLive && kind === "last" && ["--offset", `-${value ?? ""}`],
    !isLive && kind === "offset" && ["--offset", value ?? ""],
    !isLive && kind === "timestamp" && ["--timestamp", value ?? ""],
    each("--partition", wanted.partition === "" ? [] : wanted.partition.split(",")),
    option("--key", wanted.key),
    option("--grep", wanted.grep),
    option("--where", wanted.where),
    option("--isolation", wanted.isolation),
    !isLive && ["-n", wanted.limit, "--until-end"],
    "--json",
  );
}

/** Puts a query into the page's address; what is read follows. */
export function want(wanted: Wanted, more: Readonly<Record<string, string | null>> = {}): void {
  setQuery({
    from: wanted.from === "last:50" ? null : wanted.from,
    partition: wanted.partition || null,
    where: wanted.where.trim() || null,
    grep: wanted.grep || null,
    key: wanted.key || null,
    isolation: wanted.isolation || null,
    key_format: wanted.keyFormat || null,
    value_format: wanted.valueFormat || null,
    limit: wanted.limit === 50 ? null : wanted.limit,
    ...more,
  });
}

type Kind = "last" | "earliest" | "timestamp" | "offset";

function kindOf(from: string): Kind {
  const [kind] = from.split(":");
  return kind === "earliest" || kind === "timestamp" || kind === "offset" ? kind : "last";
}

function localTime(ms: number): string {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().slice(0, 19);
}

interface FormProps {
  readonly topic: Topic;
  readonly wanted: Wanted;
  readonly columns: readonly string[];
  readonly isLive: boolean;
  readonly isBusy: boolean;
  readonly isWhereWrong: boolean;
  readonly onRead: () => void;
}

export function QueryForm({ topic, wanted, columns, isLive, isBusy, isWhereWrong, onRead }: FormProps): JSX.Element {
  const [draft, setDraft] = useState(wanted);
  const [isWide, setWide] = useState(wanted.grep !== "" || wanted.key !== "" || wanted.isolation !== "" || wanted.keyFormat !== "" || wanted.valueFormat !== "");
  const address = JSON.stringify(wanted);
  // Enter may come before what was typed last has been drawn.
  const newest = useRef(wanted);
  const replace = (next: Wanted): void => {
    newest.current = next;
    setDraft(next);
  };
  useEffect(() => replace(wanted), [address]);
  const change = (part: Partial<Wanted>): void => replace({ ...newest.current, ...part });
  const apply = (isNowLive: boolean): void => {
    const isSame = JSON.stringify(newest.current) === address && isLive === isNowLive;
    want(newest.current, { live: isNowLive ? "1" : null });
    if (isSame) onRead();
  };
  const partitions = topic.partitions.map((entry) => ({ value: String(entry.partition), label: `Partition ${entry.partition}` }));
  const several = draft.partition.includes(",") ? [{ value: draft.partition, label: `Partitions ${draft.partition}` }] : [];
  return (
    <form
      class="query"
      onSubmit={(event) => {
        event.preventDefault();
        apply(isLive);
      }}
    >
      <div class="query-line">
        <From value={draft.from} limit={draft.limit} isLive={isLive} onChange={change} />
        <SelectField label="Partition" isHiddenLabel value={draft.partition} choices={[{ value: "", label: "All partitions" }, ...several, ...partitions]} onChange={(partition) => change({ partition })} />
        <div class="query-where">
          <Editor
            label="Filter: a condition that records must fulfil"
            language="filter"
            value={draft.where}
            placeholder={columns[0] ? `Filter, as value.${columns[0]} == 7` : "Filter, as value.user.id == 7"}
            isInvalid={isWhereWrong}
            onChange={(where) => change({ where })}
            onEnter={() => apply(isLive)}
          />
        </div>
        <div class="query-buttons">
          <button type="submit" class="button primary" disabled={isBusy && !isLive}>
            {isLive ? "Apply" : isBusy ? "Reading…" : "Read"}
          </button>
          <button type="button" class={`button${isLive ? " live-on" : ""}`} aria-pressed={isLive} onClick={() => apply(!isLive)}>
            <span class="live-dot" aria-hidden="true" />
            Live
          </button>
          <button type="button" class="icon-button boxed" aria-expanded={isWide} aria-label={isWide ? "Fewer conditions" : "More conditions"} title="More conditions" onClick={() => setWide(!isWide)}>
            <Icon name={isWide ? "up" : "down"} />
          </button>
        </div>
      </div>
      {isWide && (
        <div class="query-more">
          <TextField label="Key is" value={draft.key} onChange={(key) => change({ key })} isMono />
          <TextField label="Text in key, value or header" value={draft.grep} onChange={(grep) => change({ grep })} isMono />
          <SelectField label="Transactions" value={draft.isolation} onChange={(isolation) => change({ isolation })} choices={[{ value: "", label: "All records" }, { value: "read_committed", label: "Committed only" }]} />
          <SelectField label="Keys are" value={draft.keyFormat} onChange={(keyFormat) => change({ keyFormat })} choices={FORMATS} />
          <SelectField label="Values are" value={draft.valueFormat} onChange={(valueFormat) => change({ valueFormat })} choices={FORMATS} />
        </div>
      )}
    </form>
  );
}

const FORMATS = [
  { value: "", label: "As they look" },
  { value: "text", label: "Text" },
  { value: "json", label: "JSON" },
  { value: "hex", label: "Bytes" },
  { value: "avro", label: "Avro" },
  { value: "protobuf", label: "Protobuf" },
] as const satisfies readonly { value: string; label: string }[];

const LIMITS = ["20", "50", "100", "250", "500", "1000"] as const;

function From({
  value,
  limit,
  isLive,
  onChange,
}: {
  readonly value: string;
  readonly limit: number;
  readonly isLive: boolean;
  readonly onChange: (part: Partial<Wanted>) => void;
}): JSX.Element | null {
  if (isLive) return null;
  const kind = kindOf(value);
  const detail = value.split(":")[1] ?? "";
  const choose = (next: Kind): void => {
    if (next === "last") onChange({ from: `last:${limit}` });
    else if (next === "earliest") onChange({ from: "earliest" });
    else if (next === "timestamp") onChange({ from: `timestamp:${Date.now() - 3_600_000}` });
    else onChange({ from: "offset:0" });
  };
  return (
    <>
      <SelectField
        label="Read from"
        isHiddenLabel
        value={kind}
        onChange={choose}
        choices={[
          { value: "last", label: "Newest" },
          { value: "earliest", label: "Oldest" },
          { value: "timestamp", label: "From a time" },
          { value: "offset", label: "From an offset" },
        ]}
      />
      {kind === "timestamp" && (
        <TextField label="Time" isHiddenLabel type="datetime-local" value={localTime(Number(detail))} onChange={(text) => { const ms = Date.parse(text); if (!Number.isNaN(ms)) onChange({ from: `timestamp:${ms}` }); }} />
      )}
      {kind === "offset" && <TextField label="Offset" isHiddenLabel inputMode="numeric" value={detail} onChange={(text) => onChange({ from: `offset:${text.replaceAll(/\D/g, "") || "0"}` })} />}
      <SelectField
        label="How many"
        isHiddenLabel
        value={String(limit)}
        onChange={(text) => onChange({ limit: Number(text), ...(kind === "last" ? { from: `last:${text}` } : {}) })}
        choices={[...new Set([...LIMITS, String(limit)])].map((text) => ({ value: text, label: `${text} records` }))}
      />
    </>
  );
}
