"""A batch's records taken piece by piece, in plain Python: the fallback for `_native`'s cursors.

Owns where the reading of one uncompressed records section stands, so that a consumer hands out a
large batch over several polls, as objects or as columns, in any mixture. Must not know control
batches, CRCs or positions in a log: its owner has looked at the header. Invariant: same records,
columns and errors as `_native`; a cursor never gives a record twice nor jumps over one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from moldau.constants import MAX_INT32
from moldau.protocol.records.columns_pure import ColumnWriter, DecodedColumns
from moldau.protocol.records.invalid_batch import InvalidBatch
from moldau.protocol.records.pure import (
    KeyOf,
    MalformedRecord,
    bad_record,
    check_consumed,
    check_plausible_count,
    decode_into,
    header_key_text,
)
from moldau.protocol.records.record import Record
from moldau.protocol.types import Buffer

RECORD_SLOTS: Final = ("offset", "timestamp_ms", "key", "value", "headers")
"""What a record brings itself; every other slot of a record class is the same for a whole batch."""

RecordT = TypeVar("RecordT")


def check_slots(kind: type, shared: Mapping[str, object]) -> tuple[str, ...]:
    """The slots of `kind`. Raises TypeError unless they are `RECORD_SLOTS` and `shared`."""
    found: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    wanted = {*RECORD_SLOTS, *shared}
    if set(found) != wanted or (hasattr(kind, "__dict__") and kind.__dictoffset__):
        raise TypeError(
            f"{kind.__name__} has the slots {sorted(found)}, its records bring {sorted(wanted)}"
        )
    return tuple(found)


class RecordMaker(Generic[RecordT]):
    """Makes objects of one slotted class from records, without calling its `__init__`.

    `shared`: the value of every slot that is not one of `RECORD_SLOTS`, the same in all objects.
    Raises TypeError on a class that is not slotted, or with other slots than these.
    """

    __slots__ = ("_kind", "_setters", "_shared")

    def __init__(self, kind: type[RecordT], shared: Mapping[str, object]) -> None:
        check_slots(kind, shared)
        self._kind = kind
        self._setters = [getattr(kind, name).__set__ for name in RECORD_SLOTS]
        self._shared = [(getattr(kind, name).__set__, value) for name, value in shared.items()]

    def make(self, record: Record) -> RecordT:
        made = object.__new__(self._kind)
        fields = record.offset, record.timestamp_ms, record.key, record.value, record.headers
        for setter, value in zip(self._setters, fields, strict=True):
            setter(made, value)
        for setter, shared in self._shared:
            setter(made, shared)
        return made


class RecordCursor:
    """Reads a batch's uncompressed records section (`records_section`) from front to back.

    `append_time_ms`, when given, is every record's timestamp (LOG_APPEND_TIME).
    Raises InvalidBatch (BAD_COUNT) on a count that the section cannot hold.
    """

    __slots__ = (
        "_append_time_ms",
        "_base_offset",
        "_base_timestamp_ms",
        "_count",
        "_data",
        "_index",
        "_position",
        "next_offset",
    )

    def __init__(
        self,
        section: Buffer,
        record_count: int,
        base_offset: int,
        base_timestamp_ms: int,
        append_time_ms: int | None = None,
    ) -> None:
        check_plausible_count(len(section), record_count)
        self._data = bytes(section)
        self._count = record_count
        self._base_offset = base_offset
        self.next_offset: int = base_offset
        """After the last record taken or skipped."""
        self._base_timestamp_ms = base_timestamp_ms
        self._append_time_ms = append_time_ms
        self._index = self._position = 0

    @property
    def remaining(self) -> int:
        """Records not taken or skipped yet, as the header counts them."""
        return self._count - self._index

    @property
    def is_exhausted(self) -> bool:
        """Whether all is read and nothing lies behind the last record."""
        return self._index == self._count and self._position == len(self._data)

    def skip_before(self, first_offset: int) -> None:
        """Pass over records with smaller offsets. Raises InvalidBatch."""
        while self._index < self._count:
            position, next_offset = self._position, self.next_offset
            records, fault = self.read(1)
            if not records:
                assert fault is not None, "one record is left"
                raise fault
            if records[0].offset >= first_offset:
                self._index -= 1
                self._position, self.next_offset = position, next_offset
                return
        fault = self.read(0)[1]
        if fault is not None:
            raise fault

    def take(self, max_records: int, maker: RecordMaker[RecordT]) -> list[RecordT]:
        """Up to `max_records` of the records left.

        A record that cannot be read ends the list before it; when it is the first, InvalidBatch
        is raised: BAD_RECORD, or BAD_COUNT when there are fewer or more than the header says.
        """
        records, fault = self.read(max_records)
        if fault is not None and not records:
            raise fault
        return [maker.make(record) for record in records]

    def read(
        self, max_records: int, key_of: KeyOf = header_key_text
    ) -> tuple[list[Record], InvalidBatch | None]:
        """Up to `max_records` records, and what made them fewer or lies behind the last one."""
        end = self._index + min(max(max_records, 0), self.remaining)
        facts = self._base_offset, self._base_timestamp_ms, key_of, self._position
        records: list[Record] = []
        fault = None
        try:
            position = decode_into(records, self._data, end - self._index, *facts)
        except (IndexError, MalformedRecord) as error:
            # Where the last good one ended is known only from reading so many and no more.
            good = len(records)
            fault = bad_record(error, self._index + good)
            records = []
            position = decode_into(records, self._data, good, *facts)
        self._position = position
        self._index += len(records)
        if fault is None and (self._index < end or end == self._count):
            try:
                check_consumed(self._index, self._count, self.bytes_left)
            except InvalidBatch as error:
                fault = error
        if records:
            self.next_offset = records[-1].offset + 1
        if self._append_time_ms is not None:
            for record in records:
                record.timestamp_ms = self._append_time_ms
        return records, fault

    @property
    def bytes_left(self) -> int:
        return len(self._data) - self._position


def decode_cursors(
    cursors: Sequence[RecordCursor],
    max_records: int | None = None,
    value_memory_of: Callable[[int], bytearray | None] | None = None,
) -> tuple[list[int], DecodedColumns]:
    """Take up to `max_records` records (None: all) from the cursors, in order, into columns.

    Returns (records taken from each cursor, columns as `decode_column_sections` makes them). The
    reading ends before a record that cannot be read, and before 2 GB are exceeded; when the bad
    record is the first, raises InvalidBatch.

    `value_memory_of`: asked once for memory of so many bytes at least, for the values to lie in;
    None, or what is too small, is no use. Here no memory is used but the values' own.
    """
    columns = ColumnWriter()
    counts = [0] * len(cursors)
    total_bytes = 0
    limit = sys.maxsize if max_records is None else max(max_records, 0)
    for number, cursor in enumerate(cursors):
        total_bytes += cursor.bytes_left
        if total_bytes > MAX_INT32 or (number and columns.row_count >= limit):
            break
        records, fault = cursor.read(limit - columns.row_count, bytes)
        columns.extend(records)
        counts[number] = len(records)
        if fault is not None:
            if not columns.row_count:
                raise fault
            break
    return counts, columns.finish()
