"""Whole clusters with coordinators under faults: seeds, and determinism."""

from __future__ import annotations

import pytest

from tests.kit.gates import check_determinism, check_seeds
from tests.simulation.transactions.run import TRANSACTIONS

SEEDS = (10, 11, 16, 23)
"""The same ones every time; `make long` has new ones."""

FOUND = (13468489, 13468504, 13468532, 869745722, 869745736)
"""Each has found a fault once: an instance that dies leaves records on their way in a transaction
that the next one keeps; the time for giving partitions back begins long before the member hears
that it is to; a commit went without a record that was held. And of the checks: a member leaves a
group that has not begun; a leader that has not heard that a topic was deleted and created again
names the former one's end.
"""

TIMEOUT_S = 240

EXPECTED = (
    "commits",
    "read_committed",
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
)
"""Each comes about in some of the seeds."""


@pytest.mark.timeout(TIMEOUT_S)
def test_no_seed_breaks_a_promise():
    total = check_seeds(TRANSACTIONS, SEEDS)
    assert total.faults.total() > len(SEEDS)
    assert [what for what in EXPECTED if not total.counts[what]] == []


@pytest.mark.timeout(TIMEOUT_S)
def test_seeds_that_found_a_fault_once_find_none_now():
    check_seeds(TRANSACTIONS, FOUND)


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S)
def test_a_seed_gives_the_same_run_whatever_the_hash_seed():
    check_determinism(TRANSACTIONS, "2", "1")
