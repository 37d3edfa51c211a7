"""A pipeline's file: which keys there are, where, with which defaults; and the checks between them.

Owns the reading of each section, from YAML to the values of `model`, and of durations and times as
people write them. Must not import Spark nor connect to anything: a file can be checked anywhere.
Invariants: a key that the job has no use for is a problem, never ignored; what `load_pipelines`
returns is complete and consistent, and lacks only what the cluster and the data know; a duration
that is accepted here is one that Spark accepts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from moldau.spark_connector.errors import InvalidOption, PipelineFileError, Problem
from moldau.spark_connector.pipelines.model import (
    AVAILABLE_NOW,
    DEFAULT_EVERY_MS,
    DEFAULT_RECORDS_PER_CHUNK,
    JOBS,
    Aggregate,
    ArchiveSource,
    JobKind,
    ParquetSink,
    Pipeline,
    PipelineFile,
    Table,
    TopicSink,
    TopicSource,
    Transform,
    resolved,
)
from moldau.spark_connector.pipelines.yaml_reader import Reading, Section, read_documents

BOOTSTRAP: Final = "bootstrap.servers"
KAFKA_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
_TABLE_FORMATS: Final = ("parquet", "csv", "json", "orc")
#: Options that other keys of the file stand for, whether they are given or not.
_SAID_ELSEWHERE: Final = (
    *("assign", "subscribe", "subscribepattern", "includeheaders"),
    *("topic", "sinkid", "semantics", "txnid", "includetimestamp", "checkpointlocation"),
)
_AS_THEY_ARE: Final = "records are passed on as they are here: this is for pipelines that transform"
_WAY_IN: Final = ("kafka.security.", "kafka.ssl.", "kafka.sasl.")
#: What splits a partition among tasks: two tasks would write one key's records side by side.
_SPLITTING: Final = ("minpartitions", "maxrecordsperpartition")
_DURATION: Final = re.compile(r"\s*(\d{1,9})\s*([A-Za-z]+)\s*")
_MS_OF: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_SHORT: Final = {
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
DURATION_EXAMPLES: Final = "such as 500 ms, 10 seconds, 1 hour or 2 days"


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
    text: str, file_name: str, directory: str = ".", variables: Mapping[str, str] | None = None
) -> PipelineFile:
    """Reads what `load_pipelines` does, from text. Relative paths are meant from `directory`."""
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


def parse_pipeline(section: Section, directory: str) -> Pipeline | None:
    """One pipeline; None when not even its job is known (its other keys are then not judged)."""
    name = section.made("name", _name, "", required=True)
    job = section.choice("job", tuple(JOBS))
    kind = JOBS.get(job)
    if kind is None:
        section.leave("source", "sink", "transform", "aggregate", "checkpoint", "trigger")
        return None
    is_plain = kind.keeps_records or (job == "archive" and not section.has("transform"))
    source = _source(section, kind, directory, is_plain=is_plain)
    sink = _sink(section, kind, name, source, directory, is_plain=is_plain)
    transform = _transform(section, kind, directory)
    aggregate = _aggregate(section, kind)
    checkpoint = resolved(section.text("checkpoint"), directory)
    every_ms = _trigger(section, kind)
    if source is None or sink is None:
        return None
    return Pipeline(name, job, source, sink, checkpoint, every_ms, transform, aggregate, directory)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is no name: letters, digits, dots, - and _, at most 200 of them"
        )
    return text


# -- sources ------------------------------------------------------------------------------------


def _source(
    section: Section, kind: JobKind, directory: str, *, is_plain: bool
) -> TopicSource | ArchiveSource | None:
    found = section.section("source")
    if found is None:
        return None
    if kind.reads_archive:
        return _archive_source(found, directory)
    return _topic_source(found, kind, is_plain=is_plain)


def _archive_source(section: Section, directory: str) -> ArchiveSource:
    source = ArchiveSource(
        path=resolved(section.text("path"), directory),
        topics=section.words("topics"),
        from_ms=section.made("from", time_text_ms, None),
        until_ms=section.made("until", time_text_ms, None),
        records_per_chunk=section.whole_number("records.per.batch", DEFAULT_RECORDS_PER_CHUNK)
        or DEFAULT_RECORDS_PER_CHUNK,
    )
    from_ms, until_ms = source.from_ms, source.until_ms
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        section.complain("until", "is not after from: there would be nothing to replay")
    section.finish()
    return source


def _topic_source(section: Section, kind: JobKind, *, is_plain: bool) -> TopicSource:
    options = {KAFKA_BOOTSTRAP: section.text(BOOTSTRAP)}
    _subscription(section, options, kind)
    _starting(section, options)
    isolation = section.choice(
        "isolation", ("read_committed", "read_uncommitted"), "read_committed"
    )
    options["kafka.isolation.level"] = isolation
    limit = section.whole_number("records.per.batch", None)
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    if is_plain:
        options["includeHeaders"] = "true"
        source = TopicSource(options, "binary", "binary")
    else:
        source = _meaning(section, options)
        if section.choice("headers", ("true", "false"), "false") == "true":
            options["includeHeaders"] = "true"
    _extra_options(section, options)
    if kind.keeps_order:
        for name in options:
            if name.lower() in _SPLITTING:
                section.complain(
                    "options",
                    f"{name} would spread one partition over several tasks, and the job keeps "
                    "the order of its records",
                )
    _check_source_options(section, options)
    section.finish(
        dict.fromkeys(("key", "value", "schema", "malformed", "headers"), _AS_THEY_ARE)
        if is_plain
        else None
    )
    return source


def _subscription(section: Section, options: dict[str, str], kind: JobKind) -> None:
    names = ("topic",) if kind.one_topic else ("topic", "topics", "pattern")
    given = [name for name in names if section.has(name)]
    for name in names:
        section.words(name) if name == "topics" else section.optional_text(name)
    if len(given) != 1:
        wanted = "topic" if kind.one_topic else "one of topic, topics, pattern"
        have = f"; there are {', '.join(given)}" if given else ""
        section.complain(given[1] if given else "topic", f"{wanted} must say what is read{have}")
    elif given[0] == "pattern":
        options["subscribePattern"] = section.text("pattern")
    else:
        topics = section.words(given[0])
        options["subscribe"] = ",".join(topics)
        if any("," in topic for topic in topics):
            section.complain(given[0], "a topic's name has no comma: write a list under topics")


def _starting(section: Section, options: dict[str, str]) -> None:
    text = section.text("starting", "earliest")
    if text in ("earliest", "latest"):
        options["startingOffsets"] = text
        return
    try:
        options["startingTimestamp"] = str(time_text_ms(text))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    except ValueError:
        section.complain(
            "starting", f"{text!r} is neither earliest nor latest nor a time with its zone"
        )


def _meaning(section: Section, options: dict[str, str]) -> TopicSource:
    """The source, with formats of key and value, schema, and what becomes of malformed values."""
    key_format = section.choice("key", ("string", "binary"), "string")
    schema = section.optional_text("schema")
    default = "string" if schema is None else "json"
    value_format = section.choice("value", ("string", "json", "binary"), default)
    malformed = section.choice("malformed", ("fail", "drop", "null"), "fail")
    if value_format == "json" and schema is None:
        section.complain("schema", 'JSON needs a schema, such as "carrier STRING, delay INT"')
    elif value_format != "json" and schema is not None:
        section.complain("schema", f"is for value: json, and value is {value_format}")
    elif value_format != "json" and section.has("malformed"):
        section.complain("malformed", f"is for value: json, and value is {value_format}")
    return TopicSource(options, key_format, value_format, schema, malformed)


def _check_source_options(section: Section, options: dict[str, str]) -> None:
    from moldau.spark_connector.source.options import SourceOptions

    if not all(options.values()) or not {"subscribe", "subscribePattern"} & options.keys():
        return  # something is missing, which has been said
    try:
        SourceOptions.parse(options).check_stream()
    except InvalidOption as error:
        section.complain("options" if section.has("options") else "topic", str(error))


def _extra_options(section: Section, options: dict[str, str]) -> None:
    """`options`: the connector's own names, unless a key of the section says the same."""
    taken = {*_SAID_ELSEWHERE, *(name.lower() for name in options)}
    for name, value in section.mapping("options").items():
        if name.lower() in taken:
            section.complain(
                "options", f"{name} is the business of the pipeline's own keys: use those"
            )
        options[name] = value


