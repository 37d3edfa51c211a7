"""Runs seeds of the transactions' simulation: `python -m tests.simulation.transactions.run --help`.

Owns: what a seed of this simulation is. Must not: know how seeds are run and shown (`kit.seeds`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random

from tests.kit.seeds import Choice, Simulation
from tests.simulation.cluster.base_world import BaseWorld, print_logs
from tests.simulation.cluster.run import FAILURES
from tests.simulation.transactions.draws import Draws
from tests.simulation.transactions.injected_bugs import BUGS
from tests.simulation.transactions.taps import transaction_taps
from tests.simulation.transactions.upheavals import UpheavalNemesis
from tests.simulation.transactions.world import TransactionWorld


def _make(seed: str, choice: Choice, print_trace: bool) -> tuple[BaseWorld, Callable[[], None]]:
    world = TransactionWorld(
        seed,
        controllers=choice.controllers,
        print_trace=print_trace,
        draws=Draws.of_seed(seed, choice.faults),
    )
    nemesis = UpheavalNemesis(world, Random(f"nemesis {seed}"), choice.faults)
    world.on_broker_death = nemesis.broker_died

    def run() -> None:
        with transaction_taps(world):
            world.run(nemesis)

    return world, run


TRANSACTIONS = Simulation(
    *("tests.simulation.transactions.run", _make, BUGS),
    bug_controllers=1,
    bug_seeds=12,
    failures=FAILURES,
    print_logs=print_logs,
)

if __name__ == "__main__":
    sys.exit(TRANSACTIONS.main())
