"""What a pipeline is: the values a YAML file is read into, and the order in which it is read.

Owns the dataclasses that jobs work with, and the checks between sections. Must not import Spark nor
connect to anything: a file can be checked anywhere. Invariant: what `load_pipelines` returns is
complete and consistent; the only things it cannot know are the cluster's and the data's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from moldau.spark_connector.options.sink_options import DEFAULT_LEDGER_TOPIC
from moldau.spark_connector.pipelines.errors import PipelineFileError, Problem

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
        """`kafka.bootstrap.servers`."""
        return self.options["kafka.bootstrap.servers"]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named; none where a pattern says what is read."""
        named = self.options.get("subscribe")
        return () if named is None else tuple(named.split(","))

    def reads(self, topic: str) -> bool:
        """Whether a topic of this name is read, by its name or by the pattern."""
        pattern = self.options.get("subscribePattern")
        if pattern is None:
            return topic in self.topics
        try:
            return re.fullmatch(pattern, topic) is not None
        except re.error:
            return False  # which is told where the options are checked


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

    `sink_id` names this writer for the exactly-once protocol: who starts with the same one takes
    over from whoever has it. `key` and `value` are SQL expressions; `value` may be `json`: all
    columns as one object. `partition_count` is how many partitions the topic has: it is made when
    it is missing, and refused when it has another number.
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
        """`kafka.bootstrap.servers`."""
        return self.options["kafka.bootstrap.servers"]

    @property
    def ledger_topic(self) -> str:
        """Where the connector keeps its decisions, in the cluster that is written to."""
        given = (value for name, value in self.options.items() if name.lower() == "ledgertopic")
        return next(given, DEFAULT_LEDGER_TOPIC)

    def target_of(self, topic: str) -> str:
        """The topic that a record of `topic` goes to."""
        return self.topic.replace("{topic}", topic)


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """A directory of Parquet files, written exactly once for whoever reads it through Spark."""

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
    """One pipeline. `every_ms` None: take what is there and end. `directory`: the file's own."""

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


def load_pipelines(path: str | Path, variables: Mapping[str, str] | None = None) -> PipelineFile:
    """Read and check a file.

    Args:
        variables: what `${NAME}` stands for; the environment when None.

    Raises:
        PipelineFileError: with every problem that was found, each with line and key.
    """
    given = Path(path)
    try:
        text = given.read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineFileError([Problem(str(path), 1, "", error.strerror or str(error))]) from None
    except UnicodeDecodeError as error:
        text = f"byte {error.start} is not UTF-8 text"
        raise PipelineFileError([Problem(str(path), 1, "", text)]) from None
    return parse_pipelines(text, str(path), str(given.absolute().parent), variables)


def parse_pipelines(
    text: str,
    file_name: str,
    directory: str = ".",
    variables: Mapping[str, str] | None = None,
) -> PipelineFile:
    """Like `load_pipelines`, from text. Relative paths are meant from `directory`."""
    from moldau.spark_connector.pipelines.file_parts import parse_pipeline
    from moldau.spark_connector.pipelines.yaml_reader import Reading, read_documents

    reading = Reading(file_name, os.environ if variables is None else variables)
    pipelines: list[Pipeline] = []
    spark: dict[str, str] = {}
    lines: dict[str, int] = {}
    for section in read_documents(text, reading):
        settings = section.mapping("spark")
        for key, value in settings.items():
            if not key.startswith("spark."):
                section.complain("spark", f"{key} is no setting of Spark: they begin with spark.")
            elif spark.setdefault(key, value) != value:
                section.complain("spark", f"{key} has another value in an earlier pipeline")
        pipeline = parse_pipeline(section, directory)
        section.finish()
        if pipeline is None:
            continue
        if pipeline.name in lines:
            section.complain("name", f"is that of the pipeline on line {lines[pipeline.name]}")
        lines[pipeline.name] = section.line_of("name")
        pipelines.append(pipeline)
    _check_together(pipelines, lines, file_name, reading.problems)
    if not pipelines and not reading.problems:
        reading.note(1, "", "there is no pipeline in this file")
    reading.refuse_problems()
    return PipelineFile(file_name, tuple(pipelines), spark)


def _check_together(
    pipelines: list[Pipeline], lines: Mapping[str, int], file_name: str, problems: list[Problem]
) -> None:
    """Two pipelines of one file must not share what belongs to one alone."""
    owners: dict[tuple[str, str], str] = {}
    for pipeline in pipelines:
        claims = [("checkpoint", pipeline.checkpoint)]
        if isinstance(pipeline.sink, TopicSink):
            claims.append(("sink.id", pipeline.sink.sink_id))
        else:
            claims.append(("sink.path", pipeline.sink.path))
        for key, value in claims:
            owner = owners.setdefault((key, value), pipeline.name)
            if owner != pipeline.name and value:
                text = f"{value} is already that of {owner}: each pipeline needs its own"
                problems.append(Problem(file_name, lines[pipeline.name], key, text))


def is_remote(path: str) -> bool:
    """Whether a path names its file system, as s3a://bucket/path does."""
    return "://" in path


def resolved(path: str, directory: str) -> str:
    """A path as Spark's drivers and workers find it: relative ones are meant from the file."""
    if not path or is_remote(path):
        return path
    return os.path.normpath(os.path.join(directory, os.path.expanduser(path)))


__all__ = [
    "AVAILABLE_NOW",
    "DEFAULT_EVERY_MS",
    "Aggregate",
    "ArchiveSource",
    "ParquetSink",
    "Pipeline",
    "PipelineFile",
    "Semantics",
    "Table",
    "TopicSink",
    "TopicSource",
    "Transform",
    "load_pipelines",
    "parse_pipelines",
    "resolved",
]
