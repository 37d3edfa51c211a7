"""Checking one segment's files against each other, for `moldau log verify`.

Owns: the log file's batches (frame, CRC, offsets, on request the records inside), and what its
indexes claim about them. Must not: change a file or know other segments.
Invariant: memory is bounded by the index files and one batch. Checking goes on after damage in an
index, and ends at the first damage of the log file: what follows has no known frame.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    InvalidBatch,
    decode_records,
    read_batch_header,
    validate_records,
)
from moldau.runtime.filesystem import File, Filesystem
from moldau.storage.dump_batches import MAX_DECODED_BYTES, batch_crc

_INDEX_ENTRY: Final = Struct(">ii")
_TIME_INDEX_ENTRY: Final = Struct(">qi")
_TXN_INDEX_ENTRY: Final = Struct(">hqqqq")


class Severity(Enum):
    """How bad a finding is.

    NOTE: as expected after a crash, or worth knowing. WARNING: a file that is made anew from the
    log by itself. DAMAGE: flushed bytes are wrong or missing; the partition is taken offline.
    """

    NOTE = "note"
    WARNING = "warning"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be. `position` is a byte position in `file`."""

    severity: Severity
    file: str
    position: int | None
    reason: str

    def __str__(self) -> str:
        where = "" if self.position is None else f" at byte {self.position}"
        return f"{self.severity.name}: {self.file}{where}: {self.reason}"


@dataclass(slots=True)
class SegmentFacts:
    """What the check of one segment learned. `end_position` is where its good bytes end."""

    base_offset: int
    next_offset: int
    end_position: int = 0
    size_bytes: int = 0
    batch_count: int = 0
    record_count: int = 0
    max_timestamp_ms: int = -1
    last_leader_epoch: int = -1


