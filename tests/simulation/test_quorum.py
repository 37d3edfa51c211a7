"""The quorum keeps its promises in every seed that fits into the time box.

`MOLDAU_SIM_SECONDS` is the box (60 by default), `MOLDAU_SIM_FIRST_SEED` where it begins (0).
"""

from __future__ import annotations

import os
from itertools import count

import pytest

from tests.simulation.run import LEAST_EVENTS, Summary, replay_command, run_seed, run_seeds

SECONDS = float(os.environ.get("MOLDAU_SIM_SECONDS", "60"))
FIRST_SEED = int(os.environ.get("MOLDAU_SIM_FIRST_SEED", "0"))
LEAST_SEEDS = 20
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
    summary = Summary()
    for result in run_seeds(count(FIRST_SEED), seconds=SECONDS):
        summary.add(result)
        assert not result.violation, f"{result.violation}\n{replay_command(result.seed)}"
    print("\n".join(summary.lines()))
    assert sorted(summary.events)[len(summary.events) // 2] >= LEAST_EVENTS
    if len(summary.events) >= LEAST_SEEDS:
        assert [kind for kind in FAULT_KINDS if not summary.faults[kind]] == []
        assert summary.counts["commits"] > LEAST_EVENTS
        assert summary.counts["elections"] > len(summary.events)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_is_a_run(seed: int):
    first, second = run_seed(seed), run_seed(seed)
    assert (first.digest, first.events, first.faults) == (
        second.digest,
        second.events,
        second.faults,
    )
    assert first.digest != run_seed(seed + 100).digest
