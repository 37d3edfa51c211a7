"""A producer's id and epoch, its transaction, and the next request to a coordinator.

Owns the state, the producer id and epoch, the partitions and offsets of the open transaction, the
choice of the next request and what an answer changes (KIP-98, KIP-360, KIP-447, KIP-890, KIP-939).
Must not send, wait or number records. Invariants: one request is under way at a time; once a
coordinator may have received one outcome, the other is never requested; a transaction is not
ended before its last batch is settled; no batch goes out under an id and epoch that a coordinator
did not give (a producer without a transactional id raises its epoch by itself).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from moldau.client.producer.core import transaction_requests as requests
from moldau.client.producer.core.transaction_requests import (
    FIRST_WITH_EPOCH_BUMP,
    LAST_PRODUCE_IN_VERSION_1,
    TRANSACTION_VERSION_2,
    Ask,
    OffsetsCommit,
    RequestKind,
    Verdict,
    verdict_of,
)
from moldau.client.producer.core.transaction_states import (
    LAST_PRODUCER_EPOCH,
    NO_PRODUCER,
    OPEN_STATES,
    TRANSITIONS,
    Problem,
    ProducerIdAndEpoch,
    TransactionState,
)
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition

_S = TransactionState

SENDING_STATES: Final = frozenset({_S.IN_TRANSACTION, _S.PREPARING, _S.COMMITTING})
"""Batches of the open transaction go out."""

_SEVERITY: Final = tuple(Verdict)
"""From the mildest to the worst: of several errors in one answer the worst decides."""

MAX_WAITING_COMMITS: Final = 1_000
"""Calls to commit offsets that have not been answered; one more is refused."""

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


class Pause(Enum):
    """How long to wait before the next request."""

    NONE = "none"
    SHORT = "short"
    """The previous transaction is about to be completed."""
    BACK_OFF = "back off"


class Step(NamedTuple):
    """What the driver does after an answer."""

    pause: Pause = Pause.NONE
    look_up: bool = False
    """Find the coordinator again: another broker has become it."""


class CoordinatorFeatures(NamedTuple):
    """The capabilities of the transaction coordinator's broker: the highest version of
    InitProducerId, and what is finalized; the epoch is -1 for a broker without any features.
    """

    init_producer_id_version: int
    features_epoch: int
    transaction_version: int


class TransactionManager:
    """The transactional half of a producer, or the producer id of an idempotent one.

    Legal transitions: `transaction_states.TRANSITIONS`.

    Args:
        transactional_id: None for a producer that is only idempotent.
        timeout_ms: `transaction.timeout.ms`.
        two_phase: `transaction.two.phase.commit.enable` (KIP-939).

    Attributes:
        producer: its id and epoch; NO_PRODUCER until known.
        problem: the error behind ABORTABLE_ERROR and FATAL_ERROR, and what the last try to
            initialize failed with.
        prepared: id and epoch of the transaction that waits, or last waited, for its outcome.
        transaction_version: the finalized level, as of the last transaction's end.
        untold_outcome: the outcome of a transaction that no caller has received yet.
    """

    def __init__(
        self, transactional_id: str | None, timeout_ms: int, *, two_phase: bool = False
    ) -> None:
        self.transactional_id = transactional_id
        self.producer: ProducerIdAndEpoch = NO_PRODUCER
        self.problem: Problem | None = None
        self.prepared: ProducerIdAndEpoch = NO_PRODUCER
        self.transaction_version: int = 1
        self.untold_outcome: bool | None = None
        self._timeout_ms = timeout_ms
        self._two_phase = two_phase
        self._state = _S.UNINITIALIZED
        self._finalized: tuple[int, int] = (-1, 1)
        """The epoch of the finalized features, and `transaction.version` in it."""
        self._can_bump = True
        self._keep_prepared = False
        self._under_way: Ask | None = None
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        self._wanted: dict[TopicPartition, None] = {}
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._commits: deque[OffsetsCommit] = deque()
        self._is_known_to_coordinator = False
        """It has accepted a partition or a group of this transaction."""
        self._may_be_known = False
        """A request with one of these may have arrived."""
        self._needs_bump = False
        self._is_settled = False
        self._was_asked_to_end = False
        self._has_ended = False

    @property
    def state(self) -> TransactionState:
        return self._state

    @property
    def is_transactional(self) -> bool:
        return self.transactional_id is not None

    @property
    def is_version_2(self) -> bool:
        """Whether brokers add partitions by themselves (KIP-890)."""
        return self.transaction_version >= TRANSACTION_VERSION_2

    @property
    def highest_produce_version(self) -> int | None:
        """The highest version of Produce by which a leader does not add partitions itself."""
        if self.is_transactional and not self.is_version_2:
            return LAST_PRODUCE_IN_VERSION_1
        return None

    @property
    def refusal(self) -> Problem | None:
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
        """Whether a coordinator may have been asked to commit, after which no abort is allowed."""
        return self._state is _S.COMMITTING and self._was_asked_to_end

    # -- what the application does ---------------------------------------------------------------

    def initialize(self, *, keep_prepared: bool = False) -> Problem | None:
        """Get a producer id, and fence the previous producer of the transactional id."""
        if self._state is _S.INITIALIZING and keep_prepared == self._keep_prepared:
            return None
        if self._state is not _S.UNINITIALIZED:
            return self._out_of_turn("init_transactions()")
        self._keep_prepared = keep_prepared
        self.problem = None
        self._move_to(_S.INITIALIZING)
        return None

    def begin(self) -> Problem | None:
        """Open a transaction; no request is sent."""
        if self._state is not _S.READY:
            return self._out_of_turn("begin_transaction()")
        self._forget_transaction()
        self.untold_outcome = None
        self.prepared = NO_PRODUCER
        self._move_to(_S.IN_TRANSACTION)
        return None

    def add_offsets(
        self, member: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> OffsetsCommit | Problem:
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
        """Take no more records, so that everything can be flushed; the outcome is decided
        elsewhere: without a time limit (KIP-939), or with `is_handed_over` by another process
        before `transaction.timeout.ms` is over.
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
        """Abort the transaction, unless a coordinator may have been asked to commit it."""
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
        """Note that each batch of the transaction has been acknowledged or has failed for good.
        `needs_new_epoch`: sequence numbers were left out in some partition.
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
        """Whether a batch for the partition may be sent now; if not, the partition is added."""
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
        """Note that a batch failed for good: the transaction cannot be committed without it."""
        verdict = verdict_of(RequestKind.PRODUCE, problem.code)
        if not self.is_transactional:
            if verdict.is_fatal:
                self._fail(problem)
            return
        if may_be_written and verdict is Verdict.ABORT:
            verdict = Verdict.ABORT_AND_BUMP
        self._apply(verdict, Problem(problem.code, f"{partition}: {problem.message}"))

    def record_refused(self, problem: Problem) -> None:
        """Note that a record did not get into a batch: the transaction is incomplete without it.
        Records may be held until they have a partition, so this may come while the others are
        flushed; once these are settled, it is only about a call that had handed over nothing.
        """
        if self._state in SENDING_STATES and not self._is_settled:
            self._apply(Verdict.ABORT, problem)

    def bump_epoch(self) -> None:
        """Raise the epoch of a producer that is only idempotent; sequences start over (KIP-360)."""
        assert not self.is_transactional, "a coordinator counts the epochs of transactional ids"
        if self._state is not _S.READY:
            return
        producer_id, producer_epoch = self.producer
        if producer_epoch < LAST_PRODUCER_EPOCH:
            self.producer = ProducerIdAndEpoch(producer_id, producer_epoch + 1)
            return
        self.producer = NO_PRODUCER
        self._move_to(_S.INITIALIZING)

    # -- requests --------------------------------------------------------------------------------

    def met_coordinator(self, features: CoordinatorFeatures) -> None:
        """Take over what the transaction coordinator's broker can do."""
        self._can_bump = features.init_producer_id_version >= FIRST_WITH_EPOCH_BUMP
        if features.features_epoch >= self._finalized[0]:
            self._finalized = (features.features_epoch, features.transaction_version)

    def next_ask(self) -> Ask | None:
        """The next request; None if there is none or one is under way."""
        if self._under_way is not None:
            return None
        if self._state is _S.INITIALIZING:
            return self._initialize(NO_PRODUCER)
        if self._state not in SENDING_STATES and self._state is not _S.ABORTING:
            return None
        if self._has_ended:
            return self._initialize(self.producer)
        assert self.transactional_id is not None
        if self._wanted:
            return requests.add_partitions(self.transactional_id, self.producer, self._wanted)
        if self._commits:
            return self._next_of_commit(self.transactional_id, self._commits[0])
        if self._is_settled and self._state is not _S.PREPARING:
            return requests.end(
                self.transactional_id,
                self.producer,
                self.transaction_version,
                self._state is _S.COMMITTING,
            )
        return None

    def _initialize(self, producer: ProducerIdAndEpoch) -> Ask:
        return requests.initialize(
            self.transactional_id,
            self._timeout_ms,
            producer,
            two_phase=self._two_phase,
            keep_prepared=self._keep_prepared and not producer.is_known,
        )

    def _next_of_commit(self, transactional_id: str, commit: OffsetsCommit) -> Ask:
        if not self.is_version_2 and commit.member.group_id not in self._groups:
            return requests.add_offsets(transactional_id, self.producer, commit)
        return requests.commit_offsets(
            transactional_id, self.producer, commit, self.transaction_version
        )

    def sending(self, ask: Ask) -> None:
        """Note that the request goes out: from now on it may have arrived."""
        assert self._under_way is None, "one request at a time"
        self._under_way = ask
        if ask.kind is RequestKind.END:
            self._was_asked_to_end = True
        elif ask.kind is not RequestKind.INITIALIZE:
            self._may_be_known = True

    def unanswered(self, ask: Ask) -> Step:
        """Note that the connection was lost: the request is sent again, as the same producer."""
        assert self._under_way is ask
        self._under_way = None
        return Step(Pause.BACK_OFF, look_up=True)

    def not_let_through(self, ask: Ask, problem: Problem) -> Pause:
        """Note that the coordinator cannot be found or reached, by a fault that is not passing."""
        assert self._under_way is None
        verdict = verdict_of(ask.kind, problem.code)
        if verdict.is_passing:
            return Pause.BACK_OFF
        self._apply(verdict, problem)
        return Pause.NONE

    def break_off(self, problem: Problem) -> None:
        self._under_way = None
        self._fail(problem)

    def cannot_be_asked(self, ask: Ask, message: str) -> None:
        assert self._under_way is None
        problem = Problem(ErrorCode.UNSUPPORTED_VERSION, message)
        if ask.kind is RequestKind.COMMIT_OFFSETS:
            self._give_up_commits(problem)
            self._apply(Verdict.ABORT, problem)
        else:
            self._apply(verdict_of(ask.kind, ErrorCode.UNSUPPORTED_VERSION), problem)

    def answered(self, ask: Ask, response: Any) -> Step:
        """Take over an answer, unless an error has made its request obsolete."""
        assert self._under_way is ask
        self._under_way = None
        if self._state is _S.FATAL_ERROR:
            return Step()
        match ask.kind:
            case RequestKind.INITIALIZE:
                return self._initialize_answered(ask, response)
            case RequestKind.ADD_PARTITIONS:
                return self._add_partitions_answered(ask, response)
            case RequestKind.ADD_OFFSETS:
                return self._add_offsets_answered(ask, response)
            case RequestKind.COMMIT_OFFSETS:
                return self._commit_offsets_answered(ask, response)
            case _:
                return self._end_answered(ask, response)

    def _initialize_answered(self, ask: Ask, response: Any) -> Step:
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            return self._refused(ask, code)
        self.producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        if self._state is not _S.INITIALIZING:
            self._complete()
            return Step()
        self.problem = None
        self.transaction_version = self._finalized[1]
        self._forget_transaction()
        ongoing = ProducerIdAndEpoch(
            response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
        )
        if self._keep_prepared and ongoing.is_known:
            self.prepared = ongoing
            # Only a coordinator of version 2 keeps it, whatever it said when it was connected to.
            self.transaction_version = TRANSACTION_VERSION_2
            self._may_be_known = self._is_known_to_coordinator = True
            self._move_to(_S.PREPARED)
        else:
            self.prepared = NO_PRODUCER
            self._move_to(_S.READY)
        return Step()

    def _add_partitions_answered(self, ask: Ask, response: Any) -> Step:
        codes = requests.partition_codes(ask, response)
        for partition, code in codes.items():
            if code is ErrorCode.NONE:
                self._is_known_to_coordinator = True
                self._wanted.pop(partition, None)
                self._added.add(partition)
        return self._failed_partly(ask, codes) or Step()

    def _add_offsets_answered(self, ask: Ask, response: Any) -> Step:
        assert ask.commit is not None
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            return self._refused(ask, code)
        self._is_known_to_coordinator = True
        self._groups.add(ask.commit.member.group_id)
        return Step()

    def _commit_offsets_answered(self, ask: Ask, response: Any) -> Step:
        commit = ask.commit
        assert commit is not None
        codes = requests.partition_codes(ask, response)
        for partition, code in codes.items():
            if code is ErrorCode.NONE:
                self._is_known_to_coordinator = True
                commit.offsets.pop(partition, None)
        if failed := self._failed_partly(ask, codes):
            return failed
        if commit in self._commits:
            commit.is_done = True
            self._commits.remove(commit)
        self._end_if_idle()
        return Step()

    def _failed_partly(self, ask: Ask, codes: Mapping[TopicPartition, ErrorCode]) -> Step | None:
        """Follow the worst of the errors, if there is one. OPERATION_NOT_ATTEMPTED is never the
        cause: what it was left out for may pass.
        """
        every = [each for each in codes.items() if each[1] is not ErrorCode.NONE]
        if not every:
            return None
        causes = [each for each in every if each[1] is not ErrorCode.OPERATION_NOT_ATTEMPTED]
        partition, code = max(
            causes or every, key=lambda each: _SEVERITY.index(verdict_of(ask.kind, each[1]))
        )
        return self._refused(ask, code, f" ({partition})")

    def _end_answered(self, ask: Ask, response: Any) -> Step:
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            following = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
            if self.is_version_2 and following.is_known:
                self.producer = following
                self._needs_bump = False
            self._after_end()
            return Step()
        verdict = verdict_of(ask.kind, code)
        if verdict.is_passing:
            return self._again(verdict, code)
        if self._state is _S.ABORTING and self._is_nothing_to_abort(code):
            self._needs_bump = True
            self._after_end()
        elif self._state is _S.ABORTING and not verdict.is_fatal:
            self._fail(self._problem(ask, code))
        else:
            self._apply(verdict, self._problem(ask, code))
        return Step()

    def _is_nothing_to_abort(self, code: ErrorCode) -> bool:
        """Whether the coordinator has no such transaction. A request that is still on its way may
        begin one, so that the epoch has to be raised (KIP-360), which aborts that one too.
        """
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            return True
        return code is ErrorCode.INVALID_TXN_STATE and not self._is_known_to_coordinator

    # -- consequences ----------------------------------------------------------------------------

    def _refused(self, ask: Ask, code: ErrorCode, where: str = "") -> Step:
        verdict = verdict_of(ask.kind, code)
        if verdict.is_passing:
            return self._again(verdict, code)
        self._apply(verdict, self._problem(ask, code, where))
        return Step()

    def _again(self, verdict: Verdict, code: ErrorCode) -> Step:
        is_short = code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._is_known_to_coordinator
        return Step(Pause.SHORT if is_short else Pause.BACK_OFF, verdict is Verdict.LOOK_UP)

    def _problem(self, ask: Ask, code: ErrorCode, where: str = "") -> Problem:
        who = "the idempotent producer" if ask.key == "" else repr(self.transactional_id)
        text = f"{ask.kind.value}{where} for {who}: {code.name}: {code.message}"
        if ask.kind is RequestKind.END and code is ErrorCode.INVALID_TXN_STATE:
            text += "; it has ended the other way, as after transaction.timeout.ms"
        return Problem(code, text)

    def _apply(self, verdict: Verdict, problem: Problem) -> None:
        if verdict.is_fatal:
            self._fail(problem)
        elif verdict is Verdict.RESTART:
            if self._state is _S.INITIALIZING:
                self.problem = problem
                self._move_to(_S.UNINITIALIZED)
            else:
                self._fail(problem)
        else:
            self._make_abortable(problem, needs_bump=verdict is Verdict.ABORT_AND_BUMP)

    def _make_abortable(self, problem: Problem, *, needs_bump: bool) -> None:
        if needs_bump:
            self._needs_bump = True
            if not (self._can_bump or self.is_version_2):
                self._fail(
                    Problem(
                        problem.code,
                        f"{problem.message}; brokers before Apache Kafka 2.5 cannot give this "
                        "producer another epoch to go on with",
                    )
                )
                return
        if self._state not in SENDING_STATES:
            return
        self.problem = problem
        self._wanted.clear()
        self._give_up_commits(problem)
        self._move_to(_S.ABORTABLE_ERROR)

    def _fail(self, problem: Problem) -> None:
        if self._state is _S.FATAL_ERROR:
            return
        self.problem = problem
        self._wanted.clear()
        self._give_up_commits(problem)
        self._move_to(_S.FATAL_ERROR)

    def _give_up_commits(self, problem: Problem) -> None:
        for commit in self._commits:
            commit.problem = problem
        self._commits.clear()

    def _end_if_idle(self) -> None:
        """Go on without a request, where everything is settled and no request is needed."""
        if not self._is_settled or self._wanted or self._commits:
            return
        if self._state is _S.PREPARING:
            self.prepared = self.producer
            self._move_to(_S.PREPARED)
        elif not self._may_be_known:
            self._after_end()

    def _after_end(self) -> None:
        """Complete the transaction, after another epoch where the next one needs it."""
        is_upgrade = (
            self._may_be_known
            and not self.is_version_2
            and self._finalized[1] >= TRANSACTION_VERSION_2
        )
        if not self._needs_bump and not is_upgrade:
            self._complete()
        elif self._can_bump:
            self._has_ended = True
        else:
            self._fail(
                Problem(
                    ErrorCode.UNKNOWN_PRODUCER_ID,
                    "sequence numbers were left out, and brokers before Apache Kafka 2.5 cannot "
                    "give this producer another epoch to go on with",
                )
            )

    def _complete(self) -> None:
        self.untold_outcome = self._state is _S.COMMITTING
        self.problem = None
        self.transaction_version = self._finalized[1]
        self._forget_transaction()
        self._move_to(_S.READY)

    def _move_to(self, state: TransactionState) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state.name} to {state.name}"
        self._state = state
