"""The driver of the controller core: appends, waits for commits, answers, writes snapshots.

Owns: the requests that wait for their commit, their deadlines, the timer of broker sessions, the
line of work on the controller's state (`Turns`), and when a snapshot is due (`SnapshotPolicy`,
`metadata.log.max.*`). Runs on the log's event loop only. One request is decided, appended and
applied before the next one begins; a large one gives way to other work of the loop in between,
while all other work on the controller's state waits in line.

A big change comes from the core in steps. Each step is appended as its own batch, and the loop
gives way in between; the response waits for the commit of the last. When this node is deposed, or
the log refuses a step, the steps end: what was appended stands, is consistent by itself, and the
sender's answer says that the outcome is unsure.

Must not: decide anything about metadata (the core does) or touch files (the log does).
Invariant: a response leaves only when everything its request saw is committed; a request whose
commit becomes unsure fails with NOT_CONTROLLER or REQUEST_TIMED_OUT: the change may or may not
happen.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, Protocol

from moldau.controller.core.controller_core import ControllerCore, Decider, Role
from moldau.controller.core.result import (
    Asked,
    ControllerResult,
    TakesPermits,
    VersionedRecord,
    unlimited,
)
from moldau.metadata.image import MetadataImage
from moldau.metadata.log import CommittedBatch, LoadedSnapshot, MetadataLogListener
from moldau.metadata.steps import Steps, at_once
from moldau.protocol.errors import ErrorCode
from moldau.protocol.metadata_records import BrokerRegistrationChangeRecord
from moldau.protocol.schema import AnyRequest, Message
from moldau.runtime.clock import Clock, TimerHandle


class MetadataLog(Protocol):
    """A log of metadata records, written by one leader at a time."""

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""

    @property
    def voter_ids(self) -> Sequence[int]:
        """The nodes that may lead the log: all of them have to support what is finalized."""

    def append(
        self,
        records: Sequence[tuple[Message, int]],
        *,
        leader_epoch: int,
        values: Sequence[bytes] | None = None,
    ) -> tuple[ErrorCode, int]:
        """Append records as one batch, to be committed later or never. `values` are the records
        encoded, if that was done before.

        Returns NONE and the offset of the last record; NOT_CONTROLLER when this node does not lead
        in `leader_epoch`; KAFKA_STORAGE_ERROR when the disk refuses it. The log is then as before.
        """

    def step_down(self) -> None:
        """Stop leading, in favour of any other voter; for a leader that cannot do its work."""

    def add_listener(self, listener: MetadataLogListener) -> object:
        """Deliver everything there is, then everything that comes."""

    def write_snapshot(
        self,
        *,
        end_offset: int,
        leader_epoch: int,
        last_contained_log_time_ms: int,
        records: Iterator[tuple[Message, int]],
    ) -> Awaitable[None]:
        """Write a snapshot that stands for everything below `end_offset`, then trim the log.

        Raises OSError: it could not be written; nothing changed.
        """


RETRY_AFTER_MS: Final = 60_000.0


class SnapshotPolicy:
    """When to write a metadata snapshot: after `metadata.log.max.record.bytes.between.snapshots` of
    committed bytes, or `metadata.log.max.snapshot.interval.ms`. Times are monotonic milliseconds.
    Invariant: a log without new records asks for no snapshot.
    """

    def __init__(self, *, max_bytes: int, interval_ms: int) -> None:
        """`interval_ms` 0 means never because of time."""
        self._max_bytes = max_bytes
        self._interval_ms = interval_ms
        self._bytes_since = 0
        self._records_since = False
        self._last_ms = 0.0
        self._not_before_ms = 0.0

    def start(self, now_ms: float) -> None:
        self._last_ms = now_ms

    def on_committed(self, size_bytes: int, *, has_records: bool) -> None:
        self._bytes_since += size_bytes
        self._records_since |= has_records

    def reason(self, now_ms: float) -> str | None:
        """Why a snapshot is due now, None when it is not."""
        if not self._records_since or now_ms < self._not_before_ms:
            return None
        if self._bytes_since >= self._max_bytes:
            return f"{self._bytes_since} bytes were committed since the last one"
        if self._interval_ms and now_ms - self._last_ms >= self._interval_ms:
            return f"the last one is {int(now_ms - self._last_ms)} ms old"
        return None

    def begin(self, now_ms: float) -> None:
        """A snapshot is being written: later batches count for the next one."""
        self._bytes_since = 0
        self._records_since = False
        self._last_ms = now_ms

    def failed(self) -> None:
        """The snapshot was not written: ask again later, as a full disk does not heal at once."""
        self._records_since = True
        self._bytes_since = self._max_bytes
        self._not_before_ms = self._last_ms + RETRY_AFTER_MS

    def next_check_ms(self, now_ms: float) -> float | None:
        """How many milliseconds from now to look again because of time."""
        if not self._interval_ms:
            return None
        return max(self._last_ms + self._interval_ms - now_ms, 1_000.0)


SLICE_MS: Final = 5.0
"""How long the pieces may hold the loop at a time. Other work on the state waits for them: slices
are longer than those of work that nothing waits for.
"""


class Turns:
    """Work on the controller's state: one piece after the other, each cut into slices.

    States: idle, or a piece is under way and a timer or `take` itself carries it on. Invariant: a
    piece begins when every earlier one has ended, so that nothing changes under it; the loop is
    held for one slice and one step of a piece at most. A small piece is done before `take` returns,
    if no other is under way.
    """

    def __init__(self, clock: Clock, slice_ms: float = SLICE_MS) -> None:
        self._clock = clock
        self._slice_ms = slice_ms
        self._line: deque[Steps[None]] = deque()
        self._current: Steps[None] | None = None
        self._is_running = False
        self._timer: TimerHandle | None = None

    def take(self, steps: Steps[None]) -> None:
        self._line.append(steps)
        if not self._is_running and self._timer is None:
            self._run()

    def clear(self) -> None:
        """Call off what is under way and what waits; harmless from inside a piece."""
        line, self._line = self._line, deque()
        self._current = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for steps in line:
            steps.close()

    def _run(self) -> None:
        self._timer = None
        self._is_running = True
        slice_end_ms = self._clock.monotonic_ms() + self._slice_ms
        try:
            while self._line:
                steps = self._current = self._line.popleft()
                for _ in steps:
                    if self._current is not steps:
                        steps.close()  # it has called itself off
                        break
                    if self._clock.monotonic_ms() >= slice_end_ms:
                        self._line.appendleft(steps)
                        return
                if self._clock.monotonic_ms() >= slice_end_ms:
                    return
        finally:
            self._is_running = False
            self._current = None
            # A piece that has failed does not keep the others waiting.
            if self._line and self._timer is None:
                self._timer = self._clock.call_later(0.0, self._run)


logger = logging.getLogger(__name__)

MAX_WAITING_REQUESTS: Final = 1_000
MIN_SESSION_CHECK_MS: Final = 10.0
MORE_TOKENS_AFTER_MS: Final = 100.0
"""The pause between two batches of expired delegation tokens."""
FIRST_RETRY_MS: Final = 1_000.0
MAX_RETRY_MS: Final = 10_000.0
LATE_SESSION_CHECK_MS: Final = 1_000.0
"""A check that is later than this waits once more for so long: the node has stood still, and the
heartbeats that arrived in that time are to be read first.
"""


class OwnWork:
    """When the controller tries again what it does without a request, after the log refused it.

    Invariant: the pause doubles from `FIRST_RETRY_MS` to `MAX_RETRY_MS` while the log refuses one
    change after the other; each change of state is logged once. Times are monotonic milliseconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._not_before_ms = 0.0
        self._pause_ms = 0.0

    def delay_ms(self, delay_ms: float) -> float:
        """How long to wait with work that is due in `delay_ms`."""
        return max(delay_ms, self._not_before_ms - self._clock.monotonic_ms())

    def refused(self, what: str, error: ErrorCode) -> None:
        """The log did not take a change."""
        if not self._pause_ms:
            logger.error("the metadata log did not take %s: %s", what, error.name)
        self._pause_ms = min(max(2 * self._pause_ms, FIRST_RETRY_MS), MAX_RETRY_MS)
        self._not_before_ms = self._clock.monotonic_ms() + self._pause_ms

    def accepted(self) -> None:
        """The log took a change, be it a request's."""
        if self._pause_ms:
            logger.info("the metadata log takes changes again")
            self.reset()

    def reset(self) -> None:
        """Begin without a pause: this node becomes active."""
        self._not_before_ms = self._pause_ms = 0.0


