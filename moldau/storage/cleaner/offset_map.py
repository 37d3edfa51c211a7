"""OffsetMap: the newest offset of each key, in a bounded piece of memory.

Owns: an open-addressing table of 24-byte slots: 128 bits of the key's keyed hash and its offset.
The rows of a batch are put and judged many at a time, by the native codec where it is installed.
Must not: keep keys, or grow. Invariant: at most `limit` keys are in the table; two keys are taken
for one with a probability of less than 2^-80 per table (the hash is keyed with random bytes, so
such keys cannot be prepared).
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from math import ceil, isqrt
from struct import Struct

from moldau.protocol.records import RecordColumns
from moldau.protocol.records import _implementation as implementation

SLOT_BYTES = 24
SEED_BYTES = 16
MIN_SLOT_COUNT = 3

DROP, KEEP, KEEP_TOMBSTONE = 0, 1, 2
"""What `judge` says of a row; KEEP_TOMBSTONE: the newest of its key, and without a value."""

_DIGEST = Struct("=QQ")


class OffsetMap:
    """See the module. Offsets are put in ascending order: what comes later is newer."""

    def __init__(self, max_bytes: int, key_count: int, load_factor: float, seed: bytes) -> None:
        """Room for `key_count` keys, or as many as `max_bytes` hold; `seed`: SEED_BYTES random
        bytes.
        """
        load_factor = min(max(load_factor, 0.05), 0.95)
        wanted = ceil((key_count + 1) / load_factor)
        at_most = max(max_bytes // SLOT_BYTES, MIN_SLOT_COUNT)
        self.slot_count = _prime_from(max(wanted, MIN_SLOT_COUNT), 1)
        if self.slot_count > at_most:
            self.slot_count = _prime_from(at_most, -1)
        self.limit = max(int(self.slot_count * load_factor), 1)
        self.count = 0
        self._seed = seed
        # Zeroed lazily by the system: what is never touched costs nothing.
        self._table = bytearray(SLOT_BYTES * self.slot_count)
        self._words = memoryview(self._table).cast("Q")
        native = implementation.native
        self._native = native if hasattr(native, "put_keys") else None

    def put(self, columns: RecordColumns, first_offset: int) -> int:
        """Note the rows from `first_offset` on; rows without a key are passed over.

        Returns how many rows were taken in: less than all when the table is full.
        """
        if self._native is not None:
            keys = columns.keys
            taken, self.count = self._native.put_keys(
                self._table,
                self._seed,
                self.count,
                self.limit,
                (keys.offsets, keys.validity, keys.data),
                columns.offsets,
                first_offset,
            )
            return int(taken)
        return self._put_rows(columns, first_offset)

    def judge(self, columns: RecordColumns, latest_offset: int) -> bytearray:
        """For each row DROP, KEEP or KEEP_TOMBSTONE. Rows after `latest_offset` (where the table
        was full) stay whatever they are; rows without a key go.
        """
        if self._native is not None:
            keys, values = columns.keys, columns.values
            verdict: bytearray = self._native.judge_keys(
                self._table,
                self._seed,
                (keys.offsets, keys.validity, keys.data),
                columns.offsets,
                values.validity,
                latest_offset,
            )
            return verdict
        return self._judge_rows(columns, latest_offset)

    def find(self, key: bytes) -> int:
        """The key's newest offset, -1 when it is not there."""
        if self._native is not None:
            found: int = self._native.find_key(self._table, self._seed, key)
            return found
        noted: int = self._words[self._slot(key) + 2]
        return noted - 1

    def _slot(self, key: bytes | memoryview) -> int:
        """Index of the first word of the key's slot, or of the free one where it belongs."""
        high: int
        low: int
        high, low = _DIGEST.unpack(blake2b(key, digest_size=16, key=self._seed).digest())
        words, size = self._words, self.slot_count
        slot, step = high % size, 1 + low % (size - 1)
        while True:
            at = slot * 3
            if not words[at + 2] or (words[at] == high and words[at + 1] == low):
                if not words[at + 2]:
                    words[at], words[at + 1] = high, low
                return at
            slot += step
            if slot >= size:
                slot -= size

    def _put_rows(self, columns: RecordColumns, first_offset: int) -> int:
        words = self._words
        assert columns.offsets is not None
        for row, (key, offset) in enumerate(zip(_keys(columns), columns.offsets, strict=True)):
            if key is None or offset < first_offset:
                continue
            at = self._slot(key)
            if not words[at + 2]:
                if self.count >= self.limit:
                    return row
                self.count += 1
            words[at + 2] = offset + 1
        return columns.row_count

    def _judge_rows(self, columns: RecordColumns, latest_offset: int) -> bytearray:
        words, values = self._words, columns.values.validity
        verdict = bytearray(columns.row_count)
        assert columns.offsets is not None
        for row, (key, offset) in enumerate(zip(_keys(columns), columns.offsets, strict=True)):
            if offset <= latest_offset and (key is None or offset + 1 < words[self._slot(key) + 2]):
                continue
            has_value = values is None or values[row >> 3] >> (row & 7) & 1
            verdict[row] = KEEP if has_value else KEEP_TOMBSTONE
        return verdict


def _keys(columns: RecordColumns) -> list[bytes | None]:
    keys = columns.keys
    assert keys.offsets is not None
    assert keys.data is not None
    data, ends = bytes(keys.data), memoryview(keys.offsets).tolist()
    found: list[bytes | None] = [data[start:end] for start, end in pairwise(ends)]
    validity = keys.validity
    if validity is not None:
        for row in range(len(found)):
            if not validity[row >> 3] >> (row & 7) & 1:
                found[row] = None
    return found


def _prime_from(number: int, direction: int) -> int:
    """The nearest prime >= `number` (direction 1) or <= it (-1), at least 3: with it every step
    width visits every slot.
    """
    candidate = number if number % 2 else number + direction
    while any(candidate % divisor == 0 for divisor in range(3, isqrt(candidate) + 1, 2)):
        candidate += 2 * direction
    return max(candidate, MIN_SLOT_COUNT)
