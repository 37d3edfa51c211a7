"""Transactions and groups on real brokers under random faults: no anomaly (see `soak.py`).

The soak is a process of its own: librdkafka may end it (see `soak_child.py`).
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import pytest

from tests.system.transactions.soak_child import run_soak

SOAK_MINUTES: Final = float(os.environ.get("MOLDAU_SOAK_TRANSACTIONS_MINUTES", "2"))
#: Start, settling and verdict come on top; a run may be repeated once.
TIME_BOX_S: Final = 2 * (int(SOAK_MINUTES * 60) + 600)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(TIME_BOX_S)]


def test_transactions_are_exactly_once_under_random_faults(tmp_path: Path):
    seed = int(os.environ.get("MOLDAU_SOAK_SEED", "0")) or secrets.randbits(32)
    print(f"make soak-transactions MINUTES={SOAK_MINUTES:g} SEED={seed}")
    run = run_soak([f"--minutes={SOAK_MINUTES:g}", f"--seed={seed}"], tmp_path, print)
    assert run.status == 0, f"seed {seed}: status {run.status}\n{run.output}"
