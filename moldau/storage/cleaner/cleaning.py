"""Cleaning one log, as work on paths: read what is dirty, then rewrite all of it.

Owns: the two passes, the memory they take (the key table, and a few batches at a time), the pauses
that keep the disk budget, which neighbouring segments become one.
Must not: rename anything, or touch files other than `.cleaned` ones: the sources are in use.
Invariant: each event says that files are durable; a stop between two events costs only time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from moldau.protocol.records import (
    BatchHeader,
    InvalidBatch,
    InvalidBatchReason,
    RecordColumns,
    decode_columns,
)
from moldau.runtime.files import File
from moldau.runtime.filesystem import Filesystem
from moldau.storage.batch_scan import BatchOrder, scan_headers, scan_verified
from moldau.storage.cleaner.batch_filter import BatchFate, BatchFilter, TransactionWalk
from moldau.storage.cleaner.cleaned_segment import (
    CleanedSegment,
    SegmentTooLarge,
    remove_cleaned_files,
)
from moldau.storage.cleaner.job import (
    CleaningDone,
    CleaningEvent,
    CleaningFailed,
    CleaningJob,
    CleaningStats,
    SegmentCleaned,
    SourceSegment,
)
from moldau.storage.cleaner.offset_map import SEED_BYTES, SLOT_BYTES, OffsetMap
from moldau.storage.faults import is_out_of_room
from moldau.storage.indexes import AbortedTransaction, TransactionIndex
from moldau.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)

MAX_GROUP_SEGMENTS = 256
"""The most segments that one replaces: they are renamed in one go, during which the loop waits."""


def group_segments(
    segments: Sequence[SourceSegment],
    index_bytes: Sequence[int],
    *,
    max_bytes: int,
    max_index_bytes: int,
) -> list[list[SourceSegment]]:
    """Join neighbours as long as their bytes, and the larger of their indexes (`index_bytes`, one
    per segment), fit into one segment by the topic's present settings and 31-bit offsets.

    A segment that is too large is a separate group.
    """
    groups: list[list[SourceSegment]] = []
    size_bytes = index_size_bytes = 0
    for segment, its_index_bytes in zip(segments, index_bytes, strict=True):
        size_bytes += segment.size_bytes
        index_size_bytes += its_index_bytes
        if (
            groups
            and size_bytes <= max_bytes
            and index_size_bytes <= max_index_bytes
            and segment.end_offset - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
            and len(groups[-1]) < MAX_GROUP_SEGMENTS
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes, index_size_bytes = segment.size_bytes, its_index_bytes
    return groups


Batch = tuple[BatchHeader, bytes]
Pause = Callable[[int], None]
"""Called with a count of bytes read or written; waits to keep the disk budget."""


def clean(
    filesystem: Filesystem, job: CleaningJob, *, seed: bytes, pause: Pause = lambda _: None
) -> Iterator[CleaningEvent]:
    """Carry out `job`; one event per new segment, in order, then CleaningDone.

    `seed`: random bytes for the key table. Raises: CleaningFailed; nothing needs undoing.
    """
    assert len(seed) == SEED_BYTES
    try:
        remove_cleaned_files(filesystem, job.directory)
        yield from _Cleaning(filesystem, job, seed, pause).run()
    except (InvalidBatch, SegmentTooLarge, ValueError) as error:
        raise CleaningFailed(str(error)) from None
    except OSError as error:
        what = f"{error.filename or job.directory}: {error.strerror or error}"
        raise CleaningFailed(what, is_out_of_room=is_out_of_room(error)) from None


class _Cleaning:
    def __init__(self, filesystem: Filesystem, job: CleaningJob, seed: bytes, pause: Pause) -> None:
        self._filesystem = filesystem
        self._job = job
        self._seed = seed
        self._pause = pause
        self._stats = CleaningStats()
        self._map: OffsetMap
        self._latest_offset = -1
        """Up to here the table has every key."""

    def run(self) -> Iterator[CleaningEvent]:
        job = self._job
        aborted = self._aborted_transactions()
        self._build_map(aborted)
        end_offset = self._latest_offset + 1
        segments = [each for each in job.segments if each.base_offset < end_offset]
        batch_filter = BatchFilter(
            TransactionWalk(aborted),
            {each.producer_id: each for each in job.producers},
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
        )
        groups = group_segments(
            segments,
            [self._index_bytes(each.base_offset) for each in segments],
            max_bytes=job.segment_bytes,
            max_index_bytes=job.segment_index_bytes,
        )
        for group in groups:
            yield self._rewrite(group, batch_filter)
        yield CleaningDone(end_offset, replace(self._stats))

    def _path(self, base_offset: int, suffix: str) -> str:
        return segment_path(self._job.directory, base_offset, suffix)

    def _index_bytes(self, base_offset: int) -> int:
        return max(
            self._filesystem.size_bytes(self._path(base_offset, suffix))
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )

    def _aborted_transactions(self) -> list[AbortedTransaction]:
        """Aborted transactions with records below the job's end, wherever their markers are."""
        found = []
        for base_offset in self._job.index_bases:
            path = self._path(base_offset, TXN_INDEX_SUFFIX)
            found += [
                each
                for each in TransactionIndex(self._filesystem, path).entries()
                if each.first_offset < self._job.end_offset
            ]
        return found

    def _chunks(self, segment: SourceSegment) -> Iterator[list[Batch]]:
        """The segment's batches, their CRCs and order checked, as many at a time as the buffer
        holds.

        Raises: CleaningFailed, OSError.
        """
        with self._source(segment) as (file, order):
            for chunk in _gather(file, segment.size_bytes, self._job.io_bytes, order):
                self._pause(sum(len(data) for _, data in chunk))
                yield chunk

    @contextmanager
    def _source(self, segment: SourceSegment) -> Iterator[tuple[File, BatchOrder]]:
        """The segment's file, and what its batches must follow. Raises: CleaningFailed, OSError."""
        job, base_offset = self._job, segment.base_offset
        order = BatchOrder(
            base_offset,
            min(segment.end_offset, base_offset + MAX_RELATIVE_OFFSET + 1),
            lowest_offset=0 if segment is job.segments[0] else None,
            epochs=job.epochs,
        )
        path = self._path(base_offset, LOG_SUFFIX)
        with closing(self._filesystem.open(path, write=False)) as file:
            try:
                yield file, order
            except InvalidBatch as error:
                raise CleaningFailed(f"{path}: {error}", is_damage=True) from None

    def _build_map(self, aborted: Iterable[AbortedTransaction]) -> None:
        job = self._job
        start = job.first_dirty_offset
        dirty = [each for each in job.segments if each.end_offset > start]
        self._map = OffsetMap(
            job.map_bytes, self._count_records(dirty), job.load_factor, self._seed
        )
        self._latest_offset = start - 1
        walk = TransactionWalk(each for each in aborted if each.last_offset >= start)
        for segment in dirty:
            for chunk in self._chunks(segment):
                if not self._note_keys(chunk, walk):
                    break
            else:
                self._latest_offset = max(self._latest_offset, segment.end_offset - 1)
                continue
            break
        self._stats.key_count = self._map.count
        self._stats.slot_count = self._map.slot_count

    def _count_records(self, segments: Iterable[SourceSegment]) -> int:
        """The most keys there can be: reading the headers saves memory for the table."""
        enough = self._job.map_bytes // SLOT_BYTES
        count = 0
        for segment in segments:
            with self._source(segment) as (file, order):
                for _, header in scan_headers(file, 0, segment.size_bytes, order):
                    count += header.record_count
            if count >= enough:
                break
        return count

    def _note_keys(self, chunk: Sequence[Batch], walk: TransactionWalk) -> bool:
        """Put the keys of some batches; False when the table is full."""
        start = self._job.first_dirty_offset
        keyed: list[Batch] = []
        for header, data in chunk:
            if header.is_control:
                walk.is_empty_end(header, data)
            elif not walk.is_aborted(header) and header.last_offset >= start:
                keyed.append((header, data))
        for columns, _ in _columns_of(keyed):
            taken = self._map.put(columns, start)
            if taken < columns.row_count:
                assert columns.offsets is not None
                self._latest_offset = columns.offsets[taken] - 1
                return False
        return True

    def _rewrite(self, group: Sequence[SourceSegment], batch_filter: BatchFilter) -> SegmentCleaned:
        cleaned = CleanedSegment(self._filesystem, self._job, group[0].base_offset)
        try:
            last = next((each for each in reversed(group) if each.size_bytes), None)
            for segment in group:
                seen_bytes = 0
                for chunk in self._chunks(segment):
                    seen_bytes += sum(len(data) for _, data in chunk)
                    # The last batch stays, if only as a header, so that the new segment ends where
                    # its sources did: after a crash that shows which segments it replaces.
                    ends_group = segment is last and seen_bytes == segment.size_bytes
                    self._filter(chunk, batch_filter, cleaned, ends_group=ends_group)
                cleaned.aborted += batch_filter.walk.take_index_entries()
            cleaned.finish()
        except BaseException:
            cleaned.discard()
            raise
        return SegmentCleaned(tuple(each.base_offset for each in group), cleaned.size_bytes)

    def _filter(
        self,
        chunk: Sequence[Batch],
        batch_filter: BatchFilter,
        cleaned: CleanedSegment,
        *,
        ends_group: bool,
    ) -> None:
        fates: list[BatchFate] = []
        judged: list[Batch] = []
        for number, (header, data) in enumerate(chunk, start=1):
            is_last = ends_group and number == len(chunk)
            fate = batch_filter.fate(header, data, is_last=is_last)
            fates.append(fate)
            if not header.is_control and not fate.discards_records:
                judged.append((header, data))
        verdicts = self._verdicts(judged)
        stats, now_ms = self._stats, self._job.now_ms
        written = 0
        for (header, data), fate in zip(chunk, fates, strict=True):
            verdict = None
            if not header.is_control and not fate.discards_records:
                verdict = next(verdicts)
            stats.bytes_read += len(data)
            stats.records_read += header.record_count
            result = batch_filter.rewrite(header, data, fate, verdict)
            if result is not None:
                new_header, new_data, count = result
                cleaned.add(new_header, new_data)
                written += len(new_data)
                stats.records_written += count
                if new_header.has_delete_horizon and new_header.base_timestamp_ms > now_ms:
                    stats.latest_horizon_ms = max(
                        stats.latest_horizon_ms, new_header.base_timestamp_ms
                    )
        stats.bytes_written += written
        self._pause(written)

    def _verdicts(self, batches: Sequence[Batch]) -> Iterator[bytes]:
        for columns, headers in _columns_of(batches):
            verdict = bytes(self._map.judge(columns, self._latest_offset))
            row = 0
            for header in headers:
                yield verdict[row : row + header.record_count]
                row += header.record_count


