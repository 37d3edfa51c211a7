"""The end of a producer: every record that a call had is decided, wherever it was by then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.client import ClientClosed, Delivery, KafkaError, Producer
from moldau.client.errors import DeliveryTimeout, TransactionAborted
from moldau.protocol import ApiKey, ErrorCode
from tests.fake_broker import AnswerError, FakeCluster, Stall
from tests.kit.absent import ABSENT
from tests.unit.client.faults.harness import PRODUCER, delivered, ends
from tests.virtual.machine import pass_time

LONG_MS = 3_600_000
"""Longer than a test waits for anything."""

SETTINGS: dict[str, Any] = {
    **PRODUCER,
    "buffer_memory": 30_000,
    "batch_size": 5_000,
    "max_request_size": 25_000,
    "max_block_ms": LONG_MS,
    "delivery_timeout_ms": LONG_MS,
}


def producer_of(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer(cluster.bootstrap_servers, **{**SETTINGS, **settings})


async def turns(count: int = 10) -> None:
    """Let everything run that waits for nothing."""
    for _ in range(count):
        await asyncio.sleep(0)


async def fill(cluster: FakeCluster, producer: Producer) -> Any:
    """Take all room by records of which some are on the wire; the fault that keeps them there."""
    stalled = cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
    for _ in range(7):
        producer.send_nowait("t", bytes(4_000))
    await ends(stalled.fired(), "a request")
    return stalled


async def _delivered(delivery: Delivery) -> object:
    return await delivery


# -- where a record can be -----------------------------------------------------------------------

Place = Callable[[FakeCluster, Producer], Awaitable[list[Awaitable[object]]]]
"""Puts records into a place; what reports their outcome."""


async def no_topic(cluster: FakeCluster, producer: Producer) -> list[Awaitable[object]]:
    sent = producer.send_nowait("never-made", b"held")
    return [_delivered(sent), producer.send("never-made", b"held too")]


async def no_partition(cluster: FakeCluster, producer: Producer) -> list[Awaitable[object]]:
    return [_delivered(producer.send_nowait("t", b"held", partition=9))]


async def no_room(cluster: FakeCluster, producer: Producer) -> list[Awaitable[object]]:
    await fill(cluster, producer)
    waiting: list[Awaitable[object]] = [
        producer.send("t", bytes(20_000)),
        producer.send("never-made", bytes(20_000)),
        producer.wait_for_room(),
    ]
    if "pyarrow" not in ABSENT:
        import pyarrow as pa

        table = pa.table({"value": pa.array([bytes(20_000)], pa.binary())})
        waiting.append(producer.send_arrow("t", table))
    return waiting


async def filling(cluster: FakeCluster, producer: Producer) -> list[Awaitable[object]]:
    cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
    return [_delivered(producer.send_nowait("t", b"filling"))]


async def on_wire(cluster: FakeCluster, producer: Producer) -> list[Awaitable[object]]:
    stalled = cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
    sent = producer.send_nowait("t", b"on the wire")
    await ends(stalled.fired(), "a request")
    return [_delivered(sent), _delivered(producer.send_nowait("t", b"behind it"))]


async def sent_again(cluster: FakeCluster, producer: Producer) -> list[Awaitable[object]]:
    refused = cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS), times=None)
    sent = producer.send_nowait("t", b"to be sent again")
    await ends(refused.fired(), "a request")
    return [_delivered(sent), _delivered(producer.send_nowait("t", b"behind it"))]


async def no_leader(cluster: FakeCluster, producer: Producer) -> list[Awaitable[object]]:
    await cluster.stop_node(0)
    return [_delivered(producer.send_nowait("t", b"not to be sent"))]


PLACES: list[Place] = [no_topic, no_partition, no_room, filling, on_wire, sent_again, no_leader]


async def at_once(producer: Producer) -> None:
    await ends(producer.close(0), "close")


async def in_time(producer: Producer) -> None:
    await ends(producer.close(200), "close")


async def cancelled(producer: Producer) -> None:
    closing = asyncio.ensure_future(producer.close())
    await turns(3)
    assert closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ends(closing, "the cancelled close")


@pytest.mark.parametrize("transactional_id", [None, "x"])
@pytest.mark.parametrize("close", [at_once, in_time, cancelled])
@pytest.mark.parametrize("place", PLACES)
async def test_a_closed_producer_leaves_no_record_undecided(
    place: Place,
    close: Callable[[Producer], Awaitable[None]],
    transactional_id: str | None,
) -> None:
    """Found by tests/simulation/replication, seed 176648523: those that waited for room."""
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        producer = producer_of(cluster, transactional_id=transactional_id)
        if transactional_id is not None:
            await ends(producer.init_transactions(), "init_transactions")
            producer.begin_transaction()
        await ends(producer.send("t", b"first"), "the first")
        records = [asyncio.ensure_future(each) for each in await place(cluster, producer)]
        await turns()
        assert not any(record.done() for record in records)
        await close(producer)
        await turns()
        undecided = [number for number, each in enumerate(records) if not each.done()]
        await ends(producer.close(), "closing again")
        assert undecided == []
        errors = [record.exception() for record in records]
        # An open transaction is aborted, where there is time.
        expected = (ClientClosed, TransactionAborted)[: 1 if transactional_id is None else 2]
        assert [each for each in errors if not isinstance(each, expected)] == []
        cluster.faults.clear()


async def test_a_cancelled_close_does_not_wait_for_the_coordinator() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        producer = producer_of(cluster, transactional_id="x", request_timeout_ms=LONG_MS)
        await ends(producer.init_transactions(), "init_transactions")
        producer.begin_transaction()
        await ends(producer.send("t", b"first"), "the first")
        held = producer.send_nowait("never-made", b"held")
        stalled = cluster.fault(ApiKey.END_TXN, Stall(), times=None)
        closing = asyncio.ensure_future(producer.close())
        await ends(stalled.fired(), "a request")
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ends(closing, "the cancelled close")
        assert held.done()
        cluster.faults.clear()


@pytest.mark.parametrize("transactional_id", [None, "x"])
@pytest.mark.parametrize("timeout_ms", [0, LONG_MS])
async def test_a_close_that_is_cancelled_anywhere_closes_everything(
    timeout_ms: float, transactional_id: str | None
) -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        before = asyncio.all_tasks()
        cancelled_count = 0
        for turn in range(1, 30):
            producer = producer_of(cluster, transactional_id=transactional_id)
            if transactional_id is not None:
                await ends(producer.init_transactions(), "init_transactions")
                producer.begin_transaction()
            sent = [producer.send_nowait(topic, b"held") for topic in ("t", "never-made")]
            closing = asyncio.ensure_future(producer.close(timeout_ms))
            await turns(turn)
            closing.cancel()
            await asyncio.wait([closing])
            cancelled_count += closing.cancelled()
            assert all(each.done() for each in sent), f"cancelled in turn {turn}"
            await ends(producer.close(), "closing again")
            await turns()
            left = [_code_of(task) for task in asyncio.all_tasks() - before]
            assert not any("moldau/client" in each for each in left), f"cancelled in turn {turn}"
        assert cancelled_count > 2


def _code_of(task: asyncio.Task[object]) -> str:
    coroutine = task.get_coro()
    return "" if coroutine is None else str(coroutine.cr_code.co_filename)


async def test_what_is_held_is_looked_for_while_the_producer_closes() -> None:
    """The topic comes up, and the partition is not there yet."""
    async with FakeCluster(1) as cluster:
        async with producer_of(cluster, metadata_max_age_ms=LONG_MS) as producer:
            sent = producer.send_nowait("t", b"late", partition=2)
            closing = asyncio.ensure_future(producer.close())
            await pass_time(500)
            cluster.create_topic("t", 1)
            await pass_time(2_000)
            assert not closing.done()
            cluster.grow_topic("t", 3)
            await ends(closing, "close")
        assert sent.result().partition == 2


# -- without a close -----------------------------------------------------------------------------


async def test_room_that_comes_back_with_an_expired_batch_is_given_to_who_waits() -> None:
    limits = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 1_000}
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        producer_of(cluster, **limits) as producer,
    ):
        await ends(producer.send("t", b"first"), "the first")
        # Its second request goes out later, and is still on the wire when it expires.
        cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS))
        cluster.fault(ApiKey.PRODUCE, Stall(), nth=2)
        expired = producer.send_nowait("t", bytes(20_000))
        waiting = asyncio.ensure_future(producer.send("t", bytes(20_000)))
        with pytest.raises(DeliveryTimeout):
            await ends(_delivered(expired), "the one that expires")
        assert producer._accumulator.free_bytes < 20_000
        assert (await ends(waiting, "the one that waits")).serialized_value_size == 20_000


async def test_who_waits_for_room_while_the_sender_fails_waits_no_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(now_ms: float) -> None:
        raise ZeroDivisionError("a bug")

    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        await ends(producer.send("t", b"first"), "the first")
        records = [asyncio.ensure_future(each) for each in await no_room(cluster, producer)]
        await turns()
        monkeypatch.setattr(producer._accumulator, "ready", broken)
        producer._sender.wake()
        for each in records:
            with pytest.raises(KafkaError, match="a bug"):
                await ends(each, "the one that waits")
        caplog.clear()


async def test_who_waits_for_room_in_a_transaction_ends_with_it() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with producer_of(cluster, transactional_id="x") as producer:
            await ends(producer.init_transactions(), "init_transactions")
            producer.begin_transaction()
            await ends(producer.send("t", b"first"), "the first")
            stalled = await fill(cluster, producer)
            waiting = [asyncio.ensure_future(producer.send("t", bytes(9_000))) for _ in range(9)]
            await turns()
            aborting = asyncio.ensure_future(producer.abort_transaction())
            for each in waiting:
                with pytest.raises(TransactionAborted):
                    await ends(each, "the one that waits")
            stalled.release()
            cluster.faults.clear()
            await ends(aborting, "abort_transaction")
            async with producer.transaction():
                await ends(producer.send("t", b"next"), "the next")
        assert delivered(cluster, "t", committed_only=True) == [b"next"]
