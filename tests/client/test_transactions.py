"""Transactions: whole or not at all, offsets included; fencing; readers of both kinds."""

from __future__ import annotations

import asyncio

import pytest

from moldau.client import Consumer, Producer, ProducerFenced, TopicPartition
from tests.client.conftest import MakeTopic
from tests.client.reading import DEADLINE_S, read_some, read_topic


async def test_committed_is_seen_and_aborted_is_not(
    bootstrap: str, make_topic: MakeTopic, fresh: str
):
    topic = await make_topic(partitions=3)
    async with Producer(bootstrap, transactional_id=fresh) as producer:
        for number in range(10):
            try:
                async with producer.transaction():
                    for partition in range(3):
                        await producer.send(topic, b"%d" % number, partition=partition)
                    if number % 2:
                        raise RuntimeError("of the application")
            except RuntimeError:
                assert number % 2
    committed = await read_topic(bootstrap, topic, isolation_level="read_committed")
    everything = await read_topic(bootstrap, topic)
    assert len(everything) == 30
    for partition in range(3):
        values = [int(each.value or b"") for each in committed if each.partition == partition]
        assert values == [0, 2, 4, 6, 8]


async def test_consume_transform_produce(bootstrap: str, make_topic: MakeTopic, fresh: str):
    source, target = await make_topic(partitions=2), await make_topic(partitions=2)
    async with Producer(bootstrap) as producer:
        for number in range(300):
            producer.send_nowait(source, b"%d" % number, partition=number % 2)
    for turn in range(3):
        async with (
            Consumer(
                bootstrap,
                group_id=fresh,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                max_poll_records=20,
            ) as consumer,
            Producer(bootstrap, transactional_id=fresh) as producer,
        ):
            consumer.subscribe([source])
            await producer.init_transactions()
            for step in range(20):
                polled = await consumer.getmany(timeout_ms=2_000 if step == 0 else 200)
                if not polled:
                    continue
                producer.begin_transaction()
                for place, records in polled.items():
                    for record in records:
                        producer.send_nowait(target, record.value, partition=place.partition)
                await producer.send_offsets(consumer)
                if step % 4 == turn:
                    await producer.abort_transaction()
                    await consumer.seek_to_committed()
                else:
                    await producer.commit_transaction()
    found = await read_topic(bootstrap, target, isolation_level="read_committed")
    assert sorted(int(each.value or b"") for each in found) == list(range(300))


async def test_the_older_of_two_instances_is_fenced(
    bootstrap: str, make_topic: MakeTopic, fresh: str
):
    topic = await make_topic()
    async with Producer(bootstrap, transactional_id=fresh) as old:
        await old.init_transactions()
        old.begin_transaction()
        await old.send(topic, b"old")
        async with Producer(bootstrap, transactional_id=fresh) as new:
            async with new.transaction():
                await new.send(topic, b"new")
            with pytest.raises(ProducerFenced):
                await old.commit_transaction()
    found = await read_topic(bootstrap, topic, isolation_level="read_committed")
    assert [each.value for each in found] == [b"new"]


async def test_an_open_transaction_holds_readers_of_committed_records_back(
    bootstrap: str, make_topic: MakeTopic, fresh: str
):
    topic = await make_topic()
    place = TopicPartition(topic, 0)
    async with (
        Producer(bootstrap, transactional_id=fresh) as producer,
        Producer(bootstrap) as plain,
        Consumer(
            bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer,
    ):
        consumer.assign([place])
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send(topic, b"open")
        await plain.send(topic, b"behind")
        assert await consumer.getmany(timeout_ms=500) == {}
        assert await consumer.end_offsets([place]) == {place: 0}
        await producer.commit_transaction()
        assert [each.value for each in await read_some(consumer, 2)] == [b"open", b"behind"]


async def test_cancelled_in_the_middle_it_can_be_ended_in_order(
    bootstrap: str, make_topic: MakeTopic, fresh: str
):
    topic = await make_topic()
    committed = []
    async with Producer(bootstrap, transactional_id=fresh) as producer:
        await producer.init_transactions()
        for number in range(30):
            producer.begin_transaction()
            producer.send_nowait(topic, b"%d" % number)
            ending = asyncio.create_task(producer.commit_transaction())
            for _ in range(number):
                await asyncio.sleep(0)
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            if ending.cancelled():
                async with asyncio.timeout(DEADLINE_S):
                    await producer.commit_transaction()
            committed.append(b"%d" % number)
    found = await read_topic(bootstrap, topic, isolation_level="read_committed")
    assert [each.value for each in found] == committed
