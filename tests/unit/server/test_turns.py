"""Parties take turns on the loop: what is handled at once, what waits, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from moldau.server.memory_shares import Holder
from moldau.server.quotas.request_time import Stopwatch, TimedWork
from moldau.server.request import Request
from moldau.server.server_connection import ServerConnection
from moldau.server.turns import (
    AT_ONCE_MS,
    CREDIT_PART,
    MAX_CREDIT_MS,
    SHARED_AT_ONCE_MS,
    SHARED_MS,
    InTurns,
    Turns,
)
from tests.kit.counting import Newcomers, collector_at_rest
from tests.kit.manual_clock import ManualClock
from tests.unit.server.connection_rig import Rig, answer, frame, numbers, receive

T = TypeVar("T")


class Waiting:
    def __init__(self, name: str, taken: list[str]) -> None:
        self.name = name
        self.taken = taken

    def take_turn(self) -> None:
        self.taken.append(self.name)


class Bench:
    """Turns with a loop that is stepped by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.soon: list[Callable[[], None]] = []
        self.turns = Turns(self.clock, self.soon.append)
        self.taken: list[str] = []

    def wait(self, party: Holder, *names: str) -> None:
        for name in names:
            self.turns.wait(party, Waiting(name, self.taken))

    def step(self) -> None:
        due, self.soon[:] = list(self.soon), []
        for each in due:
            each()


def test_a_party_alone_always_has_its_requests_handled_at_once() -> None:
    turns, party = Bench().turns, Holder()
    for now_ms in (0.0, 1.0, SHARED_MS):
        assert turns.at_once_ms(party, now_ms) == AT_ONCE_MS
        turns.took(party, 10 * AT_ONCE_MS)


def test_parties_that_share_the_loop_have_what_they_are_credited_with() -> None:
    turns, greedy, other = Bench().turns, Holder(), Holder()
    assert turns.at_once_ms(greedy, 0.0) == AT_ONCE_MS
    assert turns.at_once_ms(other, 1.0) == SHARED_AT_ONCE_MS
    assert turns.at_once_ms(greedy, 1.0) == SHARED_AT_ONCE_MS
    turns.took(greedy, MAX_CREDIT_MS - SHARED_AT_ONCE_MS)
    assert turns.at_once_ms(greedy, 1.0) == SHARED_AT_ONCE_MS
    turns.took(greedy, SHARED_AT_ONCE_MS / 2)
    assert turns.at_once_ms(greedy, 1.0) == 0
    assert turns.at_once_ms(other, 1.0) == SHARED_AT_ONCE_MS
    renewed_ms = 1.0 + SHARED_AT_ONCE_MS / 2 / CREDIT_PART
    assert turns.at_once_ms(greedy, renewed_ms - 0.01) == 0
    assert turns.at_once_ms(greedy, renewed_ms + 0.01) == SHARED_AT_ONCE_MS
    turns.took(greedy, 1_000 * MAX_CREDIT_MS)
    assert greedy.credit_ms == 0, "there are no debts"
    assert turns.at_once_ms(other, 40.0) == SHARED_AT_ONCE_MS
    assert turns.at_once_ms(greedy, 40.0) == SHARED_AT_ONCE_MS
    assert greedy.credit_ms == MAX_CREDIT_MS, "however long it was quiet"
    last_ms = 40.0  # of a change from one party to another
    turns.took(greedy, MAX_CREDIT_MS)
    greedy.credited_ms = last_ms + 2 * SHARED_MS
    assert turns.at_once_ms(greedy, last_ms + SHARED_MS - 0.01) == 0
    assert turns.at_once_ms(greedy, last_ms + SHARED_MS) == AT_ONCE_MS, "alone again"


def test_what_waits_has_one_turn_between_two_looks_and_parties_alternate() -> None:
    bench, greedy, other = Bench(), Holder(), Holder()
    bench.wait(greedy, "g1", "g2", "g3")
    bench.wait(other, "o1", "o2")
    for count in range(1, 6):
        assert len(bench.soon) == 1
        bench.step()
        assert len(bench.taken) == count
    assert bench.taken == ["g1", "o1", "g2", "o2", "g3"]
    assert not bench.soon
    bench.wait(greedy, "g4")
    bench.step()
    assert bench.taken[-1] == "g4"