class RequestFailed(Exception):
    """The request as a whole got no answer; `error` says what to tell the sender."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request; once it is decided, `last_offset` must be committed before it is answered.

    `next_step` is the timer of its latest step after the first, if it has more than one.
    """

    answer: asyncio.Future[Message]
    last_offset: int = -1
    response: Message | None = None
    timer: TimerHandle | None = None
    next_step: TimerHandle | None = None
    done: bool = False

    def ends(self) -> bool:
        """Whether this is the first end of the request, and its sender still waits."""
        if self.timer is not None:
            self.timer.cancel()
        was_done, self.done = self.done, True
        return not was_done and not self.answer.done()


class Controller:
    """One controller node: standby until the log says that this node leads."""

    def __init__(
        self,
        core: ControllerCore,
        log: MetadataLog,
        clock: Clock,
        *,
        node_id: int,
        bootstrap_records: Sequence[VersionedRecord],
        snapshot_policy: SnapshotPolicy,
        slice_ms: float = SLICE_MS,
        token_check_interval_ms: float | None = None,
    ) -> None:
        """`token_check_interval_ms` is how often expired delegation tokens are looked for; None
        where there are none.
        """
        self._token_check_interval_ms = token_check_interval_ms
        self._token_timer: TimerHandle | None = None
        self._core = core
        self._log = log
        self._clock = clock
        self._node_id = node_id
        self._bootstrap_records = bootstrap_records
        self._snapshots = snapshot_policy
        self._turns = Turns(clock, slice_ms)
        self._own_work = OwnWork(clock)
        self._waiting: deque[_Waiting] = deque()
        self._undecided: dict[_Waiting, None] = {}  # in the order they came
        self._committed_offset = -1
        self._last_appended_offset = -1
        self._session_timer: TimerHandle | None = None
        self._sessions_latest_ms = 0.0
        self._task_timer: TimerHandle | None = None
        self._task_due_ms = 0.0
        self._snapshot_task: asyncio.Task[None] | None = None
        self._snapshot_timer: TimerHandle | None = None
        self._is_closed = False
        self.leader_id = -1
        self.active_since: asyncio.Event = asyncio.Event()

    def start(self) -> None:
        """Listen to the log: replay everything, and become active if this node leads."""
        self._snapshots.start(self._clock.monotonic_ms())
        self._log.add_listener(self)
        self._arm_snapshot_timer()

    @property
    def is_active(self) -> bool:
        return self._core.role is Role.ACTIVE

    @property
    def committed_image(self) -> MetadataImage:
        return self._core.committed_image

    @property
    def waiting_count(self) -> int:
        """How many requests wait for their decision, its next step or their commit."""
        return len(self._waiting) + len(self._undecided)

    def ask(
        self,
        request: AnyRequest,
        decide: Decider,
        *,
        timeout_ms: float,
        takes_permits: TakesPermits = unlimited,
        principal: str = "",
    ) -> asyncio.Future[Message]:
        """The response, once what the request did is committed; the request has its place in line
        when this returns. `takes_permits` is the quota of mutations of its sender, `principal`.

        Raises RequestFailed: not the active controller, too many requests wait, or no commit in
        time.
        """
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        if not self.is_active or self._is_closed:
            waiting.answer.set_exception(_not_controller(self.leader_id))
        elif self.waiting_count >= MAX_WAITING_REQUESTS:
            words = f"{MAX_WAITING_REQUESTS} requests wait for their commit already"
            waiting.answer.set_exception(RequestFailed(ErrorCode.REQUEST_TIMED_OUT, words))
        else:
            self._undecided[waiting] = None
            asked = partial(self._asked, principal, takes_permits)
            self._turns.take(self._decide(request, decide, asked, waiting))
            if not waiting.done:
                delay_ms = max(timeout_ms, 0.0)
                waiting.timer = self._clock.call_later(delay_ms, self._time_out, waiting)
        return waiting.answer

    def _decide(
        self,
        request: AnyRequest,
        decide: Decider,
        asked: Callable[[], Asked],
        waiting: _Waiting,
    ) -> Steps[None]:
        if waiting.done:  # its time was over before its turn came
            self._undecided.pop(waiting, None)
            return
        self._core.state.voter_ids = frozenset(self._log.voter_ids)
        result = yield from self._core.handle(request, decide, asked())
        yield from self._take_over(request, result, waiting)

    def _asked(self, principal: str = "", takes_permits: TakesPermits = unlimited) -> Asked:
        clock, log_end_offset = self._clock, self._log.log_end_offset
        return Asked(log_end_offset, clock.monotonic_ms(), clock.now_ms(), principal, takes_permits)

    def _take_over(
        self, request: AnyRequest, result: ControllerResult[Message], waiting: _Waiting
    ) -> Steps[None]:
        """Append what was decided; then the next step, the commit, or the answer at once."""
        if result.records:
            error = yield from self._append(result.records, may_wait=result.may_wait)
            if error is not ErrorCode.NONE:
                self._undecided.pop(waiting, None)
                self._core.abandon(request)
                self._arm_task_timer()
                self._fail(waiting, error, "the metadata log did not take the change")
                return
        if result.resume is not None:
            waiting.next_step = self._clock.call_later(
                0.0, self._turns.take, self._step(request, result, waiting)
            )
            return
        self._undecided.pop(waiting, None)
        waiting.last_offset = self._last_appended_offset
        waiting.response = result.response
        if self._last_appended_offset <= self._committed_offset:
            self._answer(waiting)
        else:
            self._waiting.append(waiting)

    def _step(
        self, request: AnyRequest, result: ControllerResult[Message], waiting: _Waiting
    ) -> Steps[None]:
        """The next step of a big change; also when its sender does not wait any more."""
        following = self._core.resume(request, result, self._asked())
        yield from self._take_over(request, following, waiting)

    def _append(
        self, records: Sequence[VersionedRecord], *, may_wait: bool = False
    ) -> Steps[ErrorCode]:
        """Append one batch and apply it.

        Args:
            may_wait: whether the log's end may move on between the decision and the append.
        """
        preparing = self._core.prepare(records)
        change = (yield from preparing) if may_wait else at_once(preparing)
        error, last_offset = self._log.append(
            records, leader_epoch=self._core.leader_epoch, values=change.values
        )
        if error is ErrorCode.NONE:
            self._last_appended_offset = last_offset
            self._own_work.accepted()
            yield from self._core.on_appended(change, last_offset, self._clock.now_ms())
            self._arm_session_timer()
            self._arm_task_timer()
        return error

    def _time_out(self, waiting: _Waiting) -> None:
        self._fail(waiting, ErrorCode.REQUEST_TIMED_OUT, "no commit in time; it may still happen")

    @staticmethod
    def _fail(waiting: _Waiting, error: ErrorCode, message: str) -> None:
        if waiting.ends():
            waiting.answer.set_exception(RequestFailed(error, message))

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        self._core.load_snapshot(snapshot.records, snapshot.provenance)
        self._committed_offset = self._last_appended_offset = snapshot.end_offset - 1

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Apply a batch, and answer the requests whose outcome it commits."""
        self._core.on_committed(batch.records, batch.provenance)
        self._committed_offset = batch.last_offset
        self._last_appended_offset = max(self._last_appended_offset, batch.last_offset)
        waiting = self._waiting
        while waiting and waiting[0].last_offset <= batch.last_offset:
            self._answer(waiting.popleft())
        self._snapshots.on_committed(batch.size_bytes, has_records=bool(batch.records))
        self._maybe_snapshot()

    @staticmethod
    def _answer(waiting: _Waiting) -> None:
        if waiting.ends():
            assert waiting.response is not None, "decided"
            waiting.answer.set_result(waiting.response)

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        if self.is_active:
            self._turns.clear()
            self._core.deactivate()
            self._arm_task_timer()
            self.active_since.clear()
            self._fail_waiting(_not_controller(leader_id))
        self.leader_id = leader_id
        if leader_id != self._node_id:
            return
        self._last_appended_offset = self._log.log_end_offset - 1
        records = self._core.activate(
            leader_epoch, self._bootstrap_records, monotonic_ms=self._clock.monotonic_ms()
        )
        self._own_work.reset()
        logger.info("active controller in epoch %d", leader_epoch)
        if records:
            error = at_once(self._append(records))
            if error is not ErrorCode.NONE:
                logger.error("the metadata log did not take the first records: %s", error.name)
                self._core.deactivate()
                self._log.step_down()
                return
        self.active_since.set()
        self._arm_session_timer()
        self._arm_task_timer()
        self._arm_token_timer(self._token_check_interval_ms)

    def _fail_waiting(self, failure: RequestFailed) -> None:
        waiting, self._waiting = [*self._undecided, *self._waiting], deque()
        self._undecided = {}
        for each in waiting:
            if each.next_step is not None:
                each.next_step.cancel()
            self._fail(each, failure.error, failure.message)

    def _arm_session_timer(self) -> None:
        if self._session_timer is not None or not self.is_active or self._is_closed:
            return
        expiry_ms = self._core.next_session_expiry_ms()
        if expiry_ms is not None:
            now_ms = self._clock.monotonic_ms()
            delay_ms = self._own_work.delay_ms(max(expiry_ms - now_ms, MIN_SESSION_CHECK_MS))
            self._sessions_latest_ms = now_ms + delay_ms + LATE_SESSION_CHECK_MS
            self._session_timer = self._clock.call_later(delay_ms, self._check_sessions)

    def _check_sessions(self) -> None:
        self._session_timer = None
        if not self.is_active or self._is_closed:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms > self._sessions_latest_ms:
            self._sessions_latest_ms = inf
            self._session_timer = self._clock.call_later(
                LATE_SESSION_CHECK_MS, self._check_sessions
            )
            return
        self._turns.take(self._fence_expired())

    def _fence_expired(self) -> Steps[None]:
        records = self._core.fence_expired(self._clock.monotonic_ms())
        if records:
            last = records[-1][0]
            is_taken = yield from self._append_own(records, "a fencing")
            if is_taken and isinstance(last, BrokerRegistrationChangeRecord):
                logger.warning("fencing broker %d, which fell silent", last.broker_id)
        self._arm_session_timer()
        self._arm_task_timer()

    def _arm_task_timer(self) -> None:
        """Wake up for the next periodic task; one that became due earlier moves the timer."""
        due_ms = self._core.next_task_ms()
        if self._task_timer is not None:
            if due_ms == self._task_due_ms:
                return
            self._task_timer.cancel()
            self._task_timer = None
        if due_ms is not None and self.is_active and not self._is_closed:
            self._task_due_ms = due_ms
            delay_ms = self._own_work.delay_ms(max(due_ms - self._clock.monotonic_ms(), 0.0))
            self._task_timer = self._clock.call_later(delay_ms, self._run_task)

    def _run_task(self) -> None:
        self._task_timer = None
        if self.is_active and not self._is_closed:
            self._turns.take(self._run_due_task())

    def _run_due_task(self) -> Steps[None]:
        records = self._core.run_due_task(self._clock.monotonic_ms())
        if records:
            if (yield from self._append_own(records, "its own elections")):
                logger.info("elections of the controller's own: %d partitions", len(records))
            else:
                self._core.task_refused()
        self._arm_task_timer()

    def _arm_token_timer(self, delay_ms: float | None) -> None:
        if delay_ms is None or self._token_timer is not None or self._is_closed:
            return
        delay_ms = self._own_work.delay_ms(delay_ms)
        self._token_timer = self._clock.call_later(delay_ms, self._check_tokens)

    def _check_tokens(self) -> None:
        self._token_timer = None
        if self.is_active and not self._is_closed:
            self._turns.take(self._remove_expired_tokens())

    def _remove_expired_tokens(self) -> Steps[None]:
        records = self._core.expired_tokens(self._clock.now_ms())
        if records and (yield from self._append_own(records, "the end of delegation tokens")):
            logger.info("%d delegation tokens have expired", len(records))
        # There may be more than one batch of them.
        self._arm_token_timer(MORE_TOKENS_AFTER_MS if records else self._token_check_interval_ms)

    def _append_own(self, records: Sequence[VersionedRecord], what: str) -> Steps[bool]:
        """Append what no request asked for. Returns whether the log took it."""
        error = yield from self._append(records)
        if error is not ErrorCode.NONE:
            self._own_work.refused(what, error)
        return error is ErrorCode.NONE

    def _arm_snapshot_timer(self) -> None:
        delay_ms = self._snapshots.next_check_ms(self._clock.monotonic_ms())
        if delay_ms is not None and not self._is_closed:
            self._snapshot_timer = self._clock.call_later(delay_ms, self._on_snapshot_timer)

    def _on_snapshot_timer(self) -> None:
        self._maybe_snapshot()
        self._arm_snapshot_timer()

    def _maybe_snapshot(self) -> None:
        if self._snapshot_task is not None or self._is_closed or not self._core.may_snapshot:
            return
        reason = self._snapshots.reason(self._clock.monotonic_ms())
        if reason is None:
            return
        self._snapshots.begin(self._clock.monotonic_ms())
        logger.info("writing a metadata snapshot: %s", reason)
        self._snapshot_task = asyncio.get_running_loop().create_task(
            self._write_snapshot(self._core.committed_image), name="metadata-snapshot"
        )

    async def _write_snapshot(self, image: MetadataImage) -> None:
        provenance = image.provenance
        try:
            await self._log.write_snapshot(
                end_offset=provenance.last_contained_offset + 1,
                leader_epoch=provenance.last_contained_epoch,
                last_contained_log_time_ms=provenance.last_contained_log_time_ms,
                records=image.write(),
            )
        except OSError as error:
            logger.error("no metadata snapshot could be written: %s", error)
            self._snapshots.failed()
        finally:
            self._snapshot_task = None

    async def close(self) -> None:
        """Fail all requests; wait for a snapshot that is being written."""
        self._is_closed = True
        self._turns.clear()
        self.active_since.clear()
        timers = (self._session_timer, self._task_timer, self._token_timer, self._snapshot_timer)
        for timer in timers:
            if timer is not None:
                timer.cancel()
        self._fail_waiting(_not_controller(-1))
        if self._snapshot_task is not None:
            await asyncio.wait([self._snapshot_task])


def _not_controller(leader_id: int) -> RequestFailed:
    where = f"node {leader_id} is" if leader_id >= 0 else "no other is known to be"
    return RequestFailed(ErrorCode.NOT_CONTROLLER, f"this is not the active controller, {where}")
