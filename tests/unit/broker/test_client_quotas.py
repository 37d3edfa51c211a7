"""Client quotas at a broker's requests: pauses after answers, empty fetches, time, exemptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.p01_fetch import ReplicaState
from moldau.protocol.messages.p19_create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterResponse
from moldau.server.authorizer import Authorizer
from moldau.server.quotas.client_quotas import Quotas
from moldau.server.request_router import Handler, RequestRouter, Route
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.unit.broker.harness import (
    OTHER_BROKER_ID,
    DataPath,
    FakeConnection,
    FakeRequest,
)
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce
from tests.unit.broker.test_request_router import LANE, describe

ANONYMOUS = (("user", "ANONYMOUS"),)
SECOND = 1000.0


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    """A data path whose quotas are `broker.quotas`."""
    data_path = DataPath(tmp_path)
    data_path.quotas = Quotas(data_path.clock, data_path.registry)
    async with data_path:
        data_path.create_topic("t")
        yield data_path


def limit(broker: DataPath, **values: float | None) -> None:
    broker.quotas.change({ANONYMOUS: values})


def metrics(broker: DataPath, kind: str, **labels: str) -> dict[str, float]:
    """The gauges of one kind of quota and of one client."""
    prefix = f"kafka.server:type={kind},name="
    return {
        metric.name.removeprefix(prefix): metric.instrument.value
        for metric in broker.registry.collect()
        if metric.name.startswith(prefix) and dict(metric.labels) == labels
    }


async def test_a_producer_pauses_after_its_answer(broker: DataPath) -> None:
    first = await broker.ask(produce({("t", 0): batch()}), 12)
    assert first.throttle_time_ms == broker.connection.throttled_ms == 0
    assert not metrics(broker, "Produce", user="ANONYMOUS", client_id="")
    request = produce({("t", 0): batch(value=b"x" * 1000)})
    size_bytes = len(request.to_bytes(12))
    limit(broker, producer_byte_rate=size_bytes / 20)
    second = await broker.ask(request, 12)
    assert only(second).error_code == 0, "what is throttled is appended all the same"
    assert second.throttle_time_ms == broker.connection.throttled_ms == 10_000
    assert metrics(broker, "Produce", user="ANONYMOUS", client_id="") == {
        "byte-rate": pytest.approx(size_bytes / 10),
        "throttle-time": 10_000.0,
    }


async def test_a_producer_without_acknowledgements_pauses_too(broker: DataPath) -> None:
    limit(broker, producer_byte_rate=1)
    assert await broker.ask(produce({("t", 0): batch()}, acks=0), 12) is None
    assert broker.connection.throttled_ms > 0
    assert broker.log("t").log_end_offset == 1


async def test_metrics_of_forgotten_clients_go(broker: DataPath) -> None:
    broker.quotas.change({(("client-id", None), ("user", None)): {"producer_byte_rate": 1e9}})
    await broker.ask(produce({("t", 0): batch()}), 12)
    mine = {"user": "ANONYMOUS", "client_id": "tests"}
    assert metrics(broker, "Produce", **mine).keys() == {"byte-rate", "throttle-time"}
    broker.clock.advance(3_600_001.0)
    broker.client_id = "another"
    await broker.ask(produce({("t", 0): batch()}), 12)
    assert not metrics(broker, "Produce", **mine)


async def test_a_consumer_above_its_quota_gets_an_empty_answer(broker: DataPath) -> None:
    size_bytes = len(batch(value=b"x" * 1000))
    for _ in range(3):
        await broker.ask(produce({("t", 0): batch(value=b"x" * 1000)}), 12)
    limit(broker, consumer_byte_rate=size_bytes / 10)
    one = fetch({("t", 0): 0}, partition_max_bytes=1)
    first = await broker.ask(one, 12)
    assert fetched_values(only(first)) == [b"x" * 1000]
    assert first.throttle_time_ms == 0
    for _ in range(3):
        refused = await broker.ask(one, 12)
        assert refused.responses == []
        assert refused.throttle_time_ms == broker.connection.throttled_ms == 10_000
    broker.clock.advance(11 * SECOND)
    assert fetched_values(only(await broker.ask(one, 12))), "what was refused does not count"


async def test_no_fetch_gets_more_than_ten_windows_allow(broker: DataPath) -> None:
    size_bytes = len(batch(value=b"x" * 1000))
    for _ in range(5):
        await broker.ask(produce({("t", 0): batch(value=b"x" * 1000)}), 12)
    limit(broker, consumer_byte_rate=2.5 * size_bytes / 10)
    found = await broker.ask(fetch({("t", 0): 0}), 12)
    assert len(fetched_values(only(found))) == 2
    assert found.throttle_time_ms == 0


async def test_a_session_learns_nothing_by_an_empty_answer(broker: DataPath) -> None:
    await broker.ask(produce({("t", 0): batch(value=b"a")}), 12)
    limit(broker, consumer_byte_rate=1)
    founding = fetch({("t", 0): 0}, session_epoch=0)
    refused = await broker.ask(founding, 12)
    assert (refused.session_id, refused.responses) == (0, [])
    assert refused.throttle_time_ms > 0
    assert len(broker.sessions) == 0
    limit(broker, consumer_byte_rate=None)
    founded = await broker.ask(founding, 12)
    assert fetched_values(only(founded)) == [b"a"]
    await broker.ask(produce({("t", 0): batch(value=b"b")}), 12)
    limit(broker, consumer_byte_rate=1)
    mine = founded.session_id
    refused = await broker.ask(fetch({("t", 0): 1}, session_id=mine, session_epoch=1), 12)
    assert (refused.session_id, refused.responses) == (mine, [])
    limit(broker, consumer_byte_rate=None)
    found = await broker.ask(fetch({}, session_id=mine, session_epoch=2), 12)
    assert fetched_values(only(found)) == [b"b"]


async def test_a_large_fetch_is_refused_as_well(broker: DataPath) -> None:
    count = 600
    broker.create_topic("many", count)
    await broker.ask(produce({("many", 7): batch(value=b"x" * 1000)}), 12)
    everything = fetch({("many", index): 0 for index in range(count)})
    limit(broker, consumer_byte_rate=1)
    refused = await broker.ask(everything, 12)
    assert refused.responses == []
    assert refused.throttle_time_ms > 0
    limit(broker, consumer_byte_rate=None)
    assert len((await broker.ask(everything, 12)).responses[0].partitions) == count


async def test_followers_have_no_client_quota(tmp_path: Path) -> None:
    data_path = DataPath(tmp_path)
    data_path.quotas = Quotas(data_path.clock, data_path.registry)
    async with data_path as broker:
        broker.create_topic("t", replicas=[1, OTHER_BROKER_ID])
        await broker.ask(produce({("t", 0): batch(value=b"x" * 1000)}, acks=1), 12)
        broker.quotas.change({ANONYMOUS: {"consumer_byte_rate": 1.0, "request_percentage": 1e-9}})
        state = ReplicaState(replica_id=OTHER_BROKER_ID, replica_epoch=-1)
        request = fetch({("t", 0): 0}, api_version=17, replica_state=state)
        found = await broker.ask(request, 17)
        assert fetched_values(only(found)) == [b"x" * 1000]
        assert found.throttle_time_ms == 0


# -- the time of requests (KIP-124) ----------------------------------------------------------------


def routed(
    handler: Handler, clock: ManualClock, *, api_key: ApiKey = ApiKey.DESCRIBE_CLUSTER
) -> tuple[RequestRouter, Quotas]:
    """A router with one API, and its quotas."""
    quotas = Quotas(clock)
    router = RequestRouter(
        {api_key: Route(0, 7, lambda: handler, handler.answer and LANE)},
        clock=clock,
        authorizer=Authorizer(),
        on_fault=[].append,
        quotas=quotas,
    )
    return router, quotas


async def answered(router: RequestRouter, request: FakeRequest | None = None) -> FakeRequest:
    asked = request or describe()
    router(asked)  # type: ignore[arg-type]
    await until_async(lambda: asked.is_answered)
    return asked


async def test_only_the_time_that_a_request_holds_the_loop_counts() -> None:
    clock = ManualClock()

    async def answer(context: Any, request: Any) -> Any:
        clock.stand_still(60.0)
        await asyncio.sleep(0)
        clock.stand_still(40.0)
        return DescribeClusterResponse()

    router, quotas = routed(Handler(answer=answer), clock)
    assert (await answered(router)).response.throttle_time_ms == 0
    quotas.change({ANONYMOUS: {"request_percentage": 0.99}})
    first = await answered(router)
    # 100 ms in ten windows of a second are 1 percent.
    assert first.response.throttle_time_ms == first.connection.throttled_ms == pytest.approx(101)
    quotas.change({ANONYMOUS: {"request_percentage": 0.001}})
    assert (await answered(router)).response.throttle_time_ms == SECOND, "a window at most"


async def test_waiting_does_not_count() -> None:
    clock = ManualClock()
    release = asyncio.Event()

    async def answer(context: Any, request: Any) -> Any:
        await release.wait()
        return DescribeClusterResponse()

    router, quotas = routed(Handler(answer=answer), clock)
    quotas.change({ANONYMOUS: {"request_percentage": 0.001}})
    request = describe()
    router(request)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    clock.stand_still(5000.0)
    release.set()
    await until_async(lambda: request.is_answered)
    assert request.response.throttle_time_ms == 0


async def test_the_time_of_plain_handlers_and_of_their_steps_counts() -> None:
    clock = ManualClock()

    def steps(context: Any, request: Any) -> Any:
        for _ in range(5):
            clock.stand_still(20.0)
            yield
        context.respond(DescribeClusterResponse())

    def at_once(context: Any, request: Any) -> None:
        clock.stand_still(100.0)
        context.respond(DescribeClusterResponse())

    for handle in (steps, at_once):
        router, quotas = routed(Handler(handle=handle), clock)
        quotas.change({ANONYMOUS: {"request_percentage": 0.5}})
        request = await answered(router)
        assert request.response.throttle_time_ms == SECOND, handle


async def test_a_consumer_above_its_time_gets_an_empty_answer(broker: DataPath) -> None:
    await broker.ask(produce({("t", 0): batch()}), 12)
    broker.quotas.record_request("User:ANONYMOUS", "tests", 0.0)
    limit(broker, request_percentage=1.0, consumer_byte_rate=1e6)
    broker.quotas.record_request("User:ANONYMOUS", "tests", 500.0)
    refused = await broker.ask(fetch({("t", 0): 0}), 12)
    assert refused.responses == []
    assert refused.throttle_time_ms == SECOND
    assert metrics(broker, "Fetch", user="ANONYMOUS", client_id="")["byte-rate"] == 0
    assert metrics(broker, "Request", user="ANONYMOUS", client_id="")["request-time"] == 5.0


async def test_the_pause_that_a_controller_asked_for_is_kept() -> None:
    clock = ManualClock()

    async def answer(context: Any, request: Any) -> Any:
        return CreateTopicsResponse(throttle_time_ms=700)

    router, _quotas = routed(Handler(answer=answer), clock, api_key=ApiKey.CREATE_TOPICS)
    body = CreateTopicsRequest().to_bytes(7)
    request = await answered(router, FakeRequest(FakeConnection(), ApiKey.CREATE_TOPICS, 7, body))
    assert request.response.throttle_time_ms == request.connection.throttled_ms == 700
