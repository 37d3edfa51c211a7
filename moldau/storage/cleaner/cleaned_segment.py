"""CleanedSegment: the `.cleaned` files of a rewritten segment, and putting them in the log.

Owns: writing the log file with its three indexes, making them durable together, the order of
renames, and what each state of the names means at the next start:
(1) `.cleaned`, all or some of them: nothing happened; they are removed. (2) `.log.swap`: the new
segment counts; the names that still say `.cleaned` follow, sources within its offsets are removed,
then it takes their place. (3) `.swap` of indexes only: its log has taken its place; they follow.
Must not: decide what is written, choose segments, or wait between two renames.
Invariant: after a crash at any point a log consists of the sources or of what replaces them, never
of both; a response that is sent from a source keeps its descriptor. Names and order are Kafka's, so
that Kafka and Moldau finish what the other began.
"""

from __future__ import annotations

from contextlib import closing

from moldau.protocol.records import LOG_OVERHEAD, BatchHeader
from moldau.runtime.files import File
from moldau.runtime.filesystem import Filesystem
from moldau.storage.batch_scan import BatchOrder, bad_offset, scan_headers
from moldau.storage.cleaner.job import CleaningJob
from moldau.storage.indexes import AbortedTransaction, OffsetIndex, TimeIndex, encode_entries
from moldau.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    OFFSET_DIGITS,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)

CLEANED_SUFFIX = ".cleaned"
MAX_SEGMENT_BYTES = 2**31 - 1
"""The largest position of an index entry."""


class SegmentTooLarge(Exception):
    """The recompressed rest of a segment is larger than a file can be."""


class CleanedSegment:
    """States: made -> batches are added -> finished, or discarded."""

    def __init__(self, filesystem: Filesystem, job: CleaningJob, base_offset: int) -> None:
        """Raises: OSError."""
        self._filesystem = filesystem
        self._directory = job.directory
        self.base_offset = base_offset
        self._index_interval_bytes = job.index_interval_bytes
        self._max_offset_entries = job.segment_index_bytes // OffsetIndex.ENTRY.size
        self._max_time_entries = job.segment_index_bytes // TimeIndex.ENTRY.size - 1
        self._buffer_bytes = job.io_bytes
        self._buffer = bytearray()
        self._offset_entries = bytearray()
        self._time_entries = bytearray()
        self.aborted: list[AbortedTransaction] = []
        self._bytes_since_entry = 0
        self._max_timestamp = (-1, 0)
        self._last_time_entry = (-1, 0)
        self.size_bytes = 0
        for suffix in SEGMENT_SUFFIXES:
            if filesystem.exists(self._path(suffix)):
                filesystem.unlink(self._path(suffix))
        self._file: File | None = filesystem.open(self._path(LOG_SUFFIX), exclusive=True)

    def _path(self, suffix: str) -> str:
        return segment_path(self._directory, self.base_offset, suffix) + CLEANED_SUFFIX

    def add(self, header: BatchHeader, data: bytes | bytearray | memoryview) -> None:
        """Append one batch. Raises: OSError, SegmentTooLarge."""
        relative = header.last_offset - self.base_offset
        assert 0 <= relative <= MAX_RELATIVE_OFFSET
        if self.size_bytes + len(data) > MAX_SEGMENT_BYTES:
            raise SegmentTooLarge(f"more than {MAX_SEGMENT_BYTES} bytes from {self.base_offset} on")
        if header.max_timestamp_ms > self._max_timestamp[0]:
            self._max_timestamp = (header.max_timestamp_ms, relative)
        if self._bytes_since_entry > self._index_interval_bytes:
            if len(self._offset_entries) < self._max_offset_entries * OffsetIndex.ENTRY.size:
                self._offset_entries += OffsetIndex.ENTRY.pack(relative, self.size_bytes)
            self._note_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.batch_length + LOG_OVERHEAD
        self._buffer += data
        self.size_bytes += len(data)
        if len(self._buffer) >= self._buffer_bytes:
            self._write_buffer()

    def finish(self) -> None:
        """Complete all files and make them and their names durable. Raises: OSError."""
        self._write_buffer()
        file = self._file
        assert file is not None
        file.fsync()
        self._close()
        self._max_time_entries += 1  # one is kept for the end of the segment
        self._note_time()
        self._write_index(INDEX_SUFFIX, self._offset_entries)
        self._write_index(TIME_INDEX_SUFFIX, self._time_entries)
        if self.aborted:
            self._write_index(TXN_INDEX_SUFFIX, encode_entries(self.aborted))
        self._filesystem.fsync_directory(self._directory)

    def discard(self) -> None:
        """Remove what there is (idempotent). Raises: OSError."""
        self._close()
        remove_cleaned_files(self._filesystem, self._directory)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write_buffer(self) -> None:
        assert self._file is not None
        if self._buffer:
            self._file.append(self._buffer)
            self._buffer = bytearray()

    def _note_time(self) -> None:
        timestamp_ms, relative = self._max_timestamp
        last_ms, last_relative = self._last_time_entry
        if (
            timestamp_ms > last_ms
            and relative >= last_relative
            and len(self._time_entries) < self._max_time_entries * TimeIndex.ENTRY.size
        ):
            self._time_entries += TimeIndex.ENTRY.pack(timestamp_ms, relative)
            self._last_time_entry = self._max_timestamp

    def _write_index(self, suffix: str, data: bytes | bytearray) -> None:
        with closing(self._filesystem.open(self._path(suffix), exclusive=True)) as file:
            if data:
                file.append(data)
            file.fsync()


