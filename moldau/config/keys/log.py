"""Keys of the log: segments, flushing, retention, cleaning, compression.

Owns: their declaration, nothing else. Names, types, defaults, limits and update modes are those of
Apache Kafka 4.3; the sentences are ours.
Invariant: sorted by name; one entry per key.
"""

from __future__ import annotations

from moldau.config.definition import ConfigKey
from moldau.config.keys.words import (
    BOOLEAN,
    BROKER,
    CLUSTER,
    DOUBLE,
    HIGH,
    IGNORED,
    INT,
    LIST,
    LONG,
    LOW,
    MAX_DOUBLE,
    MAX_LONG,
    MEDIUM,
    REFUSED,
    SERVED,
    STATIC,
    STRING,
)
from moldau.config.validators import ListOf, OneOf, Range

# fmt: off
KEYS = (
    ConfigKey(
        "auto.create.topics.enable",
        BOOLEAN, True, None,
        HIGH, STATIC, SERVED,
        "Whether asking for the metadata of a missing topic creates it, if the client agrees.",
    ),
    ConfigKey(
        "background.threads",
        INT, 10, Range(1),
        HIGH, CLUSTER, IGNORED,
        "Threads for housekeeping.",
        note="work is done on event loops, not in such a pool",
    ),
    ConfigKey(
        "compression.gzip.level",
        INT, -1, Range(1, 9, -1),
        MEDIUM, CLUSTER, SERVED,
        "The level when gzip is what the broker recompresses to; -1 is gzip's own default.",
    ),
    ConfigKey(
        "compression.lz4.level",
        INT, 9, Range(1, 17),
        MEDIUM, CLUSTER, SERVED,
        "The level when lz4 is what the broker recompresses to.",
    ),
    ConfigKey(
        "compression.type",
        STRING, "producer", OneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        HIGH, CLUSTER, SERVED,
        "The codec batches are stored with; producer keeps whatever the client chose.",
    ),
    ConfigKey(
        "compression.zstd.level",
        INT, 3, Range(-131_072, 22),
        MEDIUM, CLUSTER, SERVED,
        "The level when zstd is what the broker recompresses to.",
    ),
    ConfigKey(
        "cordoned.log.dirs",
        LIST, (), ListOf(),
        MEDIUM, BROKER, REFUSED,
        "Log directories that get no new partitions.",
        note="directories cannot be cordoned yet",
    ),
    ConfigKey(
        "delete.records.purgatory.purge.interval.requests",
        INT, 1, None,
        MEDIUM, STATIC, IGNORED,
        "Completed deletions of records to let pile up before waiting lists are swept.",
        note="what has completed is dropped at once",
    ),
    ConfigKey(
        "delete.topic.enable",
        BOOLEAN, True, None,
        HIGH, STATIC, SERVED,
        "Whether topics may be deleted at all.",
    ),
    ConfigKey(
        "log.cleaner.backoff.ms",
        LONG, 15_000, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "The pause of an idle cleaner.",
    ),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        LONG, 134_217_728, None,
        MEDIUM, CLUSTER, SERVED,
        "Memory for the cleaner's key tables.",
    ),
    ConfigKey(
        "log.cleaner.delete.retention.ms",
        LONG, 86_400_000, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "How long a deletion marker outlives its key in compacted topics.",
    ),
    ConfigKey(
        "log.cleaner.enable",
        BOOLEAN, True, None,
        MEDIUM, STATIC, SERVED,
        "Whether compacted topics are cleaned.",
    ),
    ConfigKey(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE, 0.9, None,
        MEDIUM, CLUSTER, SERVED,
        "How full the cleaner's key table may get.",
    ),
    ConfigKey(
        "log.cleaner.io.buffer.size",
        INT, 524_288, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "Memory for the cleaner's reads and writes.",
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE, MAX_DOUBLE, None,
        MEDIUM, CLUSTER, SERVED,
        "The cleaner's disk budget.",
    ),
    ConfigKey(
        "log.cleaner.max.compaction.lag.ms",
        LONG, MAX_LONG, Range(1),
        MEDIUM, CLUSTER, SERVED,
        "The longest a record may stay uncompacted.",
    ),
    ConfigKey(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE, 0.5, Range(0, 1),
        MEDIUM, CLUSTER, SERVED,
        "The share of uncompacted bytes that makes a log worth cleaning.",
    ),
    ConfigKey(
        "log.cleaner.min.compaction.lag.ms",
        LONG, 0, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "The shortest a record stays uncompacted.",
    ),
    ConfigKey(
        "log.cleaner.threads",
        INT, 1, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "Cleaners that work in parallel.",
    ),
    ConfigKey(
        "log.cleanup.policy",
        LIST, ("delete",), ListOf("compact", "delete"),
        MEDIUM, CLUSTER, SERVED,
        "What happens to old segments of topics that do not say: delete removes them, compact "
        "keeps the newest record of each key.",
    ),
    ConfigKey(
        "log.dir",
        LIST, ("/tmp/kafka-logs",), ListOf(may_be_empty=False),
        HIGH, STATIC, SERVED,
        "One directory for partitions; log.dirs comes first.",
    ),
    ConfigKey(
        "log.dir.failure.timeout.ms",
        LONG, 30_000, Range(1),
        LOW, STATIC, IGNORED,
        "How long the controller may stay unaware of a failed directory before the broker stops.",
        note="a failed directory is reported at once",
    ),
    ConfigKey(
        "log.dirs",
        LIST, None, ListOf(may_be_empty=False),
        HIGH, STATIC, SERVED,
        "The directories partitions are spread over.",
    ),
    ConfigKey(
        "log.flush.interval.messages",
        LONG, MAX_LONG, Range(1),
        HIGH, CLUSTER, SERVED,
        "Records appended to a partition before it is forced to disk.",
    ),
    ConfigKey(
        "log.flush.interval.ms",
        LONG, None, None,
        HIGH, CLUSTER, SERVED,
        (
            "The longest an appended record may stay only in the page cache; the scheduler's "
            "interval when not set."
        ),
        synonyms=("log.flush.scheduler.interval.ms",),
    ),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms",
        INT, 60_000, Range(0),
        HIGH, STATIC, SERVED,
        "How often recovery points are written down.",
    ),
    ConfigKey(
        "log.flush.scheduler.interval.ms",
        LONG, MAX_LONG, None,
        HIGH, STATIC, SERVED,
        "How often logs are looked at for a flush that is due.",
    ),
    ConfigKey(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT, 60_000, Range(0),
        HIGH, STATIC, SERVED,
        "How often log start offsets are written down.",
    ),
    ConfigKey(
        "log.index.interval.bytes",
        INT, 4096, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "Bytes of records between two index entries.",
    ),
    ConfigKey(
        "log.index.size.max.bytes",
        INT, 10_485_760, Range(4),
        MEDIUM, CLUSTER, SERVED,
        "The space each index file gets; a full one rolls the segment.",
    ),
    ConfigKey(
        "log.initial.task.delay.ms",
        LONG, 30_000, Range(0),
        LOW, STATIC, SERVED,
        "How long after start-up the housekeeping of logs begins.",
        internal=True,
    ),
    ConfigKey(
        "log.message.timestamp.after.max.ms",
        LONG, 3_600_000, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "How far in the future a producer's timestamp may lie.",
    ),
    ConfigKey(
        "log.message.timestamp.before.max.ms",
        LONG, MAX_LONG, Range(0),
        MEDIUM, CLUSTER, SERVED,
        "How far in the past a producer's timestamp may lie.",
    ),
    ConfigKey(
        "log.message.timestamp.type",
        STRING, "CreateTime", OneOf("CreateTime", "LogAppendTime"),
        MEDIUM, CLUSTER, SERVED,
        "Whether records keep the producer's time or get that of the append.",
    ),
    ConfigKey(
        "log.preallocate",
        BOOLEAN, False, None,
        MEDIUM, CLUSTER, SERVED,
        "Whether a new segment reserves its space on disk at once.",
    ),
    ConfigKey(
        "log.retention.bytes",
        LONG, -1, None,
        HIGH, CLUSTER, SERVED,
        "The size above which a partition's oldest segments are deleted; -1 for no limit.",
    ),
    ConfigKey(
        "log.retention.check.interval.ms",
        LONG, 300_000, Range(1),
        MEDIUM, STATIC, SERVED,
        "How often logs are looked at for segments to delete.",
    ),
    ConfigKey(
        "log.retention.hours",
        INT, 168, None,
        HIGH, STATIC, SERVED,
        "How long segments are kept, in hours; the finer units come first.",
    ),
    ConfigKey(
        "log.retention.minutes",
        INT, None, None,
        HIGH, STATIC, SERVED,
        "How long segments are kept, in minutes; milliseconds come first.",
        synonyms=("log.retention.hours",),
    ),
    ConfigKey(
        "log.retention.ms",
        LONG, None, None,
        HIGH, CLUSTER, SERVED,
        "How long segments are kept after their latest record; -1 for ever.",
        synonyms=("log.retention.minutes", "log.retention.hours"),
    ),
    ConfigKey(
        "log.roll.hours",
        INT, 168, Range(1),
        HIGH, STATIC, SERVED,
        "The age at which the active segment is closed, in hours; milliseconds come first.",
    ),
    ConfigKey(
        "log.roll.jitter.hours",
        INT, 0, Range(0),
        HIGH, STATIC, SERVED,
        "The most by which rolling is randomly brought forward, in hours; milliseconds come first.",
    ),
    ConfigKey(
        "log.roll.jitter.ms",
        LONG, None, None,
        HIGH, CLUSTER, SERVED,
        (
            "The most by which rolling is randomly brought forward, so that partitions do not roll "
            "together."
        ),
        synonyms=("log.roll.jitter.hours",),
    ),
    ConfigKey(
        "log.roll.ms",
        LONG, None, None,
        HIGH, CLUSTER, SERVED,
        "The age at which the active segment is closed and a new one begun.",
        synonyms=("log.roll.hours",),
    ),
    ConfigKey(
        "log.segment.bytes",
        INT, 1_073_741_824, Range(1_048_576),
        HIGH, CLUSTER, SERVED,
        "The size at which the active segment is closed and a new one begun.",
    ),
    ConfigKey(
        "log.segment.delete.delay.ms",
        LONG, 60_000, Range(0),
        HIGH, CLUSTER, SERVED,
        "How long the files of a deleted segment or partition remain under another name.",
    ),
    ConfigKey(
        "max.request.partition.size.limit",
        INT, 2000, Range(1),
        MEDIUM, STATIC, SERVED,
        "Partitions that one DescribeTopicPartitions answer covers at most.",
    ),
    ConfigKey(
        "message.max.bytes",
        INT, 1_048_588, Range(0),
        HIGH, CLUSTER, SERVED,
        "The largest record batch accepted, as it arrives.",
    ),
    ConfigKey(
        "num.partitions",
        INT, 1, Range(1),
        MEDIUM, STATIC, SERVED,
        "Partitions of a topic whose creator does not say.",
    ),
    ConfigKey(
        "num.recovery.threads.per.data.dir",
        INT, 2, Range(1),
        HIGH, CLUSTER, SERVED,
        (
            "Logs per directory that are recovered in parallel at start-up and flushed in parallel "
            "at shutdown."
        ),
    ),
)
# fmt: on
