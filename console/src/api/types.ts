// What the API answers, by the names of its JSON (snake_case, as in /openapi.json). Types only.

export interface Session {
  /** Null before the log-in, or the cluster cannot be reached. */
  readonly cluster_id: string | null;
  readonly is_logged_in?: boolean;
  readonly problem?: string | null;
  readonly version: string;
  readonly principal: string;
  readonly is_anonymous: boolean;
  readonly login: readonly ("password" | "token")[];
  readonly request_token: string | null;
  readonly is_ours: boolean;
  readonly software: string;
  readonly features: Readonly<Record<string, number>>;
  readonly has_registry: boolean;
  readonly read_only: boolean;
  readonly served_from: "node" | "command";
  readonly limits: { readonly records: number; readonly bytes: number; readonly seconds: number };
}

export interface Page<Row> {
  readonly data: readonly Row[];
  readonly next: string | null;
  readonly total: number;
}

export type Status = "healthy" | "degraded" | "critical";

export interface HealthProblem {
  readonly severity: string;
  readonly text: string;
  readonly link?: string | null;
}

export interface BrokerRow {
  readonly broker_id: number;
  readonly host: string;
  readonly port: number;
  readonly rack: string | null;
  readonly is_fenced: boolean;
  readonly is_controller: boolean;
  readonly leaders: number | null;
  readonly replicas: number | null;
  readonly size_bytes: number | null;
  readonly disk_total_bytes: number | null;
  readonly disk_usable_bytes: number | null;
  readonly is_reachable: boolean;
  readonly listeners?: readonly (string | { name: string; host: string; port: number })[] | null;
  readonly version?: string | null;
  readonly connections?: number | null;
  readonly loop_lag_ms?: number | null;
}

export interface Rates {
  readonly bytes_in_s: number | null;
  readonly bytes_out_s: number | null;
  readonly messages_in_s: number | null;
  readonly requests_s: number | null;
}

export interface Overview {
  readonly health: {
    readonly status: Status;
    readonly sentence: string;
    readonly problems: readonly HealthProblem[];
  };
  readonly controller_id: number | null;
  readonly brokers: readonly BrokerRow[];
  readonly counts: Readonly<Record<
    | "topics"
    | "internal_topics"
    | "partitions"
    | "under_replicated"
    | "under_min_isr"
    | "offline"
    | "groups"
    | "transactions_open",
    number | null
  >>;
  readonly rates: Rates | null;
  readonly size_bytes: number | null;
  readonly certificates: readonly {
    readonly listener: string;
    readonly subject: string;
    readonly expires_at_ms: number;
  }[];
  readonly consoles?: readonly { readonly broker_id: number; readonly url: string }[];
}

export type GroupType = "classic" | "consumer" | "share" | "streams" | string;

export interface TopicRow {
  readonly name: string;
  readonly topic_id: string | null;
  readonly is_internal: boolean;
  readonly partition_count: number;
  readonly replication_factor: number;
  readonly record_count?: number | null;
  readonly size_bytes?: number | null;
  readonly retention_ms?: number | null;
  readonly cleanup_policy?: string | null;
  readonly under_replicated: number;
  readonly offline: number;
  readonly groups?: readonly { readonly group_id: string; readonly type: GroupType; readonly lag: number | null }[] | null;
  readonly rate_records_s?: number | null;
}

export interface Config {
  readonly name: string;
  readonly value: string | null;
  readonly is_default: boolean;
  readonly is_sensitive: boolean;
  readonly is_read_only: boolean;
  readonly source: string;
  readonly type: string | null;
  readonly documentation: string | null;
  readonly synonyms: readonly { readonly name: string; readonly value: string | null; readonly source: string }[];
}

