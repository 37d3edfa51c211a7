"""LogTable: which partitions a node has, in which log directory, and in what state.

Owns: the maps, and the offsets a directory's checkpoint files should hold according to them.
Must not: touch files.
Invariant: a partition is in exactly one of: online, offline, unknown. `directory_of` names exactly
the online ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.storage.log import Log
from moldau.storage.log_directory import LogDirectory
from moldau.storage.log_loader import Checkpoints

Offsets = dict[TopicPartition, int]


@dataclass(slots=True)
class OfflinePartition:
    """A partition that is there and cannot be served.

    The offsets are those of the checkpoints; they are kept there, so that the next start looks at
    the same bytes again. `topic_id` is zero while it is not known.
    """

    directory: LogDirectory
    reason: str
    topic_id: UUID = ZERO_UUID
    recovery_point: int | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None
    first_dirty_offset: int | None = None


class LogTable:
    """Owned by one loop."""

    __slots__ = ("directory_of", "logs", "offline", "removed")

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.directory_of: dict[TopicPartition, LogDirectory] = {}
        self.offline: dict[TopicPartition, OfflinePartition] = {}
        self.removed: dict[TopicPartition, LogDirectory] = {}
        """Partitions put aside whose offsets may still be in the checkpoint files."""

    def put_online(self, log: Log, directory: LogDirectory) -> None:
        """A log was opened."""
        assert log.topic_partition not in self.logs
        self.offline.pop(log.topic_partition, None)
        self.logs[log.topic_partition] = log
        self.directory_of[log.topic_partition] = directory

    def put_offline(
        self,
        topic_partition: TopicPartition,
        directory: LogDirectory,
        reason: str,
        checkpoints: Checkpoints,
        topic_id: UUID = ZERO_UUID,
    ) -> None:
        """A partition that was found cannot be served."""
        self.offline[topic_partition] = OfflinePartition(
            directory,
            reason,
            topic_id,
            checkpoints.recovery_points.get(topic_partition),
            checkpoints.log_start_offsets.get(topic_partition),
            checkpoints.high_watermarks.get(topic_partition),
            checkpoints.first_dirty_offsets.get(topic_partition),
        )

    def log_failed(self, log: Log) -> LogDirectory | None:
        """An online log went offline; returns its directory, None when the log is not ours."""
        topic_partition = log.topic_partition
        if self.logs.get(topic_partition) is not log:
            return None
        del self.logs[topic_partition]
        directory = self.directory_of.pop(topic_partition)
        self.offline[topic_partition] = OfflinePartition(
            directory,
            log.offline_reason,
            log.topic_id,
            log.recovery_point,
            told_log_start_offset(log),
            log.high_watermark,
            log.first_dirty_offset,
        )
        return directory

    def remove(self, topic_partition: TopicPartition) -> Log | None:
        """The partition is put aside; its offsets have to leave the checkpoint files."""
        directory = self.holder(topic_partition)
        if directory is not None:
            self.removed[topic_partition] = directory
        self.offline.pop(topic_partition, None)
        self.directory_of.pop(topic_partition, None)
        return self.logs.pop(topic_partition, None)

    def holder(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """The log directory a partition is in, online or not."""
        directory = self.directory_of.get(topic_partition)
        if directory is None and topic_partition in self.offline:
            return self.offline[topic_partition].directory
        return directory

    def logs_in(self, directory: LogDirectory) -> list[Log]:
        """The online logs of a directory."""
        return [
            self.logs[each] for each, holder in self.directory_of.items() if holder is directory
        ]

    def has_offline_in(self, directory: LogDirectory) -> bool:
        """Whether some partition of the directory is not served."""
        return any(each.directory is directory for each in self.offline.values())

    def emptiest(self, directories: list[LogDirectory]) -> LogDirectory | None:
        """The online directory with the fewest partitions (the first of equals), or None."""
        counts = {each.path: 0 for each in directories if each.is_online}
        if len(counts) > 1:
            holders = list(self.directory_of.values())
            holders += [each.directory for each in self.offline.values()]
            for holder in holders:
                if holder.path in counts:
                    counts[holder.path] += 1
        candidates = [each for each in directories if each.is_online]
        return min(candidates, key=lambda each: counts[each.path], default=None)

    def removed_from(self, directory: LogDirectory) -> list[TopicPartition]:
        """Partitions put aside that the directory's checkpoint files may still name."""
        return [each for each, holder in self.removed.items() if holder is directory]

    def offsets_forgotten(self, directory: LogDirectory, removed: list[TopicPartition]) -> None:
        """All checkpoint files of the directory were written without these partitions."""
        for topic_partition in removed:
            if self.removed.get(topic_partition) is directory:
                del self.removed[topic_partition]

    # -- what belongs into the checkpoint files --------------------------------------------------

    def recovery_points(self, directory: LogDirectory) -> Offsets:
        """Recovery points of the directory's partitions."""
        return self._offsets(
            directory, lambda log: log.recovery_point, lambda offline: offline.recovery_point
        )

    def high_watermarks(self, directory: LogDirectory) -> Offsets:
        """High watermarks of the directory's partitions."""
        return self._offsets(
            directory, lambda log: log.high_watermark, lambda offline: offline.high_watermark
        )

    def log_start_offsets(self, directory: LogDirectory) -> Offsets:
        """Start offsets that the segments alone do not tell."""
        return self._offsets(
            directory, told_log_start_offset, lambda offline: offline.log_start_offset
        )

    def first_dirty_offsets(self, directory: LogDirectory) -> Offsets:
        """How far compaction has looked at the partitions it has looked at."""
        return self._offsets(
            directory,
            lambda log: log.first_dirty_offset,
            lambda offline: offline.first_dirty_offset,
        )

    def _offsets(
        self,
        directory: LogDirectory,
        of_log: Callable[[Log], int | None],
        of_offline: Callable[[OfflinePartition], int | None],
    ) -> Offsets:
        offsets: Offsets = {}
        logs = self.logs
        for topic_partition, holder in self.directory_of.items():
            if holder is directory:
                value = of_log(logs[topic_partition])
                if value is not None:
                    offsets[topic_partition] = value
        for topic_partition, offline in self.offline.items():
            if offline.directory is directory:
                value = of_offline(offline)
                if value is not None:
                    offsets[topic_partition] = value
        return offsets


def told_log_start_offset(log: Log) -> int | None:
    """The log start offset, if it is not simply where the first segment begins."""
    told = log.log_start_offset > log.segments[0].base_offset
    return log.log_start_offset if told else None
