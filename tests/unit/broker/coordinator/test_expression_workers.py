"""Names tried in a real child process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator

import pytest

from moldau.broker.coordinator import expression_matcher
from moldau.broker.coordinator.core.expressions import compile_expression
from moldau.broker.coordinator.expression_child import NICENESS
from moldau.broker.coordinator.expression_matcher import (
    IDLE_MS,
    ProcessWorker,
    ThreadWorker,
    Tried,
)
from moldau.runtime.child_process import ChildProcess
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async

pytestmark = pytest.mark.real

NAMES = ["orders", "bücher", "näme", "x" * 40_000, "orders-2"]
PATTERN = compile_expression("orders.*|b.cher|x+")
MATCHING = [0, 1, 3, 4]
COSTLY = compile_expression("((.?){0,15}){0,16}")
"""Milliseconds for each of `LONG`, of which a slice therefore leaves some."""
LONG = ["n" * 2_000] * 1_000


class Counting(ThreadWorker):
    """Slices that the child did not take."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, self._run)
        self.count = 0

    async def _run(self, function: object, *args: object) -> Tried:
        self.count += 1
        return function(*args)  # type: ignore[operator,no-any-return]


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.threads = Counting(self.clock)
        self.worker = ProcessWorker(self.clock, instead=self.threads)

    @property
    def pid(self) -> int:
        assert self.worker._child.pid is not None
        return self.worker._child.pid

    async def matching(self, names: list[str]) -> list[int]:
        """The names that match, in as many slices as a busy machine makes of them."""
        matching: list[int] = []
        start = 0
        while start < len(names):
            indexes, count, _ = await self.worker.take(PATTERN, names[start:])
            matching += [start + index for index in indexes]
            start += count
        return matching


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.worker.close()


async def test_a_child_tries_names_as_this_process_would(bench: Bench) -> None:
    assert bench.worker._child.pid is None
    assert await bench.matching(NAMES) == MATCHING
    assert (await bench.threads.take(PATTERN, NAMES))[:2] == (MATCHING, len(NAMES))
    assert bench.threads.count == 1
    pid = bench.pid
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + NICENESS, 19)
    assert await bench.matching(NAMES[1:]) == [0, 2, 3]
    assert bench.pid == pid


async def test_a_slice_ends_by_its_time(bench: Bench) -> None:
    indexes, count, _ = await bench.worker.take(COSTLY, LONG)
    assert 1 <= count < len(LONG)
    assert indexes == []


async def test_a_child_that_was_killed_is_replaced_and_said(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    assert await bench.matching(NAMES) == MATCHING
    os.kill(bench.pid, signal.SIGSTOP)  # it gets the question, and never answers
    asked = asyncio.ensure_future(bench.matching(NAMES))
    await asyncio.sleep(0)
    first = bench.pid
    with caplog.at_level(logging.WARNING):
        os.kill(first, signal.SIGKILL)
        assert await asked == MATCHING
    assert bench.threads.count == 1
    assert "a thread matches names instead" in caplog.text
    assert await bench.matching(NAMES) == MATCHING
    assert (bench.threads.count, bench.pid != first) == (1, True)


async def test_a_child_that_does_not_answer_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert await bench.matching(NAMES) == MATCHING
    first = bench.pid
    os.kill(first, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(expression_matcher, "ANSWER_S", 0.01)
        assert await bench.matching(NAMES) == MATCHING
    assert bench.threads.count == 1
    assert "did not answer within 0.01 s" in caplog.text
    assert await bench.matching(NAMES) == MATCHING
    assert (bench.threads.count, bench.pid != first) == (1, True)


async def test_a_child_that_cannot_be_started(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_args: object, **_options: object) -> None:
        raise PermissionError("no processes here")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    for _ in range(3):
        assert await bench.matching(NAMES) == MATCHING
    assert bench.threads.count == 3
    assert caplog.text.count("no processes here; a thread matches names instead") == 3


async def test_an_answer_that_was_not_waited_for_is_no_other_question_s(bench: Bench) -> None:
    assert await bench.matching(NAMES) == MATCHING
    asked = asyncio.ensure_future(bench.worker.take(COSTLY, LONG))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await bench.matching(NAMES) == MATCHING
    assert bench.threads.count == 0


@pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b"7\n"])
async def test_a_child_that_writes_nonsense_is_not_believed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    async def nonsense(_child: ChildProcess) -> bytes:
        return line

    assert await bench.matching(NAMES) == MATCHING
    first = bench.pid
    with monkeypatch.context() as patched:
        patched.setattr(ChildProcess, "read_line", nonsense)
        assert await bench.matching(NAMES) == MATCHING
    assert bench.threads.count == 1
    assert await bench.matching(NAMES) == MATCHING
    assert bench.pid != first


async def test_a_child_without_work_ends(bench: Bench) -> None:
    assert await bench.matching(NAMES) == MATCHING
    first = bench.pid
    bench.clock.advance(IDLE_MS - 1)
    assert await bench.matching(NAMES) == MATCHING
    bench.clock.advance(IDLE_MS - 1)
    assert bench.pid == first
    assert _is_running(first)
    bench.clock.advance(1)

    async def has_ended() -> bool:
        return not _is_running(first)

    await until_async(has_ended, what="the end of a child without work")
    assert await bench.matching(NAMES) == MATCHING
    assert (bench.threads.count, bench.pid != first) == (0, True)


async def test_closed_it_leaves_no_child(bench: Bench) -> None:
    await bench.worker.close()
    assert await bench.matching(NAMES) == MATCHING
    pid = bench.pid
    await bench.worker.close()
    await bench.worker.close()
    assert bench.worker._child.pid is None
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
