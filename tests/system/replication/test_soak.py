"""Real brokers under load and random faults: what was acknowledged is kept (see `soak.py`)."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import pytest

from tests.system.quorum.hosts import why_not
from tests.system.replication.soak import soak

SOAK_MINUTES: Final = float(os.environ.get("MOLDAU_SOAK_MINUTES", "2"))
#: Start, settling and verdict come on top.
TIME_BOX_S: Final = int(SOAK_MINUTES * 60) + 600

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON != "", reason=REASON),
    pytest.mark.soak,
    pytest.mark.timeout(TIME_BOX_S),
]


def test_what_is_acknowledged_is_kept_under_random_faults(tmp_path: Path):
    seed = int(os.environ.get("MOLDAU_SOAK_SEED", "0")) or secrets.randbits(32)
    print(f"make soak MINUTES={SOAK_MINUTES:g} SEED={seed}")
    outcome = soak(tmp_path, seed=seed, minutes=SOAK_MINUTES, say=print)
    print(outcome.line())
    assert outcome.complaints == []
    assert outcome.findings.is_clean, outcome.findings.details()
    assert outcome.acknowledged_count > 0
    assert outcome.acknowledged_count + outcome.refused_count == outcome.handed_count
