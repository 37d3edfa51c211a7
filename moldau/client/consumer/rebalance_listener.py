"""What a consumer tells its user about partitions that come and go.

Owns the interface. Invariant: it is called inside polls (and `close`) only, one method at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Set

from moldau.client.records import TopicPartition


class RebalanceListener:
    """Derive from it and give it to `subscribe`. Every method may be plain or `async`.

    Inside, the consumer may be used (`commit`, `seek`, `position`, `pause`, …), but not polled or
    closed. What a method raises comes out of the poll, after the rebalance step has been completed.
    A poll that is cancelled inside a listener does not stop the listener: the next poll waits for
    it, so that it is never called twice for the same thing.
    """

    def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These are about to go to others; last chance to commit what was processed of them.

        With eager assignors that is everything, at the beginning of each rebalance; with
        cooperative ones and with KIP-848 only what really goes.
        """
        return None

    def on_partitions_assigned(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These are new; nothing of them has been handed out yet. In the classic protocol called at
        the end of every rebalance, also with none.
        """
        return None

    def on_partitions_lost(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These have gone without warning (the member was expelled); others may consume them
        already, so commits of them fail. Calls `on_partitions_revoked` unless overridden.
        """
        return self.on_partitions_revoked(partitions)