# -- sinks --------------------------------------------------------------------------------------


def _sink(
    section: Section,
    kind: JobKind,
    name: str,
    source: TopicSource | ArchiveSource | None,
    directory: str,
    *,
    is_plain: bool,
) -> TopicSink | ParquetSink | None:
    found = section.section("sink")
    if found is None:
        return None
    if kind.writes == "parquet" or (kind.writes == "either" and found.has("path")):
        default = ("topic",) if is_plain else ()
        sink = ParquetSink(
            resolved(found.text("path"), directory),
            found.words("partition.by") or default,
            found.choice("compression", _COMPRESSIONS, "zstd"),
        )
        found.finish()
        return sink
    return _topic_sink(found, kind, name, source)


def _topic_sink(
    section: Section, kind: JobKind, name: str, source: TopicSource | ArchiveSource | None
) -> TopicSink:
    same = source.options.get(KAFKA_BOOTSTRAP) if isinstance(source, TopicSource) else None
    servers = section.text(BOOTSTRAP, None if kind.job == "mirror" else same)
    options = {KAFKA_BOOTSTRAP: servers}
    topic = section.text("topic", "{topic}" if kind.keeps_topic else None)
    if "{topic}" in topic and not kind.keeps_topic:
        section.complain("topic", f"{topic!r}: {{topic}} is for the jobs mirror and replay")
    semantics = section.choice("semantics", ("exactly-once", "at-least-once"), "exactly-once")
    sink_id = section.made("id", _name, name)
    key = value = None
    if not kind.keeps_records:
        key, value = section.optional_text("key"), section.optional_text("value")
    required = kind.job == "repartition"
    if required and not section.has("partitions"):
        section.text("partitions")
    count = section.whole_number("partitions", None, highest=1_000_000)
    sink = TopicSink(
        options,
        topic,
        sink_id,
        "at-least-once" if semantics == "at-least-once" else "exactly-once",
        key,
        value,
        count,
        section.whole_number("replication.factor", -1, highest=32_767) or -1,
        section.mapping("config"),
    )
    _extra_options(section, options)
    if isinstance(source, TopicSource) and kind.job != "mirror" and not section.has(BOOTSTRAP):
        for option, given in source.options.items():  # the same cluster, the same way into it
            if option.lower().startswith(_WAY_IN):
                options.setdefault(option, given)
    reads_it = isinstance(source, TopicSource) and (topic == "{topic}" or source.reads(topic))
    if reads_it and servers == same:
        section.complain("topic", "is what this pipeline reads: it would feed itself")
    if sink.ledger_topic in _named_targets(source, sink):
        section.complain("topic", f"{sink.ledger_topic} is the sink's own ledger")
    _check_sink_options(section, sink)
    section.finish(dict.fromkeys(("key", "value"), _AS_THEY_ARE) if kind.keeps_records else None)
    return sink


