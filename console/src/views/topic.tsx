// One topic: its state at a glance, and tabs for partitions, messages, configs, groups and producers.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Topic } from "../api/types";
import { Empty, Heading, ProblemBox, Skeleton } from "../parts/basics";
import { Menu, Tabs } from "../parts/fields";
import { Icon } from "../parts/icons";
import { Tag } from "../parts/status";
import { useResource, type Resource } from "../state/resource";
import { nameIn, to } from "../state/routes";
import { isReadOnly } from "../state/session";
import { bytes, compact, count, plural } from "../text/numbers";
import { Configs } from "./configs";
import { MessagesView } from "./messages";
import { AddPartitions, DeleteRecords, DeleteTopic } from "./topic_changes";
import { Partitions, Producers, TopicGroupsTable } from "./topic_tables";
import { Favourite, TopicState } from "./topics";

const EVERY_MS = 5000;
const TABS = ["partitions", "messages", "configs", "groups", "producers"] as const;
type Tab = (typeof TABS)[number];
type Change = "delete" | "grow" | "records";

/** What the tabs of a topic are given. */
export interface TopicTab {
  readonly topic: Topic;
  readonly resource: Resource<Topic>;
}

export function TopicView({ parts }: { readonly parts: readonly string[] }): JSX.Element {
  const name = nameIn(parts[0]);
  const tab = TABS.find((entry) => entry === parts[1]) ?? "partitions";
  const resource = useResource(`topic ${name}`, (signal) => api.topics.read(name, signal), tab === "messages" ? null : EVERY_MS);
  const [change, setChange] = useState<Change | null>(null);
  const topic = resource.data;
  const { problem } = resource;
  if (!topic) {
    return (
      <>
        <Heading title={name} above={<a href={to("topics")}>Topics</a>} />
        {problem?.isMissing ? (
          <Empty title="This topic does not exist" icon="topics" command={`moldau topics create ${name}`}>
            It may have been deleted, or you may not describe it.
          </Empty>
        ) : problem ? (
          <ProblemBox problem={problem} onRetry={resource.reload} />
        ) : (
          <Skeleton lines={8} />
        )}
      </>
    );
  }
  const close = (): void => setChange(null);
  return (
    <>
      <Heading
        title={topic.name}
        above={<a href={to("topics")}>Topics</a>}
        beside={
          <>
            <Favourite topic={topic.name} />
            {topic.is_internal && <Tag>internal</Tag>}
          </>
        }
        actions={!isReadOnly.value && <Actions topic={topic} onChoose={setChange} />}
      />
      <Glance topic={topic} />
      <Tabs
        label={`Topic ${topic.name}`}
        current={tab}
        tabs={TABS.map((key) => ({
          key,
          label: key.charAt(0).toUpperCase() + key.slice(1),
          href: to("topics", topic.name, key),
          count: tabCount(key, topic),
        }))}
      />
      {problem && !problem.isUnreachable && <ProblemBox problem={problem} onRetry={resource.reload} />}
      <TabView tab={tab} topic={topic} resource={resource} />
      {change === "delete" && <DeleteTopic topic={topic} onClose={close} />}
      {change === "grow" && <AddPartitions topic={topic} onClose={close} onDone={resource.reload} />}
      {change === "records" && <DeleteRecords topic={topic} onClose={close} onDone={resource.reload} />}
    </>
  );
}

function tabCount(tab: Tab, topic: Topic): string | null {
  if (tab === "partitions") return count(topic.partitions.length);
  if (tab === "groups" && topic.groups) return count(topic.groups.length);
  if (tab === "configs" && topic.configs) {
    const own = topic.configs.filter((config) => !config.is_default).length;
    return own > 0 ? `${own} set` : null;
  }
  return null;
}

function Actions({ topic, onChoose }: { readonly topic: Topic; readonly onChoose: (change: Change) => void }): JSX.Element {
  return (
    <>
      <a class="button" href={`${to("topics", topic.name, "messages")}${to("topics", topic.name).includes("?") ? "&" : "?"}produce=1`}>
        <Icon name="send" />
        Produce
      </a>
      <Menu label="Change" icon={<Icon name="edit" />}>
        <button type="button" class="menu-item" onClick={() => onChoose("grow")}>
          <Icon name="plus" />
          Add partitions…
        </button>
        <button type="button" class="menu-item" onClick={() => onChoose("records")}>
          <Icon name="trash" />
          Delete records…
        </button>
        <button type="button" class="menu-item danger" onClick={() => onChoose("delete")}>
          <Icon name="trash" />
          Delete the topic…
        </button>
      </Menu>
    </>
  );
}

function Glance({ topic }: { readonly topic: Topic }): JSX.Element {
  const { partitions } = topic;
  const factor = partitions[0]?.replicas.length ?? 0;
  const sizes = partitions.map((entry) => entry.size_bytes);
  const size = sizes.every((value) => value === null) ? null : sizes.reduce<number>((sum, value) => sum + (value ?? 0), 0);
  const records = partitions.reduce((sum, entry) => sum + Math.max(0, (entry.end_offset ?? 0) - (entry.start_offset ?? 0)), 0);
  const state = {
    offline: partitions.filter((entry) => entry.leader === null || entry.leader < 0).length,
    under_replicated: partitions.filter((entry) => entry.isr.length < entry.replicas.length).length,
  };
  const kept = topic.configs?.find((config) => config.name === "cleanup.policy")?.value;
  return (
    <p class="glance">
      <TopicState row={state} />
      <span>
        {plural(partitions.length, "partition")} × {plural(factor, "replica")}
      </span>
      <span>{compact(records)} records</span>
      {size !== null && <span>{bytes(size)}</span>}
      {kept && <span>cleanup: {kept}</span>}
    </p>
  );
}

function TabView({ tab, topic, resource }: TopicTab & { readonly tab: Tab }): JSX.Element {
  switch (tab) {
    case "partitions":
      return <Partitions topic={topic} />;
    case "configs":
      return (
        <Configs
          configs={topic.configs}
          of="topic"
          command={["configs", "alter", "topics", topic.name]}
          onAlter={async (changes) => {
            await api.topics.alterConfigs(topic.name, changes);
            resource.reload();
          }}
        />
      );
    case "groups":
      return <TopicGroupsTable topic={topic} />;
    case "producers":
      return <Producers topic={topic} />;
    case "messages":
      return <MessagesView key={topic.name} topic={topic} />;
  }
}
