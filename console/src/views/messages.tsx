// The messages of a topic: read within a budget, or followed live; filters, columns, downloads, the same
// as a command, and producing one.

import type { JSX } from "preact";
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import * as api from "../api/cluster";
import { withQuery } from "../api/http";
import { asProblem, isAborted, type Problem } from "../api/problem";
import type { MessagePage, MessageRecord, ReadReport, Topic } from "../api/types";
import { Command, Empty } from "../parts/basics";
import { Dialog } from "../parts/dialog";
import { Menu } from "../parts/fields";
import { Icon } from "../parts/icons";
import { queryOf, setQuery } from "../state/routes";
import { isReadOnly } from "../state/session";
import { command } from "../text/command";
import { bytes, count } from "../text/numbers";
import { LiveMessages } from "./messages_live";
import { commandOf, parametersOf, QueryForm, wantedOf, type Wanted } from "./messages_query";
import { FilterProblem, Rows } from "./messages_rows";
import { ColumnMenu } from "./messages_table";
import { Produce } from "./produce";
import { FilterMenu } from "./saved_filters";

const MOST_KEPT = 5000;

export function MessagesView({ topic }: { readonly topic: Topic }): JSX.Element {
  const wanted = wantedOf();
  const isLive = queryOf("live") === "1";
  const [turn, setTurn] = useState(0);
  const [columns, setColumns] = useState<readonly string[]>([]);
  const [isBusy, setBusy] = useState(false);
  const [isWhereWrong, setWhereWrong] = useState(false);
  const [isCommand, setCommand] = useState(false);
  const isProducing = queryOf("produce") === "1";
  const status = { onColumns: setColumns, onBusy: setBusy, onWhereWrong: setWhereWrong };
  return (
    <>
      <QueryForm topic={topic} wanted={wanted} columns={columns} isLive={isLive} isBusy={isBusy} isWhereWrong={isWhereWrong} onRead={() => setTurn((old) => old + 1)} />
      <div class="toolbar tight">
        <FilterMenu topic={topic.name} wanted={wanted} />
        <ColumnMenu topic={topic.name} found={columns} />
        {!isLive && <Downloads topic={topic.name} wanted={wanted} />}
        <button type="button" class="button small" onClick={() => setCommand(true)}>
          <Icon name="copy" />
          As a command
        </button>
      </div>
      {isLive ? <LiveMessages topic={topic} wanted={wanted} onWhereWrong={setWhereWrong} /> : <ReadMessages topic={topic} wanted={wanted} turn={turn} {...status} />}
      {isCommand && (
        <Dialog title="The same as a command" onClose={() => setCommand(false)}>
          <div class="dialog-body">
            <p class="lead small">It prints the same records, a JSON object each.</p>
            <Command text={commandOf(topic.name, wanted, isLive)} />
          </div>
        </Dialog>
      )}
      {isProducing && !isReadOnly.value && <Produce topic={topic} onClose={() => setQuery({ produce: null })} onDone={() => setTurn((old) => old + 1)} />}
    </>
  );
}

function Downloads({ topic, wanted }: { readonly topic: string; readonly wanted: Wanted }): JSX.Element {
  const kinds = [
    ["jsonl", "JSON lines"],
    ["csv", "CSV"],
    ["arrow", "Arrow"],
    ["parquet", "Parquet"],
  ] as const;
  return (
    <Menu label="Download" icon={<Icon name="download" />} isSmall>
      {kinds.map(([format, name]) => (
        <a key={format} class="menu-item" download={`${topic}.${format}`} href={withQuery(api.messages.downloadPath(topic), { ...parametersOf(wanted), format })}>
          {name}
        </a>
      ))}
      <p class="menu-note">As many records as the limits of the console allow, not only those on the page.</p>
    </Menu>
  );
}

interface Read {
  readonly rows: readonly MessageRecord[];
  readonly report: ReadReport;
  readonly next: string | null;
}

function added(old: Read | null, page: MessagePage): Read {
  const before = old?.report;
  return {
    rows: [...(old?.rows ?? []), ...page.records].slice(0, MOST_KEPT),
    report: {
      ...page.read,
      records: (before?.records ?? 0) + page.read.records,
      bytes: (before?.bytes ?? 0) + page.read.bytes,
      seconds: (before?.seconds ?? 0) + page.read.seconds,
    },
    next: page.next,
  };
}