def _named_targets(source: TopicSource | ArchiveSource | None, sink: TopicSink) -> list[str]:
    """The topics to be written, as far as the file names them."""
    names = () if source is None else source.topics
    return [sink.target_of(each) for each in (*names, "{topic}")]


def _check_sink_options(section: Section, sink: TopicSink) -> None:
    from moldau.spark_connector.sink.options import SinkOptions

    if not all(sink.options.values()) or not sink.topic:
        return
    try:
        SinkOptions.parse({**sink.options, "semantics": sink.semantics, "sinkId": sink.sink_id})
    except InvalidOption as error:
        section.complain("options" if section.has("options") else BOOTSTRAP, str(error))


# -- what happens in between --------------------------------------------------------------------


def _transform(section: Section, kind: JobKind, directory: str) -> Transform | None:
    if not kind.transforms:
        section.leave("transform")
        if section.has("transform"):
            section.complain("transform", f"the job {kind.job} passes records on as they are")
        return None
    found = section.section("transform", required=kind.job == "transform")
    if found is None:
        return None
    sql, python = found.optional_text("sql"), found.optional_text("python")
    if (sql is None) == (python is None):
        found.complain("sql" if sql is None else "python", "either sql or python must be here")
    if python is not None and not _FUNCTION.fullmatch(python):
        found.complain("python", f"{python!r} is not MODULE:FUNCTION")
    tables = {name: _table(table, directory) for name, table in found.sections("tables").items()}
    if "source" in tables:
        found.complain("tables", "source is the name of the pipeline's own rows")
    found.finish()
    return Transform(sql, python, tables)


