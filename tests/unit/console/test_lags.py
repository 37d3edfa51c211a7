"""Lags that people have seen are kept for each of them, within bounds."""

from __future__ import annotations

from moldau.console.lags import MAX_GROUPS, MAX_POINTS, STEP_S, LagHistories
from moldau.console.people import OWN, Person

ALICE = Person("password", "alice", "secret-of-alice")


class Clock:
    """A time of day that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_points_come_in_the_order_of_time_one_for_each_step() -> None:
    clock = Clock()
    histories = LagHistories(clock)
    begin_ms = int(clock.now_s) * 1000
    for lag in (7, 8):
        histories.add(OWN, "g", lag)
        clock.now_s += 1
    clock.now_s += STEP_S
    histories.add(OWN, "g", 3)
    assert histories.of(OWN, "g") == [
        (begin_ms + 1_000, 8),
        (begin_ms + 2_000 + STEP_S * 1000, 3),
    ]


def test_a_history_has_a_longest_length() -> None:
    clock = Clock()
    histories = LagHistories(clock)
    for lag in range(MAX_POINTS + 5):
        histories.add(OWN, "g", lag)
        clock.now_s += STEP_S
    assert [lag for _, lag in histories.of(OWN, "g")] == [*range(5, MAX_POINTS + 5)]


def test_the_group_that_was_not_looked_at_for_longest_is_forgotten() -> None:
    histories = LagHistories(Clock())
    for number in range(MAX_GROUPS):
        histories.add(OWN, f"g{number}", 1)
    histories.add(OWN, "g0", 2)
    histories.add(OWN, "one more", 1)
    assert histories.of(OWN, "g0")
    assert not histories.of(OWN, "g1")


def test_people_do_not_see_what_others_have_seen() -> None:
    histories = LagHistories(Clock())
    histories.add(ALICE, "g", 5)
    others = (OWN, Person("password", "alice", "x"), Person("password", "al", "ice"))
    assert [histories.of(each, "g") for each in others] == [[], [], []]
    assert [lag for _, lag in histories.of(Person(*_fields(ALICE)), "g")] == [5]


def test_names_do_not_run_into_each_other() -> None:
    histories = LagHistories(Clock())
    histories.add(Person("password", "a", "b"), "c", 5)
    assert not histories.of(Person("password", "ab", ""), "c")
    assert not histories.of(Person("password", "a", ""), "bc")


def test_no_secret_is_kept() -> None:
    histories = LagHistories(Clock())
    histories.add(ALICE, "g", 5)
    assert "secret-of-alice" not in repr(vars(histories))


def _fields(person: Person) -> tuple[str, str, str]:
    return person.kind, person.name, person.secret
