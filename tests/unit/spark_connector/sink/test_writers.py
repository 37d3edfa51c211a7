"""What a writer does with the tasks' messages, where nothing has to be asked of a cluster."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from moldau.spark_connector.core.commit_protocol import Role, TaskReport
from moldau.spark_connector.errors import InvalidOption, SparkConnectorError
from moldau.spark_connector.sink import writers
from moldau.spark_connector.sink.driver import PlannedBatch
from moldau.spark_connector.sink.writers import SinkMessage, make_batch_writer, make_stream_writer

from .test_planned_batch import planned

ROWS = StructType([StructField("value", BinaryType())])
GIVEN = {"kafka.bootstrap.servers": "h:9092", "topic": "t", "sinkId": "s"}


def told(task: int) -> SinkMessage:
    return SinkMessage(1, planned("q"), "q", TaskReport(task, 0, Role.VERIFY, 1, 1))


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reports each commit had."""
    counts: list[int] = []

    def commit(*given: Any) -> None:
        counts.append(len(given[-1]))

    monkeypatch.setattr(writers, "commit_batch", commit)
    return counts


def test_a_batch_without_one_tasks_report_is_not_committed(committed: list[int]) -> None:
    """Its rows would be lost without a word."""
    stream = make_stream_writer(GIVEN, ROWS, False)
    batch = make_batch_writer(GIVEN, ROWS, False)
    batch.planned = planned("q")
    for messages in ([told(0), None], [None], [told(0), SinkMessage(1)]):
        with pytest.raises(SparkConnectorError, match="nothing was committed"):
            stream.commit(messages, 0)
        with pytest.raises(SparkConnectorError, match="nothing was committed"):
            batch.commit(messages)
    assert committed == []
    stream.commit([told(0), told(1)], 0)
    batch.commit([told(0), told(1), told(2)])
    stream.commit([told(0)], 0)
    batch.commit([])
    assert committed == [2, 3, 1, 0]
    stream.commit([], 0)
    assert len(committed) == 4, "a batch without a task has no plan, and nothing to decide"


def test_writers_know_where_no_row_may_go() -> None:
    for make in (make_stream_writer, make_batch_writer):
        writer = make(GIVEN | {"ledgerTopic": "decisions"}, ROWS, False)
        assert writer.columns.ledger_topic == "decisions"


@pytest.mark.parametrize(
    ("named", "query_id", "is_single"),
    [
        ({"txnId": "daily", "sinkId": "s"}, "txn:daily", False),
        ({"txnId": "daily"}, "txn:daily", False),
        ({"sinkId": "s"}, None, False),
        ({}, None, True),
    ],
)
def test_a_batch_write_is_planned_once_on_the_driver(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str], query_id: str | None, is_single: bool
) -> None:
    """A name makes it one that comes again; without any, no driver comes again for it."""
    plans: list[tuple[str, dict[str, Any]]] = []

    def plan(_options: Any, sink_id: str, **given: Any) -> PlannedBatch:
        plans.append((sink_id, given))
        return planned("q")

    monkeypatch.setattr(writers, "plan_batch", plan)
    given = {name: value for name, value in GIVEN.items() if name != "sinkId"}
    writer = make_batch_writer(given | named, ROWS, False)
    copy = pickle.loads(pickle.dumps(writer))
    assert copy.planned == pickle.loads(pickle.dumps(writer)).planned == writer.planned
    ((sink_id, asked),) = plans
    assert sink_id == copy.sink_id
    assert copy.sink_id == "s" if "sinkId" in named else copy.sink_id.startswith("moldau-batch-")
    assert asked == {"query_id": copy.query_id, "is_single": is_single}
    if query_id is None:
        assert copy.query_id.startswith("once:")
        assert make_batch_writer(given | named, ROWS, False).query_id != copy.query_id
    else:
        assert copy.query_id == query_id


def test_a_batch_write_at_least_once_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "plan_batch", lambda *_, **__: pytest.fail("planned"))
    writer = make_batch_writer(GIVEN | {"semantics": "at-least-once"}, ROWS, False)
    assert pickle.loads(pickle.dumps(writer)).planned is None


def test_nothing_is_decided_at_least_once(
    monkeypatch: pytest.MonkeyPatch, committed: list[int]
) -> None:
    monkeypatch.setattr(writers, "abort_batch", lambda *_: pytest.fail("aborted"))
    writer = make_stream_writer(GIVEN | {"semantics": "at-least-once"}, ROWS, False)
    writer.commit([SinkMessage(3), SinkMessage(0)], 0)
    writer.abort([SinkMessage(3), None], 0)
    assert committed == []


