"""What can go wrong with reading, as exceptions that say where and how to go on.

Owns the consumer's own errors; those that a broker's code says all are in `client.errors`. Must not
decide what happens next. Invariant: each names its partition and offset, in its text and as
attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from moldau.client.errors import KafkaError, OffsetOutOfRange
from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.client.records import ConsumerRecord
    from moldau.protocol.types import TopicPartition


class CorruptRecords(KafkaError):
    """A batch that cannot be read: its checksum is wrong, or its bytes are no records.

    The position stays in front of it: the next poll fetches it again. To leave it out,
    `consumer.seek(error.topic_partition, error.next_offset)`.

    Attributes:
        topic_partition: where.
        offset: the first offset that could not be read.
        next_offset: the first one behind the batch, as far as its header can be believed.
    """

    code = ErrorCode.CORRUPT_MESSAGE

    def __init__(
        self, topic_partition: TopicPartition, offset: int, next_offset: int, reason: str
    ) -> None:
        super().__init__(
            f"{topic_partition}: the records at offset {offset} cannot be read: {reason}. "
            f"To leave them out, seek to offset {next_offset}",
            final=True,
        )
        self.topic_partition = topic_partition
        self.offset = offset
        self.next_offset = next_offset


class RecordDeserializationError(KafkaError):
    """A deserializer raised; what it raised is the cause (`__cause__`).

    The position stays at the record. To leave it out, `consumer.seek(error.topic_partition,
    error.offset + 1)`.

    Attributes:
        topic_partition, offset: which record.
        part: "key" or "value".
        record: the record with its bytes as they were read (KIP-1036).
    """

    def __init__(self, record: ConsumerRecord, part: str, cause: BaseException) -> None:
        super().__init__(
            f"{record.topic}-{record.partition}: the {part} of the record at offset "
            f"{record.offset} cannot be deserialized: {type(cause).__name__}: {cause}. To leave "
            f"the record out, seek to offset {record.offset + 1}",
            final=True,
        )
        self.topic_partition = record.topic_partition
        self.offset = record.offset
        self.part = part
        self.record = record


class NoOffsetForPartition(KafkaError):
    """Nothing is committed, and `auto.offset.reset` is none: seek, or commit a position.

    Attributes:
        partitions: those without a position.
    """

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        names = ", ".join(sorted(map(str, self.partitions)))
        super().__init__(
            f"no committed offset for {names}, and auto.offset.reset is none: seek, commit an "
            "offset, or set auto.offset.reset to earliest, latest or by_duration:…"
        )


class PositionOutOfRange(OffsetOutOfRange):
    """The position is not in the log, and `auto.offset.reset` is none: seek.

    Attributes:
        positions: the offset by partition.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(positions)
        text = ", ".join(f"{partition}: {offset}" for partition, offset in positions.items())
        super().__init__(
            f"the position is not in the log ({text}), and auto.offset.reset is none: seek to "
            "where reading shall go on"
        )


class LogTruncated(PositionOutOfRange):
    """The log was cut behind the consumer's back, to below its position (KIP-320), and
    `auto.offset.reset` is none: what was read from there on is no longer in the log.

    Attributes:
        divergent_offset: up to where the log is what was read; None when the leader cannot say.
    """

    def __init__(
        self, topic_partition: TopicPartition, position: int, divergent_offset: int | None
    ) -> None:
        super().__init__({topic_partition: position})
        self.divergent_offset = divergent_offset
        known = "it cannot say to where" if divergent_offset is None else f"to {divergent_offset}"
        self.args = (
            f"{topic_partition}: the leader's log was cut below the position {position} ({known}), "
            "and auto.offset.reset is none: seek to where reading shall go on",
        )


class NotAssigned(KafkaError, LookupError):
    """The partition is not assigned to this consumer (at the moment, in a group)."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        super().__init__(f"{topic_partition} is not assigned to this consumer", final=True)
        self.topic_partition = topic_partition


class InvalidUse(KafkaError, RuntimeError):
    """A call that the consumer's state does not allow: the text says what to do instead."""

    code = ErrorCode.INVALID_REQUEST
