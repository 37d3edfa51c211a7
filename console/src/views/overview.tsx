// The first view: the cluster's health in a sentence, what is wrong, rates, brokers with their disks,
// certificates that end soon.

import type { JSX } from "preact";
import type { BrokerRow, Overview } from "../api/types";
import { Card, Copy, Empty, Fact, Facts, Heading, ProblemBox, Skeleton } from "../parts/basics";
import { Chart } from "../parts/chart";
import { Icon } from "../parts/icons";
import { HEALTH_TONES } from "../parts/navigation";
import { Meter, Shape, State, Tag } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { history, overview, problem } from "../state/overview";
import { BASE, to } from "../state/routes";
import { session } from "../state/session";
import { bytes, compact, count, moment, perSecond, relative } from "../text/numbers";

const SOON_MS = 30 * 86_400_000;

export function OverviewView(): JSX.Element {
  const data = overview.value;
  return (
    <>
      <Heading title="Overview" />
      {!data && problem.value && <ProblemBox problem={problem.value} />}
      {!data && !problem.value && <Skeleton lines={8} />}
      {data && (
        <div class="stack">
          <Health data={data} />
          <Numbers data={data} />
          <RatesCard data={data} />
          <Card title="Brokers" isFlush actions={<a class="quiet-link" href={to("brokers")}>All about brokers</a>}>
            <Brokers rows={data.brokers} />
          </Card>
          <Certificates data={data} />
          <About data={data} />
        </div>
      )}
    </>
  );
}

