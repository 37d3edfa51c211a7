"""A connection cut at every byte of a request and of an answer: sent once, read once.

One small exchange is repeated for every place; whatever is cut, the next try has to find out what
became of it.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from moldau.client import Admin, Consumer, KafkaError, OffsetAndMetadata, Producer
from moldau.protocol import ApiKey
from tests.fake_broker import CutRequest, CutResponse, FakeCluster, Stall
from tests.unit.client.faults.harness import (
    CONSUMER,
    PRODUCER,
    check_delivered,
    delivered,
    ends,
    outcome_text,
    partition,
    take,
    values_of,
)


async def test_of_a_produce_request_and_its_answer():
    sent: list[bytes] = []
    failed = []
    async with FakeCluster(1, topics={"t": 1}) as cluster, _producer(cluster) as producer:
        await producer.send("t", b"first")
        sent.append(b"first")
        request_bytes = _size_of_last(cluster, ApiKey.PRODUCE)
        for action in _cuts(request_bytes, 90):
            value = repr(action).encode()
            fault = cluster.fault(ApiKey.PRODUCE, action)
            try:
                await ends(producer.send("t", value), repr(action))
            except (KafkaError, AssertionError) as error:
                failed.append(f"{action}: {outcome_text(error)}")
            sent.append(value)
            assert fault.fired_count == 1, action
        assert failed == []
        check_delivered(cluster, "t", {0: sent})


def _producer(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer(cluster.bootstrap_servers, **{**PRODUCER, **settings})


def _size_of_last(cluster: FakeCluster, api_key: ApiKey) -> int:
    sizes = [each.size_bytes for each in cluster.recorder.requests if each.api_key == api_key]
    return sizes[-1]


def _cuts(request_bytes: int, response_bytes: int) -> list[Any]:
    """At every byte, every other time with RST."""
    resets = itertools.cycle((False, True))
    return [
        *(CutRequest(at_byte, next(resets)) for at_byte in range(0, request_bytes + 1, 3)),
        *(CutResponse(at_byte, next(resets)) for at_byte in range(response_bytes)),
    ]


async def test_of_the_exchanges_that_begin_a_producer():
    """ApiVersions, Metadata and InitProducerId of a new producer each time."""
    sent = []
    failed = []
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        for api_key in (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID):
            for at_byte in range(0, 60, 4):
                action = CutResponse(at_byte, reset=at_byte % 8 == 0)
                value = f"{api_key.name} {at_byte}".encode()
                cluster.fault(api_key, action)
                try:
                    async with _producer(cluster) as producer:
                        await ends(producer.send("t", value), f"{api_key.name} {action}")
                except (KafkaError, AssertionError) as error:
                    failed.append(f"{api_key.name} {action}: {outcome_text(error)}")
                sent.append(value)
        assert failed == []
        assert cluster.faults.waiting == []
        check_delivered(cluster, "t", {0: sent})


async def test_of_a_fetch_request_and_its_answer():
    failed = []
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        Consumer(cluster.bootstrap_servers, **{**CONSUMER, "fetch_max_wait_ms": 5}) as consumer,
    ):
        consumer.assign([partition(0)])
        cluster.fill("t", [b"first"])
        await take(consumer, 1)
        for action in _cuts(_size_of_last(cluster, ApiKey.FETCH), 120):
            value = repr(action).encode()
            cluster.fault(ApiKey.FETCH, action)
            cluster.fill("t", [value])
            try:
                got = values_of(await take(consumer, 1, repr(action)))
                if got != [value]:
                    failed.append(f"{action}: got {got}")
            except (KafkaError, AssertionError) as error:
                failed.append(f"{action}: {outcome_text(error)}")
                break
    assert failed == []


@pytest.mark.parametrize(
    "api_key", [ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE], ids=lambda key: key.name
)
async def test_of_a_transactions_exchanges(api_key: ApiKey):
    expected = []
    failed = []
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        _producer(cluster, transactional_id="x") as producer,
    ):
        for number, at_byte in enumerate(range(0, 48, 3), start=1):
            value = b"%d" % at_byte
            cluster.fault(api_key, CutResponse(at_byte, reset=at_byte % 2 == 0))
            try:
                await ends(_transaction(producer, value, number), f"{api_key.name} {at_byte}")
            except (KafkaError, AssertionError) as error:
                failed.append(f"{api_key.name} {at_byte}: {outcome_text(error)}")
            expected.append(value)
        assert failed == []
        assert cluster.faults.waiting == []
        assert delivered(cluster, "t", committed_only=True) == expected
        assert delivered(cluster, "t") == expected
        assert cluster.groups.committed("g", "t") == len(expected)


async def _transaction(producer: Producer, value: bytes, offset: int) -> None:
    async with producer.transaction():
        producer.send_nowait("t", value)
        await producer.send_offsets({partition(0): OffsetAndMetadata(offset)}, group="g")


async def test_of_a_commit_and_its_answer():
    failed = []
    settings = {**CONSUMER, "group_id": "g"}
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        Consumer(cluster.bootstrap_servers, **settings) as consumer,
    ):
        consumer.assign([partition(0)])
        await ends(consumer.commit({partition(0): OffsetAndMetadata(0)}), "the first commit")
        actions = _cuts(_size_of_last(cluster, ApiKey.OFFSET_COMMIT), 50)
        for number, action in enumerate(actions, start=1):
            cluster.fault(ApiKey.OFFSET_COMMIT, action)
            try:
                await ends(consumer.commit({partition(0): OffsetAndMetadata(number)}), repr(action))
            except (KafkaError, AssertionError) as error:
                failed.append(f"{action}: {outcome_text(error)}")
            if cluster.groups.committed("g", "t") != number:
                failed.append(f"{action}: not committed")
        assert cluster.faults.waiting == []
    assert failed == []


async def test_of_an_admin_exchange():
    failed = []
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with Admin(cluster.bootstrap_servers) as admin:
            await admin.list_topics()
            for action in _cuts(_size_of_last(cluster, ApiKey.METADATA), 80):
                cluster.fault(ApiKey.METADATA, action)
                try:
                    if await ends(admin.list_topics(), repr(action)) != ["t"]:
                        failed.append(repr(action))
                except (KafkaError, AssertionError) as error:
                    failed.append(f"{action}: {outcome_text(error)}")
        assert cluster.faults.waiting == []
    assert failed == []


async def test_of_a_large_request_that_is_still_being_written():
    """The broker goes away while the client's socket is full."""
    large = bytes(900_000)
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with _producer(cluster, acks="all") as producer:
            for at_byte in (14, 1000, 500_000, 899_000):
                cluster.fault(ApiKey.PRODUCE, CutRequest(at_byte, reset=True))
                await ends(producer.send("t", large), f"cut at {at_byte}")
        assert delivered(cluster, "t") == [large] * 4


@pytest.mark.parametrize("after_bytes", [0, 2, 4, 7, 30])
async def test_half_an_answer_and_then_nothing(after_bytes: int):
    """The connection stays open: only the request's time ends it."""
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with _producer(cluster, request_timeout_ms=150) as producer:
            cluster.fault(ApiKey.PRODUCE, Stall(after_apply=True, after_bytes=after_bytes))
            await ends(producer.send("t", b"once"), f"{after_bytes} bytes")
        check_delivered(cluster, "t", {0: [b"once"]})
