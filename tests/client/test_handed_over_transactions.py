"""Transactions that another process ends, and what happens to one whose end was cancelled."""

from __future__ import annotations

import asyncio

import pytest

from moldau.client import Admin, BrokerError, KafkaError, Producer, ProducerFenced
from moldau.protocol.errors import ErrorCode
from tests.client.conftest import MakeTopic
from tests.client.reading import read_topic


async def committed_values(bootstrap: str, topic: str) -> list[bytes]:
    found = await read_topic(bootstrap, topic, isolation_level="read_committed")
    return sorted(each.value or b"" for each in found)


async def test_another_process_ends_it_and_may_ask_again(
    bootstrap: str, make_topic: MakeTopic, fresh: str
):
    topic = await make_topic()
    async with Admin(bootstrap) as admin:
        for is_commit in (True, False):
            name = f"{fresh}-{is_commit}"
            writer = Producer(bootstrap, transactional_id=name)
            async with writer, writer.transaction():
                writer.send_nowait(topic, b"%d" % is_commit)
                pair = await writer.hand_over_transaction()
            for _ in range(2):
                await admin.end_transaction(name, *pair, commit=is_commit)
            with pytest.raises(BrokerError) as caught:
                await admin.end_transaction(name, *pair, commit=not is_commit)
            assert caught.value.code is ErrorCode.INVALID_TXN_STATE
            async with Producer(bootstrap, transactional_id=name) as producer:
                await producer.init_transactions()
            with pytest.raises(ProducerFenced):
                await admin.end_transaction(name, *pair, commit=is_commit)
        with pytest.raises(BrokerError) as caught:
            await admin.end_transaction(f"{fresh}-nobody", 1, 1)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await committed_values(bootstrap, topic) == [b"1"]


async def test_cancelled_at_any_moment_it_is_whole_or_not_there(
    bootstrap: str, make_topic: MakeTopic, fresh: str
):
    topic = await make_topic(partitions=2)
    told = []
    async with Producer(bootstrap, transactional_id=fresh, linger_ms=0) as producer:

        async def block(number: int) -> None:
            async with producer.transaction():
                for partition in range(2):
                    producer.send_nowait(topic, b"%d" % number, partition=partition)
            told.append(b"%d" % number)

        await block(0)
        for number in range(1, 40):
            task = asyncio.create_task(block(number))
            await asyncio.wait({task}, timeout=number / 2_000)
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        await block(99)
    values = await committed_values(bootstrap, topic)
    assert [values.count(each) for each in set(values)] == [2] * len(set(values))
    assert set(told) <= set(values)


async def test_two_phase_commit_is_refused_with_a_reason(bootstrap: str, fresh: str):
    """Where it is off, and by brokers that do not know it."""
    async with Producer(
        bootstrap, transactional_id=fresh, transaction_two_phase_commit_enable=True
    ) as producer:
        with pytest.raises(KafkaError) as caught:
            await producer.init_transactions()
    assert caught.value.code in (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    )
