"""Keys of replication, leadership and replication quotas.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys.words import (
    BOOLEAN,
    CLUSTER,
    HIGH,
    IGNORED,
    INT,
    LONG,
    LOW,
    MAX_LONG,
    MEDIUM,
    SERVED,
    STATIC,
    STRING,
)
from moldau.config.validators import Range

# fmt: off
KEYS = (
    ConfigKey(
        "alter.log.dirs.replication.quota.window.num",
        INT, 11, Range(1),
        LOW, STATIC, IGNORED,
        "Samples kept for the limit on moves between directories.",
        note="partitions cannot move between directories yet",
    ),
    ConfigKey(
        "alter.log.dirs.replication.quota.window.size.seconds",
        INT, 1, Range(1),
        LOW, STATIC, IGNORED,
        "The span of a sample for the limit on moves between directories.",
        note="partitions cannot move between directories yet",
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        BOOLEAN, True, None,
        HIGH, STATIC, SERVED,
        "Whether leadership returns to preferred replicas by itself.",
    ),
    ConfigKey(
        "broker.rack",
        STRING, None, None,
        MEDIUM, STATIC, SERVED,
        "The failure zone of this broker; replicas are spread over zones.",
    ),
    ConfigKey(
        "controlled.shutdown.enable",
        BOOLEAN, True, None,
        MEDIUM, STATIC, SERVED,
        "Whether a stopping broker hands its leaderships over first.",
    ),
    ConfigKey(
        "default.replication.factor",
        INT, 1, None,
        MEDIUM, STATIC, SERVED,
        "Replicas of a topic whose creator does not say.",
    ),
    ConfigKey(
        "follower.replication.throttled.rate",
        LONG, MAX_LONG, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "Bytes per second for throttled replicas that follow.",
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        LONG, 300, Range(1),
        HIGH, STATIC, SERVED,
        "How often leadership is compared with the preferred replicas.",
    ),
    ConfigKey(
        "leader.replication.throttled.rate",
        LONG, MAX_LONG, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "Bytes per second that leaders send to throttled replicas.",
    ),
    ConfigKey(
        "min.insync.replicas",
        INT, 1, Range(1),
        HIGH, CLUSTER, SERVED,
        "In-sync replicas a write with acks=all needs.",
    ),
    ConfigKey(
        "num.replica.alter.log.dirs.threads",
        INT, None, None,
        HIGH, STATIC, IGNORED,
        "Threads that move partitions between directories.",
        note="partitions cannot move between directories yet",
    ),
    ConfigKey(
        "num.replica.fetchers",
        INT, 1, Range(1),
        HIGH, CLUSTER, SERVED,
        "Connections per leader to replicate over.",
    ),
    ConfigKey(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG, MAX_LONG, Range(0),
        MEDIUM, CLUSTER, IGNORED,
        "Bytes per second for moves between directories.",
        note="partitions cannot move between directories yet",
    ),
    ConfigKey(
        "replica.fetch.backoff.ms",
        INT, 1000, Range(0),
        MEDIUM, STATIC, SERVED,
        "A follower's pause after a failed fetch.",
    ),
    ConfigKey(
        "replica.fetch.max.bytes",
        INT, 1_048_576, Range(0),
        MEDIUM, STATIC, SERVED,
        "Bytes per partition in a follower's fetch.",
    ),
    ConfigKey(
        "replica.fetch.min.bytes",
        INT, 1, None,
        HIGH, STATIC, SERVED,
        "Bytes a leader gathers before it answers a follower.",
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        INT, 10_485_760, Range(0),
        MEDIUM, STATIC, SERVED,
        "Bytes in a whole answer to a follower.",
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms",
        INT, 500, None,
        HIGH, STATIC, SERVED,
        "How long a leader may hold a follower's fetch; keep it below the lag limit.",
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG, 5000, None,
        HIGH, STATIC, SERVED,
        "How often high watermarks are written down.",
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        LONG, 30_000, None,
        HIGH, STATIC, SERVED,
        "A follower behind for this long leaves the in-sync replicas.",
    ),
    ConfigKey(
        "replica.selector.class",
        STRING, None, None,
        MEDIUM, STATIC, SERVED,
        (
            "Who chooses the replica a consumer reads from: nobody, it is the leader, or "
            "org.apache.kafka.common.replica.RackAwareReplicaSelector (no other class is served)."
        ),
    ),
    ConfigKey(
        "replica.socket.receive.buffer.bytes",
        INT, 65_536, None,
        HIGH, STATIC, IGNORED,
        "The receive buffer of replication connections.",
        note="the operating system chooses it, and tunes it as it goes",
    ),
    ConfigKey(
        "replica.socket.timeout.ms",
        INT, 30_000, None,
        HIGH, STATIC, SERVED,
        "How long a follower waits on a connection to its leader.",
    ),
    ConfigKey(
        "replication.quota.window.num",
        INT, 11, Range(1),
        LOW, STATIC, SERVED,
        "Samples kept for replication limits.",
    ),
    ConfigKey(
        "replication.quota.window.size.seconds",
        INT, 1, Range(1),
        LOW, STATIC, SERVED,
        "The span of a sample for replication limits.",
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        BOOLEAN, False, None,
        HIGH, CLUSTER, SERVED,
        (
            "Whether a replica outside the in-sync set may lead when no other can, at the price of "
            "lost records."
        ),
    ),
    ConfigKey(
        "unclean.leader.election.interval.ms",
        LONG, 300_000, Range(1),
        MEDIUM, STATIC, SERVED,
        "How often partitions without a leader are tried for an unclean election.",
        internal=True,
    ),
)
# fmt: on
