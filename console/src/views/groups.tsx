// All groups of consumers, of every kind that the cluster knows, and one of them.

import type { JSX } from "preact";
import * as api from "../api/cluster";
import type { GroupRow } from "../api/types";
import { Empty, Heading, Note, ProblemBox } from "../parts/basics";
import { SearchField, Segments } from "../parts/fields";
import { groupTone, State, Tag, words } from "../parts/status";
import { More, Table, type Column, type Order } from "../parts/table";
import { usePages } from "../state/pages";
import { nameIn, queryOf, setQuery, to } from "../state/routes";
import { isOurs } from "../state/session";
import { count } from "../text/numbers";
import { visible } from "../text/visible";
import { GroupView } from "./group";

const LIMIT = 100;
const EVERY_MS = 5000;
const KINDS = ["all", "consumer", "classic", "share", "streams"] as const;
type Kind = (typeof KINDS)[number];

const COLUMNS: readonly Column<GroupRow>[] = [
  {
    key: "group_id",
    label: "Group",
    className: "grow",
    sort: (row) => row.group_id,
    cell: (row) => <a class="strong clip" href={to("groups", row.group_id)} title={visible(row.group_id)}>{visible(row.group_id) || "''"}</a>,
  },
  {
    key: "type",
    label: "Kind",
    rank: 2,
    sort: (row) => row.type,
    hint: "consumer: the protocol of KIP-848; classic: JoinGroup and SyncGroup",
    cell: (row) => (
      <span class="tags">
        <Tag tone={row.type === "classic" ? "quiet" : "accent"}>{row.type}</Tag>
        {row.type === "classic" && row.protocol && row.protocol !== "consumer" && <span class="quiet">{row.protocol}</span>}
      </span>
    ),
  },
  { key: "state", label: "State", sort: (row) => row.state, cell: (row) => <State tone={groupTone(row.state)}>{words(row.state)}</State> },
  { key: "members", label: "Members", isNumber: true, rank: 2, sort: (row) => row.members, cell: (row) => count(row.members) },
  { key: "topics", label: "Topics", isNumber: true, rank: 3, sort: (row) => row.topics, cell: (row) => count(row.topics) },
  { key: "lag", label: "Lag", isNumber: true, sort: (row) => row.lag, hint: "Records between what is committed and the end", cell: (row) => <b class={row.lag ? "strong" : "quiet"}>{count(row.lag)}</b> },
  { key: "coordinator", label: "Coordinator", isNumber: true, rank: 3, sort: (row) => row.coordinator, cell: (row) => (row.coordinator === null ? "–" : <a href={to("brokers", String(row.coordinator))}>{row.coordinator}</a>) },
];

export function GroupsView({ parts }: { readonly parts: readonly string[] }): JSX.Element {
  if (parts.length > 0) return <GroupView name={nameIn(parts[0])} tab={parts[1] ?? ""} />;
  return <GroupList />;
}

function GroupList(): JSX.Element {
  const q = queryOf("q");
  const kind: Kind = KINDS.find((entry) => entry === queryOf("type")) ?? "all";
  const order: Order = { field: queryOf("sort") || "group_id", isDescending: queryOf("order") === "desc" };
  const isUnserved = isOurs.value && (kind === "share" || kind === "streams");
  const pages = usePages(
    isUnserved ? null : `groups ${JSON.stringify([q, kind, order])}`,
    (after, signal) =>
      api.groups.list(
        { q, type: kind === "all" ? null : kind, sort: order.field, order: order.isDescending ? "desc" : "asc", limit: LIMIT, after },
        signal,
      ),
    EVERY_MS,
  );
  const rows = pages.rows?.filter((row) => kind === "all" || row.type === kind) ?? null;
  return (
    <>
      <Heading title="Groups" />
      <div class="toolbar">
        <SearchField label="Search groups" value={q} onChange={(value) => setQuery({ q: value })} />
        <Segments label="Kind of group" value={kind} choices={KINDS.map((value) => ({ value, label: value.charAt(0).toUpperCase() + value.slice(1) }))} onChange={(value) => setQuery({ type: value === "all" ? null : value })} />
      </div>
      {pages.problem && !pages.problem.isUnreachable && <ProblemBox problem={pages.problem} onRetry={pages.reload} />}
      {isUnserved ? (
        <Empty title={`Moldau does not serve ${kind} groups yet`} icon="groups">
          {kind === "share" ? "Share groups (KIP-932) are on the roadmap." : "Streams groups (KIP-1071) are on the roadmap."} At an Apache Kafka cluster that serves them, this page shows them.
        </Empty>
      ) : (
        (rows !== null || !pages.problem) && (
          <div class="sheet">
            <Table
              label="Groups"
              columns={COLUMNS}
              rows={rows}
              rowKey={(row) => row.group_id}
              href={(row) => to("groups", row.group_id)}
              order={order}
              onOrder={(next) => setQuery({ sort: next.field, order: next.isDescending ? "desc" : null })}
              empty={
                q || kind !== "all" ? (
                  <Empty title="No such group" icon="search">No group's name has this, or none is of this kind.</Empty>
                ) : (
                  <Empty title="No groups yet" icon="groups" command="moldau consume TOPIC --group my-group --from-beginning">
                    A group appears with its first consumer.
                  </Empty>
                )
              }
            />
          </div>
        )
      )}
      <More shown={rows?.length ?? 0} total={pages.total} noun="groups" onMore={pages.more} isLoading={pages.isLoading} />
      {isOurs.value && kind === "all" && rows !== null && rows.length > 0 && (
        <Note>Classic and consumer groups. Share and streams groups are not served by Moldau yet.</Note>
      )}
    </>
  );
}
