// Quotas: how much users, client ids and addresses may do.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Quota } from "../api/types";
import { Empty, ProblemBox } from "../parts/basics";
import { Confirm } from "../parts/dialog";
import { SelectField, TextField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { Tag } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { useResource } from "../state/resource";
import { isReadOnly } from "../state/session";
import { command } from "../text/command";
import { bytes, compact } from "../text/numbers";
import { visible } from "../text/visible";

type Kind = "user" | "client-id" | "ip";
const KINDS: readonly Kind[] = ["user", "client-id", "ip"];
const WORDS: Readonly<Record<Kind, string>> = { user: "User", "client-id": "Client id", ip: "Address" };

const KEYS = [
  ["producer_byte_rate", "Produces at most", "bytes per second and broker"],
  ["consumer_byte_rate", "Consumes at most", "bytes per second and broker"],
  ["request_percentage", "Requests take at most", "percent of a thread's time"],
  ["controller_mutation_rate", "Changes at most", "partitions created or deleted per second"],
] as const;
const IP_KEYS = [["connection_creation_rate", "Connects at most", "times per second"]] as const;

function keyOf(entity: Quota["entity"]): string {
  return KINDS.map((kind) => JSON.stringify(entity[kind] ?? (kind in entity ? null : 0))).join();
}

function amount(key: string, value: number): string {
  if (key.endsWith("byte_rate")) return `${bytes(value)}/s`;
  if (key === "request_percentage") return `${value} %`;
  return `${compact(value)}/s`;
}

function nameOf(entity: Quota["entity"]): JSX.Element {
  return (
    <span class="name-cell">
      {KINDS.filter((kind) => kind in entity).map((kind) => (
        <span key={kind}>
          <span class="quiet">{WORDS[kind]}</span> <b class="strong">{entity[kind] === null || entity[kind] === undefined || entity[kind] === "" ? "by default" : visible(entity[kind] ?? "")}</b>
        </span>
      ))}
    </span>
  );
}

export function Quotas(): JSX.Element {
  const resource = useResource("quotas", async (signal) => {
    const found = await api.security.quotas(signal);
    return "data" in found ? found.data : found;
  });
  const [edited, setEdited] = useState<Quota | "new" | null>(null);
  const columns = useMemo<readonly Column<Quota>[]>(
    () => [
      { key: "entity", label: "For", className: "grow", sort: (row) => keyOf(row.entity), cell: (row) => nameOf(row.entity) },
      {
        key: "values",
        label: "Limits",
        className: "wide",
        cell: (row) => (
          <span class="tags">
            {Object.entries(row.values).map(([key, value]) => (
              <Tag key={key} title={`${key} = ${value}`}>
                {key.replaceAll("_", " ")} {amount(key, value)}
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
            <button type="button" class="icon-button" aria-label="Change the quota" onClick={() => setEdited(row)}>
              <Icon name="edit" />
            </button>
          ),
      },
    ],
    [],
  );
  return (
    <>
      <div class="toolbar">
        <p class="quiet">Brokers slow down what is above its quota; nothing is refused.</p>
        {!isReadOnly.value && (
          <button type="button" class="button end" onClick={() => setEdited("new")}>
            <Icon name="plus" />
            Add a quota
          </button>
        )}
      </div>
      {resource.problem && !resource.problem.isUnreachable && <ProblemBox problem={resource.problem} onRetry={resource.reload} />}
      {(resource.data || !resource.problem) && (
        <div class="sheet">
          <Table
            label="Quotas"
            columns={columns}
            rows={resource.data}
            rowKey={(row) => keyOf(row.entity)}
            empty={
              <Empty title="No quotas" icon="security" command="moldau quotas alter --user alice --set producer_byte_rate=1000000">
                All clients may do as much as brokers can.
              </Empty>
            }
          />
        </div>
      )}
      {edited !== null && <EditQuota quota={edited === "new" ? null : edited} onClose={() => setEdited(null)} onDone={resource.reload} />}
    </>
  );
}

function EditQuota({ quota, onClose, onDone }: { readonly quota: Quota | null; readonly onClose: () => void; readonly onDone: () => void }): JSX.Element {
  const [kind, setKind] = useState<Kind>("user");
  const [name, setName] = useState("");
  const entity: Quota["entity"] = quota?.entity ?? { [kind]: name === "" ? null : name };
  const keys = "ip" in entity ? IP_KEYS : KEYS;
  const [texts, setTexts] = useState<Readonly<Record<string, string>>>(() => Object.fromEntries(Object.entries(quota?.values ?? {}).map(([key, value]) => [key, String(value)])));
  const set: Record<string, number> = {};
  const remove: string[] = [];
  let wrong: string | null = null;
  for (const [key] of keys) {
    const text = (texts[key] ?? "").trim();
    const old = quota?.values[key];
    if (text === "") {
      if (old !== undefined) remove.push(key);
    } else if (!(Number(text) > 0)) wrong = key;
    else if (Number(text) !== old) set[key] = Number(text);
  }
  const words = KINDS.flatMap((entry) => (entry in entity ? [`--${entry}`, entity[entry] ?? ""] : []));
  const changes = Object.keys(set).length + remove.length;
  return (
    <Confirm
      title={quota ? "Change the quota" : "Add a quota"}
      action="Set quota"
      isReady={wrong === null && changes > 0}
      command={command("quotas", "alter", words, Object.entries(set).flatMap(([key, value]) => ["--set", `${key}=${value}`]), remove.flatMap((key) => ["--delete", key]))}
      says={
        <>
          {nameOf(entity)} {changes === 0 ? "keeps what holds now." : "has these limits from now on, on every broker; an empty field is no limit."}
        </>
      }
      onDo={async () => {
        await api.security.setQuota({ entity, set, remove });
        onDone();
        return "The quota has been set.";
      }}
      onClose={onClose}
    >
      {!quota && (
        <div class="fields">
          <SelectField label="For a" value={kind} onChange={setKind} choices={KINDS.map((value) => ({ value, label: WORDS[value] }))} />
          <TextField label="Name" value={name} onChange={setName} placeholder="empty: the default of all" isMono />
        </div>
      )}
      {keys.map(([key, label, unit]) => (
        <TextField key={key} label={label} value={texts[key] ?? ""} onChange={(text) => setTexts({ ...texts, [key]: text })} inputMode="numeric" placeholder="no limit" hint={unit} wrong={wrong === key ? "A number above 0." : null} />
      ))}
    </Confirm>
  );
}
