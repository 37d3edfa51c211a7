// The metadata log, record by record, back and forth; and what the cluster was as of any offset.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { LogRecord } from "../api/types";
import { Empty, Note, ProblemBox, Skeleton } from "../parts/basics";
import { Dialog } from "../parts/dialog";
import { SearchField, TextField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { JsonText, valueText } from "../parts/json";
import { Tag, words } from "../parts/status";
import { useResource } from "../state/resource";
import { queryOf, setQuery } from "../state/routes";
import { isOurs } from "../state/session";
import { clock, count, moment } from "../text/numbers";
import { visible } from "../text/visible";

const LIMIT = 100;

export function MetadataLog(): JSX.Element {
  const from = queryOf("from");
  const [q, setQ] = useState("");
  const [open, setOpen] = useState<LogRecord | null>(null);
  const [image, setImage] = useState<number | null>(null);
  const resource = useResource(
    `log ${from}`,
    (signal) => api.quorum.log({ from: from === "" ? null : from, limit: LIMIT }, signal),
    from === "" ? 3000 : null,
  );
  const { data, problem } = resource;
  if (problem?.isMissing || (!isOurs.value && problem && !problem.isUnreachable)) {
    return (
      <Empty title="The metadata log is not shown here" icon="quorum">
        {problem.detail || "Only nodes of Moldau give their metadata records to the console."}
      </Empty>
    );
  }
  const wanted = q.trim().toLowerCase();
  const records = data?.records.filter((record) => wanted === "" || `${record.type} ${record.summary}`.toLowerCase().includes(wanted)) ?? null;
  const first = data?.records[0]?.offset ?? 0;
  const last = data?.records.at(-1)?.offset ?? 0;
  const isNewest = from === "";
  return (
    <>
      <div class="toolbar">
        <SearchField label="Search these records" value={q} onChange={setQ} />
        <button type="button" class="button" disabled={!data || first === 0} onClick={() => setQuery({ from: Math.max(0, first - LIMIT) })}>
          <Icon name="left" />
          Earlier
        </button>
        <button type="button" class="button" disabled={!data || isNewest} onClick={() => setQuery({ from: data?.next === null ? null : last + 1 })}>
          Later
          <Icon name="right" />
        </button>
        <button type="button" class="button" disabled={!data || first === 0} onClick={() => setQuery({ from: 0 })}>
          Oldest
        </button>
        <button type="button" class="button" aria-pressed={isNewest} onClick={() => setQuery({ from: null })}>
          Newest
        </button>
        {data && data.records.length > 0 && <span class="quiet">offsets {count(first)} to {count(last)}</span>}
      </div>
      {problem && !problem.isUnreachable && <ProblemBox problem={problem} onRetry={resource.reload} />}
      {!data && !problem && <Skeleton lines={8} />}
      {records?.length === 0 && <Empty title="No records here" icon="search">{q ? "None of the records on this page has this." : "The log has no records at this offset."}</Empty>}
      {records && records.length > 0 && (
        <ol class="timeline">
          {(isNewest ? [...records].reverse() : records).map((record) => (
            <li key={record.offset}>
              <button type="button" class="timeline-entry" onClick={() => setOpen(record)}>
                <span class="timeline-offset mono">{count(record.offset)}</span>
                <span class="timeline-time" title={moment(record.timestamp_ms)}>
                  {record.timestamp_ms === null ? "–" : clock(record.timestamp_ms)}
                </span>
                <Tag tone={toneOf(record.type)}>{words(record.type.replace(/Record$/, ""))}</Tag>
                <span class="timeline-text clip">{visible(record.summary)}</span>
                <span class="quiet timeline-epoch">epoch {record.epoch}</span>
              </button>
            </li>
          ))}
        </ol>
      )}
      {open && (
        <Dialog title={`Offset ${count(open.offset)}`} onClose={() => setOpen(null)} isWide>
          <div class="dialog-body">
            <p class="tags">
              <Tag tone={toneOf(open.type)}>{open.type}</Tag>
              <Tag>version {open.version}</Tag>
              <Tag>epoch {open.epoch}</Tag>
              <Tag>{moment(open.timestamp_ms)}</Tag>
            </p>
            <p>{visible(open.summary)}</p>
            <JsonText text={valueText(open.fields)} />
          </div>
          <footer class="dialog-foot">
            <button
              type="button"
              class="button"
              onClick={() => {
                setImage(open.offset);
                setOpen(null);
              }}
            >
              The cluster as of this offset
            </button>
          </footer>
        </Dialog>
      )}
      {image !== null && <Image offset={image} onClose={() => setImage(null)} />}
    </>
  );
}

function toneOf(type: string): "accent" | "bad" | "info" | "quiet" {
  if (/Remove|Delete|Unregister/.test(type)) return "bad";
  if (/LeaderChange|KRaftV|Snapshot|NoOp|Transaction/.test(type)) return "quiet";
  if (/PartitionChange|BrokerRegistrationChange/.test(type)) return "info";
  return "accent";
}

function Image({ offset, onClose }: { readonly offset: number; readonly onClose: () => void }): JSX.Element {
  const [path, setPath] = useState("/");
  const [typed, setTyped] = useState("/");
  const resource = useResource(`image ${offset} ${path}`, (signal) => api.quorum.image(offset, path, signal));
  const go = (next: string): void => {
    setPath(next);
    setTyped(next);
  };
  const children = childrenOf(resource.data);
  return (
    <Dialog title={`The cluster as of offset ${count(offset)}`} onClose={onClose} isWide>
      <div class="dialog-body">
        <form
          class="path-line"
          onSubmit={(event) => {
            event.preventDefault();
            go(typed);
          }}
        >
          <button type="button" class="button" disabled={path === "/"} onClick={() => go(path.replace(/\/[^/]*$/, "") || "/")}>
            <Icon name="up" />
            Up
          </button>
          <TextField label="Path" isHiddenLabel value={typed} onChange={setTyped} isMono />
          <button type="submit" class="button">
            Go
          </button>
        </form>
        {resource.problem && <ProblemBox problem={resource.problem} />}
        {!resource.data && !resource.problem && <Skeleton lines={6} />}
        {children && (
          <ul class="tree">
            {children.map((name) => (
              <li key={name}>
                <button type="button" class="text-button mono" onClick={() => go(`${path === "/" ? "" : path}/${name}`)}>
                  {visible(name)}
                </button>
              </li>
            ))}
          </ul>
        )}
        {resource.data !== null && !children && <JsonText text={valueText(resource.data)} />}
        {resource.data !== null && <Note>It is what the records up to this offset say, as a node would have it.</Note>}
      </div>
    </Dialog>
  );
}

/** The names below a node of the image; null where it is a value. */
function childrenOf(node: unknown): readonly string[] | null {
  if (typeof node !== "object" || node === null || !("children" in node)) return null;
  const { children } = node;
  if (!Array.isArray(children)) return null;
  return children.map((entry: unknown) => (typeof entry === "string" ? entry : typeof entry === "object" && entry !== null && "name" in entry ? String(entry.name) : ""));
}
