"""A thread with an event loop of its own, for the quorum and the controller.

Owns: the thread's life, calls into it from other loops, and batches out of it to other loops. Must
not: know what runs there. Invariant: nothing crosses without a bound: at most MAX_CALLS calls are
under way, and a relay holds at most its own limit of batches before it asks the log for a pause.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.raft import Subscription

T = TypeVar("T")

MAX_CALLS: Final = 2_000
MAX_RELAYED_BATCHES: Final = 1_000
MAX_RELAYED_BYTES: Final = 64 * 1024 * 1024
BATCHES_PER_VISIT: Final = 64


class QuorumBusy(Exception):
    """MAX_CALLS calls are under way, or the thread is not running."""


class QuorumThread:
    """States: made -> `start` -> running -> `stop` -> ended."""

    def __init__(
        self,
        name: str = "moldau-quorum",
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self._name = name
        self._loop_factory = loop_factory
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's loop, once started."""
        assert self._loop is not None, "started"
        return self._loop

    def start(self) -> None:
        """Start the thread; its loop takes calls at once."""
        assert self._thread is None, "a thread starts once"
        loop = self._loop = self._loop_factory()
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name=self._name, daemon=True
        )
        self._thread.start()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread and wait for its result on the caller's loop.

        The coroutine always runs to its end, even when the caller is cancelled.

        Raises:
            QuorumBusy: too many calls, or not running.
        """
        loop = self._loop
        if loop is None or loop.is_closed() or self._calls >= MAX_CALLS:
            coroutine.close()
            raise QuorumBusy(f"{self._calls} calls are under way at {self._name}")
        self._calls += 1
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(self._finished)
        return await asyncio.shield(wrapped)

    def _finished(self, future: asyncio.Future[Any]) -> None:
        self._calls -= 1
        if not future.cancelled():
            future.exception()  # seen: the caller may have gone

    async def stop(self) -> None:
        """End the loop and wait for the thread; what was to be closed there is closed before."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)


class MetadataConsumer(Protocol):
    """Told of metadata on its own loop."""

    def on_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Replace everything by the snapshot's content."""

    def on_commit(self, batch: CommittedBatch) -> None:
        """Apply one committed batch; a control batch has no records."""


class LoopRelay:
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
        """Queue a batch."""
        self._put(batch)

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """Consumers of metadata do not care who wrote it."""

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
