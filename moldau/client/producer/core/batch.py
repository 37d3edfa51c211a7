"""One batch of a producer, from its first record to its outcome.

Owns the encoded and compressed records of a batch, its numbering and the waiters for its outcome.
Must not know queues, memory limits or nodes. Invariants: a batch has one outcome, set once; when it
was split (or its records went elsewhere) its own outcome is never set, and `locate` leads to the
parts; records keep their order and their number, also when a batch is split.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeAlias
from uuid import UUID

from moldau.client.producer.core.transaction_states import NO_PRODUCER, ProducerIdAndEpoch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    Codec,
    RecordBuffer,
    compress_batch,
    decode_records,
    records_section,
    write_header,
)
from moldau.protocol.records.header import (
    CURRENT_MAGIC,
    NO_PARTITION_LEADER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
)
from moldau.protocol.types import ZERO_UUID

Waiter: TypeAlias = Callable[["Outcome", int], object]
"""Called once when a record is done, with its batch and its index there."""

SEQUENCE_COUNT: Final = 2**31
"""Sequence numbers wrap to 0 after 2**31 - 1; here they are counted on without wrapping."""

UNNUMBERED: Final = -1


@dataclass(slots=True, eq=False, repr=False)
class Outcome:
    """The outcome of a run of records: open → done (base offset or error), or → parts.

    Attributes:
        base_offset: of the first record; -1 when the broker did not say it (acks=0, a duplicate).
        log_append_time_ms: the broker's timestamp for all of them, -1 where records keep theirs.
        error_of: makes the error of a record by its index, where records have their own (KIP-467).
    """

    topic: str
    partition: int
    is_done: bool = field(default=False, init=False)
    error: Exception | None = field(default=None, init=False)
    base_offset: int = field(default=-1, init=False)
    log_append_time_ms: int = field(default=NO_TIMESTAMP, init=False)
    error_of: Callable[[int], Exception] | None = field(default=None, init=False)
    _parts: list[tuple[int, Outcome, int]] | None = field(default=None, init=False)
    _waiters: list[tuple[int, Waiter]] = field(default_factory=list, init=False)

    @property
    def is_replaced(self) -> bool:
        return self._parts is not None

    def parts(self) -> list[Outcome]:
        """The batches that have the records now; empty while they are here."""
        return [part for _, part, _ in self._parts or ()]

    def locate(self, index: int) -> tuple[Outcome, int]:
        """The batch that has record `index` now, and its index there."""
        outcome = self
        while outcome._parts is not None:
            place = bisect_right(outcome._parts, index, key=itemgetter(0)) - 1
            start, part, first_index = outcome._parts[place]
            outcome, index = part, first_index + index - start
        return outcome, index

    def when_done(self, index: int, waiter: Waiter) -> None:
        """Call `waiter` once record `index` has its outcome, which it must not have yet."""
        outcome, index = self.locate(index)
        assert not outcome.is_done, "a record that is done has no waiters"
        outcome._waiters.append((index, waiter))

    def replace(self, parts: list[tuple[int, Outcome, int]]) -> None:
        """Move the records from each start on to that part, from that index on; waiters follow, to
        a part that has failed already too.
        """
        assert not self.is_done
        assert self._parts is None
        self._parts = parts
        for index, waiter in self.take_waiters():
            outcome, index = self.locate(index)
            outcome._waiters.append((index, waiter))

    def finish(
        self,
        *,
        base_offset: int = -1,
        log_append_time_ms: int = NO_TIMESTAMP,
        error: Exception | None = None,
    ) -> None:
        assert not self.is_done, "an outcome is set once"
        self.is_done = True
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error

    def take_waiters(self) -> list[tuple[int, Waiter]]:
        waiters, self._waiters = self._waiters, []
        return waiters


@dataclass(slots=True, eq=False, repr=False)
class ProducerBatch(Outcome):
    """Records of one partition. States: filling → closed → (sent, back) … → done or split.

    Attributes:
        reserved_bytes: its share of `buffer.memory`.
        base_sequence: of the first record, not wrapped; `UNNUMBERED` before the first sending.
        pair: producer id and epoch under which it is numbered.
        ordinal: how many batches of its partition were numbered before it.
        attempt_count: how often it came back from the wire.
        is_on_wire: whether a request with it awaits its response.
        may_be_written: whether some attempt may have reached a log without an acknowledgement.
        sent_leader_epoch, sent_topic_id: of the leader, and the topic, it went to last.
    """

    created_ms: float
    buffer: RecordBuffer | None
    encoded: bytearray | None = None
    header: BatchHeader | None = None
    record_count: int = 0
    reserved_bytes: int = 0
    uncompressed_bytes: int = 0
    pair: ProducerIdAndEpoch = NO_PRODUCER
    base_sequence: int = UNNUMBERED
    attempt_count: int = 0
    not_before_ms: float = 0.0
    ordinal: int = 0
    is_on_wire: bool = False
    may_be_written: bool = False
    is_split_part: bool = False
    is_written: bool = False
    last_code: ErrorCode | None = None
    sent_leader_epoch: int = -1
    sent_topic_id: UUID = ZERO_UUID

    @classmethod
    def of_encoded(
        cls, topic: str, partition: int, created_ms: float, encoded: bytearray, header: BatchHeader
    ) -> ProducerBatch:
        """A closed batch made elsewhere: header space and records in `encoded`, compressed as
        `header` says, which is complete but for the producer's part.
        """
        return cls(
            topic,
            partition,
            created_ms,
            None,
            encoded,
            header,
            record_count=header.record_count,
            uncompressed_bytes=len(encoded),
        )

    @property
    def is_filling(self) -> bool:
        return self.buffer is not None

    @property
    def is_numbered(self) -> bool:
        return self.base_sequence != UNNUMBERED

    @property
    def end_sequence(self) -> int:
        return self.base_sequence + self.record_count

    @property
    def size_bytes(self) -> int:
        """Its size in a request: of the encoded batch, or the bound while not compressed."""
        if self.encoded is not None:
            return len(self.encoded)
        return self.uncompressed_bytes if self.buffer is None else self.buffer.size_bytes

    def uncompressed_section_bytes(self) -> int:
        if self.encoded is None or self.header is None or not self.header.is_compressed:
            return self.uncompressed_bytes
        section = records_section(self.encoded, 0, self.header)
        return BATCH_HEADER_SIZE + len(section)

    def close(self, codec: Codec, level: int | None) -> None:
        buffer = self.buffer
        if buffer is None:
            return
        self.buffer = None
        self.record_count = buffer.record_count
        self.uncompressed_bytes = buffer.size_bytes
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            partition_leader_epoch=NO_PARTITION_LEADER_EPOCH,
            magic=CURRENT_MAGIC,
            crc=0,
            attributes=int(codec),
            last_offset_delta=self.record_count - 1,
            base_timestamp_ms=buffer.base_timestamp_ms,
            max_timestamp_ms=buffer.max_timestamp_ms,
            producer_id=NO_PRODUCER.producer_id,
            producer_epoch=NO_PRODUCER.producer_epoch,
            base_sequence=NO_SEQUENCE,
            record_count=self.record_count,
        )
        self.header = header
        encoded = buffer.take()
        compress_batch(encoded, header, level)
        self.encoded = encoded

    def number(self, pair: ProducerIdAndEpoch, base_sequence: int) -> None:
        self.pair = pair
        self.base_sequence = base_sequence

    def prepare(self, *, is_transactional: bool) -> None:
        """Write the numbering of a closed batch into its bytes."""
        header, encoded = self.header, self.encoded
        assert header is not None
        assert encoded is not None
        producer_id, producer_epoch = self.pair
        sequence = self.base_sequence % SEQUENCE_COUNT if self.is_numbered else NO_SEQUENCE
        attributes = header.attributes & ~TRANSACTIONAL_BIT
        attributes |= TRANSACTIONAL_BIT if is_transactional else 0
        wanted = (producer_id, producer_epoch, sequence, attributes)
        written = (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.attributes,
        )
        if wanted != written or not self.is_written:
            self.is_written = True
            header.producer_id = producer_id
            header.producer_epoch = producer_epoch
            header.base_sequence = sequence
            header.attributes = attributes
            write_header(encoded, header)

    def split(self, target_bytes: int, codec: Codec, level: int | None) -> list[ProducerBatch]:
        """Make smaller batches of the records, of at most `target_bytes` before compression (a
        larger record has its own batch), closed and numbered as this one.
        """
        assert self.encoded is not None
        self.prepare(is_transactional=False)
        parts: list[ProducerBatch] = []
        buffer: RecordBuffer | None = None
        for record in decode_records(self.encoded):
            values = (record.timestamp_ms, record.key, record.value, record.headers)
            if buffer is None or buffer.append(*values) < 0:
                buffer = RecordBuffer(target_bytes)
                part = ProducerBatch(self.topic, self.partition, self.created_ms, buffer)
                part.is_split_part = True
                parts.append(part)
                buffer.append(*values)
        start = 0
        places: list[tuple[int, Outcome, int]] = []
        for part in parts:
            part.close(codec, level)
            part.attempt_count = self.attempt_count
            part.last_code = self.last_code
            part.sent_leader_epoch = self.sent_leader_epoch
            part.sent_topic_id = self.sent_topic_id
            if self.is_numbered:
                part.number(self.pair, self.base_sequence + start)
            places.append((start, part, 0))
            start += part.record_count
        assert start == self.record_count, "a split keeps every record"
        self.replace(places)
        return parts

    def release(self) -> None:
        self.buffer = None
        self.encoded = None
