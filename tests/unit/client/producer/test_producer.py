"""The public producer on a fake cluster: what its calls promise when nothing breaks.

What happens under faults is in tests/unit/client/faults.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from moldau.client import (
    BufferFull,
    ClientClosed,
    Delivery,
    KafkaError,
    Producer,
    RecordMetadata,
    RequestTimeout,
)
from moldau.client.errors import InvalidRecord
from moldau.client.producer.partitioners import TopicPartitions
from moldau.client.serialization import IntegerSerializer, JsonSerializer
from moldau.protocol import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p00_produce import (
    BatchIndexAndErrorMessage,
    ProduceRequest,
    ProduceResponse,
)
from moldau.protocol.records import murmur2_partition, read_batch_header
from tests.fake_broker import Change, FakeCluster, Stall, Throttle
from tests.unit.client.faults.harness import PRODUCER, ends


def producer_of(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer(cluster.bootstrap_servers, **{**PRODUCER, **settings})


async def test_where_records_are() -> None:
    async with FakeCluster(1, topics={"t": 3}) as cluster, producer_of(cluster) as producer:
        first = await producer.send("t", b"value", key=b"key", headers=[("h", None)])
        assert first.partition == murmur2_partition(b"key", 3)
        assert (first.offset, first.serialized_key_size, first.serialized_value_size) == (0, 3, 5)
        second = await producer.send("t", None, partition=first.partition, timestamp_ms=1234)
        assert second == RecordMetadata("t", first.partition, 1, 1234, -1, -1)
        stored = cluster.records("t", first.partition)
        assert (stored[0].key, stored[0].value) == (b"key", b"value")
        assert stored[0].headers == (("h", None),)
        assert stored[0].timestamp_ms == first.timestamp_ms
        assert (stored[1].timestamp_ms, stored[1].value) == (1234, None)
        assert await producer.partitions_for("t") == [0, 1, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"compression_type": "gzip", "compression_gzip_level": 1},
        {"compression_type": "snappy"},
        {"compression_type": "lz4", "compression_lz4_level": 3},
        {"compression_type": "zstd", "compression_zstd_level": -5},
    ],
    ids=lambda settings: settings["compression_type"],
)
async def test_every_codec(settings: dict[str, Any]) -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with producer_of(cluster, linger_ms=50, **settings) as producer:
            for number in range(500):
                producer.send_nowait("t", b"a compressible value %d" % number)
        assert cluster.values("t") == [b"a compressible value %d" % n for n in range(500)]
        [request] = cluster.recorder.of(ProduceRequest)[:1]
        records = request.topic_data[0].partition_data[0].records
        assert records is not None
        assert read_batch_header(records).codec.name.lower() == settings["compression_type"]


async def test_the_last_batch_of_many_goes_out_without_acknowledgements() -> None:
    """Found by tests/simulation/replication, seed 64: with acks=0 no answer wakes the sender, which
    had sent the full batches and forgot the one that was still being filled.
    """
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        producer_of(
            cluster, acks=0, batch_size=1, linger_ms=1, delivery_timeout_ms=600_000
        ) as producer,
    ):
        await producer.send("t", b"first")
        deliveries = [producer.send_nowait("t", bytes(100)) for _ in range(3)]
        told = [await ends(each, "an unacknowledged record") for each in deliveries]
        assert [each.offset for each in told] == [-1, -1, -1]


async def test_records_that_come_together_share_a_batch() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with producer_of(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
            deliveries = [producer.send_nowait("t", b"%d" % number) for number in range(100)]
            await producer.partitions_for("t")
            deliveries += [producer.send_nowait("t", b"%d" % number) for number in range(100, 200)]
            assert not any(delivery.done() for delivery in deliveries)
            await ends(producer.flush(), "flush")
            assert [delivery.result().offset for delivery in deliveries] == list(range(200))
        assert cluster.recorder.count(ApiKey.PRODUCE) == 1


async def test_partitions_of_one_node_share_a_request() -> None:
    async with FakeCluster(1, topics={"t": 8}) as cluster:
        async with producer_of(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
            for partition in range(8):
                producer.send_nowait("t", b"v", partition=partition)
            await ends(producer.flush(), "flush")
        assert cluster.recorder.count(ApiKey.PRODUCE) == 1


async def test_serializers() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        producer = producer_of(
            cluster, key_serializer=IntegerSerializer(), value_serializer=JsonSerializer()
        )
        async with producer:
            await producer.send("t", {"a": 1}, key=7)
            await producer.send("t", None, key=None)
            producer.send_nowait("t", [2], key=8)
        stored = [(record.key, record.value) for record in cluster.records("t", 0)]
        assert stored == [(b"\0\0\0\7", b'{"a":1}'), (None, None), (b"\0\0\0\x08", b"[2]")]


async def test_a_partitioner_of_ones_own() -> None:
    asked: list[tuple[bytes | None, bytes | None, int, list[int]]] = []

    def last(
        topic: str, key: bytes | None, value: bytes | None, partitions: TopicPartitions
    ) -> int:
        asked.append((key, value, partitions.count, list(partitions.available)))
        if value == b"nowhere":
            return partitions.count
        return partitions.count - 1

    async with FakeCluster(1, topics={"t": 3}) as cluster:
        async with producer_of(cluster, partitioner=last) as producer:
            assert (await producer.send("t", b"first", key=b"k")).partition == 2
            assert (await producer.send("t", b"again")).partition == 2
            assert (await producer.send("t", b"told", partition=1)).partition == 1
            with pytest.raises(ValueError, match="partitioner"):
                await producer.send("t", b"nowhere")
        assert asked[:2] == [(b"k", b"first", 3, [0, 1, 2]), (None, b"again", 3, [0, 1, 2])]
        assert len(asked) == 3


async def test_a_partitioner_that_fails() -> None:
    """Also for the records that waited for the topic's partitions; the others go on."""

    def fails(topic: str, key: bytes | None, value: bytes | None, _: TopicPartitions) -> int:
        if value == b"good":
            return 1
        raise LookupError("the application's")

    async with (
        FakeCluster(1, topics={"t": 3}) as cluster,
        producer_of(cluster, partitioner=fails) as producer,
    ):
        told: list[Exception | None] = []
        producer.send_nowait("t", b"bad", on_delivery=lambda _, error: told.append(error))
        deliveries = [producer.send_nowait("t", value) for value in (b"bad", b"good")]
        await producer.flush()
        assert [type(each) for each in told] == [LookupError]
        with pytest.raises(LookupError, match="the application's"):
            await deliveries[0]
        assert (await deliveries[1]).partition == 1
        with pytest.raises(LookupError, match="the application's"):
            await producer.send("t", b"bad")


