"""Pipelines' files: what is read, and what is said about each mistake, with line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moldau.spark_connector.errors import PipelineFileError
from moldau.spark_connector.pipelines.model import (
    ArchiveSource,
    ParquetSink,
    PipelineFile,
    TopicSink,
    TopicSource,
)
from moldau.spark_connector.pipelines.pipeline_file import load_pipelines, parse_pipelines

AGGREGATE = """\
name: delays
job: aggregate
source:
  bootstrap.servers: localhost:9092
  topic: flights
  schema: carrier STRING, dep_delay INT, time_hour TIMESTAMP
  records.per.batch: 50_000
aggregate:
  time: value.time_hour
  window: 1 hour
  watermark: 2 days
  by: [value.carrier]
  measures:
    flights: count(*)
    late: sum(value.dep_delay)
sink:
  topic: delays
  key: carrier
  partitions: 4
checkpoint: state/delays
trigger:
  every: 5 seconds
"""
MIRROR = """\
name: copy
job: mirror
source:
  bootstrap.servers: here:9092
  pattern: fl.*
sink:
  bootstrap.servers: there:9092
  topic: "here.{topic}"
checkpoint: /tmp/copy
trigger: available-now
"""
REPLAY = """\
name: back
job: replay
source:
  path: archive
  from: 2026-07-01T00:00:00Z
  until: 2026-07-02T00:00:00+02:00
sink:
  bootstrap.servers: localhost:9092