def _table(section: Section, directory: str) -> Table:
    table = Table(
        section.choice("format", _TABLE_FORMATS, "parquet"),
        resolved(section.text("path"), directory),
        section.optional_text("schema"),
        section.mapping("options"),
    )
    section.finish()
    return table


def _aggregate(section: Section, kind: JobKind) -> Aggregate | None:
    if kind.job != "aggregate":
        section.leave("aggregate")
        if section.has("aggregate"):
            section.complain("aggregate", "is for the job aggregate")
        return None
    found = section.section("aggregate")
    if found is None:
        return None
    window = found.made("window", spark_interval, "", required=True)
    slide = found.made("slide", spark_interval, None)
    watermark = found.made("watermark", watermark_interval, "", required=True)
    aggregate = Aggregate(
        found.text("time", "timestamp"),
        window,
        watermark,
        found.mapping("measures"),
        slide,
        _named_expressions(found, "by"),
    )
    found.choice("output", ("append",), "append")  # Spark has no update mode for these sinks
    if not aggregate.measures:
        found.complain("measures", "what is wanted of each window, such as flights: count(*)")
    names = [*aggregate.by, *aggregate.measures]
    for name in sorted({each for each in names if names.count(each) > 1}):
        found.complain("measures", f"{name} is also a column of by")
    for name in sorted({"window_start", "window_end"} & set(names)):
        found.complain("measures", f"{name} is the window's own column")
    found.finish()
    return aggregate


def _named_expressions(section: Section, name: str) -> dict[str, str]:
    """`by` as a mapping, or as a list of columns that keep the last part of their names."""
    if not section.has(name) or section.is_mapping(name):
        return section.mapping(name)
    found: dict[str, str] = {}
    for each in section.words(name):
        column = each.rpartition(".")[2]
        if not re.fullmatch(r"[A-Za-z_]\w*", column):
            section.complain(name, f"{each!r} is no column: give it a name, as NAME: {each}")
        elif column in found:
            section.complain(name, f"{column} is there twice: give each a name of its own")
        found[column] = each
    return found


def _trigger(section: Section, kind: JobKind) -> int | None:
    if kind.reads_archive:
        if section.has("trigger") and section.optional_text("trigger") != AVAILABLE_NOW:
            section.complain("trigger", f"a replay ends by itself: {AVAILABLE_NOW} is all there is")
        section.optional_text("trigger")
        return None
    if not section.has("trigger"):
        section.optional_text("trigger")
        return DEFAULT_EVERY_MS
    if section.is_text("trigger"):
        if section.text("trigger") != AVAILABLE_NOW:
            section.complain(
                "trigger", f"is {AVAILABLE_NOW} or a mapping such as every: 10 seconds"
            )
        return None
    found = section.section("trigger")
    if found is None:
        return None
    every_ms = found.made("every", duration_text_ms, None, required=True)
    found.finish()
    return every_ms


def duration_text_ms(text: str) -> int:
    """`10 seconds`, `10s`, `1 hour` in milliseconds. Raises: ValueError."""
    count, unit = _parts(text)
    return count * _MS_OF[unit]


def spark_interval(text: str) -> str:
    """The same as Spark's interval text, at least a millisecond long. Raises: ValueError."""
    count, unit = _parts(text)
    if count == 0:
        raise ValueError(f"{text!r} is no time at all")
    return f"{count} {unit}s"


def watermark_interval(text: str) -> str:
    """As `spark_interval`, but 0 is allowed: any row behind the newest one is then late."""
    count, unit = _parts(text)
    return f"{count} {unit}s"


def time_text_ms(text: str) -> int:
    """An ISO 8601 time with its zone in milliseconds of the epoch. Raises: ValueError."""
    wanted = "a time such as 2026-07-01T12:00:00Z, with its zone"
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not {wanted}") from None
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: write {wanted}")
    return round(found.timestamp() * 1_000)


def _parts(text: str) -> tuple[int, str]:
    match = _DURATION.fullmatch(text)
    unit = "" if match is None else match[2].lower()
    unit = _SHORT.get(unit, unit.removesuffix("s"))
    if match is None or unit not in _MS_OF:
        raise ValueError(f"{text!r} is no duration {DURATION_EXAMPLES}")
    return int(match[1]), unit