async def test_keys_can_be_ignored() -> None:
    async with FakeCluster(1, topics={"t": 50}) as cluster:
        settings = {"partitioner_ignore_keys": True, "linger_ms": 60_000}
        async with producer_of(cluster, delivery_timeout_ms=120_000, **settings) as producer:
            await producer.partitions_for("t")
            sent = [producer.send_nowait("t", b"v", key=b"%d" % number) for number in range(20)]
            await ends(producer.flush(), "flush")
            # The sticky choice: all in one batch, where keys would have spread them.
            assert len({delivery.result().partition for delivery in sent}) == 1


async def test_a_partition_that_comes_later_is_waited_for() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        await producer.send("t", b"first")
        late = producer.send_nowait("t", b"late", partition=2)
        later = producer.send_nowait("t", b"later", partition=2)
        assert (await ends(producer.send("t", b"others go on"), "others")).partition == 0
        cluster.grow_topic("t", 3)
        assert (await ends(_result(late), "the partition")).offset == 0
        assert (await ends(_result(later), "the partition")).offset == 1


async def _result(delivery: Delivery) -> RecordMetadata:
    return await delivery


async def test_callbacks() -> None:
    told: list[tuple[int, RecordMetadata | None, Exception | None]] = []
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        for number in range(5):
            producer.send_nowait(
                "t",
                b"%d" % number,
                on_delivery=lambda metadata, error, number=number: told.append(
                    (number, metadata, error)
                ),
            )
        await ends(producer.flush(), "flush")
        assert [number for number, _, _ in told] == list(range(5))
        assert [metadata.offset for _, metadata, _ in told if metadata] == list(range(5))
        await cluster.stop_node(0)
        producer.send_nowait("t", b"lost", on_delivery=lambda *both: told.append((5, *both)))
        await ends(producer.close(timeout_ms=10), "close")
        assert told[5][1] is None
        assert isinstance(told[5][2], ClientClosed)