interface ReadProps {
  readonly topic: Topic;
  readonly wanted: Wanted;
  readonly turn: number;
  readonly onColumns: (columns: readonly string[]) => void;
  readonly onBusy: (isBusy: boolean) => void;
  readonly onWhereWrong: (isWrong: boolean) => void;
}

function ReadMessages({ topic, wanted, turn, onColumns, onBusy, onWhereWrong }: ReadProps): JSX.Element {
  const [read, setRead] = useState<Read | null>(null);
  const [isReading, setReading] = useState(true);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [controller, setController] = useState<AbortController | null>(null);
  const question = JSON.stringify(wanted);
  const ask = useCallback(
    (old: Read | null): AbortController => {
      const mine = new AbortController();
      setController(mine);
      setReading(true);
      onBusy(true);
      setProblem(null);
      const finished = (): void => {
        setReading(false);
        onBusy(false);
      };
      api.messages.read(topic.name, { ...parametersOf(wanted), after: old?.next ?? null }, mine.signal).then(
        (page) => {
          if (mine.signal.aborted) return;
          setRead(added(old, page));
          onColumns(page.columns);
          onWhereWrong(false);
          finished();
        },
        (error: unknown) => {
          if (isAborted(error) || mine.signal.aborted) return;
          const found = asProblem(error);
          setProblem(found);
          onWhereWrong(found.status === 422 && wanted.where !== "");
          finished();
        },
      );
      return mine;
    },
    [topic.name, question],
  );
  useEffect(() => {
    setRead(null);
    const mine = ask(null);
    return () => mine.abort();
  }, [ask, turn]);
  const cancel = (): void => {
    controller?.abort();
    setReading(false);
    onBusy(false);
  };
  const isNewest = wanted.from.startsWith("last:");
  const rows = useMemo(() => (read && isNewest ? [...read.rows].sort(newestFirst) : (read?.rows ?? null)), [read, isNewest]);
  return (
    <>
      {problem && <FilterProblem problem={problem} text={wanted.where} />}
      {(rows !== null || !problem) && (
        <Rows
          topic={topic.name}
          wanted={wanted}
          rows={rows}
          empty={<NoRecords topic={topic} wanted={wanted} read={read} />}
        />
      )}
      <div class="read-foot" aria-live="polite">
        {read && <ReadLine report={read.report} shown={read.rows.length} />}
        {isReading && (
          <button type="button" class="button small" onClick={cancel}>
            Stop reading
          </button>
        )}
        {!isReading && read && read.next !== null && read.rows.length < MOST_KEPT && (
          <button type="button" class="button small" onClick={() => ask(read)}>
            Read on
          </button>
        )}
      </div>
    </>
  );
}

function newestFirst(a: MessageRecord, b: MessageRecord): number {
  return (b.timestamp_ms ?? 0) - (a.timestamp_ms ?? 0) || a.partition - b.partition || b.offset - a.offset;
}

const STOPS: Readonly<Record<string, string>> = {
  limit: "there may be more",
  records: "stopped at the console's limit of records",
  bytes: "stopped at the console's limit of bytes",
  time: "stopped at the console's limit of time",
  end: "up to the end",
};

function ReadLine({ report, shown }: { readonly report: ReadReport; readonly shown: number }): JSX.Element {
  const stop = STOPS[report.stopped_by ?? ""];
  return (
    <span>
      {count(shown)} shown of {count(report.records)} read, {bytes(report.bytes)} in {report.seconds.toFixed(report.seconds < 10 ? 2 : 0)} s{stop ? `; ${stop}` : ""}.
    </span>
  );
}

function NoRecords({ topic, wanted, read }: { readonly topic: Topic; readonly wanted: Wanted; readonly read: Read | null }): JSX.Element {
  const hasFilter = wanted.where !== "" || wanted.grep !== "" || wanted.key !== "";
  if (hasFilter) {
    return (
      <Empty title="No record fulfils the filter" icon="search">
        {count(read?.report.records ?? 0)} records have been read{read?.next ? "; “Read on” looks at the next ones" : ""}. “Oldest” begins at the log's start.
      </Empty>
    );
  }
  const isBare = topic.partitions.every((entry) => entry.start_offset === entry.end_offset);
  if (isBare) {
    return (
      <Empty title="No records yet" icon="topics" command={`echo '{"hello": "world"}' | ${command("produce", topic.name)}`}>
        Produce the first one here, or with this command.
      </Empty>
    );
  }
  return <Empty title="Nothing from here on" icon="clock">There are records before this place: choose “Oldest”, or an earlier time.</Empty>;
}
