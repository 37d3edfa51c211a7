"""Runs seeds of the replication simulation: `python -m tests.simulation.replication.run --help`.

Owns: what a seed of this simulation is. Must not: know how seeds are run and shown (`kit.seeds`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random

from tests.kit.seeds import Choice, Simulation
from tests.simulation.cluster.base_world import BaseWorld, print_logs
from tests.simulation.cluster.run import FAILURES
from tests.simulation.replication.injected_bugs import BUGS
from tests.simulation.replication.nemesis import ReplicationNemesis
from tests.simulation.replication.taps import taps
from tests.simulation.replication.world import ReplicationWorld


def _make(seed: str, choice: Choice, print_trace: bool) -> tuple[BaseWorld, Callable[[], None]]:
    world = ReplicationWorld(seed, controllers=choice.controllers, print_trace=print_trace)
    nemesis = ReplicationNemesis(world, Random(f"nemesis {seed}"), choice.faults)
    world.on_broker_death = nemesis.broker_died

    def run() -> None:
        with taps():
            world.run(nemesis)

    return world, run


REPLICATION = Simulation(
    *("tests.simulation.replication.run", _make, BUGS),
    bug_controllers=1,
    bug_seeds=30,
    failures=FAILURES,
    print_logs=print_logs,
)

if __name__ == "__main__":
    sys.exit(REPLICATION.main())