def test_a_turn_that_fails_leaves_the_others_theirs() -> None:
    bench, party = Bench(), Holder()

    class Failing:
        def take_turn(self) -> None:
            raise ZeroDivisionError

    bench.turns.wait(party, Failing())
    bench.wait(party, "next")
    with pytest.raises(ZeroDivisionError):
        bench.step()
    bench.step()
    assert bench.taken == ["next"]


def use_up(rig: Rig, connection: ServerConnection) -> None:
    """Leave its party so much credit that it may begin once."""
    party = connection.share.party
    party.credit_ms, party.credited_ms = SHARED_AT_ONCE_MS, rig.clock.monotonic_ms()


def test_a_principal_with_many_connections_does_not_hold_up_another() -> None:
    rig = Rig()

    def handle(request: Request) -> None:
        rig.clock.stand_still(SHARED_AT_ONCE_MS / 2)
        answer(request)

    rig.on_request = handle
    greedy = [rig.connection("L", (f"10.0.1.{number}", 1)) for number in range(8)]
    other, beside = rig.connection(), rig.connection()
    for connection in greedy:
        connection.authenticate("User:greedy")
    other.authenticate("User:other")
    receive(other, frame(100))
    for each in (greedy[0], beside):
        use_up(rig, each)
    for number, connection in enumerate(greedy):
        receive(connection, frame(number))
    receive(other, frame(101))
    assert numbers(rig) == [100, 0, 101], "what is over its part waits"
    receive(beside, *(frame(200 + number) for number in range(5)))
    assert numbers(rig)[3:] == [200, 201]
    rig.loop.run()
    assert numbers(rig)[5:] == [1, 202, 2, 203, 3, 204, 4, 5, 6, 7]
    assert rig.memory.reserved_bytes == 0


# -- coroutines -----------------------------------------------------------------------------------


async def test_a_step_that_its_party_may_not_take_now_waits_for_a_turn() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()
    one, other = rig.connection(), rig.connection("L", ("10.0.0.7", 1))
    turns, now_ms = rig.group.turns, rig.clock.monotonic_ms
    order: list[str] = []

    async def work(name: str, steps: int) -> str:
        for number in range(steps):
            order.append(f"{name}{number}")
            rig.clock.stand_still(AT_ONCE_MS)
            await asyncio.sleep(0)
        return name

    turns.at_once_ms(other.share.party, now_ms())
    for each in (one, other):
        use_up(rig, each)
    tasks = [asyncio.create_task(one.in_turns(work(name, 2))) for name in ("a", "b", "c")]
    tasks.append(asyncio.create_task(other.in_turns(work("o", 2))))
    assert await asyncio.gather(*tasks) == ["a", "b", "c", "o"]
    assert order[:2] == ["a0", "o0"], "the others of its party wait"
    assert sorted(order) == ["a0", "a1", "b0", "b1", "c0", "c1", "o0", "o1"]
    assert order.index("o1") < order.index("b1")


async def test_work_that_waits_for_a_turn_can_be_cancelled() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()
    one, other = rig.connection(), rig.connection("L", ("10.0.0.7", 1))
    party, now_ms = one.share.party, rig.clock.monotonic_ms
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("done")

    rig.group.turns.at_once_ms(other.share.party, now_ms())
    task = asyncio.create_task(one.in_turns(work()))
    await asyncio.sleep(0)  # the first step
    party.credit_ms, party.credited_ms = 0.0, now_ms()
    rig.group.turns.at_once_ms(other.share.party, now_ms())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]
    unbegun = one.in_turns(work())
    unbegun.close()
    assert await other.in_turns(work()) is None  # type: ignore[func-returns-value]
    assert ended == ["cancelled", "done"]


async def begun_in_a_callback(
    connection: ServerConnection, work: Coroutine[object, None, T]
) -> asyncio.Task[T]:
    """A task whose first step was taken before the loop came to it."""
    loop = asyncio.get_running_loop()
    begun: asyncio.Future[asyncio.Task[T]] = loop.create_future()

    def begin() -> None:
        steps = connection.in_turns(work)
        task = loop.create_task(steps)
        steps.begin(task)
        begun.set_result(task)

    loop.call_soon(begin)
    return await begun


