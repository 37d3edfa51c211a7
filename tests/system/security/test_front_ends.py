"""Nonsense at secured listeners disturbs nothing and nobody (see `front_ends.py`)."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import pytest

from tests.system.security.front_ends import complaints_in, fuzz
from tests.system.security.nodes import PASSWORD

SECONDS: Final = 8.0


@pytest.mark.system
@pytest.mark.timeout(240)
def test_nonsense_is_refused_and_good_clients_are_served(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"make fuzz-listeners SEED={seed} MINUTES={SECONDS / 60:.2f}")
    outcome = fuzz(tmp_path, seed=seed, seconds=SECONDS, say=print)
    print(outcome.line())
    assert outcome.complaints == []
    assert len(outcome.counts) == 8, "each kind"
    assert outcome.served_count > 6


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("2026-11-27 21:00:00.000 ERROR   server: unexpected KeyError (report)", 1),
        (f"2026-11-27 21:00:00.000 WARNING server: alice said {PASSWORD}", 1),
        ("2026-11-27 21:00:00.000 WARNING server: closing connection 1", 0),
    ],
)
def test_what_a_log_may_not_have(line: str, count: int) -> None:
    assert len(complaints_in(line)) == count
