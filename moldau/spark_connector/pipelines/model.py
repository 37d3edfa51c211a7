"""What a pipeline is: the jobs that ship, and the values that a YAML file is read into.

Owns the dataclasses that jobs work with, and the table of the jobs: what each is for, and which
parts of a file it takes. Must not import Spark or YAML, nor connect to anything: `moldau pipeline
list` needs no more than this. Invariant: every job here has a start function in `jobs`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from moldau.spark_connector.sink.options import DEFAULT_LEDGER_TOPIC

AVAILABLE_NOW: Final = "available-now"
DEFAULT_EVERY_MS: Final = 1_000
DEFAULT_RECORDS_PER_CHUNK: Final = 100_000

Semantics = Literal["exactly-once", "at-least-once"]


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Topics to read, and what their bytes mean.

    `options` are the connector's own, with the names of Spark's Kafka source; everything that the
    file says in shorter words is in there too. `key_format` is string or binary, `value_format`
    string, binary or json; `schema` (Spark's DDL) says what the JSON holds, `malformed` (fail,
    drop, null) what becomes of a value that does not fit.
    """

    options: Mapping[str, str]
    key_format: str = "string"
    value_format: str = "string"
    schema: str | None = None
    malformed: str = "fail"

    @property
    def bootstrap_servers(self) -> str:
        return self.options["kafka.bootstrap.servers"]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named; none where a pattern says what is read."""
        named = self.options.get("subscribe")
        return () if named is None else tuple(named.split(","))

    def reads(self, topic: str) -> bool:
        pattern = self.options.get("subscribePattern")
        if pattern is None:
            return topic in self.topics
        try:
            return re.fullmatch(pattern, topic) is not None
        except re.error:
            return False  # the check of the options reports it


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """A Parquet archive to be replayed. `topics` empty: all; times in ms of the epoch."""

    path: str
    topics: tuple[str, ...] = ()
    from_ms: int | None = None
    until_ms: int | None = None
    records_per_chunk: int = DEFAULT_RECORDS_PER_CHUNK


@dataclass(frozen=True, slots=True)
class TopicSink:
    """A topic to write. `topic` may hold `{topic}`, where the job takes it from the record.

    `sink_id` names this writer for the exactly-once protocol: a query that starts with the same id
    takes over from the one that has it. `key` and `value` are SQL expressions; `value` may be
    `json`: all columns as one object. `partition_count` is how many partitions the topic has: it is
    made when it is missing, and refused when it has another number.
    """

    options: Mapping[str, str]
    topic: str
    sink_id: str
    semantics: Semantics = "exactly-once"
    key: str | None = None
    value: str | None = None
    partition_count: int | None = None
    replication_factor: int = -1
    topic_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def bootstrap_servers(self) -> str:
        return self.options["kafka.bootstrap.servers"]

    @property
    def ledger_topic(self) -> str:
        """Where the connector keeps its decisions, in the cluster that is written to."""
        given = (value for name, value in self.options.items() if name.lower() == "ledgertopic")
        return next(given, DEFAULT_LEDGER_TOPIC)

    def target_of(self, topic: str) -> str:
        return self.topic.replace("{topic}", topic)


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """A directory of Parquet files, written exactly once for readers that go through Spark."""

    path: str
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"


@dataclass(frozen=True, slots=True)
class Table:
    """A static table that the SQL may join."""

    format: str
    path: str
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transform:
    """What happens to the rows: either SQL on the view `source`, or a function MODULE:NAME."""

    sql: str | None = None
    python: str | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Groups of rows by windows of time. `window`, `slide`, `watermark` are Spark's durations.

    `by` and `measures` are SQL expressions by the names of their columns. A window comes out once,
    when the watermark has passed it.
    """

    time: str
    window: str
    watermark: str
    measures: Mapping[str, str]
    slide: str | None = None
    by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline. `every_ms` None: take what exists and end. `directory`: the file's own."""

    name: str
    job: str
    source: TopicSource | ArchiveSource
    sink: TopicSink | ParquetSink
    checkpoint: str
    every_ms: int | None
    transform: Transform | None = None
    aggregate: Aggregate | None = None
    directory: str = "."


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """All pipelines of a file, which run together in one Spark application, and its settings."""

    name: str
    pipelines: tuple[Pipeline, ...]
    spark: Mapping[str, str]


def is_remote(path: str) -> bool:
    """Whether a path names its file system, as s3a://bucket/path does."""
    return "://" in path


def resolved(path: str, directory: str) -> str:
    """A path as Spark's drivers and workers find it: relative ones are meant from the file."""
    if not path or is_remote(path):
        return path
    return os.path.normpath(os.path.join(directory, os.path.expanduser(path)))


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job.

    `keeps_records`: keys and values go on byte for byte. `keeps_order`: records of one partition
    must stay with one task. `keeps_topic`: the topic's name may be the record's own.
    """

    job: str
    summary: str
    reads_archive: bool = False
    writes: Literal["topic", "parquet", "either"] = "topic"
    transforms: bool = False
    keeps_records: bool = False
    keeps_order: bool = False
    keeps_topic: bool = False
    one_topic: bool = False


JOBS: Final[dict[str, JobKind]] = {
    each.job: each
    for each in (
        JobKind(
            "archive",
            "topics into Parquet files: whole records, or what a transform makes of them",
            writes="parquet",
            transforms=True,
        ),
        JobKind(
            "replay",
            "an archive back into topics, in the order of each partition",
            reads_archive=True,
            keeps_records=True,
            keeps_order=True,
            keeps_topic=True,
        ),
        JobKind(
            "transform",
            "topics into a topic (or Parquet), through SQL or a Python function",
            writes="either",
            transforms=True,
        ),
        JobKind(
            "aggregate",
            "windows of event time, by keys, into a topic (or Parquet)",
            writes="either",
            transforms=True,
        ),
        JobKind(
            "mirror",
            "topics into another cluster: records, partitions and timestamps as they are",
            keeps_records=True,
            keeps_order=True,
            keeps_topic=True,
        ),
        JobKind(
            "repartition",
            "a topic into one with fewer (or more) partitions, in the order of each key",
            keeps_records=True,
            keeps_order=True,
            one_topic=True,
        ),
    )
}