async def test_a_callback_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    told: list[RecordMetadata | None] = []

    def broken(metadata: RecordMetadata | None, error: Exception | None) -> None:
        raise ZeroDivisionError("the application's")

    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        with caplog.at_level(logging.ERROR, "moldau.client.producer"):
            producer.send_nowait("t", b"1", on_delivery=broken)
            producer.send_nowait("t", b"2", on_delivery=lambda metadata, _: told.append(metadata))
            await ends(producer.flush(), "flush")
        assert len(told) == 1
        assert "callback" in caplog.text
        caplog.clear()


async def test_the_error_names_the_invalid_record() -> None:
    def refuse(response: ProduceResponse) -> None:
        [topic] = response.responses
        [entry] = topic.partition_responses
        entry.error_code = ErrorCode.INVALID_RECORD
        entry.base_offset = -1
        entry.error_message = "one or more records are bad"
        entry.record_errors = [
            BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")
        ]

    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        producer_of(cluster, linger_ms=50) as producer,
    ):
        cluster.fault(ApiKey.PRODUCE, Change(refuse))
        good, bad = producer.send_nowait("t", b"1"), producer.send_nowait("t", b"2")
        with pytest.raises(InvalidRecord, match="no key"):
            await ends(_result(bad), "the bad one")
        with pytest.raises(InvalidRecord, match="other records"):
            await ends(_result(good), "the good one")


async def test_a_throttled_producer_waits() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        cluster.fault(ApiKey.PRODUCE, Throttle(200))
        loop = asyncio.get_running_loop()
        await ends(producer.send("t", b"1"), "the first")
        began = loop.time()
        await ends(producer.send("t", b"2"), "the second")
        # No more than a lower bound: that it did wait.
        assert loop.time() - began >= 0.15


async def test_memory_has_a_limit_and_who_waited_first_goes_first() -> None:
    settings = {"buffer_memory": 30_000, "batch_size": 5_000}
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster, **settings) as p:
        await p.send("t", b"first")
        stalled = cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
        sends = [asyncio.create_task(p.send("t", b"%04d" % n + bytes(996))) for n in range(60)]
        await ends(stalled.fired(), "a request")
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(BufferFull):
            p.send_nowait("t", bytes(4_000))
        assert 0 <= p._accumulator.free_bytes < 30_000
        # Cancelled before there was room: never sent.
        sends[50].cancel()
        stalled.release()
        results = await ends(asyncio.gather(*sends, return_exceptions=True), "the sends")
        assert isinstance(results[50], asyncio.CancelledError)
        values = [value[:4] for value in cluster.values("t")[1:] if value]
        assert values == [b"%04d" % number for number in range(60) if number != 50]
        assert p._accumulator.free_bytes == 30_000