async def test_a_first_step_that_is_taken_now_runs_in_its_task_and_takes_no_other_turn() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()
    one, other = rig.connection(), rig.connection("L", ("10.0.0.7", 1))
    goes_on: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ran_in: list[object] = []

    async def work() -> int:
        ran_in.append(asyncio.current_task())
        async with asyncio.timeout(60):
            number = await goes_on
        ran_in.append(asyncio.current_task())
        return number + 1

    rig.group.turns.at_once_ms(other.share.party, rig.clock.monotonic_ms())
    for each in (one, other):
        use_up(rig, each)
    task = await begun_in_a_callback(one, work())
    assert ran_in == [task], "without credit, and before the task's own turn"
    goes_on.set_result(6)
    assert await task == 7
    assert ran_in == [task, task]


async def test_a_step_costs_its_party_what_it_has_taken() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()
    connection = rig.connection()
    party = connection.share.party
    party.credit_ms = MAX_CREDIT_MS

    async def work() -> None:
        rig.clock.stand_still(MAX_CREDIT_MS / 4)

    await asyncio.create_task(connection.in_turns(work()))
    assert party.credit_ms == MAX_CREDIT_MS * 3 / 4


async def test_what_a_first_step_ends_with_is_what_its_task_ends_with() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()

    async def answers() -> str:
        return "done"

    async def fails() -> None:
        raise ValueError("wrong")

    assert await (await begun_in_a_callback(rig.connection(), answers())) == "done"
    with pytest.raises(ValueError, match="wrong"):
        await (await begun_in_a_callback(rig.connection(), fails()))


async def cancelled_when_it_has_begun(
    connection: ServerConnection, work: Coroutine[object, None, T]
) -> asyncio.Task[T]:
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[T]] = []

    def begin() -> None:
        steps = connection.in_turns(work)
        tasks.append(loop.create_task(steps))
        steps.begin(tasks[0])
        tasks[0].cancel()

    loop.call_soon(begin)
    await asyncio.sleep(0)
    return tasks[0]


async def test_work_that_has_begun_can_be_cancelled_before_its_second_step() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("ended")

    with pytest.raises(asyncio.CancelledError):
        await (await cancelled_when_it_has_begun(rig.connection(), work()))
    assert ended == ["ended"]


async def test_work_that_has_begun_may_go_on_although_it_was_cancelled() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()

    async def work() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done"

    assert await (await cancelled_when_it_has_begun(rig.connection(), work())) == "done"


async def test_work_that_has_ended_with_its_first_step_cannot_be_cancelled() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()

    async def answers() -> str:
        return "done"

    async def fails() -> None:
        raise ValueError("wrong")

    assert await (await cancelled_when_it_has_begun(rig.connection(), answers())) == "done"
    with pytest.raises(ValueError, match="wrong"):
        await (await cancelled_when_it_has_begun(rig.connection(), fails()))


async def test_work_that_has_ended_with_its_first_step_leaves_no_cycle() -> None:
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()

    async def answers() -> str:
        return "done"

    new = Newcomers(InTurns)
    with collector_at_rest():
        for ends in (begun_in_a_callback, cancelled_when_it_has_begun):
            assert await (await ends(rig.connection(), answers())) == "done"
        await asyncio.sleep(0)
        assert new.objects() == []


async def test_work_that_is_cancelled_leaves_no_cycle() -> None:
    """Nor does the measuring of its time: what it holds is a request's."""
    rig = Rig()
    rig.group.loop = asyncio.get_running_loop()

    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    new = Newcomers(InTurns, TimedWork, asyncio.Task)
    with collector_at_rest():
        watch = Stopwatch(ManualClock())
        work = asyncio.create_task(rig.connection().in_turns(TimedWork(waits(), watch)))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
        del work
        for _ in range(3):
            await asyncio.sleep(0)  # the loop lets go of its last step, too
        assert new.objects() == []
