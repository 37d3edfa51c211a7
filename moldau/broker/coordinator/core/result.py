"""What a coordinator's state machine answers: records to write, answers to give, timers to set.

Owns: the values that go between a state machine and the runtime that drives it. Must not: know any
request, or do anything. Invariant: a state machine changes what its log says only in `replay`; what
it changes elsewhere (who waits, who was heard of) may be lost with the leadership at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Record
from moldau.protocol.schema import Message

ReplyTo: TypeAlias = Any
"""Who is to get an answer: opaque to state machines, which only hand it back, exactly once."""


class CoordinatorRecord(NamedTuple):
    """One record of the coordinator's log; without a value it removes the key (a tombstone).

    `row` is the record encoded, and `content` what a replay of it takes in, if they have been made
    already. A content is replayed once.
    """

    key: Message
    value: Message | None
    value_version: int = 0
    row: Record | None = None
    content: Any = None


class Producer(NamedTuple):
    """Whose transaction the records belong to; they count when its commit marker is there."""

    producer_id: int
    producer_epoch: int


class Reply(NamedTuple):
    """An answer and who gets it."""

    to: ReplyTo
    message: Any


class SetTimer(NamedTuple):
    """Call `on_timer(key)` in `delay_ms`; a timer of the same key that still runs is replaced."""

    key: Hashable
    delay_ms: float


class CancelTimer(NamedTuple):
    """Forget the timer of that key, if there is one."""

    key: Hashable


After: TypeAlias = "Callable[[ErrorCode, float], CoordinatorResult]"


def is_refused(error: ErrorCode) -> bool:
    """Whether `After` is told that the records could not be appended: none was replayed, and what
    was done in memory in view of them has to be taken back.

    Of a result that is not atomic a beginning may have been appended.

    A refusal never has the code REQUEST_TIMED_OUT: with it the records are in the log, and the
    state must stay what the log says. The codes of an unload count as refusals; nothing looks at
    the state after that.
    """
    return error not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)


@dataclass(slots=True)
class CoordinatorResult:
    """What one event leads to. The runtime does it in this order:

    1. `records` are appended as one batch, all or nothing, with the leader epoch under which the
       state machine was loaded, and replayed. If that fails nothing else of the result happens but
       `after`, which is told why.
    2. `timers` are set, `replies` are sent and `commands` are executed, all of them at once.
    3. `after(error, now_ms)` is called exactly once: with NONE as soon as everything that was
       appended before it (the records of earlier results too) is below the high watermark; with
       NOT_COORDINATOR when leadership is lost before; with REQUEST_TIMED_OUT when the write's time
       is up: the records are in the log and replayed, and only another leader may lack them. What
       may be taken back, and when, says `is_refused`. What it returns is carried out the same way.

    `replies` are for what no record stands behind, and for refusals. Whatever tells of state in the
    log belongs into `after`, reads included: then nobody is told what may be lost.
    `producer` makes `records` part of that producer's transaction.
    `commands` are for the coordinator that owns the runtime (markers to be sent, for instance).

    Records that are not `is_atomic` are each for itself: they are appended in as many batches as
    they need, in their order, and one that no batch can hold is left out, counted and logged. Then
    2. happens whatever became of them, and 3. tells of those that were appended.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    is_atomic: bool = True
    producer: Producer | None = None
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    commands: list[Any] = field(default_factory=list)
    after: After | None = None

    @staticmethod
    def reply(to: ReplyTo, message: Any) -> CoordinatorResult:
        """An answer that needs no commit."""
        return CoordinatorResult(replies=[Reply(to, message)])

    @staticmethod
    def reply_when_committed(
        to: ReplyTo,
        message: Any,
        *,
        on_error: Callable[[ErrorCode], Any],
        records: list[CoordinatorRecord] | None = None,
        producer: Producer | None = None,
    ) -> CoordinatorResult:
        """`message` once the records, and all before them, are committed; `on_error` makes the
        answer if they are not.
        """

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            del now_ms
            answer = message if error is ErrorCode.NONE else on_error(error)
            return CoordinatorResult.reply(to, answer)

        return CoordinatorResult(records=records or [], producer=producer, after=after)


class CoordinatorState(Protocol):
    """A state machine on one partition of a coordinator's topic.

    Times: `now_ms` of events is the wall clock in milliseconds since 1970 (what goes into records);
    delays of timers are durations.
    """

    def replay(
        self, record: CoordinatorRecord, record_offset: int, producer: Producer | None
    ) -> None:
        """Take in a record of the log: at loading, and again each one just appended.

        Args:
            producer: whose transaction it belongs to; it counts only when that commits.
        """

    def replay_end_marker(self, producer: Producer, *, is_commit: bool) -> None:
        """The transaction of `producer` that was open in this partition has ended."""

    def keys(self) -> Iterable[str]:
        """The groups or transactional ids that are kept here: their hash has placed them."""

    def loaded(self, now_ms: float) -> CoordinatorResult:
        """The whole log has been replayed, requests will come: set timers."""

    def on_timer(self, key: Hashable, now_ms: float) -> CoordinatorResult:
        """A timer has run out."""

    def unloaded(self) -> list[Reply]:
        """Leadership is lost: what those get who wait in here (NOT_COORDINATOR). Nothing else of
        this object will be called.
        """
