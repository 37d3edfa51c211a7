// Records as a table: partition, offset, time, key, value or columns of it. Only rows in sight are in
// the document.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Bytes, MessageRecord } from "../api/types";
import { CheckField, Menu } from "../parts/fields";
import { Icon } from "../parts/icons";
import { Tag } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { columnsOf } from "../state/preferences";
import { bytes, moment } from "../text/numbers";
import { cellOf, idOf, kindOf, preview } from "../text/records";

const ROW_HEIGHT = 36;
const MOST_COLUMNS = 12;

function BytesCell({ value, nothing }: { readonly value: Bytes | null; readonly nothing: string }): JSX.Element {
  if (value === null) return <Tag title="No bytes at all">{nothing}</Tag>;
  if (value.size_bytes === 0) return <Tag title="Zero bytes">empty</Tag>;
  return (
    <span class="bytes-cell">
      {kindOf(value) === "binary" && <Tag>binary</Tag>}
      <span class={kindOf(value) === "binary" ? "mono quiet" : "mono"}>{preview(value)}</span>
    </span>
  );
}

/** The columns that are chosen for a topic. */
export function chosenColumns(topic: string): readonly string[] {
  return columnsOf.value[topic] ?? [];
}

function setColumns(topic: string, columns: readonly string[]): void {
  const rest = Object.entries(columnsOf.value).filter(([name]) => name !== topic);
  columnsOf.value = Object.fromEntries(columns.length > 0 ? [...rest.slice(-99), [topic, columns]] : rest);
}

export function ColumnMenu({ topic, found }: { readonly topic: string; readonly found: readonly string[] }): JSX.Element | null {
  const chosen = chosenColumns(topic);
  const all = [...new Set([...chosen, ...found])].slice(0, 200);
  if (all.length === 0) return null;
  return (
    <Menu label={chosen.length > 0 ? `Columns (${chosen.length})` : "Columns"} icon={<Icon name="columns" />} isSmall>
      <div class="menu-checks" role="group" aria-label="Parts of values as columns">
        {all.map((column) => (
          <CheckField
            key={column}
            label={<code>{column}</code>}
            isOn={chosen.includes(column)}
            onChange={(isOn) => setColumns(topic, isOn ? [...chosen, column].slice(0, MOST_COLUMNS) : chosen.filter((entry) => entry !== column))}
          />
        ))}
      </div>
      {chosen.length > 0 && (
        <button type="button" class="menu-item" onClick={() => setColumns(topic, [])}>
          Whole values again
        </button>
      )}
    </Menu>
  );
}

interface Props {
  readonly topic: string;
  readonly rows: readonly MessageRecord[] | null;
  readonly picked: string | null;
  readonly onPick: (record: MessageRecord) => void;
  readonly empty: JSX.Element;
}

export function MessageTable({ topic, rows, picked, onPick, empty }: Props): JSX.Element {
  const chosen = chosenColumns(topic);
  const columns = useMemo<readonly Column<MessageRecord>[]>(
    () => [
      { key: "partition", label: "P", hint: "Partition", className: "tight number", cell: (row) => row.partition },
      {
        key: "offset",
        label: "Offset",
        className: "offset number",
        cell: (row) => (
          <button type="button" class="cell-link" onClick={() => onPick(row)} aria-label={`Open offset ${row.offset} of partition ${row.partition}`}>
            {row.offset}
          </button>
        ),
      },
      {
        key: "time",
        label: "Time",
        rank: 2,
        className: "time",
        cell: (row) => <span title={row.timestamp_type === "append" ? "Log append time" : "Create time"}>{moment(row.timestamp_ms)}</span>,
      },
      { key: "key", label: "Key", className: "key", cell: (row) => <BytesCell value={row.key} nothing="null" /> },
      ...(chosen.length > 0
        ? chosen.map((path): Column<MessageRecord> => ({ key: `column ${path}`, label: path, className: "part", cell: (row) => <span class="mono clip">{cellOf(row, path)}</span> }))
        : [
            {
              key: "value",
              label: "Value",
              className: "value",
              cell: (row: MessageRecord) => (row.is_control ? <Tag tone="info">control record</Tag> : <BytesCell value={row.value} nothing="null (tombstone)" />),
            },
          ]),
      { key: "headers", label: "Headers", rank: 3, className: "tight number", isNumber: true, cell: (row) => row.headers.length || <span class="quiet">–</span> },
      { key: "size", label: "Size", rank: 3, className: "size number", isNumber: true, cell: (row) => bytes((row.key_size ?? 0) + (row.value_size ?? 0)) },
    ],
    [chosen.join("\n"), onPick],
  );
  return (
    <div class="sheet messages">
      <Table label="Records" columns={columns} rows={rows} rowKey={idOf} onPick={onPick} picked={picked} rowHeight={ROW_HEIGHT} empty={empty} />
    </div>
  );
}