export interface Partition {
  readonly partition: number;
  readonly leader: number | null;
  readonly leader_epoch: number | null;
  readonly replicas: readonly number[];
  readonly isr: readonly number[];
  readonly elr: readonly number[] | null;
  readonly last_known_elr: readonly number[] | null;
  readonly offline_replicas: readonly number[];
  readonly start_offset: number | null;
  readonly end_offset: number | null;
  readonly last_stable_offset: number | null;
  readonly size_bytes: number | null;
  readonly max_timestamp_ms: number | null;
}

export interface Topic {
  readonly name: string;
  readonly topic_id: string | null;
  readonly is_internal: boolean;
  readonly configs: readonly Config[] | null;
  readonly partitions: readonly Partition[];
  readonly groups: readonly {
    readonly group_id: string;
    readonly type: GroupType;
    readonly state: string;
    readonly members: number | null;
    readonly lag: number | null;
  }[] | null;
}

export interface ProducerRow {
  readonly partition: number;
  readonly producer_id: number;
  readonly producer_epoch: number;
  readonly last_sequence: number;
  readonly last_timestamp_ms: number | null;
  readonly coordinator_epoch: number | null;
  readonly transaction_start_offset: number | null;
}

export type Encoding = "utf-8" | "base64" | "json" | "avro" | "protobuf" | "record";

export interface Bytes {
  readonly encoding: Encoding;
  readonly text: string;
  readonly size_bytes: number;
  readonly is_truncated: boolean;
  readonly schema_id?: number | null;
  readonly subject?: string | null;
}

export interface MessageRecord {
  readonly partition: number;
  readonly offset: number;
  readonly timestamp_ms: number | null;
  readonly timestamp_type: "create" | "append";
  readonly key: Bytes | null;
  readonly value: Bytes | null;
  readonly headers: readonly { readonly name: string; readonly value: Bytes | null }[];
  readonly key_size: number | null;
  readonly value_size: number | null;
  readonly leader_epoch: number | null;
  readonly is_control: boolean;
}

export interface ReadReport {
  readonly records: number;
  readonly bytes: number;
  readonly seconds: number;
  readonly is_complete?: boolean;
  readonly stopped_by?: "limit" | "records" | "bytes" | "time" | "end" | string;
}

export interface MessagePage {
  readonly records: readonly MessageRecord[];
  readonly read: ReadReport;
  readonly next: string | null;
  readonly columns: readonly string[];
}

export interface LiveProgress {
  readonly read: ReadReport;
  readonly dropped: number;
  readonly rate_s: number;
}

export interface GroupRow {
  readonly group_id: string;
  readonly type: GroupType;
  readonly protocol: string | null;
  readonly state: string;
  readonly coordinator: number | null;
  readonly members: number | null;
  readonly topics: number | null;
  readonly lag: number | null;
}

export interface Assigned {
  readonly topic: string;
  readonly partitions: readonly number[];
}

export interface Member {
  readonly member_id: string;
  readonly instance_id: string | null;
  readonly client_id: string;
  readonly client_host: string;
  readonly rack_id: string | null;
  readonly member_epoch: number | null;
  readonly subscribed_topics: readonly string[] | null;
  readonly assignment: readonly Assigned[] | null;
  readonly target: readonly Assigned[] | null;
}

export interface GroupOffset {
  readonly topic: string;
  readonly partition: number;
  readonly committed: number | null;
  readonly start_offset: number | null;
  readonly end_offset: number | null;
  readonly lag: number | null;
  readonly metadata: string | null;
  readonly member_id: string | null;
  readonly leader_epoch: number | null;
}

export interface Group {
  readonly group_id: string;
  readonly type: GroupType;
  readonly protocol: string | null;
  readonly state: string;
  readonly coordinator: number | null;
  readonly assignor: string | null;
  readonly group_epoch: number | null;
  readonly target_assignment_epoch: number | null;
  readonly members: readonly Member[];
  readonly offsets: readonly GroupOffset[];
  readonly is_supported: boolean;
  readonly note: string | null;
}

