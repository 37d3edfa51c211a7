"""Every job, run again over the same output: exactly once, or refused by words that say what to do.

With a new checkpoint, with its own one moved, with a copy of it, and two drivers at once.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin
from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.pipeline_file import parse_pipelines
from moldau.spark_connector.pipelines.runner import RunOptions, StopRequest, run_pipelines
from moldau.spark_connector.pipelines.running import BatchProgress
from moldau.testing import Cluster
from tests.kit import judging
from tests.spark.conftest import make_topic
from tests.spark.pipelines.steps import run, send, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]

PIPELINE = """
name: {name}
job: {job}
source: {source}
{step}
sink: {sink}
checkpoint: {checkpoint}
trigger: {trigger}
"""
NOW = datetime.now(UTC)
"""Older records are deleted by the brokers' own retention."""
JSON = "schema: 'n INT, at TIMESTAMP'"
WINDOWS = (
    "aggregate: {time: value.at, window: 1 hour, watermark: 1 minute, by: {n: value.n}, "
    "measures: {count: count(*)}}"
)


@dataclass(frozen=True)
class Job:
    """What of a file is a job's own. `sink` may name the topics IN and OUT, and a directory."""

    job: str
    sink: str
    step: str = ""
    source: str = ""


JOBS = {
    "archive": Job("archive", "{path: files}"),
    "transform to Parquet": Job(
        "transform", "{path: files}", "transform: {sql: 'SELECT value.n FROM source'}", JSON
    ),
    "aggregate to Parquet": Job("aggregate", "{path: files}", WINDOWS, JSON),
    "transform": Job(
        "transform", "{topic: OUT}", "transform: {sql: 'SELECT value.n FROM source'}", JSON
    ),
    "aggregate": Job("aggregate", "{topic: OUT}", WINDOWS, JSON),
    "mirror": Job("mirror", "{bootstrap.servers: 'SERVER', topic: OUT}"),
    "repartition": Job("repartition", "{topic: OUT, partitions: 1}"),
}


class Flow:
    """A job with what it reads and writes, over all its runs."""

    def __init__(self, job: Job, server: str, admin: Admin, spark: SparkSession, at: Path) -> None:
        self.job, self.server, self.spark, self.directory = job, server, spark, at
        self.topic, self.out = make_topic(admin), make_topic(admin)
        self.sent = 0

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        rows = [{"n": n, "at": f"2026-07-{1 + n // 24:02}T{n % 24:02}:30:00Z"} for n in numbers]
        send(self.server, self.topic, [(None, json.dumps(each).encode()) for each in rows])
        self.sent += count

    def text(self, checkpoint: str, name: str = "own", trigger: str = "available-now") -> str:
        """The file. Whatever it is called, it has the same output and the same sink.id."""
        sink = self.job.sink.replace("OUT", self.out).replace("SERVER", self.server)
        if self.is_topic:
            sink = f"{sink[:-1]}, id: {self.out}}}"
        source = f"bootstrap.servers: '{self.server}', topic: {self.topic}, records.per.batch: 4"
        return PIPELINE.format(
            name=name,
            job=self.job.job,
            source=f"{{{', '.join(filter(None, (source, self.job.source)))}}}",
            step=self.job.step,
            sink=sink,
            checkpoint=checkpoint,
            trigger=trigger,
        )

    def run(self, checkpoint: str, name: str = "own") -> str:
        """One run: the refusal's text, "" where it came to its end."""
        return outcome(lambda: run(self.text(checkpoint, name), self.directory))

    @property
    def is_topic(self) -> bool:
        """Whether the output is a topic."""
        return "path:" not in self.job.sink

    def check_once(self, count: int | None = None) -> None:
        """So many of the records that were sent have come, each once; all of them without."""
        wanted = self.sent if count is None else count
        if self.job.job == "aggregate":
            wanted -= 1  # the last window waits for a later record
        found = self._found()
        with judging():
            assert found == list(range(wanted))

    def _found(self) -> list[int]:
        if self.is_topic:
            return sorted(json.loads(each or b"{}")["n"] for each in values(self.server, self.out))
        rows = self.spark.read.parquet(str(self.directory / "files")).collect()
        if self.job.job == "archive":
            return sorted(json.loads(row["value"])["n"] for row in rows)
        return sorted(row["n"] for row in rows)


