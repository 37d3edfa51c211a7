// Every question and change that the page has for a cluster, by name. Owns: the paths of the API.
// Must not: hold any state beside the cluster's id.

import { request, type Query } from "./http";
import type * as T from "./types";

let clusterId = "";

/** Says which cluster all paths are for. */
export function setCluster(id: string): void {
  clusterId = id;
}

const own = (path: string): string => `/api/v1/clusters/${encodeURIComponent(clusterId)}/${path}`;
const v3 = (path: string): string => `/v3/clusters/${encodeURIComponent(clusterId)}/${path}`;
const enc = encodeURIComponent;

/** Reading ends by the server's own limit of time before. */
const READ_TIMEOUT_MS = 120_000;

type Signal = AbortSignal | undefined;

export const session = {
  read: (signal?: Signal) => request<T.Session>("GET", "/api/v1/session", { signal }),
  logIn: (body: { username: string; password: string } | { token: string }) =>
    request<T.Session>("POST", "/api/v1/session", { body }),
  logOut: () => request<void>("DELETE", "/api/v1/session"),
};

export const overview = (signal?: Signal) => request<T.Overview>("GET", own("overview"), { signal });

export const topics = {
  list: (query: Query, signal?: Signal) => request<T.Page<T.TopicRow>>("GET", own("topics"), { query, signal }),
  read: (topic: string, signal?: Signal) => request<T.Topic>("GET", own(`topics/${enc(topic)}`), { signal }),
  producers: (topic: string, partition: number | null, signal?: Signal) =>
    request<{ data: readonly T.ProducerRow[] }>("GET", own(`topics/${enc(topic)}/producers`), {
      query: { partition },
      signal,
    }),
  create: (body: {
    topic_name: string;
    partitions_count?: number;
    replication_factor?: number;
    configs: readonly { name: string; value: string }[];
  }) => request<T.Done>("POST", v3("topics"), { body }),
  remove: (topic: string) => request<void>("DELETE", v3(`topics/${enc(topic)}`)),
  grow: (topic: string, partitions_count: number) =>
    request<T.Done>("PATCH", v3(`topics/${enc(topic)}`), { body: { partitions_count } }),
  alterConfigs: (topic: string, data: readonly ConfigChange[]) =>
    request<void>("POST", v3(`topics/${enc(topic)}/configs:alter`), { body: { data } }),
  deleteRecords: (topic: string, offsets: readonly { partition: number; before_offset: number }[]) =>
    request<T.Done>("POST", own(`topics/${enc(topic)}/delete-records`), { body: { offsets } }),
};

export interface ConfigChange {
  readonly name: string;
  readonly value?: string;
  readonly operation?: "SET" | "DELETE";
}

export interface ProduceBody {
  readonly partition?: number;
  readonly key: { encoding: "utf-8" | "base64"; text: string } | null;
  readonly value: { encoding: "utf-8" | "base64"; text: string } | null;
  readonly headers: readonly { name: string; value: { encoding: "utf-8"; text: string } | null }[];
  readonly timestamp_ms?: number;
}

export const messages = {
  path: (topic: string) => own(`topics/${enc(topic)}/messages`),
  read: (topic: string, query: Query, signal?: Signal) =>
    request<T.MessagePage>("GET", own(`topics/${enc(topic)}/messages`), { query, signal, timeoutMs: READ_TIMEOUT_MS }),
  livePath: (topic: string) => own(`topics/${enc(topic)}/messages/live`),
  downloadPath: (topic: string) => own(`topics/${enc(topic)}/messages/download`),
  onePath: (topic: string) => own(`topics/${enc(topic)}/messages/one`),
  one: (topic: string, partition: number, offset: number, query: Query, signal?: Signal) =>
    request<T.MessageRecord>("GET", own(`topics/${enc(topic)}/messages/one`), {
      query: { ...query, partition, offset },
      signal,
    }),
  produce: (topic: string, body: ProduceBody) =>
    request<{ partition: number; offset: number; timestamp_ms: number | null }>(
      "POST",
      own(`topics/${enc(topic)}/messages/produce`),
      { body },
    ),
};

