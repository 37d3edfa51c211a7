"""The whole cluster under faults: seeds, determinism, and the power to find bugs."""

from __future__ import annotations

import pytest

from tests.kit.gates import (
    bugs_of_the_gate,
    check_bug,
    check_determinism,
    check_replay,
    check_seeds,
    check_undone,
)
from tests.kit.injected_bugs import InjectedBug
from tests.kit.seeds import Choice
from tests.simulation.cluster.injected_security_bugs import SECURITY_BUGS
from tests.simulation.cluster.run import CLUSTER

SEEDS = (2, 3, 4, 7, 8, 9)
FOUND = (813030547,)
"""Each has found a fault once: a controller that started on a full disk flushed its log without end
for seals that had found no room.
"""

TIMEOUT_S = 240


def test_no_seed_breaks_a_promise():
    total = check_seeds(CLUSTER, SEEDS)
    assert total.faults.total() >= len(SEEDS)


def test_seeds_that_found_a_fault_once_find_none_now():
    check_seeds(CLUSTER, FOUND)


@pytest.mark.real
def test_a_seed_gives_the_same_run_whatever_the_hash_seed():
    check_determinism(CLUSTER, "7", "8")


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("bug", bugs_of_the_gate(CLUSTER))
def test_an_injected_bug_is_found(bug: InjectedBug):
    check_bug(CLUSTER, bug, by_a_check=bug in SECURITY_BUGS)


def test_an_injected_bug_leaves_the_nodes_as_they_were():
    check_undone(CLUSTER, "1")


def test_a_failing_seed_replays_by_the_command_it_names():
    check_replay(CLUSTER, Choice(3, ("partition",), "delivered-before-commit"))
