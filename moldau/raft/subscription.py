"""One listener's place in the metadata log.

Owns: what a listener has been given and what comes next. Must not: read files. States: CATCHING_UP
(a task reads the disk for it) -> LIVE (fed as batches commit) -> PAUSED (it asked for a pause; what
commits meanwhile is read from disk later). Invariant: batches reach the listener in order, each
once, whatever the changes of state; at most one task reads for it, and it is LIVE only while none
does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from moldau.raft.core.values import NO_NODE, Leadership
from moldau.raft.values import CommittedBatch, LoadedSnapshot


class LogListener(Protocol):
    """Who is told of the log; the same calls as the controller's own port."""

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Replace everything by the snapshot's content."""

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Apply one batch."""

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """`leader_id` leads from here on, -1 when nobody is known to."""


class SubscriptionState(Enum):
    """How a listener is being served."""

    CATCHING_UP = "catching up"
    LIVE = "live"
    PAUSED = "paused"
    CLOSED = "closed"


class Subscription:
    """Hand `pause` and `resume` to a listener that queues: its queue stays bounded that way."""

    __slots__ = (
        "_seen_epoch",
        "_told",
        "_wanted",
        "is_read_for",
        "listener",
        "next_offset",
        "state",
    )

    def __init__(self, listener: LogListener, wanted: Callable[[Subscription], None]) -> None:
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
        """Give this listener nothing more for now."""
        if self.state is not SubscriptionState.CLOSED:
            self.state = SubscriptionState.PAUSED

    def resume(self) -> None:
        """Go on where it stopped."""
        if self.state is SubscriptionState.PAUSED:
            self.catch_up()

    def catch_up(self) -> None:
        """From here on it is served from the disk, until it has everything."""
        self.state = SubscriptionState.CATCHING_UP
        if not self.is_read_for:
            self._wanted(self)

    def close(self) -> None:
        """Give this listener nothing any more."""
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
        """Tell who leads, once, as soon as everything before that leader's epoch was handed over.

        Until then a listener that took another for the leader is told that nobody is known. A
        follower sees where the epoch begins only by its first batch (`epoch_start_offset` is -1).
        """
        leader_id, leader_epoch = leadership.leader_id, leadership.leader_epoch
        if epoch_start_offset >= 0:
            is_due = self.next_offset >= epoch_start_offset
        else:
            is_due = self._seen_epoch >= leader_epoch
        if not is_due or leader_id == NO_NODE:
            if (
                self._told is None
                or self._told[0] == NO_NODE
                or self._told
                == (
                    leader_id,
                    leader_epoch,
                )
            ):
                return
            leader_id = NO_NODE
        if self._told != (leader_id, leader_epoch):
            self._told = (leader_id, leader_epoch)
            self.listener.handle_leader_change(leader_id, leader_epoch)
