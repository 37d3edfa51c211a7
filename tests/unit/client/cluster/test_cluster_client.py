"""Topics that stay fresh, sockets by purpose, pauses, and what is left after the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from moldau.client import (
    ClientClosed,
    ClientConfig,
    InvalidTopic,
    NoBrokerAvailable,
    RequestTimeout,
)
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.metadata_cache import Broker
from moldau.client.errors import KafkaError, UnknownTopicOrPartition, WrongEventLoop
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from tests.kit.waiting import until_async
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker
from tests.virtual.machine import pass_time

UNREACHABLE = "127.0.0.1:1"


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.topics = {"t": 2, "u": 1}
        yield scripted


def client_of(address: str, **settings: Any) -> ClusterClient:
    defaults = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1}
    return ClusterClient(ClientConfig(address, **{**defaults, **settings}))


@pytest.fixture
async def client(broker: ScriptedBroker) -> AsyncIterator[ClusterClient]:
    made = client_of(broker.address, default_api_timeout_ms=5_000)
    yield made
    await made.close()


def asked_for(broker: ScriptedBroker) -> list[list[str] | None]:
    return [
        None if request.topics is None else [topic.name or "" for topic in request.topics]
        for request in broker.requests_of(MetadataRequest)
    ]


async def test_a_topic_is_asked_for_once_however_many_wait(
    client: ClusterClient, broker: ScriptedBroker
):
    found = await asyncio.gather(*(client.updates.topic("t") for _ in range(50)))
    assert {len(each.partitions) for each in found} == {2}
    assert len(asked_for(broker)) == 1
    await client.updates.topic("t")
    assert len(asked_for(broker)) == 1


async def test_a_topic_that_comes_up_later(client: ClusterClient, broker: ScriptedBroker):
    waiting = asyncio.create_task(client.updates.topic("late", partition_count=3))
    await until_async(lambda: len(asked_for(broker)) > 2)
    broker.topics["late"] = 2
    count = len(asked_for(broker))
    await until_async(lambda: len(asked_for(broker)) > count + 1)
    assert not waiting.done()
    broker.topics["late"] = 3
    assert len((await waiting).partitions) == 3


async def test_a_topic_that_never_comes(client: ClusterClient, broker: ScriptedBroker):
    def refusing(code: ErrorCode) -> Callable[[Any], MetadataResponse]:
        def answer(request: Any) -> MetadataResponse:
            metadata = broker.metadata()
            metadata.topics = [
                MetadataResponseTopic(name=topic.name, error_code=code) for topic in request.topics
            ]
            return metadata

        return answer

    broker.script(ApiKey.METADATA, refusing(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    with pytest.raises(UnknownTopicOrPartition, match="still so after 50 ms"):
        await client.updates.topic("absent", timeout_ms=50)
    broker.script(ApiKey.METADATA, refusing(ErrorCode.INVALID_TOPIC_EXCEPTION))
    with pytest.raises(InvalidTopic, match="topic a/b"):
        await client.updates.topic("a/b")


async def test_an_unreachable_cluster_raises_with_its_address():
    client = client_of(UNREACHABLE)
    with pytest.raises(RequestTimeout, match=UNREACHABLE):
        await client.updates.topic("t", timeout_ms=50)
    with pytest.raises(NoBrokerAvailable, match=UNREACHABLE):
        await client.any_connection()
    with pytest.raises(NoBrokerAvailable, match=UNREACHABLE):
        await client.connection(1)
    assert client.ready(1) is None
    await client.close()


async def test_wanted_topics_stay_fresh_and_others_are_dropped(broker: ScriptedBroker):
    client = client_of(broker.address, metadata_max_age_ms=10)
    seen: list[set[str]] = []
    client.updates.on_update(lambda: seen.append(set(client.metadata.topics)))
    client.updates.want(["t", "u"])
    await until_async(lambda: len(seen) > 3)
    assert set(client.metadata.topics) == {"t", "u"}
    client.updates.want(["u"])
    await until_async(lambda: set(client.metadata.topics) == {"u"})
    client.updates.want_all()
    await until_async(lambda: None in asked_for(broker))
    await client.close()
    count = len(seen)
    broker.requests.clear()
    await asyncio.sleep(0)
    assert len(seen) == count


async def test_staleness_reported_a_thousand_times_is_asked_about_with_pauses(
    broker: ScriptedBroker,
):
    client = client_of(broker.address, retry_backoff_ms=20, retry_backoff_max_ms=10_000)
    await client.updates.topic("t")
    broker.requests.clear()
    # Doubling from 20 ms on, there is no room for more than a handful within any short time.
    async with asyncio.timeout(10):
        while len(asked_for(broker)) < 2:
            for _ in range(100):
                client.updates.request()
            await pass_time(1)
    assert len(asked_for(broker)) == 2
    await client.close()


async def test_each_purpose_has_a_socket(client: ClusterClient):
    await client.updates.topic("t")
    data = await client.connection(NODE_ID)
    fetch = await client.connection(NODE_ID, purpose="fetch")
    coordinator = await client.connection(NODE_ID, purpose="coordinator")
    assert len({id(each) for each in (data, fetch, coordinator)}) == 3
    assert await client.connection(NODE_ID, purpose="fetch") is fetch
    assert client.ready(NODE_ID) is data
    assert await client.any_connection() is data


async def test_ready_begins_to_connect(client: ClusterClient):
    await client.updates.topic("t")
    assert client.ready(NODE_ID, "fetch") is None
    connection = await client.connection(NODE_ID, "fetch")
    assert client.ready(NODE_ID, "fetch") is connection
    connection.close()
    assert client.ready(NODE_ID, "fetch") is None


async def test_throttled_brokers_are_left_alone(client: ClusterClient):
    await client.updates.topic("t")
    for purpose in ("data", "coordinator"):
        await client.connection(NODE_ID, purpose)
    client.throttled(NODE_ID, 40)
    client.throttled(NODE_ID, 1)
    assert client.ready(NODE_ID) is None
    assert client.ready(NODE_ID, "coordinator") is not None
    waiting = asyncio.create_task(client.connection(NODE_ID))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not (await waiting).is_closed
    assert client.ready(NODE_ID) is not None


async def test_idle_connections_are_closed_and_opened_again(broker: ScriptedBroker):
    client = client_of(broker.address, connections_max_idle_ms=20)
    connection = await client.any_connection()
    await until_async(lambda: connection.is_closed)
    assert await client.any_connection() is not connection
    # Whose broker was not silent: it is not asked whether it wants SASL.
    assert {type(each) for each in broker.requests} == {ApiVersionsRequest}
    await client.close()


async def test_a_cancelled_caller_leaves_the_attempt_to_others(client: ClusterClient):
    first = asyncio.create_task(client.any_connection())
    second = asyncio.create_task(client.any_connection())
    await asyncio.sleep(0)
    first.cancel()
    assert not (await second).is_closed
    assert first.cancelled()


async def test_nothing_is_left_after_the_end(broker: ScriptedBroker):
    before = asyncio.all_tasks()
    client = client_of(broker.address)
    await client.updates.topic("t")
    connection = await client.connection(NODE_ID, "fetch")
    waiting = asyncio.create_task(client.updates.topic("absent"))
    await until_async(lambda: len(asked_for(broker)) > 1)
    await client.close()
    await client.close()
    assert connection.is_closed
    with pytest.raises(ClientClosed):
        await waiting
    for call in (client.updates.topic("t"), client.any_connection(), client.connection(NODE_ID)):
        with pytest.raises(ClientClosed):
            await call
    client.updates.want(["t"])
    client.updates.request()
    assert client.ready(NODE_ID) is None
    assert asyncio.all_tasks() - before == set()


async def test_another_event_loop():
    client = client_of(UNREACHABLE)
    with pytest.raises(NoBrokerAvailable):
        await client.any_connection()

    async def misuse() -> None:
        with pytest.raises(WrongEventLoop, match=r"moldau\.client\.sync"):
            await client.any_connection()

    await asyncio.to_thread(lambda: asyncio.run(misuse()))
    await client.close()


async def test_leaders_learned_from_answers(client: ClusterClient):
    """KIP-951: only newer epochs, and only nodes whose address is known."""
    await client.updates.topic("t")
    updates: list[int] = []
    client.updates.on_update(lambda: updates.append(client.metadata.version))
    learn = client.metadata.learn_leader
    there = Broker(8, "127.0.0.1", 2, None)
    assert not learn("t", 0, 8, 2)
    assert not learn("t", 0, 8, 1, [there])
    assert not learn("absent", 0, 8, 2, [there])
    assert learn("t", 0, 8, 2, [there])
    assert client.metadata.leader("t", 0) == 8
    assert client.metadata.topics["t"].partitions[0].leader_epoch == 2
    # An older answer to Metadata does not bring the old leader back.
    await client.refresh_metadata(["t"])
    assert client.metadata.topics["t"].partitions[0].leader == 8
    assert updates


async def test_a_broker_that_wants_us_to_start_over(broker: ScriptedBroker):
    """KIP-1102: addresses that were learned are forgotten, the bootstrap servers asked again."""
    client = client_of(broker.address)
    await client.updates.topic("t")
    client.metadata.learn_broker(Broker(9, "127.0.0.1", 1, None))
    broker.script(
        ApiKey.METADATA,
        lambda _: MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED),
        lambda _: broker.metadata(),
    )
    client.updates.request()
    count = len(asked_for(broker))
    await until_async(lambda: len(asked_for(broker)) >= count + 2)
    await until_async(lambda: set(client.metadata.brokers) == {NODE_ID})
    assert client.metadata.leader("t", 0) == NODE_ID
    await client.close()


async def test_a_silent_cluster_is_forgotten_after_a_while(broker: ScriptedBroker):
    client = client_of(
        broker.address, metadata_recovery_rebootstrap_trigger_ms=0, request_timeout_ms=1_000
    )
    await client.updates.topic("t")
    broker.script(ApiKey.METADATA, lambda _: MetadataResponse(), lambda _: broker.metadata())
    version = client.metadata.version
    client.updates.request()
    await until_async(lambda: client.metadata.version > version + 1)
    await until_async(lambda: NODE_ID in client.metadata.brokers)
    assert client.metadata.leader("t", 0) == NODE_ID
    await client.close()


async def test_errors_that_stay_end_the_waiting(broker: ScriptedBroker):
    client = client_of(broker.address)
    broker.served = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (100, 100)}
    with pytest.raises(KafkaError, match="METADATA"):
        await client.updates.topic("t", timeout_ms=100)
    await client.close()
