"""What fails without a process being killed: every row is stored once, or the sink says why not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau.client.sync import Admin
from moldau.spark_connector import move_sink
from moldau.spark_connector.sink.options import SinkOptions
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.spark.conftest import make_topic
from tests.spark.sink.jobs import Pipeline, outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STANDARD = {"transactions": "standard"}


@pytest.fixture
def pipeline(cluster: Cluster, admin: Admin, tmp_path: Path) -> Pipeline:
    """A query with input for one batch."""
    made = Pipeline(cluster, make_topic(admin, partitions=2), tmp_path)
    made.add_batches(1)
    return made


@pytest.mark.promise("sink-exactly-once")
def test_commit_raises_after_its_decision(spark: SparkSession, pipeline: Pipeline) -> None:
    """Spark calls abort then: what was decided stands."""
    error = pipeline.run_in(spark, pipeline.fault("after decision", "raise", 0))
    assert "fault injected after decision" in error
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()


@pytest.mark.promise("sink-exactly-once")
def test_only_task_fails_for_good(
    spark: SparkSession, cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    """Nothing is left open, and the next start writes the batch."""
    pipeline = Pipeline(cluster, make_topic(admin, partitions=2), tmp_path)
    pipeline.add_task()
    error = pipeline.run_in(spark, pipeline.fault("written", "raise", 0))
    assert "fault injected written" in error
    assert not pipeline.visible()
    assert not pipeline.open_offsets()
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()


@pytest.mark.promise("sink-exactly-once")
def test_task_fails_for_good_beside_another(spark: SparkSession, pipeline: Pipeline) -> None:
    """Nothing is visible. Spark kills the other task, perhaps after the driver has aborted what was
    open then: the next start ends what it has left, and writes the batch.
    """
    error = pipeline.run_in(spark, pipeline.fault("written", "raise", 0))
    assert "fault injected written" in error
    assert not pipeline.visible()
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()


@pytest.mark.parametrize("point", ["written", "before decision", "after decision"])
@pytest.mark.promise(
    "time-before-decision", "time-after-decision", "refusal-transaction-lost", "refusal-rows-lost"
)
def test_transaction_times_out(spark: SparkSession, pipeline: Pipeline, point: str) -> None:
    """Before the decision nothing is visible; after it, the restart writes the lost rows alone."""
    pipeline.options = STANDARD
    error = pipeline.run_in(spark, pipeline.fault(point, "time out", 0))
    if point == "written":
        assert "TransactionLost" in error
        assert "Nothing of the batch is visible; start the query again" in error
        assert not pipeline.visible()
    else:
        assert "RowsLost" in error
        assert "exactly the missing rows are written" in error
        assert 0 < pipeline.visible().total() < len(pipeline.lines)
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()


@pytest.mark.promise("sink-killed-driver", "time-before-decision")
def test_transaction_times_out_while_rows_are_written(
    spark: SparkSession, pipeline: Pipeline
) -> None:
    """For real: the coordinator aborts it, and the sink notices before the decision."""
    pipeline.options = {**STANDARD, "kafka.transaction.timeout.ms": "1000"}
    fault = pipeline.fault("written", "pause", 0)
    query = pipeline.start_in(spark, fault)
    until(Path(fault.mark).exists, what="the pause", deadline_s=60)
    until(lambda: not pipeline.open_offsets(), what="the time limit", deadline_s=60)
    Path(f"{fault.mark}.go").touch()
    error = outcome(query)
    assert "TransactionLost" in error
    assert "kafka.transaction.timeout.ms" in error
    pipeline.options = STANDARD
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()


@pytest.mark.promise("refusal-rewound")
def test_checkpoint_rewound(spark: SparkSession, pipeline: Pipeline) -> None:
    """An older copy of the checkpoint is refused, whether it is one batch older or two."""
    copies = []
    for _ in range(2):
        assert pipeline.run_in(spark) == ""
        copies.append(pipeline.directory / f"copy-{len(copies)}")
        shutil.copytree(pipeline.checkpoint, copies[-1])
        pipeline.add_batches(1)
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()
    lines = list(pipeline.lines)
    pipeline.add_batches(2)
    # The batch that was committed last is planned again, and reads the same two files: a replay.
    _put_back(copies[1], pipeline)
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()
    lines = list(pipeline.lines)
    _put_back(copies[0], pipeline)
    error = pipeline.run_in(spark)
    assert "CheckpointRewound" in error
    assert "Put the newest one back" in error
    pipeline.check_exactly_once(lines)


@pytest.mark.promise("refusal-replay")
def test_replay_with_other_rows(spark: SparkSession, pipeline: Pipeline) -> None:
    """A committed batch that comes again changed is refused, unless it may be."""
    assert pipeline.run_in(spark) == ""
    lines = list(pipeline.lines)
    (pipeline.checkpoint / "commits" / "0").unlink()
    for crc in (pipeline.checkpoint / "commits").glob(".0.crc"):
        crc.unlink()
    first = sorted(pipeline.input.glob("*.txt"))[0]
    first.write_text("other\n" + first.read_text())
    error = pipeline.run_in(spark)
    assert "ReplayDiffers" in error
    assert f"with {len(lines)} rows" in error
    pipeline.check_exactly_once(lines)
    pipeline.options = {"onReplayMismatch": "skip"}
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once(lines)


@pytest.mark.promise("two-writers", "two-writers-by-turns", "refusal-fenced")
def test_two_queries_on_one_sink(
    spark: SparkSession, pipeline: Pipeline, cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    """The older one is refused, and neither loses or repeats a row."""
    other = Pipeline(cluster, make_topic(admin, partitions=2), tmp_path / "other")
    other.add_batches(1)
    for each in (pipeline, other):
        each.options = {"sinkId": tmp_path.name}
    fault = pipeline.fault("before decision", "pause", 0)
    query = pipeline.start_in(spark, fault)
    until(Path(fault.mark).exists, what="the pause", deadline_s=60)
    assert other.run_in(spark) == ""
    Path(f"{fault.mark}.go").touch()
    error = outcome(query)
    assert "SinkFenced" in error
    assert "give each its own" in error
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()
    other.check_exactly_once()
    # Each is remembered when the other one has written: a replay is known as such.
    (other.checkpoint / "commits" / "0").unlink()
    for crc in (other.checkpoint / "commits").glob(".0.crc"):
        crc.unlink()
    assert other.run_in(spark) == ""
    other.check_exactly_once()


@pytest.mark.promise("sinkid-spellings", "query-one-sink", "refusal-moved")
def test_a_moved_checkpoint(spark: SparkSession, pipeline: Pipeline) -> None:
    """Its sink id is another one: no batch is written twice, and the ledger moves with it."""
    assert pipeline.run_in(spark) == ""
    old = SinkOptions.parse(pipeline.write_options()).stream_sink_id()
    # Another spelling is the same place; the batch that comes again is known.
    _uncommit(pipeline.checkpoint, 0)
    pipeline.options = {"checkpointLocation": f"{pipeline.checkpoint.as_uri()}/./"}
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()
    _uncommit(pipeline.checkpoint, 0)
    pipeline.checkpoint = pipeline.checkpoint.rename(pipeline.directory / "moved")
    pipeline.options = {}
    error = pipeline.run_in(spark)
    assert "QueryMoved" in error
    assert old in error
    assert "moldau pipeline sinks move" in error
    pipeline.check_exactly_once()
    options = pipeline.write_options()
    new = SinkOptions.parse(options).stream_sink_id()
    del options["checkpointLocation"]
    move_sink({**options, "sinkId": old}, new)
    pipeline.add_batches(1)
    assert pipeline.run_in(spark) == ""
    pipeline.check_exactly_once()


def _uncommit(checkpoint: Path, batch_id: int) -> None:
    """As if the driver had been killed before Spark wrote that the batch is done."""
    (checkpoint / "commits" / str(batch_id)).unlink()
    (checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)


def _put_back(copy: Path, pipeline: Pipeline) -> None:
    shutil.rmtree(pipeline.checkpoint)
    shutil.copytree(copy, pipeline.checkpoint)
