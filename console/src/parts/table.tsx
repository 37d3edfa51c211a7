// The one table: columns with sorting here or by the server, skeleton rows while loading, an empty
// state, and a window over many rows, of which only those in sight are in the document. Invariant:
// with a row height, the document holds at most as many rows as are in sight and EXTRA on each side.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { navigate } from "../state/routes";
import { Icon } from "./icons";

export interface Column<Row> {
  readonly key: string;
  readonly label: string;
  readonly cell: (row: Row) => ComponentChildren;
  /** What the page sorts by; with `onOrder` its presence says that the server can. */
  readonly sort?: (row: Row) => number | string | null | undefined;
  readonly isNumber?: boolean;
  /** 2 goes on narrow screens, 3 on those of middle width too. */
  readonly rank?: 1 | 2 | 3;
  readonly hint?: string;
  readonly width?: string;
  readonly className?: string;
}

export interface Order {
  readonly field: string;
  readonly isDescending: boolean;
}

interface Props<Row> {
  readonly label: string;
  readonly columns: readonly Column<Row>[];
  /** Null while they are on their way. */
  readonly rows: readonly Row[] | null;
  readonly rowKey: (row: Row) => string;
  readonly empty: ComponentChildren;
  readonly order?: Order | null;
  /** The server sorts: what to do when a column is chosen. */
  readonly onOrder?: (order: Order) => void;
  readonly href?: (row: Row) => string;
  readonly onPick?: (row: Row) => void;
  readonly picked?: string | null;
  readonly rowClass?: (row: Row) => string;
  readonly rowHeight?: number;
  readonly tallest?: string;
  readonly foot?: ComponentChildren;
}

const EXTRA = 12;
const MANY = 200;
const USUAL_HEIGHT = 41;

export function Table<Row>(props: Props<Row>): JSX.Element {
  const { columns, rows } = props;
  const [own, setOwn] = useState<Order | null>(props.order ?? null);
  const order = props.onOrder ? (props.order ?? null) : own;
  const sorted = useMemo(
    () => (rows && !props.onOrder ? sortedBy(rows, columns, own) : rows),
    [rows, own, props.onOrder !== undefined, columns],
  );
  const choose = (column: Column<Row>): void => {
    const isDescending = order?.field === column.key ? !order.isDescending : column.isNumber === true;
    const next = { field: column.key, isDescending };
    if (props.onOrder) props.onOrder(next);
    else setOwn(next);
  };
  if (sorted && sorted.length === 0) return <>{props.empty}</>;
  const height = props.rowHeight ?? (sorted && sorted.length > MANY ? USUAL_HEIGHT : null);
  return (
    <Scroller label={props.label} isWindow={height !== null} tallest={props.tallest}>
      {(view) => {
        const all = sorted ?? [];
        const [first, end] = height === null ? [0, all.length] : view.range(all.length, height);
        return (
          <table class={height === null ? "table" : "table fixed-rows"} aria-rowcount={height === null ? undefined : all.length + 1} aria-busy={sorted === null}>
            <thead>
              <tr>
                {columns.map((column) => (
                  <Head key={column.key} column={column} order={order} onChoose={() => choose(column)} />
                ))}
              </tr>
            </thead>
            <tbody>
              {sorted === null && <Bones columns={columns} />}
              {height !== null && first > 0 && <Spacer height={first * height} />}
              {all.slice(first, end).map((row, index) => (
                <Line key={props.rowKey(row)} row={row} place={first + index} props={props} isWindow={height !== null} />
              ))}
              {height !== null && end < all.length && <Spacer height={(all.length - end) * height} />}
            </tbody>
            {props.foot}
          </table>
        );
      }}
    </Scroller>
  );
}

function classOf<Row>(column: Column<Row>): string {
  const names = [column.isNumber ? "number" : "", column.rank ? `rank${column.rank}` : "", column.className ?? ""];
  return names.filter(Boolean).join(" ");
}

function Head<Row>({ column, order, onChoose }: { column: Column<Row>; order: Order | null; onChoose: () => void }): JSX.Element {
  const isMine = order?.field === column.key;
  const direction = isMine ? (order.isDescending ? "descending" : "ascending") : undefined;
  return (
    <th scope="col" class={classOf(column)} aria-sort={direction} title={column.hint} style={column.width ? { width: column.width } : undefined}>
      {column.sort ? (
        <button type="button" class="sort" onClick={onChoose}>
          {column.label}
          <span class={isMine ? "sort-mark" : "sort-mark off"}>
            <Icon name={isMine && order.isDescending ? "down" : "up"} size={12} />
          </span>
        </button>
      ) : (
        column.label || <span class="visually-hidden">Actions</span>
      )}
    </th>
  );
}

