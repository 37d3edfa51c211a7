"""Making a segment's indexes again from its log file.

Owns: the rebuild of offset and time index for one segment, and the cheap checks that tell whether
it is needed.
Must not: cut log files or judge damage (log_recovery does).
Invariant: after a rebuild the indexes name exactly batches that are in the file.
"""

from __future__ import annotations

from moldau.storage.batch_scan import scan_headers
from moldau.storage.log_config import LogConfig
from moldau.storage.segment import LogSegment


def indexes_are_sane(segment: LogSegment) -> bool:
    """Whether the index files are there and their ends can be true. Raises: OSError, InvalidBatch.

    An empty time index is what a power loss can leave of one; it would hide the segment's
    timestamps from lookups and retention.
    """
    segment.file()
    return (
        segment.offset_index.exists()
        and segment.time_index.exists()
        and segment.offset_index.is_sane(segment.size_bytes)
        and segment.time_index.is_sane()
        and (segment.time_index.entry_count > 0 or segment.rolling_base_timestamp_ms() < 0)
    )


def begin_indexes(segment: LogSegment, config: LogConfig) -> None:
    """Empty indexes, open for appending, and no timestamps known. Raises: OSError."""
    segment.offset_index.reset()
    segment.time_index.reset()
    segment.offset_index.open_for_append(config.segment_index_bytes)
    segment.time_index.open_for_append(config.segment_index_bytes)
    segment.forget_timestamps()


def finish_indexes(segment: LogSegment) -> None:
    """The time index's last word; indexes of a closed segment are trimmed. Raises: OSError."""
    if not segment.is_active:
        segment.time_index.maybe_append(*segment.max_timestamp())
        segment.offset_index.trim()
        segment.time_index.trim()


def rebuild_indexes(segment: LogSegment, config: LogConfig) -> None:
    """Make offset and time index anew from the batch headers.

    Raises: OSError; InvalidBatch when the log file itself is damaged.
    """
    segment.hints.clear()
    begin_indexes(segment, config)
    for position, header in scan_headers(segment.file(), 0, segment.size_bytes):
        segment.note_batch(position, header, config.index_interval_bytes)
    finish_indexes(segment)
