"""Whole clusters without faults in which a test plays one story, step by step.

Owns: readers, and nothing else that acts. Must not: know a story. Invariant: the world's checks are
in force, and the run ends when the story has ended and the cluster has converged.
"""

from __future__ import annotations

from tests.simulation.transactions.taps import transaction_taps
from tests.simulation.transactions.world import TransactionWorld


class ScriptedWorld(TransactionWorld):
    """See the module. A subclass has the story."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed, controllers=1)
        self.administrator_may_act = False

    async def story(self) -> None:
        """What happens; it belongs to no process."""
        raise NotImplementedError

    def tell(self) -> None:
        """Run the whole of it. Raises Violation."""
        with transaction_taps(self):
            self.run(None)

    async def _make_clients(self) -> None:
        await self._make_internal_topics()
        self._make_readers()
        await self.story()

    async def _move_coordinators(self) -> None:
        """Without a nemesis, a broker that stops would not be started again."""
