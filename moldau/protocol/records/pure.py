"""Record encoding and decoding in plain Python; `_native` is the same, compiled.

One record (KIP-98): length, attributes, timestamp delta, offset delta, key, value, headers, all
lengths as zigzag varints. A record is accepted only when its fields end exactly where its length
says; whatever is wrong inside one record is BAD_RECORD, a wrong number of them BAD_COUNT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from moldau.constants import MAX_INT32, MAX_INT64, MAX_UINT64, MIN_INT64
from moldau.protocol.records.header import BATCH_HEADER_SIZE, NO_TIMESTAMP
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.records.record import Record
from moldau.protocol.types import Buffer

KeyOf: TypeAlias = Callable[[bytes], Any]
"""Makes a header's key of its bytes: text for records, the bytes themselves for columns."""

MIN_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, null key, null value, header count: one byte each."""

_CACHED_VARINT_LIMIT: Final = 8192


class MalformedRecord(ValueError):
    """The fields of one record contradict each other."""


def encode_varint(value: int) -> bytes:
    """Zigzag varint of an int32 or int64."""
    zigzag = (value << 1) ^ (value >> 63)
    if not 0 <= zigzag <= MAX_UINT64:
        raise OverflowError(f"{value} exceeds 64 bits")
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def varint_size(value: int) -> int:
    """Bytes that `encode_varint(value)` takes."""
    return max(1, (((value << 1) ^ (value >> 63)).bit_length() + 6) // 7)


class _VarintTable(dict[int, bytes]):
    """Varints of small numbers, filled as they are met and bounded by `_CACHED_VARINT_LIMIT`."""

    def __missing__(self, value: int) -> bytes:
        encoded = encode_varint(value)
        if -_CACHED_VARINT_LIMIT <= value < _CACHED_VARINT_LIMIT:
            self[value] = encoded
        return encoded


_VARINTS: Final = _VarintTable()


def _varint_reader(bits: int) -> Callable[[bytes, int], tuple[int, int]]:
    """Makes (data, position) -> (value, next position) for zigzag varints of so many bits."""
    shifts, largest = tuple(range(0, bits, 7)), (1 << bits) - 1

    def read(data: bytes, position: int) -> tuple[int, int]:
        value = 0
        for shift in shifts:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > largest:
                    break
                return (value >> 1) ^ -(value & 1), position
        raise MalformedRecord(f"a varint exceeds {bits} bits")

    return read


read_varint: Final = _varint_reader(32)
read_varlong: Final = _varint_reader(64)


def header_key_text(raw: bytes) -> str:
    """A header's key as text, whatever its bytes."""
    # As Kafka's own clients do: one odd key must not make the record unreadable.
    return raw.decode("utf-8", "replace")


def _read_headers(
    data: bytes, position: int, count: int, key_of: KeyOf
) -> tuple[tuple[Any, ...], int]:
    if count < 0:
        raise MalformedRecord("negative header count")
    headers: list[tuple[Any, bytes | None]] = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise MalformedRecord("null header key")
        key = key_of(data[position : position + size])
        position += size
        size, position = read_varint(data, position)
        if size >= 0:
            headers.append((key, data[position : position + size]))
            position += size
        elif size == -1:
            headers.append((key, None))
        else:
            raise MalformedRecord("header value length below -1")
    return tuple(headers), position


def _read_nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    if data[position] == 1:
        return None, position + 1
    size, position = read_varint(data, position)
    if size >= 0:
        end = position + size
        return data[position:end], end
    if size != -1:
        raise MalformedRecord("key or value length below -1")
    return None, position


def decode_records(
    records_section: Buffer,
    record_count: int,
    base_offset: int,
    base_timestamp_ms: int,
    append_time_ms: int | None,
    key_of: KeyOf = header_key_text,
) -> list[Record]:
    """Decode exactly `record_count` records from the uncompressed records section of a batch.

    `append_time_ms`, when given, is every record's timestamp (LOG_APPEND_TIME). `key_of` makes a
    header key from its bytes. Raises InvalidBatch: BAD_COUNT or BAD_RECORD.
    """
    data = records_section if type(records_section) is bytes else bytes(records_section)
    check_plausible_count(len(data), record_count)
    records: list[Record] = []
    try:
        position = decode_into(records, data, record_count, base_offset, base_timestamp_ms, key_of)
    except (IndexError, MalformedRecord) as error:
        raise bad_record(error, len(records)) from None
    check_consumed(len(records), record_count, len(data) - position)
    if append_time_ms is not None:
        for record in records:
            record.timestamp_ms = append_time_ms
    return records


