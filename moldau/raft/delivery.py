"""What is committed, on its way to the listeners of the metadata log.

Owns: the subscriptions, the window of batches that are appended and not yet committed, the tasks
that read the disk for listeners that are behind, the decoded snapshot kept for a start-up. Must
not: commit anything, or change the log. Invariant: nothing at or above the high watermark is ever
handed over, so that no cut of the log undoes what a listener has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from moldau.metadata.log import CommittedBatch, LoadedSnapshot, MetadataLogListener
from moldau.raft.core.values import NO_NODE, Leadership, SnapshotId
from moldau.raft.log_files import LogFiles
from moldau.raft.snapshot_files import read_snapshot_file, snapshot_path
from moldau.raft.values import MetadataLogError
from moldau.runtime.clock import Clock, TimerHandle

MAX_RECENT_BYTES: Final = 16 * 1024 * 1024
MAX_RECENT_BATCHES: Final = 10_000


class RecentBatches:
    """Batches that are appended and not committed, in the form in which they are delivered.

    A bounded window: a batch that is missing here is read from the disk. Invariant: the batches are
    consecutive, and none of them has been cut off the log.
    """

    def __init__(self) -> None:
        self._batches: deque[CommittedBatch] = deque()
        self._size_bytes = 0

    def add(self, batch: CommittedBatch) -> None:
        batches = self._batches
        is_next = not batches or batches[-1].last_offset + 1 == batch.base_offset
        is_full = (
            len(batches) >= MAX_RECENT_BATCHES
            or self._size_bytes + batch.size_bytes > MAX_RECENT_BYTES
        )
        if not is_next or is_full:
            self.clear()
        batches.append(batch)
        self._size_bytes += batch.size_bytes

    def take_below(self, end_offset: int) -> Iterator[CommittedBatch]:
        """Hand out the batches below `end_offset`, which are committed now."""
        batches = self._batches
        while batches and batches[0].last_offset < end_offset:
            batch = batches.popleft()
            self._size_bytes -= batch.size_bytes
            yield batch

    def truncate_to(self, end_offset: int) -> None:
        """The log was cut at `end_offset`."""
        batches = self._batches
        while batches and batches[-1].last_offset >= end_offset:
            self._size_bytes -= batches.pop().size_bytes

    def clear(self) -> None:
        self._batches.clear()
        self._size_bytes = 0


class SubscriptionState(Enum):
    """How a listener is being served."""

    CATCHING_UP = "catching up"
    LIVE = "live"
    PAUSED = "paused"
    CLOSED = "closed"


class Subscription:
    """One listener's place in the log. A listener that queues uses `pause` and `resume` to keep its
    queue bounded.

    States: CATCHING_UP (a task reads the disk for it) -> LIVE (fed as batches commit) -> PAUSED (it
    asked for a pause; batches that commit then are read from disk later). Invariant: batches reach
    the listener in order, each once, whatever the changes of state; at most one task reads for it,
    and it is LIVE only while none does.
    """

    def __init__(
        self, listener: MetadataLogListener, wanted: Callable[[Subscription], None]
    ) -> None:
        """`wanted` is called whenever a task should read for it and none does."""
        self.listener = listener
        self.next_offset = -1
        self.state = SubscriptionState.CATCHING_UP
        self.is_read_for = False
        """Whether a task reads for it at present, be it one that was started before a pause."""
        self._wanted = wanted
        self._seen_epoch = -1
        self._told: tuple[int, int] | None = None

    def pause(self) -> None:
        if self.state is not SubscriptionState.CLOSED:
            self.state = SubscriptionState.PAUSED

    def resume(self) -> None:
        if self.state is SubscriptionState.PAUSED:
            self.catch_up()

    def catch_up(self) -> None:
        """Serve this listener from the disk, until it has everything."""
        self.state = SubscriptionState.CATCHING_UP
        if not self.is_read_for:
            self._wanted(self)

    def close(self) -> None:
        self.state = SubscriptionState.CLOSED

    def give_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Hand over a snapshot that is ahead of the listener."""
        assert snapshot.end_offset > self.next_offset, "a snapshot never goes back"
        self.next_offset = snapshot.end_offset
        self._seen_epoch = max(self._seen_epoch, snapshot.leader_epoch)
        self.listener.handle_snapshot(snapshot)

    def give(self, batch: CommittedBatch, leadership: Leadership, epoch_start_offset: int) -> None:
        """Hand over the next batch; before it the news of the leader whose first batch it is."""
        assert batch.base_offset <= self.next_offset <= batch.last_offset, "in order, each once"
        if batch.leader_epoch > self._seen_epoch:
            self._seen_epoch = batch.leader_epoch
            self.tell_leader(leadership, epoch_start_offset)
        self.next_offset = batch.last_offset + 1
        self.listener.handle_commit(batch)
        self.tell_leader(leadership, epoch_start_offset)

    def tell_leader(self, leadership: Leadership, epoch_start_offset: int) -> None:
        """Tell the leader, once, as soon as everything before that leader's epoch was handed over.

        Until then a listener that knows another leader hears that none is known. A follower
        sees where the epoch begins only by its first batch (`epoch_start_offset` is -1).
        """
        leader_id, leader_epoch = leadership.leader_id, leadership.leader_epoch
        if epoch_start_offset >= 0:
            is_due = self.next_offset >= epoch_start_offset
        else:
            is_due = self._seen_epoch >= leader_epoch
        if not is_due or leader_id == NO_NODE:
            told = self._told
            if told is None or told[0] == NO_NODE or told == (leader_id, leader_epoch):
                return
            leader_id = NO_NODE
        if self._told != (leader_id, leader_epoch):
            self._told = (leader_id, leader_epoch)
            self.listener.handle_leader_change(leader_id, leader_epoch)


