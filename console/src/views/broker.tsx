// One broker: log directories, configs, levels of its loggers.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Broker, LogDirectory } from "../api/types";
import { Card, Empty, Fact, Facts, Heading, ProblemBox, Skeleton } from "../parts/basics";
import { Confirm } from "../parts/dialog";
import { SearchField, SelectField, Tabs } from "../parts/fields";
import { Icon } from "../parts/icons";
import { Meter, State, Tag } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { useResource } from "../state/resource";
import { to } from "../state/routes";
import { isReadOnly } from "../state/session";
import { command } from "../text/command";
import { bytes, count, milliseconds, plural } from "../text/numbers";
import { Configs } from "./configs";
import { brokerState } from "./overview";

const TABS = ["disks", "configs", "loggers"] as const;

export function BrokerView({ id, tab }: { readonly id: number; readonly tab: string }): JSX.Element {
  const resource = useResource(`broker ${id}`, (signal) => api.brokers.read(id, signal), 10_000);
  const broker = resource.data;
  const above = <a href={to("brokers")}>Brokers</a>;
  const { problem } = resource;
  if (!broker) {
    return (
      <>
        <Heading title={`Broker ${id}`} above={above} />
        {problem ? <ProblemBox problem={problem} onRetry={resource.reload} /> : <Skeleton lines={8} />}
      </>
    );
  }
  const current = TABS.find((entry) => entry === tab) ?? "disks";
  const href = (key: string): string => to("brokers", String(id), key);
  return (
    <>
      <Heading title={`Broker ${id}`} above={above} beside={broker.is_controller && <Tag tone="accent">active controller</Tag>} />
      <p class="glance">
        {brokerState(broker)}
        <span class="mono">
          {broker.host}:{broker.port}
        </span>
        {broker.rack && <span>rack {broker.rack}</span>}
        {broker.version && <span>{broker.version}</span>}
        <span>leads {plural(broker.leaders, "partition")}</span>
        <span>{plural(broker.replicas, "replica")}</span>
      </p>
      <Live broker={broker} />
      {problem && !problem.isUnreachable && <ProblemBox problem={problem} onRetry={resource.reload} />}
      <Tabs
        label={`Broker ${id}`}
        current={current}
        tabs={[
          { key: "disks", label: "Log directories", href: href("disks"), count: broker.log_directories ? count(broker.log_directories.length) : null },
          { key: "configs", label: "Configs", href: href("configs") },
          { key: "loggers", label: "Loggers", href: href("loggers"), count: broker.loggers ? count(broker.loggers.length) : null },
        ]}
      />
      {current === "disks" && <Directories broker={broker} />}
      {current === "configs" && (
        <Configs
          configs={broker.configs}
          of="broker"
          command={["configs", "alter", "brokers", String(id)]}
          onAlter={async (changes) => {
            await api.brokers.alterConfigs(id, changes);
            resource.reload();
          }}
        />
      )}
      {current === "loggers" && <Loggers broker={broker} onDone={resource.reload} />}
    </>
  );
}

function Live({ broker }: { readonly broker: Broker }): JSX.Element | null {
  const listeners = broker.listeners ?? [];
  const isKnown = broker.connections !== null && broker.connections !== undefined;
  if (!isKnown && listeners.length === 0) return null;
  return (
    <Card>
      <Facts>
        {isKnown && <Fact name="Connections">{count(broker.connections)}</Fact>}
        {broker.loop_lag_ms !== null && broker.loop_lag_ms !== undefined && (
          <Fact name="Loop lag" hint="How late the data loop is">
            {milliseconds(broker.loop_lag_ms)}
          </Fact>
        )}
        {listeners.length > 0 && (
          <Fact name="Listeners">
            <span class="stacked mono">
              {listeners.map((entry) => {
                const text = typeof entry === "string" ? entry : `${entry.name}://${entry.host}:${entry.port}`;
                return <span key={text}>{text}</span>;
              })}
            </span>
          </Fact>
        )}
      </Facts>
    </Card>
  );
}

type DirectoryPartition = LogDirectory["partitions"][number];

const PARTITIONS: readonly Column<DirectoryPartition>[] = [
  { key: "topic", label: "Topic", className: "grow", sort: (row) => row.topic, cell: (row) => <a class="strong clip" href={to("topics", row.topic)}>{row.topic}</a> },
  { key: "partition", label: "Partition", isNumber: true, sort: (row) => row.partition, cell: (row) => row.partition },
  { key: "size_bytes", label: "Size", isNumber: true, sort: (row) => row.size_bytes, cell: (row) => bytes(row.size_bytes) },
  { key: "offset_lag", label: "Lag", isNumber: true, rank: 2, sort: (row) => row.offset_lag, hint: "How far the replica is behind the high watermark", cell: (row) => count(row.offset_lag) },
  { key: "is_future", label: "", cell: (row) => row.is_future && <Tag tone="info">moves here</Tag> },
];

