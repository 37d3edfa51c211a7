// Resetting a group's offsets: first where to, then a dry run that shows each partition, then for good.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/cluster";
import { asProblem, isAborted, type Problem } from "../api/problem";
import type { Group, ResetPlan } from "../api/types";
import { ProblemBox, Skeleton } from "../parts/basics";
import { Confirm } from "../parts/dialog";
import { SelectField, TextField } from "../parts/fields";
import { count, plural } from "../text/numbers";
import { visible } from "../text/visible";

const KINDS = [
  { value: "earliest", label: "The log's start" },
  { value: "latest", label: "The end" },
  { value: "timestamp", label: "A time" },
  { value: "duration", label: "So long ago" },
  { value: "by", label: "So many records on or back" },
  { value: "offset", label: "An offset" },
] as const;
type Kind = (typeof KINDS)[number]["value"];

const DURATIONS = [
  { value: "PT10M", label: "10 minutes" },
  { value: "PT1H", label: "1 hour" },
  { value: "PT6H", label: "6 hours" },
  { value: "P1D", label: "1 day" },
  { value: "P7D", label: "7 days" },
] as const;

/** Where to, as the API takes it; null while it is not complete. */
function whereTo(kind: Kind, number: string, time: string, duration: string): string | null {
  switch (kind) {
    case "earliest":
    case "latest":
      return kind;
    case "offset":
      return /^\d+$/.test(number) ? `offset:${number}` : null;
    case "by":
      return /^[+-]?[1-9]\d*$/.test(number) ? `by:${/^\d/.test(number) ? `+${number}` : number}` : null;
    case "timestamp": {
      const ms = Date.parse(time);
      return Number.isNaN(ms) ? null : `timestamp:${ms}`;
    }
    case "duration":
      return `duration:${duration}`;
  }
}

interface Props {
  readonly group: Group;
  readonly onClose: () => void;
  readonly onDone: () => void;
}

export function ResetOffsets({ group, onClose, onDone }: Props): JSX.Element {
  const topics = [...new Set(group.offsets.map((entry) => entry.topic))].sort();
  const [kind, setKind] = useState<Kind>("earliest");
  const [number, setNumber] = useState("");
  const [time, setTime] = useState("");
  const [duration, setDuration] = useState<string>("PT1H");
  const [topic, setTopic] = useState("");
  const [plan, setPlan] = useState<ResetPlan | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const to = whereTo(kind, number, time, duration);
  const chosen = (topic === "" ? topics : [topic]).map((name) => ({ topic: name, partitions: null }));
  const question = JSON.stringify([to, topic]);
  useEffect(() => {
    setPlan(null);
    setProblem(null);
    if (to === null || chosen.length === 0) return undefined;
    let isOld = false;
    const timer = setTimeout(() => {
      api.groups.reset(group.group_id, { to, topics: chosen, dry_run: true }).then(
        (found) => {
          if (!isOld) setPlan(found);
        },
        (error: unknown) => {
          if (!isOld && !isAborted(error)) setProblem(asProblem(error));
        },
      );
    }, 250);
    return () => {
      isOld = true;
      clearTimeout(timer);
    };
  }, [question]);
  const changed = plan?.offsets.filter((entry) => entry.old !== entry.new) ?? [];
  const again = changed.reduce((sum, entry) => sum + Math.max(0, (entry.old ?? 0) - (entry.new ?? 0)), 0);
  const skipped = changed.reduce((sum, entry) => sum + Math.max(0, (entry.new ?? 0) - (entry.old ?? 0)), 0);
  const hasMembers = group.members.length > 0;
  return (
    <Confirm
      title={`Reset offsets of ${visible(group.group_id)}`}
      action="Reset offsets"
      isWide
      isDangerous
      isReady={plan !== null && changed.length > 0 && !hasMembers}
      command={plan?.command.replace(/ --dry-run\b/, "") ?? null}
      says={
        hasMembers ? (
          <>The group has {plural(group.members.length, "member")}: Kafka resets offsets of empty groups only. Stop the consumers first; what would happen is shown below.</>
        ) : plan === null ? (
          <>Choose where the group shall go on; what changes is shown before anything is done.</>
        ) : changed.length === 0 ? (
          <>Nothing changes: the group is there already.</>
        ) : (
          <>
            Commits new offsets for {plural(changed.length, "partition")}
            {again > 0 && `; about ${count(again)} records are read again`}
            {skipped > 0 && `; about ${count(skipped)} records are passed over`}.
          </>
        )
      }
      onDo={async () => {
        await api.groups.reset(group.group_id, { to: to ?? "", topics: chosen, dry_run: false });
        onDone();
        return `Offsets of ${plural(changed.length, "partition")} have been reset.`;
      }}
      onClose={onClose}
    >
      <div class="fields">
        <SelectField label="Go on at" value={kind} onChange={(next) => { setKind(next); setNumber(""); }} choices={KINDS} />
        {kind === "offset" && <TextField label="Offset" value={number} onChange={setNumber} inputMode="numeric" wrong={number !== "" && to === null ? "A whole number from 0." : null} />}
        {kind === "by" && <TextField label="Records" value={number} onChange={setNumber} placeholder="-100 or +100" wrong={number !== "" && to === null ? "A number other than 0, as -100." : null} />}
        {kind === "timestamp" && <TextField label="Time" type="datetime-local" value={time} onChange={setTime} />}
        {kind === "duration" && <SelectField label="Ago" value={duration} onChange={setDuration} choices={DURATIONS} />}
        <SelectField label="Topic" value={topic} onChange={setTopic} choices={[{ value: "", label: topics.length === 1 ? (topics[0] ?? "") : `All ${topics.length} topics` }, ...(topics.length > 1 ? topics.map((name) => ({ value: name, label: name })) : [])]} />
      </div>
      {problem && <ProblemBox problem={problem} />}
      {to !== null && !plan && !problem && <Skeleton lines={3} />}
      {plan && (
        <div class="plan" tabIndex={0} role="region" aria-label="What changes">
          <table class="mini wide">
            <thead>
              <tr>
                <th scope="col">Partition</th>
                <th scope="col" class="number">Now</th>
                <th scope="col" class="number">Then</th>
                <th scope="col" class="number">Difference</th>
              </tr>
            </thead>
            <tbody>
              {plan.offsets.map((entry) => (
                <tr key={`${entry.topic} ${entry.partition}`}>
                  <td>{entry.topic} <span class="quiet">{entry.partition}</span></td>
                  <td class="number">{count(entry.old)}</td>
                  <td class="number"><b>{count(entry.new)}</b></td>
                  <td class="number quiet">{difference(entry.old, entry.new)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Confirm>
  );
}

function difference(old: number | null, next: number | null): string {
  if (old === null || next === null) return "–";
  const by = next - old;
  return by === 0 ? "none" : `${by > 0 ? "+" : "−"}${Math.abs(by).toLocaleString("en")}`;
}
