"""Committed metadata on its way from the quorum's loop to another one.

Owns: the queue between both loops. Must not: know what the consumer does. Invariant: nothing
crosses without a bound: a relay holds at most its own limit of batches before it asks the log for a
pause.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final, Protocol

from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.raft import Subscription

MAX_RELAYED_BATCHES: Final = 1_000
MAX_RELAYED_BYTES: Final = 64 * 1024 * 1024
BATCHES_PER_VISIT: Final = 64


class MetadataConsumer(Protocol):
    """Told of metadata on its own loop."""

    def on_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Replace everything by the snapshot's content."""

    def on_commit(self, batch: CommittedBatch) -> None:
        """Apply one committed batch; a control batch has no records."""


class MetadataRelay:
    """A log listener that hands everything to a consumer on another loop, in order."""

    def __init__(
        self,
        consumer: MetadataConsumer,
        consumer_loop: asyncio.AbstractEventLoop,
        log_loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._consumer = consumer
        self._consumer_loop = consumer_loop
        self._log_loop = log_loop
        self._queue: deque[CommittedBatch | LoadedSnapshot] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._is_scheduled = False
        self._is_paused = False
        self._is_closed = False
        self.subscription: Subscription | None = None

    # -- on the log's loop -----------------------------------------------------------------------

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Queue a snapshot; what was queued before it is void."""
        with self._lock:
            self._queue.clear()
            self._queued_bytes = 0
        self._put(snapshot)

    def handle_commit(self, batch: CommittedBatch) -> None:
        self._put(batch)

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """Ignored: metadata does not depend on the leader that wrote it."""

    def _put(self, item: CommittedBatch | LoadedSnapshot) -> None:
        with self._lock:
            self._queue.append(item)
            self._queued_bytes += item.size_bytes
            is_full = (
                len(self._queue) >= MAX_RELAYED_BATCHES or self._queued_bytes >= MAX_RELAYED_BYTES
            )
            if is_full and not self._is_paused and self.subscription is not None:
                self._is_paused = True
                self.subscription.pause()
            must_schedule = not self._is_scheduled
            self._is_scheduled = True
        if must_schedule and not self._consumer_loop.is_closed():
            self._consumer_loop.call_soon_threadsafe(self._drain)

    # -- on the consumer's loop ------------------------------------------------------------------

    def _drain(self) -> None:
        for _ in range(BATCHES_PER_VISIT):
            with self._lock:
                if not self._queue or self._is_closed:
                    self._is_scheduled = False
                    resume, self._is_paused = self._is_paused, False
                    break
                item = self._queue.popleft()
                self._queued_bytes -= item.size_bytes
            is_taken = False
            try:
                if isinstance(item, LoadedSnapshot):
                    self._consumer.on_snapshot(item)
                else:
                    self._consumer.on_commit(item)
                is_taken = True
            finally:
                if not is_taken:
                    # The loop is told of the exception; what comes after it is delivered still.
                    self._consumer_loop.call_soon(self._drain)
        else:
            self._consumer_loop.call_soon(self._drain)
            return
        if resume and self.subscription is not None and not self._log_loop.is_closed():
            self._log_loop.call_soon_threadsafe(self.subscription.resume)

    def close(self) -> None:
        """Hand over nothing any more; on the consumer's loop."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()
