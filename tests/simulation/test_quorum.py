"""The quorum keeps its promises in every seed that fits into the time box.

`MOLDAU_SIM_SECONDS` is the box (10 by default, 30 in `make test-all`), `MOLDAU_SIM_FIRST_SEED`
where it begins (0).
"""

from __future__ import annotations

import os

import pytest

from tests.kit.gates import (
    ENOUGH_SEEDS,
    MIN_MEDIAN_EVENTS,
    check_determinism,
    check_replay,
    check_time_box,
)
from tests.kit.seeds import Choice
from tests.simulation.run import QUORUM

SECONDS = float(os.environ.get("MOLDAU_SIM_SECONDS", "10"))
FIRST_SEED = int(os.environ.get("MOLDAU_SIM_FIRST_SEED", "0"))
FAULT_KINDS = (
    *("add-voter", "blackout", "crash-inside", "damaged-batch", "disk-failure", "drop"),
    *(
        "duplicate",
        "isolate",
        "kill",
        "late",
        "move",
        "one-way",
        "one-way-node",
        "partition",
        "pause",
    ),
    *("power-loss", "remove-voter", "reset", "shut-down", "slow-disk", "transfer", "wipe"),
)


@pytest.mark.timeout(SECONDS + 120)
def test_no_seed_breaks_a_promise():
    total = check_time_box(QUORUM, FIRST_SEED, SECONDS)
    if len(total.events) >= ENOUGH_SEEDS:
        assert [kind for kind in FAULT_KINDS if not total.faults[kind]] == []
        assert total.counts["commits"] > MIN_MEDIAN_EVENTS
        assert total.counts["elections"] > len(total.events)


@pytest.mark.parametrize("seed", ["1", "3", "4"])
def test_a_seed_is_the_same_run_under_every_hash_seed(seed: str):
    check_determinism(QUORUM, seed, f"{seed}0")


def test_a_violation_replays_from_the_command_line():
    check_replay(QUORUM, Choice(bug="vote-not-persisted"))
