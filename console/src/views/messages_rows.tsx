// Records that have been read or that come live: the table, the record that is open, and what is wrong
// with a filter.

import type { JSX } from "preact";
import { useCallback, useState } from "preact/hooks";
import type { Problem } from "../api/problem";
import type { MessageRecord } from "../api/types";
import { ProblemBox } from "../parts/basics";
import { idOf } from "../text/records";
import type { Wanted } from "./messages_query";
import { MessageTable } from "./messages_table";
import { RecordPanel } from "./record_panel";

/** What is wrong with a filter, in its place. */
export function FilterProblem({ problem, text }: { readonly problem: Problem; readonly text: string }): JSX.Element {
  return (
    <>
      <ProblemBox problem={problem} />
      {problem.status === 422 && text !== "" && (
        <p class="hint">
          Fields are topic, partition, offset, timestamp, key, value and headers, as in <code>value.user.id == 7 and not key startswith "test"</code>.
        </p>
      )}
    </>
  );
}

interface RowsProps {
  readonly topic: string;
  readonly wanted: Wanted;
  readonly rows: readonly MessageRecord[] | null;
  readonly empty: JSX.Element;
}

/** The table, with the record that is open beside it. */
export function Rows({ topic, wanted, rows, empty }: RowsProps): JSX.Element {
  const [open, setOpen] = useState<MessageRecord | null>(null);
  const pick = useCallback((record: MessageRecord) => setOpen(record), []);
  const close = useCallback(() => setOpen(null), []);
  const step = useCallback(
    (by: 1 | -1) => {
      setOpen((old) => {
        if (!old || !rows) return old;
        const at = rows.findIndex((row) => idOf(row) === idOf(old));
        return rows[at + by] ?? old;
      });
    },
    [rows],
  );
  return (
    <div class={open ? "with-panel" : undefined}>
      <MessageTable topic={topic} rows={rows} picked={open ? idOf(open) : null} onPick={pick} empty={empty} />
      {open && <RecordPanel topic={topic} record={open} formats={{ key_format: wanted.keyFormat, value_format: wanted.valueFormat }} onStep={step} onClose={close} />}
    </div>
  );
}
