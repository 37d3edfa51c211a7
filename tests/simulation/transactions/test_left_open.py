"""A two-phase transaction that an instance leaves open before the outside coordinator has decided
about it: the next instance keeps it and aborts it (KIP-939).
"""

from __future__ import annotations

import pytest

from tests.simulation.transactions.ledger import ClientTransaction
from tests.simulation.transactions.scripted_world import ScriptedWorld
from tests.simulation.transactions.transaction_log import ONGOING
from tests.simulation.transactions.transactional_producer import (
    Fenced,
    MustAbort,
    TransactionalProducer,
)
from tests.virtual.loop import Process

ID = "left-open"
PLACE = ("output", 0)
STEP_MS = 0.1
STOPPED_MS = 1_000.0
"""Longer than the next instance takes."""


class LeftOpenWorld(ScriptedWorld):
    """An instance dies, or is stopped for a while, with a record on its way."""

    left: ClientTransaction

    def __init__(self, *, dies: bool) -> None:
        super().__init__("left open")
        self.dies = dies
        self.was_refused = False

    async def story(self) -> None:
        process = Process(self.loop, "client#1")
        before = process.spawn(self._before(self._client(process)))
        while not self._is_ongoing():
            await self.loop.elapse(STEP_MS)
        if self.dies:
            process.kill()
        else:
            process.stop_for(STOPPED_MS)
        successor = Process(self.loop, "client#2")
        await successor.spawn(self._after(self._client(successor)))
        if not self.dies:
            await before

    def _client(self, process: Process) -> TransactionalProducer:
        client = TransactionalProducer(
            *(self, process, "client", self._new_random(), ID, 2),
            transaction_two_phase_commit_enable=True,
            transaction_timeout_ms=None,
        )
        client.cancelled_share = 0.0
        return client

    def _is_ongoing(self) -> bool:
        """Whether the coordinator knows of the transaction; the record is appended after that."""
        known = self.data.transaction_log.last.get(ID)
        return known is not None and known.transaction_status == ONGOING

    async def _before(self, client: TransactionalProducer) -> None:
        await client.initialize(keeps=True)
        left = self.left = client.begin()
        left.is_two_phase = True
        try:
            await client.send(left, *PLACE, [f"{left.name} first".encode()])
            await client.send(left, *PLACE, [f"{left.name} second".encode()])
        except (MustAbort, Fenced):
            self.was_refused = True
        await client.close(None, 0.0)

    async def _after(self, client: TransactionalProducer) -> None:
        prepared = await client.initialize(keeps=True)
        left = self.left
        assert prepared == (left.producer_id, left.producer_epoch)
        await client.complete(left, prepared, is_commit=False)
        assert not left.deliveries[0].done(), "else nothing was on its way"
        await client.close(None, 0.0)


@pytest.mark.parametrize("dies", [True, False])
def test_what_is_left_is_aborted_with_its_records_on_their_way(dies: bool) -> None:
    world = LeftOpenWorld(dies=dies)
    world.tell()
    assert world.left.outcomes == {"output-0": False}
    assert world.was_refused is not dies
