"""Putting a cleaned segment in the place of its sources, and finishing that after a crash.

Owns: the order of renames, and what each state of the names means at the next start:
(1) `.cleaned`, all or some of them: nothing happened; they go. (2) `.log.swap`: the new segment
counts; the names that still say `.cleaned` follow, sources within its offsets go, then it takes
their place. (3) `.swap` of indexes only: its log has taken its place; they follow.
Must not: choose segments, or wait: between two renames nothing else happens to the log.
Invariant: after a crash at any point a log is made of the sources or of what stands for them, never
of both; who reads from a source keeps its descriptor. Kafka's names and order, so that either of
us finishes what the other began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moldau.runtime.filesystem import Filesystem
from moldau.storage.batch_scan import scan_headers
from moldau.storage.cleaner.cleaned_segment import CLEANED_SUFFIX
from moldau.storage.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    LogSegment,
    segment_path,
)

if TYPE_CHECKING:
    from moldau.storage.log import Log

SWAP_SUFFIX = ".swap"
_OFFSET_DIGITS = 20


def swap_in(log: Log, sources: Sequence[LogSegment], size_bytes: int) -> list[str]:
    """The `.cleaned` files at the first source's base offset take the place of `sources`, which
    are neighbours in `log.segments`.

    Returns the sources' files under their new names, to be removed once the renames are durable
    (the caller's to see to). Raises: OSError; then the log must not be used any more.
    """
    filesystem, directory = log.filesystem, log.directory
    base_offset = sources[0].base_offset
    first = log.segments.index(sources[0])
    assert log.segments[first : first + len(sources)] == list(sources)
    assert not sources[-1].is_active
    assert sources[-1] is not log.active_segment
    paths = [segment_path(directory, base_offset, suffix) for suffix in SEGMENT_SUFFIXES]
    paths = [path for path in paths if filesystem.exists(path + CLEANED_SUFFIX)]
    for path in paths:
        filesystem.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    removed = []
    for source in sources:
        source.abandon()
        for path in source.paths():
            filesystem.rename(path, path + DELETED_SUFFIX)
            removed.append(path + DELETED_SUFFIX)
    for path in paths:
        filesystem.rename(path + SWAP_SUFFIX, path)
    segment = LogSegment(
        filesystem, log.open_segments, directory, base_offset, size_bytes, sources[0].created_ms
    )
    segment.verified.trusted_from = 0  # Each of its bytes was checked when it was written.
    log.replacement_count += 1
    log.set_segments([*log.segments[:first], segment, *log.segments[first + len(sources) :]])
    for source in sources[1:]:
        log.producer_state.remove_snapshot(source.base_offset)
    return removed


def finish_swaps(filesystem: Filesystem, directory: str) -> None:
    """Bring the names of a directory in order after a stop at any point of `swap_in`, or of the
    same work by Apache Kafka. Raises: OSError, InvalidBatch.
    """
    names = filesystem.listdir(directory)
    cleaned = {name for name in names if name.endswith(CLEANED_SUFFIX)}
    swaps = {name for name in names if name.endswith(SWAP_SUFFIX)}
    if not cleaned and not swaps:
        return
    first_cleaned = min((name[:_OFFSET_DIGITS] for name in cleaned), default=None)
    for name in sorted(swaps):
        # Kafka splits a segment into several; as long as not all of them are complete, none is.
        if first_cleaned is not None and name[:_OFFSET_DIGITS] > first_cleaned:
            filesystem.unlink(f"{directory}/{name}")
            swaps.discard(name)
    for name in sorted(swaps):
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _finish_swap(filesystem, directory, name[:_OFFSET_DIGITS], cleaned)
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
    for name in filesystem.listdir(directory):
        offset = name[:_OFFSET_DIGITS]
        is_segment = name.endswith(SEGMENT_SUFFIXES) and offset.isdigit()
        if is_segment and base_offset <= int(offset) < max(end_offset, base_offset + 1):
            filesystem.unlink(f"{directory}/{name}")
    filesystem.rename(log_path + SWAP_SUFFIX, log_path)


def _end_offset(filesystem: Filesystem, path: str, base_offset: int) -> int:
    file = filesystem.open(path, write=False)
    try:
        end_offset = base_offset
        for _, header in scan_headers(file, 0, file.size_bytes):
            end_offset = header.next_offset
        return end_offset
    finally:
        file.close()


def _finish_index(filesystem: Filesystem, directory: str, name: str) -> None:
    path = f"{directory}/{name}".removesuffix(SWAP_SUFFIX)
    if filesystem.exists(f"{directory}/{name[:_OFFSET_DIGITS]}{LOG_SUFFIX}"):
        filesystem.rename(path + SWAP_SUFFIX, path)
    else:
        filesystem.unlink(path + SWAP_SUFFIX)
