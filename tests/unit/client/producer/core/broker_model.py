"""What a partition's leader does with batches: sequence checks as Kafka's, a log of records.

The model that the producer's core is held against; decides for itself, from the bytes it is given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import decode_records, iter_batches, verify_crc

REMEMBERED = 5
LAST_SEQUENCE = 2**31 - 1


@dataclass
class Written:
    """A batch in a log."""

    base_offset: int
    numbers: tuple[int, ...]


@dataclass
class ProducerEntry:
    """What a log remembers of a producer."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class LogModel:
    """One partition's log; record values are numbers as text."""

    def __init__(self) -> None:
        self.written: list[Written] = []
        self.next_offset = 0
        self.producers: dict[int, ProducerEntry] = {}

    def numbers(self) -> list[int]:
        """The records in the log."""
        return [number for batch in self.written for number in batch.numbers]

    def at(self, offset: int) -> int:
        """The record at an offset."""
        return self.numbers()[offset]

    def append(self, encoded: bytes) -> tuple[ErrorCode, int]:
        """Append one batch: (error, base offset)."""
        [(position, header)] = list(iter_batches(encoded))
        assert verify_crc(encoded, position, header), "the CRC covers the numbering"
        numbers = tuple(int(bytes(record.value or b"")) for record in decode_records(encoded))
        assert len(numbers) == header.record_count
        if header.producer_id >= 0:
            first = header.base_sequence
            last = (first + header.record_count - 1) % (LAST_SEQUENCE + 1)
            entry = self.producers.get(header.producer_id)
            if entry is None:
                entry = self.producers[header.producer_id] = ProducerEntry(header.producer_epoch)
            if header.producer_epoch < entry.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > entry.epoch:
                if first != 0:
                    # Another epoch of a producer that is known begins again.
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                entry = self.producers[header.producer_id] = ProducerEntry(header.producer_epoch)
            for known_first, known_last, base_offset in entry.batches:
                if (known_first, known_last) == (first, last):
                    return ErrorCode.NONE, base_offset
            if entry.batches:
                expected = (entry.batches[-1][1] + 1) % (LAST_SEQUENCE + 1)
                if first != expected:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            # Without any batch of the producer, whatever number it begins with is taken.
            entry.batches.append((first, last, self.next_offset))
        base_offset = self.next_offset
        self.written.append(Written(base_offset, numbers))
        self.next_offset += header.record_count
        return ErrorCode.NONE, base_offset
