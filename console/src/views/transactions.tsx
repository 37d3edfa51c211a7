// Transactions: those that are open, how old they are, those that hang, and aborting one.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { TransactionRow } from "../api/types";
import { Empty, Heading, ProblemBox } from "../parts/basics";
import { Confirm } from "../parts/dialog";
import { SearchField, SelectField } from "../parts/fields";
import { State, Tag, words, type Tone } from "../parts/status";
import { More, Table, type Column, type Order } from "../parts/table";
import { usePages } from "../state/pages";
import { queryOf, setQuery, to } from "../state/routes";
import { isReadOnly } from "../state/session";
import { command, option } from "../text/command";
import { count, duration, plural } from "../text/numbers";
import { visible } from "../text/visible";

const EVERY_MS = 4000;
const LIMIT = 100;
const STATES = ["", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty", "PrepareEpochFence", "Dead"] as const;
type StateName = (typeof STATES)[number];

const TONES: Readonly<Record<string, Tone>> = {
  ongoing: "info",
  preparecommit: "info",
  prepareabort: "warn",
  prepareepochfence: "warn",
  completecommit: "ok",
  completeabort: "quiet",
  empty: "quiet",
  dead: "quiet",
};

interface At {
  readonly topic: string;
  readonly partition: number;
  readonly start_offset: number | null;
}

/** The partitions of a transaction, in whichever form the API has them. */
function partitionsOf(row: TransactionRow): readonly At[] {
  return row.partitions.map((entry) => {
    if (typeof entry !== "string") return { topic: entry.topic, partition: entry.partition, start_offset: entry.start_offset ?? null };
    const at = entry.lastIndexOf("-");
    return { topic: entry.slice(0, at), partition: Number(entry.slice(at + 1)), start_offset: null };
  });
}

export function TransactionsView(_: { readonly parts: readonly string[] }): JSX.Element {
  const [aborted, setAborted] = useState<TransactionRow | null>(null);
  const q = queryOf("q");
  const state: StateName = STATES.find((entry) => entry === queryOf("state")) ?? "";
  const age = queryOf("age");
  const order: Order = { field: queryOf("sort") || "age_ms", isDescending: queryOf("order") !== "asc" };
  const pages = usePages(
    `transactions ${JSON.stringify([q, state, age, order])}`,
    (after, signal) =>
      api.transactions.list({ q, state, min_age_ms: age, sort: order.field, order: order.isDescending ? "desc" : "asc", limit: LIMIT, after }, signal),
    EVERY_MS,
  );
  const columns = useMemo<readonly Column<TransactionRow>[]>(
    () => [
      {
        key: "transactional_id",
        label: "Transactional id",
        className: "grow",
        sort: (row) => row.transactional_id,
        cell: (row) => (
          <span class="name-cell">
            <b class="strong clip">{row.transactional_id ? visible(row.transactional_id) : <span class="quiet">none known</span>}</b>
            {row.is_hanging && <Tag tone="bad" title="The coordinator does not know of it: only an abort ends it">hangs</Tag>}
          </span>
        ),
      },
      { key: "state", label: "State", sort: (row) => row.state, cell: (row) => <State tone={row.is_hanging ? "bad" : (TONES[row.state.toLowerCase().replaceAll(/[^a-z]/g, "")] ?? "quiet")}>{words(row.state)}</State> },
      { key: "age_ms", label: "Open for", isNumber: true, sort: (row) => row.age_ms, cell: (row) => <Age row={row} /> },
      { key: "partitions", label: "Partitions", rank: 2, cell: (row) => <Where row={row} /> },
      { key: "producer_id", label: "Producer id", isNumber: true, rank: 3, sort: (row) => row.producer_id, cell: (row) => <>{row.producer_id} <span class="quiet">epoch {row.producer_epoch}</span></> },
      { key: "timeout_ms", label: "Timeout", isNumber: true, rank: 3, sort: (row) => row.timeout_ms, cell: (row) => duration(row.timeout_ms) },
      { key: "coordinator", label: "Coordinator", isNumber: true, rank: 3, sort: (row) => row.coordinator, cell: (row) => (row.coordinator === null ? "–" : <a href={to("brokers", String(row.coordinator))}>{row.coordinator}</a>) },
      {
        key: "act",
        label: "",
        className: "act",
        cell: (row) =>
          !isReadOnly.value &&
          (row.is_hanging || /ongoing/i.test(row.state)) && (
            <button type="button" class="button small" onClick={() => setAborted(row)}>
              Abort
            </button>
          ),
      },
    ],
    [],
  );
  const rows = pages.rows;
  return (
    <>
      <Heading title="Transactions">Consumers with read_committed wait behind the oldest open transaction of a partition.</Heading>
      <div class="toolbar">
        <SearchField label="Search transactional ids" value={q} onChange={(value) => setQuery({ q: value })} />
        <SelectField label="State" isHiddenLabel value={state} onChange={(value) => setQuery({ state: value })} choices={STATES.map((value) => ({ value, label: value === "" ? "All states" : words(value) }))} />
        <SelectField
          label="Age"
          isHiddenLabel
          value={age}
          onChange={(value) => setQuery({ age: value })}
          choices={[
            { value: "", label: "Any age" },
            { value: "10000", label: "Open for 10 s" },
            { value: "60000", label: "Open for 1 min" },
            { value: "900000", label: "Open for 15 min" },
          ]}
        />
      </div>
      {pages.problem && !pages.problem.isUnreachable && <ProblemBox problem={pages.problem} onRetry={pages.reload} />}
      {(rows !== null || !pages.problem) && (
        <div class="sheet">
          <Table
            label="Transactions"
            columns={columns}
            rows={rows}
            rowKey={(row) => `${row.transactional_id} ${row.producer_id}`}
            order={order}
            onOrder={(next) => setQuery({ sort: next.field, order: next.isDescending ? "desc" : "asc" })}
            empty={
              q || state || age ? (
                <Empty title="No such transaction" icon="search">None is in this state, or none is that old.</Empty>
              ) : (
                <Empty title="No transactions" icon="transactions" command="moldau produce TOPIC --transactional-id my-id">
                  Producers with a transactional id appear here.
                </Empty>
              )
            }
          />
        </div>
      )}
      <More shown={rows?.length ?? 0} total={pages.total} noun="transactional ids" onMore={pages.more} isLoading={pages.isLoading} />
      {aborted && <Abort row={aborted} onClose={() => setAborted(null)} onDone={pages.reload} />}
    </>
  );
}

function Age({ row }: { readonly row: TransactionRow }): JSX.Element {
  if (row.age_ms === null || row.age_ms < 0) return <span class="quiet">–</span>;
  const isLate = row.timeout_ms !== null && row.age_ms > row.timeout_ms;
  return isLate ? <State tone="bad">{duration(row.age_ms)}</State> : <>{duration(row.age_ms)}</>;
}

function Where({ row }: { readonly row: TransactionRow }): JSX.Element {
  const at = partitionsOf(row);
  const [first] = at;
  if (!first) return <span class="quiet">–</span>;
  if (at.length > 1) return <span title={at.map((entry) => `${entry.topic}-${entry.partition}`).join(", ")}>{plural(at.length, "partition")}</span>;
  return (
    <a class="clip" href={to("topics", first.topic)}>
      {first.topic}-{first.partition}
    </a>
  );
}

function Abort({ row, onClose, onDone }: { readonly row: TransactionRow; readonly onClose: () => void; readonly onDone: () => void }): JSX.Element {
  const [first] = partitionsOf(row);
  const isByPartition = row.is_hanging && first !== undefined && first.start_offset !== null;
  return (
    <Confirm
      title="Abort the transaction"
      action="Abort"
      isDangerous
      command={
        isByPartition
          ? command("transactions", "abort", `${first.topic}:${first.partition}`, option("--start-offset", first.start_offset))
          : command("transactions", "force-terminate", row.transactional_id)
      }
      says={
        isByPartition ? (
          <>
            Writes an abort marker into partition {first.partition} of <b>{first.topic}</b> for producer {row.producer_id}: consumers with
            read_committed go on, and never see the records since offset {count(first.start_offset)}.
          </>
        ) : (
          <>
            Aborts the open transaction of <b>{visible(row.transactional_id)}</b> and fences its producer: the producer that runs now fails with{" "}
            <code>INVALID_PRODUCER_EPOCH</code> at its next request.
          </>
        )
      }
      onDo={async () => {
        await api.transactions.abort(
          isByPartition
            ? { topic: first.topic, partition: first.partition, start_offset: first.start_offset ?? 0 }
            : { transactional_id: row.transactional_id },
        );
        onDone();
        return "The transaction has been aborted.";
      }}
      onClose={onClose}
    />
  );
}
