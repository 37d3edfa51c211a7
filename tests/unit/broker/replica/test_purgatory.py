"""The purgatory: every operation ends exactly once, and leaves nothing behind."""

from __future__ import annotations

import pytest

from moldau.broker.replica import purgatory as purgatory_module
from moldau.broker.replica.purgatory import DelayedOperation, Purgatory
from moldau.runtime.timers import TimerWheel
from tests.kit.manual_clock import ManualClock


class Recorded(DelayedOperation):
    def __init__(self) -> None:
        super().__init__()
        self.endings: list[str] = []

    def on_timeout(self) -> None:
        self.endings.append("timeout")

    def on_dropped(self) -> None:
        self.endings.append("dropped")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timers(clock: ManualClock) -> TimerWheel:
    return TimerWheel(clock)


def test_expires_once(clock: ManualClock, timers: TimerWheel) -> None:
    purgatory, operation = Purgatory("Test", timers), Recorded()
    assert purgatory.add(operation, 100)
    clock.advance(99)
    assert operation.endings == []
    clock.advance(10)
    assert operation.endings == ["timeout"]
    assert operation.is_ended
    purgatory.drop(operation)
    purgatory.close()
    clock.advance(1000)
    assert operation.endings == ["timeout"]
    assert (purgatory.size(), len(timers), purgatory.expired_count) == (0, 0, 1)


def test_removed_in_time(clock: ManualClock, timers: TimerWheel) -> None:
    purgatory, operation = Purgatory("Test", timers), Recorded()
    purgatory.add(operation, 100)
    purgatory.remove(operation)
    purgatory.remove(operation)
    clock.advance(1000)
    assert operation.endings == []
    assert (purgatory.size(), len(timers), purgatory.expired_count) == (0, 0, 0)


def test_dropped(timers: TimerWheel) -> None:
    purgatory, operation = Purgatory("Test", timers), Recorded()
    purgatory.add(operation, 100)
    purgatory.drop(operation)
    purgatory.drop(operation)
    assert operation.endings == ["dropped"]
    assert (purgatory.size(), len(timers)) == (0, 0)


def test_close_ends_all(timers: TimerWheel) -> None:
    purgatory = Purgatory("Test", timers)
    operations = [Recorded() for _ in range(5)]
    for operation in operations:
        purgatory.add(operation, 100)
    purgatory.close()
    assert not purgatory.add(Recorded(), 100)
    assert [operation.endings for operation in operations] == [["timeout"]] * 5
    assert purgatory.size() == 0


def test_a_full_purgatory_takes_no_more(timers: TimerWheel) -> None:
    purgatory = Purgatory("Test", timers, 2)
    first = Recorded()
    assert purgatory.add(first, 100)
    assert purgatory.add(Recorded(), 100)
    assert not purgatory.add(Recorded(), 100)
    purgatory.remove(first)
    assert purgatory.add(Recorded(), 100)
    assert purgatory.size() == 2.0


def test_a_principal_that_fills_it_makes_room_for_others(timers: TimerWheel) -> None:
    """The last of its operations end as if their time were up."""
    purgatory = Purgatory("Test", timers, 4)
    greedy = [Recorded() for _ in range(5)]
    assert [purgatory.add(each, 100, "User:greedy") for each in greedy] == [True] * 4 + [False]
    good = [Recorded() for _ in range(3)]
    assert [purgatory.add(each, 100, "User:good") for each in good] == [True, True, False]
    assert [each.endings for each in greedy[:4]] == [[], [], ["timeout"], ["timeout"]]
    assert purgatory.size() == 4.0
    assert [purgatory.take() for _ in range(5)] == [greedy[0], good[0], greedy[1], good[1], None]
    assert len(timers) == 0


def test_a_wait_ends_after_the_longest_time_allowed(
    clock: ManualClock, timers: TimerWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purgatory_module, "MAX_WAIT_MS", 1000)
    purgatory, operation = Purgatory("Test", timers), Recorded()
    purgatory.add(operation, 2**31 - 1)
    clock.advance(1010)
    assert operation.endings == ["timeout"]
