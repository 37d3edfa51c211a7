"""Who a producer is, what its transaction consists of, and what has to be asked next.

Owns the state, the producer id and epoch, the partitions and offsets of the open transaction, and
the choice of the next request (KIP-98, KIP-360, KIP-447, KIP-890, KIP-939). Must not send, wait or
number records. Invariants: one request is under way at a time; an outcome that a coordinator may
have heard of is never asked the other way round; a transaction is not ended before its last batch
is settled; nobody produces under a pair that a coordinator did not give (an idempotent producer
without a transactional id counts its epochs up by itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from moldau.client.producer.core.transaction_answers import (
    SENDING_STATES,
    Pause,
    Step,
    TransactionAnswers,
)
from moldau.client.producer.core.transaction_errors import RequestKind, Verdict, verdict_of
from moldau.client.producer.core.transaction_requests import (
    LAST_PRODUCE_IN_VERSION_1,
    GroupMember,
    OffsetsCommit,
    Position,
)
from moldau.client.producer.core.transaction_states import (
    LAST_PRODUCER_EPOCH,
    NO_PRODUCER,
    OPEN_STATES,
    Problem,
    ProducerIdAndEpoch,
    TransactionState,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition

__all__ = ["Pause", "Step", "TransactionManager"]

MAX_WAITING_COMMITS: Final = 1_000
"""Calls to commit offsets that have not been answered; one more is refused."""

_S = TransactionState
_IS_CLOSED_TO_RECORDS: Final[Mapping[TransactionState, str]] = MappingProxyType(
    {
        _S.UNINITIALIZED: "call init_transactions() and begin_transaction() first, or send within "
        "`async with producer.transaction()`",
        _S.INITIALIZING: "init_transactions() has not ended; call begin_transaction() after it",
        _S.READY: "no transaction is open: call begin_transaction() first, or send within "
        "`async with producer.transaction()`",
        _S.PREPARING: "the transaction is being prepared and takes no more records",
        _S.PREPARED: "the transaction is prepared and takes no more records: complete it first",
        _S.COMMITTING: "the transaction is being committed: wait for commit_transaction()",
        _S.ABORTING: "the transaction is being aborted: wait for abort_transaction()",
    }
)

_AWAITING_BATCHES: Final = frozenset({_S.PREPARING, _S.COMMITTING, _S.ABORTING})


class TransactionManager(TransactionAnswers):
    """The transactional half of a producer, or the idempotent one's producer id.

    Legal transitions: `transaction_states.TRANSITIONS`.

    Args:
        transactional_id: None for a producer that is only idempotent.
        timeout_ms: `transaction.timeout.ms`.
        two_phase: `transaction.two.phase.commit.enable` (KIP-939).

    Attributes:
        producer: who it is; NO_PRODUCER until known.
        problem: the error behind ABORTABLE_ERROR and FATAL_ERROR, and what the last try to
            initialize failed with.
        prepared: the pair of the transaction that waits, or last waited, for its outcome.
        transaction_version: what the cluster has finalized, as of the last transaction's end.
        untold_outcome: the outcome of a transaction whose end nobody has been told yet.
    """

    producer: ProducerIdAndEpoch
    problem: Problem | None
    untold_outcome: bool | None

    # -- looks -----------------------------------------------------------------------------------

    @property
    def highest_produce_version(self) -> int | None:
        """Above this version of Produce a leader would take partitions as added by it."""
        if self.is_transactional and not self.is_version_2:
            return LAST_PRODUCE_IN_VERSION_1
        return None

    @property
    def refusal(self) -> Problem | None:
        """Why no record may be added now."""
        if self._state is _S.IN_TRANSACTION:
            return None
        if self._state in (_S.FATAL_ERROR, _S.ABORTABLE_ERROR):
            return self.problem
        if not self.is_transactional:
            return None
        return Problem(ErrorCode.INVALID_TXN_STATE, _IS_CLOSED_TO_RECORDS[self._state])

    @property
    def awaits_batches(self) -> bool:
        """Whether `batches_settled` has to be called before it can go on."""
        return not self._is_settled and self._state in _AWAITING_BATCHES

    @property
    def is_outcome_asked(self) -> bool:
        """Whether a coordinator may have been told to commit, so that nobody may abort any more."""
        return self._state is _S.COMMITTING and self._was_asked_to_end

    # -- what the application does ---------------------------------------------------------------

    def initialize(self, *, keep_prepared: bool = False) -> Problem | None:
        """Get a producer id, and shut out whoever had the transactional id before."""
        if self._state is _S.INITIALIZING and keep_prepared == self._keep_prepared:
            return None
        if self._state is not _S.UNINITIALIZED:
            return self._out_of_turn("init_transactions()")
        self._keep_prepared = keep_prepared
        self.problem = None
        self._move_to(_S.INITIALIZING)
        return None

    def begin(self) -> Problem | None:
        """Open a transaction; nobody is told."""
        if self._state is not _S.READY:
            return self._out_of_turn("begin_transaction()")
        self._forget_transaction()
        self.untold_outcome = None
        self.prepared = NO_PRODUCER
        self._move_to(_S.IN_TRANSACTION)
        return None

    def add_offsets(
        self, member: GroupMember, offsets: Mapping[TopicPartition, Position]
    ) -> OffsetsCommit | Problem:
        """Make a group's offsets part of the transaction."""
        if self._state is not _S.IN_TRANSACTION:
            return self._out_of_turn("send_offsets()")
        if len(self._commits) >= MAX_WAITING_COMMITS:
            return Problem(
                ErrorCode.INVALID_TXN_STATE,
                f"{MAX_WAITING_COMMITS} calls of send_offsets() wait for their answers already",
            )
        commit = OffsetsCommit(member, dict(offsets), is_done=not offsets)
        if offsets:
            self._commits.append(commit)
        return commit

    def prepare(self, *, is_handed_over: bool = False) -> Problem | None:
        """Take no more records, so that everything can be flushed, and somebody else ends it.

        Args:
            is_handed_over: to another process, before `transaction.timeout.ms` is over; else it
                waits for as long as it takes (KIP-939).
        """
        if not self._two_phase and not is_handed_over:
            return Problem(
                ErrorCode.INVALID_TXN_STATE,
                "prepare_transaction() needs transaction.two.phase.commit.enable=true",
            )
        if self._state in (_S.PREPARING, _S.PREPARED):
            return None
        if self._state is not _S.IN_TRANSACTION:
            return self._out_of_turn("prepare_transaction()")
        self._move_to(_S.PREPARING)
        return None

    def commit(self) -> Problem | None:
        """Take no more records, and commit when everything is flushed."""
        if self._state is _S.COMMITTING:
            return None
        if self._state not in (_S.IN_TRANSACTION, _S.PREPARED):
            return self._out_of_turn("commit_transaction()")
        self._is_settled = self._state is _S.PREPARED
        self._move_to(_S.COMMITTING)
        return None

    def abort(self) -> Problem | None:
        """Give up the transaction. Not after a coordinator may have been told to commit it."""
        if self._state is _S.ABORTING:
            return None
        if self.is_outcome_asked:
            return Problem(
                ErrorCode.INVALID_TXN_STATE,
                "abort_transaction(): the cluster may have committed the transaction already; "
                "call commit_transaction() again to learn how it ended",
            )
        if self._state not in OPEN_STATES:
            return self._out_of_turn("abort_transaction()")
        self._is_settled = self._state is _S.PREPARED
        self._wanted.clear()
        self._give_up_commits(Problem(ErrorCode.INVALID_TXN_STATE, "the transaction is aborted"))
        self._move_to(_S.ABORTING)
        return None

    def batches_settled(self, *, needs_new_epoch: bool) -> None:
        """Each batch of the transaction has been acknowledged or has failed, for good.

        Args:
            needs_new_epoch: sequence numbers were left out somewhere.
        """
        if needs_new_epoch:
            self._needs_bump = True
        if self._state in (_S.PREPARING, _S.COMMITTING, _S.ABORTING):
            self._is_settled = True
            self._end_if_idle()

    def _out_of_turn(self, call: str) -> Problem:
        if self._state in (_S.FATAL_ERROR, _S.ABORTABLE_ERROR) and self.problem is not None:
            return self.problem
        return Problem(
            ErrorCode.INVALID_TXN_STATE,
            f"{call} is out of turn: the producer is {self._state.value}",
        )

    # -- what the sender does --------------------------------------------------------------------

    def admit(self, partition: TopicPartition) -> bool:
        """Whether a batch for the partition may be sent now; if not, what it needs is noted."""
        if not self.is_transactional:
            if self._state is _S.UNINITIALIZED:
                self.problem = None
                self._move_to(_S.INITIALIZING)
            return self._state is _S.READY
        if self._state not in SENDING_STATES or self._is_settled:
            return False
        if partition in self._added:
            return True
        if self.is_version_2:
            self._added.add(partition)
            self._may_be_known = True
            return True
        self._wanted[partition] = None
        return False

    def batch_failed(
        self, partition: TopicPartition, problem: Problem, *, may_be_written: bool
    ) -> None:
        """A batch failed for good. The transaction lacks it, so that it cannot be committed."""
        verdict = verdict_of(RequestKind.PRODUCE, problem.code)
        if not self.is_transactional:
            if verdict.is_fatal:
                self._fail(problem)
            return
        if may_be_written and verdict is Verdict.ABORT:
            verdict = Verdict.ABORT_AND_BUMP
        self._apply(verdict, Problem(problem.code, f"{partition}: {problem.message}"))

    def record_refused(self, problem: Problem) -> None:
        """The application could not add a record; what it has written so far is not whole."""
        if self._state is _S.IN_TRANSACTION:
            self._apply(Verdict.ABORT, problem)

    def bump_epoch(self) -> None:
        """A producer that is only idempotent starts its sequences over (KIP-360)."""
        assert not self.is_transactional, "a coordinator counts the epochs of transactional ids"
        if self._state is not _S.READY:
            return
        producer_id, producer_epoch = self.producer
        if producer_epoch < LAST_PRODUCER_EPOCH:
            self.producer = ProducerIdAndEpoch(producer_id, producer_epoch + 1)
            return
        self.producer = NO_PRODUCER
        self._move_to(_S.INITIALIZING)