@pytest.mark.parametrize("is_planned", [True, False])
def test_a_batch_write_that_fails_is_given_up_when_it_was_planned(
    monkeypatch: pytest.MonkeyPatch, is_planned: bool
) -> None:
    aborted: list[Any] = []
    monkeypatch.setattr(writers, "abort_batch", lambda *given: aborted.append(given))
    writer = make_batch_writer(GIVEN, ROWS, False)
    writer.planned = planned("q") if is_planned else None
    writer.abort([told(0), None])
    if is_planned:
        ((_, sink_id, plan, batch_id, reports, tasks),) = aborted
        assert (sink_id, plan, batch_id, len(reports), tasks) == ("s", writer.planned, 0, 1, 2)
    else:
        assert aborted == []


@pytest.mark.parametrize("tasks", [0, 1, 2])
def test_a_micro_batch_that_fails_is_given_up(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    """Also where no task has reported: its executors may have been killed."""
    aborted: list[Any] = []
    monkeypatch.setattr(writers, "abort_batch", lambda *given: aborted.append(given))
    reported = [told(task) for task in range(tasks)]
    make_stream_writer(GIVEN, ROWS, False).abort([*reported, None], 7)
    ((options, sink_id, plan, batch_id, reports, count),) = aborted
    assert options.topic == "t"
    assert (sink_id, batch_id, count) == ("s", 7, tasks + 1)
    assert plan == (reported[0].planned if reported else None)
    assert reports == [each.report for each in reported]


def test_a_micro_batch_is_planned_once_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark pickles the writer twice."""
    plans: list[tuple[Any, ...]] = []

    def plan(options: Any, sink_id: str) -> PlannedBatch:
        plans.append((options, sink_id))
        return planned("q")

    monkeypatch.setattr(writers, "plan_batch", plan)
    writer = make_stream_writer(GIVEN, ROWS, False)
    copies = [pickle.loads(pickle.dumps(writer)) for _ in range(2)]
    assert [each.planned for each in copies] == [writer.planned] * 2
    assert plans == [(writer.options, "s")]
    plain = make_stream_writer(GIVEN | {"semantics": "at-least-once"}, ROWS, False)
    assert pickle.loads(pickle.dumps(plain)).planned is None
    assert len(plans) == 1


def test_rows_of_a_topic_cannot_be_overwritten() -> None:
    """Streams call it the output mode complete, which appends."""
    with pytest.raises(InvalidOption, match="mode overwrite is not supported"):
        make_batch_writer(GIVEN, ROWS, True)
    assert make_stream_writer(GIVEN, ROWS, True).sink_id == "s"


def test_a_stream_at_least_once_needs_no_sink_id() -> None:
    given = {name: value for name, value in GIVEN.items() if name != "sinkId"}
    assert make_stream_writer(given | {"semantics": "at-least-once"}, ROWS, False).sink_id == ""
    with pytest.raises(InvalidOption, match="sinkId is missing"):
        make_stream_writer(given, ROWS, False)


@pytest.mark.parametrize("make", [make_stream_writer, make_batch_writer])
def test_rows_are_written_in_tasks_only(make: Any) -> None:
    writer = make(GIVEN, ROWS, False)
    writer.planned = planned("q")
    with pytest.raises(SparkConnectorError, match="in Spark's tasks only"):
        writer.write(iter(()))


@pytest.mark.parametrize("make", [make_stream_writer, make_batch_writer])
def test_a_task_without_rows_connects_to_nothing(make: Any) -> None:
    writer = make(GIVEN | {"semantics": "at-least-once"}, ROWS, False)
    empty = pa.RecordBatch.from_arrays([pa.array([], pa.binary())], names=["value"])
    assert writer.write(iter([])) == writer.write(iter([empty, empty])) == SinkMessage(0)


@pytest.mark.parametrize(
    "properties", [{"sql.streaming.queryId": "q"}, {"streaming.sql.batchId": "1"}]
)
def test_a_task_that_does_not_know_its_query_and_batch_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    class Context:
        @classmethod
        def get(cls) -> Context:
            return cls()

        def getLocalProperty(self, name: str) -> str | None:
            return properties.get(name)

    monkeypatch.setattr(writers, "TaskContext", Context)
    writer = make_stream_writer(GIVEN, ROWS, False)
    writer.planned = planned("q")
    with pytest.raises(SparkConnectorError, match="which query and batch"):
        writer.write(iter(()))
