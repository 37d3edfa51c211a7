"""What a producer knows of itself, what it asks next, and what the answers do to it.

Owns the state, the producer id and epoch, the partitions and offsets of the open transaction
(KIP-98, KIP-360, KIP-447, KIP-890, KIP-939). The calls that begin and end transactions are in
`transaction_manager`. Must not send, wait or number records. Invariants: one request is under way
at a time; a transaction is not ended before its last batch is settled; nobody produces under a pair
that a coordinator did not give.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

from moldau.client.producer.core import transaction_requests as requests
from moldau.client.producer.core.transaction_errors import RequestKind, Verdict, verdict_of
from moldau.client.producer.core.transaction_requests import (
    FIRST_WITH_EPOCH_BUMP,
    TRANSACTION_VERSION_2,
    Ask,
    OffsetsCommit,
)
from moldau.client.producer.core.transaction_states import (
    NO_PRODUCER,
    TRANSITIONS,
    Problem,
    ProducerIdAndEpoch,
    TransactionState,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition

_S = TransactionState
SENDING_STATES: Final = frozenset({_S.IN_TRANSACTION, _S.PREPARING, _S.COMMITTING})
"""Batches of the open transaction go out."""

_SEVERITY: Final = tuple(Verdict)
"""From the mildest to the worst: of several errors in one answer the worst decides."""


class Pause(Enum):
    """How long to wait before the next request."""

    NONE = "none"
    SHORT = "short"
    """The transaction before is just being completed."""
    BACK_OFF = "back off"


class Step(NamedTuple):
    """What an answer leads to, besides what it did to the manager."""

    pause: Pause = Pause.NONE
    look_up: bool = False
    """The coordinator that was asked is another one now."""


class TransactionAnswers:
    """The half of `TransactionManager` that talks to coordinators; its attributes are described
    there.
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
        """It was told of something in this transaction, and said yes."""
        self._may_be_known = False
        """A request that would have told it may have arrived."""
        self._needs_bump = False
        self._is_settled = False
        self._was_asked_to_end = False
        self._has_ended = False

    @property
    def state(self) -> TransactionState:
        """Where it is."""
        return self._state

    @property
    def is_transactional(self) -> bool:
        """Whether it has a transactional id."""
        return self.transactional_id is not None

    @property
    def is_version_2(self) -> bool:
        """Whether brokers add partitions by themselves (KIP-890)."""
        return self.transaction_version >= TRANSACTION_VERSION_2

    # -- requests --------------------------------------------------------------------------------

    def met_coordinator(
        self, *, init_producer_id_version: int, features_epoch: int, transaction_version: int
    ) -> None:
        """What the transaction coordinator's broker says that it can.

        Args:
            init_producer_id_version: the highest one it serves.
            features_epoch: of the finalized features; -1 for a broker that knows none.
        """
        self._can_bump = init_producer_id_version >= FIRST_WITH_EPOCH_BUMP
        if features_epoch >= self._finalized[0]:
            self._finalized = (features_epoch, transaction_version)

    def next_ask(self) -> Ask | None:
        """The request to be sent now, None if there is none or one is under way."""
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
        """The request goes out: from here on it may have arrived, whatever becomes of it."""
        assert self._under_way is None, "one request at a time"
        self._under_way = ask
        if ask.kind is RequestKind.END:
            self._was_asked_to_end = True
        elif ask.kind is not RequestKind.INITIALIZE:
            self._may_be_known = True

    def unanswered(self, ask: Ask) -> Step:
        """The connection was lost: asked again, as the same producer."""
        assert self._under_way is ask
        self._under_way = None
        return Step(Pause.BACK_OFF, look_up=True)

    def not_let_through(self, ask: Ask, problem: Problem) -> Pause:
        """The coordinator cannot be found or reached, and not because of a passing fault."""
        assert self._under_way is None
        verdict = verdict_of(ask.kind, problem.code)
        if verdict.is_passing:
            return Pause.BACK_OFF
        self._apply(verdict, problem)
        return Pause.NONE

    def break_off(self, problem: Problem) -> None:
        """Whoever carries out what is asked for here cannot go on."""
        self._under_way = None
        self._fail(problem)

    def cannot_be_asked(self, ask: Ask, message: str) -> None:
        """The broker serves no version that can say it."""
        assert self._under_way is None
        problem = Problem(ErrorCode.UNSUPPORTED_VERSION, message)
        if ask.kind is RequestKind.COMMIT_OFFSETS:
            self._give_up_commits(problem)
            self._apply(Verdict.ABORT, problem)
        else:
            self._apply(verdict_of(ask.kind, ErrorCode.UNSUPPORTED_VERSION), problem)

    def answered(self, ask: Ask, response: Any) -> Step:
        """Take an answer in. What it answers may have been overtaken by an error meanwhile."""
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
            verdict = verdict_of(ask.kind, code)
            if verdict.is_passing:
                return self._again(verdict, code)
            self._apply(verdict, self._problem(ask, code))
            return Step()
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
            self._may_be_known = self._is_known_to_coordinator = True
            self._move_to(_S.PREPARED)
        else:
            self.prepared = NO_PRODUCER
            self._move_to(_S.READY)
        return Step()

    def _add_partitions_answered(self, ask: Ask, response: Any) -> Step:
        errors = requests.added_partitions(ask, response)
        for partition, code in errors.items():
            if code is ErrorCode.NONE:
                self._is_known_to_coordinator = True
                self._wanted.pop(partition, None)
                self._added.add(partition)
        failed = {each: code for each, code in errors.items() if code is not ErrorCode.NONE}
        if not failed:
            return Step()
        return self._failed_partly(ask, failed.items())

    def _add_offsets_answered(self, ask: Ask, response: Any) -> Step:
        assert ask.commit is not None
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self._is_known_to_coordinator = True
            self._groups.add(ask.commit.member.group_id)
            return Step()
        verdict = verdict_of(ask.kind, code)
        if verdict.is_passing:
            return self._again(verdict, code)
        self._apply(verdict, self._problem(ask, code))
        return Step()

    def _commit_offsets_answered(self, ask: Ask, response: Any) -> Step:
        commit = ask.commit
        assert commit is not None
        errors = requests.committed_offsets(ask, response)
        failed = {each: code for each, code in errors.items() if code is not ErrorCode.NONE}
        for partition in errors.keys() - failed.keys():
            self._is_known_to_coordinator = True
            commit.offsets.pop(partition, None)
        if failed:
            return self._failed_partly(ask, failed.items())
        if commit in self._commits:
            commit.is_done = True
            self._commits.remove(commit)
        self._end_if_idle()
        return Step()

    def _failed_partly(self, ask: Ask, failed: Iterable[tuple[TopicPartition, ErrorCode]]) -> Step:
        """The worst of the errors decides; OPERATION_NOT_ATTEMPTED is never the cause."""
        partition, code = max(
            failed,
            key=lambda each: (
                _SEVERITY.index(verdict_of(ask.kind, each[1])),
                each[1] is not ErrorCode.OPERATION_NOT_ATTEMPTED,
            ),
        )
        verdict = verdict_of(ask.kind, code)
        if verdict.is_passing:
            return self._again(verdict, code)
        self._apply(verdict, self._problem(ask, code, f" ({partition})"))
        return Step()

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
        """Whether the coordinator has no such transaction; what was sent to it may yet arrive and
        begin one, so that the epoch has to be bumped (KIP-360), which aborts that too.
        """
        if code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID):
            return True
        return code is ErrorCode.INVALID_TXN_STATE and not self._is_known_to_coordinator

    # -- what follows ----------------------------------------------------------------------------

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
        """Go where an error that is no passing one leads."""
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
        """Go on without asking, where everything is settled and there is nothing to ask."""
        if not self._is_settled or self._wanted or self._commits:
            return
        if self._state is _S.PREPARING:
            self.prepared = self.producer
            self._move_to(_S.PREPARED)
        elif not self._may_be_known:
            self._after_end()

    def _after_end(self) -> None:
        """The transaction has its outcome; the next one may need another epoch first."""
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
