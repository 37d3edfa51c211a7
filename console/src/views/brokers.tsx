// All brokers, and one of them.

import type { JSX } from "preact";
import * as api from "../api/cluster";
import type { BrokerRow } from "../api/types";
import { Empty, Heading, ProblemBox } from "../parts/basics";
import { Tag } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { useResource } from "../state/resource";
import { to } from "../state/routes";
import { bytes, count, milliseconds } from "../text/numbers";
import { BrokerView } from "./broker";
import { brokerState, Disk } from "./overview";

const EVERY_MS = 5000;

const COLUMNS: readonly Column<BrokerRow>[] = [
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
  { key: "address", label: "Address", rank: 2, cell: (row) => <span class="mono">{row.host}:{row.port}</span> },
  { key: "rack", label: "Rack", rank: 3, sort: (row) => row.rack, cell: (row) => row.rack ?? <span class="quiet">–</span> },
  { key: "version", label: "Version", rank: 3, sort: (row) => row.version, cell: (row) => row.version ?? <span class="quiet">–</span> },
  { key: "connections", label: "Connections", isNumber: true, rank: 3, sort: (row) => row.connections, cell: (row) => count(row.connections) },
  { key: "loop_lag_ms", label: "Loop lag", isNumber: true, rank: 3, sort: (row) => row.loop_lag_ms, hint: "How late the data loop is", cell: (row) => milliseconds(row.loop_lag_ms) },
  { key: "leaders", label: "Leads", isNumber: true, rank: 2, sort: (row) => row.leaders, cell: (row) => count(row.leaders) },
  { key: "replicas", label: "Replicas", isNumber: true, rank: 2, sort: (row) => row.replicas, cell: (row) => count(row.replicas) },
  { key: "size_bytes", label: "Size", isNumber: true, sort: (row) => row.size_bytes, cell: (row) => bytes(row.size_bytes) },
  { key: "disk", label: "Disk", rank: 2, cell: (row) => <Disk row={row} /> },
];

export function BrokersView({ parts }: { readonly parts: readonly string[] }): JSX.Element {
  const id = Number(parts[0]);
  if (parts.length > 0 && Number.isInteger(id)) return <BrokerView id={id} tab={parts[1] ?? ""} />;
  return <BrokerList />;
}

function BrokerList(): JSX.Element {
  const resource = useResource("brokers", (signal) => api.brokers.list(signal), EVERY_MS);
  const { problem } = resource;
  return (
    <>
      <Heading title="Brokers" />
      {problem && !problem.isUnreachable && <ProblemBox problem={problem} onRetry={resource.reload} />}
      {(resource.data || !problem) && (
        <div class="sheet">
          <Table
            label="Brokers"
            columns={COLUMNS}
            rows={resource.data?.data ?? null}
            rowKey={(row) => String(row.broker_id)}
            href={(row) => to("brokers", String(row.broker_id))}
            empty={<Empty title="No broker is known" icon="brokers" command="moldau brokers list">None has registered with the controllers.</Empty>}
          />
        </div>
      )}
    </>
  );
}
