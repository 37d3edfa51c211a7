"""What a consumer is subscribed to, what is assigned to it, and where it stands in each partition.

Owns the subscription, the assignment and its `PartitionState`s, and the interface of rebalance
listeners. Must not fetch, join groups or run listeners. Invariants: topics by name, a pattern, and
partitions by hand exclude each other until `unsubscribe`; `subscription_version` grows with every
change of these.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from uuid import UUID

from moldau.client.consumer.core.faults import NotAssigned
from moldau.client.consumer.core.partition_records import PartitionRecords
from moldau.client.consumer.core.partition_state import OffsetReset, PartitionState, ResetKind
from moldau.client.consumer.core.rebalance_steps import NO_TOPIC_IDS
from moldau.client.errors import InvalidSubscription
from moldau.client.records import OffsetAndMetadata, TopicPartition
from moldau.protocol.types import ZERO_UUID


class RebalanceListener:
    """Derive from it and give it to `subscribe`. Every method may be plain or `async`.

    Called inside polls and `close` only, one method at a time. Inside, the consumer may be used
    (`commit`, `seek`, `position`, `pause`, …), but not polled or closed. What a method raises comes
    out of the poll, after the rebalance step has been completed.
    A poll that is cancelled inside a listener does not stop the listener: the next poll waits for
    it, so that it is never called twice for the same thing.
    """

    def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These are about to be taken away: the last chance to commit what was processed of them.

        With eager assignors that is everything, at the beginning of each rebalance; with
        cooperative ones and with KIP-848 only the partitions that really go.
        """
        return None

    def on_partitions_assigned(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These are new; nothing of them has been handed out yet. In the classic protocol called at
        the end of every rebalance, also with none.
        """
        return None

    def on_partitions_lost(self, partitions: Set[TopicPartition]) -> Awaitable[None] | None:
        """These are gone without warning (the member was expelled); other members may consume them
        already, so commits of them fail. Calls `on_partitions_revoked` unless overridden.
        """
        return self.on_partitions_revoked(partitions)


class SubscriptionState:
    """States: nothing → topics, pattern or by hand → (unsubscribe) nothing.

    Attributes:
        matched_topics: what the pattern matches at the moment; set by the group's coordinator.
        is_unsettled: whether a partition may be without a position that can be fetched from.
        on_change: called when what is assigned, or what may be fetched of it, has changed.
    """

    def __init__(
        self, default_reset: OffsetReset, new_records: Callable[[TopicPartition], PartitionRecords]
    ) -> None:
        self.topics: frozenset[str] = frozenset()
        self.pattern: str | None = None
        self.listener: RebalanceListener | None = None
        self.subscription_version: int = 0
        self.default_reset = default_reset
        self.matched_topics: frozenset[str] = frozenset()
        self.is_unsettled: bool = False
        self.on_change: Callable[[], None] = lambda: None
        self._is_manual = False
        self._states: dict[TopicPartition, PartitionState] = {}
        self._new_records = new_records

    # -- subscribing ----------------------------------------------------------------------------

    @property
    def is_automatic(self) -> bool:
        return bool(self.topics) or self.pattern is not None

    @property
    def is_subscribed(self) -> bool:
        return self._is_manual or self.is_automatic

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None) -> None:
        """Named topics, instead of those named before; without any this unsubscribes."""
        names = frozenset(topics)
        if not names:
            self.unsubscribe()
            return
        self._check_kind("topics", self._is_manual or self.pattern is not None)
        self.topics = names
        self.listener = listener
        self.subscription_version += 1

    def subscribe_pattern(self, pattern: str, listener: RebalanceListener | None) -> None:
        self._check_kind("a pattern", self._is_manual or bool(self.topics))
        self.pattern = pattern
        self.matched_topics = frozenset()
        self.listener = listener
        self.subscription_version += 1

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions by hand, instead of those assigned before; positions of the rest are kept."""
        wanted = list(dict.fromkeys(partitions))
        if not wanted:
            self.unsubscribe()
            return
        self._check_kind("partitions by hand", self.is_automatic)
        self._is_manual = True
        self.subscription_version += 1
        self._replace(wanted)

    def unsubscribe(self) -> None:
        self.topics = frozenset()
        self.pattern = None
        self.matched_topics = frozenset()
        self.listener = None
        self._is_manual = False
        self.subscription_version += 1
        self._replace([])

    def subscription(self) -> set[str]:
        return set(self.topics if self.pattern is None else self.matched_topics)

    def _check_kind(self, wanted: str, in_the_way: bool) -> None:
        if in_the_way:
            raise InvalidSubscription(
                "a consumer subscribes to topics, to a pattern, or is assigned partitions by "
                f"hand, one of them at a time: unsubscribe() before {wanted}"
            )

    # -- the assignment -------------------------------------------------------------------------

    def assignment(self) -> set[TopicPartition]:
        return set(self._states)

    def states(self) -> Iterator[PartitionState]:
        return iter(self._states.values())

    def get(self, topic_partition: TopicPartition) -> PartitionState | None:
        return self._states.get(topic_partition)

    def state_of(self, topic_partition: TopicPartition) -> PartitionState:
        state = self._states.get(topic_partition)
        if state is None:
            raise NotAssigned(topic_partition)
        return state

    def assign_from_group(
        self,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[TopicPartition, UUID] = NO_TOPIC_IDS,
    ) -> None:
        """The group's new assignment: what stays keeps its position and pause, the rest goes.
        `topic_ids`: the topics of those that the coordinator assigns by id.
        """
        self._replace(list(dict.fromkeys(partitions)), topic_ids)

    def _replace(
        self,
        partitions: list[TopicPartition],
        topic_ids: Mapping[TopicPartition, UUID] = NO_TOPIC_IDS,
    ) -> None:
        old = self._states
        self._states = {}
        for topic_partition in partitions:
            state = old.pop(topic_partition, None)
            if state is None:
                state = PartitionState(
                    self._new_records(topic_partition),
                    self._unsettled,
                    assigned_topic_id=topic_ids.get(topic_partition, ZERO_UUID),
                )
            state.pending_revocation = False
            self._states[topic_partition] = state
        for state in old.values():
            state.forget_buffered()
            state.pending_revocation = True
        self.on_change()

    def mark_pending_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing more of these is handed out or fetched: they are about to be taken away."""
        for topic_partition in partitions:
            state = self._states.get(topic_partition)
            if state is not None:
                state.pending_revocation = True
        self.on_change()

    def mark_assigned_pending_listener(
        self, partitions: Iterable[TopicPartition], pending: bool
    ) -> None:
        """Nothing of these is handed out or fetched before their listener has been called."""
        for topic_partition in partitions:
            state = self._states.get(topic_partition)
            if state is not None:
                state.pending_listener = pending
        self.on_change()

    def moved_back(self, topic_partition: TopicPartition) -> None:
        """The partition was served: others are fetched before it next time."""
        state = self._states.pop(topic_partition, None)
        if state is not None:
            self._states[topic_partition] = state

    # -- positions ------------------------------------------------------------------------------

    def all_consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions after what has been handed out so far; partitions without one left out."""
        consumed = {}
        for topic_partition, state in self._states.items():
            if state.has_position and not state.is_of_another_topic:
                epoch = state.records.position_epoch
                topic_id = None if state.topic_id == ZERO_UUID else state.topic_id
                consumed[topic_partition] = OffsetAndMetadata(
                    state.records.position, "", epoch if epoch >= 0 else None, topic_id
                )
        return consumed

    @property
    def may_reset(self) -> bool:
        """Whether `auto.offset.reset` names a place to begin at."""
        return self.default_reset.kind is not ResetKind.NONE

    def _unsettled(self) -> None:
        self.is_unsettled = True
