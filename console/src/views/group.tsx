// One group: members with what they read and what they shall read, offsets with lag, the lag over time,
// reset of offsets after a look at what it does.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Assigned, Group, GroupOffset, Member } from "../api/types";
import { Card, Empty, Heading, Note, ProblemBox, Skeleton } from "../parts/basics";
import { Chart } from "../parts/chart";
import { Confirm } from "../parts/dialog";
import { Menu, Tabs } from "../parts/fields";
import { Icon } from "../parts/icons";
import { groupTone, State, Tag, words } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { useResource } from "../state/resource";
import { navigate, to } from "../state/routes";
import { isReadOnly } from "../state/session";
import { command } from "../text/command";
import { compact, count, plural, ranges } from "../text/numbers";
import { visible } from "../text/visible";
import { ResetOffsets } from "./group_reset";

const EVERY_MS = 3000;
const TABS = ["offsets", "members"] as const;

export function GroupView({ name, tab }: { readonly name: string; readonly tab: string }): JSX.Element {
  const resource = useResource(`group ${name}`, (signal) => api.groups.read(name, signal), EVERY_MS);
  const [change, setChange] = useState<"reset" | "delete" | null>(null);
  const group = resource.data;
  const { problem } = resource;
  const above = <a href={to("groups")}>Groups</a>;
  if (!group) {
    return (
      <>
        <Heading title={visible(name)} above={above} />
        {problem?.isMissing ? (
          <Empty title="This group does not exist" icon="groups">It may have been deleted, or its offsets have expired.</Empty>
        ) : problem ? (
          <ProblemBox problem={problem} onRetry={resource.reload} />
        ) : (
          <Skeleton lines={8} />
        )}
      </>
    );
  }
  const current = TABS.find((entry) => entry === tab) ?? "offsets";
  const close = (): void => setChange(null);
  return (
    <>
      <Heading
        title={visible(group.group_id)}
        above={above}
        beside={<Tag tone={group.type === "classic" ? "quiet" : "accent"}>{group.type}</Tag>}
        actions={
          !isReadOnly.value &&
          group.is_supported && (
            <>
              <button type="button" class="button" onClick={() => setChange("reset")}>
                <Icon name="refresh" />
                Reset offsets
              </button>
              <Menu label="Change" icon={<Icon name="edit" />}>
                <button type="button" class="menu-item danger" onClick={() => setChange("delete")}>
                  <Icon name="trash" />
                  Delete the group…
                </button>
              </Menu>
            </>
          )
        }
      />
      <Glance group={group} />
      {group.note && <Note tone={group.is_supported ? "info" : "warn"}>{group.note}</Note>}
      {problem && !problem.isUnreachable && <ProblemBox problem={problem} onRetry={resource.reload} />}
      <LagOverTime name={name} />
      <Tabs
        label={`Group ${visible(group.group_id)}`}
        current={current}
        tabs={[
          { key: "offsets", label: "Offsets", href: to("groups", name, "offsets"), count: count(group.offsets.length) },
          { key: "members", label: "Members", href: to("groups", name, "members"), count: count(group.members.length) },
        ]}
      />
      {current === "offsets" ? <Offsets group={group} /> : <Members group={group} />}
      {change === "reset" && <ResetOffsets group={group} onClose={close} onDone={resource.reload} />}
      {change === "delete" && <DeleteGroup group={group} onClose={close} />}
    </>
  );
}

function Glance({ group }: { readonly group: Group }): JSX.Element {
  const lags = group.offsets.map((entry) => entry.lag).filter((lag) => lag !== null);
  const lag = lags.reduce((sum, value) => sum + value, 0);
  return (
    <p class="glance">
      <State tone={groupTone(group.state)}>{words(group.state)}</State>
      <span>{plural(group.members.length, "member")}</span>
      <span aria-live="polite">lag {lags.length > 0 ? count(lag) : "–"}</span>
      {group.assignor && <span>assignor: {group.assignor}</span>}
      {group.group_epoch !== null && (
        <span title="Group epoch, and the epoch of the assignment that members are moving to">
          epoch {group.group_epoch}
          {group.target_assignment_epoch !== null && group.target_assignment_epoch !== group.group_epoch && `, target ${group.target_assignment_epoch}`}
        </span>
      )}
      {group.coordinator !== null && (
        <span>
          coordinator: <a href={to("brokers", String(group.coordinator))}>broker {group.coordinator}</a>
        </span>
      )}
    </p>
  );
}

function LagOverTime({ name }: { readonly name: string }): JSX.Element | null {
  const resource = useResource(`lag ${name}`, (signal) => api.groups.lagHistory(name, signal), 10_000);
  const points = resource.data?.points ?? [];
  if (points.length < 2) return null;
  return (
    <Card title="Lag over time">
      <Chart
        label="Lag of the group over the time that the console has seen"
        times={points.map(([at]) => at)}
        format={(value) => compact(Math.round(value))}
        height={130}
        lines={[{ label: "Records behind", colour: "--line-1", values: points.map(([, lag]) => lag) }]}
      />
    </Card>
  );
}

