"""What tasks write, report and leave open, called as Spark calls them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from moldau.client import sync
from moldau.protocol import ApiKey, ErrorCode
from moldau.spark_connector.core.commit_protocol import Role
from moldau.spark_connector.core.ledger import MAX_RANGES_PER_SLOT
from moldau.spark_connector.errors import SparkConnectorError
from moldau.spark_connector.sink import driver, writers
from moldau.spark_connector.sink.rows import checksum_of
from moldau.spark_connector.sink.writers import make_batch_writer, make_stream_writer
from tests.fake_broker import LATEST, AnswerError, FakeCluster, ThreadedCluster

pytestmark = pytest.mark.real

ROWS = StructType([StructField("value", BinaryType())])
PIECES = [[b"%d-%d" % (piece, row) for row in range(3)] for piece in range(40)]
EVERYTHING = sorted(value for piece in PIECES for value in piece)


class Context:
    """What a task of Spark knows of itself."""

    batch_id = 0
    partition = 0
    attempt = 0

    @classmethod
    def get(cls) -> Context:
        return cls()

    def getLocalProperty(self, name: str) -> str:
        return {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(self.batch_id)}[name]

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return self.attempt


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> type[Context]:
    """The task that runs, and a driver that remembers nothing of others."""

    class Running(Context):
        pass

    monkeypatch.setattr(writers, "TaskContext", Running)
    monkeypatch.setattr(driver, "_process", driver._Process())
    return Running


@pytest.fixture
def fake() -> Iterator[ThreadedCluster]:
    """A cluster with a topic of two partitions."""
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 2}, versions=LATEST)) as threaded:
        yield threaded


def given(fake: ThreadedCluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": fake.bootstrap_server, "topic": "t", "sinkId": "s"} | more


def pieces() -> Iterator[pa.RecordBatch]:
    for values in PIECES:
        yield pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])


def whole() -> pa.Table:
    return pa.Table.from_batches(list(pieces()))


def committed(fake: ThreadedCluster) -> list[bytes | None]:
    return sorted(fake.call(lambda cluster: cluster.values("t", committed_only=True)))


def is_open(fake: ThreadedCluster) -> bool:
    logs = fake.call(lambda cluster: [cluster.log("t", each) for each in range(2)])
    return any(log.open_transactions for log in logs)


def on_driver(writer: Any) -> Any:
    """As it comes to a task: pickled by the driver."""
    return pickle.loads(pickle.dumps(writer))


@pytest.mark.parametrize("send_bytes", [1, 64, 8 * 1024 * 1024])
@pytest.mark.parametrize("transactions", ["prepared", "standard"])
def test_a_report_says_how_much_was_written_and_where(
    fake: ThreadedCluster,
    task: type[Context],
    monkeypatch: pytest.MonkeyPatch,
    transactions: str,
    send_bytes: int,
) -> None:
    """The transaction stays open for the driver. What comes again is only counted."""
    monkeypatch.setattr(writers, "SEND_BYTES", send_bytes)
    options = given(fake, transactions=transactions)
    task.partition, task.attempt = 5, 2
    message = on_driver(make_stream_writer(options, ROWS, False)).write(pieces())
    assert message.query_id == "q"
    assert message.planned.two_phase is (transactions == "prepared")
    report = message.report
    assert (report.task, report.attempt, report.role) == (5, 2, Role.WRITE)
    assert message.rows == report.rows == report.slot.rows == len(EVERYTHING)
    assert report.checksum == report.slot.checksum == checksum_of(whole())
    assert report.slot.transactional_id == "s.w.5.2"
    places = report.slot.ranges
    assert 1 <= len(places) <= MAX_RANGES_PER_SLOT
    if send_bytes == 1:
        assert len(places) == MAX_RANGES_PER_SLOT, "of very many places some are kept"
        assert not report.slot.is_located
    elif send_bytes > 64:
        assert report.slot.is_located
    for place in places:
        records = fake.call(lambda cluster, place=place: cluster.records("t", place.partition))
        offsets = [each.offset for each in records]
        assert place.first_offset in offsets
        assert place.first_offset + place.row_count - 1 in offsets
    assert (is_open(fake), committed(fake)) == (True, [])

    make_stream_writer(options, ROWS, False).commit([message], 0)
    assert (is_open(fake), committed(fake)) == (False, EVERYTHING)
    again = on_driver(make_stream_writer(options, ROWS, False)).write(pieces()).report
    assert (again.role, again.rows, again.slot) == (Role.VERIFY, len(EVERYTHING), None)
    assert again.checksum == report.checksum
    assert committed(fake) == EVERYTHING


def test_a_task_without_rows_opens_no_transaction(
    fake: ThreadedCluster, task: type[Context]
) -> None:
    writer = on_driver(make_stream_writer(given(fake), ROWS, False))
    begun = fake.call(lambda cluster: cluster.recorder.count(ApiKey.INIT_PRODUCER_ID))
    empty = pa.RecordBatch.from_arrays([pa.array([], pa.binary())], names=["value"])
    report = writer.write(iter([empty])).report
    assert (report.role, report.rows, report.checksum, report.slot) == (Role.WRITE, 0, 0, None)
    assert fake.call(lambda cluster: cluster.recorder.count(ApiKey.INIT_PRODUCER_ID)) == begun


@pytest.mark.parametrize("make", [make_stream_writer, make_batch_writer])
@pytest.mark.parametrize("send_bytes", [1, 8 * 1024 * 1024])
def test_a_task_that_raises_has_aborted_what_it_sent(
    fake: ThreadedCluster,
    task: type[Context],
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Any],
    send_bytes: int,
) -> None:
    monkeypatch.setattr(writers, "SEND_BYTES", send_bytes)

    def cut_off() -> Iterator[pa.RecordBatch]:
        yield from pieces()
        raise ZeroDivisionError

    writer = on_driver(make(given(fake), ROWS, False))
    with pytest.raises(ZeroDivisionError):
        writer.write(cut_off())
    assert not is_open(fake)
    assert committed(fake) == []


@pytest.mark.parametrize("given_up", [False, True])
def test_a_task_that_raises_tries_to_abort_for_some_seconds_only(
    fake: ThreadedCluster, task: type[Context], monkeypatch: pytest.MonkeyPatch, given_up: bool
) -> None:
    """Its time limit, or a sweep, ends the transaction then."""
    writer = on_driver(make_stream_writer(given(fake), ROWS, False))
    real, limits = sync.Producer.close, []

    def close(producer: sync.Producer, timeout_ms: float | None = None) -> None:
        limits.append(timeout_ms)
        real(producer, timeout_ms=timeout_ms)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from pieces()
        if given_up:
            raise ZeroDivisionError

    monkeypatch.setattr(sync.Producer, "close", close)
    monkeypatch.setattr(writers, "SEND_BYTES", 64)
    if given_up:
        with pytest.raises(ZeroDivisionError):
            writer.write(rows())
    else:
        writer.write(rows())
    assert limits == [writers.ABORT_MS if given_up else None]


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("nth", [1, 20])
def test_rows_that_brokers_refuse_fail_their_task(
    fake: ThreadedCluster,
    task: type[Context],
    monkeypatch: pytest.MonkeyPatch,
    semantics: str,
    nth: int,
) -> None:
    """Others were taken before them and after them."""
    monkeypatch.setattr(writers, "SEND_BYTES", 1)
    writer = on_driver(make_stream_writer(given(fake, semantics=semantics), ROWS, False))
    refusal = AnswerError(ErrorCode.INVALID_RECORD)
    fake.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, refusal, nth=nth))
    with pytest.raises(SparkConnectorError, match="INVALID_RECORD"):
        writer.write(pieces())


@pytest.mark.parametrize("named", [{"txnId": "daily"}, {}])
def test_a_batch_write_is_visible_as_a_whole_or_not_at_all(
    fake: ThreadedCluster, task: type[Context], named: dict[str, str]
) -> None:
    writer = make_batch_writer(given(fake, **named), ROWS, False)
    message = on_driver(writer).write(pieces())
    assert (message.rows, message.query_id) == (len(EVERYTHING), writer.query_id)
    assert message.planned is None, "the driver has it"
    assert (is_open(fake), committed(fake)) == (True, [])
    writer.abort([message])
    assert (is_open(fake), committed(fake)) == (False, [])
    writer = make_batch_writer(given(fake, **named), ROWS, False)
    writer.commit([on_driver(writer).write(pieces())])
    assert (is_open(fake), committed(fake)) == (False, EVERYTHING)
    again = make_batch_writer(given(fake, **named), ROWS, False)
    role = on_driver(again).write(pieces()).report.role
    assert role is (Role.VERIFY if named else Role.WRITE)


@pytest.mark.parametrize("make", [make_stream_writer, make_batch_writer])
@pytest.mark.parametrize("send_bytes", [1, 8 * 1024 * 1024])
def test_rows_at_least_once_are_visible_when_their_task_ends(
    fake: ThreadedCluster,
    task: type[Context],
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Any],
    send_bytes: int,
) -> None:
    monkeypatch.setattr(writers, "SEND_BYTES", send_bytes)
    writer = on_driver(make(given(fake, semantics="at-least-once"), ROWS, False))
    message = writer.write(pieces())
    assert (message.rows, message.planned, message.report) == (len(EVERYTHING), None, None)
    assert committed(fake) == EVERYTHING
