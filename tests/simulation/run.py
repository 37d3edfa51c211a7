"""Runs seeds of the quorum's simulation: `make sim`, or `python -m tests.simulation.run --help`.

Owns: what a seed of this simulation is. Must not: know how seeds are run and shown (`kit.seeds`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.kit.seeds import Choice, Simulation, Violation, World
from tests.simulation.injected_bugs import BUGS
from tests.simulation.quorum import QuorumSimulation


def _make(seed: str, choice: Choice, print_trace: bool) -> tuple[World, Callable[[], None]]:
    assert choice.controllers is None, "the seed draws the voters"
    assert not choice.faults, "the seed draws its mixture of faults"
    quorum = QuorumSimulation(int(seed), print_trace=print_trace)

    def run() -> None:
        try:
            quorum.run()
        except Violation as violation:
            quorum.scheduler.note(f"VIOLATION {violation}")
            raise

    return quorum.scheduler, run


QUORUM = Simulation("tests.simulation.run", _make, BUGS, bug_seeds=300)

if __name__ == "__main__":
    sys.exit(QUORUM.main())