class SegmentVerifier:
    """One pass over a segment; `findings` yields as it goes, `facts` is complete after it."""

    def __init__(
        self,
        filesystem: Filesystem,
        log_path: str,
        *,
        recovery_point: int | None,
        is_last: bool,
        allows_gaps: bool,
        deep: bool,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """`recovery_point`: what is below it was flushed; None when that is not known."""
        self._filesystem = filesystem
        self._log_path = log_path
        self._stem = log_path.removesuffix(".log")
        self._recovery_point = recovery_point
        self._is_last = is_last
        self._allows_gaps = allows_gaps
        self._deep = deep
        self._on_progress = on_progress
        base_offset = int(os.path.basename(self._stem))
        self.facts = SegmentFacts(base_offset, base_offset)

    def findings(self) -> Iterator[Finding]:
        """Raises: OSError of the log file itself."""
        index = _IndexWalk(self._filesystem, self._stem + ".index", self.facts.base_offset)
        times = _TimeIndexWalk(self._filesystem, self._stem + ".timeindex", self.facts)
        yield from index.problems
        yield from times.problems
        file = self._filesystem.open(self._log_path, write=False)
        try:
            self.facts.size_bytes = file.size_bytes
            for position, header in self._batches(file):
                yield from self._content_findings(file, position, header)
                yield from index.batch(position, header)
                yield from times.batch(header)
        except InvalidBatch as error:
            yield self._log_damage(file, error)
            if self._on_progress is not None:
                self._on_progress(file.size_bytes - self.facts.end_position)
        finally:
            file.close()
        yield from index.end(self.facts.end_position)
        yield from times.end(self.facts.next_offset)
        yield from _txn_index_findings(self._filesystem, self._stem + ".txnindex", self.facts)

    def _batches(self, file: File) -> Iterator[tuple[int, BatchHeader]]:
        """Each batch whose frame, CRC and offsets are good. Raises: InvalidBatch, OSError."""
        facts = self.facts
        position = 0
        end = file.size_bytes
        while position < end:
            header = _framed(file, position, end, facts.next_offset, self._is_first_batch())
            facts.batch_count += 1
            facts.record_count += header.record_count
            yield position, header
            position += header.size_bytes
            if self._on_progress is not None:
                self._on_progress(header.size_bytes)
            facts.end_position = position
            facts.next_offset = header.next_offset
            facts.max_timestamp_ms = max(facts.max_timestamp_ms, header.max_timestamp_ms)
            facts.last_leader_epoch = header.partition_leader_epoch

    def _is_first_batch(self) -> bool:
        return self.facts.batch_count == 0

    def _content_findings(
        self, file: File, position: int, header: BatchHeader
    ) -> Iterator[Finding]:
        gap = header.base_offset - self.facts.next_offset
        if gap > 0 and not self._allows_gaps:
            yield self._finding(
                Severity.WARNING,
                position,
                f"offsets {self.facts.next_offset} to {header.base_offset - 1} are missing",
            )
        if header.partition_leader_epoch < self.facts.last_leader_epoch:
            yield self._finding(
                Severity.WARNING,
                position,
                f"leader epoch {header.partition_leader_epoch} after "
                f"{self.facts.last_leader_epoch}",
            )
        if self._deep and header.size_bytes <= MAX_DECODED_BYTES:
            try:
                data = file.pread(header.size_bytes, position)
                if self._allows_gaps:
                    # Compaction takes single records out of a batch: their count and deltas vary.
                    decode_records(data)
                else:
                    validate_records(data, 0, header, from_client=False)
            except InvalidBatch as error:
                reason = f"the CRC matches, the records are not valid: {error.message}"
                yield self._finding(Severity.DAMAGE, position, reason)

    def _log_damage(self, file: File, error: InvalidBatch) -> Finding:
        """What the first bad bytes mean depends on whether they were ever flushed."""
        facts = self.facts
        next_offset = facts.next_offset
        left = file.size_bytes - error.position
        text = f"{error.message}; {left} bytes from offset {next_offset} on cannot be read"
        if self._recovery_point is None:
            return self._finding(Severity.DAMAGE, error.position, text)
        if next_offset < self._recovery_point:
            reason = f"{text}, below the recovery point {self._recovery_point}"
            return self._finding(Severity.DAMAGE, error.position, reason)
        if self._is_last:
            reason = f"{text}, not flushed: recovery cuts the log here"
            return self._finding(Severity.NOTE, error.position, reason)
        reason = f"{text}, not flushed: recovery cuts the log here and drops later segments"
        return self._finding(Severity.WARNING, error.position, reason)

    def _finding(self, severity: Severity, position: int | None, reason: str) -> Finding:
        return Finding(severity, self._log_path, position, reason)


def _framed(file: File, position: int, end: int, next_offset: int, is_first: bool) -> BatchHeader:
    """The header of a batch whose frame, CRC and base offset are good. Raises: InvalidBatch."""
    from moldau.protocol.records import InvalidBatchReason as Reason

    head = file.pread(min(BATCH_HEADER_SIZE, end - position), position)
    try:
        header = read_batch_header(head)
    except InvalidBatch as error:
        raise error.at(position) from None
    if position + header.size_bytes > end:
        text = f"a batch of {header.size_bytes} bytes where {end - position} are left"
        raise InvalidBatch(Reason.TRUNCATED, text, position=position)
    if batch_crc(file, position, header) != header.crc:
        raise InvalidBatch(Reason.BAD_CRC, "the CRC does not match", position=position)
    straddles = is_first and header.last_offset >= next_offset
    if header.last_offset_delta < 0 or (header.base_offset < next_offset and not straddles):
        text = f"base offset {header.base_offset} where {next_offset} is next"
        raise InvalidBatch(Reason.BAD_OFFSET, text, position=position)
    return header


class _IndexWalk:
    """Offset index entries, compared in one pass with the batches of the log file."""

    def __init__(self, filesystem: Filesystem, path: str, base_offset: int) -> None:
        self._path = path
        self.problems: list[Finding] = []
        self._entries = list(_entries(filesystem, path, _INDEX_ENTRY, self.problems))
        self._base_offset = base_offset
        self._next = 0

    def batch(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        end = position + header.size_bytes
        while self._next < len(self._entries) and self._entries[self._next][1] < end:
            relative_offset, indexed = self._entries[self._next]
            offset = self._base_offset + relative_offset
            if indexed != position:
                yield self._wrong(f"offset {offset} at {indexed}, where no batch begins")
            elif offset != header.last_offset:
                yield self._wrong(
                    f"offset {offset} at {indexed}, the batch ends in {header.last_offset}"
                )
            self._next += 1

    def end(self, end_position: int) -> Iterator[Finding]:
        if self._next < len(self._entries):
            left = len(self._entries) - self._next
            yield self._wrong(f"{left} entries point behind the good bytes ({end_position})")

    def _wrong(self, reason: str) -> Finding:
        return Finding(Severity.WARNING, self._path, self._next * _INDEX_ENTRY.size, reason)


class _TimeIndexWalk:
    """Time index entries, compared in one pass with the batches of the log file."""

    def __init__(self, filesystem: Filesystem, path: str, facts: SegmentFacts) -> None:
        self._path = path
        self.problems: list[Finding] = []
        self._entries = list(_entries(filesystem, path, _TIME_INDEX_ENTRY, self.problems))
        self._facts = facts
        self._next = 0
        previous = (-1, -1)
        for number, entry in enumerate(self._entries):
            if entry[0] < previous[0] or entry[1] < previous[1]:
                self.problems.append(self._wrong(f"entry {entry} after {previous}", number))
            previous = (entry[0], entry[1])

    def batch(self, header: BatchHeader) -> Iterator[Finding]:
        facts = self._facts
        max_timestamp_ms = max(facts.max_timestamp_ms, header.max_timestamp_ms)
        while self._next < len(self._entries):
            timestamp_ms, relative_offset = self._entries[self._next]
            offset = facts.base_offset + relative_offset
            if offset > header.last_offset:
                return
            if timestamp_ms < max_timestamp_ms and timestamp_ms >= 0:
                yield self._wrong(
                    f"offset {offset} with {timestamp_ms}, the log has {max_timestamp_ms} by then",
                    self._next,
                )
            self._next += 1

    def end(self, next_offset: int) -> Iterator[Finding]:
        for number in range(self._next, len(self._entries)):
            offset = self._facts.base_offset + self._entries[number][1]
            if offset >= next_offset and self._entries[number][0] > 0:
                yield self._wrong(f"offset {offset} is not in the log", number)

    def _wrong(self, reason: str, number: int) -> Finding:
        return Finding(Severity.WARNING, self._path, number * _TIME_INDEX_ENTRY.size, reason)


def _entries(
    filesystem: Filesystem, path: str, entry: Struct, problems: list[Finding]
) -> Iterator[tuple[int, int]]:
    """Entries without the preallocated zeros; the file's own problems go to `problems`."""
    try:
        data = filesystem.read_bytes(path)
    except FileNotFoundError:
        problems.append(Finding(Severity.WARNING, path, None, "the index is missing"))
        return
    used = len(data.rstrip(b"\0"))
    count = min(-(-used // entry.size), len(data) // entry.size)
    if used > count * entry.size:
        reason = f"{len(data)} bytes are no whole entries"
        problems.append(Finding(Severity.WARNING, path, count * entry.size, reason))
    previous = -1
    for number in range(count):
        first, second = entry.unpack_from(data, number * entry.size)
        if entry is _INDEX_ENTRY and (first < 0 or second <= previous):
            reason = f"entry {number} does not ascend"
            problems.append(Finding(Severity.WARNING, path, number * entry.size, reason))
            return
        previous = second
        yield first, second


def _txn_index_findings(
    filesystem: Filesystem, path: str, facts: SegmentFacts
) -> Iterator[Finding]:
    try:
        data = filesystem.read_bytes(path)
    except FileNotFoundError:
        return
    size = _TXN_INDEX_ENTRY.size
    if len(data) % size:
        position = len(data) // size * size
        yield Finding(Severity.WARNING, path, position, f"{len(data)} bytes are no whole entries")
    previous = -1
    for number in range(len(data) // size):
        version, _, first, last, _ = _TXN_INDEX_ENTRY.unpack_from(data, number * size)
        reason = ""
        if version != 0:
            reason = f"entry of unknown version {version}"
        elif not first <= last or last <= previous:
            reason = f"offsets {first} to {last} are not in order"
        elif not facts.base_offset <= last < facts.next_offset:
            reason = f"offset {last} is not in the segment"
        if reason:
            yield Finding(Severity.WARNING, path, number * size, reason)
        previous = last