def bad_record(error: Exception, record_index: int) -> InvalidBatch:
    """What `decode_into` raised, as the error for its callers."""
    detail = str(error) if isinstance(error, MalformedRecord) else "the record ends early"
    return InvalidBatch(InvalidBatchReason.BAD_RECORD, detail, record_index=record_index)


def decode_into(
    records: list[Record],
    data: bytes,
    record_count: int,
    base_offset: int,
    base_timestamp_ms: int,
    key_of: KeyOf = header_key_text,
    position: int = 0,
) -> int:
    """Append up to `record_count` records, fewer when the data ends between two; where it stopped.

    Varints of one and two bytes are spelled out where they are common: a call costs more than the
    parse. Raises IndexError or MalformedRecord, the records before the bad one appended.
    """
    size = len(data)
    key: bytes | None
    value: bytes | None
    for _ in range(record_count):
        if position >= size:
            break
        if (byte := data[position]) < 0x80:
            length = (byte >> 1) ^ -(byte & 1)
            position += 1
        elif (high := data[position + 1]) < 0x80:
            length = (byte & 0x7F | high << 7) >> 1 if not byte & 1 else -1
            position += 2
        else:
            length, position = read_varint(data, position)
        end = position + length
        if length < 0 or end > size:
            raise MalformedRecord("the record's length exceeds the batch")
        position += 1  # the record's attributes: no bit is defined
        if (byte := data[position]) < 0x80:
            timestamp_ms = base_timestamp_ms + ((byte >> 1) ^ -(byte & 1))
            position += 1
        else:
            delta, position = read_varlong(data, position)
            timestamp_ms = base_timestamp_ms + delta
        if (byte := data[position]) & 1 == 0 and byte >= 0x80 and data[position + 1] < 0x80:
            offset = base_offset + ((byte & 0x7F | data[position + 1] << 7) >> 1)
            position += 2
        else:
            delta, position = read_varint(data, position)
            offset = base_offset + delta
        if (byte := data[position]) & 1 == 0 and byte < 0x80:
            start = position + 1
            position = start + (byte >> 1)
            key = data[start:position]
        else:
            key, position = _read_nullable(data, position)
        if (byte := data[position]) & 1 == 0 and byte < 0x80:
            start = position + 1
            position = start + (byte >> 1)
            value = data[start:position]
        elif byte & 1 == 0 and (high := data[position + 1]) < 0x80:
            start = position + 2
            position = start + ((byte & 0x7F | high << 7) >> 1)
            value = data[start:position]
        else:
            value, position = _read_nullable(data, position)
        headers: tuple[tuple[Any, bytes | None], ...] = ()
        if data[position]:
            count, position = read_varint(data, position)
            headers, position = _read_headers(data, position, count, key_of)
        else:
            position += 1
        if position != end or not MIN_INT64 <= timestamp_ms <= MAX_INT64:
            raise MalformedRecord("the record's fields do not end where its length says")
        records.append(Record(offset, timestamp_ms, key, value, headers))
    return position


def check_plausible_count(size: int, record_count: int) -> None:
    """Refuse a count that `size` bytes cannot hold, before anything is allocated for it."""
    if record_count < 0 or record_count * MIN_RECORD_BYTES > size:
        raise InvalidBatch(
            InvalidBatchReason.BAD_COUNT, f"{record_count} records do not fit into {size} bytes"
        )


def check_consumed(found: int, record_count: int, rest: int) -> None:
    """All records found and nothing behind them, or BAD_COUNT."""
    if found != record_count:
        raise InvalidBatch(
            InvalidBatchReason.BAD_COUNT, f"{found} records where the header says {record_count}"
        )
    if rest:
        raise InvalidBatch(
            InvalidBatchReason.BAD_COUNT, f"{rest} bytes behind the last of {record_count} records"
        )


def scan_records(
    records_section: Buffer, record_count: int, base_timestamp_ms: int, require_keys: bool
) -> tuple[int, int, int]:
    """Check every record, that offsets count 0, 1, 2 … and, if required, that each has a key.

    Returns (smallest timestamp, largest timestamp, index of the first record that has it); -1s
    for no records. Raises InvalidBatch: BAD_COUNT, BAD_RECORD, BAD_OFFSET or MISSING_KEY.
    """
    lowest = highest = highest_at = -1
    records = decode_records(records_section, record_count, 0, base_timestamp_ms, None)
    for index, record in enumerate(records):
        if record.offset != index:
            raise InvalidBatch(
                InvalidBatchReason.BAD_OFFSET,
                f"offset delta {record.offset} where {index} is due",
                record_index=index,
            )
        if require_keys and record.key is None:
            raise InvalidBatch(
                InvalidBatchReason.MISSING_KEY,
                "a compacted topic takes no record without a key",
                record_index=index,
            )
        timestamp_ms = record.timestamp_ms
        if index == 0 or timestamp_ms < lowest:
            lowest = timestamp_ms
        if index == 0 or timestamp_ms > highest:
            highest = timestamp_ms
            highest_at = index
    return lowest, highest, highest_at


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    varints = _VARINTS
    parts: list[Buffer] = [varints[len(headers)]]
    for key, value in headers:
        raw_key = key.encode()
        parts += (varints[len(raw_key)], raw_key)
        if value is None:
            parts.append(b"\x01")
        else:
            parts += (varints[len(value)], value)
    return b"".join(parts)