@pytest.fixture(params=JOBS.values(), ids=JOBS)
def flow(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    admin: Admin,
    spark: SparkSession,
    tmp_path: Path,
) -> Flow:
    """A job that has run once."""
    made = Flow(request.param, cluster.bootstrap_server, admin, spark, tmp_path)
    made.send(5)
    assert made.run("first") == ""
    made.check_once()
    return made


@pytest.mark.promise(
    "query-new", "refusal-foreign", "pipeline-one-checkpoint", "parquet-one-checkpoint"
)
def test_with_a_fresh_checkpoint_it_is_refused(flow: Flow) -> None:
    flow.send(3)
    refused = flow.run("fresh")
    if flow.is_topic:
        assert "ForeignSink" in refused
        assert re.search(f"in sink '{flow.out}', which has batch [0-9]+ of query", refused)
        assert "the newest checkpoint of that query" in refused
        assert "`moldau pipeline sinks forget SINK` first" in refused
    else:
        assert f"checkpoint {flow.directory / 'fresh'} is new" in refused
        assert f"that of checkpoint {flow.directory / 'first'}" in refused
        assert "give this checkpoint a sink.path of its own" in refused
    flow.check_once(5)


@pytest.mark.promise("pipeline-moved", "parquet-moved", "parquet-metadata")
def test_with_its_checkpoint_moved_it_goes_on(flow: Flow) -> None:
    (flow.directory / "first").rename(flow.directory / "moved")
    flow.send(3)
    assert flow.run("moved") == ""
    flow.check_once()


@pytest.mark.promise("query-copies", "pipeline-one-checkpoint", "parquet-one-checkpoint")
def test_an_older_copy_of_its_checkpoint_is_refused(flow: Flow) -> None:
    shutil.copytree(flow.directory / "first", flow.directory / "copy")
    flow.send(3)
    assert flow.run("first") == ""
    flow.send(3)
    refused = flow.run("copy")
    if flow.is_topic:
        assert re.search(
            "ReplayDiffers.*use the newest checkpoint|Rewound.*the newest one", refused
        )
    else:
        assert f"checkpoint {flow.directory / 'copy'} stands before batch" in refused
        assert "Go on with the newest checkpoint of this output" in refused
    flow.check_once(8)
    assert flow.run("first") == ""
    flow.check_once()


@pytest.mark.promise("refusal-foreign", "pipeline-one-checkpoint", "parquet-lock")
def test_a_second_one_is_refused_while_it_runs(flow: Flow) -> None:
    """The first one may be fenced by it, and goes on when it is started again."""
    flow.send(20)
    others: list[str] = []
    request = StopRequest()

    def look(_progress: BatchProgress) -> None:
        if not others:
            others.append(flow.run("other", "other"))
            request.handle()

    file = parse_pipelines(flow.text("first", trigger="{every: 0 s}"), "t", str(flow.directory), {})
    refused = outcome(lambda: run_pipelines(file, RunOptions(observer=look), request))
    [other] = others
    if flow.is_topic:
        assert re.search("ForeignSink|SinkFenced|TransactionLost", other)
        assert refused == "" or re.search("SinkFenced|TransactionLost|RowsLost", refused)
    else:
        assert "wait until the other one has ended" in other
        assert refused == ""
    assert flow.run("first") == ""
    flow.check_once()
    assert ("ForeignSink" if flow.is_topic else "is new") in flow.run("other", "other")
    flow.check_once()


