"""Where a consumer stands in one partition: what it waits for, and from where it reads next.

Owns the fetch state machine of a partition (position, leader, preferred replica, pause, the buffer
of what was fetched and not handed out) and the strategies of `auto.offset.reset`. Must not know
topics' metadata, connections or time other than `now_ms`. Invariant: `generation` grows whenever
what is in flight for the partition has become meaningless (a seek, a reset, another leader); a
response of an older generation is dropped, so that no record is ever handed out twice or from
another place than the position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Self
from uuid import UUID

from moldau.client.consumer.core.partition_records import PartitionRecords
from moldau.config.validators import BY_DURATION, duration_ms
from moldau.protocol.types import ZERO_UUID, TopicPartition

UNKNOWN_EPOCH: Final = -1
NO_NODE: Final = -1
NO_TURN: Final = -1

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
"""The timestamps with which ListOffsets asks for the end and the beginning of a log."""


class ResetKind(Enum):
    """The words of `auto.offset.reset`, without the duration."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"


class OffsetReset(NamedTuple):
    """Where reading begins without a position. `duration_ms`: how far back from now, for
    BY_DURATION (KIP-1106).
    """

    kind: ResetKind
    duration_ms: int = 0

    @classmethod
    def of(cls, text: str) -> Self:
        if text.startswith(BY_DURATION):
            duration = duration_ms(text.removeprefix(BY_DURATION))
            assert duration is not None, "the settings are checked"
            return cls(ResetKind.BY_DURATION, duration)
        return cls(ResetKind(text))

    def timestamp_ms(self, now_ms: int) -> int:
        assert self.kind is not ResetKind.NONE
        if self.kind is ResetKind.EARLIEST:
            return EARLIEST_TIMESTAMP
        if self.kind is ResetKind.LATEST:
            return LATEST_TIMESTAMP
        return max(now_ms - self.duration_ms, 0)

    def __str__(self) -> str:
        if self.kind is ResetKind.BY_DURATION:
            return f"by_duration of {self.duration_ms} ms"
        return str(self.kind.value)


EARLIEST: Final[OffsetReset] = OffsetReset(ResetKind.EARLIEST)
LATEST: Final[OffsetReset] = OffsetReset(ResetKind.LATEST)
NONE: Final[OffsetReset] = OffsetReset(ResetKind.NONE)


class FetchState(Enum):
    """What has to happen before records of a partition can be fetched."""

    INITIALIZING = "no position yet: the committed one is to be asked for"
    RESETTING = "an offset is to be looked up, by the reset strategy"
    VALIDATING = "the leader is to be asked whether the position is still in its log (KIP-320)"
    FETCHING = "records are fetched"


