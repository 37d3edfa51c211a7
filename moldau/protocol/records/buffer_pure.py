"""A batch in the making, in plain Python: the fallback for `RecordBuffer` of `_native`.

Owns the growing records section of one batch, behind the space of its header. Must not know
partitions, compression or time: its owner does. Invariant: same bytes and answers as `_native`.
States: open → taken (refuses further records, cannot be taken again).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from moldau.protocol.records.crc import Buffer
from moldau.protocol.records.header import BATCH_HEADER_SIZE, NO_TIMESTAMP
from moldau.protocol.records.pure import encode_record

_MAX_INT32: Final = 2**31 - 1
_MIN_INT64: Final = -(2**63)
_MAX_INT64: Final = 2**63 - 1


class RecordBuffer:
    """Records encoded one behind the other, as long as they fit into `limit_bytes`.

    The limit counts uncompressed bytes, the batch header's included, and may be changed at any
    time; the first record is taken whatever its size.
    """

    __slots__ = ("_base_ms", "_count", "_highest_ms", "_out", "_size_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._out: bytearray | None = bytearray(BATCH_HEADER_SIZE)
        self.limit_bytes: int = limit_bytes
        self._size_bytes = BATCH_HEADER_SIZE
        self._count = 0
        self._base_ms = self._highest_ms = NO_TIMESTAMP

    @property
    def size_bytes(self) -> int:
        """Size of the batch if it were not compressed, its header included."""
        return self._size_bytes

    @property
    def record_count(self) -> int:
        """Records taken so far."""
        return self._count

    @property
    def base_timestamp_ms(self) -> int:
        """Timestamp of the first record, -1 without records."""
        return self._base_ms

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp so far, -1 without records."""
        return self._highest_ms

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        """Add a record; returns its offset delta, -1 when it does not fit or the buffer is taken.

        Raises: TypeError on what is not bytes-like (a header key that is no text),
        OverflowError on a record or batch of more than 2 GB; nothing is added then.
        """
        if not _MIN_INT64 <= timestamp_ms <= _MAX_INT64:
            raise OverflowError("timestamps have 64 bits")
        out = self._out
        if out is None:
            return -1
        base_ms = self._base_ms if self._count else timestamp_ms
        if not _MIN_INT64 <= timestamp_ms - base_ms <= _MAX_INT64:
            raise OverflowError("timestamps too far apart for one batch")
        encoded = encode_record(self._count, timestamp_ms - base_ms, key, value, headers)
        need = len(out) + len(encoded)
        if self._count and need > self.limit_bytes:
            return -1
        if need > _MAX_INT32:
            raise OverflowError(f"a batch of {need} bytes")
        out += encoded
        self._size_bytes = need
        if not self._count:
            self._base_ms = self._highest_ms = timestamp_ms
        elif timestamp_ms > self._highest_ms:
            self._highest_ms = timestamp_ms
        self._count += 1
        return self._count - 1

    def take(self) -> bytearray:
        """The encoded records behind the space for the header, exactly as long as they are.

        Raises: ValueError when they were taken before.
        """
        out = self._out
        if out is None:
            raise ValueError("the buffer was taken before")
        self._out = None
        return out
