"""A batch grown record by record up to a size: the producer's form of encoding.

Owns one batch in the making. Must not know partitions, time or threads: its owner does.
States: open (append) → closed (append refuses) → built; `build` may be repeated, e.g. with another
producer epoch, since the encoded records are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from moldau.protocol.records import _implementation
from moldau.protocol.records.batch import finish_batch
from moldau.protocol.records.compression import check_level
from moldau.protocol.records.header import (
    BATCH_HEADER_SIZE,
    CURRENT_MAGIC,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    Codec,
)
from moldau.protocol.records.pure import varint_size

_MAX_FIXED_RECORD_BYTES: Final = 5 + 1 + 10 + 5
"""Length, attributes, timestamp delta and offset delta at their longest."""


def record_size_bound(
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> int:
    """Upper bound of the encoded, uncompressed size of a record in bytes."""
    size = _MAX_FIXED_RECORD_BYTES + varint_size(len(headers))
    for part in (key, value):
        size += 1 if part is None else varint_size(len(part)) + len(part)
    for header_key, header_value in headers:
        key_bytes = len(header_key.encode())
        size += varint_size(key_bytes) + key_bytes
        size += 1 if header_value is None else varint_size(len(header_value)) + len(header_value)
    return size


def batch_size_bound(
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> int:
    """Upper bound of the size of an uncompressed batch with only this record, in bytes."""
    return BATCH_HEADER_SIZE + record_size_bound(key, value, headers)


class RecordBatchBuilder:
    """One batch in the making, closed by size.

    `max_bytes` limits the uncompressed size times `expected_ratio` (compressed / uncompressed, as
    the producer learnt it; 1.0 is safe); the first record is always taken, whatever its size.
    """

    __slots__ = (
        "_base_timestamp_ms",
        "_codec",
        "_compression_level",
        "_expected_ratio",
        "_is_closed",
        "_is_transactional",
        "_max_bytes",
        "_max_timestamp_ms",
        "_out",
        "_record_count",
    )

    def __init__(
        self,
        max_bytes: int,
        *,
        codec: Codec = Codec.NONE,
        compression_level: int | None = None,
        is_transactional: bool = False,
        expected_ratio: float = 1.0,
    ) -> None:
        check_level(codec, compression_level)
        self._max_bytes = max_bytes
        self._codec = codec
        self._compression_level = compression_level
        self._is_transactional = is_transactional
        self._expected_ratio = 1.0 if codec is Codec.NONE else expected_ratio
        self._out = bytearray(BATCH_HEADER_SIZE)
        self._base_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_ms = NO_TIMESTAMP
        self._record_count = 0
        self._is_closed = False

    @property
    def record_count(self) -> int:
        """Records taken so far."""
        return self._record_count

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp so far, -1 without records."""
        return self._max_timestamp_ms

    @property
    def is_closed(self) -> bool:
        """Whether `append` refuses every further record."""
        return self._is_closed

    @property
    def uncompressed_size_bytes(self) -> int:
        """Exact size of the batch if it were not compressed, header included."""
        return len(self._out)

    @property
    def estimated_size_bytes(self) -> int:
        """Expected size of the built batch: exact when uncompressed."""
        return self._estimate(len(self._out))

    @property
    def is_full(self) -> bool:
        """Whether the estimate has reached the limit (or the builder was closed)."""
        return self._is_closed or self.estimated_size_bytes >= self._max_bytes

    def _estimate(self, uncompressed_bytes: int) -> int:
        records_bytes = uncompressed_bytes - BATCH_HEADER_SIZE
        return BATCH_HEADER_SIZE + int(records_bytes * self._expected_ratio)

    def has_room_for(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> bool:
        """Whether `append` of this record is certain to succeed."""
        if self._is_closed:
            return False
        if self._record_count == 0:
            return True
        bound = len(self._out) + record_size_bound(key, value, headers)
        return self._estimate(bound) <= self._max_bytes

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int | None:
        """Add a record; returns its offset delta, or None when closed or it does not fit.

        Raises: TypeError on a key or value that is not bytes-like.
        """
        if self._is_closed:
            return None
        offset_delta = self._record_count
        base_timestamp_ms = self._base_timestamp_ms if offset_delta else timestamp_ms
        encoded = _implementation.encode_record(
            offset_delta, timestamp_ms - base_timestamp_ms, key, value, headers
        )
        if offset_delta == 0:
            self._base_timestamp_ms = self._max_timestamp_ms = timestamp_ms
        elif self._estimate(len(self._out) + len(encoded)) > self._max_bytes:
            return None
        elif timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = timestamp_ms
        self._out += encoded
        self._record_count = offset_delta + 1
        return offset_delta

    def close(self) -> None:
        """Take no more records."""
        self._is_closed = True

    def build(
        self,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        base_offset: int = 0,
        partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    ) -> bytearray:
        """The finished batch (closes the builder); a new buffer on every call."""
        self._is_closed = True
        header = BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            partition_leader_epoch=partition_leader_epoch,
            magic=CURRENT_MAGIC,
            crc=0,
            attributes=self._codec | (TRANSACTIONAL_BIT if self._is_transactional else 0),
            last_offset_delta=self._record_count - 1,
            base_timestamp_ms=self._base_timestamp_ms,
            max_timestamp_ms=self._max_timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self._record_count,
        )
        return finish_batch(bytearray(self._out), header, self._compression_level)
