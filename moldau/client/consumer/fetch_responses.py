"""What a fetch response means for the partitions it names.

Owns the reading of responses: data into the buffer, errors into back-off, metadata updates, resets
or faults that the next poll raises. Must not send anything. Invariant: a partition whose state has
moved on since the request (seek, revocation, another leader) is not touched by the response.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from moldau.client.consumer.core.chunks import Chunk, FetchedFrame
from moldau.client.consumer.core.faults import PositionOutOfRange
from moldau.client.consumer.core.fetch_buffer import FetchBuffer
from moldau.client.consumer.core.partition_state import NO_NODE, PartitionState
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.errors import error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition

MOVED: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)
"""The metadata are out of date, or will be in a moment: ask for them, then try again."""


def _is_passing(code: ErrorCode) -> bool:
    """The broker needs a moment. Corrupt records do not get better by waiting."""
    return code is ErrorCode.UNKNOWN_SERVER_ERROR or (
        code.retriable and code is not ErrorCode.CORRUPT_MESSAGE
    )


@dataclass(slots=True)
class Asked:
    """One partition of a request that is under way, as it was then."""

    state: PartitionState
    generation: int
    fetch_offset: int


@dataclass(slots=True)
class Outcome:
    """What is to be done after a response.

    Attributes:
        is_outdated: the metadata are to be asked for again.
        has_news: a poll that waits can go on.
        has_moved: a partition is fetched from another broker from now on.
        leaders: (topic, partition, leader id, leader epoch) that the broker named (KIP-951).
    """

    is_outdated: bool = False
    has_news: bool = False
    has_moved: bool = False
    leaders: list[tuple[str, int, int, int]] | None = None


class FetchResponses:
    """Takes responses apart.

    Args:
        read_committed: whether lists of aborted transactions matter.
        retry_backoff_ms: how long a partition rests after an error.
        preferred_lease_ms: how long the leader's choice of a replica holds (KIP-392).
    """

    def __init__(
        self,
        subscription: SubscriptionState[Any],
        buffer: FetchBuffer,
        *,
        read_committed: bool,
        retry_backoff_ms: float,
        preferred_lease_ms: float,
    ) -> None:
        self._subscription = subscription
        self._buffer = buffer
        self._read_committed = read_committed
        self._retry_backoff_ms = retry_backoff_ms
        self._preferred_lease_ms = preferred_lease_ms

    def take(
        self,
        response: Any,
        asked: Mapping[TopicPartition, Asked],
        topic_of: Callable[[UUID], str | None],
        now_ms: float,
    ) -> Outcome:
        """Take over a response without an error of its own."""
        outcome = Outcome()
        frame = FetchedFrame(
            sum(
                len(data.records)
                for topic in response.responses
                for data in topic.partitions
                if data.records is not None
            )
        )
        for topic in response.responses:
            name = topic.topic or topic_of(topic.topic_id)
            for data in topic.partitions:
                each = None
                if name is not None:
                    each = asked.get(TopicPartition(name, data.partition_index))
                if each is not None and self._is_current(each):
                    self._take_partition(each.state, data, frame, now_ms, outcome)
        return outcome

    def _is_current(self, asked: Asked) -> bool:
        state = asked.state
        return (
            state.generation == asked.generation
            and state.records.fetch_offset == asked.fetch_offset
            and self._subscription.get(state.topic_partition) is state
        )

    def _take_partition(
        self,
        state: PartitionState,
        data: Any,
        frame: FetchedFrame,
        now_ms: float,
        outcome: Outcome,
    ) -> None:
        code = ErrorCode.of(data.error_code)
        if code is not ErrorCode.NONE:
            self._take_error(state, code, data, frame, now_ms, outcome)
            return
        if data.high_watermark >= 0:
            state.high_watermark = data.high_watermark
        if data.last_stable_offset >= 0:
            state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.prefer(data.preferred_read_replica, now_ms + self._preferred_lease_ms)
            outcome.has_moved = True
        if not data.records:
            return
        aborted = None
        if self._read_committed and data.aborted_transactions:
            aborted = deque(
                sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions)
            )
        if self._buffer.add(state, Chunk(data.records, frame, aborted)):
            outcome.has_news = True
            self._subscription.moved_back(state.topic_partition)

    def _take_error(
        self,
        state: PartitionState,
        code: ErrorCode,
        data: Any,
        frame: FetchedFrame,
        now_ms: float,
        outcome: Outcome,
    ) -> None:
        topic, partition = state.topic_partition
        state.retry_at_ms = now_ms + self._retry_backoff_ms
        from_follower = state.preferred_node_id != NO_NODE
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and from_follower:
            # Perhaps it only lags, or has cut its log already: the leader knows.
            state.prefer_leader()
            state.retry_at_ms = now_ms
            outcome.has_moved = True
        elif code in MOVED:
            state.prefer_leader()
            outcome.is_outdated = outcome.has_moved = True
            leader = data.current_leader
            if leader.leader_id >= 0 and leader.leader_epoch > state.leader_epoch:
                outcome.leaders = outcome.leaders or []
                outcome.leaders.append((topic, partition, leader.leader_id, leader.leader_epoch))
                state.retry_at_ms = now_ms
        elif not _is_passing(code):
            self._add_fault(state, code, frame)
            outcome.has_news = True

    def _add_fault(self, state: PartitionState, code: ErrorCode, frame: FetchedFrame) -> None:
        """The error counts when everything before it has been read."""
        fetch_offset = state.records.fetch_offset

        def fault() -> None:
            if code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise error_for(code, None, f"fetch {state.topic_partition} from {fetch_offset}")
            if not self._subscription.may_reset:
                raise PositionOutOfRange({state.topic_partition: fetch_offset})
            state.request_reset(self._subscription.default_reset)

        self._buffer.add(state, Chunk(memoryview(b""), frame, fault=fault))
