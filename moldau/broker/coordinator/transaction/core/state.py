"""The transactional ids of one partition of `__transaction_state`.

Owns the ids as the log has them, what is remembered beside it (markers being sent, producers that
came back), what becomes of requests and marker answers, and the timers: what is open beyond its
timeout is aborted, what is idle for `transactional.id.expiration.ms` forgotten. The decisions
themselves are in `rules`. Must not know brokers or clocks.

Invariants: an id changes only in `replay`; an outcome is in the log and committed before the first
marker is sent, and every marker is committed before the log says that the transaction is complete;
no answer shows anything of the log that might yet be lost (`CoordinatorResult.after`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

from moldau.broker.coordinator.core.kept_memory import KeptMemory
from moldau.broker.coordinator.core.result import (
    NO_PRODUCER,
    Answerable,
    CoordinatorRecord,
    CoordinatorResult,
    Portion,
    Producer,
    Reply,
    SetTimer,
    write_error,
)
from moldau.broker.coordinator.transaction.core import rules
from moldau.broker.coordinator.transaction.core.rules import Recovery, TransactionSettings
from moldau.broker.coordinator.transaction.core.transaction import (
    EPOCH_BUMP_VERSION,
    PARTITION_BYTES,
    TRANSACTION_BYTES,
    Transaction,
    TransactionStatus,
    from_record,
    record_key,
    record_value,
    value_version,
)
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from moldau.protocol.coordinator_records.transactions import TransactionLogKey, TransactionLogValue
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.records.header import NO_PRODUCER_ID
from moldau.protocol.types import TopicPartition


class ProducerAnswer(NamedTuple):
    """The pair that a producer goes on with, and that of a transaction kept for it, as partitions'
    logs have it.
    """

    error: ErrorCode
    producer: Producer = NO_PRODUCER
    ongoing: Producer = NO_PRODUCER


@dataclass(slots=True, eq=False)
class SendMarkers:
    """The command to write a marker into each of `remaining`, again and again until that is done.

    Invariant: the answers to one ending never count for another, not even of the same producer:
    each ending is a separate object.

    Attributes:
        transaction: as it is prepared; its producer is the pair in the markers, whose epoch is one
            that no record of the transaction has from client version 2 on.
        remaining: partitions whose leader has not yet said that the marker is committed.
        is_cancelled: the transaction is complete, or has another coordinator: a marker might end
            the producer's next transaction.
    """

    transaction: Transaction
    remaining: set[TopicPartition] = field(init=False)
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        assert self.transaction.status.is_prepared
        self.remaining = set(self.transaction.partitions)

    @property
    def is_commit(self) -> bool:
        return self.transaction.status is TransactionStatus.PREPARE_COMMIT


ABORT_TIMER: Final = "abort-timed-out"
EXPIRY_TIMER: Final = "expire-ids"
COMPLETE_TIMER: Final = "complete"

MAX_ABORTS_AT_ONCE: Final = 50
"""Timed-out transactions that are aborted in one turn."""

MAX_EXPIRIES_AT_ONCE: Final = 500
"""Ids that are forgotten in one turn."""

COMPLETE_RETRY_MS: Final = 500
"""The pause before a record that could not be appended is tried again."""


def _is_final(*errors: ErrorCode) -> bool:
    """Whether one of them is no advice to try again."""
    return any(error is not ErrorCode.NONE and not error.retriable for error in errors)


class SpareProducerIds(Protocol):
    """The spare producer id of the broker."""

    @property
    def spare(self) -> int:
        """An id that no producer has, -1 without one."""

    def use(self) -> None: ...


@dataclass(slots=True, eq=False)
class TransactionState:
    """Implements `CoordinatorState`."""

    _settings: TransactionSettings
    _producer_ids: SpareProducerIds
    _transaction_version: Callable[[], int]
    _memory: KeptMemory = field(default_factory=KeptMemory)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    _open: dict[str, float] = field(default_factory=dict)
    """The ids whose transaction is ONGOING, and how long at least each has been so here, in
    milliseconds: the wall clock alone does not tell once it was set back.
    """
    _recoveries: dict[str, Recovery] = field(default_factory=dict)
    _sending: dict[str, SendMarkers] = field(default_factory=dict)
    _to_abort: list[str] = field(default_factory=list)
    """Open transactions that this round has still to look at, from the end."""
    _to_expire: list[str] = field(default_factory=list)

    # -- the log ---------------------------------------------------------------------------------

    def replay(
        self, record: CoordinatorRecord, record_offset: int, producer: Producer | None
    ) -> None:
        """Raises: RemoteProtocolError, the record is none that this log may have."""
        del record_offset, producer
        key, value = record.key, record.value
        if not isinstance(key, TransactionLogKey):
            raise RemoteProtocolError(f"{type(key).__name__} in the log of transactions")
        transactional_id = key.transactional_id
        open_ms = self._open.pop(transactional_id, -self._settings.abort_interval_ms)
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._recoveries.pop(transactional_id, None)
            self._memory.keep(transactional_id, 0)
            return
        assert isinstance(value, TransactionLogValue)
        transaction = self.transactions[transactional_id] = from_record(key, value)
        self._memory.keep(transactional_id, transaction.size_bytes)
        if transaction.status is TransactionStatus.ONGOING:
            self._open[transactional_id] = open_ms
        if not transaction.status.is_prepared:
            self._stop_sending(transactional_id)

    def replay_end_marker(self, producer: Producer, *, is_commit: bool) -> None:
        """This log has no transactions of its own."""

    def keys(self) -> Iterable[str]:
        return self.transactions

    def loaded(self, now_ms: float) -> CoordinatorResult:
        """Go on with every transaction whose outcome is settled."""
        del now_ms
        prepared = [
            transaction.transactional_id
            for transaction in self.transactions.values()
            if transaction.status.is_prepared
        ]
        result = self._when_committed(lambda now_ms: self._send_markers(prepared, now_ms))
        result.timers = [
            SetTimer(ABORT_TIMER, self._settings.abort_interval_ms),
            SetTimer(EXPIRY_TIMER, self._settings.expiry_interval_ms),
        ]
        return result

    def unloaded(self) -> list[Reply]:
        """No request waits in here: those without an answer wait for a commit, in the shard."""
        for transactional_id in list(self._sending):
            self._stop_sending(transactional_id)
        self._memory.forget_all()
        return []

    # -- requests --------------------------------------------------------------------------------

    def init_producer_id(
        self, request: InitProducerIdRequest, principal: str, reply_to: Answerable, now_ms: float
    ) -> CoordinatorResult:
        transactional_id = request.transactional_id or ""
        server_version = self._transaction_version()
        error = rules.initialization_refusal(request, self._settings, server_version)
        known = self.transactions.get(transactional_id)
        growth_bytes = TRANSACTION_BYTES + len(transactional_id) if known is None else 0
        if error is ErrorCode.NONE and not self._memory.may_grow(
            transactional_id, principal, growth_bytes
        ):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            return CoordinatorResult.reply(reply_to, ProducerAnswer(error))
        decision = rules.initialize(
            request,
            known,
            recovery=self._recoveries.get(transactional_id),
            spare_producer_id=self._producer_ids.spare,
            server_version=server_version,
            now_ms=now_ms,
        )
        if isinstance(decision, ErrorCode):
            return self._refuse(reply_to, decision, ProducerAnswer)
        # Before the append: if that fails, the id has another pair and the recovery matches
        # nothing.
        if decision.recovery is None:
            self._recoveries.pop(transactional_id, None)
        else:
            self._recoveries[transactional_id] = decision.recovery
        return self._carry_out(decision, reply_to)

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        reply_to: Answerable,
        now_ms: float,
        *,
        client_version: int,
        verify_only: bool = False,
    ) -> CoordinatorResult:
        """Answer an error, or NONE, by partition; with `verify_only` nothing is written.
        `client_version` is 2 from request v4 on.
        """
        failed = partial(dict.fromkeys, partitions)
        if not transactional_id:
            return CoordinatorResult.reply(reply_to, failed(ErrorCode.INVALID_REQUEST))
        transaction = self.transactions.get(transactional_id)
        if verify_only:
            errors = rules.verify_partitions(transaction, producer, partitions)
            return self._answer(reply_to, errors, failed, is_final=_is_final(*errors.values()))
        decision = rules.add_partitions(
            transaction, producer, partitions, client_version=client_version, now_ms=now_ms
        )
        if not isinstance(decision, ErrorCode) and not self._memory.may_grow(
            transactional_id, "", PARTITION_BYTES * len(partitions)
        ):
            decision = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if isinstance(decision, ErrorCode):
            return self._refuse(reply_to, decision, failed)
        return self._write(decision, reply_to, failed(ErrorCode.NONE), failed)

    def end_transaction(
        self,
        transactional_id: str,
        producer: Producer,
        reply_to: Answerable,
        now_ms: float,
        *,
        is_commit: bool,
        client_version: int,
    ) -> CoordinatorResult:
        """Answer with a ProducerAnswer as soon as the outcome is committed; the markers
        follow. `client_version` is 2 for EndTxn v5, which has the epoch bumped, and 0 below.
        """
        if not transactional_id:
            return CoordinatorResult.reply(reply_to, ProducerAnswer(ErrorCode.INVALID_REQUEST))
        decision = rules.end_transaction(
            self.transactions.get(transactional_id),
            producer,
            is_commit=is_commit,
            client_version=client_version,
            spare_producer_id=self._producer_ids.spare,
            now_ms=now_ms,
        )
        if isinstance(decision, ErrorCode):
            return self._refuse(reply_to, decision, ProducerAnswer)
        if isinstance(decision, Producer):
            answer = ProducerAnswer(ErrorCode.NONE, decision)
            return self._answer(reply_to, answer, ProducerAnswer)
        return self._carry_out(decision, reply_to)

    def _carry_out(self, decision: rules.Decision, reply_to: Answerable) -> CoordinatorResult:
        if decision.used_producer_id:
            self._producer_ids.use()
        answer = ProducerAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        if decision.answer is not None:
            answer = ProducerAnswer(ErrorCode.NONE, decision.answer, decision.ongoing)
        return self._write(decision.transaction, reply_to, answer, ProducerAnswer)

    def describe(self, transactional_id: str, reply_to: Answerable) -> CoordinatorResult:
        """Answer with the Transaction, or an ErrorCode."""
        found = self.transactions.get(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return self._answer(reply_to, found, lambda error: error)

    def list_transactions(
        self, wanted: Callable[[Transaction], bool], reply_to: Answerable
    ) -> CoordinatorResult:
        """Answer with a list of Transactions, or an ErrorCode."""
        found = [each for each in self.transactions.values() if wanted(each)]
        return self._answer(reply_to, found, lambda error: error)

    # -- markers ---------------------------------------------------------------------------------

    def markers_written(
        self, sent: SendMarkers, written: Iterable[TopicPartition], now_ms: float
    ) -> CoordinatorResult:
        """The markers of `sent` (the very object) are committed, or the partitions are gone."""
        transactional_id = sent.transaction.transactional_id
        if self._sending.get(transactional_id) is not sent:
            return CoordinatorResult()
        sent.remaining.difference_update(written)
        return CoordinatorResult() if sent.remaining else self._complete(sent, now_ms)

    def _send_markers(self, transactional_ids: Iterable[str], now_ms: float) -> CoordinatorResult:
        """The outcomes are committed: tell the partitions."""
        result = CoordinatorResult()
        for transactional_id in transactional_ids:
            transaction = self.transactions.get(transactional_id)
            if (
                transaction is None
                or not transaction.status.is_prepared
                or transactional_id in self._sending
            ):
                continue
            command = self._sending[transactional_id] = SendMarkers(transaction)
            if command.remaining:
                result.commands.append(command)
            else:
                result.timers.append(SetTimer((COMPLETE_TIMER, transactional_id), 0))
        if len(result.timers) == 1 and not result.commands:
            # The usual case of an empty transaction needs no timer.
            return self._complete(command, now_ms)
        return result

    def _complete(self, sent: SendMarkers, now_ms: float) -> CoordinatorResult:
        transactional_id = sent.transaction.transactional_id
        transaction = self.transactions[transactional_id]
        result = CoordinatorResult(records=[self._record(transaction.completed(now_ms))])

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if self._sending.get(transactional_id) is not sent:
                return CoordinatorResult()  # the record is in the log, committed or not
            return CoordinatorResult(
                timers=[SetTimer((COMPLETE_TIMER, transactional_id), COMPLETE_RETRY_MS)]
            )

        result.after = after
        return result

    # -- timers ----------------------------------------------------------------------------------

    def on_timer(self, key: Hashable, now_ms: float) -> CoordinatorResult:
        if key == ABORT_TIMER:
            return self._abort_timed_out(now_ms)
        if key == EXPIRY_TIMER:
            return self._expire(now_ms)
        assert isinstance(key, tuple)
        assert key[0] == COMPLETE_TIMER
        sent = self._sending.get(key[1])
        if sent is None or sent.remaining:
            return CoordinatorResult()
        return self._complete(sent, now_ms)

    def _abort_timed_out(self, now_ms: float) -> CoordinatorResult:
        """Abort timed-out transactions, so that their producers can write no more. One round looks
        at every open transaction once, so that one that cannot be aborted holds up no other.
        """
        if not self._to_abort:
            for transactional_id in self._open:
                self._open[transactional_id] += self._settings.abort_interval_ms
            self._to_abort = list(reversed(self._open))
        server_version = self._transaction_version()
        portion = Portion(TRANSACTION_STATE, MAX_ABORTS_AT_ONCE)
        ids: list[str] = []
        while self._to_abort and not portion.is_full:
            transactional_id = self._to_abort.pop()
            transaction = self.transactions.get(transactional_id)
            open_ms = self._open.get(transactional_id, 0.0)
            if transaction is None or not transaction.is_timed_out(now_ms, open_ms):
                continue
            spare = self._producer_ids.spare
            uses_spare = transaction.client_producer.is_exhausted and (
                transaction.is_kept or server_version >= EPOCH_BUMP_VERSION
            )
            if uses_spare and spare == NO_PRODUCER_ID:
                continue  # the next round will have one
            fenced = transaction.fenced(
                server_version=server_version, spare_producer_id=spare, now_ms=now_ms
            )
            portion.add(self._record(fenced))
            ids.append(transactional_id)
            if uses_spare:
                self._producer_ids.use()
                # Others come first in the next round: the record may not fit, and there may be no
                # second spare producer id in a round.
                self._open[transactional_id] = self._open.pop(transactional_id)

        next_round = SetTimer(ABORT_TIMER, self._settings.abort_interval_ms)
        again = SetTimer(ABORT_TIMER, 0) if self._to_abort else next_round

        def then(now_ms: float) -> CoordinatorResult:
            return self._send_markers(ids, now_ms)

        def failed(_error: ErrorCode) -> CoordinatorResult:
            self._to_abort.clear()
            # Go on with those that are written. The next round writes the others.
            written = [each for each in ids if self.transactions[each].status.is_prepared]
            result = self._when_committed(lambda now_ms: self._send_markers(written, now_ms))
            result.timers.append(next_round)
            return result

        return self._write_portion(portion, again, then, failed)

    def _expire(self, now_ms: float) -> CoordinatorResult:
        """Forget ids without a transaction for `expiration_ms`; one round looks at each id once."""
        latest_ms = now_ms - self._settings.expiration_ms
        if not self._to_expire:
            self._to_expire = [
                transactional_id
                for transactional_id, transaction in self.transactions.items()
                if transaction.is_unused_since(latest_ms)
            ]
        portion = Portion(TRANSACTION_STATE, MAX_EXPIRIES_AT_ONCE)
        while self._to_expire and not portion.is_full:
            transaction = self.transactions.get(self._to_expire.pop())
            if transaction is not None and transaction.is_unused_since(latest_ms):
                portion.add(CoordinatorRecord(record_key(transaction.transactional_id), None))

        next_round = SetTimer(EXPIRY_TIMER, self._settings.expiry_interval_ms)
        again = SetTimer(EXPIRY_TIMER, 0) if self._to_expire else next_round

        def failed(_error: ErrorCode) -> CoordinatorResult:
            self._to_expire.clear()
            return CoordinatorResult(timers=[next_round])

        return self._write_portion(portion, again, lambda _: CoordinatorResult(), failed)

    # -- inner workings --------------------------------------------------------------------------

    def _stop_sending(self, transactional_id: str) -> None:
        command = self._sending.pop(transactional_id, None)
        if command is not None:
            command.is_cancelled = True

    def _record(self, transaction: Transaction) -> CoordinatorRecord:
        version = value_version(transaction, self._transaction_version())
        return CoordinatorRecord(
            record_key(transaction.transactional_id), record_value(transaction, version), version
        )

    def _refuse(
        self, reply_to: Answerable, error: ErrorCode, failed: Callable[[ErrorCode], object]
    ) -> CoordinatorResult:
        return self._answer(reply_to, failed(error), failed, is_final=_is_final(error))

    def _answer(
        self,
        reply_to: Answerable,
        answer: object,
        failed: Callable[[ErrorCode], object],
        *,
        is_final: bool = False,
    ) -> CoordinatorResult:
        """An answer without a change; it waits for the commit of what it is about.

        What `is_final` ends a producer or its transaction. A former coordinator that has not heard
        yet that it was replaced would give such an answer to everything that its successor knows of
        and it does not, so that the leadership is proven first.
        """

        def on_error(error: ErrorCode) -> object:
            return failed(write_error(error))

        if is_final:
            return CoordinatorResult(replies=[Reply(reply_to, answer, on_error)])
        return CoordinatorResult.reply_when_committed(reply_to, answer, on_error=on_error)

    def _write(
        self,
        transaction: Transaction,
        reply_to: Answerable,
        answer: object,
        failed: Callable[[ErrorCode], object],
    ) -> CoordinatorResult:
        """Write the id's record, answer when that is committed, and then send the markers of an
        outcome.
        """
        sends, transactional_ids = transaction.status.is_prepared, [transaction.transactional_id]

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            result = CoordinatorResult()
            if sends and error is ErrorCode.NONE:
                result = self._send_markers(transactional_ids, now_ms)
            elif sends and error is ErrorCode.REQUEST_TIMED_OUT:
                # The record is in the log, so the transaction goes on without the client.
                result = self._when_committed(
                    lambda now_ms: self._send_markers(transactional_ids, now_ms)
                )
            told = answer if error is ErrorCode.NONE else failed(write_error(error))
            result.replies.append(Reply(reply_to, told))
            return result

        return CoordinatorResult(records=[self._record(transaction)], after=after)

    def _write_portion(
        self,
        portion: Portion,
        again: SetTimer,
        then: Callable[[float], CoordinatorResult],
        failed: Callable[[ErrorCode], CoordinatorResult],
    ) -> CoordinatorResult:
        """Write what can be written of it; the timer `again` looks for more."""
        result = CoordinatorResult()
        if portion.records:
            result = self._when_committed(then, records=portion.records, failed=failed)
            result.is_atomic = False
        result.timers.append(again)
        return result

    def _when_committed(
        self,
        then: Callable[[float], CoordinatorResult],
        *,
        records: list[CoordinatorRecord] | None = None,
        failed: Callable[[ErrorCode], CoordinatorResult] | None = None,
    ) -> CoordinatorResult:
        """Do `then` once all is committed, however late; `failed` if the append failed."""

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            if error is ErrorCode.NONE:
                return then(now_ms)
            if error is ErrorCode.REQUEST_TIMED_OUT:
                return self._when_committed(then)
            return CoordinatorResult() if failed is None else failed(error)

        return CoordinatorResult(records=records or [], after=after)