export interface ResetBody {
  readonly to: string;
  readonly topics: readonly { topic: string; partitions: readonly number[] | null }[];
  readonly dry_run: boolean;
}

export const groups = {
  list: (query: Query, signal?: Signal) => request<T.Page<T.GroupRow>>("GET", own("groups"), { query, signal }),
  read: (group: string, signal?: Signal) => request<T.Group>("GET", own(`groups/${enc(group)}`), { signal }),
  lagHistory: (group: string, signal?: Signal) =>
    request<T.LagHistory>("GET", own(`groups/${enc(group)}/lag-history`), { signal }),
  reset: (group: string, body: ResetBody) =>
    request<T.ResetPlan>("POST", own(`groups/${enc(group)}/reset`), { body }),
  remove: (group: string) => request<T.Done>("DELETE", own(`groups/${enc(group)}`)),
};

export const transactions = {
  list: (query: Query, signal?: Signal) =>
    request<T.Page<T.TransactionRow>>("GET", own("transactions"), { query, signal }),
  abort: (body: { topic: string; partition: number; start_offset: number } | { transactional_id: string }) =>
    request<T.Done>("POST", own("transactions/abort"), { body }),
};

export const quorum = {
  read: (signal?: Signal) => request<T.Quorum>("GET", own("quorum"), { signal }),
  log: (query: Query, signal?: Signal) => request<T.LogPage>("GET", own("quorum/log"), { query, signal }),
  image: (offset: number, path: string, signal?: Signal) =>
    request<unknown>("GET", own("quorum/image"), { query: { offset, path }, signal }),
};

export const brokers = {
  list: (signal?: Signal) => request<T.Page<T.BrokerRow>>("GET", own("brokers"), { signal }),
  read: (broker: number, signal?: Signal) => request<T.Broker>("GET", own(`brokers/${broker}`), { signal }),
  setLevel: (broker: number, logger: string, level: string) =>
    request<T.Done>("PUT", own(`brokers/${broker}/loggers/${enc(logger)}`), { body: { level } }),
  alterConfigs: (broker: number, data: readonly ConfigChange[]) =>
    request<void>("POST", v3(`brokers/${broker}/configs:alter`), { body: { data } }),
};

export const security = {
  acls: (signal?: Signal) => request<{ data: readonly T.Acl[] }>("GET", v3("acls"), { signal }),
  createAcl: (acl: T.Acl) => request<void>("POST", v3("acls"), { body: acl }),
  deleteAcl: (acl: T.Acl) => request<unknown>("DELETE", v3("acls"), { query: { ...acl } }),
  users: (signal?: Signal) => request<readonly T.User[] | T.Page<T.User>>("GET", own("security/users"), { signal }),
  setUser: (user: string, body: { password: string; mechanism: string; iterations?: number }) =>
    request<T.Done>("PUT", own(`security/users/${enc(user)}`), { body }),
  deleteUser: (user: string) => request<T.Done>("DELETE", own(`security/users/${enc(user)}`)),
  quotas: (signal?: Signal) =>
    request<readonly T.Quota[] | T.Page<T.Quota>>("GET", own("security/quotas"), { signal }),
  setQuota: (body: { entity: T.Quota["entity"]; set: Record<string, number>; remove: readonly string[] }) =>
    request<T.Done>("PUT", own("security/quotas"), { body }),
  explain: (query: Query, signal?: Signal) =>
    request<T.Explanation>("GET", own("security/explain"), { query, signal }),
};

export const schemas = {
  list: (query: Query, signal?: Signal) => request<T.Page<T.SubjectRow>>("GET", own("schemas"), { query, signal }),
  read: (subject: string, version: string | number, signal?: Signal) =>
    request<T.SchemaVersion>("GET", own(`schemas/${enc(subject)}/versions/${version}`), { signal }),
};

export const saved = (signal?: Signal) => request<T.Saved>("GET", own("saved"), { signal });
