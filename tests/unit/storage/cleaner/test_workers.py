"""What a cleaner's child process says, and what becomes of it: without a process."""

from __future__ import annotations

import random

import pytest

from moldau.runtime.child_process import ChildLost
from moldau.storage.cleaner.job import (
    CleaningDone,
    CleaningFailed,
    CleaningStats,
    SegmentCleaned,
    decode_job,
    encode_event,
)
from moldau.storage.cleaner.workers import CleaningRun, InlineWorker, ProcessWorker
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.unit.storage.cleaner.test_child import JOB

CLEANED = SegmentCleaned((0, 5), 70)
DONE = CleaningDone(10, CleaningStats(bytes_read=200))


class FakeChild:
    """Says these lines; None: it has ended."""

    def __init__(self, *lines: bytes | None) -> None:
        self._lines = list(lines)
        self.written: list[bytes] = []
        self.is_startable = True
        self.kill_count = self.end_count = 0

    async def write(self, line: bytes) -> None:
        if not self.is_startable:
            raise ChildLost("no room for a process")
        self.written.append(line)

    async def read_line(self) -> bytes:
        line = self._lines.pop(0)
        if line is None:
            raise ChildLost("it has ended")
        return line

    def kill(self) -> None:
        self.kill_count += 1

    async def end(self) -> None:
        self.end_count += 1


def worker_of(*lines: bytes | None) -> tuple[ProcessWorker, FakeChild]:
    worker, child = ProcessWorker(SimulatedFilesystem()), FakeChild(*lines)
    worker.child = child  # type: ignore[assignment]
    return worker, child


async def begun(*lines: bytes | None) -> tuple[CleaningRun, FakeChild]:
    worker, child = worker_of(*lines)
    return await worker.start(JOB), child


async def failure_of(run: CleaningRun) -> CleaningFailed:
    with pytest.raises(CleaningFailed) as caught:
        await run.next_event()
    return caught.value


async def test_events_come_as_they_are_said_and_a_run_that_is_over_ends_no_child() -> None:
    run, child = await begun(encode_event(CLEANED), encode_event(DONE))
    assert [decode_job(line) for line in child.written] == [JOB]
    assert await run.next_event() == CLEANED
    assert await run.next_event() == DONE
    run.abort()
    assert child.kill_count == 0, "it waits for the next job"


async def test_a_run_that_is_aborted_ends_its_child_once() -> None:
    run, child = await begun(encode_event(CLEANED))
    assert await run.next_event() == CLEANED
    run.abort()
    run.abort()
    assert child.kill_count == 1


async def test_a_cleaning_that_fails_leaves_its_child() -> None:
    said = CleaningFailed("bad", is_damage=True)
    run, child = await begun(encode_event(said))
    failure = await failure_of(run)
    assert (failure.reason, failure.is_damage, failure.is_worker_lost) == ("bad", True, False)
    run.abort()
    assert child.kill_count == 0


async def test_a_child_that_ends_is_a_lost_worker() -> None:
    run, child = await begun(None)
    failure = await failure_of(run)
    assert (failure.reason, failure.is_worker_lost) == ("it has ended", True)
    run.abort()
    assert child.kill_count == 0


@pytest.mark.parametrize("line", [b"garbage\n", b"{}\n", b'{"end_offset":1,"stats":3}\n'])
async def test_a_child_that_says_what_is_no_event_is_ended(line: bytes) -> None:
    run, child = await begun(line)
    failure = await failure_of(run)
    assert failure.is_worker_lost
    assert failure.reason.startswith("its process wrote what is no event: ")
    assert child.kill_count == 1


async def test_a_child_that_cannot_be_started_is_a_lost_worker() -> None:
    worker, child = worker_of()
    child.is_startable = False
    with pytest.raises(CleaningFailed, match="no room for a process") as caught:
        await worker.start(JOB)
    assert caught.value.is_worker_lost


async def test_a_worker_that_rests_has_no_child() -> None:
    worker, child = worker_of()
    await worker.rest()
    assert child.end_count == 1


async def test_an_aborted_run_in_this_process_says_nothing_more() -> None:
    worker = InlineWorker(SimulatedFilesystem(), random.Random(7))
    run = await worker.start(JOB)
    run.abort()
    run.abort()
    assert (await failure_of(run)).reason == "aborted"
    await worker.rest()
