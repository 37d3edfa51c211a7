"""A producer's transactions as its application and its sender use them.

Owns what the application's calls wait for, their arguments and their time limits, and the one task
that sends the manager's requests, one at a time, with pauses in between, and empties the
accumulator of a transaction that failed. Must not decide what a state allows or what is sent
(`core.transaction_manager`). Invariants: after a call that was cancelled or ran out of time the
same call, or `abort_transaction`, may be made: the request to the cluster goes on in the
background, and the call made again waits for its end; the task is asked to stop and not cancelled
while a request is under way; a request that may have been served is sent again until it is
answered, for as long as the producer lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.config.producer import ProducerConfig
from moldau.client.errors import (
    ClientClosed,
    ConfigurationError,
    InvalidTransactionState,
    KafkaError,
    ProducerFenced,
    RequestTimeout,
    TlsFailed,
    TransactionAbortable,
    TransactionAborted,
    error_for,
)
from moldau.client.producer.coordinator_link import AnswerLost, CannotSay, CoordinatorLink, NotSent
from moldau.client.producer.core.transaction_manager import (
    CoordinatorFeatures,
    Pause,
    TransactionManager,
)
from moldau.client.producer.core.transaction_requests import Ask, RequestKind, Verdict, verdict_of
from moldau.client.producer.core.transaction_states import (
    Problem,
    ProducerIdAndEpoch,
    TransactionState,
)
from moldau.client.producer.sender import Sender
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.runtime.fault_words import words_of
from moldau.runtime.signal import Signal

logger: Final[logging.Logger] = logging.getLogger(__name__)

_S = TransactionState

SHORT_PAUSE_MS: Final = 20.0
"""While the previous transaction is being completed, which takes a few milliseconds."""

_GIVEN_UP: Final = frozenset({_S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR})
_ENDING: Final = frozenset({_S.COMMITTING, _S.ABORTING})
_TO_BE_ABORTED: Final = frozenset(
    {_S.IN_TRANSACTION, _S.PREPARING, _S.COMMITTING, _S.ABORTABLE_ERROR}
)
"""A transaction is open whose outcome this producer decides and has not decided."""


class PreparedTransaction(ProducerIdAndEpoch):
    """A transaction that waits for its outcome (KIP-939), to be stored beside that outcome.

    `str` and `parse` go from and to the text `PRODUCER_ID:PRODUCER_EPOCH`, as Apache Kafka's Java
    client writes it.
    """

    __slots__ = ()


class OffsetsSource(Protocol):
    """A consumer, which `send_offsets` takes instead of offsets."""

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Its membership of its group."""

    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The positions after the records that it has handed out."""


class Transactions:
    """A producer's id and epoch, and its open transaction, if any. The sender's side of it
    (`Identity` of the accumulator) is synchronous. `link`: instead of the real one, for tests.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ProducerConfig,
        batches: Sender,
        link: CoordinatorLink | None = None,
    ) -> None:
        if config.transaction_two_phase_commit_enable and config.transactional_id is None:
            raise ConfigurationError("transaction.two.phase.commit.enable needs a transactional.id")
        self.begun_count: int = 0
        """Transactions that this producer has opened."""
        self._clock = client.clock
        self._trouble = client.trouble
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
            Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, client.random),
            Signal(client.clock),
        )
        self._is_initialization_untold = False

    # -- the sender's side -----------------------------------------------------------------------

    @property
    def refusal(self) -> KafkaError | None:
        """Why no record may be appended now, as a new exception for each call."""
        problem = self._driver.refusal
        return None if problem is None else self._driver.error_of(problem)

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return self._manager.producer

    @property
    def transactional_id(self) -> str | None:
        return self._manager.transactional_id

    @property
    def highest_produce_version(self) -> int | None:
        return self._manager.highest_produce_version

    @property
    def state(self) -> TransactionState:
        return self._manager.state

    def start(self) -> None:
        """Get a producer id for a producer that is only idempotent, before its first record."""
        if not self._manager.is_transactional:
            self._manager.initialize()
            self._driver.kick()

    def admit(self, topic: str, partition: int) -> bool:
        """Whether a batch for the partition may be sent now; if not, `batches.wake` is called when
        to look again.
        """
        if self._manager.admit(TopicPartition(topic, partition)):
            return True
        self._driver.kick()
        return False

    def batch_failed(
        self, topic: str, partition: int, error: Exception, *, may_be_written: bool
    ) -> None:
        self._driver.caused_by(error)
        self._manager.batch_failed(
            TopicPartition(topic, partition), _problem_of(error), may_be_written=may_be_written
        )
        self._changed()

    def record_refused(self, error: Exception) -> None:
        self._driver.caused_by(error)
        self._manager.record_refused(_problem_of(error))
        self._changed()

    def bump_epoch(self) -> None:
        self._manager.bump_epoch()
        self._changed()
        self._batches.wake()

    async def close(self, timeout_ms: float) -> None:
        """Abort what is open, unless it is prepared, and stop. A transaction that is left open when
        the time for all of it is over is aborted by the cluster after `transaction.timeout.ms`, or
        by the next producer of its id. With 0 no request is sent; a cancelled call waits for none.
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
            logger.warning("closing with an open transaction: %s", words_of(error))
        except asyncio.CancelledError:
            deadline_ms = 0.0
            raise
        finally:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            await self._driver.stop(max(0.0, left_ms) / 1000)

    def _changed(self) -> None:
        self._driver.changed()
        self._driver.kick()

    # -- the application's side ------------------------------------------------------------------

    async def initialize(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        self._check_transactional("init_transactions()")
        manager = self._manager
        if not (self._is_initialization_untold and manager.state is not _S.UNINITIALIZED):
            self._raise(manager.initialize(keep_prepared=keep_prepared))
            self._is_initialization_untold = True
            self._changed()
        await self._within_limit(
            "init_transactions()", self._driver.until(lambda: manager.state is not _S.INITIALIZING)
        )
        self._is_initialization_untold = False
        if manager.state in (_S.UNINITIALIZED, _S.FATAL_ERROR):
            self._raise(manager.problem)
        return PreparedTransaction(*manager.prepared) if manager.prepared.is_known else None

    def begin(self) -> None:
        self._check_transactional("begin_transaction()")
        self._raise(self._manager.begin())
        self.begun_count += 1
        self._driver.cause = None
        self._changed()

    async def commit(self) -> None:
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
        self,
        offsets: OffsetsSource | Mapping[TopicPartition, OffsetAndMetadata | int],
        group: ConsumerGroupMetadata | str | None,
    ) -> None:
        if not isinstance(offsets, Mapping):
            if group is not None:
                raise TypeError("send_offsets(): a consumer knows its group: leave `group` out")
            group = offsets.group_metadata()
            offsets = offsets.positions()
        elif group is None:
            raise TypeError("send_offsets(): offsets need `group`: group metadata or a group id")
        if isinstance(group, str):
            group = ConsumerGroupMetadata(group)
        if not group.group_id:
            raise ValueError(
                "send_offsets(): offsets of no group cannot be committed: the group id is empty"
            )
        positions = _positions(offsets)
        self._check_transactional("send_offsets()")
        commit = self._manager.add_offsets(group, positions)
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
        """Begin a transaction, after the previous one has ended and the producer is initialized."""
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
                # Ended within the block, or prepared: then its outcome is decided elsewhere.
                return
            try:
                await self.commit()
            except TransactionAbortable:
                await self._abort_because_of(None)
                raise
            except BaseException as reason:
                # Cancelled, or out of time: abort it unless a coordinator was asked to commit.
                if self._is_to_be_aborted:
                    await self._abort_because_of(reason)
                raise
        elif manager.state is _S.ABORTING or self._is_to_be_aborted:
            await self._abort_because_of(error)

    async def _abort_because_of(self, error: BaseException | None) -> None:
        """Abort; an abort that fails does not hide its reason."""
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
        self, call: str, waiting: Awaitable[None], timeout_ms: float | None = None
    ) -> None:
        limit_ms = self._limit_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await waiting
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            trouble = self._trouble()
            raise RequestTimeout(
                f"{call} did not end within {limit_ms:.0f} ms (max.block.ms): it goes on in the "
                "background, and the same call made again waits for its end"
                + (f" ({trouble})" if trouble else "")
            ) from None

    def _check_transactional(self, call: str) -> None:
        if self._driver.stopping.is_set():
            raise ClientClosed(f"{call}: the producer is closed")
        if not self._manager.is_transactional:
            raise InvalidTransactionState(
                f"{call}: this producer is not transactional; give it a transactional.id"
            )

    def _raise(self, problem: Problem | None) -> None:
        if problem is not None:
            raise self._driver.error_of(problem)


@dataclass(eq=False, repr=False)
class TransactionDriver:
    """Brings `manager` forward. `refusal` is why no record may be added now."""

    manager: TransactionManager
    _link: CoordinatorLink
    _batches: Sender
    _backoff: Backoff
    _changes: Signal
    refusal: Problem | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    cause: BaseException | None = None
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _refused_in: tuple[TransactionState, Problem | None] | None = None
    _is_searching: bool = False
    """Whether the coordinator of the next request is being looked for, so nothing is under way."""

    def __post_init__(self) -> None:
        self.changed()

    # -- life ------------------------------------------------------------------------------------

    def kick(self) -> None:
        if self._task is None and not self.stopping.is_set():
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="moldau-producer-transactions"
            )
            self._task.add_done_callback(self._ended)
        self._work.set()

    async def stop(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the request under way, if one was sent, then cancel it."""
        self.stopping.set()
        self._work.set()
        self.changed()
        task = self._task
        if task is not None and not task.done():
            if self._is_searching:
                task.cancel()
            await asyncio.wait({task}, timeout=max(0.0, timeout_s))
            task.cancel()
            await asyncio.wait({task})

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Break off after a bug, so that no caller waits forever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("the producer's transactions have ended", exc_info=error)
            self.caused_by(error)
            self.manager.break_off(Problem(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
            self.changed()

    def changed(self) -> None:
        """Apply the manager's state, and wake all callers that wait for it."""
        manager = self.manager
        if self._refused_in != (manager.state, manager.problem):
            self._refused_in = (manager.state, manager.problem)
            self.refusal = manager.refusal
            # An idempotent producer that was refused an id asks again for the next record.
            is_refused = manager.state is _S.UNINITIALIZED and manager.problem is not None
            if manager.state in _GIVEN_UP or is_refused:
                self._batches.fail_waiting(self._reason())
        self._changes.set()

    # -- errors ----------------------------------------------------------------------------------

    def caused_by(self, error: BaseException) -> None:
        if self.manager.problem is None:
            self.cause = error

    def error_of(self, problem: Problem) -> KafkaError:
        manager = self.manager
        error: KafkaError
        if problem is not manager.problem:
            if problem.code is ErrorCode.INVALID_TXN_STATE:
                return InvalidTransactionState(problem.message, code=problem.code)
            return error_for(problem.code, problem.message, "transaction", final=True)
        if manager.state is _S.ABORTABLE_ERROR:
            error = TransactionAbortable(
                f"the transaction can only be aborted: {problem.message}", code=problem.code
            )
        elif verdict_of(RequestKind.END, problem.code) is Verdict.FENCED:
            error = ProducerFenced(
                f"{problem.message}. Another producer uses the transactional id "
                f"{manager.transactional_id!r} now, the transaction took longer than "
                "transaction.timeout.ms, or the id was forgotten after "
                "transactional.id.expiration.ms; close this producer and, if no other one has the "
                "id, make a new one",
                code=problem.code,
            )
        elif isinstance(self.cause, TlsFailed) and problem.code is TlsFailed.code:
            error = TlsFailed(f"producer: {problem.message}")
        else:
            error = error_for(problem.code, problem.message, "producer", final=True)
        error.__cause__ = self.cause
        return error

    def _reason(self) -> KafkaError:
        """Why batches that have not been sent never will be sent."""
        problem = self.manager.problem
        if problem is None or self.manager.state is _S.ABORTING:
            return TransactionAborted(
                "the transaction was aborted before this record was sent",
                code=ErrorCode.TRANSACTION_ABORTABLE,
            )
        return self.error_of(problem)

    # -- waiting ---------------------------------------------------------------------------------

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait for a state. Raises ClientClosed when the producer is closed before."""
        while not is_reached():
            if self.stopping.is_set():
                raise ClientClosed("the producer is closed")
            await self._changes.wait(None)

    async def flushed(self, is_overtaken: Callable[[], bool]) -> None:
        """Wait for the batches of the transaction, or until they do not matter any more."""
        flush = asyncio.ensure_future(self._batches.flush())
        overtaken = asyncio.ensure_future(self.until(is_overtaken))
        try:
            await asyncio.wait({flush, overtaken}, return_when=asyncio.FIRST_COMPLETED)
            if flush.done():
                flush.result()
            else:
                overtaken.result()
        finally:
            for each in (flush, overtaken):
                each.cancel()
            await asyncio.wait({flush, overtaken})
            for each in (flush, overtaken):
                if not each.cancelled():
                    each.exception()

    # -- the task --------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.stopping.is_set():
            if self.manager.state in _GIVEN_UP and await self._emptied():
                continue
            ask = self.manager.next_ask()
            if ask is None:
                self._backoff.reset()
                self._work.clear()
                await self._work.wait()
                continue
            pause = await self._carry_out(ask)
            self.changed()
            self._batches.wake()
            if pause is Pause.BACK_OFF:
                await self._pause(self._backoff.next_ms())
            elif pause is Pause.SHORT:
                await self._pause(SHORT_PAUSE_MS)
            else:
                self._backoff.reset()

    async def _emptied(self) -> bool:
        """Fail unsent batches; True if batches were on the wire, whose answers have come now."""
        manager = self.manager
        self._batches.fail_waiting(self._reason())
        if self._batches.has_in_flight:
            await self._batches.in_flight_done()
            return True
        if manager.awaits_batches and manager.state is _S.ABORTING:
            manager.batches_settled(needs_new_epoch=self._batches.needs_new_epoch)
            self.changed()
        return False

    async def _carry_out(self, ask: Ask) -> Pause:
        manager = self.manager

        def sending(features: CoordinatorFeatures | None) -> None:
            self._is_searching = False
            if features is not None:
                manager.met_coordinator(features)
            manager.sending(ask)

        self._is_searching = True
        try:
            response = await self._link.ask(ask, sending)
        except NotSent as fault:
            logger.debug("%s: %s", ask.kind.value, fault)
            return Pause.BACK_OFF
        except AnswerLost as fault:
            logger.info("%s: %s; asking again", ask.kind.value, fault)
            step = manager.unanswered(ask)
        except CannotSay as error:
            manager.cannot_be_asked(ask, str(error))
            return Pause.NONE
        except ClientClosed:
            self.stopping.set()
            return Pause.NONE
        except KafkaError as error:
            self.caused_by(error)
            return manager.not_let_through(ask, Problem(error.code, str(error)))
        else:
            step = manager.answered(ask, response)
        finally:
            self._is_searching = False
        if step.look_up:
            self._link.forget(ask)
        return step.pause

    async def _pause(self, pause_ms: float) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self.stopping.wait()
        except TimeoutError:
            return


class TransactionContext:
    """`async with producer.transaction():` see `Producer.transaction`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._number = 0

    @property
    def is_latest(self) -> bool:
        return self._number == self._transactions.begun_count

    async def __aenter__(self) -> None:
        await self._transactions.enter()
        self._number = self._transactions.begun_count

    async def __aexit__(self, _: object, value: BaseException | None, __: object) -> None:
        await self._transactions.leave(value)


def _positions(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    found = {}
    for partition, each in offsets.items():
        topic, index = partition
        if not (isinstance(topic, str) and isinstance(index, int) and 0 <= index < 2**31):
            raise TypeError(
                f"send_offsets(): {partition!r} is no TopicPartition(topic: str, partition: int)"
            )
        if isinstance(each, int) and each >= 0:
            each = OffsetAndMetadata(each)
        if not isinstance(each, OffsetAndMetadata):
            raise TypeError(
                f"send_offsets(): {topic}-{index} needs an offset, as a number that is not "
                f"negative or as OffsetAndMetadata(offset), not {each!r}"
            )
        if not isinstance(each.metadata, str) or not each.offset < 2**63:
            raise ValueError(f"send_offsets(): {topic}-{index}: {each!r} cannot be committed")
        found[TopicPartition(topic, index)] = each
    return found


def _problem_of(error: Exception) -> Problem:
    """The problem of records that have failed with `error`, which may be the application's."""
    if isinstance(error, KafkaError):
        return Problem(error.code, str(error))
    return Problem(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}")


def _overtaken(call: str) -> Problem:
    """The problem of a call when another task has asked for the other outcome."""
    return Problem(
        ErrorCode.INVALID_TXN_STATE, f"{call}: the transaction was aborted by another call"
    )