export interface ResetPlan {
  readonly offsets: readonly {
    readonly topic: string;
    readonly partition: number;
    readonly old: number | null;
    readonly new: number | null;
  }[];
  readonly command: string;
}

export interface LagHistory {
  readonly step_s: number;
  readonly points: readonly (readonly [number, number | null])[];
}

export interface TransactionRow {
  readonly transactional_id: string;
  readonly producer_id: number;
  readonly producer_epoch: number;
  readonly state: string;
  readonly coordinator: number | null;
  readonly timeout_ms: number | null;
  readonly start_time_ms: number | null;
  readonly age_ms: number | null;
  readonly partitions: readonly (string | { readonly topic: string; readonly partition: number; readonly start_offset?: number | null })[];
  readonly is_hanging: boolean;
}

export interface Replica {
  readonly node_id: number;
  readonly directory_id: string | null;
  readonly log_end_offset: number;
  readonly lag: number | null;
  readonly last_fetch_ms: number | null;
  readonly last_caught_up_ms: number | null;
  readonly is_leader: boolean;
  readonly endpoints?: readonly (string | { readonly name?: string; readonly host: string; readonly port: number })[] | null;
}

export interface Quorum {
  readonly leader_id: number | null;
  readonly leader_epoch: number | null;
  readonly high_watermark: number | null;
  readonly cluster_version: Readonly<Record<string, unknown>> | null;
  readonly voters: readonly Replica[];
  readonly observers: readonly Replica[];
  readonly elections: readonly { readonly epoch: number; readonly leader_id: number | null; readonly at_ms: number }[];
}

export interface LogRecord {
  readonly offset: number;
  readonly epoch: number;
  readonly timestamp_ms: number | null;
  readonly type: string;
  readonly version: number;
  readonly fields: Readonly<Record<string, unknown>>;
  readonly summary: string;
}

export interface LogPage {
  readonly records: readonly LogRecord[];
  readonly next: number | string | null;
}

export interface LogDirectory {
  readonly path: string;
  readonly error: string | null;
  readonly total_bytes: number | null;
  readonly usable_bytes: number | null;
  readonly partitions: readonly {
    readonly topic: string;
    readonly partition: number;
    readonly size_bytes: number;
    readonly offset_lag: number;
    readonly is_future: boolean;
  }[];
}

export interface Broker extends BrokerRow {
  readonly log_directories: readonly LogDirectory[] | null;
  readonly configs: readonly Config[] | null;
  readonly loggers: readonly { readonly name: string; readonly level: string }[] | null;
}

export interface Acl {
  readonly resource_type: string;
  readonly resource_name: string;
  readonly pattern_type: string;
  readonly principal: string;
  readonly host: string;
  readonly operation: string;
  readonly permission: string;
}

export interface User {
  readonly name: string;
  readonly mechanisms: readonly { readonly mechanism: string; readonly iterations: number }[];
}

export interface Quota {
  readonly entity: Readonly<Partial<Record<"user" | "client-id" | "ip", string | null>>>;
  readonly values: Readonly<Record<string, number>>;
}

export interface Explanation {
  readonly is_allowed: boolean;
  readonly because: string;
  readonly rules: readonly (Acl & { readonly decides: boolean })[];
}

export interface SubjectRow {
  readonly subject: string;
  readonly versions: readonly number[];
  readonly schema_type?: string | null;
  readonly compatibility?: string | null;
}

export interface SchemaVersion {
  readonly subject: string;
  readonly version: number;
  readonly id: number;
  readonly schema_type: string;
  readonly schema: string;
  readonly references?: readonly { readonly name: string; readonly subject: string; readonly version: number }[];
}

export interface SavedFilter {
  readonly name: string;
  readonly topic?: string | null;
  readonly where?: string | null;
  readonly grep?: string | null;
  readonly key?: string | null;
}

export interface Saved {
  readonly filters: readonly SavedFilter[];
  readonly favourites: readonly string[];
}

/** The answer of a change. */
export interface Done {
  readonly command?: string;
}
