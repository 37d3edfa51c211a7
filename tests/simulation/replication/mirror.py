"""A replica's log as the ledger sees it: the headers of its batches, in order.

Owns: comparing and cutting such lists, and reading one from a disk. Must not: know who leads.
Invariant: batches ascend by offset and do not overlap; two batches are the same exactly if their
tuples are equal (the CRC stands for the contents).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from moldau.protocol.records import iter_batches, verify_crc


class Batch(NamedTuple):
    """What identifies a batch, wherever it lies."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int


def batches_in(data: bytes | bytearray | memoryview, *, check: bool = False) -> Iterator[Batch]:
    """The batches of a stretch of a log; `check` compares each with its CRC."""
    for position, header in iter_batches(data):
        assert not check or verify_crc(data, position, header), f"damaged: {header}"
        yield Batch(
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            header.crc,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_sequence,
        )


class Mirror:
    """One replica's batches, or those that are committed."""

    __slots__ = ("batches", "last_offsets", "start_offset")

    def __init__(self, batches: list[Batch] | None = None, start_offset: int = 0) -> None:
        self.batches = [] if batches is None else batches
        self.last_offsets = [batch.last_offset for batch in self.batches]
        self.start_offset = start_offset

    def __repr__(self) -> str:
        return f"Mirror({self.start_offset}..{self.end_offset}, {self.batches[-3:]})"

    @property
    def end_offset(self) -> int:
        """Where the next batch would begin, as far as batches tell."""
        return self.last_offsets[-1] + 1 if self.last_offsets else self.start_offset

    @property
    def last(self) -> Batch | None:
        """The last batch."""
        return self.batches[-1] if self.batches else None

    def append(self, batch: Batch) -> None:
        """One more at the end."""
        self.batches.append(batch)
        self.last_offsets.append(batch.last_offset)

    def cut(self, end_offset: int) -> list[Batch]:
        """Drop what reaches to or beyond `end_offset`; what that was."""
        index = bisect_left(self.last_offsets, end_offset)
        dropped = self.batches[index:]
        del self.batches[index:]
        del self.last_offsets[index:]
        return dropped

    def between(self, start_offset: int, end_offset: int) -> list[Batch]:
        """The batches that lie, but for their beginning, between two offsets."""
        first = bisect_left(self.last_offsets, start_offset)
        return self.batches[first : bisect_right(self.last_offsets, end_offset - 1)]

    def at(self, offset: int) -> Batch | None:
        """The batch that holds an offset."""
        index = bisect_left(self.last_offsets, offset)
        if index == len(self.batches) or self.batches[index].base_offset > offset:
            return None
        return self.batches[index]

    def lacks(self, wanted: list[Batch]) -> list[Batch]:
        """Those of `wanted` (in order) that are not here."""
        if not wanted:
            return []
        first = bisect_left(self.last_offsets, wanted[0].last_offset)
        if self.batches[first : first + len(wanted)] == wanted:
            return []
        here = set(self.batches)
        return [batch for batch in wanted if batch not in here]


def read_mirror(log: Any, *, check: bool = False) -> Mirror:
    """What really is in a log's files now."""
    batches: list[Batch] = []
    for segment in log.segments:
        data = _contents(log, segment)
        batches.extend(batches_in(data, check=check))
    return Mirror(batches, log.log_start_offset)


def read_bytes(log: Any, offset: int) -> bytes:
    """The batches from the one that begins at `offset` on."""
    found = b""
    for segment in log.segments:
        data = _contents(log, segment)
        for position, header in iter_batches(data):
            if header.base_offset >= offset:
                found += data[position:]
                break
    return found


def _contents(log: Any, segment: Any) -> bytes:
    """What was written to a segment."""
    data = bytes(log.filesystem.file_node(segment.path).data[: segment.size_bytes])
    directories = getattr(getattr(log.filesystem, "owner", None), "directories", None)
    return data if directories is None else bytes(directories.as_written(segment.path, data))
