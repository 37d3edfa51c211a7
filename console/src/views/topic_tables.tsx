// The tables of a topic: partitions with ISR and ELR, groups that read it, producers that the leaders
// remember.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Partition, ProducerRow, Topic } from "../api/types";
import { Empty, ProblemBox } from "../parts/basics";
import { SelectField } from "../parts/fields";
import { groupTone, State, Tag, words } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { useResource } from "../state/resource";
import { to } from "../state/routes";
import { bytes, count, moment, relative } from "../text/numbers";
import { visible } from "../text/visible";

/** Replicas as marks: the leader first, those out of the ISR hollow. */
function Replicas({ row }: { readonly row: Partition }): JSX.Element {
  return (
    <span class="replicas">
      {row.replicas.map((broker) => {
        const isIn = row.isr.includes(broker);
        const isOffline = row.offline_replicas.includes(broker);
        const isElr = row.elr?.includes(broker) ?? false;
        const isLeader = row.leader === broker;
        const what = isLeader ? "leader" : isOffline ? "offline" : isIn ? "in sync" : isElr ? "eligible leader (ELR)" : "out of the ISR";
        const names = ["replica", isLeader ? "leads" : "", isIn ? "" : "out", isOffline ? "off" : ""];
        return (
          <a key={broker} href={to("brokers", String(broker))} class={names.filter(Boolean).join(" ")} title={`Broker ${broker}: ${what}`}>
            {broker}
            <span class="visually-hidden">, {what}</span>
          </a>
        );
      })}
    </span>
  );
}

function partitionState(row: Partition): JSX.Element {
  if (row.leader === null || row.leader < 0) return <State tone="bad">Offline</State>;
  if (row.isr.length < row.replicas.length) return <State tone="warn">Under-replicated</State>;
  return <State tone="ok">In sync</State>;
}

const PARTITIONS: readonly Column<Partition>[] = [
  { key: "partition", label: "Partition", isNumber: true, className: "first", sort: (row) => row.partition, cell: (row) => <b class="strong">{row.partition}</b> },
  { key: "state", label: "State", rank: 2, sort: (row) => row.replicas.length - row.isr.length, cell: partitionState },
  { key: "replicas", label: "Replicas", hint: "Filled: the leader. Outlined: in the ISR. Dashed: out of it.", cell: (row) => <Replicas row={row} /> },
  {
    key: "elr",
    label: "ELR",
    rank: 3,
    hint: "Eligible leader replicas: out of the ISR, but with all committed records",
    cell: (row) => (row.elr && row.elr.length > 0 ? row.elr.join(", ") : <span class="quiet">–</span>),
  },
  { key: "leader_epoch", label: "Leader epoch", isNumber: true, rank: 3, sort: (row) => row.leader_epoch, cell: (row) => count(row.leader_epoch) },
  { key: "start_offset", label: "Start", isNumber: true, rank: 2, sort: (row) => row.start_offset, cell: (row) => count(row.start_offset) },
  { key: "end_offset", label: "End", isNumber: true, sort: (row) => row.end_offset, cell: (row) => <EndOffset row={row} /> },
  { key: "size_bytes", label: "Size", isNumber: true, rank: 2, sort: (row) => row.size_bytes, cell: (row) => bytes(row.size_bytes) },
  {
    key: "max_timestamp_ms",
    label: "Newest record",
    rank: 3,
    sort: (row) => row.max_timestamp_ms,
    cell: (row) => <span title={moment(row.max_timestamp_ms)}>{relative(row.max_timestamp_ms, Date.now())}</span>,
  },
];

function EndOffset({ row }: { readonly row: Partition }): JSX.Element {
  const open = row.end_offset !== null && row.last_stable_offset !== null ? row.end_offset - row.last_stable_offset : 0;
  return (
    <>
      {open > 0 && (
        <Tag tone="info" title={`Last stable offset ${row.last_stable_offset ?? ""}: records behind it belong to open transactions`}>
          {count(open)} open
        </Tag>
      )}{" "}
      {count(row.end_offset)}
    </>
  );
}

export function Partitions({ topic }: { readonly topic: Topic }): JSX.Element {
  return (
    <div class="sheet">
      <Table
        label="Partitions"
        columns={PARTITIONS}
        rows={topic.partitions}
        rowKey={(row) => String(row.partition)}
        empty={<Empty title="No partitions">The brokers have not seen the topic yet.</Empty>}
      />
    </div>
  );
}

