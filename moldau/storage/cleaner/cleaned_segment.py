"""CleanedSegment: the `.cleaned` files of a segment that is being rewritten.

Owns: writing the log file with its three indexes, and making them durable together.
Must not: decide what is written, or rename (`swap` does).
Invariant: before `finish` returned nothing promises anything; files of the same names that an
interrupted cleaning left are replaced, never written into.
"""

from __future__ import annotations

from moldau.protocol.records import LOG_OVERHEAD, BatchHeader
from moldau.runtime.filesystem import File, Filesystem
from moldau.storage.offset_index import OffsetIndex
from moldau.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from moldau.storage.time_index import TimeIndex
from moldau.storage.transaction_index import AbortedTransaction, encode_entries

CLEANED_SUFFIX = ".cleaned"
MAX_SEGMENT_BYTES = 2**31 - 1
"""What an index entry can point into."""


class SegmentTooLarge(Exception):
    """What stays of a segment, compressed anew, is more than one file can have."""


class CleanedSegment:
    """States: made -> batches are added -> finished, or discarded."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        max_index_bytes: int,
        buffer_bytes: int,
    ) -> None:
        """Raises: OSError."""
        self._filesystem = filesystem
        self._directory = directory
        self.base_offset = base_offset
        self._index_interval_bytes = index_interval_bytes
        self._max_offset_entries = max_index_bytes // OffsetIndex.ENTRY.size
        self._max_time_entries = max_index_bytes // TimeIndex.ENTRY.size - 1
        self._buffer_bytes = buffer_bytes
        self._buffer = bytearray()
        self._offset_entries = bytearray()
        self._time_entries = bytearray()
        self._aborted: list[AbortedTransaction] = []
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

    def add_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Transactions whose markers are in this segment."""
        self._aborted += entries

    def finish(self) -> None:
        """All four files are complete and on stable storage, their names too. Raises: OSError."""
        self._write_buffer()
        file = self._file
        assert file is not None
        file.fsync()
        self._close()
        self._max_time_entries += 1  # one is kept for the segment's last word
        self._note_time()
        self._write_index(INDEX_SUFFIX, self._offset_entries)
        self._write_index(TIME_INDEX_SUFFIX, self._time_entries)
        if self._aborted:
            self._write_index(TXN_INDEX_SUFFIX, encode_entries(self._aborted))
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
        file = self._filesystem.open(self._path(suffix), exclusive=True)
        try:
            if data:
                file.append(data)
            file.fsync()
        finally:
            file.close()


def remove_cleaned_files(filesystem: Filesystem, directory: str) -> None:
    """What an interrupted cleaning left: nothing of it counts. Raises: OSError."""
    for name in filesystem.listdir(directory):
        if name.endswith(CLEANED_SUFFIX):
            filesystem.unlink(f"{directory}/{name}")
