"""What upheavals bring to light: each check of theirs finds the bug that it is for."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from tests.simulation.cluster.runner import Choice
from tests.simulation.transactions.draws import Draws
from tests.simulation.transactions.run import TRANSACTIONS

TIMEOUT_S = 360
SEEDS_PER_MUTATION = 8
BUGS: dict[str, tuple[int, tuple[str, ...]]] = {
    "two-phase-times-out": (1, ("kill_coordinator_of_prepared",)),
    "prepared-is-not-kept": (1, ("kill_coordinator_of_prepared",)),
    "level-rules-over-the-client": (1, ("change_transaction_level",)),
    "offsets-outlive-their-topic": (1, ("recreate_topic",)),
    "offsets-of-any-topic-of-the-name": (1, ("recreate_topic",)),
    "deleted-group-keeps-offsets": (1, ("delete_group", "empty_group")),
    "offsets-expire-in-use": (1, ("outlive_offsets",)),
    "static-member-joins-beside": (1, ("race_for_id",)),
    "replaced-member-loses-assignment": (4, ("race_for_id",)),
    "unreleased-id-is-given": (1, ("race_for_id",)),
}
"""The seed to begin with, and the faults that bring it to light."""


@pytest.fixture(autouse=True)
def quiet_logs():
    """What the simulated nodes log is of no interest; a failure brings its own history."""
    logger = logging.getLogger("moldau")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mutation", BUGS)
def test_a_bug_put_in_is_found(mutation):
    first, faults = BUGS[mutation]
    choice = Choice(1, faults, mutation)
    _total, failed = TRANSACTIONS.run_seeds(first, choice, seeds=SEEDS_PER_MUTATION)
    assert failed is not None, f"{SEEDS_PER_MUTATION} seeds from {first} on find no {mutation}"
    print(f"{mutation}: seed {failed.seed}, {failed.failure}")
    assert failed.failure is not None
    assert failed.failure.startswith("Violation"), "a check finds it, not an exception in the bug"
    # Without the bug the same seed is a good one.
    assert TRANSACTIONS.run_seed(failed.seed, replace(choice, mutation="")).failure is None


def test_a_fault_that_is_asked_for_brings_what_it_needs():
    assert Draws.of_seed("1", ("recreate_topic",)) == Draws(topics=True)
    assert Draws.of_seed("1", ("kill_broker",)) == Draws()
    assert Draws.of_seed("1", ("race_for_id", "delete_group")) == Draws(groups=True, rivals=True)


def test_every_upheaval_is_drawn_by_some_seeds_and_not_by_all():
    drawn = [Draws.of_seed(str(number)) for number in range(60)]
    for what in ("two_phase", "levels", "topics", "groups", "rivals"):
        assert 5 < sum(getattr(each, what) for each in drawn) < 30, what
