// Entries of access control: a list, a new one, and taking one away.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Acl } from "../api/types";
import { Empty, ProblemBox } from "../parts/basics";
import { Confirm } from "../parts/dialog";
import { SearchField, Segments, SelectField, TextField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { State, Tag, words } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { useResource } from "../state/resource";
import { isReadOnly } from "../state/session";
import { visible } from "../text/visible";
import { aclCommand, camel, OPERATIONS, RESOURCES, sentence, type Resource } from "./acl_words";

const keyOf = (acl: Acl): string =>
  JSON.stringify([acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission]);

export function Acls(): JSX.Element {
  const resource = useResource("acls", (signal) => api.security.acls(signal), 15_000);
  const [q, setQ] = useState("");
  const [removed, setRemoved] = useState<Acl | null>(null);
  const [isNew, setNew] = useState(false);
  const columns = useMemo<readonly Column<Acl>[]>(
    () => [
      { key: "principal", label: "Principal", className: "grow", sort: (row) => row.principal, cell: (row) => <b class="strong clip">{visible(row.principal)}</b> },
      { key: "permission", label: "May", sort: (row) => row.permission, cell: (row) => <State tone={row.permission === "DENY" ? "bad" : "ok"}>{words(row.permission)}</State> },
      { key: "operation", label: "Operation", sort: (row) => row.operation, cell: (row) => camel(row.operation) },
      {
        key: "resource",
        label: "Resource",
        sort: (row) => `${row.resource_type} ${row.resource_name}`,
        cell: (row) => (
          <span class="name-cell">
            <span class="quiet">{words(row.resource_type)}</span>
            <code class="clip">{visible(row.resource_name)}</code>
            {row.pattern_type === "PREFIXED" && <Tag tone="accent">prefix</Tag>}
          </span>
        ),
      },
      { key: "host", label: "From", rank: 3, sort: (row) => row.host, cell: (row) => (row.host === "*" ? <span class="quiet">anywhere</span> : <span class="mono">{row.host}</span>) },
      {
        key: "act",
        label: "",
        className: "act",
        cell: (row) =>
          !isReadOnly.value && (
            <button type="button" class="icon-button" aria-label={`Remove: ${sentence(row)}`} onClick={() => setRemoved(row)}>
              <Icon name="trash" />
            </button>
          ),
      },
    ],
    [],
  );
  const wanted = q.trim().toLowerCase();
  const rows = resource.data?.data.filter((acl) => wanted === "" || `${acl.principal} ${acl.resource_name} ${acl.operation} ${acl.host}`.toLowerCase().includes(wanted)) ?? null;
  const { problem } = resource;
  return (
    <>
      <div class="toolbar">
        <SearchField label="Search principals and resources" value={q} onChange={setQ} />
        {!isReadOnly.value && (
          <button type="button" class="button end" onClick={() => setNew(true)}>
            <Icon name="plus" />
            Add an entry
          </button>
        )}
      </div>
      {problem && !problem.isUnreachable && <ProblemBox problem={problem} onRetry={resource.reload} />}
      {(rows !== null || !problem) && (
        <div class="sheet">
          <Table
            label="Entries of access control"
            columns={columns}
            rows={rows}
            rowKey={keyOf}
            empty={
              <Empty title={q ? "No entry has this" : "No entries"} icon="security" {...(q ? {} : { command: "moldau acls create --topic orders --allow User:alice --consumer --group billing" })}>
                {q ? "Part of a principal, a resource or an operation is enough." : "Without entries only super users may do something, where an authorizer is configured."}
              </Empty>
            }
          />
        </div>
      )}
      {isNew && <AddAcl onClose={() => setNew(false)} onDone={resource.reload} />}
      {removed && (
        <Confirm
          title="Remove the entry"
          action="Remove"
          isDangerous
          command={aclCommand("delete", removed)}
          says={
            <>
              This no longer holds: <b>{visible(sentence(removed))}</b> It counts from the next request on, also for connections that are open.
            </>
          }
          onDo={async () => {
            await api.security.deleteAcl(removed);
            resource.reload();
            return "The entry has been removed.";
          }}
          onClose={() => setRemoved(null)}
        />
      )}
    </>
  );
}

function AddAcl({ onClose, onDone }: { readonly onClose: () => void; readonly onDone: () => void }): JSX.Element {
  const [type, setType] = useState<Resource>("TOPIC");
  const [name, setName] = useState("");
  const [pattern, setPattern] = useState<"LITERAL" | "PREFIXED">("LITERAL");
  const [principal, setPrincipal] = useState("User:");
  const [host, setHost] = useState("*");
  const [operation, setOperation] = useState("READ");
  const [permission, setPermission] = useState<"ALLOW" | "DENY">("ALLOW");
  const isCluster = type === "CLUSTER";
  const acl: Acl = {
    resource_type: type,
    resource_name: isCluster ? "kafka-cluster" : name,
    pattern_type: isCluster ? "LITERAL" : pattern,
    principal,
    host: host || "*",
    operation,
    permission,
  };
  const isPrincipal = /^[^:]+:.+$/.test(principal);
  const chooseType = (next: Resource): void => {
    setType(next);
    if (!OPERATIONS[next].includes(operation)) setOperation(OPERATIONS[next][1] ?? "ALL");
  };
  return (
    <Confirm
      title="Add an entry"
      action="Add entry"
      isReady={isPrincipal && (isCluster || name !== "")}
      command={isPrincipal && (isCluster || name !== "") ? aclCommand("create", acl) : null}
      says={isPrincipal && (isCluster || name !== "") ? visible(sentence(acl)) : "Say for whom and for what it is."}
      onDo={async () => {
        await api.security.createAcl(acl);
        onDone();
        return "The entry has been added.";
      }}
      onClose={onClose}
    >
      <div class="fields">
        <TextField label="Principal" value={principal} onChange={setPrincipal} isMono autoFocus wrong={principal !== "User:" && !isPrincipal ? "As User:alice; User:* is all." : null} />
        <TextField label="From address" value={host} onChange={setHost} isMono hint="* is anywhere" />
      </div>
      <Segments label="Permission" value={permission} onChange={setPermission} choices={[{ value: "ALLOW", label: "Allow" }, { value: "DENY", label: "Deny" }]} />
      <div class="fields">
        <SelectField label="Resource" value={type} onChange={chooseType} choices={RESOURCES.map((value) => ({ value, label: words(value) }))} />
        <SelectField label="Operation" value={operation} onChange={setOperation} choices={OPERATIONS[type].map((value) => ({ value, label: camel(value) }))} />
      </div>
      {!isCluster && (
        <div class="fields">
          <TextField label="Name" value={name} onChange={setName} isMono hint={pattern === "LITERAL" ? "* is all" : "The beginning of names"} />
          <SelectField label="Which names" value={pattern} onChange={setPattern} choices={[{ value: "LITERAL", label: "This name" }, { value: "PREFIXED", label: "Names that begin so" }]} />
        </div>
      )}
    </Confirm>
  );
}
