"""LogTable: which partitions a node has, in which log directory, and in what state.

Owns: the maps, and the offsets that a directory's checkpoint files should hold according to them.
Must not: touch files.
Invariant: a partition is in exactly one of: online, offline, unknown. `directory_of` names exactly
the online ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final
from uuid import UUID

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    Offsets,
)
from moldau.storage.log import Log
from moldau.storage.log_directory import LogDirectory


def told_log_start_offset(log: Log) -> int | None:
    """The log start offset, if it is not simply where the first segment begins."""
    is_told = log.log_start_offset > log.segments[0].base_offset
    return log.log_start_offset if is_told else None


#: What of a log each checkpoint file holds; the recovery points are written last.
_OFFSET_OF: Final[dict[str, Callable[[Log], int | None]]] = {
    LOG_START_OFFSET_CHECKPOINT: told_log_start_offset,
    HIGH_WATERMARK_CHECKPOINT: attrgetter("high_watermark"),
    CLEANER_CHECKPOINT: attrgetter("first_dirty_offset"),
    RECOVERY_POINT_CHECKPOINT: attrgetter("recovery_point"),
}


@dataclass(slots=True)
class OfflinePartition:
    """A partition that exists and cannot be served.

    `offsets` by checkpoint file: they are kept there, so that the next start checks the same bytes
    again. `topic_id` is zero while it is not known. `lacks_room`: nothing is wrong with it, and it
    can be opened once the disk, or the process's descriptor table, has room.
    """

    directory: LogDirectory
    reason: str
    topic_id: UUID = ZERO_UUID
    offsets: dict[str, int | None] = field(default_factory=dict)
    lacks_room: bool = False


class LogTable:
    """Belongs to one loop."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.directory_of: dict[TopicPartition, LogDirectory] = {}
        self.offline: dict[TopicPartition, OfflinePartition] = {}
        self.removed: dict[TopicPartition, LogDirectory] = {}
        """Partitions put aside whose offsets may still be in the checkpoint files."""

    def put_online(self, log: Log, directory: LogDirectory) -> None:
        assert log.topic_partition not in self.logs
        self.offline.pop(log.topic_partition, None)
        self.logs[log.topic_partition] = log
        self.directory_of[log.topic_partition] = directory

    def put_offline(self, topic_partition: TopicPartition, offline: OfflinePartition) -> None:
        """A partition that is not online cannot be served."""
        self.offline[topic_partition] = offline

    def log_failed(self, log: Log) -> LogDirectory | None:
        """An online log went offline; returns its directory, None when the log is not here."""
        topic_partition = log.topic_partition
        if self.logs.get(topic_partition) is not log:
            return None
        del self.logs[topic_partition]
        directory = self.directory_of.pop(topic_partition)
        offsets = {name: offset_of(log) for name, offset_of in _OFFSET_OF.items()}
        self.offline[topic_partition] = OfflinePartition(
            directory, log.offline_reason, log.topic_id, offsets, log.lacks_room
        )
        return directory

    def remove(self, topic_partition: TopicPartition) -> Log | None:
        """The partition is put aside; its offsets must leave the checkpoint files."""
        directory = self.holder(topic_partition)
        if directory is not None:
            self.removed[topic_partition] = directory
        self.offline.pop(topic_partition, None)
        self.directory_of.pop(topic_partition, None)
        return self.logs.pop(topic_partition, None)

    def holder(self, topic_partition: TopicPartition) -> LogDirectory | None:
        directory = self.directory_of.get(topic_partition)
        if directory is None and topic_partition in self.offline:
            return self.offline[topic_partition].directory
        return directory

    def logs_in(self, directory: LogDirectory) -> list[Log]:
        return [
            self.logs[each] for each, holder in self.directory_of.items() if holder is directory
        ]

    def has_offline_in(self, directory: LogDirectory) -> bool:
        return any(each.directory is directory for each in self.offline.values())

    def emptiest(self, directories: list[LogDirectory]) -> LogDirectory | None:
        """The online directory with the fewest partitions (the first of equals), or None."""
        candidates = [each for each in directories if each.is_online]
        counts = {each.path: 0 for each in candidates}
        if len(counts) > 1:
            holders = list(self.directory_of.values())
            holders += [each.directory for each in self.offline.values()]
            for holder in holders:
                if holder.path in counts:
                    counts[holder.path] += 1
        return min(candidates, key=lambda each: counts[each.path], default=None)

    def removed_from(self, directory: LogDirectory) -> list[TopicPartition]:
        return [each for each, holder in self.removed.items() if holder is directory]

    def offsets_forgotten(self, directory: LogDirectory, removed: list[TopicPartition]) -> None:
        """All checkpoint files of the directory were written without these partitions."""
        for topic_partition in removed:
            if self.removed.get(topic_partition) is directory:
                del self.removed[topic_partition]

    def offsets(self, directory: LogDirectory, checkpoint: str) -> Offsets:
        offset_of, logs = _OFFSET_OF[checkpoint], self.logs
        offsets: Offsets = {}
        for topic_partition, holder in self.directory_of.items():
            if holder is directory:
                value = offset_of(logs[topic_partition])
                if value is not None:
                    offsets[topic_partition] = value
        for topic_partition, offline in self.offline.items():
            if offline.directory is directory:
                value = offline.offsets.get(checkpoint)
                if value is not None:
                    offsets[topic_partition] = value
        return offsets