type GroupOfTopic = NonNullable<Topic["groups"]>[number];

const GROUPS: readonly Column<GroupOfTopic>[] = [
  {
    key: "group_id",
    label: "Group",
    className: "grow",
    sort: (row) => row.group_id,
    cell: (row) => (
      <span class="name-cell">
        <a class="strong clip" href={to("groups", row.group_id)}>{visible(row.group_id)}</a>
        <Tag>{row.type}</Tag>
      </span>
    ),
  },
  { key: "state", label: "State", sort: (row) => row.state, cell: (row) => <State tone={groupTone(row.state)}>{words(row.state)}</State> },
  { key: "members", label: "Members", isNumber: true, sort: (row) => row.members, cell: (row) => count(row.members) },
  { key: "lag", label: "Lag", isNumber: true, sort: (row) => row.lag, hint: "Records of this topic that it has not committed", cell: (row) => count(row.lag) },
];

export function TopicGroupsTable({ topic }: { readonly topic: Topic }): JSX.Element {
  if (topic.groups === null) return <Empty title="Groups are not shown" icon="lock">You may not describe groups of this cluster.</Empty>;
  return (
    <div class="sheet">
      <Table
        label="Groups"
        columns={GROUPS}
        rows={topic.groups}
        rowKey={(row) => row.group_id}
        href={(row) => to("groups", row.group_id)}
        empty={
          <Empty title="No group reads this topic" icon="groups" command={`moldau consume ${topic.name} --group my-group --from-beginning`}>
            Consumers of a group share the partitions and commit what they have read. Consumers without a group are not seen here.
          </Empty>
        }
      />
    </div>
  );
}

const PRODUCERS: readonly Column<ProducerRow>[] = [
  { key: "partition", label: "Partition", isNumber: true, className: "first", sort: (row) => row.partition, cell: (row) => row.partition },
  { key: "producer_id", label: "Producer id", isNumber: true, sort: (row) => row.producer_id, cell: (row) => row.producer_id },
  { key: "producer_epoch", label: "Epoch", isNumber: true, sort: (row) => row.producer_epoch, cell: (row) => row.producer_epoch },
  { key: "last_sequence", label: "Last sequence", isNumber: true, rank: 2, sort: (row) => row.last_sequence, cell: (row) => (row.last_sequence < 0 ? "–" : count(row.last_sequence)) },
  { key: "coordinator_epoch", label: "Coordinator epoch", isNumber: true, rank: 3, sort: (row) => row.coordinator_epoch, cell: (row) => count(row.coordinator_epoch) },
  {
    key: "transaction_start_offset",
    label: "Open transaction",
    sort: (row) => row.transaction_start_offset,
    cell: (row) => (row.transaction_start_offset === null || row.transaction_start_offset < 0 ? <span class="quiet">none</span> : <State tone="info">since offset {count(row.transaction_start_offset)}</State>),
  },
  {
    key: "last_timestamp_ms",
    label: "Last record",
    isNumber: true,
    rank: 2,
    sort: (row) => row.last_timestamp_ms,
    cell: (row) => <span title={moment(row.last_timestamp_ms)}>{relative(row.last_timestamp_ms, Date.now())}</span>,
  },
];

export function Producers({ topic }: { readonly topic: Topic }): JSX.Element {
  const [which, setWhich] = useState("all");
  const resource = useResource(
    `producers ${topic.name} ${which}`,
    (signal) => api.topics.producers(topic.name, which === "all" ? null : Number(which), signal),
    5000,
  );
  return (
    <>
      <div class="toolbar">
        <SelectField label="Partition" isHiddenLabel value={which} onChange={setWhich} choices={[{ value: "all", label: "All partitions" }, ...topic.partitions.map((entry) => ({ value: String(entry.partition), label: `Partition ${entry.partition}` }))]} />
      </div>
      {resource.problem && <ProblemBox problem={resource.problem} onRetry={resource.reload} />}
      {(resource.data || !resource.problem) && (
        <div class="sheet">
          <Table
            label="Producers"
            columns={PRODUCERS}
            rows={resource.data?.data ?? null}
            rowKey={(row) => `${row.partition} ${row.producer_id}`}
            empty={
              <Empty title="No producer is remembered" icon="send">
                Leaders remember idempotent and transactional producers of the last day; others leave no trace.
              </Empty>
            }
          />
        </div>
      )}
    </>
  );
}
