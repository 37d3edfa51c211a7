"""Runs seeds of the replication simulation: `python -m tests.simulation.replication.run --help`.

Owns: what a seed of this simulation is. Must not: know how seeds are run and shown (`runner`).
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from random import Random

from tests.simulation.cluster.base_nemesis import BaseNemesis
from tests.simulation.cluster.base_world import BaseWorld
from tests.simulation.cluster.runner import Choice, Simulation
from tests.simulation.replication.mutations import MUTATIONS
from tests.simulation.replication.nemesis import ReplicationNemesis
from tests.simulation.replication.taps import taps
from tests.simulation.replication.world import ReplicationWorld

MIN_MEDIAN_EVENTS = 2_000


def _make(seed: str, choice: Choice, print_trace: bool) -> tuple[BaseWorld, BaseNemesis]:
    world = ReplicationWorld(seed, controllers=choice.controllers, print_trace=print_trace)
    nemesis = ReplicationNemesis(world, Random(f"nemesis {seed}"), choice.faults)
    world.on_broker_death = nemesis.broker_died
    return world, nemesis


def _observed(_world: BaseWorld) -> AbstractContextManager[object]:
    return taps()


REPLICATION = Simulation("tests.simulation.replication.run", _make, MUTATIONS, _observed)

if __name__ == "__main__":
    sys.exit(REPLICATION.main())
