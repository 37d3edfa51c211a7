"""The values that producers and consumers hand over: records, positions, group membership."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic
from uuid import UUID

from moldau.client.serialization import Key, Value
from moldau.protocol.records import RecordHeaders as RecordHeaders
from moldau.protocol.records import TimestampType as TimestampType
from moldau.protocol.types import TopicPartition as TopicPartition


@dataclass(slots=True)
class ConsumerRecord(Generic[Key, Value]):
    """One record as it was read.

    Attributes:
        offset: its offset in the partition.
        timestamp_ms: milliseconds since 1970 UTC; -1 for none.
        timestamp_type: the producer's clock, or the broker's at the append (KIP-32).
        key, value: bytes as written, or what the consumer's deserializers made of them; None for
            null (a tombstone, for a value) with every deserializer.
        headers: pairs of name and bytes, in their order; () for none. None is a null value.
        leader_epoch: the epoch of the leader that appended it; -1 where the log does not say.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: Key | None
    value: Value | None
    headers: RecordHeaders = ()
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition of the record."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where an acknowledged record is.

    Attributes:
        offset: its offset in the partition; -1 when the broker did not say (`acks=0`, or a record
            that had been written long before its acknowledgement came).
        timestamp_ms: the producer's, or the broker's where the topic says LogAppendTime.
        serialized_key_size, serialized_value_size: in bytes, -1 for null.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    serialized_key_size: int
    serialized_value_size: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition of the record."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position: the offset of the next record to read.

    Attributes:
        offset: at least 0.
        metadata: the committer's own text, at most `offset.metadata.max.bytes` of the broker.
        leader_epoch: the epoch of the last record read, by which a truncated log is noticed
            (KIP-320); None when it is not known.
        topic_id: by which a topic that was deleted and created again is noticed (KIP-516); None
            when it is not known, as for committed offsets.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    topic_id: UUID | None = None

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise ValueError(f"a position cannot be negative: {self.offset}")


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The first record at or after a point in time.

    Attributes:
        offset: the record's offset.
        timestamp_ms: its own timestamp, in milliseconds since 1970 UTC.
        leader_epoch: the epoch it was appended in; None when the broker does not say.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer's membership of its group, for commits in a producer's transaction (KIP-447).

    Attributes:
        group_id: the group's name.
        generation_id: the generation (classic) or the member epoch (KIP-848); -1 outside of both.
        member_id: "" outside of a group.
        group_instance_id: the static member's name (KIP-345), if it is one.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
