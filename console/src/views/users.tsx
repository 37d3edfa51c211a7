// Users that log in with a password (SCRAM).

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { User } from "../api/types";
import { Empty, ProblemBox } from "../parts/basics";
import { Confirm } from "../parts/dialog";
import { SearchField, SelectField, TextField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { Tag } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { useResource } from "../state/resource";
import { isReadOnly } from "../state/session";
import { command } from "../text/command";
import { visible } from "../text/visible";

export function Users(): JSX.Element {
  const resource = useResource("users", async (signal) => {
    const found = await api.security.users(signal);
    return "data" in found ? found.data : found;
  });
  const [q, setQ] = useState("");
  const [edited, setEdited] = useState<string | null>(null);
  const [removed, setRemoved] = useState<User | null>(null);
  const columns = useMemo<readonly Column<User>[]>(
    () => [
      { key: "name", label: "User", className: "grow", sort: (row) => row.name, cell: (row) => <b class="strong clip">{visible(row.name)}</b> },
      {
        key: "mechanisms",
        label: "Logs in with",
        cell: (row) => (
          <span class="tags">
            {row.mechanisms.map((entry) => (
              <Tag key={entry.mechanism} title={`${entry.iterations} iterations`}>
                {entry.mechanism}
              </Tag>
            ))}
          </span>
        ),
      },
      {
        key: "act",
        label: "",
        className: "act",
        cell: (row) =>
          !isReadOnly.value && (
            <span class="row-actions">
              <button type="button" class="button small" onClick={() => setEdited(row.name)}>
                New password
              </button>
              <button type="button" class="icon-button" aria-label={`Delete user ${visible(row.name)}`} onClick={() => setRemoved(row)}>
                <Icon name="trash" />
              </button>
            </span>
          ),
      },
    ],
    [],
  );
  const rows = resource.data?.filter((user) => user.name.toLowerCase().includes(q.trim().toLowerCase())) ?? null;
  return (
    <>
      <div class="toolbar">
        <SearchField label="Search users" value={q} onChange={setQ} />
        {!isReadOnly.value && (
          <button type="button" class="button end" onClick={() => setEdited("")}>
            <Icon name="plus" />
            Add a user
          </button>
        )}
      </div>
      {resource.problem && !resource.problem.isUnreachable && <ProblemBox problem={resource.problem} onRetry={resource.reload} />}
      {(rows || !resource.problem) && (
        <div class="sheet">
          <Table
            label="Users"
            columns={columns}
            rows={rows}
            rowKey={(row) => row.name}
            empty={
              <Empty title={q ? "No user like this" : "No users with passwords"} icon="user" {...(q ? {} : { command: "moldau users create alice" })}>
                {q ? "Part of a name is enough." : "Users with certificates or tokens need no entry here."}
              </Empty>
            }
          />
        </div>
      )}
      {edited !== null && <SetPassword name={edited} onClose={() => setEdited(null)} onDone={resource.reload} />}
      {removed && (
        <Confirm
          title="Delete the user"
          action="Delete user"
          isDangerous
          command={command("users", "delete", removed.name)}
          says={
            <>
              <b>{visible(removed.name)}</b> can log in no more. Connections that are open stay so until their sessions end; entries of access
              control stay.
            </>
          }
          onDo={async () => {
            await api.security.deleteUser(removed.name);
            resource.reload();
            return `User ${removed.name} has been deleted.`;
          }}
          onClose={() => setRemoved(null)}
        />
      )}
    </>
  );
}

type Mechanism = "SCRAM-SHA-512" | "SCRAM-SHA-256";

function SetPassword({ name: known, onClose, onDone }: { readonly name: string; readonly onClose: () => void; readonly onDone: () => void }): JSX.Element {
  const isNew = known === "";
  const [name, setName] = useState(known);
  const [password, setPassword] = useState("");
  const [mechanism, setMechanism] = useState<Mechanism>("SCRAM-SHA-512");
  return (
    <Confirm
      title={isNew ? "Add a user" : `New password for ${known}`}
      action={isNew ? "Add user" : "Set password"}
      isReady={name !== "" && password !== ""}
      command={command("users", "create", name || "NAME", mechanism !== "SCRAM-SHA-512" && ["--mechanism", mechanism])}
      says={
        <>
          {name ? <b>{visible(name)}</b> : "The user"} logs in with this password and {mechanism}. The cluster keeps no password, only what proves it. The
          command asks for it at the terminal.
        </>
      }
      onDo={async () => {
        await api.security.setUser(name, { password, mechanism });
        onDone();
        return isNew ? `User ${name} can log in now.` : `The password of ${name} has been changed.`;
      }}
      onClose={onClose}
    >
      {isNew && <TextField label="Name" value={name} onChange={setName} autoFocus />}
      <TextField label="Password" type="password" value={password} onChange={setPassword} autoComplete="new-password" />
      <SelectField label="Mechanism" value={mechanism} onChange={setMechanism} choices={[{ value: "SCRAM-SHA-512", label: "SCRAM-SHA-512" }, { value: "SCRAM-SHA-256", label: "SCRAM-SHA-256" }]} />
    </Confirm>
  );
}
