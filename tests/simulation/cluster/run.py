"""Runs seeds of the cluster simulation: `python -m tests.simulation.cluster.run --help`.

Owns: what a seed of this simulation is. Must not: know how seeds are run and shown (`runner`).
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from random import Random

from tests.simulation.cluster.base_nemesis import BaseNemesis
from tests.simulation.cluster.base_world import BaseWorld
from tests.simulation.cluster.mutations import MUTATIONS
from tests.simulation.cluster.nemesis import Nemesis
from tests.simulation.cluster.runner import Choice, Simulation
from tests.simulation.cluster.world import World

MIN_MEDIAN_EVENTS = 2_000


def _make(seed: str, choice: Choice, print_trace: bool) -> tuple[BaseWorld, BaseNemesis]:
    world = World(seed, controllers=choice.controllers, print_trace=print_trace)
    return world, Nemesis(world, Random(f"nemesis {seed}"), choice.faults)


def _unobserved(_world: BaseWorld) -> AbstractContextManager[object]:
    return nullcontext()


CLUSTER = Simulation("tests.simulation.cluster.run", _make, MUTATIONS, _unobserved)

run_seed = CLUSTER.run_seed
run_seeds = CLUSTER.run_seeds
replay_command = CLUSTER.replay_command
describe_failure = CLUSTER.describe_failure

if __name__ == "__main__":
    sys.exit(CLUSTER.main())