const OFFSETS: readonly Column<GroupOffset>[] = [
  {
    key: "topic",
    label: "Topic",
    className: "grow",
    sort: (row) => row.topic,
    cell: (row) => <a class="strong clip" href={to("topics", row.topic)}>{row.topic}</a>,
  },
  { key: "partition", label: "Partition", isNumber: true, sort: (row) => row.partition, cell: (row) => row.partition },
  { key: "committed", label: "Committed", isNumber: true, rank: 2, sort: (row) => row.committed, cell: (row) => count(row.committed) },
  { key: "end_offset", label: "End", isNumber: true, rank: 2, sort: (row) => row.end_offset, cell: (row) => count(row.end_offset) },
  { key: "lag", label: "Lag", isNumber: true, sort: (row) => row.lag, cell: (row) => <Lag row={row} /> },
  { key: "member_id", label: "Read by", rank: 3, sort: (row) => row.member_id, cell: (row) => (row.member_id ? <code class="clip short" title={row.member_id}>{visible(row.member_id)}</code> : <span class="quiet">no member</span>) },
  { key: "leader_epoch", label: "Leader epoch", isNumber: true, rank: 3, cell: (row) => count(row.leader_epoch) },
  { key: "metadata", label: "Metadata", rank: 3, cell: (row) => (row.metadata ? <code class="clip short">{visible(row.metadata)}</code> : <span class="quiet">–</span>) },
];

function Lag({ row }: { readonly row: GroupOffset }): JSX.Element {
  const isLost = row.committed !== null && row.start_offset !== null && row.committed < row.start_offset;
  return (
    <>
      {isLost && <Tag tone="bad" title={`The log begins at ${row.start_offset ?? ""}: records that were not read are gone`}>behind the start</Tag>}{" "}
      <b class={row.lag ? "strong" : "quiet"}>{count(row.lag)}</b>
    </>
  );
}

function Offsets({ group }: { readonly group: Group }): JSX.Element {
  return (
    <div class="sheet">
      <Table
        label="Offsets"
        columns={OFFSETS}
        rows={group.offsets}
        rowKey={(row) => `${row.topic} ${row.partition}`}
        order={{ field: "lag", isDescending: true }}
        empty={
          <Empty title="Nothing is committed" icon="clock">
            {group.type === "share" ? "Share groups have no committed offsets per member." : "The group has not committed an offset yet."}
          </Empty>
        }
      />
    </div>
  );
}

function Assignment({ assigned }: { readonly assigned: readonly Assigned[] | null }): JSX.Element {
  if (assigned === null || assigned.length === 0) return <span class="quiet">nothing</span>;
  return (
    <span class="assigned">
      {assigned.map((entry) => (
        <span key={entry.topic}>
          <a href={to("topics", entry.topic)}>{entry.topic}</a> <span class="quiet">{ranges(entry.partitions)}</span>
        </span>
      ))}
    </span>
  );
}

function isMoving(member: Member): boolean {
  const text = (assigned: readonly Assigned[] | null): string =>
    (assigned ?? []).map((entry) => `${entry.topic} ${[...entry.partitions].sort((a, b) => a - b).join()}`).sort().join(";");
  return member.target !== null && text(member.target) !== text(member.assignment);
}

const MEMBERS: readonly Column<Member>[] = [
  {
    key: "client_id",
    label: "Member",
    sort: (row) => row.client_id,
    cell: (row) => (
      <span class="two-lines">
        <b class="strong">{visible(row.client_id)}</b>
        <code class="clip short quiet" title={row.member_id}>{visible(row.instance_id ?? row.member_id)}</code>
      </span>
    ),
  },
  { key: "client_host", label: "Host", rank: 2, sort: (row) => row.client_host, cell: (row) => <span class="mono">{row.client_host}</span> },
  { key: "rack_id", label: "Rack", rank: 3, cell: (row) => row.rack_id || "–" },
  { key: "member_epoch", label: "Epoch", isNumber: true, rank: 3, sort: (row) => row.member_epoch, cell: (row) => count(row.member_epoch) },
  { key: "assignment", label: "Reads", className: "grow", cell: (row) => <Assignment assigned={row.assignment} /> },
  {
    key: "target",
    label: "Shall read",
    rank: 2,
    hint: "The target assignment, where the member is still moving to it",
    cell: (row) => (row.target === null ? <span class="quiet">–</span> : isMoving(row) ? <Assignment assigned={row.target} /> : <span class="quiet">the same</span>),
  },
];

function Members({ group }: { readonly group: Group }): JSX.Element {
  return (
    <div class="sheet">
      <Table
        label="Members"
        columns={MEMBERS}
        rows={group.members}
        rowKey={(row) => row.member_id}
        empty={<Empty title="No members now" icon="groups">The group keeps its offsets; consumers that join go on from them.</Empty>}
      />
    </div>
  );
}

function DeleteGroup({ group, onClose }: { readonly group: Group; readonly onClose: () => void }): JSX.Element {
  const hasMembers = group.members.length > 0;
  return (
    <Confirm
      title="Delete the group"
      action="Delete group"
      isDangerous
      isReady={!hasMembers}
      command={command("groups", "delete", group.group_id)}
      says={
        hasMembers ? (
          <>The group has {plural(group.members.length, "member")}: stop them first, Kafka deletes only empty groups.</>
        ) : (
          <>
            Deletes <b>{visible(group.group_id)}</b> and its {plural(group.offsets.length, "committed offset")}. Consumers that come back with this name
            begin where <code>auto.offset.reset</code> says.
          </>
        )
      }
      onDo={async () => {
        await api.groups.remove(group.group_id);
        navigate(to("groups"));
        return `Group ${visible(group.group_id)} has been deleted.`;
      }}
      onClose={onClose}
    />
  );
}
