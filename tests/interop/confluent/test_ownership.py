"""The checker of group histories finds every kind of error."""

from __future__ import annotations

import pytest

from tests.interop.confluent.ownership import Checker, Event

SOUND = [
    Event("assigned", "a", 0),
    Event("assigned", "b", 1),
    Event("read", "a", 0, 0),
    Event("read", "a", 0, 1),
    Event("read", "b", 1, 0),
    Event("committed", "a", 0, 2),
    Event("revoked", "a", 0),
    Event("assigned", "b", 0),
    Event("read", "b", 0, 2),
    Event("committed", "b", 0, 3),
    Event("committed", "b", 1, 1),
    Event("revoked", "b", 0),
    Event("lost", "b", 1),
    Event("assigned", "c", 1),
]
ENDS = {0: 3, 1: 1}


def test_a_sound_history_has_no_findings() -> None:
    assert Checker(ENDS).check(SOUND) == []


@pytest.mark.parametrize(
    ("at", "removed", "inserted", "said"),
    [
        (6, 1, [], "is given what a owns"),
        (2, 0, [Event("assigned", "c", 1)], "is given what b owns"),
        (6, 0, [Event("revoked", "b", 0)], "lets go what a owns"),
        (4, 0, [Event("read", "b", 0, 2)], "reads 2 of what a owns"),
        (3, 1, [], "records were never read"),
        (3, 1, [Event("read", "a", 0, 2)], "reads 2 instead of 1"),
        (8, 0, [Event("read", "b", 0, 1)], "reads 1 again, which was committed"),
        (8, 1, [Event("read", "b", 0, 3)], "reads 3 instead of 2"),
        (7, 0, [Event("read", "a", 0, 2)], "reads 2 of what None owns"),
        (8, 0, [Event("committed", "a", 0, 2)], "commits 2 of what b owns"),
        (10, 0, [Event("committed", "b", 0, 1)], "commits 1 below 3"),
        (5, 1, [], "reads 2 instead of 0"),
    ],
)
def test_a_inserted_error_is_found(at: int, removed: int, inserted: list[Event], said: str) -> None:
    events = [*SOUND[:at], *inserted, *SOUND[at + removed :]]
    assert any(said in finding for finding in Checker(ENDS).check(events))
