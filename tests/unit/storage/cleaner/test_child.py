"""The cleaner's child process, called in this one: its pauses, and what it says of each job."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.storage.cleaner import child
from moldau.storage.cleaner.child import MAX_PAUSE_SECONDS, DiskBudget, carry_out
from moldau.storage.cleaner.job import (
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    SegmentCleaned,
    SourceSegment,
    decode_event,
)
from moldau.storage.cleaner.offset_map import SEED_BYTES


class FakeTime:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_budget_of_bytes_is_kept_on_average_by_pauses_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeTime()
    monkeypatch.setattr(child, "time", clock)
    budget = DiskBudget(100.0)
    budget.pause(50)
    assert clock.now == pytest.approx(1000.5)
    assert max(clock.slept) == MAX_PAUSE_SECONDS
    clock.now += 10  # what was not used in that time may be used now
    budget.pause(900)
    assert clock.now == pytest.approx(1010.5)
    budget.pause(200)
    assert clock.now == pytest.approx(1011.5)


def test_an_unlimited_budget_never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(child, "time", clock)
    DiskBudget(float("inf")).pause(1 << 40)
    assert clock.slept == []


JOB = CleaningJob(
    directory="/d",
    segments=(SourceSegment(0, 10, 100),),
    first_dirty_offset=0,
    index_bases=(),
    epochs=(),
    producers=(),
    now_ms=1,
    delete_retention_ms=1,
    segment_bytes=100,
    segment_index_bytes=100,
    index_interval_bytes=100,
    map_bytes=100,
    load_factor=0.5,
    io_bytes=100,
    max_bytes_per_second=float("inf"),
)


def told(monkeypatch: pytest.MonkeyPatch, work: Any) -> list[object]:
    """The events that come out of a job whose cleaning is `work`."""

    def clean(_filesystem: object, job: CleaningJob, *, seed: bytes, pause: object) -> Any:
        assert job is JOB
        assert len(seed) == SEED_BYTES
        assert callable(pause)
        yield from work()

    monkeypatch.setattr(child, "clean", clean)
    found: list[object] = []
    for line in carry_out(JOB, None):  # type: ignore[arg-type]
        assert line.endswith(b"\n")
        try:
            found.append(decode_event(line))
        except CleaningFailed as failure:
            found.append((failure.reason, failure.is_out_of_room))
    return found


def test_each_event_is_a_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [SegmentCleaned((0, 5), 70), CleaningDone(10)]
    assert told(monkeypatch, lambda: iter(events)) == events


@pytest.mark.parametrize(
    ("error", "reason", "is_out_of_room"),
    [
        (CleaningFailed("bad", is_out_of_room=False), "bad", False),
        (CleaningFailed("full", is_out_of_room=True), "full", True),
        (MemoryError(), "out of memory", True),
    ],
)
def test_a_job_that_fails_is_reported(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, is_out_of_room: bool
) -> None:
    def work() -> Any:
        yield SegmentCleaned((0,), 70)
        raise error

    assert told(monkeypatch, work) == [SegmentCleaned((0,), 70), (reason, is_out_of_room)]