class Replay:
    """A replay of an archive that grows."""

    def __init__(self, server: str, out: str, directory: Path) -> None:
        self.server, self.out, self.directory = server, out, directory
        self.archived = 0

    def archive(self, count: int) -> None:
        numbers = range(self.archived, self.archived + count)
        columns = {
            "key": pa.nulls(count, pa.binary()),
            "value": [b"%04d" % each for each in numbers],
            "topic": ["in"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": list(numbers),
            "timestamp": pa.array([NOW] * count, pa.timestamp("us", "UTC")),
        }
        (self.directory / "files").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), self.directory / "files" / f"{self.archived}.parquet")
        self.archived += count

    def text(self, checkpoint: str, out: str | None = None, per_chunk: int = 5) -> str:
        """The file."""
        return PIPELINE.format(
            name=f"back-{self.out}",
            job="replay",
            source=f"{{path: files, records.per.batch: {per_chunk}}}",
            step="",
            sink=f"{{bootstrap.servers: '{self.server}', topic: {out or self.out}}}",
            checkpoint=checkpoint,
            trigger="available-now",
        )

    def run(self, checkpoint: str, out: str | None = None, per_chunk: int = 5) -> str:
        """One run: the refusal's text, "" where it came to its end."""
        return outcome(lambda: run(self.text(checkpoint, out, per_chunk), self.directory))

    def check_once(self, count: int, out: str | None = None) -> None:
        """So many of the archive's records are written, each once."""
        there = values(self.server, out or self.out)
        with judging():
            assert there == [b"%04d" % each for each in range(count)]


@pytest.fixture
def replay(cluster: Cluster, admin: Admin, tmp_path: Path) -> Replay:
    """A replay that has run once."""
    made = Replay(cluster.bootstrap_server, make_topic(admin), tmp_path)
    made.archive(12)
    assert made.run("first") == ""
    made.check_once(12)
    return made


@pytest.mark.promise("replay-fresh", "replay-other")
def test_a_replay_with_a_fresh_checkpoint_writes_nothing_again(replay: Replay) -> None:
    """It finds its chunks; in an archive that has grown, or is cut otherwise, there are others."""
    assert replay.run("fresh") == ""
    replay.check_once(12)
    replay.archive(6)
    for checkpoint, per_chunk in (("grown", 5), ("cut", 7)):
        refused = replay.run(checkpoint, per_chunk=per_chunk)
        assert "ReplayDiffers" in refused
        assert "Go on with its checkpoint" in refused
        assert f"`moldau pipeline sinks forget back-{replay.out}` first" in refused
        replay.check_once(12)


@pytest.mark.promise("replay-target")
def test_a_replay_into_another_topic_writes_it_whole(replay: Replay, admin: Admin) -> None:
    out = make_topic(admin)
    assert "into another topic: give this one a checkpoint of its own" in replay.run("first", out)
    assert replay.run("other", out) == ""
    replay.check_once(12, out)


@pytest.mark.promise("replay-plan")
def test_a_replays_checkpoint_that_was_moved_or_copied_goes_on(replay: Replay) -> None:
    shutil.copytree(replay.directory / "first", replay.directory / "copy")
    (replay.directory / "copy" / "replay-done.json").write_text('{"chunks": 1}')
    (replay.directory / "first").rename(replay.directory / "moved")
    replay.archive(6)
    for checkpoint in ("moved", "copy"):
        assert replay.run(checkpoint) == ""
        replay.check_once(12)


def test_two_replays_at_once_write_each_record_once(replay: Replay) -> None:
    """Who is overtaken fails, or finds the other one's chunks."""
    shutil.rmtree(replay.directory / "first")
    replay.archive(20)
    replay.out = f"{replay.out}-twice"
    with Admin(replay.server) as admin:
        admin.create_topics([NewTopic(replay.out, 1)])
    texts: list[str] = []

    def look(_progress: BatchProgress) -> None:
        if not texts:
            texts.append(replay.run("second"))

    text = replay.text("first")
    refused = outcome(
        lambda: run_pipelines(
            parse_pipelines(text, "t", str(replay.directory), {}), RunOptions(observer=look)
        )
    )
    for each in (refused, *texts):
        assert each == "" or re.search("SinkFenced|TransactionLost|RowsLost", each)
    for checkpoint in ("first", "second"):
        assert replay.run(checkpoint) == ""
        replay.check_once(32)


def outcome(call: Callable[[], object]) -> str:
    """Run something: the refusal's text, "" where it came to its end."""
    try:
        call()
    except PipelineFailed as refused:
        return str(refused)
    return ""
