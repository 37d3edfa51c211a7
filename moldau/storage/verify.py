"""The engine of `moldau log verify`: is everything in a log directory what it should be?

Owns: walking log directories and partitions, and what their files say about each other.
Must not: change a file, take the lock, or need a running node (on a running node's directory the
unflushed end may change under the check; what is below the recovery point may not).
Invariant: every finding names a file, and a position where there is one. No damage stops the check
of other segments or partitions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

from moldau.protocol.types import TopicPartition
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    read_clean_shutdown_marker,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
)
from moldau.storage.corrupt_file import CorruptFile
from moldau.storage.log_directory import (
    DELETE_SUFFIX,
    METADATA_PARTITION,
    describe,
    directory_mark,
    marked_partition,
    parse_partition_directory,
)
from moldau.storage.meta_properties import META_PROPERTIES, read_meta_properties
from moldau.storage.partition_metadata import PARTITION_METADATA, read_partition_metadata
from moldau.storage.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from moldau.storage.verify_segment import Finding, SegmentVerifier, Severity

__all__ = ["Finding", "Severity", "Verification"]

_SEGMENT = re.compile(r"\d{20}\.log")
_COMPACTED_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
_LEFTOVERS = (".deleted", ".cleaned", ".swap", ".tmp")


@dataclass(slots=True)
class Verification:
    """One check of a path; run `findings` to its end, then the counts are complete.

    `deep` also unpacks every batch and checks the records inside. `on_progress` is told of bytes of
    log files as they are done with.
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
    counts: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))

    @property
    def is_damaged(self) -> bool:
        """Whether flushed bytes are wrong or missing anywhere."""
        return self.counts[Severity.DAMAGE] > 0

    def findings(self, path: str) -> Iterator[Finding]:
        """Check a log directory, or one partition's directory.

        Raises: FileNotFoundError; NotADirectoryError.
        """
        path = path.rstrip("/") or "/"
        if not self.filesystem.exists(path):
            raise FileNotFoundError(2, "there is no such directory", path)
        if not self.filesystem.is_directory(path):
            raise NotADirectoryError(20, "not a directory", path)
        name = os.path.basename(os.path.abspath(path))
        topic_partition = parse_partition_directory(name) or marked_partition(name)
        # A log directory may be called "disk-1" too; what is in it decides.
        is_log_directory = self.filesystem.exists(os.path.join(path, META_PROPERTIES))
        if topic_partition is not None and not is_log_directory:
            parent = os.path.dirname(os.path.abspath(path))
            recovery_points = self._recovery_points(parent)
            self._compacted = self._compacted_partitions(parent)
            yield from self._counted(self._partition(path, topic_partition, recovery_points))
        else:
            yield from self._counted(self._log_directory(path))

    def _counted(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        for finding in findings:
            self.counts[finding.severity] += 1
            yield finding

    # -- the log directory -----------------------------------------------------------------------

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
        try:
            if read_meta_properties(self.filesystem, path) is None:
                yield Finding(
                    Severity.WARNING,
                    os.path.join(path, META_PROPERTIES),
                    None,
                    "missing: this is not a formatted log directory",
                )
        except CorruptFile as error:
            yield Finding(Severity.DAMAGE, error.path, None, error.reason)
        except OSError as error:
            yield _unreadable(path, error)
        for name in sorted(OFFSET_CHECKPOINTS):
            try:
                read_offset_checkpoint(self.filesystem, os.path.join(path, name))
            except CorruptFile as error:
                yield Finding(Severity.WARNING, error.path, None, error.reason)
            except OSError as error:
                yield _unreadable(os.path.join(path, name), error)

    def _recovery_points(self, path: str) -> dict[TopicPartition, int] | None:
        """By partition; None when nothing says what was flushed. After a clean stop all was."""
        try:
            if read_clean_shutdown_marker(self.filesystem, path) is not None:
                return None
            file = os.path.join(path, RECOVERY_POINT_CHECKPOINT)
            if not self.filesystem.exists(file):
                return None
            return read_offset_checkpoint(self.filesystem, file)
        except (CorruptFile, OSError):
            return None

    def _compacted_partitions(self, path: str) -> Set[TopicPartition]:
        """Those that compaction has looked at: offsets may be missing in them."""
        try:
            file = os.path.join(path, CLEANER_CHECKPOINT)
            return read_offset_checkpoint(self.filesystem, file).keys()
        except (CorruptFile, OSError):
            return frozenset()

    # -- a partition -----------------------------------------------------------------------------

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
        segments = [name for name in names if _SEGMENT.fullmatch(name)]
        next_offset: int | None = None
        for number, name in enumerate(segments):
            base_offset = int(name[:20])
            if next_offset is not None and base_offset < next_offset:
                reason = f"begins at {base_offset}, the segment before it ends at {next_offset}"
                yield Finding(Severity.DAMAGE, os.path.join(path, name), 0, reason)
            is_last = number == len(segments) - 1
            verifier = SegmentVerifier(
                self.filesystem,
                os.path.join(path, name),
                recovery_point=recovery_point,
                is_last=is_last,
                allows_gaps=topic_partition in self._compacted
                or topic_partition.topic in _COMPACTED_TOPICS,
                deep=self.deep,
                on_progress=self.on_progress,
            )
            try:
                yield from verifier.findings()
            except OSError as error:
                yield _unreadable(os.path.join(path, name), error)
            facts = verifier.facts
            self._count(facts.batch_count, facts.record_count, facts.size_bytes)
            next_offset = facts.next_offset
        yield from self._end(path, segments, next_offset, recovery_point)

    def _count(self, batch_count: int, record_count: int, size_bytes: int) -> None:
        self.segment_count += 1
        self.batch_count += batch_count
        self.record_count += record_count
        self.checked_bytes += size_bytes

    def _end(
        self,
        path: str,
        segments: list[str],
        next_offset: int | None,
        recovery_point: int | None,
    ) -> Iterator[Finding]:
        if recovery_point and (next_offset is None or next_offset < recovery_point):
            file = os.path.join(path, segments[-1]) if segments else path
            reason = f"the log ends at {next_offset}, its recovery point is {recovery_point}"
            yield Finding(Severity.DAMAGE, file, None, reason)
        epochs = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
        try:
            for entry in read_leader_epoch_checkpoint(self.filesystem, epochs):
                if next_offset is not None and entry.start_offset > next_offset:
                    reason = (
                        f"leader epoch {entry.leader_epoch} begins at {entry.start_offset}, "
                        f"the log ends at {next_offset}"
                    )
                    yield Finding(Severity.WARNING, epochs, None, reason)
        except CorruptFile as error:
            yield Finding(Severity.WARNING, error.path, None, error.reason)
        except OSError as error:
            yield _unreadable(epochs, error)

    def _small_files(self, path: str, names: list[str]) -> Iterator[Finding]:
        try:
            if read_partition_metadata(self.filesystem, path) is None:
                file = os.path.join(path, PARTITION_METADATA)
                yield Finding(Severity.WARNING, file, None, "missing: the topic id is not known")
        except CorruptFile as error:
            yield Finding(Severity.DAMAGE, error.path, None, error.reason)
        except OSError as error:
            yield _unreadable(path, error)
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


def _unreadable(path: str, error: OSError) -> Finding:
    return Finding(Severity.DAMAGE, path, None, f"cannot be read: {describe(error)}")