checkpoint: /tmp/back
"""


def parsed(text: str, **variables: str) -> PipelineFile:
    return parse_pipelines(text, "file.yaml", "/pipelines", variables)


def problems_of(text: str, **variables: str) -> list[str]:
    with pytest.raises(PipelineFileError) as caught:
        parsed(text, **variables)
    return str(caught.value).splitlines()


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_an_aggregate_is_read_whole():
    [pipeline] = parsed(AGGREGATE).pipelines
    source, sink = pipeline.source, pipeline.sink
    assert isinstance(source, TopicSource)
    assert source.options == {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "flights",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": "50000",
    }
    assert (source.key_format, source.value_format, source.malformed) == ("string", "json", "fail")
    assert isinstance(sink, TopicSink)
    assert (sink.topic, sink.sink_id, sink.semantics) == ("delays", "delays", "exactly-once")
    assert sink.bootstrap_servers == "localhost:9092"
    assert (sink.partition_count, sink.replication_factor) == (4, -1)
    assert pipeline.checkpoint == "/pipelines/state/delays"
    with_headers = changed(AGGREGATE, ("  topic: flights", "  topic: flights\n  headers: true"))
    [pipeline] = parsed(with_headers).pipelines
    assert isinstance(pipeline.source, TopicSource)
    assert pipeline.source.options["includeHeaders"] == "true"
    [pipeline] = parsed(AGGREGATE).pipelines
    assert pipeline.every_ms == 5_000
    wanted = pipeline.aggregate
    assert wanted is not None
    assert (wanted.window, wanted.watermark, wanted.slide) == ("1 hours", "2 days", None)
    assert wanted.by == {"carrier": "value.carrier"}
    assert list(wanted.measures) == ["flights", "late"]


def test_a_sink_on_the_source_s_cluster_goes_in_the_same_way():
    extra = "\n  options: {kafka.sasl.username: me, kafka.fetch.max.bytes: 9}"
    text = changed(AGGREGATE, ("  topic: flights", f"  topic: flights{extra}"))
    [pipeline] = parsed(text).pipelines
    assert isinstance(pipeline.sink, TopicSink)
    assert pipeline.sink.options == {
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.sasl.username": "me",
    }
    elsewhere = changed(text, ("  topic: delays", "  topic: delays\n  bootstrap.servers: b:1"))
    [pipeline] = parsed(elsewhere).pipelines
    assert isinstance(pipeline.sink, TopicSink)
    assert pipeline.sink.options == {"kafka.bootstrap.servers": "b:1"}


def test_a_mirror_keeps_records_with_their_headers():
    [pipeline] = parsed(MIRROR).pipelines
    assert isinstance(pipeline.source, TopicSource)
    assert pipeline.source.options["includeHeaders"] == "true"
    assert pipeline.source.options["subscribePattern"] == "fl.*"
    assert (pipeline.source.key_format, pipeline.source.value_format) == ("binary", "binary")
    assert pipeline.every_ms is None


def test_a_replay_reads_an_archive_between_two_times():
    [pipeline] = parsed(REPLAY).pipelines
    assert pipeline.source == ArchiveSource(
        "/pipelines/archive", (), 1_782_864_000_000, 1_782_943_200_000
    )
    assert isinstance(pipeline.sink, TopicSink)
    assert pipeline.sink.topic == "{topic}"


def test_an_archive_keeps_bytes_unless_it_transforms():
    archive = changed(
        MIRROR,
        ("job: mirror", "job: archive"),
        ('  bootstrap.servers: there:9092\n  topic: "here.{topic}"', "  path: files"),
    )
    [pipeline] = parsed(archive).pipelines
    assert pipeline.sink == ParquetSink("/pipelines/files", ("topic",), "zstd")
    assert isinstance(pipeline.source, TopicSource)
    assert pipeline.source.value_format == "binary"
    [pipeline] = parsed(archive + "transform:\n  sql: SELECT value FROM source\n").pipelines
    assert isinstance(pipeline.source, TopicSource)
    assert pipeline.source.value_format == "string"


def test_several_pipelines_share_one_file():
    file = parsed(AGGREGATE + "spark:\n  spark.driver.memory: 2g\n---\n" + MIRROR)
    assert [each.name for each in file.pipelines] == ["delays", "copy"]
    assert file.spark == {"spark.driver.memory": "2g"}


def test_variables_come_from_the_environment():
    text = changed(AGGREGATE, ("localhost:9092", "${SERVERS:-localhost:9092}"))
    text = changed(text, ("topic: flights", "topic: ${TOPIC}"))
    [pipeline] = parsed(text, TOPIC="departures").pipelines
    assert isinstance(pipeline.source, TopicSource)
    assert pipeline.source.options["subscribe"] == "departures"
    assert pipeline.source.bootstrap_servers == "localhost:9092"
    assert problems_of(text)[0].startswith("file.yaml:5: source.topic: the environment has no")
    sql = changed(AGGREGATE, ("sum(value.dep_delay)", "'$${literal}'"))
    wanted = parsed(sql).pipelines[0].aggregate
    assert wanted is not None
    assert wanted.measures["late"] == "${literal}"


MISTAKES: list[Any] = [
    (AGGREGATE, "job: aggregate", "job: agregate", "2: job: 'agregate' is none of archive"),
    (AGGREGATE, "name: delays", "name: de lays", "1: name: 'de lays' is no name"),
    (AGGREGATE, "  topic: flights\n", "", "3: source.topic: one of topic, topics, pattern must"),
    (
        AGGREGATE,
        "  window: 1 hour",
        "  windw: 1 hour",
        "10: aggregate.windw: there is no such key in",
    ),
    (AGGREGATE, "  window: 1 hour", "  windw: 1 hour", "did you mean window?"),
    (AGGREGATE, "  window: 1 hour", "  windw: 1 hour", "8: aggregate.window: is missing"),
    (
        AGGREGATE,
        "measures:",
        "output: update\n  measures:",
        "13: aggregate.output: 'update' is none of append",
    ),
    (AGGREGATE, "1 hour", "an hour", "10: aggregate.window: 'an hour' is no duration such as"),
    (AGGREGATE, "50_000", "many", "7: source.records.per.batch: 'many' is no whole number from 1"),
    (AGGREGATE, "50_000", "0", "7: source.records.per.batch: '0' is no whole number from 1"),
    (AGGREGATE, "topic: delays", "topic: flights", "17: sink.topic: is what this pipeline reads"),
    (AGGREGATE, "topic: flights", "pattern: .*la.*", "17: sink.topic: is what this pipeline reads"),
    (AGGREGATE, "topic: delays", "topic: moldau-spark-ledger", "17: sink.topic: moldau-spark-led"),
    (
        REPLAY,
        "path: archive",
        "path: a\n  topics: [moldau-spark-ledger]",
        "8: sink.topic: moldau-s",
    ),
    (
        AGGREGATE,
        "topic: delays",
        "topic: a\n  options: {LedgerTopic: a}",
        "17: sink.topic: a is the",
    ),
    (AGGREGATE, "checkpoint: state/delays\n", "", "1: checkpoint: is missing"),
    (AGGREGATE, "  every: 5 seconds", "  evry: 5 seconds", "22: trigger.evry: there is no such"),
    (AGGREGATE, "measures:", "measures: {}\n  x:", "13: aggregate.measures: what is wanted"),
    (AGGREGATE, "  schema:", "  malformed: drop\n  shema:", "did you mean schema?"),
    (AGGREGATE, "[value.carrier]", "[upper(value.carrier)]", "12: aggregate.by: 'upper(value.carr"),
    (AGGREGATE, "flights: count", "carrier: count", "13: aggregate.measures: carrier is also a"),
    (AGGREGATE, "  partitions: 4", "  options: {topic: x}", "19: sink.options: "),
    (
        AGGREGATE,
        "  topic: flights",
        "  topic: {a: b}",
        "5: source.topic: one value is wanted here,",
    ),
    (AGGREGATE, "source:\n", "source: []\nx:\n", "3: source: a mapping is wanted here, not a list"),
    (AGGREGATE, "sink:\n", "sink:\nsink:\n", "17: sink: is here twice (first on line 16)"),
    (
        AGGREGATE,
        "records.per.batch: 50_000",
        "options: {subscribe: x}",
        "7: source.options: subscr",
    ),
    (AGGREGATE, "records.per.batch: 50_000", "options: {minPartition: 2}", "did you mean minPart"),
    (AGGREGATE, "job: aggregate", "job: mirror", "8: aggregate: is for the job aggregate"),
    (MIRROR, "  pattern: fl.*", "  options: {minPartitions: 9}\n  topic: a", "minPartitions would"),
    (MIRROR, "  pattern: fl.*", "  topic: a\n  value: json", "6: source.value: records are passed"),
    (MIRROR, "  pattern: fl.*", "  topic: a\n  pattern: b", "6: source.pattern: one of topic, top"),
    (MIRROR, "available-now", "sometimes", "10: trigger: is available-now or a mapping"),
    (MIRROR, "job: mirror", "job: repartition", "5: source.pattern: there is no such key in sou"),
    (MIRROR, "job: mirror", "job: transform", "1: transform: is missing"),
    (REPLAY, "2026-07-02T00:00:00+02:00", "2026-06-01T00:00:00Z", "6: source.until: is not after"),
    (REPLAY, "2026-07-01T00:00:00Z", "2026-07-01T00:00:00", "5: source.from: '2026-07-01T00:00:0"),
    (REPLAY, "checkpoint:", "trigger: {every: 1 s}\ncheckpoint:", "9: trigger: "),
    (REPLAY, "checkpoint:", "spark: {driver.memory: 2g}\ncheckpoint:", "9: spark: driver.memory"),
]


@pytest.mark.parametrize(("text", "old", "new", "said"), MISTAKES)
@pytest.mark.promise("pipeline-no-loop")
def test_a_mistake_is_reported_with_its_line_and_key(text: str, old: str, new: str, said: str):
    problems = problems_of(changed(text, (old, new)))
    assert [each for each in problems if said in each], problems
    assert all(each.startswith("file.yaml:") for each in problems)


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_lines():
    text = changed(AGGREGATE, ("1 hour", "soon"), ("50_000", "x"), ("every: 5", "every: x 5"))
    lines = [int(each.split(":")[1]) for each in problems_of(text)]
    assert lines == [7, 10, 22]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "file.yaml:1: there is no pipeline in this file"),
        ("- a\n- b\n", "file.yaml:1: a pipeline is a mapping, not a list"),
        ("name: [a\n", "file.yaml:2: not YAML"),
        ("name: a\n  job: b\n", "file.yaml:2: not YAML"),
        ("<<: {a: b}\nname: x\njob: mirror\n", "merge keys (<<) are not supported"),
        ("a: " + "[" * 20_000, "file.yaml:1: nested more than 32 deep"),
        ("x" * 2_000_000, "file.yaml:1: more than 1,048,576 bytes"),
    ],
)
def test_what_is_no_pipeline_is_refused(text: str, said: str):
    assert any(said in each for each in problems_of(text))


def test_aliases_that_multiply_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 10,000 values" in problems_of("\n".join(lines))[0]


def test_pipelines_of_one_file_do_not_share_what_is_one_s_own():
    second = changed(AGGREGATE, ("name: delays", "name: other"), ("topic: delays", "topic: b"))
    assert problems_of(AGGREGATE + "---\n" + second) == [
        "file.yaml:24: checkpoint: /pipelines/state/delays is already that of delays: each "
        "pipeline needs its own"
    ]
    both = problems_of(AGGREGATE + "---\n" + AGGREGATE)
    assert "file.yaml:24: name: is that of the pipeline on line 1" in both


def test_a_missing_file_is_reported_by_its_name(tmp_path: Path):
    with pytest.raises(PipelineFileError, match=r"nothing\.yaml:1: No such file"):
        load_pipelines(tmp_path / "nothing.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff\xfe")
    with pytest.raises(PipelineFileError, match="byte 6 is not UTF-8"):
        load_pipelines(binary)