function Line<Row>({ row, place, props, isWindow }: { row: Row; place: number; props: Props<Row>; isWindow: boolean }): JSX.Element {
  const isPicked = props.picked !== undefined && props.picked !== null && props.rowKey(row) === props.picked;
  const act = props.onPick ? () => props.onPick?.(row) : props.href ? () => navigate(props.href?.(row) ?? "") : null;
  const click = (event: MouseEvent): void => {
    const target = event.target as Element;
    if (target.closest("a, button, input, select, label, summary") || window.getSelection()?.toString()) return;
    act?.();
  };
  const names = [act ? "can-open" : "", isPicked ? "picked" : "", props.rowClass?.(row) ?? ""];
  return (
    <tr class={names.filter(Boolean).join(" ")} onClick={act ? click : undefined} aria-rowindex={isWindow ? place + 2 : undefined} aria-selected={isPicked || undefined}>
      {props.columns.map((column) => (
        <td key={column.key} class={classOf(column)}>
          {column.cell(row)}
        </td>
      ))}
    </tr>
  );
}

/** One cell alone: one that spans columns would bring back those that narrow screens leave out. */
function Spacer({ height }: { height: number }): JSX.Element {
  return (
    <tr class="spacer" aria-hidden="true">
      <td style={{ height: `${height}px` }} />
    </tr>
  );
}

function Bones<Row>({ columns }: { columns: readonly Column<Row>[] }): JSX.Element {
  return (
    <>
      {[0, 1, 2, 3, 4].map((line) => (
        <tr key={line} aria-hidden="true">
          {columns.map((column, place) => (
            <td key={column.key} class={classOf(column)}>
              <span class={`bone w${(line + place * 2) % 5}`} />
            </td>
          ))}
        </tr>
      ))}
    </>
  );
}

interface View {
  readonly range: (count: number, height: number) => readonly [number, number];
}

function Scroller({
  label,
  isWindow,
  tallest,
  children,
}: {
  label: string;
  isWindow: boolean;
  tallest?: string | undefined;
  children: (view: View) => JSX.Element;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [seen, setSeen] = useState(800);
  useEffect(() => {
    const element = box.current;
    if (!element || !isWindow) return undefined;
    const observer = new ResizeObserver(() => setSeen(element.clientHeight));
    observer.observe(element);
    let frame = 0;
    const scrolled = (): void => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => setTop(element.scrollTop));
    };
    element.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      observer.disconnect();
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", scrolled);
    };
  }, [isWindow]);
  const range = (count: number, height: number): readonly [number, number] => {
    const first = Math.max(0, Math.min(Math.floor(top / height) - EXTRA, count - 1));
    return [first, Math.min(count, first + Math.ceil(seen / height) + 2 * EXTRA)];
  };
  return (
    <div ref={box} class={`table-scroll${isWindow ? " window" : ""}`} role="region" aria-label={label} tabIndex={0} style={isWindow && tallest ? { maxHeight: tallest } : undefined}>
      {children({ range })}
    </div>
  );
}

function sortedBy<Row>(rows: readonly Row[], columns: readonly Column<Row>[], order: Order | null): readonly Row[] {
  const by = order && columns.find((column) => column.key === order.field)?.sort;
  if (!by) return rows;
  const sign = order.isDescending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const left = by(a) ?? null;
    const right = by(b) ?? null;
    if (left === null || right === null) return left === right ? 0 : left === null ? 1 : -1;
    if (typeof left === "number" && typeof right === "number") return sign * (left - right);
    return sign * String(left).localeCompare(String(right), "en", { numeric: true });
  });
}

/** What stands below a list of which the server has more. */
export function More({
  shown,
  total,
  noun,
  onMore,
  isLoading,
}: {
  readonly shown: number;
  readonly total: number;
  readonly noun: string;
  readonly onMore: (() => void) | null;
  readonly isLoading: boolean;
}): JSX.Element | null {
  if (shown === 0) return null;
  return (
    <div class="more">
      <span>
        {shown < total ? `${shown.toLocaleString("en")} of ${total.toLocaleString("en")} ${noun}` : `${total.toLocaleString("en")} ${noun}`}
      </span>
      {onMore && (
        <button type="button" class="button small" onClick={onMore} disabled={isLoading}>
          {isLoading ? "Loading…" : "Show more"}
        </button>
      )}
    </div>
  );
}
