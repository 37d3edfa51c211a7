"""The declaration of every configuration key that is served, by area.

Names, types, defaults, limits and update modes are those of Apache Kafka 4.3; the sentences are
ours. The keys that are not served are the rows of `unserved_keys.tsv`, with the reason. Invariant:
within an area the keys are sorted by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from moldau.config.definition import REQUIRED, ConfigKey, ConfigType, Importance, Scope
from moldau.config.mechanisms import NAMES
from moldau.config.validators import BIND_ADDRESS, THROTTLED_REPLICAS, list_of, one_of, within
from moldau.constants import MAX_INT32, MAX_INT64

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
SHORT, LONG, DOUBLE, LIST = ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
PASSWORD = ConfigType.PASSWORD
HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
STATIC, BROKER, CLUSTER, TOPIC = Scope.STATIC, Scope.BROKER, Scope.CLUSTER, Scope.TOPIC
Key = ConfigKey
MAX_DOUBLE: Final = 1.7976931348623157e308

# Columns: name, type, default, limits, importance, update mode; below them the meaning.
# fmt: off
_NETWORK = (
    Key("advertised.listeners", LIST, None, list_of(may_be_empty=False), HIGH, STATIC,
        "The addresses registered with the controller for clients and other brokers; the "
        "listeners themselves when not set."),
    Key("config.providers", LIST, (), list_of(), LOW, CLUSTER,
        "Names of providers, each with config.providers.NAME.class, that values of this file may "
        "refer to as ${NAME:PATH:KEY}; read at the start."),
    Key("connections.max.idle.ms", LONG, 600_000, None, MEDIUM, STATIC,
        "A connection without a request for this long is closed."),
    Key("fetch.max.bytes", INT, 57_671_680, within(1024), MEDIUM, STATIC,
        "The most record bytes one fetch response carries; a first batch that is larger is still "
        "sent whole."),
    Key("inter.broker.listener.name", STRING, None, None, MEDIUM, STATIC,
        "Which advertised listener the brokers use among themselves."),
    Key("listener.security.protocol.map", STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", None, LOW,
        BROKER,
        "What each listener name speaks; names of controller listeners default to PLAINTEXT."),
    Key("listeners", LIST, ("PLAINTEXT://:9092",), list_of(may_be_empty=False), HIGH, BROKER,
        "The addresses to bind, as NAME://HOST:PORT; no host means every interface, port 0 a "
        "free one."),
    Key("max.connection.creation.rate", INT, MAX_INT32, within(0), MEDIUM, CLUSTER,
        "Connections taken per second on each listener but the inter-broker listener, when there "
        "are others; further ones wait."),
    Key("max.connections", INT, MAX_INT32, within(0), MEDIUM, CLUSTER,
        "Connections kept open on all listeners together; further ones are turned away."),
    Key("max.connections.per.ip", INT, MAX_INT32, within(0), MEDIUM, CLUSTER,
        "Connections kept open per client address."),
    Key("max.connections.per.ip.overrides", STRING, "", None, MEDIUM, CLUSTER,
        "Exceptions from the limit per client address, as ADDRESS:COUNT pairs."),
    Key("max.incremental.fetch.session.cache.slots", INT, 1000, within(0), MEDIUM, STATIC,
        "Fetch sessions remembered at a time; more clients fetch without one."),
    Key("queued.max.request.bytes", LONG, -1, None, MEDIUM, STATIC,
        "Bytes of requests in work before reading from sockets pauses; -1 leaves it to the "
        "node's own limit."),
    Key("request.timeout.ms", INT, 30_000, None, HIGH, STATIC,
        "How long the transaction coordinator's records may wait for their replicas; connections "
        "between nodes have limits of their own."),
    Key("socket.listen.backlog.size", INT, 50, within(1), MEDIUM, STATIC,
        "Connections the system may queue before they are accepted."),
    Key("socket.receive.buffer.bytes", INT, 102_400, None, HIGH, STATIC,
        "The receive buffer asked of the system per connection; -1 leaves its own default."),
    Key("socket.request.max.bytes", INT, 104_857_600, within(1), HIGH, STATIC,
        "The largest frame read from a client; a larger one closes its connection."),
    Key("socket.send.buffer.bytes", INT, 102_400, None, HIGH, STATIC,
        "The send buffer asked of the system per connection; -1 leaves its own default."),
)

_LOG = (
    Key("auto.create.topics.enable", BOOLEAN, True, None, HIGH, STATIC,
        "Whether asking for the metadata of a missing topic creates it, if the client agrees."),
    Key("compression.gzip.level", INT, -1, within(1, 9, -1), MEDIUM, CLUSTER,
        "The level when gzip is what the broker recompresses to; -1 is gzip's own default."),
    Key("compression.lz4.level", INT, 9, within(1, 17), MEDIUM, CLUSTER,
        "The level when lz4 is what the broker recompresses to."),
    Key("compression.type", STRING, "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), HIGH, CLUSTER,
        "The codec batches are stored with; producer keeps whatever the client chose."),
    Key("compression.zstd.level", INT, 3, within(-131_072, 22), MEDIUM, CLUSTER,
        "The level when zstd is what the broker recompresses to."),
    Key("delete.topic.enable", BOOLEAN, True, None, HIGH, STATIC,
        "Whether topics may be deleted at all."),
    Key("log.cleaner.backoff.ms", LONG, 15_000, within(0), MEDIUM, CLUSTER,
        "The pause of an idle cleaner."),
    Key("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, None, MEDIUM, CLUSTER,
        "Memory for the cleaner's key tables."),
    Key("log.cleaner.delete.retention.ms", LONG, 86_400_000, within(0), MEDIUM, CLUSTER,
        "How long a deletion marker outlives its key in compacted topics."),
    Key("log.cleaner.enable", BOOLEAN, True, None, MEDIUM, STATIC,
        "Whether compacted topics are cleaned."),
    Key("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, None, MEDIUM, CLUSTER,
        "How full the cleaner's key table may get."),
    Key("log.cleaner.io.buffer.size", INT, 524_288, within(0), MEDIUM, CLUSTER,
        "Memory for the cleaner's reads and writes."),
    Key("log.cleaner.io.max.bytes.per.second", DOUBLE, MAX_DOUBLE, None, MEDIUM, CLUSTER,
        "The cleaner's disk budget."),
    Key("log.cleaner.max.compaction.lag.ms", LONG, MAX_INT64, within(1), MEDIUM, CLUSTER,
        "The longest a record may stay uncompacted."),
    Key("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, within(0, 1), MEDIUM, CLUSTER,
        "The share of uncompacted bytes that makes a log worth cleaning."),
    Key("log.cleaner.min.compaction.lag.ms", LONG, 0, within(0), MEDIUM, CLUSTER,
        "The shortest a record stays uncompacted."),
    Key("log.cleaner.threads", INT, 1, within(0), MEDIUM, CLUSTER,
        "Cleaners that work in parallel."),
    Key("log.cleanup.policy", LIST, ("delete",), list_of("compact", "delete"), MEDIUM, CLUSTER,
        "What happens to old segments of topics that do not say: delete removes them, compact "
        "keeps the newest record of each key."),
    Key("log.dir", LIST, ("/tmp/kafka-logs",), list_of(may_be_empty=False), HIGH, STATIC,
        "One directory for partitions; log.dirs comes first."),
    Key("log.dirs", LIST, None, list_of(may_be_empty=False), HIGH, STATIC,
        "The directories partitions are spread over."),
    Key("log.flush.interval.messages", LONG, MAX_INT64, within(1), HIGH, CLUSTER,
        "Records appended to a partition before it is forced to disk."),
    Key("log.flush.interval.ms", LONG, None, None, HIGH, CLUSTER,
        "The longest an appended record may stay only in the page cache; the scheduler's interval "
        "when not set.",
        synonyms=("log.flush.scheduler.interval.ms",)),
    Key("log.flush.offset.checkpoint.interval.ms", INT, 60_000, within(0), HIGH, STATIC,
        "How often recovery points are written down."),
    Key("log.flush.scheduler.interval.ms", LONG, MAX_INT64, None, HIGH, STATIC,
        "How often logs are looked at for a flush that is due."),
    Key("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, within(0), HIGH, STATIC,
        "How often log start offsets are written down."),
    Key("log.index.interval.bytes", INT, 4096, within(0), MEDIUM, CLUSTER,
        "Bytes of records between two index entries."),
    Key("log.index.size.max.bytes", INT, 10_485_760, within(4), MEDIUM, CLUSTER,
        "The space each index file gets; a full one rolls the segment."),
    Key("log.initial.task.delay.ms", LONG, 30_000, within(0), LOW, STATIC,
        "How long after start-up the housekeeping of logs begins.",
        internal=True),
    Key("log.message.timestamp.after.max.ms", LONG, 3_600_000, within(0), MEDIUM, CLUSTER,
        "How far in the future a producer's timestamp may lie."),
    Key("log.message.timestamp.before.max.ms", LONG, MAX_INT64, within(0), MEDIUM, CLUSTER,
        "How far in the past a producer's timestamp may lie."),
    Key("log.message.timestamp.type", STRING, "CreateTime",
        one_of("CreateTime", "LogAppendTime"), MEDIUM, CLUSTER,
        "Whether records keep the producer's time or get that of the append."),
    Key("log.preallocate", BOOLEAN, False, None, MEDIUM, CLUSTER,
        "Whether a new segment reserves its space on disk at once."),
    Key("log.retention.bytes", LONG, -1, None, HIGH, CLUSTER,
        "The size above which a partition's oldest segments are deleted; -1 for no limit."),
    Key("log.retention.check.interval.ms", LONG, 300_000, within(1), MEDIUM, STATIC,
        "How often logs are looked at for segments to delete."),
    Key("log.retention.hours", INT, 168, None, HIGH, STATIC,
        "How long segments are kept, in hours; the finer units come first."),
    Key("log.retention.minutes", INT, None, None, HIGH, STATIC,
        "How long segments are kept, in minutes; milliseconds come first.",
        synonyms=("log.retention.hours",)),
    Key("log.retention.ms", LONG, None, None, HIGH, CLUSTER,
        "How long segments are kept after their latest record; -1 for ever.",
        synonyms=("log.retention.minutes", "log.retention.hours")),
    Key("log.roll.hours", INT, 168, within(1), HIGH, STATIC,
        "The age at which the active segment is closed, in hours; milliseconds come first."),
    Key("log.roll.jitter.hours", INT, 0, within(0), HIGH, STATIC,
        "The most by which rolling is randomly brought forward, in hours; milliseconds come "
        "first."),
    Key("log.roll.jitter.ms", LONG, None, None, HIGH, CLUSTER,
        "The most by which rolling is randomly brought forward, so that partitions do not roll "
        "together.",
        synonyms=("log.roll.jitter.hours",)),
    Key("log.roll.ms", LONG, None, None, HIGH, CLUSTER,
        "The age at which the active segment is closed and a new one begun.",
        synonyms=("log.roll.hours",)),
    Key("log.segment.bytes", INT, 1_073_741_824, within(1_048_576), HIGH, CLUSTER,
        "The size at which the active segment is closed and a new one begun."),
    Key("log.segment.delete.delay.ms", LONG, 60_000, within(0), HIGH, CLUSTER,
        "How long the files of a deleted segment or partition remain under another name."),
    Key("max.request.partition.size.limit", INT, 2000, within(1), MEDIUM, STATIC,
        "Partitions that one DescribeTopicPartitions answer covers at most."),
    Key("message.max.bytes", INT, 1_048_588, within(0), HIGH, CLUSTER,
        "The largest record batch accepted, as it arrives."),
    Key("num.partitions", INT, 1, within(1), MEDIUM, STATIC,
        "Partitions of a topic whose creator does not say."),
    Key("num.recovery.threads.per.data.dir", INT, 2, within(1), HIGH, CLUSTER,
        "Logs per directory that are recovered in parallel at start-up and flushed in parallel "
        "at shutdown."),
)

_REPLICATION = (
    Key("auto.leader.rebalance.enable", BOOLEAN, True, None, HIGH, STATIC,
        "Whether leadership returns to preferred replicas by itself."),
    Key("broker.rack", STRING, None, None, MEDIUM, STATIC,
        "The failure zone of this broker; replicas are spread over zones."),
    Key("controlled.shutdown.enable", BOOLEAN, True, None, MEDIUM, STATIC,
        "Whether a stopping broker hands its leaderships over first."),
    Key("default.replication.factor", INT, 1, None, MEDIUM, STATIC,
        "Replicas of a topic whose creator does not say."),
    Key("follower.replication.throttled.rate", LONG, MAX_INT64, within(0), MEDIUM, CLUSTER,
        "Bytes per second for throttled replicas that follow."),
    Key("leader.imbalance.check.interval.seconds", LONG, 300, within(1), HIGH, STATIC,
        "How often leadership is compared with the preferred replicas."),
    Key("leader.replication.throttled.rate", LONG, MAX_INT64, within(0), MEDIUM, CLUSTER,
        "Bytes per second that leaders send to throttled replicas."),
    Key("min.insync.replicas", INT, 1, within(1), HIGH, CLUSTER,
        "In-sync replicas a write with acks=all needs."),
    Key("num.replica.fetchers", INT, 1, within(1), HIGH, CLUSTER,
        "Connections per leader to replicate over."),
    Key("replica.fetch.backoff.ms", INT, 1000, within(0), MEDIUM, STATIC,
        "A follower's pause after a failed fetch."),
    Key("replica.fetch.max.bytes", INT, 1_048_576, within(0), MEDIUM, STATIC,
        "Bytes per partition in a follower's fetch."),
    Key("replica.fetch.min.bytes", INT, 1, None, HIGH, STATIC,
        "Bytes a leader gathers before it answers a follower."),
    Key("replica.fetch.response.max.bytes", INT, 10_485_760, within(0), MEDIUM, STATIC,
        "Bytes in a whole answer to a follower."),
    Key("replica.fetch.wait.max.ms", INT, 500, None, HIGH, STATIC,
        "How long a leader may hold a follower's fetch; keep it below the lag limit."),
    Key("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, None, HIGH, STATIC,
        "How often high watermarks are written down."),
    Key("replica.lag.time.max.ms", LONG, 30_000, None, HIGH, STATIC,
        "A follower behind for this long leaves the in-sync replicas."),
    Key("replica.selector.class", STRING, None, None, MEDIUM, STATIC,
        "The class that chooses the replica a consumer reads from: null for the leader, or "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector (no other class is served)."),
    Key("replica.socket.timeout.ms", INT, 30_000, None, HIGH, STATIC,
        "How long a follower waits on a connection to its leader."),
    Key("replication.quota.window.num", INT, 11, within(1), LOW, STATIC,
        "Samples kept for replication limits."),
    Key("replication.quota.window.size.seconds", INT, 1, within(1), LOW, STATIC,
        "The span of a sample for replication limits."),
    Key("unclean.leader.election.enable", BOOLEAN, False, None, HIGH, CLUSTER,
        "Whether a replica outside the in-sync set may lead when no other can, at the price of "
        "lost records."),
    Key("unclean.leader.election.interval.ms", LONG, 300_000, within(1), MEDIUM, STATIC,
        "How often partitions without a leader are tried for an unclean election.",
        internal=True),
)

_QUORUM = (
    Key("broker.heartbeat.interval.ms", INT, 2000, None, MEDIUM, STATIC,
        "How often a broker reports to the controller."),
    Key("broker.id", INT, -1, None, HIGH, STATIC,
        "The former name of node.id; when both are set they must agree."),
    Key("broker.session.timeout.ms", INT, 9000, None, MEDIUM, STATIC,
        "A broker silent for this long is fenced."),
    Key("controller.listener.names", LIST, REQUIRED, list_of(may_be_empty=False), HIGH, STATIC,
        "Which listeners belong to the controller, first the one that brokers connect to."),
    Key("controller.quorum.bootstrap.servers", LIST, (), list_of(), HIGH, STATIC,
        "Controllers to ask who leads the quorum, as HOST:PORT."),
    Key("controller.quorum.election.backoff.max.ms", INT, 1000, within(0), HIGH, STATIC,
        "The ceiling of the random pause between two elections."),
    Key("controller.quorum.election.timeout.ms", INT, 1000, within(0), HIGH, STATIC,
        "How long a candidate waits for votes."),
    Key("controller.quorum.fetch.max.bytes", INT, 1_048_576, within(1), LOW, STATIC,
        "The most record bytes one fetch between controllers carries."),
    Key("controller.quorum.fetch.snapshot.max.bytes", INT, 1_048_576, within(1), LOW, STATIC,
        "The most bytes one piece of a snapshot carries."),
    Key("controller.quorum.fetch.timeout.ms", INT, 2000, within(0), HIGH, STATIC,
        "A leader that is not heard from for this long is given up."),
    Key("controller.quorum.request.timeout.ms", INT, 2000, within(0), MEDIUM, STATIC,
        "How long a request between controllers may take."),
    Key("controller.quorum.retry.backoff.ms", INT, 20, within(0), LOW, STATIC,
        "The pause before a failed request between controllers is repeated."),
    Key("controller.quorum.voters", LIST, (), list_of(), HIGH, STATIC,
        "The fixed voters, as ID@HOST:PORT; leave it empty when storage was formatted with its "
        "voters."),
    Key("controller.quota.window.num", INT, 11, within(1), LOW, STATIC,
        "Samples kept for controller_mutation_rate: what comes back in so many windows may be "
        "used at once."),
    Key("controller.quota.window.size.seconds", INT, 1, within(1), LOW, STATIC,
        "The span of a sample for controller_mutation_rate."),
    Key("controller.socket.timeout.ms", INT, 30_000, None, MEDIUM, STATIC,
        "How long a broker waits on a connection to the controller."),
    Key("early.start.listeners", LIST, None, list_of(), HIGH, STATIC,
        "Listeners that open before the ACLs are loaded, the controller's by default. Listeners of "
        "a broker open when it is ready, named here or not."),
    Key("initial.broker.registration.timeout.ms", INT, 60_000, None, MEDIUM, STATIC,
        "How long a starting broker tries to register."),
    Key("metadata.log.dir", STRING, None, None, HIGH, STATIC,
        "Where the metadata log is kept; the first log directory when not set."),
    Key("metadata.log.max.record.bytes.between.snapshots", LONG, 20_971_520, within(1), HIGH,
        STATIC,
        "New metadata bytes after which a snapshot is taken."),
    Key("metadata.log.max.snapshot.interval.ms", LONG, 3_600_000, within(0), HIGH, STATIC,
        "The longest time between two snapshots of changed metadata."),
    Key("metadata.log.segment.bytes", INT, 1_073_741_824, within(8_388_608), HIGH, STATIC,
        "The size at which the metadata log begins a new segment."),
    Key("metadata.log.segment.ms", LONG, 604_800_000, None, HIGH, STATIC,
        "The age at which the metadata log begins a new segment."),
    Key("metadata.max.retention.bytes", LONG, 104_857_600, None, HIGH, STATIC,
        "Size above which old metadata log and snapshots are deleted."),
    Key("metadata.max.retention.ms", LONG, 604_800_000, None, HIGH, STATIC,
        "Age above which old metadata log and snapshots are deleted."),
    Key("node.id", INT, REQUIRED, within(0), HIGH, STATIC,
        "The number that names this node in the cluster, the same for its broker and its "
        "controller."),
    Key("process.roles", LIST, REQUIRED, list_of("broker", "controller", may_be_empty=False),
        HIGH, STATIC,
        "What this process is: broker, controller, or both."),
)

_GROUP = (
    Key("group.consumer.assignment.interval.ms", INT, 1000, within(0), MEDIUM, CLUSTER,
        "The shortest time between two assignments of a consumer group."),
    Key("group.consumer.assignors", LIST, ("uniform", "range"), list_of(may_be_empty=False),
        MEDIUM, STATIC,
        "The server-side assignors for consumer groups, the default one first."),
    Key("group.consumer.heartbeat.interval.ms", INT, 5000, within(1), MEDIUM, STATIC,
        "How often members of a consumer group report."),
    Key("group.consumer.max.assignment.interval.ms", INT, 15_000, within(0), MEDIUM, STATIC,
        "The longest assignment interval a group may ask for."),
    Key("group.consumer.max.heartbeat.interval.ms", INT, 15_000, within(1), MEDIUM, STATIC,
        "The longest heartbeat interval a group may ask for."),
    Key("group.consumer.max.session.timeout.ms", INT, 60_000, within(1), MEDIUM, STATIC,
        "The longest session timeout a group may ask for."),
    Key("group.consumer.max.size", INT, MAX_INT32, within(1), MEDIUM, STATIC,
        "Members a consumer group may have."),
    Key("group.consumer.migration.policy", STRING, "bidirectional",
        one_of("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL", any_case=True), MEDIUM, STATIC,
        "Which way groups may change between the classic and the new protocol."),
    Key("group.consumer.min.assignment.interval.ms", INT, 0, within(0), MEDIUM, STATIC,
        "The shortest assignment interval a group may ask for."),
    Key("group.consumer.min.heartbeat.interval.ms", INT, 5000, within(1), MEDIUM, STATIC,
        "The shortest heartbeat interval a group may ask for."),
    Key("group.consumer.min.session.timeout.ms", INT, 45_000, within(1), MEDIUM, STATIC,
        "The shortest session timeout a group may ask for."),
    Key("group.consumer.regex.refresh.interval.ms", INT, 600_000, within(10_000), MEDIUM, STATIC,
        "How often subscriptions by pattern are matched against the topics again.",
        internal=True),
    Key("group.consumer.session.timeout.ms", INT, 45_000, within(1), MEDIUM, STATIC,
        "A consumer group's member silent for this long is removed."),
    Key("group.coordinator.rebalance.protocols", LIST, ("classic", "consumer", "streams"),
        list_of("consumer", "classic", "share", "streams", may_be_empty=False), MEDIUM, STATIC,
        "Which group protocols are offered.",
        refusal="share and streams groups are not served", idle_elements=("share", "streams")),
    Key("group.initial.rebalance.delay.ms", INT, 3000, None, MEDIUM, STATIC,
        "How long an empty classic group waits for more members before its first rebalance."),
    Key("group.max.session.timeout.ms", INT, 1_800_000, None, MEDIUM, STATIC,
        "The longest session timeout of a classic member."),
    Key("group.max.size", INT, MAX_INT32, within(1), MEDIUM, STATIC,
        "Members a classic group may have."),
    Key("group.min.session.timeout.ms", INT, 6000, None, MEDIUM, STATIC,
        "The shortest session timeout of a classic member."),
    Key("offset.metadata.max.bytes", INT, 4096, None, HIGH, STATIC,
        "The longest note a client may attach to a committed offset."),
    Key("offsets.commit.timeout.ms", INT, 5000, within(1), HIGH, STATIC,
        "How long an offset commit waits for its replicas."),
    Key("offsets.load.buffer.size", INT, 5_242_880, within(1), HIGH, STATIC,
        "Bytes read at a time when committed offsets are loaded."),
    Key("offsets.retention.check.interval.ms", LONG, 600_000, within(1), HIGH, STATIC,
        "How often expired offsets are looked for."),
    Key("offsets.retention.minutes", INT, 10_080, within(1), HIGH, STATIC,
        "How long offsets outlive the last member of their group."),
    Key("offsets.topic.compression.codec", INT, 0, None, HIGH, STATIC,
        "The codec of the offsets topic, by number."),
    Key("offsets.topic.num.partitions", INT, 50, within(1), HIGH, STATIC,
        "Partitions of the offsets topic; never change it later."),
    Key("offsets.topic.replication.factor", SHORT, 3, within(1), HIGH, STATIC,
        "Replicas of the offsets topic."),
    Key("offsets.topic.segment.bytes", INT, 104_857_600, within(1), HIGH, STATIC,
        "Segment size of the offsets topic."),
)

_TRANSACTION = (
    Key("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, within(0), HIGH, STATIC,
        "The longest a broker keeps retrying to verify a transaction's partition."),
    Key("add.partitions.to.txn.retry.backoff.ms", INT, 20, within(1), HIGH, STATIC,
        "The pause between two attempts to verify a transaction's partition."),
    Key("producer.id.expiration.check.interval.ms", INT, 600_000, within(1), LOW, STATIC,
        "How often idle producer ids are looked for.",
        internal=True),
    Key("producer.id.expiration.ms", INT, 86_400_000, within(1), LOW, CLUSTER,
        "A producer id that has not written for this long is forgotten."),
    Key("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, within(1),
        LOW, STATIC,
        "How often transactions past their timeout are looked for."),
    Key("transaction.max.timeout.ms", INT, 900_000, within(1), HIGH, STATIC,
        "The longest timeout a transactional producer may ask for."),
    Key("transaction.partition.verification.enable", BOOLEAN, True, None, LOW, CLUSTER,
        "Whether a partition asks the coordinator before it accepts transactional records."),
    Key("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000,
        within(1), LOW, STATIC,
        "How often unused transactional ids are looked for."),
    Key("transaction.state.log.load.buffer.size", INT, 5_242_880, within(1), HIGH, STATIC,
        "Bytes read at a time when transaction state is loaded."),
    Key("transaction.state.log.min.isr", INT, 2, within(1), HIGH, STATIC,
        "In-sync replicas the transaction topic needs."),
    Key("transaction.state.log.num.partitions", INT, 50, within(1), HIGH, STATIC,
        "Partitions of the transaction topic; never change it later."),
    Key("transaction.state.log.replication.factor", SHORT, 3, within(1), HIGH, STATIC,
        "Replicas of the transaction topic."),
    Key("transaction.state.log.segment.bytes", INT, 104_857_600, within(1), HIGH, STATIC,
        "Segment size of the transaction topic."),
    Key("transaction.two.phase.commit.enable", BOOLEAN, False, None, LOW, STATIC,
        "Whether an outside coordinator may keep transactions prepared without a timeout."),
    Key("transactional.id.expiration.ms", INT, 604_800_000, within(1), HIGH, STATIC,
        "A transactional id unused for this long is forgotten."),
)

_SECURITY = (
    Key("allow.everyone.if.no.acl.found", BOOLEAN, False, None, LOW, STATIC,
        "Whether every principal may do what no access control entry is about."),
    Key("authorizer.class.name", STRING, "", None, LOW, STATIC,
        "The class that decides who may do what; without one every client may do everything."),
    Key("connection.failed.authentication.delay.ms", INT, 100, within(0), LOW, STATIC,
        "How long the answer to a failed authentication is held back, and its connection with it."),
    Key("connections.max.reauth.ms", LONG, 0, None, MEDIUM, STATIC,
        "The session length after which a SASL client must authenticate again; 0 for no limit."),
    Key("delegation.token.expiry.check.interval.ms", LONG, 3_600_000, within(1), LOW, STATIC,
        "How often expired delegation tokens are looked for."),
    Key("delegation.token.expiry.time.ms", LONG, 86_400_000, within(1), MEDIUM, STATIC,
        "How long a delegation token lives between renewals."),
    Key("delegation.token.max.lifetime.ms", LONG, 604_800_000, within(1), MEDIUM, STATIC,
        "How long a delegation token may be renewed."),
    Key("delegation.token.secret.key", PASSWORD, None, None, MEDIUM, STATIC,
        "The secret that makes the passwords of delegation tokens; the same on all nodes. Without "
        "it there are no tokens."),
    Key("security.inter.broker.protocol", STRING, "PLAINTEXT",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), MEDIUM, STATIC,
        "What brokers speak among themselves when no listener is named for it."),
    Key("super.users", STRING, "", None, LOW, STATIC,
        "Principals that may do everything, with semicolons between them, as "
        "User:admin;User:operator."),
)

_SASL = (
    Key("sasl.enabled.mechanisms", LIST, ("GSSAPI",), list_of(), MEDIUM, BROKER,
        f"The SASL mechanisms offered: some of {NAMES}. GSSAPI is Kerberos."),
    Key("sasl.jaas.config", PASSWORD, None, None, MEDIUM, BROKER,
        "A mechanism's users in Java's JAAS form, as "
        "listener.name.LISTENER.MECHANISM.sasl.jaas.config; its username and password are those "
        "with which this node logs in to other nodes."),
    Key("sasl.kerberos.min.time.before.relogin", LONG, 60_000, None, MEDIUM, BROKER,
        "The shortest time in ms between two logins with a keytab, while the last ticket is good."),
    Key("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",), list_of(), MEDIUM, BROKER,
        "How a Kerberos principal becomes a user name: the first rule that applies, each DEFAULT "
        "or RULE:… in Apache Kafka's form."),
    Key("sasl.kerberos.service.name", STRING, None, None, MEDIUM, BROKER,
        "The first part of the brokers' Kerberos principals, kafka as a rule."),
    Key("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, None, MEDIUM, BROKER,
        "The largest random share of a ticket's life that is added to when it is renewed."),
    Key("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, None, MEDIUM, BROKER,
        "The share of a ticket's life after which a node gets another one with its keytab."),
    Key("sasl.login.connect.timeout.ms", INT, None, None, LOW, STATIC,
        "How long this node waits for a token endpoint, from the connection to the answer: the "
        "longer of this and sasl.login.read.timeout.ms, or 10 seconds."),
    Key("sasl.login.read.timeout.ms", INT, None, None, LOW, STATIC,
        "As sasl.login.connect.timeout.ms."),
    Key("sasl.login.refresh.buffer.seconds", SHORT, 300, None, MEDIUM, BROKER,
        "How long before its end this node renews its token at the latest."),
    Key("sasl.login.refresh.min.period.seconds", SHORT, 60, None, MEDIUM, BROKER,
        "The shortest time between two renewals of this node's token."),
    Key("sasl.login.refresh.window.factor", DOUBLE, 0.8, None, MEDIUM, BROKER,
        "The share of its token's life after which this node renews it."),
    Key("sasl.login.refresh.window.jitter", DOUBLE, 0.05, None, MEDIUM, BROKER,
        "The random share added to that."),
    Key("sasl.login.retry.backoff.max.ms", LONG, 10_000, None, LOW, STATIC,
        "The longest pause after a token could not be had."),
    Key("sasl.login.retry.backoff.ms", LONG, 100, None, LOW, STATIC,
        "The first pause after a token could not be had; further ones double."),
    Key("sasl.mechanism.controller.protocol", STRING, "GSSAPI", None, HIGH, STATIC,
        f"The SASL mechanism towards controllers: one of {NAMES}."),
    Key("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", None, MEDIUM, BROKER,
        f"The SASL mechanism among brokers: one of {NAMES}."),
    Key("sasl.oauthbearer.assertion.algorithm", STRING, "RS256",
        one_of("ES256", "RS256", any_case=True), MEDIUM, STATIC,
        "How this node signs the assertions that it asks the token endpoint with."),
    Key("sasl.oauthbearer.assertion.claim.aud", STRING, None, None, MEDIUM, STATIC,
        "The audience in an assertion: the identity provider."),
    Key("sasl.oauthbearer.assertion.claim.exp.seconds", INT, 300, within(0, 86_400), LOW, STATIC,
        "How long an assertion is good."),
    Key("sasl.oauthbearer.assertion.claim.iss", STRING, None, None, MEDIUM, STATIC,
        "The issuer in an assertion; with client credentials it asks for assertions in place of a "
        "secret."),
    Key("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, False, None, MEDIUM, STATIC,
        "Whether each assertion has its own id."),
    Key("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, 60, within(0, 3_600), LOW, STATIC,
        "How long before now an assertion begins to be good."),
    Key("sasl.oauthbearer.assertion.claim.sub", STRING, None, None, MEDIUM, STATIC,
        "The subject in an assertion: this node."),
    Key("sasl.oauthbearer.assertion.file", STRING, None, None, MEDIUM, STATIC,
        "A file with an assertion that another program keeps up to date; it goes before the other "
        "keys of assertions."),
    Key("sasl.oauthbearer.assertion.private.key.file", STRING, None, None, MEDIUM, STATIC,
        "The key in PEM that signs assertions; read again when it has changed."),
    Key("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None, None, MEDIUM, STATIC,
        "What unlocks that key."),
    Key("sasl.oauthbearer.assertion.template.file", STRING, None, None, MEDIUM, STATIC,
        "A JSON file with further members of an assertion, in its objects header and payload."),
    Key("sasl.oauthbearer.client.credentials.client.id", STRING, None, None, MEDIUM, STATIC,
        "With what this node asks the token endpoint; else clientId of sasl.jaas.config."),
    Key("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None, None, MEDIUM, STATIC,
        "The secret with it; else clientSecret of sasl.jaas.config."),
    Key("sasl.oauthbearer.clock.skew.seconds", INT, 30, None, LOW, STATIC,
        "How far the identity provider's clock may differ when a token is checked."),
    Key("sasl.oauthbearer.expected.audience", LIST, (), list_of(), LOW, STATIC,
        "Audiences a token may be for; with none, a token must not name any."),
    Key("sasl.oauthbearer.expected.issuer", STRING, None, None, LOW, STATIC,
        "The issuer a token must come from; any when not set."),
    Key("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000, None, LOW, STATIC,
        "How often the identity provider's keys are fetched."),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10_000, None, LOW, STATIC,
        "The longest pause between attempts to fetch the keys."),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100, None, LOW, STATIC,
        "The first pause between attempts to fetch the keys."),
    Key("sasl.oauthbearer.jwks.endpoint.url", STRING, None, None, MEDIUM, STATIC,
        "Where the identity provider publishes its keys: an https:, http: or file: URL."),
    Key("sasl.oauthbearer.jwt.retriever.class", ConfigType.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever", None, MEDIUM, STATIC,
        "Of Kafka's classes, how this node gets tokens: JwtBearerJwtRetriever for the JWT bearer "
        "grant, ClientCredentialsJwtRetriever, FileJwtRetriever, or DefaultJwtRetriever, which is "
        "one of the last two by the URL."),
    Key("sasl.oauthbearer.scope", STRING, None, None, MEDIUM, STATIC,
        "The scope that this node asks the token endpoint for; else scope of sasl.jaas.config."),
    Key("sasl.oauthbearer.scope.claim.name", STRING, "scope", None, LOW, STATIC,
        "The claim that holds a token's scope."),
    Key("sasl.oauthbearer.sub.claim.name", STRING, "sub", None, LOW, STATIC,
        "The claim that holds a token's user."),
    Key("sasl.oauthbearer.token.endpoint.url", STRING, None, None, MEDIUM, STATIC,
        "Where this node gets the token that it logs in to other nodes with: an https: or http: "
        "URL of a token endpoint, or a file: URL of a token."),
    Key("sasl.server.callback.handler.class", ConfigType.CLASS, None, None, MEDIUM, STATIC,
        "Of Kafka's classes, the one that checks tokens, signed or unsecured, as "
        "listener.name.LISTENER.oauthbearer.sasl.server.callback.handler.class."),
    Key("sasl.server.max.receive.size", INT, 524_288, None, MEDIUM, STATIC,
        "The largest request in bytes that a client may send before it is authenticated."),
)

_TLS = (
    Key("ssl.allow.dn.changes", BOOLEAN, False, None, LOW, STATIC,
        "Whether a certificate that comes by dynamic configuration may name another subject."),
    Key("ssl.allow.san.changes", BOOLEAN, False, None, LOW, STATIC,
        "Whether a certificate that comes by dynamic configuration may lack alternative names that "
        "the present one has."),
    Key("ssl.cipher.suites", LIST, (), list_of(), MEDIUM, BROKER,
        "The cipher suites offered, by their IANA or OpenSSL names; OpenSSL's choice when empty."),
    Key("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), MEDIUM, BROKER,
        "Whether clients must, may, or need not show a certificate."),
    Key("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), list_of(), MEDIUM, BROKER,
        "The TLS versions offered: TLSv1.2, TLSv1.3 or both."),
    Key("ssl.endpoint.identification.algorithm", STRING, "https", None, LOW, BROKER,
        "How this node checks the host name of other nodes against their certificates: https, or "
        "empty for not at all."),
    Key("ssl.key.password", PASSWORD, None, None, MEDIUM, BROKER,
        "What unlocks the private key."),
    Key("ssl.keystore.certificate.chain", PASSWORD, None, None, MEDIUM, BROKER,
        "The certificate chain as PEM text."),
    Key("ssl.keystore.key", PASSWORD, None, None, MEDIUM, BROKER,
        "The private key as PEM text."),
    Key("ssl.keystore.location", STRING, None, None, MEDIUM, BROKER,
        "The file with the private key and its certificates; read again when it changes."),
    Key("ssl.keystore.password", PASSWORD, None, None, MEDIUM, BROKER,
        "What unlocks the key store file."),
    Key("ssl.keystore.type", STRING, "JKS", None, MEDIUM, BROKER,
        "The format of the key store, PEM or PKCS12; the file shows it unless it is set."),
    Key("ssl.principal.mapping.rules", STRING, "DEFAULT", None, LOW, STATIC,
        "How a certificate's subject becomes a user name (KIP-371)."),
    Key("ssl.protocol", STRING, "TLSv1.3", None, MEDIUM, BROKER,
        "TLS, TLSv1.2 or TLSv1.3; as with Java's server side, ssl.enabled.protocols decides."),
    Key("ssl.truststore.certificates", PASSWORD, None, None, MEDIUM, BROKER,
        "Trusted certificates as PEM text."),
    Key("ssl.truststore.location", STRING, None, None, MEDIUM, BROKER,
        "The file with trusted certificates; read again when it changes."),
    Key("ssl.truststore.password", PASSWORD, None, None, MEDIUM, BROKER,
        "What unlocks the trust store file."),
    Key("ssl.truststore.type", STRING, "JKS", None, MEDIUM, BROKER,
        "The format of the trust store, PEM or PKCS12; the file shows it unless it is set."),
)

# fmt: on


_HTTP: Final = "moldau.http."
_OF_BEARER_TOKENS: Final = (
    "clock.skew.seconds",
    "expected.audience",
    "expected.issuer",
    "jwks.endpoint.refresh.ms",
    "jwks.endpoint.retry.backoff.max.ms",
    "jwks.endpoint.retry.backoff.ms",
    "jwks.endpoint.url",
    "scope.claim.name",
    "sub.claim.name",
)
"""The keys `sasl.oauthbearer.…`: how a listener checks tokens."""


def _http_keys() -> Iterator[ConfigKey]:
    """The keys of tokens and of TLS once more, for the HTTP listener, which has no dynamic ones."""
    keys = {key.name: key for key in _SASL}
    for suffix in _OF_BEARER_TOKENS:
        key = keys[f"sasl.oauthbearer.{suffix}"]
        yield key._replace(
            name=_HTTP + key.name,
            default=None,
            documentation=f"Our own, for BEARER; {key.name} when not set: {key.documentation}",
            synonyms=(key.name,),
        )
    for key in _TLS:
        if key.name.startswith("ssl.allow."):
            continue
        yield key._replace(
            name=_HTTP + key.name, scope=STATIC, documentation=f"Our own: {key.documentation}"
        )


# fmt: off
_METRICS = (
    Key("moldau.audit.log.max.lines", INT, 100, within(1), LOW, STATIC,
        "Our own: different denied actions, allowed ones and failed authentications that are "
        "logged in ten seconds, of each, beside one of every client; one client's are half of the "
        "free ones at most, and what is left out is counted."),
    Key("moldau.certificate.warning.days", INT, 30, within(0, 3_650), LOW, STATIC,
        "Our own: so long before a certificate of its stores expires a node begins to log a "
        "warning a day; 0: only when it has expired."),
    Key("moldau.console.enable", BOOLEAN, False, None, MEDIUM, STATIC,
        "Our own: whether a broker serves the console, with its API, on moldau.http.listener; its "
        "people act with their own rights, and log in where a listener for clients has SASL."),
    Key("moldau.console.hosts", LIST, (), list_of(), MEDIUM, STATIC,
        "Our own: what browsers call the HTTP listener beside localhost, its address and its "
        "advertised names, as behind a proxy; requests for other names are refused."),
    Key("moldau.console.listener", STRING, "", None, MEDIUM, STATIC,
        "Our own: the listener by which the console's people come into the cluster; without it the "
        "first one for clients, one with SASL if there is any."),
    Key("moldau.console.read.only", BOOLEAN, False, None, MEDIUM, STATIC,
        "Our own: whether the console refuses everything that changes something."),
    Key("moldau.decoded.max.bytes", LONG, 268_435_456, within(134_217_728), LOW, STATIC,
        "Our own: how much memory the decoded requests of more than 16 KiB take together until "
        "they are answered, for the listeners of the broker and for those of the controller. A "
        "principal, or an address without one, has no more than it leaves to others."),
    Key("moldau.delegation.token.max.per.owner", INT, 1_000, within(1, 100_000), LOW, STATIC,
        "Our own: how many delegation tokens an owner has; expired ones do not count. The answer "
        "beyond is POLICY_VIOLATION. Of the 100,000 of a cluster an owner has no more than are "
        "left for others."),
    Key("moldau.fair.share", INT, 25, within(1, 100), LOW, CLUSTER,
        "Our own: per cent of the memory for requests of clients, of nodes, or of those that have "
        "not authenticated, that one principal or one address may hold while others wait for it; "
        "while none waits, one may hold all of it but this share."),
    Key("moldau.fetch.session.cache.max.partitions", INT, 500_000, within(0), LOW, STATIC,
        "Our own: how many partitions the fetch sessions of a broker hold together; a principal "
        "has an equal share when they are full. A client that finds no room fetches without a "
        "session."),
    Key("moldau.group.coordinator.max.bytes", LONG, 1_073_741_824, within(1), LOW, STATIC,
        "Our own: how much memory groups and their offsets take at one broker, estimated. A "
        "principal has no more than is left for others; what they hold is never taken away."),
    Key("moldau.group.lag.enable", BOOLEAN, True, None, LOW, STATIC,
        "Our own: whether /metrics shows the lag of the consumer groups that a broker "
        "coordinates."),
    Key("moldau.group.lag.max.partitions", INT, 10_000, within(0, 1_000_000), LOW, STATIC,
        "Our own: while groups of a broker have committed offsets in no more partitions than this, "
        "counted for each group, /metrics shows the lag of each; beyond, the sums of groups and "
        "topics alone."),
    Key("moldau.health.socket", STRING, "", None, LOW, STATIC,
        "Our own: the path of a Unix domain socket that `moldau server health` asks whether the "
        "node's event loops run, without the network; empty switches it off."),
    Key("moldau.http.authentication", LIST, (), list_of("BASIC", "BEARER"), MEDIUM, STATIC,
        "Our own: how clients of the HTTP listener say who they are: BASIC, with the users of "
        "SCRAM; BEARER, with signed tokens; certificates come in by moldau.http.ssl.client.auth."),
    Key("moldau.http.header.timeout.ms", INT, 5_000, within(100), LOW, STATIC,
        "Our own: how long an HTTP client may take for the headers of a request, from the "
        "connection's beginning or from the first byte of a further request."),
    Key("moldau.http.idle.timeout.ms", INT, 75_000, within(100), LOW, STATIC,
        "Our own: how long a connection to the HTTP listener may be without a request."),
    Key("moldau.http.listener", STRING, "", BIND_ADDRESS, MEDIUM, STATIC,
        "Our own: HOST:PORT for metrics, health and read-only JSON over HTTP; empty switches it "
        "off."),
    Key("moldau.http.max.connections", INT, 1_000, within(1), LOW, STATIC,
        "Our own: connections to the HTTP listener; one more closes the one that has waited "
        "longest of the address that has most."),
    Key("moldau.http.max.connections.per.ip", INT, 100, within(1), LOW, STATIC,
        "Our own: the same, of one address; one more closes its own that has waited longest."),
    Key("moldau.http.max.unsent.bytes", LONG, 67_108_864, within(1), LOW, STATIC,
        "Our own: answers of the HTTP listener that its clients have not read yet; above that the "
        "address that leaves most unread loses the connection that has waited longest."),
    Key("moldau.http.open.paths", LIST, ("/healthz", "/readyz"),
        list_of("/healthz", "/metrics", "/readyz"), MEDIUM, STATIC,
        "Our own: pages of the HTTP listener that every client may read, whatever the other "
        "settings and the authorizer say."),
    Key("moldau.http.response.timeout.ms", INT, 30_000, within(100), LOW, STATIC,
        "Our own: how long a client of the HTTP listener may take to read an answer, from the end "
        "of its request."),
    Key(f"{_HTTP}sasl.jaas.config", PASSWORD, None, None, MEDIUM, STATIC,
        "Our own: OAuthBearerLoginModule, whose options ssl.truststore.* say which authorities the "
        "URL of the keys of BEARER is trusted by."),
    *_http_keys(),
    Key("moldau.log.format", STRING, "console", one_of("console", "json"), LOW, STATIC,
        "Our own: whether log lines are for people (console) or for machines (json)."),
    Key("moldau.log.level", STRING, "INFO",
        one_of("DEBUG", "INFO", "WARNING", "ERROR", any_case=True), LOW, CLUSTER,
        "Our own: the least severity that is logged; may be changed while the node runs."),
    Key("moldau.node.principals", STRING, "", None, LOW, STATIC,
        "Our own: principals of this cluster's nodes, with semicolons between them, * for any "
        "characters but a comma, as User:CN=*,OU=nodes. They may do what nodes need, and no client "
        "may have their names."),
    Key("moldau.sasl.oauthbearer.allowed.files", LIST, (), list_of(), LOW, STATIC,
        "Our own: the files that a file: URL of sasl.oauthbearer.jwks.endpoint.url and "
        "sasl.oauthbearer.token.endpoint.url may name, and sasl.oauthbearer.assertion.*, as "
        "Kafka's system property org.apache.kafka.sasl.oauthbearer.allowed.files."),
    Key("moldau.sasl.oauthbearer.allowed.urls", LIST, (), list_of(), LOW, STATIC,
        "Our own: the URLs that sasl.oauthbearer.jwks.endpoint.url and "
        "sasl.oauthbearer.token.endpoint.url may have, as Kafka's system property "
        "org.apache.kafka.sasl.oauthbearer.allowed.urls."),
    Key("moldau.ssl.store.directories", LIST, (), list_of(), MEDIUM, STATIC,
        "Our own: where the files of key and trust stores lie that are set while the node runs; "
        "the directories of the stores that the node's own configuration names, when empty. Never "
        "in a log directory."),
    Key("moldau.transaction.coordinator.max.bytes", LONG, 536_870_912, within(1), LOW, STATIC,
        "Our own: how much memory transactional ids take at one broker, estimated. A principal "
        "has no more than is left for others; what they hold is never taken away."),
    Key("quota.window.num", INT, 11, within(1), LOW, STATIC,
        "Samples kept for client quotas."),
    Key("quota.window.size.seconds", INT, 1, within(1), LOW, STATIC,
        "The span of a sample for client quotas, and the longest pause for request_percentage."),
)

_BEHIND: Final = {key.name: key for key in (*_LOG, *_REPLICATION, *_GROUP)}


def _override(name: str, broker_name: str, meaning: str | None = None, **own: Any) -> ConfigKey:
    """A topic's or a group's key: what the broker's key behind it says, but for `own`."""
    key = _BEHIND[broker_name]
    return key._replace(
        name=name,
        importance=MEDIUM,
        scope=TOPIC,
        documentation=key.documentation if meaning is None else meaning,
        synonyms=(broker_name, *key.synonyms),
        **own,
    )


