"""Runs seeds of the transactions' simulation: `python -m tests.simulation.transactions.run --help`.

Owns: what a seed of this simulation is. Must not: know how seeds are run and shown (`runner`).
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from random import Random
from typing import cast

from tests.simulation.cluster.base_nemesis import BaseNemesis
from tests.simulation.cluster.base_world import BaseWorld
from tests.simulation.cluster.runner import Choice, Simulation
from tests.simulation.transactions.draws import Draws
from tests.simulation.transactions.mutations import MUTATIONS
from tests.simulation.transactions.taps import transaction_taps
from tests.simulation.transactions.upheavals import UpheavalNemesis
from tests.simulation.transactions.world import TransactionWorld

MIN_MEDIAN_EVENTS = 2_000


def _make(seed: str, choice: Choice, print_trace: bool) -> tuple[BaseWorld, BaseNemesis]:
    world = TransactionWorld(
        seed,
        controllers=choice.controllers,
        print_trace=print_trace,
        draws=Draws.of_seed(seed, choice.faults),
    )
    nemesis = UpheavalNemesis(world, Random(f"nemesis {seed}"), choice.faults)
    world.on_broker_death = nemesis.broker_died
    return world, nemesis


def _observed(world: BaseWorld) -> AbstractContextManager[object]:
    return transaction_taps(cast(TransactionWorld, world))


TRANSACTIONS = Simulation("tests.simulation.transactions.run", _make, MUTATIONS, _observed)

if __name__ == "__main__":
    sys.exit(TRANSACTIONS.main())
