"""Whole clusters with coordinators under faults: a time box of seeds, and determinism."""

from __future__ import annotations

import os

import pytest

from tests.kit.gates import ENOUGH_SEEDS, check_determinism, check_time_box
from tests.simulation.transactions.run import TRANSACTIONS

TIME_BOX_S = float(os.environ.get("MOLDAU_TRANSACTION_SIM_SECONDS", "10"))
FIRST_SEED = int(os.environ.get("MOLDAU_TRANSACTION_SIM_FIRST_SEED", "0"))
"""The same seeds every time, as the quorum's gate; `make sim MINUTES=n` runs new ones."""

TIMEOUT_S = TIME_BOX_S + 240


@pytest.mark.timeout(TIMEOUT_S)
def test_no_seed_of_the_time_box_breaks_a_promise():
    total = check_time_box(TRANSACTIONS, FIRST_SEED, TIME_BOX_S)
    assert total.counts["commits"] > 0
    assert total.counts["read_committed"] > 0
    if len(total.events) < ENOUGH_SEEDS:
        return
    assert total.faults.total() > len(total.events)
    for what in (
        "aborts",
        "copies",
        "holds",
        "zombies",
        "assignments",
        "processed_once",
        "offsets_listed",
        "found_by_time",
        "compactions",
        "loaded_compacted",
    ):
        assert total.counts[what] > 0, f"no {what} from seed {FIRST_SEED} on: {total}"


@pytest.mark.timeout(TIMEOUT_S)
def test_a_seed_gives_the_same_run_whatever_the_hash_seed():
    check_determinism(TRANSACTIONS, "2", "1")
