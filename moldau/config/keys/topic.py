"""Keys of topic configuration.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys.words import (
    BOOLEAN,
    DOUBLE,
    IGNORED,
    INT,
    LIST,
    LONG,
    MAX_LONG,
    MEDIUM,
    REFUSED,
    SERVED,
    STRING,
    TOPIC,
)
from moldau.config.validators import ListOf, OneOf, Range, ThrottledReplicas

# fmt: off
KEYS = (
    ConfigKey(
        "cleanup.policy",
        LIST, ("delete",), ListOf("compact", "delete"),
        MEDIUM, TOPIC, SERVED,
        "What happens to old segments: delete removes them, compact keeps the newest record of "
        "each key; an empty list keeps them for ever.",
        synonyms=("log.cleanup.policy",),
    ),
    ConfigKey(
        "compression.gzip.level",
        INT, -1, Range(1, 9, -1),
        MEDIUM, TOPIC, SERVED,
        "The level when gzip is what the broker recompresses to; -1 is gzip's own default.",
        synonyms=("compression.gzip.level",),
    ),
    ConfigKey(
        "compression.lz4.level",
        INT, 9, Range(1, 17),
        MEDIUM, TOPIC, SERVED,
        "The level when lz4 is what the broker recompresses to.",
        synonyms=("compression.lz4.level",),
    ),
    ConfigKey(
        "compression.type",
        STRING, "producer", OneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        MEDIUM, TOPIC, SERVED,
        "The codec batches are stored with; producer keeps whatever the client chose.",
        synonyms=("compression.type",),
    ),
    ConfigKey(
        "compression.zstd.level",
        INT, 3, Range(-131_072, 22),
        MEDIUM, TOPIC, SERVED,
        "The level when zstd is what the broker recompresses to.",
        synonyms=("compression.zstd.level",),
    ),
    ConfigKey(
        "delete.retention.ms",
        LONG, 86_400_000, Range(0),
        MEDIUM, TOPIC, SERVED,
        "How long a deletion marker outlives its key.",
        synonyms=("log.cleaner.delete.retention.ms",),
    ),
    ConfigKey(
        "file.delete.delay.ms",
        LONG, 60_000, Range(0),
        MEDIUM, TOPIC, SERVED,
        "How long the files of a deleted segment remain under another name.",
        synonyms=("log.segment.delete.delay.ms",),
    ),
    ConfigKey(
        "flush.messages",
        LONG, MAX_LONG, Range(1),
        MEDIUM, TOPIC, SERVED,
        "Records appended before the partition is forced to disk.",
        synonyms=("log.flush.interval.messages",),
    ),
    ConfigKey(
        "flush.ms",
        LONG, MAX_LONG, Range(0),
        MEDIUM, TOPIC, SERVED,
        "The longest an appended record may stay only in the page cache.",
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    ConfigKey(
        "follower.replication.throttled.replicas",
        LIST, (), ThrottledReplicas(),
        MEDIUM, TOPIC, SERVED,
        "Followers whose replication is throttled, as PARTITION:BROKER pairs or *.",
    ),
    ConfigKey(
        "index.interval.bytes",
        INT, 4096, Range(0),
        MEDIUM, TOPIC, SERVED,
        "Bytes of records between two index entries.",
        synonyms=("log.index.interval.bytes",),
    ),
    ConfigKey(
        "internal.segment.bytes",
        INT, None, None,
        MEDIUM, TOPIC, IGNORED,
        "A segment size below the usual minimum, for tests; it overrides segment.bytes.",
        note="segment.bytes alone decides",
        internal=True,
    ),
    ConfigKey(
        "leader.replication.throttled.replicas",
        LIST, (), ThrottledReplicas(),
        MEDIUM, TOPIC, SERVED,
        "Replicas whose leader throttles, as PARTITION:BROKER pairs or *.",
    ),
    ConfigKey(
        "local.retention.bytes",
        LONG, -2, Range(-2),
        MEDIUM, TOPIC, IGNORED,
        "Bytes kept locally once tiered; -2 means as retention.bytes.",
        note="tiered storage is not served",
        synonyms=("log.local.retention.bytes",),
    ),
    ConfigKey(
        "local.retention.ms",
        LONG, -2, Range(-2),
        MEDIUM, TOPIC, IGNORED,
        "How long tiered segments are also kept locally; -2 means as retention.ms.",
        note="tiered storage is not served",
        synonyms=("log.local.retention.ms",),
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        LONG, MAX_LONG, Range(1),
        MEDIUM, TOPIC, SERVED,
        "The longest a record may stay uncompacted.",
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    ),
    ConfigKey(
        "max.message.bytes",
        INT, 1_048_588, Range(0),
        MEDIUM, TOPIC, SERVED,
        "The largest record batch accepted, as it arrives.",
        synonyms=("message.max.bytes",),
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        LONG, 3_600_000, Range(0),
        MEDIUM, TOPIC, SERVED,
        "How far in the future a producer's timestamp may lie.",
        synonyms=("log.message.timestamp.after.max.ms",),
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        LONG, MAX_LONG, Range(0),
        MEDIUM, TOPIC, SERVED,
        "How far in the past a producer's timestamp may lie.",
        synonyms=("log.message.timestamp.before.max.ms",),
    ),
    ConfigKey(
        "message.timestamp.type",
        STRING, "CreateTime", OneOf("CreateTime", "LogAppendTime"),
        MEDIUM, TOPIC, SERVED,
        "Whether records keep the producer's time or get that of the append.",
        synonyms=("log.message.timestamp.type",),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        DOUBLE, 0.5, Range(0, 1),
        MEDIUM, TOPIC, SERVED,
        "The share of uncompacted bytes that makes a log worth cleaning.",
        synonyms=("log.cleaner.min.cleanable.ratio",),
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        LONG, 0, Range(0),
        MEDIUM, TOPIC, SERVED,
        "The shortest a record stays uncompacted.",
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    ),
    ConfigKey(
        "min.insync.replicas",
        INT, 1, Range(1),
        MEDIUM, TOPIC, SERVED,
        "In-sync replicas a write with acks=all needs.",
        synonyms=("min.insync.replicas",),
    ),
    ConfigKey(
        "preallocate",
        BOOLEAN, False, None,
        MEDIUM, TOPIC, SERVED,
        "Whether a new segment reserves its space on disk at once.",
        synonyms=("log.preallocate",),
    ),
    ConfigKey(
        "remote.log.copy.disable",
        BOOLEAN, False, None,
        MEDIUM, TOPIC, REFUSED,
        "Whether tiering stops, with what is tiered kept readable.",
        note="tiered storage is not served",
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        BOOLEAN, False, None,
        MEDIUM, TOPIC, REFUSED,
        "Whether tiered data is deleted when tiering is switched off.",
        note="tiered storage is not served",
    ),
    ConfigKey(
        "remote.storage.enable",
        BOOLEAN, False, None,
        MEDIUM, TOPIC, REFUSED,
        "Whether old segments may move to a remote tier.",
        note="tiered storage is not served",
    ),
    ConfigKey(
        "retention.bytes",
        LONG, -1, None,
        MEDIUM, TOPIC, SERVED,
        "The size above which the oldest segments are deleted; -1 for no limit.",
        synonyms=("log.retention.bytes",),
    ),
    ConfigKey(
        "retention.ms",
        LONG, 604_800_000, Range(-1),
        MEDIUM, TOPIC, SERVED,
        "How long segments are kept after their latest record; -1 for ever.",
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    ConfigKey(
        "segment.bytes",
        INT, 1_073_741_824, Range(1_048_576),
        MEDIUM, TOPIC, SERVED,
        "The size at which the active segment is closed and a new one begun.",
        synonyms=("log.segment.bytes",),
    ),
    ConfigKey(
        "segment.index.bytes",
        INT, 10_485_760, Range(4),
        MEDIUM, TOPIC, SERVED,
        "The space each index file gets; a full one rolls the segment.",
        synonyms=("log.index.size.max.bytes",),
    ),
    ConfigKey(
        "segment.jitter.ms",
        LONG, 0, Range(0),
        MEDIUM, TOPIC, SERVED,
        "The most by which rolling is randomly brought forward.",
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    ConfigKey(
        "segment.ms",
        LONG, 604_800_000, Range(1),
        MEDIUM, TOPIC, SERVED,
        "The age at which the active segment is closed and a new one begun.",
        synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        BOOLEAN, False, None,
        MEDIUM, TOPIC, SERVED,
        (
            "Whether a replica outside the in-sync set may lead when no other can, at the price of "
            "lost records."
        ),
        synonyms=("unclean.leader.election.enable",),
    ),
)
# fmt: on
