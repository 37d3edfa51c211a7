"""The consumer's own errors, which name partition and offset and how to go on."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.client.errors import InvalidState, KafkaError, OffsetOutOfRange, SerializationError
from moldau.client.records import ConsumerRecord
from moldau.protocol.errors import ErrorCode
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
        self.topic_partition: TopicPartition = topic_partition
        self.offset: int = offset
        self.next_offset: int = next_offset


class RecordDeserializationError(SerializationError):
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
        self.topic_partition: TopicPartition = record.topic_partition
        self.offset: int = record.offset
        self.part: str = part
        self.record: ConsumerRecord = record


class PositionOutOfRange(OffsetOutOfRange):
    """The positions, by partition, are not in the log, and `auto.offset.reset` is none: seek."""

    def __init__(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions: dict[TopicPartition, int] = dict(positions)
        text = ", ".join(f"{partition}: {offset}" for partition, offset in positions.items())
        super().__init__(
            f"the position is not in the log ({text}), and auto.offset.reset is none: seek to "
            "where reading shall go on"
        )


class NotAssigned(InvalidState):
    """The partition is not assigned to this consumer (at the moment, in a group)."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        super().__init__(f"{topic_partition} is not assigned to this consumer", final=True)
        self.topic_partition = topic_partition
