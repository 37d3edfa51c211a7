"""Applications whose transactions an outside coordinator decides: two-phase commits (KIP-939).

Owns: what that coordinator remembers, and how the next instance ends what one before it has
prepared. Must not: let two instances decide. Invariants: a decision is made once, when everything
was acknowledged, and by the newest instance; a transaction that was not decided is aborted by the
instance that takes it over, and by nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.client.producer.transactions import PreparedTransaction
from tests.simulation.transactions.producers import Application, Instance
from tests.simulation.transactions.transactional_producer import Fenced, MustAbort

if TYPE_CHECKING:
    from tests.simulation.transactions.ledger import ClientTransaction

EPOCH_BUMP_VERSION = 2
LONGEST_PREPARED_MS = 4_000.0


class PreparedApplication(Application):
    """See the module. `current`: the transaction that the outside coordinator knows of."""

    name = "two-phase"
    id_prefix = "txn-two-phase"
    current: ClientTransaction | None = None

    @property
    def is_drained(self) -> bool:
        """Nothing is prepared, and no instance has anything left to do."""
        return self.current is None and super().is_drained

    def restart(self) -> None:
        """Another instance, also when all that is left to do is to end what was prepared."""
        if self.world.producers_may_act or self.current is not None:
            self.start()

    def _make_instance(self, number: int) -> Instance:
        self.version = EPOCH_BUMP_VERSION
        return PreparedInstance(self, number)


class PreparedInstance(Instance):
    """One process of such an application."""

    application: PreparedApplication

    def settings(self) -> dict[str, object]:
        return {
            "transaction_two_phase_commit_enable": True,
            "transaction_timeout_ms": None,
        }

    def _goes_on(self) -> bool:
        return super()._goes_on() and self.is_newest

    async def _begin(self) -> None:
        """End what an instance before has left, as it was decided. Raises Fenced, Violation."""
        prepared = await self.client.initialize(keeps=True)
        if not self.is_newest:
            raise Fenced
        left, is_spoilt = self.application.current, self.world.data.is_spoilt
        if prepared is None:
            is_missing = left is not None and left.decided is not None and not left.asked
            if left is not None and is_missing and left.acknowledged and not is_spoilt:
                raise self.world.found("prepared-lost", f"{self.process.name}: {left}")
            self.application.current = None
            return
        if left is None or prepared != (left.producer_id, left.producer_epoch):
            if is_spoilt:
                raise Fenced
            raise self.world.found(
                "kept-another", f"{self.process.name}: {prepared}, prepared is {left}"
            )
        self.world.counts["kept_prepared" if left.decided is not None else "kept_undecided"] += 1
        await self._complete(left, prepared)

    async def _one(self) -> None:
        """One transaction. Raises Fenced, Violation."""
        if not self.is_newest:
            raise Fenced
        transaction = self.client.begin()
        transaction.is_two_phase = True
        self.application.current = transaction
        try:
            await self._write(transaction)
            await self._perhaps_something_else(transaction)
            prepared = await self.client.prepare()
        except MustAbort:
            self.world.counts["must_abort"] += 1
            await self.client.end(transaction, is_commit=False)
            self._forget(transaction)
            return
        if not self.is_newest:
            raise Fenced
        if prepared != (transaction.producer_id, transaction.producer_epoch):
            raise self.world.found(
                "prepared-another", f"{self.process.name}: {prepared}, {transaction}"
            )
        transaction.decided = self.random.random() < 0.75
        self.world.counts["prepared"] += 1
        await self._perhaps_something_else(transaction)
        if self.random.random() < 0.3:
            await self.world.loop.elapse(self.random.uniform(100.0, LONGEST_PREPARED_MS))
        await self._complete(transaction, prepared)

    async def _complete(
        self, transaction: ClientTransaction, prepared: PreparedTransaction
    ) -> None:
        """Raises Fenced."""
        await self.client.complete(transaction, prepared, is_commit=bool(transaction.decided))
        self._forget(transaction)

    def _forget(self, transaction: ClientTransaction) -> None:
        if self.application.current is transaction:
            self.application.current = None
