"""Nonsense and greed at every listener keep no good client from what it asks (`front_ends.py`)."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Final

import pytest

from moldau.local import node_process
from tests.system.security.front_ends import ROOT, complaints_in, fuzz
from tests.system.security.nodes import PASSWORD

SECONDS: Final = 7.0
PLAY_S: Final = 1.5
FAULT_S: Final = 90.0
"""The time within which an injected bug has to be found; a run ends with its first complaint."""

FAULT_PLAY_S: Final = 8.0
SHORT_TIMEOUT_MS: Final = 3_000


@pytest.mark.system
@pytest.mark.timeout(240)
def test_good_clients_are_served_beside_nonsense_and_greed(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"make fuzz-listeners SEED={seed} MINUTES={SECONDS / 60:.2f}")
    outcome = fuzz(tmp_path, seed=seed, seconds=SECONDS, say=print, most_play_s=PLAY_S)
    print(outcome.line())
    assert outcome.complaints == []
    assert len(outcome.counts) == 8, "each kind"
    assert outcome.plays.total() > 0
    assert len(outcome.served) == 9, "a client of each listener"


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("fault", "only"), [("share", ["huge frames"]), ("blocked", ["forwarded"])]
)
def test_injected_bugs_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, only: list[str]
) -> None:
    module = "tests.system.security.faulty_node"
    monkeypatch.setattr(node_process, "COMMAND", (sys.executable, "-m", module, fault))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    outcome = fuzz(
        tmp_path,
        seed=seed,
        seconds=FAULT_S,
        say=print,
        timeout_ms=SHORT_TIMEOUT_MS,
        most_play_s=FAULT_PLAY_S,
        only=only,
    )
    print(outcome.line(), *outcome.complaints, sep="\n")
    assert any(name in each for each in outcome.complaints for name in outcome.served)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("2026-11-27 21:00:00.000 ERROR   server: unexpected KeyError (report)", 1),
        (f"2026-11-27 21:00:00.000 WARNING server: alice said {PASSWORD}", 1),
        ("2026-11-27 21:00:00.000 WARNING lifecycle: this broker has been fenced; it asks", 1),
        ("2026-11-27 21:00:00.000 WARNING server: closing connection 1", 0),
    ],
)
def test_what_a_log_may_not_have(line: str, count: int) -> None:
    assert len(complaints_in(line)) == count
