"""What a coordinator's state machine answers: records to write, answers to give, timers to set.

Owns the values that go between a state machine and the runtime that drives it, and what takes an
answer within the broker. Must not know any request, or do anything. Invariant: a state machine
changes what its log says only in `replay`; what it changes elsewhere (waiting requests, sessions)
may be lost with the leadership at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.records import Record
from moldau.protocol.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.protocol.schema import Message

if TYPE_CHECKING:
    from moldau.protocol.coordinator_records import CoordinatorLog

MAX_BYTES_AT_ONCE: Final = 400_000
"""Bytes of the keys and values of one portion."""


class CoordinatorRecord(NamedTuple):
    """One record of the coordinator's log; without a value it removes the key (a tombstone).

    `row` is the encoded record and `content` what its replay takes in, if they have been made
    already. A content is replayed once.
    """

    key: Message
    value: Message | None
    value_version: int = 0
    row: Record | None = None
    content: Any = None


LAST_EPOCH: Final = 2**15 - 1
"""Left for the markers that fence the last client; there is none above."""

LAST_CLIENT_EPOCH: Final = LAST_EPOCH - 1
"""The last epoch a client gets."""


class Producer(NamedTuple):
    """What identifies a producer in requests, answers and the log. The records of its transaction
    count once its commit marker is written.
    """

    producer_id: int
    producer_epoch: int

    @property
    def is_exhausted(self) -> bool:
        """Whether the client can get no higher epoch."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def is_of_markers(self) -> bool:
        """Whether no client was ever given this epoch."""
        return self.producer_epoch > LAST_CLIENT_EPOCH


NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionEnd(NamedTuple):
    """The end of a producer's transaction, as the marker in a partition's log says.

    Attributes:
        coordinator_epoch: of the transaction's coordinator.
    """

    producer: Producer
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int


class Answerable(Protocol):
    """Where a `Reply` goes, exactly once; a request's context is one. Opaque to state machines."""

    def respond(self, message: Any) -> None: ...


class CallbackReply:
    """Hands the answer to a function."""

    __slots__ = ("respond",)

    def __init__(self, respond: Callable[[Any], None]) -> None:
        self.respond = respond


class Reply(NamedTuple):
    """An answer and where it goes.

    Attributes:
        on_error: for an answer that cannot be taken back, and is wrong when another leader has
            written. It leaves once a record that says nothing, appended after it was decided, is
            committed: a former leader that has not heard yet that it was replaced commits nothing
            more. `on_error` makes the answer if that is not committed.
    """

    to: Answerable
    message: object
    on_error: Callable[[ErrorCode], object] | None = None


class SetTimer(NamedTuple):
    """Call `on_timer(key)` in `delay_ms`; a running timer of the same key is replaced."""

    key: Hashable
    delay_ms: float


class CancelTimer(NamedTuple):
    """Forget the timer of that key, if there is one."""

    key: Hashable


After: TypeAlias = "Callable[[ErrorCode, float], CoordinatorResult]"

_WRITE_ERRORS: Final = {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def write_error(error: ErrorCode) -> ErrorCode:
    """The error that a client gets for a write that failed with what `After` was given; others are
    as they are. Only the broker itself writes too large a record, but for offsets.
    """
    return _WRITE_ERRORS.get(error, error)


def is_refused(error: ErrorCode) -> bool:
    """Whether the error says that the records could not be appended: none was replayed, and what
    the state machine changed in memory in view of them has to be taken back. Of a result that is
    not atomic, the first records may have been appended.

    A refusal never has the code REQUEST_TIMED_OUT: with it the records are in the log, and the
    state must stay what the log says. The codes of an unload count as refusals; nothing looks at
    the state after that.
    """
    return error not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)