def _gather(
    file: File, size_bytes: int, chunk_bytes: int, order: BatchOrder
) -> Iterator[list[Batch]]:
    chunk: list[Batch] = []
    gathered_bytes = 0
    for position, header, view in scan_verified(file, 0, size_bytes, order):
        data = bytes(view) if view else file.pread(header.size_bytes, position)
        chunk.append((header, data))
        gathered_bytes += len(data)
        if gathered_bytes >= chunk_bytes:
            yield chunk
            chunk, gathered_bytes = [], 0
    if chunk:
        yield chunk


def _columns_of(batches: Sequence[Batch]) -> Iterator[tuple[RecordColumns, Sequence[BatchHeader]]]:
    """All batches as columns: in one piece, or one by one when together they grow too large.

    Raises: InvalidBatch.
    """
    if not batches:
        return
    positions, at = [], 0
    for _, data in batches:
        positions.append(at)
        at += len(data)
    headers = [header for header, _ in batches]
    try:
        joined = b"".join(data for _, data in batches) if len(batches) > 1 else batches[0][1]
        columns = decode_columns(joined, positions)
    except InvalidBatch as error:
        if error.reason is not InvalidBatchReason.TOO_LARGE or len(batches) == 1:
            raise
    else:
        yield columns, headers
        return
    for header, data in batches:
        yield decode_columns(data, [0]), [header]
