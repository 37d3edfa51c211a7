// What changes a topic: creating and deleting it, more partitions, deleting records.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Partition, Topic } from "../api/types";
import { Confirm } from "../parts/dialog";
import { AreaField, SelectField, TextField } from "../parts/fields";
import { overview } from "../state/overview";
import { navigate, to } from "../state/routes";
import { command, each, option } from "../text/command";
import { count, plural } from "../text/numbers";
import { visible } from "../text/visible";

interface Done {
  readonly onClose: () => void;
  readonly onDone: () => void;
}

const LEGAL_NAME = /^[a-zA-Z0-9._-]{1,249}$/;

function wrongName(name: string): string | null {
  if (name === "" || LEGAL_NAME.test(name)) return name === "." || name === ".." ? "This name is reserved." : null;
  return "1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'.";
}

/** Lines of KEY=VALUE, and the first line that is none. */
export function configsIn(text: string): { readonly pairs: { name: string; value: string }[]; readonly wrong: string | null } {
  const pairs: { name: string; value: string }[] = [];
  for (const line of text.split("\n").map((entry) => entry.trim())) {
    if (line === "") continue;
    const at = line.indexOf("=");
    if (at < 1) return { pairs, wrong: `'${line}' is not KEY=VALUE.` };
    pairs.push({ name: line.slice(0, at).trim(), value: line.slice(at + 1).trim() });
  }
  return { pairs, wrong: null };
}

function wholeNumber(text: string, least: number): number | null {
  const value = Number(text);
  return text.trim() !== "" && Number.isSafeInteger(value) && value >= least ? value : null;
}

export function CreateTopic({ onClose, onDone }: Done): JSX.Element {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("");
  const [factor, setFactor] = useState("");
  const [text, setText] = useState("");
  const { pairs, wrong } = configsIn(text);
  const partitionCount = wholeNumber(partitions, 1);
  const replication = wholeNumber(factor, 1);
  const brokerCount = overview.value?.brokers.filter((broker) => !broker.is_fenced).length ?? null;
  const wrongFactor =
    factor !== "" && replication === null
      ? "A whole number from 1."
      : replication !== null && brokerCount !== null && replication > brokerCount
        ? `At most ${brokerCount}: so many brokers serve.`
        : null;
  const wrongPartitions = partitions !== "" && partitionCount === null ? "A whole number from 1." : null;
  const isReady = name !== "" && !wrongName(name) && !wrong && !wrongFactor && !wrongPartitions;
  return (
    <Confirm
      title="Create a topic"
      action="Create topic"
      isReady={isReady}
      command={command("topics", "create", name || "NAME", option("--partitions", partitionCount), option("--replication-factor", replication), each("--config", pairs.map((pair) => `${pair.name}=${pair.value}`)))}
      says={
        <>
          Creates a topic with {partitionCount === null ? "the brokers' default of partitions" : plural(partitionCount, "partition")},
          each on {replication === null ? "the default number of replicas" : plural(replication, "replica")}.
        </>
      }
      onDo={async () => {
        await api.topics.create({
          topic_name: name,
          ...(partitionCount === null ? {} : { partitions_count: partitionCount }),
          ...(replication === null ? {} : { replication_factor: replication }),
          configs: pairs,
        });
        onDone();
        navigate(to("topics", name));
        return `Topic ${name} has been created.`;
      }}
      onClose={onClose}
    >
      <TextField label="Name" value={name} onChange={setName} wrong={wrongName(name)} isMono autoFocus />
      <div class="fields">
        <TextField label="Partitions" value={partitions} onChange={setPartitions} placeholder="brokers' default" inputMode="numeric" wrong={wrongPartitions} />
        <TextField label="Replication factor" value={factor} onChange={setFactor} placeholder="brokers' default" inputMode="numeric" wrong={wrongFactor} />
      </div>
      <AreaField label="Configs" value={text} onChange={setText} rows={3} wrong={wrong} hint="One KEY=VALUE a line, as retention.ms=86400000" />
    </Confirm>
  );
}