def remove_cleaned_files(filesystem: Filesystem, directory: str) -> None:
    """Remove what an interrupted cleaning left. Raises: OSError."""
    for name in filesystem.listdir(directory):
        if name.endswith(CLEANED_SUFFIX):
            filesystem.unlink(f"{directory}/{name}")


SWAP_SUFFIX = ".swap"


def finish_swaps(filesystem: Filesystem, directory: str) -> None:
    """Finish or undo a `LogCleaner`'s swap, or Apache Kafka's, after a stop at any point of it.

    Raises: OSError, InvalidBatch.
    """
    names = filesystem.listdir(directory)
    cleaned = {name for name in names if name.endswith(CLEANED_SUFFIX)}
    swaps = {name for name in names if name.endswith(SWAP_SUFFIX)}
    if not cleaned and not swaps:
        return
    first_cleaned = min((name[:OFFSET_DIGITS] for name in cleaned), default=None)
    for name in sorted(swaps):
        # Kafka splits a segment into several; as long as not all of them are complete, none is.
        if first_cleaned is not None and name[:OFFSET_DIGITS] > first_cleaned:
            filesystem.unlink(f"{directory}/{name}")
            swaps.discard(name)
    for name in sorted(swaps):
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _finish_swap(filesystem, directory, name[:OFFSET_DIGITS], cleaned)
    for name in sorted(cleaned):
        if filesystem.exists(f"{directory}/{name}"):
            filesystem.unlink(f"{directory}/{name}")
    for name in filesystem.listdir(directory):
        if name.endswith(SWAP_SUFFIX):
            _finish_index(filesystem, directory, name)
    filesystem.fsync_directory(directory)


def _finish_swap(filesystem: Filesystem, directory: str, digits: str, cleaned: set[str]) -> None:
    for suffix in SEGMENT_SUFFIXES:
        if digits + suffix + CLEANED_SUFFIX in cleaned:
            path = f"{directory}/{digits}{suffix}"
            filesystem.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    log_path = f"{directory}/{digits}{LOG_SUFFIX}"
    base_offset = int(digits)
    end_offset = _end_offset(filesystem, log_path + SWAP_SUFFIX, base_offset)
    found = [name for name in filesystem.listdir(directory) if name.endswith(SEGMENT_SUFFIXES)]
    bases = {name: int(name[:OFFSET_DIGITS]) for name in found if name[:OFFSET_DIGITS].isdigit()}
    if base_offset < max(bases.values(), default=0) < end_offset:
        reason = f"{log_path}{SWAP_SUFFIX} reaches to {end_offset}, beyond all closed segments"
        raise bad_offset(0, reason)
    for name, base in bases.items():
        if base_offset <= base < max(end_offset, base_offset + 1):
            filesystem.unlink(f"{directory}/{name}")
    filesystem.rename(log_path + SWAP_SUFFIX, log_path)


def _end_offset(filesystem: Filesystem, path: str, base_offset: int) -> int:
    order = BatchOrder(base_offset, base_offset + MAX_RELATIVE_OFFSET + 1, lowest_offset=0)
    with closing(filesystem.open(path, write=False)) as file:
        for _ in scan_headers(file, 0, file.size_bytes, order):
            pass
    return order.next_offset


def _finish_index(filesystem: Filesystem, directory: str, name: str) -> None:
    path = f"{directory}/{name}".removesuffix(SWAP_SUFFIX)
    if filesystem.exists(f"{directory}/{name[:OFFSET_DIGITS]}{LOG_SUFFIX}"):
        filesystem.rename(path + SWAP_SUFFIX, path)
    else:
        filesystem.unlink(path + SWAP_SUFFIX)