async def test_a_record_without_waiting_does_not_overtake_one_that_waits_for_room() -> None:
    settings = {"buffer_memory": 30_000, "batch_size": 5_000}
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster, **settings) as p:
        await p.send("t", b"first")
        stalled = cluster.fault(ApiKey.PRODUCE, Stall())
        taken = [p.send_nowait("t", bytes(4_000)) for _ in range(5)]
        waiting = asyncio.create_task(p.send("t", bytes(20_000)))
        await ends(stalled.fired(), "a request")
        for _ in range(5):
            await asyncio.sleep(0)
        assert p._appender.is_waited_for
        assert p._accumulator.free_bytes > 1_000
        with pytest.raises(BufferFull):  # there is room for this one alone
            p.send_nowait("t", b"later")
        stalled.release()
        await ends(waiting, "the one that waits")
        await ends(asyncio.gather(*taken, p.send("t", b"later")), "the others")
        sizes = [len(value or b"") for value in cluster.values("t")]
        assert sizes == [5, *[4_000] * 5, 20_000, 5]


async def test_who_has_waited_for_room_may_send_though_others_wait_behind() -> None:
    settings = {"buffer_memory": 30_000, "batch_size": 5_000}
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster, **settings) as p:
        await p.send("t", b"first")
        stalled = cluster.fault(ApiKey.PRODUCE, Stall())
        for _ in range(7):
            p.send_nowait("t", bytes(4_000))

        async def wait_and_send() -> None:
            await p.wait_for_room()
            p.send_nowait("t", b"mine")

        mine = asyncio.create_task(wait_and_send())
        await asyncio.sleep(0)
        behind = [asyncio.create_task(p.send("t", bytes(20_000))) for _ in range(3)]
        await ends(stalled.fired(), "a request")
        stalled.release()
        await ends(asyncio.gather(mine, *behind), "all")
        sizes = [len(value or b"") for value in cluster.values("t")]
        assert sizes == [5, *[4_000] * 7, 4, *[20_000] * 3]


async def test_a_flush_that_takes_too_long_goes_on_behind() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        stalled = cluster.fault(ApiKey.PRODUCE, Stall())
        delivery = producer.send_nowait("t", b"slow")
        with pytest.raises(RequestTimeout, match="flush"):
            await producer.flush(timeout_ms=50)
        assert not delivery.done()
        with pytest.raises(asyncio.InvalidStateError):
            delivery.result()
        stalled.release()
        await ends(producer.flush(), "flush")
        assert delivery.result().offset == 0


async def test_records_that_no_caller_waited_for_fail_with_the_close() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        producer = producer_of(cluster)
        async with producer:
            cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
            on_wire = producer.send_nowait("t", b"on the wire")
            held = producer.send_nowait("never-made", b"held")
            await ends(producer.close(timeout_ms=100), "close")
            for delivery in (on_wire, held):
                assert isinstance(delivery.exception(), ClientClosed)
            with pytest.raises(ClientClosed):
                producer.send_nowait("t", b"after")
        cluster.faults.clear()


async def test_a_bug_in_the_sender_leaves_no_caller_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        await producer.send("t", b"before")

        def broken(now_ms: float) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(producer._accumulator, "ready", broken)
        with pytest.raises(KafkaError, match="a bug"):
            await ends(producer.send("t", b"during"), "the send")
        with pytest.raises(KafkaError, match="has failed"):
            producer.send_nowait("t", b"after")
        caplog.clear()


async def test_a_producer_that_only_began_transactions_closes_cleanly() -> None:
    """Without `async with`, and without a record: the first call starts it."""
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        before = asyncio.all_tasks()
        producer = producer_of(cluster, transactional_id="only")
        await ends(producer.init_transactions(), "init_transactions")
        await ends(producer.close(), "close")
        left = [task for task in asyncio.all_tasks() - before if "producer" in task.get_name()]
        assert left == []
        with pytest.raises(ClientClosed):
            await producer.init_transactions()


async def test_one_task_however_many_records() -> None:
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        await producer.send("t", b"first")
        before = len(asyncio.all_tasks())
        for number in range(5_000):
            producer.send_nowait("t", b"%d" % number)
        assert len(asyncio.all_tasks()) == before
        await ends(producer.flush(), "flush")
