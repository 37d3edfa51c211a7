"""Applications whose transactions an outside coordinator decides: two-phase commits (KIP-939).

Owns: what that coordinator remembers, and how the next instance ends what one before it has
prepared. Must not: let two instances decide. Invariants: a decision is made once, when everything
was acknowledged, and by the newest instance; a transaction that was not decided is aborted by
whoever takes it over; nobody and nothing else ends one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from tests.kit.seeds import Violation
from tests.simulation.transactions.coordinator_link import TRANSACTION
from tests.simulation.transactions.producers import Application, Instance
from tests.simulation.transactions.transactional_client import (
    FENCED,
    Fenced,
    MustAbort,
    TransactionalClient,
)

if TYPE_CHECKING:
    from tests.simulation.transactions.ledger import ClientTransaction

NO_PAIR = (-1, -1)
FIRST_WITH_TWO_PHASE = 6
EPOCH_BUMP_VERSION = 2
LONGEST_PREPARED_MS = 4_000.0


class PreparedClient(TransactionalClient):
    """One instance. States: new → initialized ⇄ in a transaction → fenced."""

    async def take_over(self) -> tuple[int, int]:
        """InitProducerId that keeps what is open, until it is answered; the pair of the transaction
        that is open, if there is one. Raises Fenced.
        """
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            enable2_pc=True,
            keep_prepared_txn=True,
        )
        while True:
            response = await self.link.ask_coordinator(
                TRANSACTION, self.transactional_id, request, api_version=FIRST_WITH_TWO_PHASE
            )
            error = self._error(response, "init")
            if error is ErrorCode.NONE:
                break
            if error in FENCED:
                raise Fenced
            await self.link.pause()
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        ongoing = (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        data, keeps = self.world.data, ongoing != NO_PAIR
        self.world.guard(lambda: data.initialized(self.transactional_id, *self.pair, keeps=keeps))
        return ongoing

    async def end(self, transaction: ClientTransaction, *, is_commit: bool) -> None:
        """EndTxn under the pair that this instance has, whoever began the transaction, until it is
        answered. Raises MustAbort (only of a commit), Fenced.
        """
        transaction.asked.add(is_commit)
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=is_commit,
        )
        while True:
            response = await self.link.ask_coordinator(
                TRANSACTION, self.transactional_id, request, api_version=5
            )
            error = self._error(response, "end")
            if error is ErrorCode.NONE:
                break
            if error in FENCED:
                raise Fenced
            if error is ErrorCode.INVALID_TXN_STATE:
                if is_commit:
                    raise MustAbort
                return  # there was nothing to be aborted
            await self.link.pause()
        data, before = self.world.data, self.pair
        self.world.guard(lambda: data.ended(transaction, is_commit=is_commit))
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self.world.guard(data.continued, self.transactional_id, before, self.pair)

    def _known(self, error: ErrorCode, what: str) -> ErrorCode:
        if error is ErrorCode.UNSUPPORTED_VERSION and self.world.draws.levels:
            self.world.counts["kept_later"] += 1
            return error  # until the cluster is at transaction.version 2 again
        return super()._known(error, what)


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
    client: PreparedClient
    make_client = PreparedClient

    @property
    def is_newest(self) -> bool:
        """Whether the outside coordinator listens to it."""
        return self.application.instances[-1] is self

    async def _run(self) -> None:
        world = self.world
        try:
            await self._take_over()
            while world.producers_may_act and self.is_newest:
                await world.loop.elapse(self.random.expovariate(1 / self.application.pause_ms))
                await self._one()
        except Fenced:
            world.counts["fenced_instances"] += 1
            if self.is_newest:
                self.application.restart_later()
        self.is_idle = True

    async def _take_over(self) -> None:
        """End what an instance before has left, as it was decided. Raises Fenced, Violation."""
        ongoing = await self.client.take_over()
        if not self.is_newest:
            raise Fenced
        left, is_spoilt = self.application.current, self.world.data.is_spoilt
        if ongoing == NO_PAIR:
            is_missing = left is not None and left.decided is not None and not left.asked
            if left is not None and is_missing and left.acknowledged and not is_spoilt:
                raise Violation("prepared-lost", f"{self.process.name}: {left}")
            self.application.current = None
            return
        if left is None or ongoing != (left.producer_id, left.producer_epoch):
            if is_spoilt:
                raise Fenced
            raise Violation("kept-another", f"{self.process.name}: {ongoing}, prepared is {left}")
        self.world.counts["kept_prepared" if left.decided is not None else "kept_undecided"] += 1
        await self._end(left, is_commit=bool(left.decided))

    async def _one(self) -> None:
        """One transaction. Raises Fenced, Violation."""
        if not self.is_newest:
            raise Fenced
        transaction = self.client.begin()
        transaction.is_two_phase = True
        self.application.current = transaction
        try:
            await self._write(transaction)
        except MustAbort:
            self.world.counts["must_abort"] += 1
            await self._end(transaction, is_commit=False)
            return
        await self._perhaps_something_else()
        if not self.is_newest:
            raise Fenced
        transaction.decided = self.random.random() < 0.75
        self.world.counts["prepared"] += 1
        await self._perhaps_something_else()
        if self.random.random() < 0.3:
            await self.world.loop.elapse(self.random.uniform(100.0, LONGEST_PREPARED_MS))
        await self._end(transaction, is_commit=transaction.decided)

    async def _end(self, transaction: ClientTransaction, *, is_commit: bool) -> None:
        """Raises Fenced, Violation."""
        try:
            await self.client.end(transaction, is_commit=is_commit)
        except MustAbort:
            if transaction.acknowledged and not self.world.data.is_spoilt:
                raise Violation("prepared-lost", f"{self.process.name}: {transaction}") from None
        if self.application.current is transaction:
            self.application.current = None
