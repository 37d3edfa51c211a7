"""One listener's place in the metadata log.

Owns: what a listener has been given and what comes next. Must not: read files. States: CATCHING_UP
(a task reads the disk for it) -> LIVE (fed as batches commit) -> PAUSED (it asked for a pause; what
commits meanwhile is read from disk later). Invariant: batches reach the listener in order, each
once, whatever the changes of state.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

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

    __slots__ = ("_resumed", "listener", "next_offset", "state", "told_epoch")

    def __init__(self, listener: LogListener, resumed: Callable[[Subscription], None]) -> None:
        self.listener = listener
        self.next_offset = -1
        self.state = SubscriptionState.CATCHING_UP
        self.told_epoch = -1
        self._resumed = resumed

    def pause(self) -> None:
        """Give this listener nothing more for now."""
        if self.state is not SubscriptionState.CLOSED:
            self.state = SubscriptionState.PAUSED

    def resume(self) -> None:
        """Go on where it stopped."""
        if self.state is SubscriptionState.PAUSED:
            self.state = SubscriptionState.CATCHING_UP
            self._resumed(self)

    def close(self) -> None:
        """Give this listener nothing any more."""
        self.state = SubscriptionState.CLOSED

    def give_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Hand over a snapshot that is ahead of the listener."""
        self.next_offset = snapshot.end_offset
        self.listener.handle_snapshot(snapshot)

    def give(self, batch: CommittedBatch) -> None:
        """Hand over the next batch."""
        assert batch.base_offset <= self.next_offset <= batch.last_offset, "in order, each once"
        self.next_offset = batch.last_offset + 1
        self.listener.handle_commit(batch)

    def tell_leader(self, leader_id: int, leader_epoch: int) -> None:
        """Tell who leads, once per epoch and answer."""
        if self.told_epoch != leader_epoch:
            self.told_epoch = leader_epoch
            self.listener.handle_leader_change(leader_id, leader_epoch)