function Health({ data }: { readonly data: Overview }): JSX.Element {
  const { status, sentence, problems } = data.health;
  const tone = HEALTH_TONES[status] ?? "quiet";
  return (
    <section class={`health ${tone}`} aria-label="Health">
      <div class="health-line">
        <Shape tone={tone} />
        <h2 class="health-word">{status.charAt(0).toUpperCase() + status.slice(1)}</h2>
        <p aria-live="polite">{sentence}</p>
      </div>
      {problems.length > 0 && (
        <ul class="health-problems">
          {problems.map((entry) => (
            <li key={entry.text}>
              <Shape tone={entry.severity === "critical" ? "bad" : "warn"} />
              <span>{entry.text}</span>
              {entry.link && (
                <a class="quiet-link" href={withinPage(entry.link)}>
                  Look
                </a>
              )}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** A link of the API as an address of the page, whatever it says. */
function withinPage(link: string): string {
  return link.startsWith(BASE) ? link : BASE + link.replace(/^\/+/, "");
}

function Numbers({ data }: { readonly data: Overview }): JSX.Element {
  const { counts } = data;
  return (
    <dl class="tiles" aria-live="off">
      <Tile name="Topics" value={compact(counts.topics)} below={counts.internal_topics ? `and ${count(counts.internal_topics)} internal` : ""} href={to("topics")} />
      <Tile name="Partitions" value={compact(counts.partitions)} below={data.size_bytes === null ? "" : `${bytes(data.size_bytes)} on disks`} />
      <Tile name="Under-replicated" value={count(counts.under_replicated)} below={counts.under_min_isr ? `${count(counts.under_min_isr)} below min.insync.replicas` : "partitions"} className={counts.under_replicated ? "tile warn" : "tile"} />
      <Tile name="Offline" value={count(counts.offline)} below="partitions" className={counts.offline ? "tile bad" : "tile"} />
      <Tile name="Groups" value={compact(counts.groups)} below="of consumers" href={to("groups")} />
      <Tile name="Transactions" value={compact(counts.transactions_open)} below="open" href={to("transactions")} />
    </dl>
  );
}

function Tile({
  name,
  value,
  below,
  href,
  className = "tile",
}: {
  readonly name: string;
  readonly value: string;
  readonly below: string;
  readonly href?: string;
  readonly className?: string;
}): JSX.Element {
  return (
    <div class={className}>
      <dt>{href ? <a href={href}>{name}</a> : name}</dt>
      <dd>
        <span class="tile-value">{value}</span>
        <span class="tile-below">{below}</span>
      </dd>
    </div>
  );
}

function RatesCard({ data }: { readonly data: Overview }): JSX.Element | null {
  const points = history.value;
  if (!data.rates) return null;
  const times = points.map((point) => point.at);
  return (
    <div class="pair">
      <Card title="Bytes">
        <Chart
          label="Bytes per second in and out, over the time that this page is open"
          times={times}
          format={(value) => `${bytes(value)}/s`}
          lines={[
            { label: "In", colour: "--line-1", values: points.map((point) => point.rates.bytes_in_s) },
            { label: "Out", colour: "--line-2", values: points.map((point) => point.rates.bytes_out_s) },
          ]}
        />
      </Card>
      <Card title="Records and requests">
        <Chart
          label="Records in and requests per second, over the time that this page is open"
          times={times}
          format={(value) => `${compact(Math.round(value * 10) / 10)}/s`}
          lines={[
            { label: "Records in", colour: "--line-1", values: points.map((point) => point.rates.messages_in_s) },
            { label: "Requests", colour: "--line-2", values: points.map((point) => point.rates.requests_s) },
          ]}
        />
      </Card>
    </div>
  );
}

/** A broker's state as a mark. */
export function brokerState(row: BrokerRow): JSX.Element {
  if (!row.is_reachable) return <State tone="bad">Does not answer</State>;
  if (row.is_fenced) return <State tone="warn">Fenced</State>;
  return <State tone="ok">Serving</State>;
}

/** What a broker's disks hold. */
export function Disk({ row }: { readonly row: BrokerRow }): JSX.Element {
  const { disk_total_bytes: total, disk_usable_bytes: usable } = row;
  if (total === null || usable === null || total <= 0) return <span>–</span>;
  return (
    <span class="disk">
      <Meter used={total - usable} total={total} label={`Disk of broker ${row.broker_id}`} />
      <span>{bytes(usable)} free</span>
    </span>
  );
}

const BROKER_COLUMNS: readonly Column<BrokerRow>[] = [
  {
    key: "broker_id",
    label: "Broker",
    sort: (row) => row.broker_id,
    cell: (row) => (
      <span class="name-cell">
        <a class="strong" href={to("brokers", String(row.broker_id))}>{row.broker_id}</a>
        {row.is_controller && <Tag tone="accent">active controller</Tag>}
      </span>
    ),
  },
  { key: "state", label: "State", cell: brokerState },
  { key: "address", label: "Address", rank: 3, cell: (row) => <span class="mono">{row.host}:{row.port}</span> },
  { key: "rack", label: "Rack", rank: 3, sort: (row) => row.rack, cell: (row) => row.rack ?? "–" },
  { key: "leaders", label: "Leads", isNumber: true, rank: 2, sort: (row) => row.leaders, hint: "Partitions that it leads", cell: (row) => count(row.leaders) },
  { key: "replicas", label: "Replicas", isNumber: true, rank: 2, sort: (row) => row.replicas, cell: (row) => count(row.replicas) },
  { key: "size_bytes", label: "Size", isNumber: true, sort: (row) => row.size_bytes, cell: (row) => bytes(row.size_bytes) },
  { key: "disk", label: "Disk", rank: 2, cell: (row) => <Disk row={row} /> },
];

function Brokers({ rows }: { readonly rows: readonly BrokerRow[] }): JSX.Element {
  return (
    <Table
      label="Brokers"
      columns={BROKER_COLUMNS}
      rows={rows}
      rowKey={(row) => String(row.broker_id)}
      href={(row) => to("brokers", String(row.broker_id))}
      empty={<Empty title="No broker is known" command="moldau brokers list">The cluster has no broker that is registered.</Empty>}
    />
  );
}

function Certificates({ data }: { readonly data: Overview }): JSX.Element | null {
  const now = Date.now();
  const soon = data.certificates.filter((entry) => entry.expires_at_ms - now < SOON_MS);
  if (soon.length === 0) return null;
  return (
    <Card title="Certificates that end soon">
      <ul class="lines">
        {soon.map((entry) => (
          <li key={`${entry.listener} ${entry.subject}`}>
            <Icon name="lock" />
            <span class="mono">{entry.subject}</span>
            <span class="quiet">{entry.listener}</span>
            <State tone={entry.expires_at_ms < now ? "bad" : "warn"}>
              {entry.expires_at_ms < now ? "ended " : "ends "}
              {relative(entry.expires_at_ms, now)}
            </State>
            <span class="quiet">{moment(entry.expires_at_ms).slice(0, 16)}</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function About({ data }: { readonly data: Overview }): JSX.Element {
  const current = session.value;
  return (
    <Card title="The cluster">
      <Facts>
        <Fact name="Cluster id">
          <span class="mono">{current?.cluster_id}</span>
          <Copy text={current?.cluster_id ?? ""} label="Copy the cluster's id" />
        </Fact>
        <Fact name="Software">{current?.software}</Fact>
        <Fact name="Active controller">{data.controller_id ?? "–"}</Fact>
        <Fact name="This page">{current?.served_from === "command" ? "served by moldau console" : "served by a node"}</Fact>
        {data.rates && <Fact name="Requests">{perSecond(data.rates.requests_s, (value) => compact(Math.round(value)))}</Fact>}
      </Facts>
      {current && Object.keys(current.features).length > 0 && (
        <p class="tags">
          {Object.entries(current.features).map(([name, level]) => (
            <Tag key={name} title="A feature's finalized level">
              {name} {level}
            </Tag>
          ))}
        </p>
      )}
    </Card>
  );
}
