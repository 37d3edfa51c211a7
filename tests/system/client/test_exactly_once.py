"""The check of `make soak-client` finds what went wrong."""

from __future__ import annotations

import pytest

from tests.system.client.exactly_once import Outcome, Records, check
from tests.system.client.exactly_once_app import transformed


@pytest.mark.parametrize(
    ("spoil", "counted"),
    [
        (lambda made: made.pop(3), "lost_count"),
        (lambda made: made.append(made[3]), "doubled_count"),
        (lambda made: made.__setitem__(3, (made[3][0], b"other")), "altered_count"),
        (lambda made: made.insert(0, made.pop()), "reordered_count"),
    ],
)
def test_the_check_finds_it(spoil, counted, monkeypatch) -> None:
    records = Records(2_000)
    made = [(key, transformed(value)) for key, value in records]
    spoil(made)
    monkeypatch.setattr("tests.system.client.exactly_once.read_topic", lambda *_: iter(made))
    outcome = Outcome(input_count=len(records))
    check("nowhere", records, outcome)
    assert getattr(outcome, counted) == 1
    assert not outcome.is_exactly_once
