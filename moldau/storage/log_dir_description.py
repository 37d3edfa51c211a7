"""What DescribeLogDirs and the HTTP views show of a node's log directories (KIP-113, KIP-827).

Owns: that answer. Must not: change anything, but for a directory that is found dead by looking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.storage.log_directory import describe

if TYPE_CHECKING:
    from moldau.storage.log_manager import LogManager

UNKNOWN_BYTES = -1


@dataclass(slots=True)
class PartitionDescription:
    """One replica for DescribeLogDirs."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int = 0
    is_future: bool = False


@dataclass(slots=True)
class LogDirDescription:
    """One directory for DescribeLogDirs; sizes of the volume are -1 when they are not known."""

    directory: str
    error: ErrorCode
    partitions: list[PartitionDescription]
    total_bytes: int
    usable_bytes: int


def describe_log_dirs(manager: LogManager) -> list[LogDirDescription]:
    """Every configured directory with the size of each partition that is served from it. One whose
    volume is gone fails by this.
    """
    described = []
    for directory in manager.directories:
        if directory.is_online:
            try:
                total_bytes, usable_bytes = manager.filesystem.disk_usage(directory.path)
            except OSError as error:
                manager.fail_directory(directory, f"its volume is gone: {describe(error)}")
        if not directory.is_online:
            described.append(_offline(directory.path))
            continue
        # Replicas are never moved between directories here, so none lags behind.
        partitions = [
            PartitionDescription(log.topic_partition, log.size_bytes)
            for log in manager.table.logs_in(directory)
        ]
        described.append(
            LogDirDescription(directory.path, ErrorCode.NONE, partitions, total_bytes, usable_bytes)
        )
    return described + [_offline(path) for path in manager.unavailable_directories]


def _offline(path: str) -> LogDirDescription:
    """A directory that is offline: nothing is known of what it holds."""
    return LogDirDescription(path, ErrorCode.KAFKA_STORAGE_ERROR, [], UNKNOWN_BYTES, UNKNOWN_BYTES)