def encode_record_parts(
    offset_delta: int,
    timestamp_delta_ms: int,
    key: Buffer | None,
    value: Buffer | None,
    encoded_headers: bytes,
) -> bytes:
    """One encoded record, its length first, from headers encoded before."""
    varints = _VARINTS
    body = b"".join(
        (
            b"\x00",
            varints[timestamp_delta_ms],
            varints[offset_delta],
            b"\x01" if key is None else varints[len(key)],
            b"" if key is None else key,
            b"\x01" if value is None else varints[len(value)],
            b"" if value is None else value,
            encoded_headers,
        )
    )
    return varints[len(body)] + body


def encode_record(
    offset_delta: int,
    timestamp_delta_ms: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> bytes:
    """One encoded record, its length first. Buffers must be of bytes (item size 1).

    Raises TypeError on what is not bytes-like, OverflowError on numbers beyond 64 bits.
    """
    encoded_headers = _encode_headers(headers) if headers else b"\x00"
    return encode_record_parts(offset_delta, timestamp_delta_ms, key, value, encoded_headers)


def encode_records(
    out: bytearray, records: Iterable[Record], base_offset: int | None, base_timestamp_ms: int
) -> None:
    """Append the encoded records to `out`.

    Offset deltas count 0, 1, 2 … when `base_offset` is None, else they follow the records' offsets.
    """
    for index, record in enumerate(records):
        out += encode_record(
            index if base_offset is None else record.offset - base_offset,
            record.timestamp_ms - base_timestamp_ms,
            record.key,
            record.value,
            record.headers,
        )


class RecordBuffer:
    """The records section of one batch in the making, behind the space of its header.

    It takes records as long as they fit into `limit_bytes`, which counts uncompressed bytes, the
    batch header's included, and may be changed at any time; the first record is taken whatever its
    size. States: open → taken (refuses further records, cannot be taken again). Partitions,
    compression and time are its owner's.

    `size_bytes` is that of the batch if it were not compressed, its header included; the timestamps
    are those of the first record and the largest so far, -1 without records.
    """

    __slots__ = (
        "_out",
        "base_timestamp_ms",
        "limit_bytes",
        "max_timestamp_ms",
        "record_count",
        "size_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self._out: bytearray | None = bytearray(BATCH_HEADER_SIZE)
        self.limit_bytes: int = limit_bytes
        self.size_bytes: int = BATCH_HEADER_SIZE
        self.record_count: int = 0
        self.base_timestamp_ms: int = NO_TIMESTAMP
        self.max_timestamp_ms: int = NO_TIMESTAMP

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        """Add a record; returns its offset delta, -1 when it does not fit or the buffer is taken.

        Raises TypeError on what is not bytes-like (a header key that is no text),
        OverflowError on a record or batch of more than 2 GB; nothing is added then.
        """
        if not MIN_INT64 <= timestamp_ms <= MAX_INT64:
            raise OverflowError("timestamps have 64 bits")
        out = self._out
        if out is None:
            return -1
        base_ms = self.base_timestamp_ms if self.record_count else timestamp_ms
        if not MIN_INT64 <= timestamp_ms - base_ms <= MAX_INT64:
            raise OverflowError("timestamps too far apart for one batch")
        encoded = encode_record(self.record_count, timestamp_ms - base_ms, key, value, headers)
        need = len(out) + len(encoded)
        if self.record_count and need > self.limit_bytes:
            return -1
        if need > MAX_INT32:
            raise OverflowError(f"a batch of {need} bytes")
        out += encoded
        self.size_bytes = need
        if not self.record_count:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
        elif timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        self.record_count += 1
        return self.record_count - 1

    def take(self) -> bytearray:
        """The encoded records behind the space for the header, exactly as long as they are.

        Raises ValueError when they were taken before.
        """
        out = self._out
        if out is None:
            raise ValueError("the buffer was taken before")
        self._out = None
        return out
