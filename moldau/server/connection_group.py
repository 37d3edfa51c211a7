"""All connections of one server: how many may be there, whose turn it is, what their frames take.

Owns what connections share on their loop; ends idle (`connections.max.idle.ms`) and slow ones. Must
not: know any API, or wait. Invariant: whatever one peer sends, only its own connection suffers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Protocol

from moldau.protocol.framing import ReceiveMemory
from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.network import set_socket_options
from moldau.runtime.slices import Work
from moldau.runtime.timers import TimerWheel
from moldau.server.audit_log import AuthenticationLog, SharesLog
from moldau.server.connection_limits import ConnectionPlaces, ServerLimits
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.server.memory_shares import Budget, MemoryShares, Share
from moldau.server.outgoing import Offload
from moldau.server.quotas.core.connection_rates import ConnectionRates
from moldau.server.request import Connection, Request, RequestMetrics
from moldau.server.turns import Turns
from moldau.text import short_name

SWEEP_INTERVAL_MS: Final = 1000.0
"""How often idle and slow connections are looked for."""

LATE_SWEEP_MS: Final = 200.0
"""A sweep that comes so late shows that the loop has not read from its sockets as it should."""

MAX_LAG_MS: Final = 5_000.0
"""A peer whose frame, or whose reading of answers, is so far behind its time is closed while others
wait for memory."""

CREATION_LIMIT: Final = "the limit on new connections per second"

_LOG = logging.getLogger(__name__)


def _settle(turn: asyncio.Future[bool], is_taken: bool) -> None:
    if not turn.done():
        turn.set_result(is_taken)


class GroupMember(Connection, Protocol):
    """A connection as its group sees it."""

    connection_id: str
    last_active_ms: float
    opened_ms: float
    share: Share
    transport: asyncio.Transport

    @property
    def in_flight_count(self) -> int: ...

    @property
    def is_idle(self) -> bool: ...

    @property
    def lag_ms(self) -> float: ...

    def flush(self) -> None: ...

    def stop_reading(self) -> None: ...

    def swept(self, elapsed_ms: float) -> None: ...


class ConnectionGroup:
    """The connections of one server, and what they share on its loop: limits, the memory their
    frames may take, the flushes and turns that are due, and the sweep for idle connections.
    """

    def __init__(
        self,
        handler: Callable[[Request], None],
        clock: Clock,
        limits: ServerLimits,
        *,
        metrics: RequestMetrics | None,
        offload: Offload | None,
        memory: ReceiveMemory | None,
        watchdog: LoopWatchdog | None,
        rates: ConnectionRates | None = None,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.rates = rates or ConnectionRates()
        limits.apply_to(self.rates)
        self._refused: dict[GroupMember, TimerHandle] = {}
        self.clock = clock
        self.timers = TimerWheel(clock)
        self.offload = offload
        self.watchdog = watchdog
        self.memory = memory or ReceiveMemory()
        self.shares = MemoryShares()
        limits.apply_to_memory(self.shares)
        self.loop: asyncio.AbstractEventLoop
        self.is_open = False
        """Whether there is a listener that connections may come from."""
        self.bytes_received = 0
        self.bytes_sent = 0
        self.created_count = 0
        self.rejected_count = 0
        self._metrics = metrics
        self._connections: dict[GroupMember, None] = {}  # in the order they came
        self._places = ConnectionPlaces()
        self.connection_numbers = count(1)
        self._flush_queue: list[GroupMember] = []
        self.turns = Turns(clock, lambda callback: self.loop.call_soon(callback))
        self._waking = False
        self._swept_ms = 0.0
        self._sweep_timer: TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None
        self.authentication_log = AuthenticationLog(clock, limits.audit_log_max_lines)
        self._shares_log = SharesLog(clock, limits.audit_log_max_lines)
        self._work: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(tuple(self._connections))

    def update_limits(self, limits: ServerLimits) -> None:
        """Use other limits from now on; existing connections are left alone."""
        self.limits = limits
        limits.apply_to(self.rates)
        limits.apply_to_memory(self.shares)
        self.on_memory_released()

    async def close(self, graceful_ms: float) -> None:
        """Answer what was accepted for at most `graceful_ms`, then cut the rest."""
        for refused in tuple(self._refused):
            self._end_refused(refused)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._connections:
            self._all_closed = asyncio.Event()
            for connection in self:
                connection.begin_closing()
            try:
                async with asyncio.timeout(graceful_ms / 1000):
                    await self._all_closed.wait()
            except TimeoutError:
                for connection in self:
                    connection.close("the server is shutting down")
                await self._all_closed.wait()
        self.timers.close()
        self.authentication_log.close()
        self._shares_log.close()

    # -- for connections -------------------------------------------------------------------------

    def start_work(self, work: Work) -> None:
        """Run a request's further work; a failure goes to the loop's exception handler."""
        task = self.loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.loop.call_exception_handler(
                {"message": "a request failed", "exception": error, "task": task}
            )

    def begin_handshake(self, listener_name: str, host: str) -> bool | asyncio.Future[bool]:
        """Count a TLS handshake in, or say that a limit forbids the connection behind it: when its
        turn is, or when it is to be ended, by the limits on new connections (KIP-612).
        """
        admission = self.rates.admit(listener_name, host, self.clock.monotonic_ms())
        if admission.is_taken:
            limit = self._places.reached_limit(
                self.limits, host, len(self._connections), with_handshakes=True
            )
            if limit is not None:
                return self._turn_away(listener_name, host, limit)
            self._places.handshakes[host] += 1
        else:
            self._turn_away(listener_name, host, CREATION_LIMIT)
        if not admission.wait_ms:
            return admission.is_taken
        turn = self.loop.create_future()
        self.timers.call_later(admission.wait_ms, _settle, turn, admission.is_taken)
        return turn

    def end_handshake(self, listener_name: str, host: str, problem: str | None) -> None:
        """Count it out, and log what went wrong with it."""
        self._places.leave(self._places.handshakes, host)
        if problem is not None:
            self.authentication_log.failed(listener_name, host, problem)

    def admit(self, connection: GroupMember, *, is_counted: bool) -> bool:
        """Count a new connection in, or say that a limit forbids it.

        Args:
            is_counted: whether its TLS handshake has counted for the limits on new connections.
        """
        host = connection.client_host
        if not self.is_open:
            return False
        wait_ms = 0.0
        if self.rates.is_limited and not is_counted:
            admission = self.rates.admit(connection.listener_name, host, self.clock.monotonic_ms())
            wait_ms = admission.wait_ms
            if not admission.is_taken:
                return self._refuse(connection, wait_ms)
        limit = self._places.reached_limit(self.limits, host, len(self._connections))
        if limit is not None:
            return self._turn_away(connection.listener_name, host, limit)
        self._places.connections[host] += 1
        self._connections[connection] = None
        self.created_count += 1
        set_socket_options(connection.transport, self.limits.send_buffer_bytes)
        if wait_ms:
            # Not now: uvloop begins to read after `connection_made`, whatever that has paused.
            self.loop.call_soon(connection.throttle, wait_ms)
        return True

    def _refuse(self, connection: GroupMember, wait_ms: float) -> bool:
        """End a connection that came too soon after others, and not at once: its client would be
        back immediately (KIP-612). Returns whether it may stay until then.
        """
        self._turn_away(connection.listener_name, connection.client_host, CREATION_LIMIT)
        if wait_ms:
            self.loop.call_soon(connection.stop_reading)
            self._refused[connection] = self.timers.call_later(
                wait_ms, self._end_refused, connection
            )
        return bool(wait_ms)

    def _end_refused(self, connection: GroupMember) -> None:
        del self._refused[connection]
        connection.transport.abort()

    def _turn_away(self, listener_name: str, host: str, limit: str) -> bool:
        self.rejected_count += 1
        _LOG.warning(
            "connection from %s refused on listener %s: %s is reached", host, listener_name, limit
        )
        return False

    def forget(self, connection: GroupMember) -> None:
        refused = self._refused.pop(connection, None)
        if refused is not None:
            refused.cancel()
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._places.leave(self._places.connections, connection.client_host)
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def log_closing(self, connection: GroupMember, reason: str) -> None:
        """The one line about a connection we end."""
        _LOG.warning(
            "closing connection %s of listener %s (client %s): %s",
            connection.connection_id,
            connection.listener_name,
            connection.client_software_name,
            short_name(reason),
        )

    def schedule_flush(self, connection: GroupMember) -> None:
        """Flush the connection when the callbacks now running are through (joins responses)."""
        if not self._flush_queue:
            self.loop.call_soon(self._flush_all)
        self._flush_queue.append(connection)

    def flush_answered(self) -> None:
        """Send what is answered: it does not wait for a turn of others."""
        if self._flush_queue:
            self._flush_all()

    def _flush_all(self) -> None:
        queue, self._flush_queue = self._flush_queue, []
        position = 0
        try:
            for connection in queue:
                position += 1
                connection.flush()
        finally:
            # Should one fail unexpectedly, the others are still served.
            if position < len(queue):
                if not self._flush_queue:
                    self.loop.call_soon(self._flush_all)
                self._flush_queue.extend(queue[position:])

    def on_completed(self, request: Request, response_bytes: int, now_ms: float) -> None:
        self.bytes_sent += response_bytes
        metrics = self._metrics
        if metrics is not None:
            received = request.received_ms
            metrics.request_completed(
                request, response_bytes, request.handled_ms - received, now_ms - received
            )

    def wait_for_memory(self, connection: GroupMember) -> None:
        """Wake the connection when memory has been released."""
        share = connection.share
        if share.barred is not None:
            self._shares_log.took_too_much(share, "its further requests wait")
        self.shares.wait(share)
        # It may be free again: frames that came with the one that waits have been answered since.
        self.on_memory_released()

    def on_memory_released(self) -> None:
        if self.shares.waiting_count and not self._waking:
            self._waking = True
            self.loop.call_soon(self._serve_lines)

    def _serve_lines(self) -> None:
        self._waking = False
        shares = self.shares
        shares.free_next()
        if any([shares.serve_line(budget) for budget in shares if budget.waiting_count]):
            self.on_memory_released()

    # -- sweeping --------------------------------------------------------------------------------

    def start_sweeping(self) -> None:
        self._swept_ms = self.clock.monotonic_ms()
        self._sweep_timer = self.timers.call_later(SWEEP_INTERVAL_MS, self._sweep)

    def _sweep(self) -> None:
        now = self.clock.monotonic_ms()
        elapsed_ms = now - self._swept_ms
        if elapsed_ms > SWEEP_INTERVAL_MS + LATE_SWEEP_MS:
            elapsed_ms = 0.0
        self.start_sweeping()
        idle_ms = self.limits.connections_max_idle_ms
        for connection in self:
            silent_ms = now - connection.last_active_ms
            if 0 <= idle_ms < silent_ms and connection.is_idle:
                connection.close(f"idle for {silent_ms:.0f} ms")
            elif self._owes_authentication(connection, now):
                self.authentication_log.failed(
                    connection.listener_name, connection.client_host, "not authenticated in time"
                )
                connection.close("not authenticated in time")
            else:
                connection.swept(elapsed_ms)
        self._make_way()

    def _make_way(self) -> None:
        """Where connections wait for memory, or too many answers are not read, close the slow."""
        shares = self.shares
        shares.free_next()
        for budget in shares:
            if not budget.waiting_count and not budget.is_flooded:
                continue
            for share in tuple(budget.waiting()):
                if share.is_waiting:
                    share.owner.end_if_peer_is_lost()
            shares.serve_line(budget, len(budget.line))
            self._close_slow(budget)
            for stuck in budget.stuck():
                given_up = shares.free_a_frame(stuck)
                if given_up is not None:
                    self._close_for_others(given_up)
            budget.watch()
        self.on_memory_released()

    def _close_slow(self, budget: Budget) -> None:
        """Close those that are too slow, the slowest of those over their share first, until there
        is room for what waits.
        """
        slow = [
            (connection.share.is_over_share, lag_ms, connection.share)
            for connection in self
            if connection.share.budget is budget and (lag_ms := connection.lag_ms) > MAX_LAG_MS
        ]
        slow.sort(key=lambda each: each[:2], reverse=True)
        for share in budget.needed(share for _, _, share in slow):
            self._close_for_others(share)

    def _close_for_others(self, share: Share) -> None:
        self._shares_log.took_too_much(share, "a connection that makes no progress is closed")
        held_bytes = share.held_bytes + share.unread_bytes
        share.owner.close(f"it holds {held_bytes} bytes that others wait for")

    def _owes_authentication(self, connection: GroupMember, now_ms: float) -> bool:
        """Whether the client has not authenticated in time, the first time or again."""
        gate = connection.gate
        since_ms = None if gate is None else gate.waits_since_ms(connection.opened_ms)
        return since_ms is not None and now_ms - since_ms > self.limits.authentication_ms
