// All topics, with the groups that read them, their lag and sizes; those that the person has marked.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { TopicRow } from "../api/types";
import { Empty, Heading, ProblemBox } from "../parts/basics";
import { CheckField, SearchField, Segments } from "../parts/fields";
import { Icon } from "../parts/icons";
import { Shape, State, Tag } from "../parts/status";
import { More, Table, type Column, type Order } from "../parts/table";
import { usePages } from "../state/pages";
import { favourites, showInternal, toggleFavourite } from "../state/preferences";
import { queryOf, setQuery, to } from "../state/routes";
import { isReadOnly } from "../state/session";
import { bytes, compact, count, duration } from "../text/numbers";
import { visible } from "../text/visible";
import { CreateTopic } from "./topic_changes";

const LIMIT = 100;
const EVERY_MS = 10_000;

/** A switch beside a topic's name. */
export function Favourite({ topic }: { readonly topic: string }): JSX.Element {
  const isOn = favourites.value.includes(topic);
  return (
    <button type="button" class={`star${isOn ? " on" : ""}`} aria-pressed={isOn} aria-label={`Favourite: ${topic}`} title={isOn ? "One of your topics" : "Add to your topics"} onClick={() => toggleFavourite(topic)}>
      <Icon name="star" />
    </button>
  );
}

/** Whether all replicas of a topic keep up. */
export function TopicState({ row }: { readonly row: Pick<TopicRow, "offline" | "under_replicated"> }): JSX.Element {
  if (row.offline > 0) return <State tone="bad">{row.offline} offline</State>;
  if (row.under_replicated > 0) return <State tone="warn">{row.under_replicated} under-replicated</State>;
  return <State tone="ok">In sync</State>;
}

function TopicGroups({ row }: { readonly row: TopicRow }): JSX.Element {
  const groups = row.groups ?? null;
  if (groups === null || groups.length === 0) return <span class="quiet">{groups === null ? "–" : "none"}</span>;
  const lag = groups.reduce((sum, group) => sum + (group.lag ?? 0), 0);
  const [first] = groups;
  return (
    <span class="name-cell">
      {groups.length === 1 && first ? <a class="clip" href={to("groups", first.group_id)}>{visible(first.group_id)}</a> : <span>{groups.length} groups</span>}
      {lag > 0 ? <Tag title="Records that its groups have not committed yet">lag {compact(lag)}</Tag> : <span class="quiet">no lag</span>}
    </span>
  );
}

const COLUMNS: readonly Column<TopicRow>[] = [
  {
    key: "name",
    label: "Topic",
    className: "grow",
    sort: (row) => row.name,
    cell: (row) => (
      <span class="name-cell">
        <Favourite topic={row.name} />
        <a class="strong clip" href={to("topics", row.name)} title={row.name}>{row.name}</a>
        {row.is_internal && <Tag>internal</Tag>}
        {(row.offline > 0 || row.under_replicated > 0) && (
          <span class="narrow-only" title={row.offline > 0 ? "Offline partitions" : "Under-replicated partitions"}>
            <Shape tone={row.offline > 0 ? "bad" : "warn"} />
            <span class="visually-hidden">{row.offline > 0 ? "offline" : "under-replicated"}</span>
          </span>
        )}
      </span>
    ),
  },
  { key: "state", label: "Replicas", rank: 2, cell: (row) => <TopicState row={row} /> },
  { key: "partition_count", label: "Partitions", isNumber: true, sort: (row) => row.partition_count, cell: (row) => <>{count(row.partition_count)}<span class="quiet times"> × {row.replication_factor}</span></>, hint: "Partitions × replicas of each" },
  { key: "record_count", label: "Records", isNumber: true, rank: 2, sort: (row) => row.record_count, cell: (row) => compact(row.record_count), hint: "Offsets between the log's start and its end" },
  { key: "size_bytes", label: "Size", isNumber: true, sort: (row) => row.size_bytes, cell: (row) => bytes(row.size_bytes), hint: "On the disks of all replicas" },
  { key: "groups", label: "Groups", rank: 2, cell: (row) => <TopicGroups row={row} /> },
  { key: "retention_ms", label: "Kept", rank: 3, className: "no-wrap", cell: (row) => (row.cleanup_policy === "compact" ? "compacted" : `${duration(row.retention_ms)}${row.cleanup_policy?.includes("compact") ? ", compacted" : ""}`) },
];

export function TopicsView(): JSX.Element {
  const [isCreating, setCreating] = useState(false);
  const q = queryOf("q");
  const isMine = queryOf("mine") === "1";
  const order: Order = { field: queryOf("sort") || "name", isDescending: queryOf("order") === "desc" };
  const names = favourites.value;
  const internal = showInternal.value;
  const key = isMine && names.length === 0 ? null : `topics ${JSON.stringify([q, order, internal, isMine ? names : null])}`;
  const pages = usePages(
    key,
    (after, signal) =>
      api.topics.list(
        {
          q,
          sort: order.field,
          order: order.isDescending ? "desc" : "asc",
          limit: LIMIT,
          after,
          internal: internal || isMine,
          names: isMine ? names : null,
          with: "sizes,offsets,groups",
        },
        signal,
      ),
    EVERY_MS,
  );
  const rows = key === null ? [] : (pages.rows?.filter((row) => !isMine || names.includes(row.name)) ?? null);
  return (
    <>
      <Heading
        title="Topics"
        actions={
          !isReadOnly.value && (
            <button type="button" class="button primary" onClick={() => setCreating(true)}>
              <Icon name="plus" />
              Create topic
            </button>
          )
        }
      />
      <div class="toolbar">
        <SearchField label="Search topics" value={q} onChange={(value) => setQuery({ q: value })} />
        <Segments
          label="Which topics"
          value={isMine ? "mine" : "all"}
          choices={[{ value: "all", label: "All" }, { value: "mine", label: "My topics" }]}
          onChange={(value) => setQuery({ mine: value === "mine" ? 1 : null })}
        />
        <CheckField label="Internal topics" isOn={internal} onChange={(isOn) => (showInternal.value = isOn)} />
      </div>
      {pages.problem && !pages.problem.isUnreachable && <ProblemBox problem={pages.problem} onRetry={pages.reload} />}
      {(rows !== null || !pages.problem) && (
        <div class="sheet">
          <Table
            label="Topics"
            columns={COLUMNS}
            rows={rows}
            rowKey={(row) => row.name}
            href={(row) => to("topics", row.name)}
            order={order}
            onOrder={(next) => setQuery({ sort: next.field, order: next.isDescending ? "desc" : null })}
            empty={<NoTopics isMine={isMine} q={q} />}
          />
        </div>
      )}
      <More shown={rows?.length ?? 0} total={isMine ? (rows?.length ?? 0) : pages.total} noun="topics" onMore={pages.more} isLoading={pages.isLoading} />
      {isCreating && <CreateTopic onClose={() => setCreating(false)} onDone={pages.reload} />}
    </>
  );
}

function NoTopics({ isMine, q }: { readonly isMine: boolean; readonly q: string }): JSX.Element {
  if (q) return <Empty title="No topic has this in its name" icon="search">Part of a name is enough; capitals count for nothing.</Empty>;
  if (isMine) return <Empty title="None of your topics yet" icon="star">Mark a topic with the star before its name, and it stands here.</Empty>;
  return (
    <Empty title="No topics yet" icon="topics" command="moldau topics create orders --partitions 6">
      Create the first one here, or with this command.
    </Empty>
  );
}
