"""The checks catch every known way to get the quorum wrong; without one they catch nothing."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import run_seed

FIRST_SEED = 10_000
SEEDS = 300
"""Far more than any mutation has needed (docs/testing.md has the medians)."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_the_core_is_caught(name: str):
    seeds = range(FIRST_SEED, FIRST_SEED + SEEDS)
    assert any(run_seed(seed, mutation=name).violation for seed in seeds), MUTATIONS[name].breaks


def test_a_mutation_leaves_the_core_as_it_was():
    before = run_seed(1)
    for mutation in MUTATIONS.values():
        with mutation.applied():
            pass
    assert before.violation == ""
    assert run_seed(1).digest == before.digest


def test_there_are_enough_of_them():
    assert len(MUTATIONS) >= 15
