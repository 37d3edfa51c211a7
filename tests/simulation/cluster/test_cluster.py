"""The whole cluster under faults: a time box of seeds, determinism, and the power to find bugs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from tests.simulation.cluster.run import (
    MIN_MEDIAN_EVENTS,
    describe_failure,
    replay_command,
    run_seed,
    run_seeds,
)

TIME_BOX_S = 60.0
SEEDS_PER_MUTATION = 40
MUTATIONS_OF_THE_GATE = {
    "answer-before-commit": 1,
    "producer-ids-twice": 1,
    "second-broker-epoch": 1,
    "fenced-stays-in-isr": 1,
    "unclean-start-is-clean": 1,
}
"""Those a few seeds find, with the first seed to try; the others take minutes (see the docs)."""


@pytest.fixture(autouse=True)
def quiet_logs():
    """What the simulated nodes log is of no interest; a failure brings its own history."""
    logger = logging.getLogger("moldau")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.timeout(TIME_BOX_S * 4)
def test_no_seed_of_the_time_box_breaks_a_promise():
    total, failed = run_seeds(int(os.environ.get("SIM_FIRST_SEED", "1")), seconds=TIME_BOX_S)
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


@pytest.mark.parametrize("mutation", MUTATIONS_OF_THE_GATE)
def test_a_bug_put_in_is_found_and_its_seed_replays(mutation):
    first = MUTATIONS_OF_THE_GATE[mutation]
    _total, failed = run_seeds(first, seeds=SEEDS_PER_MUTATION, mutation=mutation)
    assert failed is not None, f"{SEEDS_PER_MUTATION} seeds from {first} find no {mutation}"
    assert replay_command(failed.seed, mutation) in describe_failure(failed, mutation)
    again = run_seeds(int(failed.seed), seeds=1, mutation=mutation)[1]
    assert again is not None
    assert (again.failure, again.digest) == (failed.failure, failed.digest)
    assert run_seed(failed.seed).failure is None
