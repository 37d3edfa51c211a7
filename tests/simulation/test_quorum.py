"""The quorum keeps its promises in these seeds; `make long` has new ones."""

from __future__ import annotations

import pytest

from tests.kit.gates import check_determinism, check_replay, check_seeds
from tests.kit.seeds import Choice
from tests.simulation.run import QUORUM

SEEDS = range(40)
MIN_MEDIAN_EVENTS = 2_000
"""Runs are not shrunk to buy seeds."""

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
    *("disk-full", "disk-EIO", "disk-EROFS"),
    *("power-loss", "remove-voter", "reset", "shut-down", "slow-disk", "transfer", "wipe"),
)


def test_no_seed_breaks_a_promise():
    total = check_seeds(QUORUM, SEEDS)
    assert total.median_events >= MIN_MEDIAN_EVENTS
    assert [kind for kind in FAULT_KINDS if not total.faults[kind]] == []
    assert total.counts["commits"] > MIN_MEDIAN_EVENTS
    assert total.counts["elections"] > len(SEEDS)


@pytest.mark.real
@pytest.mark.parametrize("seed", ["1", "3", "4"])
def test_a_seed_is_the_same_run_under_every_hash_seed(seed: str):
    check_determinism(QUORUM, seed, f"{seed}0")


def test_a_violation_replays_from_the_command_line():
    check_replay(QUORUM, Choice(bug="vote-not-persisted"))
