"""One partition of a coordinator's topic, led by this broker: its state machine and its log.

Owns the order of things: append, replay, answer after the commit; the line of waiting answers; the
state machine's timers. Must not know what the records mean, or read the log (the loader does).
Invariants: the state machine has replayed exactly what the log holds below `_end_offset`, and
nothing that is not in it; an answer that shows that state waits until the log is committed up to
there; after `unload` nothing is appended, no timer runs, and every waiting request is answered.

How a lost leadership cannot answer a read:

1. an operation appends at offset 7 and the next one reads what it wrote; both wait for offset 8;
2. another broker becomes leader without the record at 7;
3. this broker's replica manager learns of it before the runtime does (order of publishers), so that
   its high watermark does not move any more in the shard's leader epoch;
4. `unload` answers both with NOT_COORDINATOR.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from moldau.broker.coordinator.core.result import (
    NO_PRODUCER,
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    CoordinatorState,
    Producer,
    Reply,
    SetTimer,
    TransactionEnd,
)
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.records import Record, encode_batch
from moldau.runtime.slices import SLICE_MS

if TYPE_CHECKING:
    from moldau.broker.coordinator.core.result import After
    from moldau.broker.coordinator.ports import CoordinatorPartition, RuntimePorts, RuntimeSettings
    from moldau.protocol.coordinator_records import CoordinatorLog
    from moldau.runtime.telemetry.metrics import Counter
    from moldau.runtime.timers import WheelTimer

logger = logging.getLogger(__name__)

StateT = TypeVar("StateT", bound=CoordinatorState)
Operation = Callable[[StateT, float], CoordinatorResult]
Execute = Callable[[int, object], None]

FAILED_TIMER_MS: Final = 30_000
"""A timer whose event raised runs out again after this time."""

LATE_TIMER_MS: Final = 1_000
"""A timer that is later than this waits once more for so long: the node has stood still, and it
must first read what members have sent since.
"""


class ShardState(Enum):
    """See LEGAL_TRANSITIONS."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    UNLOADED = "unloaded"


LEGAL_TRANSITIONS: Final[dict[ShardState, frozenset[ShardState]]] = {
    ShardState.LOADING: frozenset({ShardState.ACTIVE, ShardState.FAILED, ShardState.UNLOADED}),
    ShardState.ACTIVE: frozenset({ShardState.FAILED, ShardState.UNLOADED}),
    ShardState.FAILED: frozenset({ShardState.UNLOADED}),
    ShardState.UNLOADED: frozenset(),
}

_REFUSALS: Final = {
    ShardState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ShardState.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ShardState.UNLOADED: ErrorCode.NOT_COORDINATOR,
}


_WRITE_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
}
"""A partition's error of a failed append, as the coordinator's `After` gets it. All others,
which a coordinator's own records cannot cause, are UNKNOWN_SERVER_ERROR.

Never REQUEST_TIMED_OUT, which says that the records are in the log (`is_refused`).
MESSAGE_TOO_LARGE stays, because its name in the answer depends on the request; so does what the log
says of a transaction's producer.
"""


class _Waiting(NamedTuple):
    """A result whose `after` waits for a commit.

    Attributes:
        required_offset: everything before it has to be committed.
        deadline_ms: by the monotonic clock.
        size_bytes: of the records that wait with it.
        timer_key: the timer whose event waits, None for another event.
    """

    required_offset: int
    deadline_ms: float
    after: After
    size_bytes: int
    timer_key: Hashable


class _Unwritable(NamedTuple):
    """Records that make no batch, and why."""

    error: ErrorCode
    reason: str


def _decided(reply: Reply, error: ErrorCode) -> Reply:
    """The answer that waited for a proof, which came with `error`."""
    assert reply.on_error is not None
    message = reply.message if error is ErrorCode.NONE else reply.on_error(error)
    return Reply(reply.to, message)


class _Failing(Generic[StateT]):
    """Fails the shard if the block raises: its state is not the log's any more, or it lacks timers
    that it needs. (A generator as a context takes 2 µs more, for every append.)
    """

    __slots__ = ("_shard",)

    def __init__(self, shard: Shard[StateT]) -> None:
        self._shard = shard

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._shard.fail()


