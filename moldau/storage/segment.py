"""LogSegment: one `.log` file with its indexes.

Owns: the file, the index entries written beside it, the byte positions of offsets, what is known of
the segment's timestamps, which byte ranges were checked, between which offsets its batches lie,
when the next segment must begin (`segment.bytes`, `segment.ms`). Must not: know offsets beyond its
own, producers or epochs.
Invariant: `size_bytes` is the end of the last whole append; indexes only name batches below it.
Only the active segment is appended to; closed segments are opened on demand and closed at any time.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from moldau.protocol.records import LOG_OVERHEAD, BatchHeader, InvalidBatch, InvalidBatchReason
from moldau.runtime.files import File
from moldau.runtime.filesystem import Filesystem
from moldau.storage.batch_scan import NO_END, BatchOrder, scan_headers
from moldau.storage.checkpoints import SegmentSeal
from moldau.storage.faults import is_out_of_room
from moldau.storage.indexes import AbortedTransaction, OffsetIndex, TimeIndex, TransactionIndex
from moldau.storage.log_config import LogConfig

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
OFFSET_DIGITS = 20

MAX_RELATIVE_OFFSET = 2**31 - 1

POSITION_HINT_COUNT = 128
"""Batch starts remembered per segment: those of the last appends and of the readers' next reads."""

TIME_INDEX_LOOK_BYTES = 1024 * 1024
"""How far behind its last entry a time index without a seal is compared with the batches."""

MAX_VERIFIED_RANGES = 256
"""Separate ranges remembered per segment; a random reader beyond that pays again."""

MAX_OPEN_CLOSED_SEGMENTS = 512
"""Closed segments of all logs of a process that keep their files open (up to three descriptors
each)."""


class ByteRange(NamedTuple):
    """Whole batches [position, end) of a segment; `next_offset` follows the last of them."""

    position: int
    end: int
    next_offset: int


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """A segment file's path: the base offset in 20 digits."""
    return os.path.join(directory, f"{base_offset:0{OFFSET_DIGITS}d}{suffix}")


class VerifiedRanges:
    """The bytes of a segment file that may be sent: ranges [start, end), merged where they touch.

    A range is added only after every batch in it passed its check (CRC, offsets, leader epochs);
    bytes that this process wrote need none while their segment is active. Ranges, not whole
    segments, because the check costs one pass over the bytes
    (CRC at about 25 GB/s, and one read that brings a cold range into the page cache anyway). The
    first reader of a range pays it, in the thread pool, for one response's bytes at a time.
    """

    __slots__ = ("_ends", "_starts", "trusted_from")

    def __init__(self, trusted_from: int) -> None:
        self.trusted_from = trusted_from
        """Bytes from here on were written to the active segment, or checked by recovery or
        compaction, in this process."""
        self._starts: list[int] = []
        self._ends: list[int] = []

    def covers(self, start: int, end: int) -> bool:
        end = min(end, self.trusted_from)
        if start >= end:
            return True
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and end <= self._ends[index]

    def add(self, start: int, end: int) -> None:
        """[start, end) was checked."""
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, start - 1)
        high = bisect_right(starts, end)
        if low < high:
            start = min(start, starts[low])
            end = max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
        if end >= self.trusted_from:
            self.trusted_from = min(start, self.trusted_from)
        if len(starts) > MAX_VERIFIED_RANGES:
            # Not the new one: its reader asks for it next, and would begin again.
            others = (i for i in range(len(starts)) if i != low)
            smallest = min(others, key=lambda i: ends[i] - starts[i])
            del starts[smallest], ends[smallest]

    def distrust(self, size_bytes: int) -> None:
        """The segment of `size_bytes` is closed: what is read from now on may come from the disk,
        and has to be checked unless it was.
        """
        self.trusted_from = size_bytes

    def truncate(self, size_bytes: int) -> None:
        """The file ends at `size_bytes` now; this process writes what follows."""
        self.trusted_from = min(self.trusted_from, size_bytes)


