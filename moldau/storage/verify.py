"""The engine of `moldau log verify`: is everything in a log directory what it should be?

Owns: walking log directories and partitions, each segment's batches (frame, CRC, offsets, on
request the records inside), and what the files say about each other.
Must not: change a file, take the lock, or need a running node (on a running node's directory the
unflushed end may change under the check; what is below the recovery point may not).
Invariant: every finding names a file, and a position where there is one. Memory is bounded by the
index files, the producers of a partition and one batch. No damage stops the check of other segments
or partitions; within a segment it ends at the first damage of the log file: what follows has no
known frame.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from typing import ClassVar

from moldau.protocol.records import BatchHeader, InvalidBatch, decode_records, validate_records
from moldau.protocol.types import TopicPartition
from moldau.runtime.files import File
from moldau.runtime.filesystem import Filesystem
from moldau.storage.batch_scan import NO_END, BatchOrder, scan_verified
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SEALS,
    SegmentSeal,
    read_clean_shutdown_marker,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
    read_partition_metadata,
    read_segment_seals,
)
from moldau.storage.dump import MAX_DECODED_BYTES
from moldau.storage.faults import CorruptFile, describe
from moldau.storage.indexes import (
    TXN_ENTRY,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    ends_checksum,
)
from moldau.storage.leader_epoch_cache import EpochComparison
from moldau.storage.log_directory import (
    DELETE_SUFFIX,
    METADATA_PARTITION,
    directory_mark,
    is_log_directory,
    parse_partition_directory,
    partition_of,
)
from moldau.storage.meta_properties import META_PROPERTIES, read_meta_properties
from moldau.storage.producer_entry import NO_OFFSET
from moldau.storage.producer_state import (
    SNAPSHOT_SUFFIX,
    ProducerState,
    SnapshotEntry,
    decode_snapshot,
)
from moldau.storage.segment import MAX_RELATIVE_OFFSET, OFFSET_DIGITS
from moldau.storage.segment_seals import SegmentSeals


class Severity(Enum):
    """How bad a finding is.

    NOTE: as expected after a crash, or worth knowing. WARNING: a file that is rebuilt from the
    log. DAMAGE: flushed bytes are wrong or missing; the partition is taken offline.
    """

    NOTE = "note"
    WARNING = "warning"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class Finding:
    """`position` is a byte position in `file`."""

    severity: Severity
    file: str
    position: int | None
    reason: str

    def __str__(self) -> str:
        where = "" if self.position is None else f" at byte {self.position}"
        return f"{self.severity.name}: {self.file}{where}: {self.reason}"


@dataclass(slots=True)
class PartitionWalk:
    """What the batches read so far say of the files beside them."""

    producers: ProducerState
    epochs: EpochComparison
    seals: SegmentSeals
    start_offset: int
    """Where the first segment begins."""
    is_certain: bool = True
    """Whether every batch since the log's start was read."""

    def batch(
        self, file: File, position: int, header: BatchHeader, aborted: list[AbortedTransaction]
    ) -> None:
        """Take a batch in; transactions that it aborts go to `aborted`. Raises: OSError."""
        if header.producer_id >= 0:
            batch = file.pread(header.size_bytes, position) if header.is_control else b""
            self.producers.replay(header, batch, 0, index=aborted)
            self.producers.on_high_watermark(header.next_offset)

    def snapshot_reason(self, entries: Iterable[SnapshotEntry], end_offset: int) -> str:
        """What contradicts these producers in the batches below `end_offset`, "" for nothing."""
        found = {each.producer_id: each for each in entries}
        for first_offset, producer_id in self.producers.open_transactions().items():
            entry = found.get(producer_id)
            if entry is None or not NO_OFFSET < entry.current_txn_first_offset <= first_offset:
                return f"it lacks the transaction of producer {producer_id}"
        for producer_id, entry in found.items():
            known = self.producers.producers.get(producer_id)
            if entry.last_offset >= end_offset:
                return f"it has offset {entry.last_offset} of producer {producer_id}"
            if known is not None and entry.last_offset < known.last_offset:
                return f"it lacks offset {known.last_offset} of producer {producer_id}"
        return ""


