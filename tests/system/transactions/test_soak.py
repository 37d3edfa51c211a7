"""Transactions and groups on real brokers under random faults: no anomaly (see `soak.py`)."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import pytest

from tests.system.transactions.soak import soak

SOAK_MINUTES: Final = float(os.environ.get("MOLDAU_SOAK_TRANSACTIONS_MINUTES", "2"))
#: Start, settling and verdict come on top.
TIME_BOX_S: Final = int(SOAK_MINUTES * 60) + 600

pytestmark = [pytest.mark.soak, pytest.mark.timeout(TIME_BOX_S)]


def test_transactions_are_exactly_once_under_random_faults(tmp_path: Path):
    seed = int(os.environ.get("MOLDAU_SOAK_SEED", "0")) or secrets.randbits(32)
    print(f"make soak-transactions MINUTES={SOAK_MINUTES:g} SEED={seed}")
    outcome = soak(tmp_path, seed=seed, minutes=SOAK_MINUTES, say=print)
    print(outcome.line())
    print(outcome.notes)
    assert outcome.complaints == []
    assert outcome.findings.is_clean, outcome.details
    for what in ("committed", "aborted", "visible", "polled", "offset commits", "offset reads"):
        assert outcome.findings.counts[what] > 0, what
