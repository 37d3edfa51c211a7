"""What a writer does with the tasks' messages, where nothing has to be asked of a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from moldau.spark_connector.core.task_roles import Role, TaskReport
from moldau.spark_connector.errors import SparkConnectorError
from moldau.spark_connector.sink import batch_writer, stream_writer
from moldau.spark_connector.sink.batch_writer import make_batch_writer
from moldau.spark_connector.sink.stream_writer import SinkMessage, make_stream_writer

from .test_batch_plan import planned

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

    for module in (stream_writer, batch_writer):
        monkeypatch.setattr(module, "commit_batch", commit)
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
    assert committed == [2, 3]


def test_writers_know_where_no_row_may_go() -> None:
    for make in (make_stream_writer, make_batch_writer):
        writer = make(GIVEN | {"ledgerTopic": "decisions"}, ROWS, False)
        assert writer.columns.ledger_topic == "decisions"


def test_nothing_is_decided_at_least_once(committed: list[int]) -> None:
    writer = make_stream_writer(GIVEN | {"semantics": "at-least-once"}, ROWS, False)
    writer.commit([SinkMessage(3), SinkMessage(0)], 0)
    writer.abort([SinkMessage(3), None], 0)
    assert committed == []