@dataclass(slots=True, eq=False, repr=False)
class PartitionState:
    """One assigned partition. Any state may follow any other: a seek leads to FETCHING or
    VALIDATING from anywhere, another topic of the same name to INITIALIZING or RESETTING.

    Attributes:
        records: what was fetched; its `position` is the consumer's.
        on_unsettled: called when there is something to find out before fetching.
        pending_revocation, pending_listener: by the group: nothing is handed out or fetched.
        topic_id: of the topic that the position is in; ZERO_UUID while that is not known.
        assigned_topic_id: of the topic that the group's coordinator assigned (KIP-848); ZERO_UUID
            where partitions are assigned by name.
        leader_id, leader_epoch: the leader against which the position was last checked.
        preferred_node_id: the replica that the leader named (KIP-392), until
            `preferred_until_ms`.
        retry_at_ms: nothing is asked for this partition before.
        high_watermark, last_stable_offset, log_start_offset: as last heard; -1 for not yet.
        is_ready, turn_end: the fetch buffer's: whether the partition is in its queue, and the
            offset up to which it is served.
    """

    records: PartitionRecords
    on_unsettled: Callable[[], None]
    topic_partition: TopicPartition = field(init=False)
    state: FetchState = FetchState.INITIALIZING
    reset: OffsetReset | None = None
    generation: int = 0
    paused: bool = False
    pending_revocation: bool = False
    pending_listener: bool = False
    topic_id: UUID = ZERO_UUID
    assigned_topic_id: UUID = ZERO_UUID
    leader_id: int = NO_NODE
    leader_epoch: int = UNKNOWN_EPOCH
    preferred_node_id: int = NO_NODE
    preferred_until_ms: float = 0.0
    retry_at_ms: float = 0.0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    is_ready: bool = False
    turn_end: int = NO_TURN

    def __post_init__(self) -> None:
        self.topic_partition = self.records.topic_partition
        self.topic_id = self.assigned_topic_id
        self.on_unsettled()

    @property
    def has_position(self) -> bool:
        return self.state in (FetchState.FETCHING, FetchState.VALIDATING)

    @property
    def may_hand_out(self) -> bool:
        """Whether records may be fetched, and buffered ones may go to the user."""
        return (
            not (self.paused or self.pending_revocation or self.pending_listener)
            and self.state is FetchState.FETCHING
            and not self.is_of_another_topic
        )

    @property
    def is_of_another_topic(self) -> bool:
        """Whether the name stands for another topic than the one that was assigned, as that was
        deleted and created again: the partition may be another member's already. Nothing is looked
        up, handed out or committed until the coordinator has assigned the new one.
        """
        return self.assigned_topic_id not in (ZERO_UUID, self.topic_id)

    def seek(
        self, offset: int, offset_epoch: int = UNKNOWN_EPOCH, topic_id: UUID = ZERO_UUID
    ) -> None:
        """Read on from `offset` of the topic `topic_id` (ZERO_UUID: the one known so far). With the
        epoch of the record before it, it is validated first.
        """
        if topic_id not in (ZERO_UUID, self.topic_id):
            self.topic_id = topic_id
            self._forget_topic()
        self.forget_buffered()
        self.records.restart(offset, offset_epoch)
        self.reset = None
        self.retry_at_ms = 0.0
        self._become(
            FetchState.FETCHING if offset_epoch == UNKNOWN_EPOCH else FetchState.VALIDATING
        )

    def request_reset(self, strategy: OffsetReset) -> None:
        """Have the position looked up by `strategy`; there is none until then."""
        self.forget_buffered()
        self.reset = strategy
        self.retry_at_ms = 0.0
        self._become(FetchState.RESETTING)

    def position_reset(self, strategy: OffsetReset, offset: int, leader_epoch: int) -> bool:
        """Take the offset that was looked up. False when a seek or another reset came before."""
        if self.state is not FetchState.RESETTING or self.reset != strategy:
            return False
        self.forget_buffered()
        self.records.restart(offset, leader_epoch)
        self.reset = None
        self._become(FetchState.FETCHING)
        return True

    def leader_seen(self, leader_id: int, leader_epoch: int) -> None:
        """The cluster's metadata name this leader.

        A position whose record's epoch is known is validated when the leader's epoch is new. What
        was prefetched is fetched again then: it came from the log as it was before. A validation
        that is under way begins again: its answer is the former leader's.
        """
        known_epoch = self.leader_epoch
        if (leader_id, leader_epoch) == (self.leader_id, known_epoch) or known_epoch > leader_epoch:
            return
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.retry_at_ms = 0.0
        if not self.has_position or UNKNOWN_EPOCH in (known_epoch, self.records.position_epoch):
            return
        if leader_epoch > known_epoch:
            self.forget_buffered()
            self._become(FetchState.VALIDATING)

    def topic_seen(self, topic_id: UUID) -> bool:
        """The cluster's metadata give the topic's name this id; ZERO_UUID where they have none.

        Returns whether that is another topic than the one in which the position is: it was deleted
        and created again. Then nothing that is known of the partition counts any more, and the
        partition is INITIALIZING, unless the caller requests a reset.
        """
        known_id = self.topic_id
        if topic_id in (ZERO_UUID, known_id):
            return False
        self.topic_id = topic_id
        if known_id == ZERO_UUID:
            return False
        self.forget_buffered()
        self._forget_topic()
        self.reset = None
        self.retry_at_ms = 0.0
        self._become(FetchState.INITIALIZING)
        return True

    def validated(self, generation: int) -> None:
        """The position is in the leader's log (or an old broker cannot tell)."""
        if self.state is FetchState.VALIDATING and self.generation == generation:
            self._become(FetchState.FETCHING)

    def forget_buffered(self) -> None:
        """Drop what was fetched and what is in flight; the position stays."""
        self.generation += 1
        self.records.clear()

    def prefer(self, node_id: int, until_ms: float) -> None:
        """Fetch from this replica until then (KIP-392)."""
        self.preferred_node_id = node_id
        self.preferred_until_ms = until_ms

    def prefer_leader(self) -> None:
        self.preferred_node_id = NO_NODE

    def _forget_topic(self) -> None:
        self.leader_id, self.leader_epoch = NO_NODE, UNKNOWN_EPOCH
        self.prefer_leader()
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1

    def _become(self, state: FetchState) -> None:
        self.state = state
        if state is not FetchState.FETCHING:
            self.on_unsettled()
