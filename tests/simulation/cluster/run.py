"""Runs seeds of the cluster simulation: `python -m tests.simulation.cluster.run --help`.

Owns: what a seed of this simulation is. Must not: know how seeds are run and shown (`kit.seeds`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random

from tests.kit.seeds import Choice, Simulation, Violation
from tests.simulation.cluster.base_world import BaseWorld, print_logs
from tests.simulation.cluster.injected_bugs import BUGS
from tests.simulation.cluster.nemesis import Nemesis
from tests.simulation.cluster.world import World
from tests.virtual.loop import UnhandledFailure

FAILURES = (Violation, UnhandledFailure)


def _make(seed: str, choice: Choice, print_trace: bool) -> tuple[BaseWorld, Callable[[], None]]:
    world = World(seed, controllers=choice.controllers, print_trace=print_trace)
    nemesis = Nemesis(world, Random(f"nemesis {seed}"), choice.faults)
    return world, lambda: world.run(nemesis)


CLUSTER = Simulation(
    *("tests.simulation.cluster.run", _make, BUGS),
    bug_controllers=3,
    failures=FAILURES,
    print_logs=print_logs,
)

if __name__ == "__main__":
    sys.exit(CLUSTER.main())