@dataclass(slots=True)
class SegmentCheck:
    """One pass over a segment; `findings` yields as it goes, the figures are complete after it."""

    filesystem: Filesystem
    log_path: str
    recovery_point: int | None
    """What is below it was flushed; None when that is not known."""
    is_last: bool
    allows_gaps: bool
    deep: bool
    on_progress: Callable[[int], None] | None
    order: BatchOrder
    walk: PartitionWalk
    base_offset: int = field(init=False)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    """What its markers end."""
    next_offset: int = field(init=False)
    end_position: int = 0
    """Where its good bytes end."""
    size_bytes: int = 0
    batch_count: int = 0
    record_count: int = 0
    max_timestamp_ms: int = -1
    last_crc: int = 0
    _differing: tuple[int, str] | None = None
    """The first batch whose leader epoch is not the checkpoint file's, and how they differ."""

    def __post_init__(self) -> None:
        self.base_offset = self.next_offset = self.order.next_offset

    def findings(self) -> Iterator[Finding]:
        """Raises: OSError of the log file itself."""
        stem = self.log_path.removesuffix(".log")
        index = _OffsetIndexWalk(stem + ".index", self)
        times = _TimeIndexWalk(stem + ".timeindex", self)
        yield from index.problems
        yield from times.problems
        file = self.filesystem.open(self.log_path, write=False)
        try:
            self.size_bytes = file.size_bytes
            for position, header in self._batches(file):
                yield from self._content_findings(file, position, header)
                self._compare_epoch(position, header)
                self.walk.batch(file, position, header, self.aborted)
                yield from index.batch(position, header)
                yield from times.batch(header)
        except InvalidBatch as error:
            self.walk.is_certain = False
            yield self._log_damage(file, error)
            if self.on_progress is not None:
                self.on_progress(file.size_bytes - self.end_position)
        finally:
            file.close()
        yield from index.end(self.end_position)
        yield from times.end(self.next_offset)
        seal = self.walk.seals.entries.get(self.base_offset)
        if seal is not None and not seal.speaks_of(self.end_position, self.last_crc):
            seal = None
        if seal is not None and not self._is_made_again():
            yield from index.compare(seal.offset_index_crc)
            yield from times.compare(seal.time_index_crc)
        yield from self._epoch_finding(seal)
        yield from _txn_index_findings(self.filesystem, stem + ".txnindex", self)

    def _is_made_again(self) -> bool:
        """Whether a start after a kill makes the indexes of this segment again: they may hold other
        entries than those that were sealed.
        """
        flushed_end = self.recovery_point
        return flushed_end is not None and (self.is_last or self.next_offset > flushed_end)

    def _compare_epoch(self, position: int, header: BatchHeader) -> None:
        difference = self.walk.epochs.difference(header)
        if difference and self._differing is None:
            self._differing = position, difference

    def _epoch_finding(self, seal: SegmentSeal | None) -> Iterator[Finding]:
        if self._differing is not None:
            end_offset = self.next_offset if self.is_last else self.order.end_offset
            if self.walk.epochs.is_as_sealed(seal, end_offset):
                yield self._finding(Severity.DAMAGE, *self._differing)
            else:
                self.walk.epochs.is_wrong = True

    def _batches(self, file: File) -> Iterator[tuple[int, BatchHeader]]:
        """Each batch whose frame, CRC and order are good. Raises: InvalidBatch, OSError."""
        for position, header, _ in scan_verified(file, 0, file.size_bytes, self.order):
            self.batch_count += 1
            self.record_count += header.record_count
            yield position, header
            if self.on_progress is not None:
                self.on_progress(header.size_bytes)
            self.end_position = position + header.size_bytes
            self.next_offset = header.next_offset
            self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp_ms)
            self.last_crc = header.crc

    def _content_findings(
        self, file: File, position: int, header: BatchHeader
    ) -> Iterator[Finding]:
        gap = header.base_offset - self.next_offset
        if gap > 0 and not self.allows_gaps:
            yield self._finding(
                Severity.WARNING,
                position,
                f"offsets {self.next_offset} to {header.base_offset - 1} are missing",
            )
        if self.deep and header.size_bytes <= MAX_DECODED_BYTES:
            try:
                data = file.pread(header.size_bytes, position)
                if self.allows_gaps:
                    # Compaction takes single records out of a batch: their count and deltas vary.
                    decode_records(data)
                else:
                    validate_records(data, 0, header, from_client=False)
            except InvalidBatch as error:
                reason = f"the CRC matches, the records are not valid: {error.message}"
                yield self._finding(Severity.DAMAGE, position, reason)

    def _log_damage(self, file: File, error: InvalidBatch) -> Finding:
        next_offset = self.next_offset
        left = file.size_bytes - error.position
        text = f"{error.message}; {left} bytes from offset {next_offset} on cannot be read"
        severity = Severity.DAMAGE
        if self.recovery_point is not None and next_offset < self.recovery_point:
            text += f", below the recovery point {self.recovery_point}"
        elif self.recovery_point is not None:
            severity = Severity.NOTE if self.is_last else Severity.WARNING
            text += ", not flushed: recovery cuts the log here"
            text += "" if self.is_last else " and drops later segments"
        return self._finding(severity, error.position, text)

    def _finding(self, severity: Severity, position: int | None, reason: str) -> Finding:
        return Finding(severity, self.log_path, position, reason)


