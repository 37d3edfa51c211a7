"""Lanes: kinds of requests do not delay each other, and in each the principals take turns."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from moldau.broker.api.forwarding import MAX_FORWARD_MS
from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.protocol.access_control import Operation
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p15_describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.p66_list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from moldau.protocol.registry import response_class
from moldau.server import apis
from moldau.server.apis import BROKER_APIS
from moldau.server.audit_log import DecisionLog
from moldau.server.authorizer import Authorizer
from moldau.server.fair_shares import Lane
from moldau.server.request import Sender
from moldau.server.request_router import MAX_WAITING_REQUESTS, Handler, RequestRouter, Route
from moldau.server.standard_authorizer import StandardAuthorizer
from tests.kit.counting import Newcomers, collector_at_rest
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.unit.broker.harness import DataPath, FakeConnection, FakeRequest

LANE = Lane("tests", 4)
OTHER = Lane("others", 4)
GIVEN_UP = Lane("given up", 4, ends_with_connection=True)


def opened(message: Any) -> Generator[tuple[Any, int], None, list[str]]:
    """The groups that a DescribeGroups names stand for what another node sends."""
    yield message, 0
    return message.groups


class Bench:
    """A router with a lane of each kind, whose answers come when the test says so."""

    def __init__(self, lane: Lane = LANE, authorizer: Authorizer | None = None) -> None:
        self.started: list[str] = []
        self.release: dict[str, asyncio.Event] = {}
        self.error: BaseException | None = None
        self.moves_to: Lane | None = None
        self.faults: list[BaseException] = []
        self.clock = ManualClock()
        self.router = RequestRouter(
            {
                ApiKey.DESCRIBE_CLUSTER: Route(0, 2, lambda: Handler(answer=self.answer), lane),
                ApiKey.LIST_TRANSACTIONS: Route(0, 2, lambda: Handler(answer=self.other), OTHER),
                ApiKey.CREATE_TOPICS: Route(2, 7, lambda: Handler(answer=self.answer), GIVEN_UP),
                ApiKey.DESCRIBE_GROUPS: Route(
                    0,
                    5,
                    lambda: Handler(answer=self.answer),
                    lane,
                    opened=opened,
                    asked_for_by=lambda _context, groups: groups[0] if groups else None,
                ),
            },
            clock=self.clock,
            authorizer=authorizer or Authorizer(),
            on_fault=self.faults.append,
        )

    async def answer(self, context: Any, request: Any) -> Any:
        client_id = context.client_id
        self.started.append(client_id)
        if self.moves_to is not None:
            await context.change_lane(self.moves_to)
            self.started.append(f"{client_id} moved")
        await self.release.setdefault(client_id, asyncio.Event()).wait()
        if self.error is not None:
            raise self.error
        return response_class(ApiKey(context.api_key))()

    async def other(self, context: Any, request: Any) -> Any:
        return ListTransactionsResponse()

    def ask(self, name: str, connection: FakeConnection, cut: int | None = None) -> FakeRequest:
        return self._send(name, connection, 60, 2, DescribeClusterRequest().to_bytes(2)[:cut])

    def ask_for_change(self, name: str, connection: FakeConnection) -> FakeRequest:
        return self._send(name, connection, 19, 7, CreateTopicsRequest().to_bytes(7))

    def ask_for_party(self, name: str, connection: FakeConnection, *party: str) -> FakeRequest:
        body = DescribeGroupsRequest(groups=list(party)).to_bytes(5)
        return self._send(name, connection, 15, 5, body)

    def search(self, connection: FakeConnection) -> FakeRequest:
        return self._send("s", connection, 66, 2, ListTransactionsRequest().to_bytes(2))

    def _send(
        self, name: str, connection: FakeConnection, api_key: int, version: int, body: bytes
    ) -> FakeRequest:
        request = FakeRequest(connection, api_key, version, body)
        request.client_id = name
        self.router(request)  # type: ignore[arg-type]
        return request

    async def finish(self, name: str) -> None:
        self.release.setdefault(name, asyncio.Event()).set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def client_of(principal: str = "User:ANONYMOUS", host: str = "127.0.0.1") -> FakeConnection:
    connection = FakeConnection()
    connection.principal, connection.client_host = principal, host
    return connection


@pytest.mark.parametrize(
    ("greedy", "other"),
    [
        (client_of("User:greedy"), client_of("User:other")),
        (client_of(host="10.0.0.1"), client_of(host="10.0.0.2")),
        (client_of(host="10.0.0.1"), client_of("User:other", "10.0.0.1")),
    ],
)
async def test_a_lane_full_of_one_partys_requests_has_a_place_for_others(
    greedy: FakeConnection, other: FakeConnection
) -> None:
    bench = Bench()
    for number in range(100):
        bench.ask(f"g{number}", greedy)
    bench.ask("other", other)
    await bench.settle()
    assert bench.started == ["g0", "g1", "other"]
    await bench.router.close(cancels=True)


async def test_principals_take_turns_and_each_keeps_its_order() -> None:
    bench = Bench()
    hosts = [client_of(f"User:{name}") for name in "abc"]
    for number in range(3):
        bench.ask(f"a{number}", hosts[0])
    for number in range(3):
        bench.ask(f"b{number}", hosts[1])
    for number in range(2):
        bench.ask(f"c{number}", hosts[2])
    await bench.settle()
    assert bench.started == ["a0", "a1", "b0", "c0"]
    for name in ("a0", "a1", "b0", "c0", "a2", "b1", "c1", "b2"):
        await bench.finish(name)
    assert bench.started[4:] == ["a2", "b1", "c1", "b2"]
    await bench.router.close()
    assert bench.faults == []


async def test_what_waits_for_a_place_keeps_nothing_of_what_its_connection_reads_into() -> None:
    bench = Bench()
    client = client_of("User:greedy")
    requests = [bench.ask(f"g{number}", client) for number in range(4)]
    assert [each.is_body_released for each in requests] == [False, False, True, True]
    for number in range(4):
        await bench.finish(f"g{number}")
    assert bench.started == ["g0", "g1", "g2", "g3"]
    assert all(each.is_answered for each in requests)
    assert bench.faults == []


async def test_a_full_lane_does_not_delay_another() -> None:
    bench = Bench()
    connection = client_of("User:a")
    for number in range(10):
        bench.ask(str(number), connection)
    search = bench.search(connection)
    await bench.settle()
    assert search.is_answered
    await bench.router.close(cancels=True)


async def test_a_waiting_place_ends_with_its_connection() -> None:
    bench = Bench()
    gone, stays = client_of("User:a"), client_of("User:a")
    for number in range(2):
        bench.ask(f"running{number}", stays)
    waiting = [bench.ask(f"gone{number}", gone) for number in range(50)]
    bench.ask("next", stays)
    assert not any(request.is_answered for request in waiting)
    gone.close("the client has gone")
    assert all(request.is_answered for request in waiting)
    assert bench.router.request_count == 3
    await bench.finish("running0")
    assert bench.started == ["running0", "running1", "next"]
    for name in ("running1", "next"):
        await bench.finish(name)
    assert bench.router.request_count == 0


async def test_what_is_given_up_with_its_connection_leaves_no_cycle() -> None:
    """The collector of a node comes seldom, and a request may hold much memory."""
    bench = Bench()
    other = client_of("User:a")
    for number in range(2):
        bench.ask_for_change(f"change{number}", other)
    await bench.settle()
    new = Newcomers(FakeRequest, asyncio.Task)
    with collector_at_rest():
        gone = client_of("User:a")
        bench.moves_to = GIVEN_UP
        bench.ask("waits", gone)
        await bench.settle()
        assert bench.started == ["change0", "change1", "waits"]
        gone.close("the client has gone")
        del gone
        await bench.settle()
        assert new.objects() == []
    await bench.router.close(cancels=True)


async def test_what_others_do_for_a_client_is_given_up_when_it_has_gone() -> None:
    bench = Bench()
    gone = client_of("User:a")
    changes = [bench.ask_for_change(f"change{number}", gone) for number in range(3)]
    own = bench.ask("own", gone)
    await bench.settle()
    gone.close("the client has gone")
    await bench.settle()
    assert all(request.is_answered for request in changes)
    assert bench.started == ["change0", "change1", "own"]
    assert bench.router.request_count == 1, "what is this node's own work ends by itself"
    await bench.finish("own")
    assert own.is_answered
    assert bench.faults == []
    late = bench.ask_for_change("late", gone)
    assert late.is_body_released
    assert bench.router.request_count == 0


async def test_a_connection_whose_principal_has_too_many_waiting_is_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "moldau.server")
    bench = Bench()
    first, second = client_of("User:a"), client_of("User:a")
    for number in range(2 + MAX_WAITING_REQUESTS):
        bench.ask(f"{number}", first)
    assert (first.suspended_count, caplog.records) == (0, [])
    bench.ask("over", second)
    assert (first.suspended_count, second.suspended_count) == (0, 1)
    (line,) = caplog.records
    assert line.getMessage() == (
        "Principal = User:a from host = 127.0.0.1 has 2 requests under way in the lane of tests,"
        " and 129 wait: its connections are not read until they have had their turns"
    )
    other = client_of("User:b")
    bench.ask("other", other)
    assert other.suspended_count == 0
    for number in range(MAX_WAITING_REQUESTS):
        await bench.finish(str(number))
        assert second.suspended_count == 1
    await bench.finish(str(MAX_WAITING_REQUESTS))
    assert second.suspended_count == 0
    assert not second.is_closed
    await bench.router.close(cancels=True)


async def test_each_client_that_fills_a_lane_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "moldau.server")
    bench = Bench()
    for name in ("User:a", "User:b"):
        client = client_of(name)
        for number in range(5 + MAX_WAITING_REQUESTS):
            bench.ask(str(number), client)
    assert [each.getMessage().split()[2] for each in caplog.records] == ["User:a", "User:b"]
    assert all(each.msg.is_counted for each in caplog.records), "the handler writes each"  # type: ignore[attr-defined]
    caplog.clear()
    await bench.router.close(cancels=True)
    assert [each.getMessage().split()[2] for each in caplog.records] == ["User:a", "User:b"]
    assert "130 wait" in caplog.records[0].getMessage()
    counts = [each.getMessage().rpartition(": ")[2] for each in caplog.records]
    assert counts == ["2 more times within 10 s", "3 more times within 10 s"]


async def test_what_another_node_sends_counts_for_whom_it_is_sent() -> None:
    bench, node = Bench(), client_of("User:node")
    for number in range(3):
        bench.ask_for_party(f"a{number}", node, "User:a")
    bench.ask_for_party("b", node, "User:b")
    bench.ask_for_party("own", node)
    places = bench.router._places_of(LANE)
    names = ("User:a", "User:b", "User:node")
    assert [places.held_by(name) for name in names] == [2, 1, 1]
    assert [places.waiting_count(name) for name in names] == [1, 0, 0]
    for number in range(2 + MAX_WAITING_REQUESTS):
        bench.ask_for_party(f"more {number}", node, "User:a")
    assert node.suspended_count == 0, "requests of others come through it"
    await bench.router.close(cancels=True)
    assert places.held == 0


async def test_a_connection_that_waits_long_for_its_second_lane_is_not_read() -> None:
    bench = Bench()
    first, second, other = (client_of("User:a") for _ in range(3))
    for number in range(2 + MAX_WAITING_REQUESTS - 1):
        bench.ask_for_change(f"change{number}", other)
    await bench.settle()
    bench.moves_to = GIVEN_UP
    bench.ask("first", first)
    await bench.settle()
    bench.ask("second", second)
    await bench.settle()
    assert (first.suspended_count, second.suspended_count) == (0, 1)
    bench.moves_to = None
    for number in range(2 + MAX_WAITING_REQUESTS - 1):
        await bench.finish(f"change{number}")
    assert "first moved" in bench.started
    await bench.finish("first")
    assert "second moved" in bench.started
    await bench.finish("second")
    assert bench.router._places_of(GIVEN_UP).held == 0
    assert [each.suspended_count for each in (first, second, other)] == [0, 0, 0]
    assert bench.faults == []


async def test_a_router_that_ends_writes_the_counts_of_its_authorizer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "moldau.authorizer")
    authorizer = StandardAuthorizer((), allows_unmentioned=False, log=DecisionLog(ManualClock()))
    bench = Bench(authorizer=authorizer)
    for _ in range(3):
        Sender("User:a", authorizer).authorized_topic(Operation.READ, "t")
    assert len(caplog.records) == 1
    await bench.router.close()
    assert len(caplog.records) == 2
    assert "2 more times" in caplog.text


async def test_a_suspended_connection_that_ends_leaves_nothing() -> None:
    bench = Bench()
    first, second = client_of("User:a"), client_of("User:a")
    for number in range(2 + MAX_WAITING_REQUESTS):
        bench.ask(f"{number}", first)
    bench.ask("over", second)
    second.close("the client has gone")
    assert second.suspended_count == 0
    first.close("the client has gone")
    for number in range(2):
        await bench.finish(str(number))
    assert bench.router.request_count == 0
    assert not bench.router._places_of(LANE)._parties


@pytest.mark.parametrize("fault", ["handler", "malformed", "answer"])
async def test_whatever_goes_wrong_with_a_request_its_place_is_free(fault: str) -> None:
    bench = Bench()
    first, second = client_of("User:a"), client_of("User:a")
    for number in range(2):
        bench.ask(f"running{number}", first)
    broken = bench.ask("broken", second, cut=0 if fault == "malformed" else None)
    behind = bench.ask("behind", first)
    await bench.finish("running0")
    if fault == "handler":
        bench.error = RuntimeError("the test says so")
        await bench.finish("broken")
        bench.error = None
    elif fault == "answer":
        broken.respond = lambda *_, **__: (_ for _ in ()).throw(OSError("no"))  # type: ignore[method-assign,assignment]
        await bench.finish("broken")
    else:
        assert "malformed" in second.close_reason
    assert "behind" in bench.started
    for name in ("running1", "behind"):
        await bench.finish(name)
    assert bench.router.request_count == 0
    assert bench.router._places_of(LANE).held == 0
    assert behind.is_answered


async def test_a_request_that_changes_its_lane_takes_no_place_of_the_first() -> None:
    bench = Bench()
    bench.moves_to = GIVEN_UP
    connection = client_of("User:a")
    for number in range(4):
        bench.ask(str(number), connection)
    await bench.settle()
    assert bench.started == ["0", "0 moved", "1", "1 moved", "2", "3"]
    assert bench.router._places_of(LANE).held == 0
    bench.moves_to = None
    bench.ask("stays", connection)
    await bench.settle()
    assert bench.started[-1] == "stays"
    assert any(connection.state.values()), "what ends with the connection"
    await bench.finish("0")
    assert bench.started[-1] == "2 moved"
    connection.close("the client has gone")
    await bench.settle()
    await bench.finish("stays")
    assert bench.router.request_count == 0
    assert bench.router._places_of(GIVEN_UP).held == 0
    assert not any(connection.state.values()), "nothing is left to end"


# -- the broker's table ---------------------------------------------------------------------------


def test_each_row_has_a_lane_if_a_coroutine_answers() -> None:
    assert {served.lane for served in BROKER_APIS.values()} == {
        None,
        apis.METADATA,
        apis.LOOKUPS,
        apis.DESCRIPTIONS,
        apis.FORWARDING,
        apis.SEARCHES,
    }


@pytest.mark.parametrize(
    "lane",
    [pytest.param(each, id=each.name) for each in vars(apis).values() if isinstance(each, Lane)],
)
async def test_each_lane_has_places_left_by_one_party(lane: Lane) -> None:
    lane = lane._replace(max_running=min(lane.max_running, 200))  # that of nodes has thousands
    bench = Bench(lane)
    greedy, other = client_of("User:greedy"), client_of("User:other")
    half = lane.max_running // 2
    for number in range(half + MAX_WAITING_REQUESTS // 2):
        bench.ask(f"g{number}", greedy)
    for number in range(half + 2):
        bench.ask(f"o{number}", other)
    await bench.settle()
    begun = Counter(each[0] for each in bench.started)
    assert begun == {"g": half, "o": half // 2}
    await bench.router.close(cancels=True)


def create_topics(timeout_ms: int = 2**31 - 1) -> bytes:
    topics = [CreatableTopic(name="x", num_partitions=1, replication_factor=1)]
    return CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms).to_bytes(7)


async def test_metadata_is_answered_while_no_controller_answers(broker: DataPath) -> None:
    broker.create_topic("t")
    broker.metadata.controller_id_for_clients = lambda: -1  # type: ignore[attr-defined]
    given_up = asyncio.Event()
    timeouts = []

    async def forward(
        request: Any, principal: str, client: Any, *, body: Any, timeout_ms: int
    ) -> Any:
        timeouts.append(timeout_ms)
        await given_up.wait()
        raise ControllerUnavailable("no controller")

    broker.channel.forward = forward  # type: ignore[attr-defined]
    attackers = [client_of("User:low") for _ in range(4)]
    requests = [
        FakeRequest(attackers[number % 4], ApiKey.CREATE_TOPICS, 7, create_topics())
        for number in range(200)
    ]
    for request in requests:
        broker.router(request)  # type: ignore[arg-type]
    victim = client_of("User:admin")
    body = MetadataRequest(topics=None).to_bytes(12)
    asked = FakeRequest(victim, ApiKey.METADATA, 12, body)
    broker.router(asked)  # type: ignore[arg-type]
    await until_async(lambda: asked.is_answered, "Metadata is answered")
    assert [topic.name for topic in asked.response.topics] == ["t"]
    change = FakeRequest(victim, ApiKey.CREATE_TOPICS, 7, create_topics(1_000))
    broker.router(change)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert timeouts[-1] == 2_000, "the victim's is under way, too"
    assert set(timeouts[:-1]) == {MAX_FORWARD_MS}
    for attacker in attackers:
        attacker.close("it has gone")
    await until_async(lambda: broker.router.request_count == 1, "the attacker's have ended")
    given_up.set()
    await until_async(lambda: change.is_answered, "the victim's is answered")
    assert change.response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_metadata_that_creates_topics_waits_among_what_is_forwarded(
    broker: DataPath,
) -> None:
    broker.create_topic("t")
    broker.metadata.controller_id_for_clients = lambda: -1  # type: ignore[attr-defined]
    given_up = asyncio.Event()

    async def forward(
        request: Any, principal: str, client: Any, *, body: Any, timeout_ms: int
    ) -> Any:
        await given_up.wait()
        raise ControllerUnavailable("no controller")

    broker.channel.forward = forward  # type: ignore[attr-defined]
    connection = client_of("User:a")
    creating = MetadataRequest(
        topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True
    ).to_bytes(12)
    requests = [FakeRequest(connection, ApiKey.METADATA, 12, creating) for _ in range(50)]
    for request in requests:
        broker.router(request)  # type: ignore[arg-type]
    asked = FakeRequest(connection, ApiKey.METADATA, 12, MetadataRequest(topics=None).to_bytes(12))
    broker.router(asked)  # type: ignore[arg-type]
    await until_async(lambda: asked.is_answered, "Metadata is answered")
    given_up.set()
    await until_async(lambda: all(request.is_answered for request in requests), "all are")
    assert requests[0].response.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
