"""Transactions of this client against real nodes: outcomes, fencing, offsets, two-phase commit,
transaction versions 1 and 2, and ending what another process has open.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moldau.client import (
    Admin,
    Consumer,
    FeatureUpdate,
    NewTopic,
    Producer,
    UpgradeType,
)
from moldau.client.errors import (
    BrokerError,
    InvalidTransactionState,
    KafkaError,
    ProducerFenced,
    TransactionAborted,
)
from moldau.client.producer.transactions import PreparedTransaction
from moldau.client.records import OffsetAndMetadata, TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.testing import Cluster
from tests.kit.waiting import until_async

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
TWO_PHASE = {**CONFIG, "transaction.two.phase.commit.enable": "true"}
names = itertools.count()


@pytest.fixture(scope="module")
def newest() -> Iterator[Cluster]:
    with Cluster(config=TWO_PHASE) as running:
        yield running


@pytest.fixture(scope="module")
def older() -> Iterator[Cluster]:
    """The same with transaction.version 1."""
    with Cluster(config=CONFIG) as running:
        asyncio.run(downgrade(running))
        yield running


async def downgrade(cluster: Cluster) -> None:
    async with Admin(cluster.bootstrap_server) as admin:
        await admin.update_features(
            {"transaction.version": FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)}
        )


@pytest.fixture(params=[1, 2])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Both, one after the other."""
    found: Cluster = request.getfixturevalue("older" if request.param == 1 else "newest")
    return found


@pytest.fixture
async def topic(cluster: Cluster) -> str:
    return await new_topic(cluster)


async def new_topic(cluster: Cluster) -> str:
    name = f"t{next(names)}"
    async with Admin(cluster.bootstrap_server) as admin:
        await admin.create_topics([NewTopic(name, partition_count=2)])
    return name


@asynccontextmanager
async def producing(cluster: Cluster, transactional_id: str, **settings: Any) -> AsyncIterator[Any]:
    producer = Producer(
        cluster.bootstrap_server, transactional_id=transactional_id, linger_ms=0, **settings
    )
    async with producer:
        yield producer