class _IndexWalk:
    """Entries of an index, compared in one pass with the batches of the log file."""

    ENTRY: ClassVar[Struct]

    def __init__(self, path: str, segment: SegmentCheck) -> None:
        self._path = path
        self._segment = segment
        self.problems: list[Finding] = []
        self._entries = list(self._read(segment.filesystem))
        self._is_wrong = bool(self.problems)
        self._next = 0

    def _read(self, filesystem: Filesystem) -> Iterator[tuple[int, int]]:
        """Entries without the preallocated zeros; the file's own problems go to `problems`."""
        entry, path = self.ENTRY, self._path
        try:
            data = filesystem.read_bytes(path)
        except FileNotFoundError:
            self.problems.append(Finding(Severity.WARNING, path, None, "the index is missing"))
            return
        used = len(data.rstrip(b"\0"))
        count = min(-(-used // entry.size), len(data) // entry.size)
        if used > count * entry.size:
            self.problems.append(self._wrong(f"{len(data)} bytes are no whole entries", count))
        previous = -1
        for number in range(count):
            first, second = entry.unpack_from(data, number * entry.size)
            if entry is OffsetIndex.ENTRY and (first < 0 or second <= previous):
                self.problems.append(self._wrong(f"entry {number} does not ascend", number))
                return
            previous = second
            yield first, second

    def compare(self, sealed_crc: int) -> Iterator[Finding]:
        entries = self._entries
        ends = [entries[0], entries[-1]] if entries else []
        if not self._is_wrong and ends_checksum(self.ENTRY, len(entries), ends) != sealed_crc:
            reason = "it is not the file that was written with the segment"
            yield Finding(Severity.WARNING, self._path, None, reason)

    def _wrong(self, reason: str, number: int) -> Finding:
        self._is_wrong = True
        return Finding(Severity.WARNING, self._path, number * self.ENTRY.size, reason)


class _OffsetIndexWalk(_IndexWalk):
    ENTRY = OffsetIndex.ENTRY

    def batch(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        end = position + header.size_bytes
        while self._next < len(self._entries) and self._entries[self._next][1] < end:
            relative_offset, indexed = self._entries[self._next]
            offset = self._segment.base_offset + relative_offset
            reason = ""
            if indexed != position:
                reason = f"offset {offset} at {indexed}, where no batch begins"
            elif offset != header.last_offset:
                reason = f"offset {offset} at {indexed}, the batch ends in {header.last_offset}"
            if reason:
                yield self._wrong(reason, self._next)
            self._next += 1

    def end(self, end_position: int) -> Iterator[Finding]:
        left = len(self._entries) - self._next
        if left:
            reason = f"{left} entries point behind the good bytes ({end_position})"
            yield self._wrong(reason, self._next)


class _TimeIndexWalk(_IndexWalk):
    ENTRY = TimeIndex.ENTRY

    def __init__(self, path: str, segment: SegmentCheck) -> None:
        super().__init__(path, segment)
        previous = (-1, -1)
        for number, entry in enumerate(self._entries):
            if entry[0] < previous[0] or entry[1] < previous[1]:
                self.problems.append(self._wrong(f"entry {entry} after {previous}", number))
            previous = (entry[0], entry[1])

    def batch(self, header: BatchHeader) -> Iterator[Finding]:
        segment = self._segment
        max_timestamp_ms = max(segment.max_timestamp_ms, header.max_timestamp_ms)
        while self._next < len(self._entries):
            timestamp_ms, relative_offset = self._entries[self._next]
            offset = segment.base_offset + relative_offset
            if offset > header.last_offset:
                return
            if timestamp_ms < max_timestamp_ms and timestamp_ms >= 0:
                yield self._wrong(
                    f"offset {offset} with {timestamp_ms}, the log has {max_timestamp_ms} by then",
                    self._next,
                )
            self._next += 1

    def end(self, next_offset: int) -> Iterator[Finding]:
        beyond = [
            (number, self._segment.base_offset + self._entries[number][1])
            for number in range(self._next, len(self._entries))
            if self._entries[number][0] > 0
        ]
        beyond = [each for each in beyond if each[1] >= next_offset]
        if beyond:  # all of them by one cause: where the log ends
            number, offset = beyond[0]
            more = f", nor {len(beyond) - 1} more behind it" if len(beyond) > 1 else ""
            yield self._wrong(f"offset {offset} is not in the log{more}", number)
        last_ms = self._entries[-1][0] if self._entries else -1
        if last_ms < self._segment.max_timestamp_ms and not self._segment.is_last:
            self._is_wrong = True
            reason = f"it ends with {last_ms}, the log has {self._segment.max_timestamp_ms}"
            yield Finding(Severity.WARNING, self._path, None, reason)


def _txn_index_findings(
    filesystem: Filesystem, path: str, segment: SegmentCheck
) -> Iterator[Finding]:
    try:
        data = filesystem.read_bytes(path)
    except FileNotFoundError:
        data = b""
    size = TXN_ENTRY.size
    expected = {(each.producer_id, each.last_offset): each for each in segment.aborted}
    is_complete = segment.walk.is_certain and not segment.allows_gaps
    if len(data) % size:
        position = len(data) // size * size
        yield Finding(Severity.WARNING, path, position, f"{len(data)} bytes are no whole entries")
    previous = -1
    for number in range(len(data) // size):
        version, producer_id, first, last, _ = TXN_ENTRY.unpack_from(data, number * size)
        marked = expected.pop((producer_id, last), None)
        reason = ""
        if version != 0:
            reason = f"entry of unknown version {version}"
        elif not first <= last or last <= previous:
            reason = f"offsets {first} to {last} are not in order"
        elif not segment.base_offset <= last < segment.next_offset:
            reason = f"offset {last} is not in the segment"
        elif marked is not None and first > marked.first_offset:
            reason = f"the transaction that ends at {last} begins at {marked.first_offset}"
        elif marked is None and is_complete and first >= segment.walk.start_offset:
            reason = f"producer {producer_id} aborts nothing at offset {last}"
        if reason:
            yield Finding(Severity.WARNING, path, number * size, reason)
        previous = last
    if segment.walk.is_certain:
        for each in expected.values():
            what = f"producer {each.producer_id} aborts at offset {each.last_offset}"
            yield Finding(Severity.WARNING, path, None, f"it lacks what {what}")


_SEGMENT = re.compile(r"\d{20}\.log")
_COMPACTED_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
_LEFTOVERS = (".deleted", ".cleaned", ".swap", ".tmp")


@dataclass(slots=True)
class Verification:
    """One check of a path; run `findings` to its end, then the counts are complete.

    `deep` also unpacks every batch and checks the records inside. `on_progress` is called with
    bytes of log files as they are done with.
    """

    filesystem: Filesystem
    deep: bool = False
    on_progress: Callable[[int], None] | None = None
    partition_count: int = 0
    segment_count: int = 0
    batch_count: int = 0
    record_count: int = 0
    checked_bytes: int = 0
    _compacted: Set[TopicPartition] = frozenset()
    _is_clean: bool = False
    counts: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))

    @property
    def is_damaged(self) -> bool:
        return self.counts[Severity.DAMAGE] > 0

    def findings(self, path: str) -> Iterator[Finding]:
        """Check a log directory, or one partition's directory.

        Raises: FileNotFoundError: there is none, or nothing in it to check; NotADirectoryError.
        """
        path = path.rstrip("/") or "/"
        if not self.filesystem.exists(path):
            raise FileNotFoundError(2, "there is no such directory", path)
        if not self.filesystem.is_directory(path):
            raise NotADirectoryError(20, "not a directory", path)
        # A log directory may be called "disk-1" too; what is in it decides.
        if is_log_directory(self.filesystem, path):
            yield from self._counted(self._log_directory(path))
            return
        topic_partition = partition_of(self.filesystem, path)
        if topic_partition is None:
            raise FileNotFoundError(2, "this is neither a log directory nor a partition's", path)
        if not any(map(_SEGMENT.fullmatch, self.filesystem.listdir(path))):
            raise FileNotFoundError(2, "there are no segments in it to check", path)
        parent = os.path.dirname(os.path.abspath(path))
        recovery_points = self._recovery_points(parent)
        self._compacted = self._compacted_partitions(parent)
        yield from self._counted(self._partition(path, topic_partition, recovery_points))

    def _counted(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        for finding in findings:
            self.counts[finding.severity] += 1
            yield finding

    def _log_directory(self, path: str) -> Iterator[Finding]:
        yield from self._directory_files(path)
        recovery_points = self._recovery_points(path)
        self._compacted = self._compacted_partitions(path)
        found: set[TopicPartition] = set()
        for name in self.filesystem.listdir(path):
            child = os.path.join(path, name)
            topic_partition = parse_partition_directory(name)
            if topic_partition is not None:
                found.add(topic_partition)
                yield from self._partition(child, topic_partition, recovery_points)
                continue
            mark = directory_mark(name)
            if mark is not None:
                what = "waits for removal" if mark == DELETE_SUFFIX else f"is marked {mark}"
                yield Finding(Severity.NOTE, child, None, what)
        for topic_partition, recovery_point in sorted((recovery_points or {}).items()):
            if topic_partition not in found and recovery_point > 0:
                yield Finding(
                    Severity.WARNING,
                    os.path.join(path, RECOVERY_POINT_CHECKPOINT),
                    None,
                    f"{topic_partition} has recovery point {recovery_point} and no directory",
                )

    def _directory_files(self, path: str) -> Iterator[Finding]:
        with _faults(path, Severity.DAMAGE) as found:
            if read_meta_properties(self.filesystem, path) is None:
                file = os.path.join(path, META_PROPERTIES)
                reason = "missing: this is not a formatted log directory"
                found.append(Finding(Severity.WARNING, file, None, reason))
        yield from found
        for name in sorted(OFFSET_CHECKPOINTS):
            file = os.path.join(path, name)
            with _faults(file, Severity.WARNING) as found:
                read_offset_checkpoint(self.filesystem, file)
            yield from found

    def _recovery_points(self, path: str) -> dict[TopicPartition, int] | None:
        """Recovery points by partition; None without a checkpoint, or after a clean stop (all was
        flushed).
        """
        try:
            self._is_clean = read_clean_shutdown_marker(self.filesystem, path) is not None
            if self._is_clean:
                return None
            file = os.path.join(path, RECOVERY_POINT_CHECKPOINT)
            if not self.filesystem.exists(file):
                return None
            return read_offset_checkpoint(self.filesystem, file)
        except (CorruptFile, OSError):
            return None

    def _compacted_partitions(self, path: str) -> Set[TopicPartition]:
        """Partitions that were compacted: offsets may be missing in them."""
        try:
            file = os.path.join(path, CLEANER_CHECKPOINT)
            return read_offset_checkpoint(self.filesystem, file).keys()
        except (CorruptFile, OSError):
            return frozenset()

    def _partition(
        self,
        path: str,
        topic_partition: TopicPartition,
        recovery_points: dict[TopicPartition, int] | None,
    ) -> Iterator[Finding]:
        self.partition_count += 1
        try:
            names = self.filesystem.listdir(path)
        except OSError as error:
            yield _unreadable(path, error)
            return
        recovery_point = None
        if recovery_points is not None and topic_partition != METADATA_PARTITION:
            recovery_point = recovery_points.get(topic_partition, 0)
        yield from self._small_files(path, names)
        is_internal = topic_partition.topic in _COMPACTED_TOPICS
        allows_gaps = is_internal or topic_partition in self._compacted
        segments = [name for name in names if _SEGMENT.fullmatch(name)]
        bases = [int(name[:OFFSET_DIGITS]) for name in segments]
        walk = self._walk(path, topic_partition, recovery_point, bases[0] if bases else 0)
        leader_epoch = -1
        next_offset: int | None = None
        for number, name in enumerate(segments):
            order = BatchOrder(
                bases[number],
                min([*bases[number + 1 : number + 2], bases[number] + MAX_RELATIVE_OFFSET + 1]),
                lowest_offset=None if number else 0,
                leader_epoch=leader_epoch,
            )
            if next_offset not in (None, bases[number]) and not allows_gaps:
                walk.is_certain = False
            is_last = number == len(segments) - 1
            segment = SegmentCheck(
                self.filesystem,
                os.path.join(path, name),
                recovery_point,
                is_last,
                allows_gaps,
                self.deep,
                self.on_progress,
                order,
                walk,
            )
            try:
                yield from segment.findings()
                yield from self._snapshot_of(path, names, segment)
            except OSError as error:
                walk.is_certain = False
                yield _unreadable(os.path.join(path, name), error)
            self.segment_count += 1
            self.batch_count += segment.batch_count
            self.record_count += segment.record_count
            self.checked_bytes += segment.size_bytes
            next_offset = segment.next_offset
            # Behind damage, a wrong epoch must not make all that follows look wrong.
            is_whole = segment.end_position == segment.size_bytes
            leader_epoch = order.leader_epoch if is_whole else -1
        yield from self._end(path, segments, next_offset, recovery_point)
        if walk.epochs.is_wrong:
            epochs = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
            yield Finding(Severity.WARNING, epochs, None, "batches have other leader epochs")

    def _walk(
        self,
        path: str,
        topic_partition: TopicPartition,
        recovery_point: int | None,
        start_offset: int,
    ) -> PartitionWalk:
        walk = PartitionWalk(
            ProducerState(self.filesystem, path, 2**62),
            self._epochs(path, topic_partition, recovery_point),
            SegmentSeals(self.filesystem, path),
            start_offset,
        )
        with suppress(CorruptFile, OSError):  # A separate finding.
            walk.seals.load()
        return walk

    def _snapshot_of(self, path: str, names: list[str], segment: SegmentCheck) -> Iterator[Finding]:
        """Compare the producer snapshot at the segment's end with its batches. Raises: OSError."""
        file = segment.walk.producers.path_at(segment.next_offset)
        if os.path.basename(file) in names and segment.walk.is_certain:
            with suppress(ValueError):  # A separate finding.
                entries = decode_snapshot(self.filesystem.read_bytes(file))
                reason = segment.walk.snapshot_reason(entries, segment.next_offset)
                if reason:
                    yield Finding(Severity.WARNING, file, None, reason)

    def _epochs(
        self, path: str, topic_partition: TopicPartition, recovery_point: int | None
    ) -> EpochComparison:
        """The leader epochs by the checkpoint, up to where it may lag behind the batches."""
        file = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
        if not self.filesystem.exists(file):
            return EpochComparison()  # It says nothing false.
        try:
            epochs = read_leader_epoch_checkpoint(self.filesystem, file)
        except (CorruptFile, OSError):
            return EpochComparison()  # A separate finding.
        # The log may begin later than its first segment, and the epochs with it.
        start_offset = epochs[0].start_offset if epochs else 0
        end_offset = start_offset
        if recovery_point is not None:
            end_offset = recovery_point
        elif self._is_clean and topic_partition != METADATA_PARTITION:
            end_offset = NO_END
        elif epochs:
            end_offset = epochs[-1].start_offset  # The newest epoch's entry may be missing.
        return EpochComparison(epochs, start_offset, end_offset)

    def _end(
        self, path: str, segments: list[str], next_offset: int | None, recovery_point: int | None
    ) -> Iterator[Finding]:
        if recovery_point and (next_offset is None or next_offset < recovery_point):
            file = os.path.join(path, segments[-1]) if segments else path
            reason = f"the log ends at {next_offset}, its recovery point is {recovery_point}"
            yield Finding(Severity.DAMAGE, file, None, reason)
        epochs = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
        with _faults(epochs, Severity.WARNING) as found:
            for entry in read_leader_epoch_checkpoint(self.filesystem, epochs):
                if next_offset is not None and entry.start_offset > next_offset:
                    reason = (
                        f"leader epoch {entry.leader_epoch} begins at {entry.start_offset}, "
                        f"the log ends at {next_offset}"
                    )
                    found.append(Finding(Severity.WARNING, epochs, None, reason))
        yield from found

    def _small_files(self, path: str, names: list[str]) -> Iterator[Finding]:
        with _faults(path, Severity.DAMAGE) as found:
            if read_partition_metadata(self.filesystem, path) is None:
                file = os.path.join(path, PARTITION_METADATA)
                reason = "missing: the topic id is not known"
                found.append(Finding(Severity.WARNING, file, None, reason))
        yield from found
        seals = os.path.join(path, SEGMENT_SEALS)
        with _faults(seals, Severity.WARNING) as found:
            read_segment_seals(self.filesystem, seals)
        yield from found
        for name in names:
            file = os.path.join(path, name)
            if name.endswith(_LEFTOVERS):
                yield Finding(Severity.NOTE, file, None, "left over, removed at the next start")
            elif name.endswith(SNAPSHOT_SUFFIX):
                try:
                    decode_snapshot(self.filesystem.read_bytes(file))
                except ValueError as error:
                    yield Finding(Severity.WARNING, file, None, str(error))
                except OSError as error:
                    yield _unreadable(file, error)


@contextmanager
def _faults(path: str, severity: Severity) -> Iterator[list[Finding]]:
    """A list to fill with findings; a damaged or unreadable file becomes one of them."""
    found: list[Finding] = []
    try:
        yield found
    except CorruptFile as error:
        found.append(Finding(severity, error.path, None, error.reason))
    except OSError as error:
        found.append(_unreadable(path, error))


def _unreadable(path: str, error: OSError) -> Finding:
    return Finding(Severity.DAMAGE, path, None, f"cannot be read: {describe(error)}")