function Directories({ broker }: { readonly broker: Broker }): JSX.Element {
  const directories = broker.log_directories;
  if (directories === null) return <Empty title="Log directories are not shown" icon="lock">They need Describe on the cluster, and a broker that answers.</Empty>;
  if (directories.length === 0) return <Empty title="No log directories" icon="brokers">The broker does not say where its logs are.</Empty>;
  return (
    <div class="stack">
      {directories.map((directory) => (
        <section key={directory.path} class="card flush">
          <div class="card-head">
            <h2 class="mono">{directory.path}</h2>
            <span class="disk wide">
              {directory.error ? (
                <State tone="bad">{directory.error}</State>
              ) : directory.total_bytes !== null && directory.usable_bytes !== null && directory.total_bytes > 0 ? (
                <>
                  <Meter used={directory.total_bytes - directory.usable_bytes} total={directory.total_bytes} label={`Disk of ${directory.path}`} />
                  <span>
                    {bytes(directory.usable_bytes)} free of {bytes(directory.total_bytes)}
                  </span>
                </>
              ) : null}
            </span>
          </div>
          <Table
            label={`Replicas in ${directory.path}`}
            columns={PARTITIONS}
            rows={directory.partitions}
            rowKey={(row) => `${row.topic} ${row.partition} ${row.is_future}`}
            order={{ field: "size_bytes", isDescending: true }}
            empty={<Empty title="No replicas here" icon="topics">New partitions will come.</Empty>}
          />
        </section>
      ))}
    </div>
  );
}

const LEVELS = ["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"] as const;
type Logger = NonNullable<Broker["loggers"]>[number];

function Loggers({ broker, onDone }: { readonly broker: Broker; readonly onDone: () => void }): JSX.Element {
  const [q, setQ] = useState("");
  const [edited, setEdited] = useState<Logger | null>(null);
  if (broker.loggers === null) return <Empty title="Loggers are not shown" icon="lock">They need DescribeConfigs on the cluster, and a broker that answers.</Empty>;
  const rows = broker.loggers.filter((entry) => entry.name.toLowerCase().includes(q.trim().toLowerCase()));
  const columns: readonly Column<Logger>[] = [
    { key: "name", label: "Logger", className: "grow", sort: (row) => row.name, cell: (row) => <code>{row.name}</code> },
    { key: "level", label: "Level", sort: (row) => row.level, cell: (row) => <Tag tone={row.level === "DEBUG" || row.level === "TRACE" ? "warn" : "quiet"}>{row.level}</Tag> },
    {
      key: "edit",
      label: "",
      className: "act",
      cell: (row) =>
        !isReadOnly.value && (
          <button type="button" class="icon-button" aria-label={`Change the level of ${row.name}`} onClick={() => setEdited(row)}>
            <Icon name="edit" />
          </button>
        ),
    },
  ];
  return (
    <>
      <div class="toolbar">
        <SearchField label="Search loggers" value={q} onChange={setQ} />
      </div>
      <div class="sheet">
        <Table label="Loggers" columns={columns} rows={rows} rowKey={(row) => row.name} empty={<Empty title="No logger like this" icon="search">Part of a name is enough.</Empty>} />
      </div>
      {edited && <SetLevel broker={broker.broker_id} logger={edited} onDone={onDone} onClose={() => setEdited(null)} />}
    </>
  );
}

function SetLevel({ broker, logger, onDone, onClose }: { readonly broker: number; readonly logger: Logger; readonly onDone: () => void; readonly onClose: () => void }): JSX.Element {
  const [level, setLevel] = useState(logger.level);
  return (
    <Confirm
      title={logger.name}
      action="Set level"
      isReady={level !== logger.level}
      command={command("configs", "alter", "broker-loggers", String(broker), "--set", `${logger.name}=${level}`)}
      says={<>Broker {broker} logs from level {level} on, until it is started again.</>}
      onDo={async () => {
        await api.brokers.setLevel(broker, logger.name, level);
        onDone();
        return `${logger.name} logs at ${level}.`;
      }}
      onClose={onClose}
    >
      <SelectField label="Level" value={level} onChange={setLevel} choices={LEVELS.map((value) => ({ value, label: value }))} />
    </Confirm>
  );
}
