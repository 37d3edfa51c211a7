"""Where requests wait for something to happen: enough bytes to fetch, enough replicas to commit.

Owns the set of waiting operations, their limit, their time limits, the link from a connection to
the operations of its requests, and their end at shutdown. Must not know what an operation waits for
(the modules `delayed_*` do): a change is reported to the operation itself, through the watch lists
of partitions. Invariants: an operation ends exactly once (completed, expired or dropped); after its
end nothing of it stays behind here; an operation is linked to its connection exactly while it
waits; a principal that fills the places takes none from others (`FairLine`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from moldau.server.fair_line import FairLine
from moldau.text import quoted

if TYPE_CHECKING:
    from moldau.runtime.timers import TimerWheel, WheelTimer
    from moldau.server.request import Connection, RequestContext

logger = logging.getLogger(__name__)

MAX_OPERATIONS: Final = 100_000
"""Operations that may wait in one purgatory; one more is answered at once, with what there is."""

MAX_WAIT_MS: Final = 3_600_000
"""The longest an operation waits, whatever its client asked for."""

STATE_KEY: Final = "waiting_operations"


class DelayedOperation:
    """A request that waits; subclasses say what happens when the time is up or its client goes.

    States: new, waiting (after `Purgatory.add`), ended (after `Purgatory.remove`).
    """

    __slots__ = ("is_ended", "principal", "timer")

    def __init__(self) -> None:
        self.is_ended = False
        self.principal = ""
        self.timer: WheelTimer | None = None

    def on_timeout(self) -> None:
        """The time is up: answer with what there is. The purgatory has let go of it already."""
        raise NotImplementedError

    def on_dropped(self) -> None:
        """The client has gone: give up what is held."""
        raise NotImplementedError


class Purgatory:
    """Holds waiting operations of one kind; `name` is as in Kafka's DelayedOperationPurgatory."""

    def __init__(self, name: str, timers: TimerWheel, max_operations: int = MAX_OPERATIONS) -> None:
        self.name = name
        self.expired_count = 0
        self._timers = timers
        self._line: FairLine[DelayedOperation] = FairLine(max_operations)
        self._is_closed = False

    def size(self) -> float:
        return float(len(self._line))

    def add(
        self, operation: DelayedOperation, timeout_ms: float | None, principal: str = ""
    ) -> bool:
        """Let an operation wait for at most `timeout_ms`, if that is not None; False when the
        purgatory is closed or the principal has its share of a full one: the caller ends the
        operation now. What a principal has beyond its share makes room for others, and ends as if
        its time were up.
        """
        assert not operation.is_ended
        if self._is_closed:
            return False
        left_out = self._line.put(operation, principal)
        if left_out is not None:
            other, greediest = left_out
            logger.warning(
                "%s: %d requests wait, further ones of %s are answered at once",
                self.name,
                len(self._line),
                quoted(greediest),
            )
            if other is operation:
                return False
            self._expire(other)
        operation.principal = principal
        if timeout_ms is not None:
            operation.timer = self._timers.call_later(
                min(timeout_ms, MAX_WAIT_MS), self._expire, operation
            )
        return True

    def add_request(
        self, operation: DelayedOperation, context: RequestContext, timeout_ms: float | None
    ) -> bool:
        """As `add`; the operation is dropped as soon as the request's connection is lost.

        The request's frame is given back: the operation must have taken what it needs of it.
        """
        if context.request.is_connection_lost or not self.add(
            operation, timeout_ms, context.principal
        ):
            return False
        context.request.release_body()
        connection = context.request.connection
        waiting = connection.state.get(STATE_KEY)
        if waiting is None:
            waiting = connection.state[STATE_KEY] = {}
            connection.on_close(_drop_all)
        waiting[operation] = self
        return True

    def remove(self, operation: DelayedOperation) -> None:
        """An operation has what it waited for (or never waited); idempotent."""
        operation.is_ended = True
        self._line.remove(operation, operation.principal)
        if operation.timer is not None:
            operation.timer.cancel()
            operation.timer = None

    def remove_request(self, operation: DelayedOperation, context: RequestContext) -> None:
        """As `remove`; the connection forgets the operation."""
        self.remove(operation)
        waiting = context.request.connection.state.get(STATE_KEY)
        if waiting is not None:
            waiting.pop(operation, None)

    def take(self) -> DelayedOperation | None:
        """End the wait of the next operation, principals in turn; None if none waits."""
        operation = self._line.take()
        if operation is not None:
            self.remove(operation)
        return operation

    def drop(self, operation: DelayedOperation) -> None:
        """The client has gone: end an operation without an answer; idempotent."""
        if not operation.is_ended:
            self.remove(operation)
            operation.on_dropped()

    def close(self) -> None:
        """End every operation as if its time were up, and take no more (shutdown)."""
        self._is_closed = True
        for operation in self._line.items():
            if not operation.is_ended:
                self.remove(operation)
                operation.on_timeout()

    def _expire(self, operation: DelayedOperation) -> None:
        self.remove(operation)
        self.expired_count += 1
        operation.on_timeout()


def _drop_all(connection: Connection) -> None:
    waiting: dict[DelayedOperation, Purgatory] = connection.state.pop(STATE_KEY, {})
    for operation, purgatory in waiting.items():
        purgatory.drop(operation)
