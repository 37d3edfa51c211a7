"""Producer ids, and the requests that wait for one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from moldau.broker.coordinator.producer_ids import ProducerIds, ProducerIdsUnavailable
from moldau.runtime.slices import SLICE_MS
from moldau.runtime.timers import TimerWheel
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.unit.broker.harness import FakeConnection


class Controller:
    """Blocks of two ids, given when a test says so."""

    def __init__(self) -> None:
        self.next_id = 10
        self.is_available = True
        self.call_count = 0
        self.gate: asyncio.Event | None = None

    async def allocate_block(self) -> range:
        self.call_count += 1
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if not self.is_available:
            raise ProducerIdsUnavailable("no controller")
        self.next_id += 2
        return range(self.next_id - 2, self.next_id)


class Context:
    """A request of a connection, as the line of waiting requests sees it."""

    def __init__(self, connection: FakeConnection, principal: str) -> None:
        self.principal = principal
        self.request = self
        self.connection = connection
        self.is_dropped = False

    @property
    def is_connection_lost(self) -> bool:
        return self.connection.is_closed

    def release_body(self) -> None:
        pass

    def respond_nothing(self) -> None:
        self.is_dropped = True


class Source:
    def __init__(self, clock: Any) -> None:
        self.controller = Controller()
        self.tasks: list[asyncio.Task[None]] = []
        self.ids = ProducerIds(
            self.controller.allocate_block, clock=clock, timers=TimerWheel(clock), start=self._start
        )
        self.used: list[int] = []
        self.answered: list[tuple[str, int]] = []

    def _start(self, work: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def ask(self, principal: str = "User:a", connection: FakeConnection | None = None) -> Context:
        context = Context(connection or FakeConnection(), principal)

        def take() -> None:
            self.used.append(self.ids.take())
            self.answered.append((principal, self.used[-1]))

        self.ids.when_ready(context, take)  # type: ignore[arg-type]
        return context

    async def settle(self, answer_count: int) -> None:
        await until_async(lambda: len(self.used) >= answer_count)


@pytest.fixture
async def source() -> Any:
    made = Source(ManualClock())
    yield made
    if made.controller.gate is not None:
        made.controller.gate.set()
    await made.ids.stop()
    await made.ids.close()
    for task in made.tasks:
        await task


async def test_every_request_gets_its_own_id_in_order(source: Source) -> None:
    for _ in range(5):
        source.ask()
    assert source.used == []
    await source.settle(5)
    assert source.used == [10, 11, 12, 13, 14]
    assert len(source.tasks) <= source.controller.call_count, "no task for each request"


async def test_with_an_id_at_hand_no_request_waits(source: Source) -> None:
    source.ask()
    await source.settle(1)
    source.ask()
    assert source.used == [10, 11]


async def test_ids_of_a_block_are_at_hand_one_after_the_other(source: Source) -> None:
    """Several timers fire in one turn of the loop: the first leaves ids to the others."""
    source.ids.when_ready(Context(FakeConnection(), "User:a"), lambda: None)  # type: ignore[arg-type]
    await until_async(lambda: source.ids.spare != -1)
    assert [source.ids.take(), source.ids.take()] == [10, 11]


async def test_an_id_that_is_not_used_is_left_for_the_next_request(source: Source) -> None:
    seen: list[int] = []
    for _ in range(3):
        source.ids.when_ready(
            Context(FakeConnection(), "User:a"),  # type: ignore[arg-type]
            lambda: seen.append(source.ids.spare),
        )
    await until_async(lambda: len(seen) == 3)
    assert seen == [10, 10, 10]


async def test_without_a_controller_all_are_answered_without_an_id(source: Source) -> None:
    source.controller.is_available = False
    for _ in range(3):
        source.ask()
    await source.settle(3)
    assert source.used == [-1, -1, -1]
    source.controller.is_available = True
    source.ask()
    await source.settle(4)
    assert source.used[-1] == 10


async def test_the_end_leaves_no_request_waiting(source: Source) -> None:
    source.ask()
    await source.ids.stop()
    assert source.used == [-1]
    source.ask()
    assert len(source.used) == 2


async def test_a_full_line_answers_one_more_at_once(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.ids._waiting._line, "max_count", 3)
    source.controller.gate = asyncio.Event()
    for _ in range(5):
        source.ask()
    assert source.used == [-1, -1]
    source.controller.gate.set()
    await source.settle(5)
    assert source.used[2:] == [10, 11, 12]


async def test_a_principal_that_fills_the_line_leaves_the_share_of_others(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.ids._waiting._line, "max_count", 4)
    source.controller.gate = asyncio.Event()
    for _ in range(9):
        source.ask("User:greedy")
    source.ask("User:good")
    source.ask("User:good")
    source.ask("User:good")
    assert Counter(source.answered) == {("User:greedy", -1): 7, ("User:good", -1): 1}
    source.controller.gate.set()
    await source.settle(12)
    # They take turns.
    assert [name for name, _ in source.answered[8:]] == ["User:greedy", "User:good"] * 2
    assert [producer_id for _, producer_id in source.answered[8:]] == [10, 11, 12, 13]


async def test_a_waiting_request_leaves_with_its_connection(source: Source) -> None:
    source.controller.gate = asyncio.Event()
    connection = FakeConnection()
    contexts = [source.ask("User:a", connection) for _ in range(3)]
    stays = source.ask()
    connection.close("the client has gone")
    assert [each.is_dropped for each in (*contexts, stays)] == [True, True, True, False]
    assert source.ids.waiting_count == 1
    source.controller.gate.set()
    await source.settle(1)
    assert source.used == [10], "no id is spent on what has gone"


async def test_thousands_are_answered_in_slices() -> None:
    """No more than a slice, and one step, passes between two answers of one turn of the loop."""
    count = 5_000
    clock = ManualClock()
    source = Source(clock)
    source.controller.gate = asyncio.Event()
    turns = 0

    def take() -> None:
        source.used.append(source.ids.take())
        clock.advance(SLICE_MS / 10)

    for _ in range(count):
        source.ids.when_ready(Context(FakeConnection(), "User:a"), take)  # type: ignore[arg-type]
    source.controller.is_available = False
    source.controller.gate.set()
    most = 0
    while len(source.used) < count:
        before = len(source.used)
        await asyncio.sleep(0)
        most = max(most, len(source.used) - before)
        turns += 1
    assert most <= 20
    assert turns >= count // 20
    assert source.used == [-1] * count
    await source.ids.close()