CACHED_SNAPSHOT_MS: Final = 60_000
"""How long a decoded snapshot is kept for the listeners of the start, or of its arrival."""

RECORDS_PER_TURN: Final = 1_000
"""How many records (about ten milliseconds) a listener that is behind gets before others of the
loop have their turn."""


@dataclass(eq=False, repr=False)
class Delivery:
    """Serves the listeners of one log, on the log's loop.

    Args:
        log_lock: held while another thread changes the list of segments.
        on_failure: called with one line when the log cannot be read.
    """

    _files: LogFiles
    _clock: Clock
    _log_lock: asyncio.Lock
    _on_failure: Callable[[str], None]
    _subscriptions: list[Subscription] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _is_closed: bool = False
    _release_timer: TimerHandle | None = None
    _epoch_start_offset: int = -1
    leadership: Leadership = field(default_factory=lambda: Leadership(NO_NODE, 0))
    high_watermark: int = 0
    recent: RecentBatches = field(default_factory=RecentBatches)

    def add_listener(self, listener: MetadataLogListener) -> Subscription:
        """Deliver the committed log to `listener`, then every batch that commits."""
        subscription = Subscription(listener, self._read_for)
        self._subscriptions.append(subscription)
        subscription.catch_up()
        return subscription

    def advance(self, high_watermark: int) -> None:
        """Everything below `high_watermark` is committed: hand it over."""
        assert high_watermark >= self.high_watermark, "what is committed stays committed"
        self.high_watermark = high_watermark
        self._files.log.update_high_watermark(high_watermark)
        live = SubscriptionState.LIVE
        for batch in self.recent.take_below(high_watermark):
            for each in list(self._subscriptions):
                if each.state is live and each.next_offset == batch.base_offset:
                    self._give(each, batch)
        for each in list(self._subscriptions):
            if each.state is live and each.next_offset < self.high_watermark:
                each.catch_up()

    def change_leadership(self, leadership: Leadership, epoch_start_offset: int) -> None:
        """The leader has changed, or is lost; each listener hears it in log order."""
        self.leadership, self._epoch_start_offset = leadership, epoch_start_offset
        for each in list(self._subscriptions):
            if each.state is not SubscriptionState.CLOSED:
                each.tell_leader(leadership, epoch_start_offset)

    def keep_snapshot(self) -> None:
        """Keep the decoded snapshot in `files` for a while."""
        if self._release_timer is not None:
            self._release_timer.cancel()
        self._release_timer = self._clock.call_later(CACHED_SNAPSHOT_MS, self.release_snapshot)

    def release_snapshot(self) -> None:
        """The listeners have it: give the memory back."""
        self._files.cached_snapshot = None

    async def close(self) -> None:
        """Hand over nothing any more; wait for the tasks that read."""
        self._is_closed = True
        if self._release_timer is not None:
            self._release_timer.cancel()
        for subscription in self._subscriptions:
            subscription.close()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _give(self, subscription: Subscription, batch: CommittedBatch) -> None:
        subscription.give(batch, self.leadership, self._epoch_start_offset)

    def _read_for(self, subscription: Subscription) -> None:
        subscription.is_read_for = True
        task = asyncio.get_running_loop().create_task(
            self._read(subscription), name="metadata-catch-up"
        )
        self._tasks.add(task)
        task.add_done_callback(self._was_read)

    def _was_read(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # A listener that has failed misses everything after the failure.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(f"{type(error).__name__}: {error}")

    async def _read(self, subscription: Subscription) -> None:
        """Bring a listener to the high watermark; it is live when it has all below it."""
        try:
            while subscription.state is SubscriptionState.CATCHING_UP and not self._is_closed:
                if await self._give_snapshot(subscription):
                    continue
                subscription.tell_leader(self.leadership, self._epoch_start_offset)
                if subscription.state is not SubscriptionState.CATCHING_UP:
                    break
                if subscription.next_offset >= self.high_watermark:
                    subscription.state = SubscriptionState.LIVE
                    break
                await self._give_chunk(subscription)
        except (MetadataLogError, OSError) as error:
            self._on_failure(str(error))
        finally:
            # No await since the state was read: the listener cannot have resumed in between.
            subscription.is_read_for = False

    async def _give_chunk(self, subscription: Subscription) -> None:
        start_offset = subscription.next_offset
        async with self._log_lock:
            if start_offset < self._files.log.log_start_offset or self._is_closed:
                return  # a snapshot has taken its place
            region = self._files.start_read(start_offset, self.high_watermark)
        batches = await self._files.filesystem.offload(
            self._files.finish_read, region, start_offset
        )
        if not batches:
            raise MetadataLogError(f"{self._files.directory}: nothing at offset {start_offset}")
        record_count = 0
        for batch in batches:
            if subscription.state is not SubscriptionState.CATCHING_UP or self._is_closed:
                break
            self._give(subscription, batch.as_committed())
            record_count += len(batch.records)
            if record_count >= RECORDS_PER_TURN:
                record_count = 0
                await asyncio.sleep(0)  # a vote must not wait until all is replayed

    async def _give_snapshot(self, subscription: Subscription) -> bool:
        """Give the latest snapshot to a listener that is new, or behind the log's start."""
        async with self._log_lock:  # the log's start and the snapshots change together
            snapshot_id = self._snapshot_for(subscription)
        if snapshot_id is None:
            subscription.next_offset = max(subscription.next_offset, 0)
            return False
        cached = self._files.cached_snapshot
        if cached is None or cached.end_offset != snapshot_id.end_offset:
            path = snapshot_path(self._files.directory, snapshot_id)
            try:
                cached, _ = await self._files.filesystem.offload(
                    read_snapshot_file, self._files.filesystem, path, snapshot_id
                )
            except FileNotFoundError:
                async with self._log_lock:
                    if snapshot_id in self._files.snapshots:
                        raise
                return True  # a newer one replaced it
        if subscription.state is SubscriptionState.CATCHING_UP:
            assert cached is not None
            subscription.give_snapshot(cached)
        return True

    def _snapshot_for(self, subscription: Subscription) -> SnapshotId | None:
        """The snapshot that a listener must begin with; None when the log will do."""
        if not self._files.snapshots:
            return None
        snapshot_id = self._files.snapshots[-1]
        is_behind = subscription.next_offset < max(self._files.log.log_start_offset, 0)
        # The bootstrap snapshot has no metadata records.
        return snapshot_id if is_behind and snapshot_id.end_offset > 0 else None
