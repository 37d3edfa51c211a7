"""What a producer's application asks of its transactions, and its sender of the producer id.

Owns what the calls (`transaction_calls`) wait for, and their time limits. Must not decide what a
state allows (`core.transaction_manager`) or talk to brokers (`transaction_driver`). Invariant: a
call that was cancelled or ran out of time leaves the producer so that the same call, or
`abort_transaction`, is right: what has been asked of the cluster goes on behind it, and the call
made again waits for how that ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.config import ProducerConfig
from moldau.client.errors import (
    ClientClosed,
    ConfigurationError,
    InvalidTransactionState,
    KafkaError,
    RequestTimeout,
    TransactionAbortable,
)
from moldau.client.producer.coordinator_link import CoordinatorLink
from moldau.client.producer.core.transaction_manager import TransactionManager
from moldau.client.producer.core.transaction_requests import GroupMember, Position
from moldau.client.producer.core.transaction_states import (
    Problem,
    ProducerIdAndEpoch,
    TransactionState,
)
from moldau.client.producer.transaction_driver import Batches, Link, TransactionDriver
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.runtime.clock import Clock

logger: Final[logging.Logger] = logging.getLogger("moldau.client.producer")

_S = TransactionState

_ENDING: Final = frozenset({_S.COMMITTING, _S.ABORTING})
_TO_BE_ABORTED: Final = frozenset(
    {_S.IN_TRANSACTION, _S.PREPARING, _S.COMMITTING, _S.ABORTABLE_ERROR}
)
"""A transaction is open whose outcome is this producer's to say, and has not been said."""


class PreparedTransaction(ProducerIdAndEpoch):
    """A transaction that waits for its outcome (KIP-939); what is to be stored beside the outcome.

    `str` and `parse` go from and to the text `PRODUCER_ID:PRODUCER_EPOCH`, as Apache Kafka's Java
    client writes it.
    """

    __slots__ = ()


