"""Large requests: decoded in slices, within budgets, with less room for who lacks the right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.protocol.access_control import CLUSTER_RESOURCE_NAME, Operation, ResourceType
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.p10_find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.protocol.schema import Message
from moldau.runtime.slices import SLICE_MS
from moldau.server import decoding
from moldau.server.authorizer import Authorizer
from moldau.server.decoding import (
    LIST_BYTES,
    MAX_IN_SLICES,
    Budget,
    Decoding,
    Permission,
    needs,
    on_cluster,
    on_configs,
    on_groups,
    on_transactions,
)
from moldau.server.fair_shares import FairShares
from moldau.server.request import (
    AT_ONCE_BYTES,
    FREED_AT_ONCE,
    Decoded,
    RequestContext,
    TooLarge,
)
from moldau.server.request_router import Handler, RequestRouter, Route
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.system.security.greedy_requests import large_offset_fetch
from tests.unit.broker.harness import DataPath, FakeConnection, FakeRequest
from tests.unit.broker.messages import produce

KEYS = 3_000
BODY = FindCoordinatorRequest(coordinator_keys=["a-coordinator"] * KEYS).to_bytes(4)
HEADER_BYTES = 18


class Rules(Authorizer):
    """Allows what the test names."""

    def __init__(self, *allowed: tuple[Operation, str]) -> None:
        self.allowed = allowed
        self.asked: list[str] = []

    def authorize(self, principal: str, client_host: str, *question: Any) -> bool:
        operation, _kind, name = question
        self.asked.append(name)
        return (operation, name) in self.allowed

    def authorize_by_resource_type(
        self, principal: str, client_host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return any(operation == each for each, _ in self.allowed)


class Bench:
    def __init__(
        self, budget: Budget | None = None, memory_bytes: int = 10**8, authorizer: Any = None
    ) -> None:
        self.faults: list[BaseException] = []
        self.handled: list[Any] = []
        self.clock = ManualClock()
        self.router = RequestRouter(
            {
                ApiKey.FIND_COORDINATOR: Route(
                    0, 6, lambda: Handler(handle=self.handle), budget=budget or Budget()
                )
            },
            clock=self.clock,
            authorizer=authorizer or Authorizer(),
            on_fault=self.faults.append,
            decoded_max_bytes=memory_bytes,
        )
        self.memory = self.router._decoding.memory

    def handle(self, context: Any, message: Any) -> None:
        self.handled.append((context, message))

    def answer(self) -> None:
        context, _ = self.handled.pop(0)
        context.respond(FindCoordinatorResponse())

    def ask(self, principal: str = "User:a", body: bytes = BODY) -> FakeRequest:
        connection = FakeConnection()
        connection.principal = principal
        request = FakeRequest(connection, ApiKey.FIND_COORDINATOR, 4, body)
        request.is_large = len(body) > AT_ONCE_BYTES
        self.router(request)  # type: ignore[arg-type]
        return request

    async def handled_count(self, count: int) -> None:
        await until_async(lambda: len(self.handled) == count, "they are handled")


async def test_memory_is_held_until_the_answer() -> None:
    bench = Bench()
    request = bench.ask()
    await bench.handled_count(1)
    assert bench.handled[0][1].coordinator_keys == ["a-coordinator"] * KEYS
    assert KEYS * 62 <= bench.memory.held <= KEYS * 80
    assert not any(request.connection.state.values()), "nothing waits that ends with it"
    bench.answer()
    assert bench.memory.held == 0
    assert request.connection.suspended_count == 0


async def test_small_requests_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Message, "decode_in_steps", None)
    bench = Bench()
    bench.ask(body=FindCoordinatorRequest(coordinator_keys=["a"]).to_bytes(4))
    assert len(bench.handled) == 1, "at once"
    assert bench.memory.held == 0


async def test_what_takes_more_than_its_budget_closes_its_connection() -> None:
    bench = Bench(Budget(KEYS * 50))
    request = bench.ask()
    await until_async(lambda: request.is_answered, "it is refused")
    assert request.connection.close_reason == (
        "FindCoordinatorRequest v4 of User:a: it takes more than 150000 bytes decoded"
    )
    assert request.connection.suspended_count == 0
    assert (bench.memory.held, bench.faults, bench.handled) == (0, [], [])
    longer = bench.ask(body=BODY * 4)
    await until_async(lambda: longer.is_answered, "it is refused before it is decoded")
    assert longer.connection.close_reason == (
        "FindCoordinatorRequest v4 of User:a: it takes more than 150000 bytes"
    )


@pytest.mark.parametrize(("budget_bytes", "memory_bytes"), [(1_000, 10**6), (10**6, 1_000)])
async def test_records_are_no_part_of_what_a_produce_request_takes(
    budget_bytes: int, memory_bytes: int
) -> None:
    made = Decoding(ManualClock(), memory_bytes)

    def asked(message: Message, version: int) -> tuple[RequestContext, type[Message], Budget]:
        body = message.to_bytes(version)
        request = FakeRequest(FakeConnection(), message.API_KEY, version, body)
        return RequestContext(request, Authorizer()), type(message), Budget(budget_bytes)  # type: ignore[arg-type]

    sent = produce({("t", 0): bytes(5_000)})
    decoded = await made.decode("User:a", *asked(sent, 12))
    assert decoded.message == sent
    steps = type(sent).decode_in_steps(bytearray(sent.to_bytes(12)), 12)
    assert made.memory.held == sum(size_bytes for _, size_bytes in steps) < 1_000
    decoded.release()
    for key_count, too_large in ((498, "1000 bytes decoded"), (499, "1000 bytes")):
        lookup = FindCoordinatorRequest(coordinator_keys=["a"] * key_count)
        with pytest.raises(TooLarge, match=f"^it takes more than {too_large}$"):
            await made.decode("User:a", *asked(lookup, 4))
    assert made.memory.held == 0


async def test_what_is_reserved_is_given_back_as_far_as_it_is_not_used() -> None:
    memory, freed = FairShares(100), []
    message = FindCoordinatorRequest()
    assert memory.take("a", 10)
    decoded = Decoded(memory, freed.append, "a", 10)
    decoded.limit(11)
    decoded.use(message, 4)
    decoded.use(message, 6)
    decoded.keep()
    assert memory.held == 10
    with pytest.raises(TooLarge, match="more than 10 bytes decoded"):
        decoded.use(message, 1)
    decoded.keep()
    decoded.release()
    assert (memory.held, decoded.message) == (0, None)
    decoded.release()
    await asyncio.sleep(0)
    assert freed == [[message]], "once, and not while it may still be looked at"
    assert memory.take("a", 10)
    little = Decoded(memory, freed.append, "a", 10)
    little.use(message, 9)
    little.keep()
    assert memory.held == 9
    little.limit(9)
    with pytest.raises(TooLarge, match="more than 9 bytes decoded"):
        little.use(message, 1)
    little.release()
    assert memory.held == 0


class Counted(str):
    """The name of a topic. Counts those that are gone."""

    __slots__ = ()

    gone = 0

    def __del__(self) -> None:
        Counted.gone += 1


async def test_what_nothing_else_holds_is_taken_apart_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter(range(10**9))  # every look at the clock is the end of a slice
    monkeypatch.setattr(ManualClock, "monotonic_ms", lambda _: next(ticks))
    made, count = Decoding(ManualClock()), 5 * FREED_AT_ONCE
    Counted.gone = 0
    topics = [OffsetFetchRequestTopics(name=Counted("t")) for _ in range(count)]
    group = OffsetFetchRequestGroup(topics=topics)
    del topics
    held = OffsetFetchRequest(groups=[group])
    made.free([held])
    assert (held.groups, Counted.gone) == ([group], 0)
    del group
    owned: list[Message] = [held]
    del held
    made.free(owned)
    turns = 0
    while Counted.gone < count:
        before = Counted.gone
        await asyncio.sleep(0)
        turns += 1
        assert Counted.gone - before <= FREED_AT_ONCE
    assert turns >= count // FREED_AT_ONCE - 1


async def test_requests_wait_for_memory_and_principals_take_turns() -> None:
    size = len(BODY) * decoding.MAX_GROWTH
    bench = Bench(memory_bytes=2 * size)
    first = [bench.ask("User:a") for _ in range(3)]
    await bench.handled_count(3)
    held = bench.memory.held
    assert held < size / 4, "what is not used is given back"
    for _ in first:
        bench.answer()
    bench.memory.take("User:x", size)
    waiting = [bench.ask(name) for name in ("User:a", "User:a", "User:b")]
    gone = bench.ask("User:c")
    await bench.handled_count(1)
    assert bench.handled[0][0].principal == "User:a", "the one that fits"
    bench.memory.take("User:x", bench.memory.capacity - bench.memory.held - size // 2)
    gone.connection.close("the client has gone")
    await until_async(lambda: gone.is_answered, "its place has ended")
    bench.memory.give_back("User:x", bench.memory.held_by("User:x"))
    await until_async(lambda: len(bench.handled) == 3, "all others")
    for _ in waiting:
        bench.answer()
    await until_async(lambda: bench.memory.held == 0, "nothing is held")
    assert all(request.connection.suspended_count == 0 for request in (*waiting, gone))
    await bench.router.close()
    assert bench.faults == []


async def test_memory_is_shared_by_principals() -> None:
    size = len(BODY) * decoding.MAX_GROWTH
    bench = Bench(memory_bytes=4 * size)
    turns = bench.router._decoding.turns
    turns.take("User:x", decoding.MAX_IN_SLICES)  # all wait with what is reserved for them
    for name in ("User:a", "User:b", "User:c"):
        for _ in range(5):
            bench.ask(name)
        await asyncio.sleep(0)
    held = [bench.memory.held_by(name) // size for name in ("User:a", "User:b", "User:c")]
    assert (held, bench.memory.held) == ([2, 1, 1], 4 * size)
    turns.give_back("User:x", decoding.MAX_IN_SLICES)
    for _ in range(15):
        await until_async(lambda: bool(bench.handled), "it is handled")
        bench.answer()
    await until_async(lambda: bench.memory.held == 0, "nothing is held")
    assert bench.faults == []


async def test_slices_are_shared_by_principals(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    ticks = iter(range(10**9))  # every look at the clock is the end of a slice
    monkeypatch.setattr(ManualClock, "monotonic_ms", lambda _: next(ticks))
    for name in ("User:a", "User:b", "User:c"):
        for _ in range(5):
            bench.ask(name)
    turns, held = bench.router._decoding.turns, set()
    while len(bench.handled) < 15:
        await asyncio.sleep(0)
        held.add((turns.held, max(turns.held_by(f"User:{name}") for name in "abc")))
    assert max(held) == (decoding.MAX_IN_SLICES, decoding.MAX_IN_SLICES // 2)
    assert max(most for _, most in held) == decoding.MAX_IN_SLICES // 2


async def test_who_lacks_the_right_has_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "REFUSED_BYTES", KEYS * 40)
    budget = needs(on_groups(Operation.DESCRIBE))
    for allowed in (Operation.DESCRIBE, Operation.READ, Operation.DELETE):
        bench = Bench(budget, authorizer=Rules((allowed, "a group")))
        bench.ask()
        await bench.handled_count(1)
    bench = Bench(budget, authorizer=Rules((Operation.CREATE, "a group")))
    request = bench.ask()
    await until_async(lambda: request.is_answered, "it is refused")
    assert "it takes more than 120000 bytes decoded" in request.connection.close_reason
    short = bench.ask(body=FindCoordinatorRequest(coordinator_keys=["a" * 30_000]).to_bytes(4))
    await bench.handled_count(1)
    assert not short.connection.is_closed, "few things are refused one by one"


def test_a_right_on_what_the_message_names_is_asked_for_by_its_name() -> None:
    rules = Rules((Operation.READ, "mine"))
    sender: Any = type("Sender", (), {"authorizer": rules, "principal": "", "client_host": ""})
    permission = Permission(Operation.READ, ResourceType.GROUP, "group_id")
    assert permission.has(sender, OffsetFetchRequest(group_id="mine"))
    assert not permission.has(sender, OffsetFetchRequest(group_id="another"))
    assert permission.has(sender, OffsetFetchRequest()), "it names none: any"


def test_a_right_on_the_cluster_is_asked_for_by_its_one_name() -> None:
    rules = Rules((Operation.ALTER, CLUSTER_RESOURCE_NAME))
    sender: Any = type("Sender", (), {"authorizer": rules, "principal": "", "client_host": ""})
    assert on_cluster(Operation.ALTER).has(sender, FindCoordinatorRequest())
    assert not on_cluster(Operation.DESCRIBE).has(sender, FindCoordinatorRequest())
    assert rules.asked == [CLUSTER_RESOURCE_NAME] * 2


def test_a_budget_names_the_rights_of_which_one_is_needed() -> None:
    asked = Operation.DESCRIBE_CONFIGS
    rights = (
        Permission(asked, ResourceType.TOPIC),
        Permission(asked, ResourceType.CLUSTER),
        Permission(asked, ResourceType.GROUP),
    )
    assert on_configs(asked) == Budget(LIST_BYTES, rights)
    own = Permission(asked, ResourceType.TRANSACTIONAL_ID, "id")
    assert needs(on_transactions(asked, "id"), max_bytes=5) == Budget(5, (own,))


async def test_decoding_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(
        ManualClock, "monotonic_ms", lambda _: asyncio.get_running_loop().time() * 0 + next(ticks)
    )
    ticks = iter(range(10**9))  # every look at the clock is the end of a slice
    bench.ask(body=BODY * 1)
    turns = 0
    while not bench.handled:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3


async def test_work_in_slices_takes_turns_by_principal() -> None:
    """Each piece of it holds the loop once between two looks at the sockets."""
    bench = Bench()
    begun: list[str] = []
    ends = asyncio.Event()

    def steps(context: Any, message: Any) -> Iterator[None]:
        bench.clock.stand_still(SLICE_MS)
        yield
        begun.append(context.principal)
        while not ends.is_set():
            bench.clock.stand_still(SLICE_MS)
            yield
        context.respond(FindCoordinatorResponse())

    bench.handle = steps  # type: ignore[assignment,method-assign]
    body = FindCoordinatorRequest(coordinator_keys=["a"]).to_bytes(4)
    requests = [bench.ask("User:a", body) for _ in range(20)]
    requests.append(bench.ask("User:b", body))
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == ["User:a"] * (MAX_IN_SLICES // 2) + ["User:b"]
    assert all(request.connection.suspended_count == 1 for request in requests)
    ends.set()
    await until_async(lambda: all(request.is_answered for request in requests), "all are answered")
    await bench.router.close()
    assert bench.router._decoding.turns.held == 0


async def test_work_that_is_cancelled_before_its_turn_ends_with_its_connection() -> None:
    """As when a loop ends with all of its tasks."""
    bench = Bench()
    ended: list[str] = []

    def steps(context: Any, message: Any) -> Iterator[None]:
        bench.clock.stand_still(SLICE_MS)
        try:
            yield
        finally:
            ended.append(context.principal)

    bench.handle = steps  # type: ignore[assignment,method-assign]
    bench.router._decoding.turns.take("User:x", MAX_IN_SLICES)
    request = bench.ask("User:a", FindCoordinatorRequest(coordinator_keys=["a"]).to_bytes(4))
    await asyncio.sleep(0)
    assert not request.is_answered
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert task.cancelled()
    assert request.connection.close_reason == "a request failed inside the node"
    assert request.connection.suspended_count == 0
    del task
    assert (ended, bench.faults) == (["User:a"], [])
    assert bench.router._decoding.turns.held_by("User:a") == 0


async def test_an_offset_fetch_of_megabytes_is_refused_without_taking_them(
    broker: DataPath,
) -> None:
    """It names 200,000 topics of a group that its sender may not describe."""
    data = large_offset_fetch(200_000)
    request = FakeRequest(broker.connection, ApiKey.OFFSET_FETCH, 8, data[4 + HEADER_BYTES :])
    request.is_large = True
    broker.router._authorizer = Rules()
    broker.router(request)  # type: ignore[arg-type]
    await until_async(lambda: request.is_answered, "it is refused")
    assert "it takes more than 1048576 bytes decoded" in broker.connection.close_reason
    assert broker.router._decoding.memory.held == 0


async def test_many_topics_are_answered_as_ever(broker: DataPath) -> None:
    topics = [OffsetFetchRequestTopics(name=f"t{n}", partition_indexes=[0]) for n in range(5_000)]
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    request = FakeRequest(broker.connection, ApiKey.OFFSET_FETCH, 8, asked.to_bytes(8))
    request.is_large = True
    broker.router(request)  # type: ignore[arg-type]
    await until_async(lambda: request.is_answered, "it is answered")
    (group,) = request.response.groups
    assert group.error_code in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)
    assert broker.router._decoding.memory.held == 0