export function DeleteTopic({ topic, onClose }: { readonly topic: Topic; readonly onClose: () => void }): JSX.Element {
  const records = topic.partitions.reduce((sum, entry) => sum + ((entry.end_offset ?? 0) - (entry.start_offset ?? 0)), 0);
  const readers = topic.groups?.filter((group) => (group.members ?? 0) > 0) ?? [];
  return (
    <Confirm
      title="Delete the topic"
      action="Delete topic"
      isDangerous
      typed={topic.name}
      command={command("topics", "delete", topic.name, topic.is_internal && "--internal")}
      says={
        <>
          Deletes <b>{topic.name}</b> with its {plural(topic.partitions.length, "partition")} and about {count(records)} records on all
          replicas. It cannot be undone.
          {readers.length > 0 && ` ${plural(readers.length, "group")} with members reads it now: ${readers.map((group) => visible(group.group_id)).join(", ")}.`}
        </>
      }
      onDo={async () => {
        await api.topics.remove(topic.name);
        navigate(to("topics"));
        return `Topic ${topic.name} has been deleted.`;
      }}
      onClose={onClose}
    />
  );
}

export function AddPartitions({ topic, onClose, onDone }: Done & { readonly topic: Topic }): JSX.Element {
  const now = topic.partitions.length;
  const [text, setText] = useState(String(now + 1));
  const total = wholeNumber(text, now + 1);
  return (
    <Confirm
      title="Add partitions"
      action="Add partitions"
      isReady={total !== null}
      command={command("topics", "alter", topic.name, "--partitions", total ?? now + 1)}
      says={
        <>
          The topic grows from {now} to {total ?? "…"} partitions, and cannot shrink again. Records that come from now on may go to
          another partition than earlier ones with the same key.
        </>
      }
      onDo={async () => {
        await api.topics.grow(topic.name, total ?? now + 1);
        onDone();
        return `${topic.name} has ${total ?? now + 1} partitions.`;
      }}
      onClose={onClose}
    >
      <TextField label="Partitions in all" value={text} onChange={setText} inputMode="numeric" wrong={total === null ? `A whole number from ${now + 1}.` : null} autoFocus />
    </Confirm>
  );
}

export function DeleteRecords({ topic, onClose, onDone }: Done & { readonly topic: Topic }): JSX.Element {
  const [which, setWhich] = useState<string>("all");
  const [before, setBefore] = useState("");
  const chosen: readonly Partition[] = which === "all" ? topic.partitions : topic.partitions.filter((entry) => String(entry.partition) === which);
  const offset = wholeNumber(before, 0);
  const isWhole = before === "" || which === "all";
  const offsets = chosen.flatMap((entry) => {
    const end = isWhole ? entry.end_offset : offset;
    return end === null ? [] : [{ partition: entry.partition, before_offset: end }];
  });
  const gone = chosen.reduce((sum, entry) => {
    const end = isWhole ? (entry.end_offset ?? 0) : Math.min(offset ?? 0, entry.end_offset ?? 0);
    return sum + Math.max(0, end - (entry.start_offset ?? 0));
  }, 0);
  const wrong = !isWhole && offset === null ? "An offset: a whole number from 0." : null;
  return (
    <Confirm
      title="Delete records"
      action="Delete records"
      isDangerous
      typed={topic.name}
      isReady={offsets.length > 0 && !wrong}
      command={command("records", "delete", isWhole && which === "all" ? [`${topic.name}@end`] : offsets.map((entry) => `${topic.name}:${entry.partition}@${entry.before_offset}`), topic.is_internal && "--internal")}
      says={
        <>
          Moves the log start offset of {which === "all" ? `all ${plural(topic.partitions.length, "partition")}` : `partition ${which}`}: about{" "}
          {count(gone)} records are gone for every consumer, for good.
        </>
      }
      onDo={async () => {
        await api.topics.deleteRecords(topic.name, offsets);
        onDone();
        return `Records of ${topic.name} have been deleted.`;
      }}
      onClose={onClose}
    >
      <div class="fields">
        <SelectField label="Partition" value={which} onChange={setWhich} choices={[{ value: "all", label: "All partitions" }, ...topic.partitions.map((entry) => ({ value: String(entry.partition), label: `Partition ${entry.partition}` }))]} />
        {which !== "all" && <TextField label="First offset that stays" value={before} onChange={setBefore} placeholder="the end: all go" inputMode="numeric" wrong={wrong} />}
      </div>
    </Confirm>
  );
}