@dataclass(slots=True, eq=False)
class Shard(Generic[StateT]):
    """A state machine with its log; moves along LEGAL_TRANSITIONS.

    Args:
        _left_out: counts records that no batch can hold.
    """

    _log: CoordinatorLog
    partition_index: int
    leader_epoch: int
    partition: CoordinatorPartition
    machine: StateT
    _ports: RuntimePorts
    _settings: RuntimeSettings
    _execute: Execute
    _left_out: Counter
    state: ShardState = ShardState.LOADING
    _end_offset: int = 0
    _line: deque[_Waiting] = field(default_factory=deque)
    """Results that wait; offsets and deadlines never decrease along it."""
    _line_bytes: int = 0
    _unproven: list[Reply] = field(default_factory=list)
    """What waits for the proof after the one that is being committed."""
    _is_proving: bool = False
    _timers: dict[Hashable, WheelTimer] = field(default_factory=dict)
    _deadline: WheelTimer | None = None
    _woken_at: int = -1
    _is_draining: bool = False
    _is_drain_due: bool = False

    @property
    def name(self) -> str:
        return f"{self._log.topic}-{self.partition_index}"

    def __repr__(self) -> str:
        return f"Shard({self.name}, {self.state.value}, leader epoch {self.leader_epoch})"

    @property
    def is_led(self) -> bool:
        """Whether the broker still leads the partition in the shard's epoch, with a usable log."""
        return self.partition.leader_epoch == self.leader_epoch

    @property
    def waiting_count(self) -> int:
        return len(self._line)

    # -- states --------------------------------------------------------------------------------

    def activate(self, end_offset: int) -> None:
        """Everything before `end_offset`, which is all there is, has been replayed."""
        self._move_to(ShardState.ACTIVE)
        self._end_offset = end_offset
        with _Failing(self):
            self._carry_out(self.machine.loaded(self._now_ms()))
        self._drain()

    def fail(self) -> None:
        """The state cannot be known: all requests are refused until another leader tries."""
        self._end(ShardState.FAILED, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def continue_in(self, leader_epoch: int) -> bool:
        """Keep the state in a newer leader epoch if this broker has led all the time, so that the
        state machine has replayed exactly what the log holds; tell whether that is so.
        """
        if self.state is not ShardState.ACTIVE or leader_epoch < self.leader_epoch:
            return False
        if self.partition.log_end_offset != self._end_offset:
            return False
        self.leader_epoch = leader_epoch
        self._wait_for_first()
        return True

    def unload(self) -> None:
        """Leadership is lost: all waiting requests are answered NOT_COORDINATOR."""
        self._end(ShardState.UNLOADED, ErrorCode.NOT_COORDINATOR)

    def _end(self, state: ShardState, error: ErrorCode) -> None:
        was_active = self.state is ShardState.ACTIVE
        self._move_to(state)
        try:
            self.partition.forget_wake()
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            with ExitStack() as calls:
                # An exception in one keeps none of the others from its answer; called last to
                # first.
                line, self._line, self._line_bytes = self._line, deque(), 0
                for waiting in reversed(line):
                    calls.callback(self._end_wait, waiting, error)
        finally:
            if was_active:
                self._send(self.machine.unloaded())

    def _move_to(self, state: ShardState) -> None:
        assert state in LEGAL_TRANSITIONS[self.state], f"{self} to {state.value}"
        self.state = state

    # -- operations ------------------------------------------------------------------------------

    def refusal(self, *, passes_limit: bool = False) -> ErrorCode:
        """Why the shard takes no operation now, or NONE. With `passes_limit` it takes one however
        long the line of waiting results is.
        """
        if self.state is not ShardState.ACTIVE:
            return _REFUSALS[self.state]
        if not self.is_led:
            return ErrorCode.NOT_COORDINATOR
        settings = self._settings
        if not passes_limit and (
            len(self._line) + len(self._unproven) >= settings.max_waiting_count
            or self._line_bytes >= settings.max_waiting_bytes
        ):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    def call(self, operation: Operation[StateT], *, passes_limit: bool = False) -> ErrorCode:
        """Carry out an operation; otherwise the `refusal`."""
        refusal = self.refusal(passes_limit=passes_limit)
        if refusal is ErrorCode.NONE:
            self._carry_out(operation(self.machine, self._now_ms()))
            self._drain()
        return refusal

    def complete_transaction(self, end: TransactionEnd, done: Callable[[ErrorCode], None]) -> None:
        """Append the marker of a transaction; `done` gets NONE when it is committed."""
        refusal = self.refusal()
        if refusal is not ErrorCode.NONE:
            done(refusal)
            return
        appended = self.partition.append_marker(end, self.leader_epoch)
        if appended.error is not ErrorCode.NONE:
            done(appended.error)
            return
        if appended.next_offset >= 0:
            with _Failing(self):
                self.machine.replay_end_marker(end.producer, is_commit=end.is_commit)
            self._end_offset = appended.next_offset

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            done(error)
            return CoordinatorResult()

        self._wait(after, 0)
        self._drain()

    # -- results ---------------------------------------------------------------------------------

    def _carry_out(self, result: CoordinatorResult, timer_key: Hashable = None) -> None:
        while True:
            error, size_bytes = self._append(
                result.records, result.producer, is_atomic=result.is_atomic
            )
            if error is ErrorCode.NONE or not result.is_atomic or result.holds_anyway:
                self._answer_at_once(result)
            if error is ErrorCode.NONE:
                break
            if result.after is None:
                return
            result = result.after(error, self._now_ms())
        if result.after is None:
            return
        if self.state is ShardState.ACTIVE:
            self._wait(result.after, size_bytes, timer_key)
        else:
            error = _REFUSALS[self.state]
            self._carry_out(result.after(error, self._now_ms()))

    def _write_proof(self) -> None:
        """One record for all that waits for a proof; what comes until it is committed waits for the
        next one, since a follower may have fetched this one before it became the leader.
        """
        proven, self._unproven = self._unproven, []
        self._is_proving = True

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            self._is_proving = False
            if self.state is not ShardState.ACTIVE:
                proven.extend(self._unproven)
                self._unproven.clear()
            elif self._unproven:
                self._write_proof()
            return CoordinatorResult(replies=[_decided(each, error) for each in proven])

        record = CoordinatorRecord(self._log.unused_key, None)
        self._carry_out(CoordinatorResult(records=[record], after=after))

    def _answer_at_once(self, result: CoordinatorResult) -> None:
        if self.state is ShardState.ACTIVE:
            self._change_timers(result.timers)
        if len(result.replies) == 1 and result.replies[0].on_error is None:
            reply = result.replies[0]
            reply.to.respond(reply.message)
        elif result.replies:
            self._unproven += [reply for reply in result.replies if reply.on_error is not None]
            self._send(reply for reply in result.replies if reply.on_error is None)
            if self._unproven and not self._is_proving:
                self._write_proof()
        for command in result.commands:
            self._execute(self.partition_index, command)

    def _append(
        self, records: list[CoordinatorRecord], producer: Producer | None, *, is_atomic: bool
    ) -> tuple[ErrorCode, int]:
        """Append and replay: all in one batch or nothing, or all that a batch can hold, in as many
        batches as that needs. Returns what has gone wrong, and the bytes that were appended.
        """
        total_bytes = 0
        parts = [records] if records else []
        while parts:
            if self.state is not ShardState.ACTIVE:
                return _REFUSALS[self.state], total_bytes
            part = parts.pop()
            batch = self._encode(part, producer)
            if not isinstance(batch, _Unwritable):
                appended = self.partition.append(batch, self.leader_epoch)
                if appended.error is not ErrorCode.NONE:
                    error = _WRITE_ERRORS.get(appended.error, ErrorCode.UNKNOWN_SERVER_ERROR)
                    return error, total_bytes
                total_bytes += len(batch)
                first_offset = appended.next_offset - len(part)
                with _Failing(self):
                    for number, record in enumerate(part):
                        self.machine.replay(record, first_offset + number, producer)
                self._end_offset = appended.next_offset
            elif is_atomic:
                logger.warning("%s: %d records, %s", self.name, len(part), batch.reason)
                return batch.error, 0
            elif len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                self._left_out.value += 1
                logger.warning(
                    "%s: a record of %.200r is left out: %s", self.name, part[0].key, batch.reason
                )
        return ErrorCode.NONE, total_bytes

    def _encode(
        self, records: list[CoordinatorRecord], producer: Producer | None
    ) -> bytearray | _Unwritable:
        """One batch of the records; in a transaction if a producer is named, without sequence
        numbers: the coordinator writes it, not the producer.
        """
        log, codec, now_ms = self._log, self._settings.codec, self._ports.clock.now_ms()
        try:
            rows = [
                record.row
                or Record(
                    0,
                    now_ms,
                    log.encode_key(record.key),
                    None
                    if record.value is None
                    else log.encode_value(record.value, record.value_version),
                )
                for record in records
            ]
            producer_id, producer_epoch = producer or NO_PRODUCER
            batch = encode_batch(
                rows,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_transactional=producer is not None,
            )
        except LocalProtocolError as problem:
            return _Unwritable(ErrorCode.UNKNOWN_SERVER_ERROR, f"cannot be encoded: {problem}")
        if len(batch) > self.partition.max_batch_bytes:
            reason = (
                f"{len(batch)} bytes, do not fit into a batch of {self.partition.max_batch_bytes}"
                " (max.message.bytes)"
            )
            return _Unwritable(ErrorCode.MESSAGE_TOO_LARGE, reason)
        return batch

    def _send(self, replies: Iterable[Reply]) -> None:
        with ExitStack() as calls:
            for reply in reversed(list(replies)):
                calls.callback(reply.to.respond, reply.message)

    # -- timers ----------------------------------------------------------------------------------

    def _change_timers(self, changes: Iterable[SetTimer | CancelTimer]) -> None:
        for change in changes:
            running = self._timers.pop(change.key, None)
            if running is not None:
                running.cancel()
            if isinstance(change, SetTimer):
                self._set_timer(change.key, change.delay_ms)

    def _set_timer(self, key: Hashable, delay_ms: float) -> None:
        due_ms = self._ports.clock.monotonic_ms() + delay_ms
        self._timers[key] = self._ports.timers.call_later(
            delay_ms, self._timer_ran_out, key, due_ms + LATE_TIMER_MS
        )

    def _timer_ran_out(self, key: Hashable, latest_ms: float) -> None:
        del self._timers[key]
        if self._ports.clock.monotonic_ms() > latest_ms:
            self._timers[key] = self._ports.timers.call_later(
                LATE_TIMER_MS, self._timer_ran_out, key, inf
            )
            return
        with self._once_more(key):
            self._carry_out(self.machine.on_timer(key, self._now_ms()), key)
        self._drain()

    @contextmanager
    def _once_more(self, timer_key: Hashable) -> Iterator[None]:
        """Set the timer again if its event raises, however late in its steps: otherwise the state
        machine's periodic work would end for good.
        """
        is_done = False
        try:
            yield
            is_done = True
        finally:
            is_lost = not is_done and timer_key is not None and timer_key not in self._timers
            if is_lost and self.state is ShardState.ACTIVE:
                self._set_timer(timer_key, FAILED_TIMER_MS)

    # -- waiting for commits ---------------------------------------------------------------------

    def _wait(self, after: After, size_bytes: int, timer_key: Hashable = None) -> None:
        timeout_ms = self._settings.write_timeout_ms
        deadline_ms = self._ports.clock.monotonic_ms() + timeout_ms
        assert not self._line or self._line[-1].required_offset <= self._end_offset
        self._line.append(_Waiting(self._end_offset, deadline_ms, after, size_bytes, timer_key))
        self._line_bytes += size_bytes

    def _drain(self) -> None:
        """Finish the results whose records are committed, in order, new ones included; after a
        slice of time the others go on in another turn of the loop.
        """
        if self._is_draining or self.state is not ShardState.ACTIVE:
            return
        self._is_draining = True
        clock = self._ports.clock
        end_ms = clock.monotonic_ms() + SLICE_MS
        try:
            while self.is_led:
                if clock.monotonic_ms() > end_ms:
                    self._drain_soon()
                    break
                if not self._line or self._line[0].required_offset > self.partition.high_watermark:
                    break
                self._end_wait(self._pop_first(), ErrorCode.NONE)
        finally:
            self._is_draining = False
            self._wait_for_first()

    def _pop_first(self) -> _Waiting:
        waiting = self._line.popleft()
        self._line_bytes -= waiting.size_bytes
        return waiting

    def _end_wait(self, waiting: _Waiting, error: ErrorCode) -> None:
        if waiting.timer_key is None:
            self._carry_out(waiting.after(error, self._now_ms()))
            return
        with self._once_more(waiting.timer_key):
            self._carry_out(waiting.after(error, self._now_ms()), waiting.timer_key)

    def _wait_for_first(self) -> None:
        """Ask to be called when the first in line is committed, or its time is up."""
        if not self._line or self.state is not ShardState.ACTIVE:
            return
        first = self._line[0]
        # Where it is not led any more, the unload is on its way; `wake` would be called at once
        # again and again until then.
        if self._woken_at != first.required_offset and self.is_led:
            self._woken_at = first.required_offset
            self.partition.wake_at(first.required_offset, self._woken)
        if self._deadline is None:
            delay_ms = first.deadline_ms - self._ports.clock.monotonic_ms()
            self._deadline = self._ports.timers.call_later(delay_ms, self._time_is_up)

    def _woken(self) -> None:
        """The high watermark has moved, or leadership is gone. The caller, which has moved it, has
        to end its own work first.
        """
        self._woken_at = -1
        self._drain_soon()

    def _drain_soon(self) -> None:
        if not self._is_drain_due:
            self._is_drain_due = True
            self._ports.soon(self._drain_later)

    def _drain_later(self) -> None:
        self._is_drain_due = False
        self._drain()

    def _time_is_up(self) -> None:
        self._deadline = None
        now_ms = self._ports.clock.monotonic_ms()
        try:
            while self._line and self._line[0].deadline_ms <= now_ms:
                self._end_wait(self._pop_first(), ErrorCode.REQUEST_TIMED_OUT)
        finally:
            self._drain()

    def _now_ms(self) -> float:
        return float(self._ports.clock.now_ms())