class OpenSegments:
    """The closed segments with open files, bounded: the least recently used one is closed first."""

    def __init__(self, limit: int = MAX_OPEN_CLOSED_SEGMENTS) -> None:
        self.limit = limit
        self._entries: OrderedDict[int, LogSegment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def touch(self, entry: LogSegment) -> None:
        """`entry` is opened or used; another segment may be closed for it."""
        key = id(entry)
        entries = self._entries
        if key in entries:
            entries.move_to_end(key)
            return
        while len(entries) >= self.limit:
            _, oldest = entries.popitem(last=False)
            oldest.close_descriptors()
        entries[key] = entry

    def forget(self, entry: LogSegment) -> None:
        """`entry` closed by itself (deleted, became active, shut down)."""
        self._entries.pop(id(entry), None)

    def close_all(self) -> None:
        while self._entries:
            _, entry = self._entries.popitem(last=False)
            entry.close_descriptors()


@dataclass(slots=True, eq=False, repr=False)
class LogSegment:
    """States: active (open for append) -> closed (on roll) -> deleted."""

    _filesystem: Filesystem
    _open_segments: OpenSegments
    directory: InitVar[str]
    base_offset: int
    size_bytes: int
    created_ms: int
    path: str = field(init=False)
    offset_index: OffsetIndex = field(init=False)
    time_index: TimeIndex = field(init=False)
    transaction_index: TransactionIndex = field(init=False)
    verified: VerifiedRanges = field(init=False)
    is_active: bool = False
    lowest_offset: int | None = None
    """Its first batch may begin below `base_offset`, down to here: only a log's first segment has
    such a batch, in which the log starts."""
    end_offset: int = NO_END
    """Where the next segment begins: no batch reaches it."""
    bytes_since_index_entry: int = 0
    hints: dict[int, int] = field(default_factory=dict)
    """Offset -> position of the batch that begins with it; bounded, oldest dropped."""
    _file: File | None = None
    _max_timestamp_ms: int | None = None
    _offset_of_max_timestamp: int = field(init=False)
    _rolling_base_timestamp_ms: int | None = None
    _last_crc: int | None = None
    """The CRC of the last batch, once it was seen."""

    def __post_init__(self, directory: str) -> None:
        base_offset, filesystem = self.base_offset, self._filesystem
        path, index_path, time_index_path, transaction_index_path = (
            segment_path(directory, base_offset, suffix) for suffix in SEGMENT_SUFFIXES
        )
        self.path = path
        self.offset_index = OffsetIndex(filesystem, index_path, base_offset)
        self.time_index = TimeIndex(filesystem, time_index_path, base_offset)
        self.transaction_index = TransactionIndex(filesystem, transaction_index_path)
        self.verified = VerifiedRanges(trusted_from=self.size_bytes)
        self._offset_of_max_timestamp = base_offset

    def __repr__(self) -> str:
        return f"LogSegment({self.path!r}, size_bytes={self.size_bytes})"

    def order(self, end_offset: int = NO_END) -> BatchOrder:
        """What a pass over its batches must find, up to `end_offset` at most."""
        end_offset = min(end_offset, self.end_offset, self.base_offset + MAX_RELATIVE_OFFSET + 1)
        return BatchOrder(self.base_offset, end_offset, lowest_offset=self.lowest_offset)

    # -- files -----------------------------------------------------------------------------------

    def file(self) -> File:
        """The open log file. Raises: OSError."""
        file = self._file
        if file is None:
            file = self._file = self._filesystem.open(self.path, write=self.is_active)
        if not self.is_active:
            self._open_segments.touch(self)
        return file

    def activate(self, config: LogConfig, *, create: bool = False) -> None:
        """Open for appending, with preallocated indexes. Raises: OSError with nothing kept open."""
        self._open_segments.forget(self)
        self.close_descriptors()
        preallocate_bytes = config.segment_bytes if create and config.preallocate else 0
        self._file = self._filesystem.open(
            self.path, create=create, exclusive=create, preallocate_bytes=preallocate_bytes
        )
        self.is_active = True
        try:
            self.offset_index.open_for_append(config.segment_index_bytes)
            self.time_index.open_for_append(config.segment_index_bytes)
        except OSError:
            self.abandon()
            raise

    def deactivate(self) -> None:
        """Add the last time index entry, trim the indexes, close for writing. Raises: OSError.

        Without a descriptor to trim them with, the files keep their preallocated length: the next
        lookup trims them, or the next start rebuilds them.
        """
        try:
            self.time_index.maybe_append(*self.max_timestamp())
            self.offset_index.trim()
            self.time_index.trim()
        except OSError as error:
            if not is_out_of_room(error):
                raise
            self.abandon()
            return
        self.is_active = False
        self.close_descriptors()

    def is_cut_back(self) -> bool:
        """Whether a failed append left nothing behind the segment's end. Raises: OSError."""
        file = self._file
        size_bytes = self._filesystem.size_bytes(self.path) if file is None else file.size_bytes
        return size_bytes == self.size_bytes

    def close_descriptors(self) -> None:
        """Give back descriptors and mappings; a closed segment opens them again on demand."""
        self._close_log_file()
        self.offset_index.unmap()
        self.time_index.unmap()

    def _close_log_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def abandon(self) -> None:
        """Close without writing: the disk fails, or the files are removed."""
        self._open_segments.forget(self)
        self.is_active = False
        self.offset_index.abandon()
        self.time_index.abandon()
        self.close_descriptors()

    def adopt_by(self, open_segments: OpenSegments) -> None:
        """Count against this set of open segments from now on (after recovery in a thread)."""
        self._open_segments.forget(self)
        if not self.is_active:
            self.close_descriptors()
        self._open_segments = open_segments

    def paths(self) -> list[str]:
        stem = self.path.removesuffix(LOG_SUFFIX)
        paths = (stem + suffix for suffix in SEGMENT_SUFFIXES)
        return [path for path in paths if self._filesystem.exists(path)]

    def discard(self) -> None:
        """Remove the files of a segment that was never written to. Raises: OSError."""
        self.abandon()
        for path in self.paths():
            self._filesystem.unlink(path)

    def rename_deleted(self) -> list[str]:
        """Close the segment and mark its files as deleted; returns their new paths.

        A response on its way to a client keeps its descriptor. Raises: OSError.
        """
        self.abandon()
        renamed = []
        for path in self.paths():
            self._filesystem.rename(path, path + DELETED_SUFFIX)
            renamed.append(path + DELETED_SUFFIX)
        return renamed

    # -- appending -------------------------------------------------------------------------------

    def append(
        self,
        records: bytearray | memoryview,
        batches: list[tuple[int, BatchHeader]],
        index_interval_bytes: int,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> None:
        """Write whole batches (headers as they will lie in the file) at the end.

        `aborted`: transactions that markers among them abort. Raises: OSError with the files cut
        back to their previous ends and nothing noted.
        """
        start = self.size_bytes
        file = self._file
        assert file is not None
        try:
            for each in aborted:  # First: without room in the index nothing is written.
                self.transaction_index.append(each)
            file.append(records)
        except OSError:
            if aborted:
                self.transaction_index.truncate_to(batches[0][1].base_offset)
            raise
        self.size_bytes = start + len(records)
        hints = self.hints
        for position, header in batches:
            base_offset = header.base_offset
            hints[base_offset] = start + position
            self.note_batch(start + position, header, index_interval_bytes)
        while len(hints) > POSITION_HINT_COUNT:
            del hints[next(iter(hints))]

    def note_batch(self, position: int, header: BatchHeader, index_interval_bytes: int) -> None:
        """Index and timestamp bookkeeping for one batch at `position` (append and recovery)."""
        last_offset = header.base_offset + header.last_offset_delta
        self._last_crc = header.crc
        timestamp_ms = header.max_timestamp_ms
        known = self._max_timestamp_ms
        if known is None:
            known = self.max_timestamp()[0]
        if position == 0:
            self._rolling_base_timestamp_ms = timestamp_ms
        if timestamp_ms > known:
            self._max_timestamp_ms = known = timestamp_ms
            self._offset_of_max_timestamp = last_offset
        if (
            self.bytes_since_index_entry > index_interval_bytes
            and not self.offset_index.is_full
            and self.offset_index.append(last_offset, position)
        ):
            self.time_index.maybe_append(known, self._offset_of_max_timestamp)
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += header.batch_length + LOG_OVERHEAD

    def max_timestamp(self) -> tuple[int, int]:
        """`(timestamp, last offset of its batch)` of the largest timestamp; -1 without any.

        Raises: OSError.
        """
        if self._max_timestamp_ms is None:
            if not self.is_active:
                self._open_segments.touch(self)
            entry = self.time_index.last_entry
            self._max_timestamp_ms, self._offset_of_max_timestamp = entry
        return self._max_timestamp_ms, self._offset_of_max_timestamp

    def rolling_base_timestamp_ms(self) -> int:
        """Max timestamp of the first batch, from which segment.ms counts; -1 without one.

        Raises: OSError, InvalidBatch.
        """
        if self._rolling_base_timestamp_ms is None:
            if self.size_bytes == 0:
                return -1
            _, header = next(scan_headers(self.file(), 0, self.size_bytes, self.order()))
            self._rolling_base_timestamp_ms = header.max_timestamp_ms
        return self._rolling_base_timestamp_ms

    def largest_timestamp_ms(self) -> int:
        """The age that counts for retention: largest record timestamp, or last change of the file.

        Raises: OSError.
        """
        timestamp_ms, _ = self.max_timestamp()
        return timestamp_ms if timestamp_ms >= 0 else self._filesystem.modified_ms(self.path)

    # -- reading ---------------------------------------------------------------------------------

    def find(self, record_offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch that ends at or after `record_offset`; None when the segment ends before.

        Raises: OSError; InvalidBatch when the file or its index is damaged.
        """
        for position, header in self._scan_from(*self.offset_index.lookup(record_offset)):
            if header.last_offset >= record_offset:
                return position, header
        return None

    def _scan_from(self, indexed: int, start: int) -> Iterator[tuple[int, BatchHeader]]:
        """The batches from `start` on, where the offset index has a batch that ends at `indexed`.

        Raises: OSError; InvalidBatch when the file is damaged or the index is wrong.
        """
        is_indexed = start != 0
        if is_indexed and not 0 <= start < self.size_bytes:
            reason = f"offset {indexed} is at byte {start} by the index"
            raise InvalidBatch(InvalidBatchReason.BAD_OFFSET, reason, position=0)
        for position, header in scan_headers(self.file(), start, self.size_bytes, self.order()):
            if is_indexed:
                last_offset = header.base_offset + header.last_offset_delta
                # Apache Kafka's entry may name the first of several batches and the last's offset.
                if last_offset > indexed:
                    raise InvalidBatch(
                        InvalidBatchReason.BAD_OFFSET,
                        f"no batch ends at offset {indexed}, which the index has",
                        position=position,
                    )
                is_indexed = last_offset < indexed
            yield position, header

    def locate(
        self,
        start_offset: int,
        end_offset: int,
        max_bytes: int,
        max_offset: int,
        *,
        min_one_message: bool,
    ) -> ByteRange | None:
        """The whole batches from the one that holds `start_offset`, within the bounds.

        `end_offset`: where this segment's offsets end (exclusive). `max_offset`: batches must end
        below it. None: no batch of this segment ends at or after `start_offset`.
        Raises: OSError; InvalidBatch when the file or its index is damaged.
        """
        size = self.size_bytes
        hints = self.hints
        position = hints.get(start_offset, -1)
        if position < 0:
            found = self.find(start_offset)
            if found is None:
                return None
            position = found[0]
        limit = size if max_offset >= end_offset else hints.get(max_offset, -1)
        if 0 <= limit - position <= max_bytes:
            return ByteRange(position, limit, min(max_offset, end_offset))
        file = self.file()
        cut = position + max_bytes
        start = max(position, self.offset_index.position_at_most(min(cut, size)))
        if max_offset < end_offset:
            _, below_max_offset = self.offset_index.lookup(max_offset - 1)
            start = max(position, min(start, below_max_offset))
        next_offset = end_offset
        for at, header in scan_headers(file, start, size, self.order(end_offset)):
            end = at + header.size_bytes
            if header.last_offset >= max_offset or (
                end > cut and not (at == position and min_one_message)
            ):
                next_offset = header.base_offset
                break
        else:
            at = size
        if position < at < size and next_offset not in hints:
            hints[next_offset] = at  # the reader asks for that batch next
            if len(hints) > POSITION_HINT_COUNT:
                del hints[next(iter(hints))]
        return ByteRange(position, at, next_offset)

    # -- rolling ---------------------------------------------------------------------------------

    def must_roll(
        self,
        size_bytes: int,
        batches: list[tuple[int, BatchHeader]],
        last_offset: int,
        now_ms: int,
        config: LogConfig,
    ) -> bool:
        """Whether an append must go to a new segment. Raises: OSError, InvalidBatch."""
        if (
            self.size_bytes + size_bytes > config.segment_bytes
            or last_offset - self.base_offset > MAX_RELATIVE_OFFSET
            or self.offset_index.is_full
            or self.time_index.is_full
        ):
            return True
        if not self.size_bytes:
            return False
        timestamp_ms = batches[0][1].max_timestamp_ms
        if len(batches) > 1:
            timestamp_ms = max([header.max_timestamp_ms for _, header in batches])
        base_ms = self.rolling_base_timestamp_ms()
        waited_ms = timestamp_ms - base_ms if base_ms >= 0 else now_ms - self.created_ms
        return waited_ms > config.max_segment_ms - self._roll_jitter_ms(config)

    def _roll_jitter_ms(self, config: LogConfig) -> int:
        """Spreads the rolls of logs begun together; the same for a segment after a restart."""
        limit = min(config.segment_jitter_ms, config.max_segment_ms)
        if limit <= 0:
            return 0
        log_name = os.path.basename(os.path.dirname(self.path))
        return zlib.crc32(f"{log_name}/{self.base_offset}".encode()) % limit

    # -- indexes ---------------------------------------------------------------------------------

    def indexes_are_sane(self) -> bool:
        """Whether the index files exist and their ends can be true. Raises: OSError, InvalidBatch.

        A power loss can leave an empty time index; it would hide the segment's timestamps from
        lookups and retention.
        """
        self.file()
        return (
            self.offset_index.exists()
            and self.time_index.exists()
            and self.offset_index.is_sane(self.size_bytes)
            and self.time_index.is_sane()
            and (self.time_index.entry_count > 0 or self.rolling_base_timestamp_ms() < 0)
        )

    def indexes_are_true(self, seal: SegmentSeal | None) -> bool:
        """Whether offset and time index are those that were sealed.

        Without a seal: whether some entries of the offset index, and the last one of the time
        index, are what the batches there say. Raises: OSError, InvalidBatch.
        """
        if seal is not None:
            checksums = self.offset_index.checksum(), self.time_index.checksum()
            return checksums == (seal.offset_index_crc, seal.time_index_crc)
        count = self.offset_index.entry_count
        for number in {0, count // 2, count - 1} if count else ():
            relative_offset, position = self.offset_index.entry(number)
            next(self._scan_from(self.base_offset + relative_offset, position), None)
        timestamp_ms, last_offset = self.time_index.last_entry
        if timestamp_ms < 0:
            return True
        found = self.find(last_offset)
        if found is None or found[1].max_timestamp_ms != timestamp_ms:
            return False
        for position, header in scan_headers(self.file(), found[0], self.size_bytes, self.order()):
            if header.max_timestamp_ms > timestamp_ms:
                return False
            if position - found[0] > TIME_INDEX_LOOK_BYTES:
                break
        return True

    def seal(self, snapshot_crc: int, epochs_crc: int) -> SegmentSeal:
        """What a closed segment and the files beside it hold; see `SegmentSeal` for the arguments.

        Raises: OSError; InvalidBatch when one of them is damaged.
        """
        if self._last_crc is None:
            self.check_end()
        try:
            transaction_index_crc = self.transaction_index.checksum()
        except ValueError as error:
            raise InvalidBatch(InvalidBatchReason.BAD_OFFSET, str(error)) from None
        assert self._last_crc is not None
        return SegmentSeal(
            self.base_offset,
            self.size_bytes,
            self._last_crc,
            self.offset_index.checksum(),
            self.time_index.checksum(),
            transaction_index_crc,
            snapshot_crc,
            epochs_crc,
        )

    def is_sealed_by(self, seal: SegmentSeal) -> bool:
        """Whether the seal speaks of these very batches (whose end was checked)."""
        return seal.speaks_of(self.size_bytes, self._last_crc)

    def begin_indexes(self, config: LogConfig) -> None:
        """Empty offset and time index, open for appending; no timestamps known. Raises: OSError."""
        self.offset_index.reset()
        self.time_index.reset()
        self.offset_index.open_for_append(config.segment_index_bytes)
        self.time_index.open_for_append(config.segment_index_bytes)
        self.bytes_since_index_entry = 0
        self._max_timestamp_ms = -1
        self._offset_of_max_timestamp = self.base_offset
        self._rolling_base_timestamp_ms = None

    def finish_indexes(self) -> None:
        """Last time index entry; indexes of a closed segment are trimmed. Raises: OSError."""
        if not self.is_active:
            self.time_index.maybe_append(*self.max_timestamp())
            self.offset_index.trim()
            self.time_index.trim()

    def rebuild_indexes(self, config: LogConfig) -> None:
        """Build offset and time index from the batch headers.

        Raises: OSError; InvalidBatch when the log file itself is damaged.
        """
        self.hints.clear()
        self.begin_indexes(config)
        for position, header in scan_headers(self.file(), 0, self.size_bytes, self.order()):
            self.note_batch(position, header, config.index_interval_bytes)
        self.finish_indexes()

    # -- cutting ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Remove the batches that reach to or past `offset`; returns where the log ends then.

        A batch that spans `offset` goes as a whole. Raises: OSError, InvalidBatch.
        """
        found = self.find(offset)
        if found is None:
            return offset
        position, header = found
        self.cut(position, header.base_offset)
        return min(offset, header.base_offset)

    def cut(self, position: int, end_offset: int) -> None:
        """Cut the file at byte `position`, where `end_offset` begins, and the indexes with it.

        Raises: OSError.
        """
        assert self.is_active, "only an active segment is cut"
        assert 0 <= position <= self.size_bytes
        self.offset_index.truncate_to(end_offset)
        self.time_index.truncate_to(end_offset)
        self.transaction_index.truncate_to(end_offset)
        self.file().truncate(position)
        self.size_bytes = position
        self.hints.clear()
        self._last_crc = None
        self.verified.truncate(position)
        self.bytes_since_index_entry = position - self.offset_index.position_at_most(position)
        self._max_timestamp_ms = None
        self._offset_of_max_timestamp = self.base_offset
        if position == 0:
            self._max_timestamp_ms = -1
            self._rolling_base_timestamp_ms = None
            return
        # Batches behind the last time index entry may have a larger timestamp than it.
        timestamp_ms, last_offset = self.time_index.last_entry
        _, start = self.offset_index.lookup(last_offset)
        for _, header in scan_headers(self.file(), start, position, self.order()):
            if header.max_timestamp_ms > timestamp_ms:
                timestamp_ms, last_offset = header.max_timestamp_ms, header.last_offset
        self._max_timestamp_ms, self._offset_of_max_timestamp = timestamp_ms, last_offset

    def cut_damaged_end(self, position: int) -> None:
        """Cut a closed segment's log file at byte `position`. Raises: OSError."""
        self._close_log_file()
        with closing(self._filesystem.open(self.path)) as file:
            file.truncate(position)
        self.size_bytes = position
        self._last_crc = None

    def check_end(self) -> BatchHeader | None:
        """The last batch's header; None for an empty segment.

        Raises: InvalidBatch when the file does not end with a whole batch, in its place; OSError.
        """
        file = self.file()
        start = self.offset_index.position_at_most(self.size_bytes)
        last = None
        for _, header in scan_headers(file, start, self.size_bytes, self.order()):
            last = header
        self._last_crc = 0 if last is None else last.crc
        return last