class Transactions:
    """Who the producer is, and the transaction it has open, if any.

    The sender's side of it is synchronous: `producer`, `admit`, `batch_failed`, `bump_epoch`.

    Args:
        config: the producer's.
        batches: its accumulator and sender.
        link: instead of the real one, for tests.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ProducerConfig,
        batches: Batches,
        *,
        clock: Clock,
        source: random.Random,
        link: Link | None = None,
    ) -> None:
        if config.transaction_two_phase_commit_enable and config.transactional_id is None:
            raise ConfigurationError("transaction.two.phase.commit.enable needs a transactional.id")
        self.begun_count: int = 0
        """Transactions that this producer has opened."""
        self._clock = clock
        self._batches = batches
        self._limit_ms: float = config.max_block_ms
        self._manager = TransactionManager(
            config.transactional_id,
            config.transaction_timeout_ms,
            two_phase=config.transaction_two_phase_commit_enable,
        )
        self._driver = TransactionDriver(
            self._manager,
            link or CoordinatorLink(client),
            batches,
            source=source,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
        )
        self._is_initialization_untold = False

    # -- the sender's side -----------------------------------------------------------------------

    @property
    def refusal(self) -> KafkaError | None:
        """Why no record may be appended now, as an exception of its own for each that asks."""
        problem = self._driver.refusal
        return None if problem is None else self._driver.error_of(problem)

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """Under whose name batches are sent; NO_PRODUCER until known."""
        return self._manager.producer

    @property
    def transactional_id(self) -> str | None:
        """None for a producer that is only idempotent."""
        return self._manager.transactional_id

    @property
    def is_transactional(self) -> bool:
        """Whether it has a transactional id."""
        return self._manager.is_transactional

    @property
    def highest_produce_version(self) -> int | None:
        """The highest version of Produce that means what this producer means; None for any."""
        return self._manager.highest_produce_version

    @property
    def state(self) -> TransactionState:
        """Where the producer is."""
        return self._manager.state

    def start(self) -> None:
        """Get a producer id for a producer that is only idempotent, before its first record."""
        if not self._manager.is_transactional:
            self._manager.initialize()
            self._driver.kick()

    def admit(self, topic: str, partition: int) -> bool:
        """Whether a batch for the partition may be sent now.

        If not, what is missing is being done, and `batches.wake` is called when to look again.
        """
        if self._manager.admit(TopicPartition(topic, partition)):
            return True
        self._driver.kick()
        return False

    def batch_failed(
        self, topic: str, partition: int, error: Exception, *, may_be_written: bool
    ) -> None:
        """A batch failed for good; not for those that `batches.fail_waiting` was told to fail."""
        self._driver.caused_by(error)
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self._manager.batch_failed(
            TopicPartition(topic, partition),
            Problem(code, str(error)),
            may_be_written=may_be_written,
        )
        self._changed()

    def record_refused(self, error: KafkaError) -> None:
        """A record of the open transaction was refused, so that it is not whole any more."""
        self._driver.caused_by(error)
        self._manager.record_refused(Problem(error.code, str(error)))
        self._changed()

    def bump_epoch(self) -> None:
        """Get another pair for a producer that is only idempotent (KIP-360)."""
        self._manager.bump_epoch()
        self._changed()
        self._batches.wake()

    async def close(self, timeout_ms: float) -> None:
        """Abort what is open, unless it is prepared, and stop.

        Args:
            timeout_ms: for all of it; a transaction that is left open then is aborted by the
                cluster after `transaction.timeout.ms`, or by the next producer of its id. With 0
                nobody is asked for anything.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        manager = self._manager
        try:
            if timeout_ms <= 0:
                return
            if self._is_to_be_aborted:
                await self.abort(timeout_ms)
            elif manager.state in (_S.COMMITTING, _S.ABORTING):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._driver.until(lambda: manager.state not in _ENDING)
        except (KafkaError, TimeoutError) as error:
            logger.warning("closing with an open transaction: %s", error)
        finally:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            await self._driver.stop(max(0.0, left_ms) / 1000)

    def _changed(self) -> None:
        self._driver.changed()
        self._driver.kick()

    # -- the application's side ------------------------------------------------------------------

    async def initialize(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        """See `TransactionCalls.init_transactions`."""
        self._check_transactional("init_transactions()")
        manager = self._manager
        if not (self._is_initialization_untold and manager.state is not _S.UNINITIALIZED):
            self._raise(manager.initialize(keep_prepared=keep_prepared))
            self._is_initialization_untold = True
            self._changed()
        await self._within_limit(
            "init_transactions()",
            self._driver.until(lambda: manager.state is not _S.INITIALIZING),
        )
        self._is_initialization_untold = False
        if manager.state in (_S.UNINITIALIZED, _S.FATAL_ERROR):
            self._raise(manager.problem)
        return PreparedTransaction(*manager.prepared) if manager.prepared.is_known else None

    def begin(self) -> None:
        """See `TransactionCalls.begin_transaction`."""
        self._check_transactional("begin_transaction()")
        self._raise(self._manager.begin())
        self.begun_count += 1
        self._driver.forget_cause()
        self._changed()

    async def commit(self) -> None:
        """See `TransactionCalls.commit_transaction`."""
        self._check_transactional("commit_transaction()")
        manager = self._manager
        if manager.state is _S.READY and manager.untold_outcome is True:
            manager.untold_outcome = None
            return
        self._raise(manager.commit())
        self._changed()
        await self._within_limit("commit_transaction()", self._settle_and_end(_S.COMMITTING))
        if manager.state is not _S.READY:
            self._raise(manager.problem or _overtaken("commit_transaction()"))
        elif manager.untold_outcome is False:
            self._raise(_overtaken("commit_transaction()"))
        manager.untold_outcome = None

    async def abort(self, timeout_ms: float | None = None) -> None:
        """See `TransactionCalls.abort_transaction`."""
        self._check_transactional("abort_transaction()")
        manager = self._manager
        if manager.state is _S.READY and manager.untold_outcome is False:
            manager.untold_outcome = None
            return
        self._raise(manager.abort())
        self._changed()
        await self._within_limit(
            "abort_transaction()",
            self._driver.until(lambda: manager.state is not _S.ABORTING),
            timeout_ms,
        )
        if manager.state is _S.FATAL_ERROR:
            self._raise(manager.problem)
        manager.untold_outcome = None

    async def prepare(self, *, is_handed_over: bool = False) -> PreparedTransaction:
        """See `TransactionCalls.prepare_transaction` and `hand_over_transaction`."""
        call = "hand_over_transaction()" if is_handed_over else "prepare_transaction()"
        self._check_transactional(call)
        manager = self._manager
        self._raise(manager.prepare(is_handed_over=is_handed_over))
        self._changed()
        await self._within_limit(call, self._settle_and_end(_S.PREPARING))
        if manager.state is not _S.PREPARED:
            self._raise(manager.problem or _overtaken(call))
        return PreparedTransaction(*manager.prepared)

    async def complete(self, prepared: PreparedTransaction) -> bool:
        """See `TransactionCalls.complete_transaction`."""
        self._check_transactional("complete_transaction()")
        manager = self._manager
        is_open = manager.state in (_S.PREPARED, _S.COMMITTING, _S.ABORTING)
        is_done = manager.state is _S.READY and manager.untold_outcome is not None
        if not (is_open or is_done) or not manager.prepared.is_known:
            if manager.state is _S.FATAL_ERROR:
                self._raise(manager.problem)
            raise InvalidTransactionState(
                "complete_transaction(): no transaction is prepared; it was completed before, or "
                "init_transactions() was called without keep_prepared_transaction=True"
            )
        is_commit = manager.prepared == prepared
        if is_commit:
            await self.commit()
        else:
            await self.abort()
        return is_commit

    async def send_offsets(
        self, member: GroupMember, offsets: Mapping[TopicPartition, Position]
    ) -> None:
        """See `TransactionCalls.send_offsets`."""
        self._check_transactional("send_offsets()")
        commit = self._manager.add_offsets(member, offsets)
        if isinstance(commit, Problem):
            raise self._driver.error_of(commit)
        self._changed()
        await self._within_limit(
            "send_offsets()",
            self._driver.until(lambda: commit.is_done or commit.problem is not None),
        )
        if commit.problem is not None:
            self._raise(commit.problem)

    async def enter(self) -> None:
        """Begin a transaction, after whatever is left of the one before and of the start."""
        self._check_transactional("transaction()")
        manager = self._manager
        if manager.state in (_S.UNINITIALIZED, _S.INITIALIZING):
            await self.initialize()
        if manager.state in _ENDING:
            # A commit or an abort whose caller was cancelled: its outcome is decided.
            if self._is_to_be_aborted:
                await self.abort()
            else:
                await self._within_limit(
                    "transaction()", self._driver.until(lambda: manager.state not in _ENDING)
                )
        self.begin()

    async def leave(self, error: BaseException | None) -> None:
        """Commit, or abort because of `error`; what cannot be committed is aborted."""
        manager = self._manager
        if error is None:
            if manager.state in (_S.READY, _S.PREPARED):
                # Ended within the block, or prepared: then somebody else says how it ends.
                return
            try:
                await self.commit()
            except TransactionAbortable:
                await self._abort_because_of(None)
                raise
            except BaseException as reason:
                # Cancelled, or out of time: nobody has been told to commit unless it was asked.
                if self._is_to_be_aborted:
                    await self._abort_because_of(reason)
                raise
        elif manager.state is _S.ABORTING or self._is_to_be_aborted:
            await self._abort_because_of(error)

    async def _abort_because_of(self, error: BaseException | None) -> None:
        """An abort that fails must not hide what it was for."""
        try:
            await self.abort()
        except KafkaError as problem:
            if error is None:
                logger.warning("aborting a transaction that cannot be committed: %s", problem)
            else:
                error.add_note(f"and the transaction could not be aborted: {problem}")

    @property
    def _is_to_be_aborted(self) -> bool:
        manager = self._manager
        return manager.state in _TO_BE_ABORTED and not manager.is_outcome_asked

    # -- helpers ---------------------------------------------------------------------------------

    async def _settle_and_end(self, state: TransactionState) -> None:
        """Wait for the batches, then for the manager to leave `state`."""
        manager = self._manager
        if manager.state is state and manager.awaits_batches:
            await self._driver.flushed(lambda: manager.state is not state)
            if manager.state is state and manager.awaits_batches:
                manager.batches_settled(needs_new_epoch=self._batches.needs_new_epoch)
                self._changed()
        await self._driver.until(lambda: manager.state is not state)

    async def _within_limit(
        self, call: str, waiting: Coroutine[Any, Any, None], timeout_ms: float | None = None
    ) -> None:
        limit_ms = self._limit_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await waiting
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise RequestTimeout(
                f"{call} did not end within {limit_ms:.0f} ms (max.block.ms): it goes on in the "
                "background, and the same call made again waits for its end"
            ) from None

    def _check_transactional(self, call: str) -> None:
        if self._driver.is_stopped:
            raise ClientClosed(f"{call}: the producer is closed")
        if not self._manager.is_transactional:
            raise InvalidTransactionState(
                f"{call}: this producer is not transactional; give it a transactional.id"
            )

    def _raise(self, problem: Problem | None) -> None:
        if problem is not None:
            raise self._driver.error_of(problem)


def _overtaken(call: str) -> Problem:
    """Two tasks have asked for the two outcomes of one transaction."""
    return Problem(
        ErrorCode.INVALID_TXN_STATE, f"{call}: the transaction was aborted by another call"
    )