@dataclass(slots=True)
class CoordinatorResult:
    """What one event leads to. The runtime does it in this order:

    1. `records` are appended as one batch, all or nothing, with the leader epoch under which the
       state machine was loaded, and replayed. If that fails, nothing else of the result happens but
       `after`, which is given the error.
    2. `timers` are set, `replies` are sent (but for those that have to be proven first) and
       `commands` are executed, all of them at once.
    3. `after(error, now_ms)` is called exactly once: with NONE as soon as everything that was
       appended before it (the records of earlier results too) is below the high watermark; with
       NOT_COORDINATOR when leadership is lost before; with REQUEST_TIMED_OUT when the write's time
       is up: the records are in the log and replayed, and only another leader may lack them. What
       may be taken back, and when, says `is_refused`. The runtime carries out what `after` returns
       in the same way.

    `replies` are for what no record stands behind, and for refusals. Every answer that shows
    state in the log belongs into `after`, reads included: no client reads what may be lost.
    `producer` makes `records` part of that producer's transaction.
    `commands` are for the coordinator that owns the runtime (markers to send, for instance).

    Records that are not `is_atomic` stand each for itself: they are appended in as many batches as
    they need, in their order, and one that no batch can hold is left out, counted and logged. Then
    step 2 happens whatever became of them, and step 3 is about those that were appended.

    So does step 2 of a result that `holds_anyway`, also if its records cannot be appended: what a
    classic group has decided in memory stands, its waiting members must be answered, and its timers
    must run.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    is_atomic: bool = True
    holds_anyway: bool = False
    producer: Producer | None = None
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    commands: list[object] = field(default_factory=list)
    after: After | None = None

    @staticmethod
    def reply(to: Answerable, message: object) -> CoordinatorResult:
        """An answer that needs no commit."""
        return CoordinatorResult(replies=[Reply(to, message)])

    @staticmethod
    def reply_when_committed(
        to: Answerable,
        message: object,
        *,
        on_error: Callable[[ErrorCode], object],
        records: list[CoordinatorRecord] | None = None,
    ) -> CoordinatorResult:
        """`message` once the records, and all before them, are committed; `on_error` makes the
        answer if they are not.
        """
        result = CoordinatorResult(records=records or [])
        result.answer_when_committed(to, message, on_error)
        return result

    def answer_when_committed(
        self, to: Answerable, message: object, on_error: Callable[[ErrorCode], object]
    ) -> None:
        """As `reply_when_committed`, for a result that exists already."""

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            return CoordinatorResult.reply(
                to, message if error is ErrorCode.NONE else on_error(error)
            )

        self.add_after(after)

    def add_after(self, after: After) -> None:
        """Have `after` called too, behind the one that stands there already."""
        first = self.after
        if first is None:
            self.after = after
            return

        def both(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            assert first is not None
            joined = first(error, now_ms)
            joined.merge(after(error, now_ms))
            return joined

        self.after = both

    def merge(self, other: CoordinatorResult) -> None:
        assert self.producer == other.producer or not self.records or not other.records
        self.producer = self.producer or other.producer
        written = [each for each in (self, other) if each.records]
        self.is_atomic = not written or any(each.is_atomic for each in written)
        self.holds_anyway = self.holds_anyway or other.holds_anyway
        self.records += other.records
        self.timers += other.timers
        self.replies += other.replies
        self.commands += other.commands
        if other.after is not None:
            self.add_after(other.after)


@dataclass(slots=True, eq=False)
class Portion:
    """What a state machine writes by itself in one turn: expiries, aborts, removals.

    Its limit by count and encoded size keeps the loop and the line of waiting answers free for
    others. The runtime cuts a portion into batches (`CoordinatorResult.is_atomic`).
    """

    _log: CoordinatorLog
    _max_count: int
    _size_bytes: int = 0
    records: list[CoordinatorRecord] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self._max_count or self._size_bytes >= MAX_BYTES_AT_ONCE

    def add(self, *records: CoordinatorRecord) -> None:
        """Take more. What cannot be encoded weighs nothing, and is never written."""
        self.records += records
        for key, value, version, *_ in records:
            with suppress(LocalProtocolError):
                self._size_bytes += len(self._log.encode_key(key))
                if value is not None:
                    self._size_bytes += len(self._log.encode_value(value, version))


PartT = TypeVar("PartT")
_MISSING: Final = object()


@dataclass(slots=True, eq=False)
class Collector(Generic[PartT]):
    """Joins the answers for several groups or partitions: make all parts with `part`, then call
    `all_asked`. A part may be answered at any time.

    Invariant: `done` is called exactly once, when the last part has its answer, with the parts in
    the order in which they were made.
    """

    _done: Callable[[list[PartT]], None]
    _parts: list[Any] = field(default_factory=list)
    _missing_count: int = 0
    _is_complete: bool = False

    def part(self, made: Callable[[Any], PartT] | None = None) -> CallbackReply:
        """The reply of one more part.

        Args:
            made: turns the answer into the part as soon as it comes: `done` may have very many.
        """
        self._parts.append(_MISSING)
        self._missing_count += 1
        return CallbackReply(partial(self._take, len(self._parts) - 1, made))

    def all_asked(self) -> None:
        """There will be no more parts."""
        self._is_complete = True
        self._end_if_complete()

    def _take(self, index: int, made: Callable[[object], PartT] | None, message: object) -> None:
        assert self._parts[index] is _MISSING, "a part is answered once"
        self._parts[index] = message if made is None else made(message)
        self._missing_count -= 1
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._is_complete and not self._missing_count:
            parts, self._parts = self._parts, []
            self._done(parts)


class CoordinatorState(Protocol):
    """A state machine on one partition of a coordinator's topic.

    Times: `now_ms` of events is the wall clock in milliseconds since 1970 (what goes into records);
    delays of timers are durations.
    """

    def replay(
        self, record: CoordinatorRecord, record_offset: int, producer: Producer | None
    ) -> None:
        """Take in a record of the log: at loading, and again each one just appended. `producer` is
        the one whose transaction it belongs to; the record counts only when that commits.
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
        """Leadership is lost: the answers to requests that wait in here (NOT_COORDINATOR). Nothing
        else of this object will be called.
        """
