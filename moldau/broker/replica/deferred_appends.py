"""What an append of one partition may have to wait for off the loop: recompression or a look at
compressed keys before it, a flush after it.

Must not decide whether an append is allowed (`Partition.append` does, when its turn comes).
Invariants: appends reach the log in the order they came; a flush acknowledges only what was
appended before it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.protocol.errors import ErrorCode
from moldau.storage.append import AppendResult, RecordBatches

if TYPE_CHECKING:
    from moldau.broker.replica.verification_guards import VerificationGuard

MAX_QUEUED_APPENDS: Final = 1_000
"""Appends of one partition that wait for recompression; one more is refused."""

MAX_FLUSH_WAITS: Final = 10_000
"""Appends of one partition that wait for a flush; one more is not acknowledged."""

StartWork = Callable[[Coroutine[object, None, None]], None]


class _QueuedAppend(NamedTuple):
    batches: RecordBatches
    required_acks: int
    on_appended: Callable[[AppendResult], None]
    guard: VerificationGuard | None


@dataclass(slots=True, eq=False, repr=False)
class DeferredAppends:
    """The two queues of one partition.

    `append` prepares and appends a batch whose turn has come; `flush` makes durable what the log
    holds now, and returns False if that cannot be.
    """

    _start_work: StartWork
    _append: Callable[[RecordBatches, int, VerificationGuard | None], Awaitable[AppendResult]]
    _flush: Callable[[], Awaitable[bool]]
    _queue: deque[_QueuedAppend] = field(default_factory=deque)
    _flush_waits: list[Callable[[ErrorCode], None]] = field(default_factory=list)
    _is_flushing: bool = False

    @property
    def is_line_empty(self) -> bool:
        return not self._queue

    def enqueue(
        self,
        batches: RecordBatches,
        required_acks: int,
        on_appended: Callable[[AppendResult], None],
        *,
        guard: VerificationGuard | None = None,
    ) -> bool:
        """Append in turn, recompressed if the topic has its own codec.

        The batches' bytes must stay valid until `on_appended` is called with the outcome. Returns
        False when too many appends wait already; nothing happens then.
        """
        queue = self._queue
        if len(queue) >= MAX_QUEUED_APPENDS:
            return False
        queue.append(_QueuedAppend(batches, required_acks, on_appended, guard))
        if len(queue) == 1:
            self._start_work(self._append_in_turn())
        return True

    def wait_for_flush(self, on_flushed: Callable[[ErrorCode], None]) -> bool:
        """Call `on_flushed` once everything appended so far is on stable storage, or cannot be.

        Returns False when too many wait already; nothing happens then.
        """
        if len(self._flush_waits) >= MAX_FLUSH_WAITS:
            return False
        self._flush_waits.append(on_flushed)
        if not self._is_flushing:
            self._is_flushing = True
            self._start_work(self._flush_until_done())
        return True

    async def _append_in_turn(self) -> None:
        queue = self._queue
        queued = queue[0]
        # The answer when an unexpected exception comes: it must not block the queue.
        result = AppendResult(ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            result = await self._append(queued.batches, queued.required_acks, queued.guard)
        finally:
            # Only now: until here a newer append must find the queue occupied.
            queue.popleft()
            if queue:
                self._start_work(self._append_in_turn())
            queued.on_appended(result)

    async def _flush_until_done(self) -> None:
        try:
            while self._flush_waits:
                waits, self._flush_waits = self._flush_waits, []
                is_durable = False
                try:
                    is_durable = await self._flush()
                finally:
                    error = ErrorCode.NONE if is_durable else ErrorCode.KAFKA_STORAGE_ERROR
                    for on_flushed in waits:
                        on_flushed(error)
        finally:
            self._is_flushing = False
