// The quorum: who leads, how far voters and observers are, elections over time; and the metadata log.

import type { JSX } from "preact";
import * as api from "../api/cluster";
import type { Quorum, Replica } from "../api/types";
import { Card, Empty, Heading, ProblemBox, Skeleton } from "../parts/basics";
import { Tabs } from "../parts/fields";
import { State, Tag, type Tone } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { useResource } from "../state/resource";
import { to } from "../state/routes";
import { clock, count, moment, plural, relative } from "../text/numbers";
import { MetadataLog } from "./metadata_log";

const EVERY_MS = 2000;
const BEHIND_MS = 10_000;

export function QuorumView({ parts }: { readonly parts: readonly string[] }): JSX.Element {
  const tab = parts[0] === "log" ? "log" : "replicas";
  const resource = useResource(tab === "log" ? null : "quorum", (signal) => api.quorum.read(signal), EVERY_MS);
  const { data, problem } = resource;
  return (
    <>
      <Heading title="Quorum">The controllers, and the log of metadata that they agree on.</Heading>
      <Tabs
        label="Quorum"
        current={tab}
        tabs={[
          { key: "replicas", label: "Voters and observers", href: to("quorum") },
          { key: "log", label: "Metadata log", href: to("quorum", "log") },
        ]}
      />
      {tab === "log" && <MetadataLog />}
      {tab === "replicas" && problem && !problem.isUnreachable && <ProblemBox problem={problem} onRetry={resource.reload} />}
      {tab === "replicas" && !data && !problem && <Skeleton lines={8} />}
      {tab === "replicas" && data && <Replicas quorum={data} />}
    </>
  );
}

function stateOf(row: Replica, now: number): readonly [Tone, string] {
  if (row.is_leader) return ["ok", "Leader"];
  const caughtUp = row.last_caught_up_ms;
  if (caughtUp !== null && caughtUp > 0 && now - caughtUp > BEHIND_MS) return ["bad", `Behind for ${relative(caughtUp, now).replace(" ago", "")}`];
  if ((row.lag ?? 0) > 0) return ["info", "Follows"];
  return ["ok", "In step"];
}

function endpoints(row: Replica): string {
  return (row.endpoints ?? []).map((entry) => (typeof entry === "string" ? entry : `${entry.host}:${entry.port}`)).join(", ");
}

const COLUMNS: readonly Column<Replica>[] = [
  {
    key: "node_id",
    label: "Node",
    sort: (row) => row.node_id,
    cell: (row) => (
      <span class="name-cell">
        <b class="strong">{row.node_id}</b>
        {row.is_leader && <Tag tone="accent">leader</Tag>}
      </span>
    ),
  },
  {
    key: "state",
    label: "State",
    cell: (row) => {
      const [tone, text] = stateOf(row, Date.now());
      return <State tone={tone}>{text}</State>;
    },
  },
  { key: "log_end_offset", label: "Log end", isNumber: true, sort: (row) => row.log_end_offset, cell: (row) => count(row.log_end_offset) },
  { key: "lag", label: "Lag", isNumber: true, sort: (row) => row.lag, cell: (row) => count(row.lag) },
  { key: "last_fetch_ms", label: "Last fetch", rank: 2, sort: (row) => row.last_fetch_ms, cell: (row) => <span title={moment(row.last_fetch_ms)}>{row.is_leader ? "–" : relative(row.last_fetch_ms, Date.now())}</span> },
  { key: "last_caught_up_ms", label: "Caught up", rank: 3, sort: (row) => row.last_caught_up_ms, cell: (row) => <span title={moment(row.last_caught_up_ms)}>{row.is_leader ? "–" : relative(row.last_caught_up_ms, Date.now())}</span> },
  { key: "endpoints", label: "Endpoints", rank: 3, cell: (row) => <span class="mono clip">{endpoints(row) || "–"}</span> },
  { key: "directory_id", label: "Directory", rank: 3, cell: (row) => <code class="clip short quiet">{row.directory_id ?? "–"}</code> },
];

function Replicas({ quorum }: { readonly quorum: Quorum }): JSX.Element {
  const behind = quorum.voters.filter((row) => stateOf(row, Date.now())[0] === "bad").length;
  const majority = Math.floor(quorum.voters.length / 2) + 1;
  const spare = quorum.voters.length - behind - majority;
  return (
    <div class="stack">
      <p class="glance">
        {quorum.leader_id === null || quorum.leader_id < 0 ? <State tone="bad">No leader</State> : <State tone="ok">Node {quorum.leader_id} leads</State>}
        <span>epoch {count(quorum.leader_epoch)}</span>
        <span>high watermark {count(quorum.high_watermark)}</span>
        <span>
          {spare > 0 ? `${plural(spare, "voter")} may still fail` : spare === 0 ? "no further voter may fail" : "no majority"}
        </span>
      </p>
      <Card title="Voters" isFlush>
        <Table label="Voters" columns={COLUMNS} rows={quorum.voters} rowKey={(row) => `${row.node_id} ${row.directory_id}`} empty={<Empty title="No voters are known" icon="quorum">The quorum has not answered yet.</Empty>} />
      </Card>
      <Elections quorum={quorum} />
      <Card title="Observers" isFlush>
        <Table label="Observers" columns={COLUMNS} rows={quorum.observers} rowKey={(row) => `${row.node_id} ${row.directory_id}`} empty={<Empty title="No observers" icon="brokers">Brokers that are not controllers follow the log as observers.</Empty>} />
      </Card>
    </div>
  );
}

function Elections({ quorum }: { readonly quorum: Quorum }): JSX.Element | null {
  const elections = [...quorum.elections].sort((a, b) => a.at_ms - b.at_ms).slice(-40);
  if (elections.length === 0) return null;
  const start = elections[0]?.at_ms ?? 0;
  const end = Math.max(Date.now(), start + 1);
  const leaders = [...new Set(elections.map((entry) => entry.leader_id))].filter((id) => id !== null).sort((a, b) => a - b);
  const place = (ms: number): number => ((ms - start) / (end - start)) * 100;
  return (
    <Card title="Elections">
      <div class="elections" role="img" aria-label={`${elections.length} elections since ${moment(start)}`}>
        {leaders.map((leader) => (
          <div key={leader} class="election-row">
            <span class="election-name">node {leader}</span>
            <span class="election-track">
              {elections.map((entry, index) => {
                if (entry.leader_id !== leader) return null;
                const until = elections[index + 1]?.at_ms ?? end;
                return (
                  <span
                    key={entry.epoch}
                    class={leader === quorum.leader_id && index === elections.length - 1 ? "reign now" : "reign"}
                    style={{ left: `${place(entry.at_ms)}%`, width: `max(4px, ${place(until) - place(entry.at_ms)}%)` }}
                    title={`Epoch ${entry.epoch}: node ${leader} from ${moment(entry.at_ms)}`}
                  />
                );
              })}
            </span>
          </div>
        ))}
        <div class="election-row axis" aria-hidden="true">
          <span class="election-name" />
          <span class="election-ends">
            <span>{moment(start).slice(0, 19)}</span>
            <span>{clock(end)}</span>
          </span>
        </div>
      </div>
      <ol class="election-list" reversed>
        {[...elections].reverse().slice(0, 8).map((entry) => (
          <li key={entry.epoch}>
            <span class="mono">epoch {entry.epoch}</span>
            <span>{entry.leader_id === null ? "no leader" : `node ${entry.leader_id} was elected`}</span>
            <span class="quiet">{moment(entry.at_ms)}</span>
          </li>
        ))}
      </ol>
    </Card>
  );
}
