"""The whole cluster under faults: a time box of seeds, determinism, and the power to find bugs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.simulation.cluster.run import (
    MIN_MEDIAN_EVENTS,
    describe_failure,
    replay_command,
    run_seed,
    run_seeds,
)
from tests.simulation.cluster.runner import Choice

TIME_BOX_S = float(os.environ.get("MOLDAU_CLUSTER_SIM_SECONDS", "40"))
FIRST_SEED = int(os.environ.get("MOLDAU_CLUSTER_SIM_FIRST_SEED", "1"))
TIMEOUT_S = TIME_BOX_S + 240
SEEDS_PER_MUTATION = 20
MUTATIONS_OF_THE_GATE = {
    "answer-before-commit": (),
    "decisions-overlap": (),
    "producer-ids-twice": (),
    "second-broker-epoch": (),
    "fenced-stays-in-isr": ("kill_broker", "stop_broker"),
    "unclean-start-is-clean": ("kill_broker",),
    "deposed-keeps-state": ("stop_controller", "partition", "resign", "stall_disk"),
    "trimmed-before-snapshot": ("crash_on_file", "kill_controller"),
    "unflushed-counts": ("storage_outage",),
    "persist-in-the-background": ("storage_outage",),
}
"""Each with the faults that bring it to light."""


@pytest.fixture(autouse=True)
def quiet_logs():
    """What the simulated nodes log is of no interest; a failure brings its own history."""
    logger = logging.getLogger("moldau")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.timeout(TIMEOUT_S)
def test_no_seed_of_the_time_box_breaks_a_promise():
    total, failed = run_seeds(FIRST_SEED, seconds=TIME_BOX_S)
    print(total)
    assert failed is None, describe_failure(failed)
    events = sorted(total.events)
    assert events[len(events) // 2] >= MIN_MEDIAN_EVENTS
    assert sum(total.faults.values()) > len(events)


def test_a_seed_gives_the_same_run_whatever_the_hash_seed():
    here = run_seed("7").digest
    for hash_seed in ("0", "1234"):
        printed = subprocess.run(
            [sys.executable, "-m", "tests.simulation.cluster.run", "--seed", "7"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert here in printed
    assert run_seed("8").digest != here


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mutation", MUTATIONS_OF_THE_GATE)
def test_a_bug_put_in_is_found(mutation):
    choice = Choice(3, MUTATIONS_OF_THE_GATE[mutation], mutation)
    _total, failed = run_seeds(1, choice, seeds=SEEDS_PER_MUTATION)
    assert failed is not None, f"{SEEDS_PER_MUTATION} seeds find no {mutation}"
    # Without the bug the same seed is a good one.
    assert run_seed(failed.seed, replace(choice, mutation="")).failure is None


def test_a_failing_seed_replays_by_the_command_it_names():
    choice = Choice(3, ("partition",), "delivered-before-commit")
    _total, failed = run_seeds(1, choice, seeds=SEEDS_PER_MUTATION)
    assert failed is not None
    command = replay_command(failed.seed, choice)
    assert command in describe_failure(failed, choice)
    replayed = subprocess.run(
        [sys.executable, *command.split()[1:], "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert replayed.returncode == 1
    assert f"seed {failed.seed}: {failed.failure}" in replayed.stdout