_TOPIC_OVERRIDES = (
    _override("cleanup.policy", "log.cleanup.policy",
        "What happens to old segments: delete removes them, compact keeps the newest record of "
        "each key; an empty list keeps them for ever."),
    _override("compression.gzip.level", "compression.gzip.level"),
    _override("compression.lz4.level", "compression.lz4.level"),
    _override("compression.type", "compression.type"),
    _override("compression.zstd.level", "compression.zstd.level"),
    _override("delete.retention.ms", "log.cleaner.delete.retention.ms",
        "How long a deletion marker outlives its key."),
    _override("file.delete.delay.ms", "log.segment.delete.delay.ms",
        "How long the files of a deleted segment remain under another name."),
    _override("flush.messages", "log.flush.interval.messages",
        "Records appended before the partition is forced to disk."),
    _override("flush.ms", "log.flush.interval.ms",
        "The longest an appended record may stay only in the page cache.",
        default=MAX_INT64, validator=within(0)),
    Key("follower.replication.throttled.replicas", LIST, (), THROTTLED_REPLICAS, MEDIUM, TOPIC,
        "Followers whose replication is throttled, as PARTITION:BROKER pairs or *."),
    _override("index.interval.bytes", "log.index.interval.bytes"),
    Key("leader.replication.throttled.replicas", LIST, (), THROTTLED_REPLICAS, MEDIUM, TOPIC,
        "Replicas whose leader throttles, as PARTITION:BROKER pairs or *."),
    _override("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    _override("max.message.bytes", "message.max.bytes"),
    _override("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"),
    _override("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms"),
    _override("message.timestamp.type", "log.message.timestamp.type"),
    _override("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio"),
    _override("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
    _override("min.insync.replicas", "min.insync.replicas"),
    _override("preallocate", "log.preallocate"),
    _override("retention.bytes", "log.retention.bytes",
        "The size above which the oldest segments are deleted; -1 for no limit."),
    _override("retention.ms", "log.retention.ms", default=604_800_000, validator=within(-1)),
    _override("segment.bytes", "log.segment.bytes"),
    _override("segment.index.bytes", "log.index.size.max.bytes"),
    _override("segment.jitter.ms", "log.roll.jitter.ms",
        "The most by which rolling is randomly brought forward.",
        default=0, validator=within(0)),
    _override("segment.ms", "log.roll.ms", default=604_800_000, validator=within(1)),
    _override("unclean.leader.election.enable", "unclean.leader.election.enable"),
)

_GROUP_OVERRIDES = (
    _override("consumer.assignment.interval.ms", "group.consumer.assignment.interval.ms",
        "The shortest time between two assignments of the group."),
    _override("consumer.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms",
        "How often members of the group report."),
    _override("consumer.session.timeout.ms", "group.consumer.session.timeout.ms",
        "A member of the group silent for this long is removed."),
)
# fmt: on

TOPIC_AREA: Final = "topic override"
GROUP_AREA: Final = "group override"

NODE_AREAS: Final[Mapping[str, str]] = {
    "network": "listeners, sockets, connections and request handling",
    "log": "the log: segments, flushing, retention, cleaning, compression",
    "replication": "replication, leadership and replication quotas",
    "quorum": "the node itself, the controller quorum and the metadata log",
    "group": "consumer groups, streams groups and committed offsets",
    "share": "share groups and the share coordinator",
    "transaction": "transactions and producer ids",
    "security": "authorisation, principals, delegation tokens and server-side plug-in classes",
    "sasl": "SASL",
    "tls": "TLS",
    "remote": "tiered storage",
    "metrics": "metrics, client quotas' windows and this project's own keys",
}
"""The areas of a node's keys in their order, and what each of them is about."""

SERVED_KEYS: Final[Mapping[str, tuple[ConfigKey, ...]]] = {
    "network": _NETWORK,
    "log": _LOG,
    "replication": _REPLICATION,
    "quorum": _QUORUM,
    "group": _GROUP,
    "transaction": _TRANSACTION,
    "security": _SECURITY,
    "sasl": _SASL,
    "tls": _TLS,
    "metrics": _METRICS,
    TOPIC_AREA: _TOPIC_OVERRIDES,
    GROUP_AREA: _GROUP_OVERRIDES,
}
