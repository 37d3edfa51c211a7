"""A transaction with a record that was given up is never committed, however and whenever it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from moldau.client import BufferFull, KafkaError, Producer
from moldau.client.errors import (
    InvalidTopic,
    RecordTooLarge,
    RequestTimeout,
    SerializationError,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from moldau.protocol import ApiKey, ErrorCode
from tests.fake_broker import AnswerError, FakeCluster, Stall
from tests.kit.absent import needs
from tests.unit.client.faults.harness import PRODUCER, delivered, ends
from tests.virtual.machine import pass_time

if TYPE_CHECKING:
    import pyarrow as pa

SMALL = {"buffer_memory": 30_000, "batch_size": 5_000, "max_request_size": 25_000}
MAX_BLOCK_MS = 2_000


@asynccontextmanager
async def in_transaction(cluster: FakeCluster, **settings: Any) -> AsyncIterator[Producer]:
    """A producer with one record in its transaction, which is not committed; the next one is."""
    async with committed(cluster, [b"after"], **settings) as producer:
        yield producer
        cluster.faults.clear()
        producer.begin_transaction()
        await ends(producer.send("t", b"after"), "the next record")


@asynccontextmanager
async def committed(
    cluster: FakeCluster, values: list[bytes], **settings: Any
) -> AsyncIterator[Producer]:
    """A producer with one record in its transaction; `values` are complete when the last one of its
    transactions is committed.
    """
    chosen = {**PRODUCER, **SMALL, "max_block_ms": MAX_BLOCK_MS, "transactional_id": "x"}
    async with Producer(cluster.bootstrap_servers, **{**chosen, **settings}) as producer:
        await ends(producer.init_transactions(), "init_transactions")
        producer.begin_transaction()
        await ends(producer.send("t", b"first"), "the first record")
        yield producer
        await ends(producer.commit_transaction(), "commit_transaction")
    assert delivered(cluster, "t", committed_only=True) == values


async def check_spoilt(producer: Producer) -> TransactionAbortable:
    with pytest.raises(TransactionAbortable) as caught:
        await ends(producer.commit_transaction(), "commit_transaction")
    await ends(producer.abort_transaction(), "abort_transaction")
    return caught.value


async def fill(cluster: FakeCluster, producer: Producer) -> Any:
    """Take all room; the fault that keeps it taken."""
    stalled = cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
    for _ in range(7):
        producer.send_nowait("t", bytes(4_000))
    await ends(stalled.fired(), "a request")
    return stalled


def fails_for_u(topic: str, *_: object) -> int:
    if topic == "u":
        raise ZeroDivisionError("a bug")
    return 0


# -- while it is committed -----------------------------------------------------------------------


async def test_a_topic_that_stays_unknown_while_the_transaction_is_committed():
    """Found by tests/simulation/transactions, seed 13468532: the metadata did not come in time, the
    record failed while the commit flushed, and the commit succeeded without it.
    """
    async with FakeCluster(1, topics={"t": 1}) as cluster, in_transaction(cluster) as producer:
        cluster.fault(ApiKey.METADATA, Stall(), times=None)
        held = producer.send_nowait("unknown", b"held")
        await pass_time(100)
        error = await check_spoilt(producer)
        assert isinstance(held.exception(), RequestTimeout)
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
        assert error.__cause__ is held.exception()


async def test_a_partition_that_does_not_come_up_while_the_transaction_is_committed():
    async with FakeCluster(1, topics={"t": 1}) as cluster, in_transaction(cluster) as producer:
        held = producer.send_nowait("t", b"held", partition=9)
        await pass_time(100)
        await check_spoilt(producer)
        assert isinstance(held.exception(), UnknownTopicOrPartition)


async def test_a_topic_that_is_refused_while_the_transaction_is_committed():
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    async with (
        FakeCluster(1, topics={"t": 1, "u": 1}) as cluster,
        in_transaction(cluster) as producer,
    ):
        cluster.fault(ApiKey.METADATA, AnswerError(code, topic="u"), times=None)
        producer.send_nowait("u", b"held")
        assert (await check_spoilt(producer)).code is code
    assert cluster.values("u") == []


async def test_a_partitioner_that_fails_for_a_record_that_was_held():
    async with (
        FakeCluster(1, topics={"t": 1, "u": 1}) as cluster,
        in_transaction(cluster, partitioner=fails_for_u) as producer,
    ):
        held = producer.send_nowait("u", b"held")
        error = await check_spoilt(producer)
        assert isinstance(held.exception(), ZeroDivisionError)
        assert "ZeroDivisionError: a bug" in str(error)


async def test_a_bug_in_the_sender_while_the_transaction_is_committed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(now_ms: float) -> None:
        raise ZeroDivisionError("a bug")

    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with Producer(
            cluster.bootstrap_servers, **{**PRODUCER, "transactional_id": "x"}
        ) as producer:
            await ends(producer.init_transactions(), "init_transactions")
            producer.begin_transaction()
            await ends(producer.send("t", b"first"), "the first record")
            lost = producer.send_nowait("t", b"lost")
            monkeypatch.setattr(producer._accumulator, "ready", broken)
            with pytest.raises(TransactionAbortable, match="a bug"):
                await ends(producer.commit_transaction(), "commit_transaction")
            assert isinstance(lost.exception(), KafkaError)
            caplog.clear()
        assert delivered(cluster, "t", committed_only=True) == []


async def test_all_records_that_are_held_fail_together():
    async with (
        FakeCluster(1, topics={"t": 1, "u": 1}) as cluster,
        in_transaction(cluster) as producer,
    ):
        await ends(producer.send("u", b"first"), "the other topic")
        held = [producer.send_nowait(topic, b"held", partition=9) for topic in ("t", "u")]
        producer._appender.expire_held(float("inf"))
        assert all(isinstance(each.exception(), KafkaError) for each in held)
        await check_spoilt(producer)


# -- before it is committed ----------------------------------------------------------------------

Call = Callable[[Producer], Awaitable[object]]


async def _nowait(producer: Producer, *arguments: Any, **settings: Any) -> object:
    return await producer.send_nowait(*arguments, **settings)


SPOIL: list[tuple[str, type[KafkaError], Call]] = [
    ("too large", RecordTooLarge, lambda p: p.send("t", bytes(40_000))),
    ("too large, nowait", RecordTooLarge, lambda p: _nowait(p, "t", bytes(40_000))),
    ("too large, held", RecordTooLarge, lambda p: _nowait(p, "unknown", bytes(40_000))),
    ("topic", UnknownTopicOrPartition, lambda p: p.send("unknown", b"")),
    ("topic, nowait", UnknownTopicOrPartition, lambda p: _nowait(p, "unknown", b"")),
    ("partition", UnknownTopicOrPartition, lambda p: p.send("t", b"", partition=9)),
    ("partition, nowait", UnknownTopicOrPartition, lambda p: _nowait(p, "t", b"", partition=9)),
    ("name", InvalidTopic, lambda p: p.send("no/topic", b"")),
    ("name, nowait", InvalidTopic, lambda p: _nowait(p, "no/topic", b"")),
    ("rows too large", RecordTooLarge, lambda p: p.send_arrow("t", rows(bytes(40_000)))),
    ("rows' topic", UnknownTopicOrPartition, lambda p: p.send_arrow("unknown", rows(b""))),
    ("rows' name", InvalidTopic, lambda p: p.send_arrow("no/topic", rows(b""))),
    (
        "rows' partition",
        UnknownTopicOrPartition,
        lambda p: p.send_arrow("t", rows(b""), partition=9),
    ),
]


def params(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """One for each case by its name; those with rows need Arrow."""
    return [
        pytest.param(*values, id=name, marks=needs("pyarrow") if name.startswith("rows") else ())
        for name, *values in cases
    ]


def rows(*values: bytes, numbers: tuple[int, ...] = ()) -> pa.Table:
    """A table of values: bytes, or numbers, which no producer takes."""
    import pyarrow as pa

    if numbers:
        return pa.table({"value": list(numbers)})
    return pa.table({"value": pa.array(values, pa.binary())})


@pytest.mark.parametrize(("error", "call"), params(SPOIL))
async def test_a_record_that_is_refused_spoils_its_transaction(error: type[KafkaError], call: Call):
    async with FakeCluster(1, topics={"t": 1}) as cluster, in_transaction(cluster) as producer:
        with pytest.raises(error):
            await ends(call(producer), "the record")
        await check_spoilt(producer)


FULL: list[tuple[str, Call]] = [
    ("send", lambda p: p.send("t", bytes(4_000))),
    ("rows", lambda p: p.send_arrow("t", rows(bytes(4_000)))),
]


@pytest.mark.parametrize("call", params(FULL))
async def test_a_record_without_room_in_time_spoils_its_transaction(call: Call):
    async with FakeCluster(1, topics={"t": 1}) as cluster, in_transaction(cluster) as producer:
        stalled = await fill(cluster, producer)
        with pytest.raises(BufferFull):
            await ends(call(producer), "the record")
        stalled.release()
        await check_spoilt(producer)


@needs("pyarrow")
async def test_half_a_table_is_not_committed():
    table = rows(b"half", b"other half").append_column("topic", [["t", "u"]])
    async with (
        FakeCluster(1, topics={"t": 1, "u": 1}) as cluster,
        in_transaction(cluster, partitioner=fails_for_u) as producer,
    ):
        with pytest.raises(ZeroDivisionError):
            await ends(producer.send_arrow(None, table), "send_arrow")
        await check_spoilt(producer)


# -- what leaves it as it is ---------------------------------------------------------------------

LEAVE: list[tuple[str, type[Exception], Call]] = [
    ("value", SerializationError, lambda p: p.send("t", 1)),
    ("value, nowait", SerializationError, lambda p: _nowait(p, "t", 1)),
    ("headers", SerializationError, lambda p: p.send("t", b"", headers=[("h", 1)])),
    ("number", SerializationError, lambda p: p.send("t", b"", partition=-1)),
    ("rows", SerializationError, lambda p: p.send_arrow("t", rows(numbers=(1,)))),
    ("partitioner", ZeroDivisionError, lambda p: p.send("u", b"")),
]


@pytest.mark.parametrize(("error", "call"), params(LEAVE))
async def test_a_call_that_sends_nothing_may_be_put_right(error: type[Exception], call: Call):
    async with (
        FakeCluster(1, topics={"t": 1, "u": 1}) as cluster,
        committed(cluster, [b"first"], partitioner=fails_for_u) as producer,
    ):
        await ends(producer.send("u", b"", partition=0), "a record, so that it is known")
        with pytest.raises(error):
            await ends(call(producer), "the record")


async def test_a_record_that_had_no_room_yet_may_be_sent_later():
    values = [b"first", *[bytes(4_000)] * 7]
    async with FakeCluster(1, topics={"t": 1}) as cluster, committed(cluster, values) as producer:
        stalled = await fill(cluster, producer)
        with pytest.raises(BufferFull):
            producer.send_nowait("t", bytes(4_000))
        with pytest.raises(BufferFull):
            await ends(producer.wait_for_room(), "room")
        waiting = asyncio.ensure_future(producer.send("t", bytes(4_000)))
        await pass_time(100)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        stalled.release()
