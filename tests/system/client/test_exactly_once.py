"""A short run of `make soak-client`: whoever is killed, every record comes out once."""

from __future__ import annotations

import secrets
from collections import Counter

import pytest

from tests.system.client.exactly_once import KINDS, Outcome, Records, check, run
from tests.system.client.exactly_once_app import transformed

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RECORDS = 50_000


def test_fifty_thousand_records_come_out_exactly_once() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    outcome = run(RECORDS, seed=seed, kill_count=len(KINDS), per_transaction=1_000)
    print(*outcome.lines(), sep="\n")
    assert outcome.killed == Counter(KINDS)
    assert outcome.is_exactly_once, list(outcome.lines())


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