async def visible(cluster: Cluster, topic: str) -> list[bytes]:
    """The values that read_committed sees now, all partitions together."""
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    async with Consumer(
        cluster.bootstrap_server, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found = []
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [record.value for record in records]
    return sorted(found)


async def committed(cluster: Cluster, group: str, partition: TopicPartition) -> int | None:
    async with Consumer(cluster.bootstrap_server, group_id=group) as consumer:
        found = (await consumer.committed([partition]))[partition]
        return None if found is None else found.offset


async def test_commit_and_abort(cluster: Cluster, topic: str) -> None:
    async with producing(cluster, f"id-{topic}") as producer:
        for number in range(3):
            async with producer.transaction():
                for partition in range(2):
                    producer.send_nowait(topic, b"%d-%d" % (number, partition), partition=partition)

        async def failing() -> None:
            async with producer.transaction():
                await producer.send(topic, b"aborted", partition=0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        async with producer.transaction():
            await producer.send(topic, b"3", partition=1)
    expected = [b"%d-%d" % (number, partition) for number in range(3) for partition in range(2)]
    assert await visible(cluster, topic) == sorted([*expected, b"3"])


async def test_a_cancelled_block_is_aborted_with_what_was_not_sent(
    cluster: Cluster, topic: str
) -> None:
    async with producing(cluster, f"id-{topic}") as producer:
        is_inside = asyncio.Event()
        deliveries = []

        async def block() -> None:
            async with producer.transaction():
                await producer.send(topic, b"sent", partition=0)
                deliveries.extend(producer.send_nowait(topic, b"not") for _ in range(3))
                is_inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await is_inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for delivery in deliveries:
            # They may have been on the wire already.
            assert delivery.done()
            error = delivery.exception()
            assert error is None or isinstance(error, TransactionAborted)
        async with producer.transaction():
            await producer.send(topic, b"next", partition=0)
    assert await visible(cluster, topic) == [b"next"]


async def test_the_newer_producer_fences_the_older(cluster: Cluster, topic: str) -> None:
    async with (
        producing(cluster, f"id-{topic}") as older,
        producing(cluster, f"id-{topic}") as newer,
    ):
        await older.init_transactions()
        older.begin_transaction()
        await older.send(topic, b"old", partition=0)
        await newer.init_transactions()
        with pytest.raises(ProducerFenced):
            await older.commit_transaction()
        with pytest.raises(ProducerFenced):
            older.begin_transaction()
        async with newer.transaction():
            await newer.send(topic, b"new", partition=0)
    assert await visible(cluster, topic) == [b"new"]


async def test_offsets_are_committed_with_the_records(cluster: Cluster, topic: str) -> None:
    output = await new_topic(cluster)
    async with Producer(cluster.bootstrap_server) as producer:
        for number in range(10):
            await producer.send(topic, b"%d" % number, partition=0)
    group = f"g-{topic}"
    partition = TopicPartition(topic, 0)
    async with (
        producing(cluster, f"id-{topic}") as producer,
        Consumer(
            cluster.bootstrap_server,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        consumer.subscribe([topic])

        async def transform(*, fails: bool) -> None:
            async with producer.transaction():
                taken = 0
                while taken < 10:
                    for records in (await consumer.getmany(timeout_ms=1_000)).values():
                        taken += len(records)
                        for record in records:
                            producer.send_nowait(output, b"made of " + record.value)
                await producer.send_offsets(consumer)
                if fails:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await transform(fails=True)
        assert await committed(cluster, group, partition) is None
        await consumer.seek_to_committed()
        await transform(fails=False)
        assert await committed(cluster, group, partition) == 10
    assert await visible(cluster, output) == [b"made of %d" % number for number in range(10)]


async def test_a_producer_that_is_no_member_may_commit_only_for_an_empty_group(
    cluster: Cluster, topic: str
) -> None:
    group = f"g-{topic}"
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(7, "mine", 0)}
    async with producing(cluster, f"id-{topic}") as producer:
        async with producer.transaction():
            await producer.send_offsets(offsets, group)
        assert await committed(cluster, group, TopicPartition(topic, 0)) == 7
        async with Consumer(
            cluster.bootstrap_server, group_id=group, enable_auto_commit=False
        ) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=200)
            stale = consumer.group_metadata()
        async with Consumer(
            cluster.bootstrap_server, group_id=group, enable_auto_commit=False
        ) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=200)

            async def commit_as(member: Any) -> None:
                async with producer.transaction():
                    await producer.send_offsets(offsets, member)

            with pytest.raises(KafkaError) as caught:
                await commit_as(stale)
            assert caught.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
            await commit_as(consumer.group_metadata())


async def test_another_process_ends_the_transaction(cluster: Cluster, topic: str) -> None:
    """As a sink does: writers flush, and one process decides for all (and may be asked again)."""
    async with Admin(cluster.bootstrap_server) as admin:
        for is_commit in (True, False):
            name = f"id-{topic}-{is_commit}"
            async with producing(cluster, name) as producer, producer.transaction():
                producer.send_nowait(topic, b"%d" % is_commit, partition=0)
                pair = await producer.hand_over_transaction()
            for _ in range(2):
                await admin.end_transaction(name, *pair, commit=is_commit)
            with pytest.raises(BrokerError) as caught:
                await admin.end_transaction(name, *pair, commit=not is_commit)
            assert caught.value.code is ErrorCode.INVALID_TXN_STATE
        with pytest.raises(BrokerError) as caught:
            await admin.end_transaction("nobody", 1, 1)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        await admin.fence_producers([f"id-{topic}-True"])
        with pytest.raises(ProducerFenced):
            await admin.end_transaction(f"id-{topic}-True", pair.producer_id - 1, 5)
    assert await visible(cluster, topic) == [b"1"]


async def test_a_prepared_transaction_survives_its_producer(newest: Cluster) -> None:
    topic = await new_topic(newest)
    settings = {"transaction_two_phase_commit_enable": True}
    for is_commit in (True, False):
        name = f"id-{topic}-{is_commit}"
        async with producing(newest, name, **settings) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send(topic, b"%d" % is_commit, partition=0)
            stored = str(await producer.prepare_transaction())
            with pytest.raises(InvalidTransactionState):
                producer.send_nowait(topic, b"too late")
        # Closed as if it had crashed: what is prepared stays.
        assert await visible(newest, topic) == ([] if is_commit else [b"1", b"after"])
        async with producing(newest, name, **settings) as producer:
            kept = await producer.init_transactions(keep_prepared_transaction=True)
            assert kept == PreparedTransaction.parse(stored)
            decided = PreparedTransaction.parse(stored if is_commit else "1:1")
            assert await producer.complete_transaction(decided) is is_commit
            async with producer.transaction():
                await producer.send(topic, b"after", partition=1)
    assert await visible(newest, topic) == [b"1", b"after", b"after"]


async def test_two_phase_commit_is_refused_where_it_is_off(older: Cluster) -> None:
    async with producing(older, "two-phase", transaction_two_phase_commit_enable=True) as producer:
        with pytest.raises(KafkaError) as caught:
            await producer.init_transactions()
        assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_a_transaction_that_takes_too_long_is_aborted(cluster: Cluster, topic: str) -> None:
    async with producing(cluster, f"id-{topic}", transaction_timeout_ms=5_000) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send(topic, b"slow", partition=0)
        async with Admin(cluster.bootstrap_server) as admin:

            async def is_aborted() -> bool:
                [found] = (await admin.describe_transactions([f"id-{topic}"])).values()
                assert not isinstance(found, KafkaError)
                return found.state == "CompleteAbort"

            await until_async(is_aborted, what="the coordinator has aborted it")
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(KafkaError, match=r"transaction\.timeout\.ms") as caught:
                await call()
            assert caught.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)
    assert await visible(cluster, topic) == []
