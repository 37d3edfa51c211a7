"""What DescribeLogDirs and the HTTP views show of a node's log directories (KIP-113, KIP-827).

Owns: the shape of that answer. Must not: change anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.storage.log import Log

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


def offline_description(path: str) -> LogDirDescription:
    """A directory that is offline: nothing is known of what it holds."""
    return LogDirDescription(path, ErrorCode.KAFKA_STORAGE_ERROR, [], UNKNOWN_BYTES, UNKNOWN_BYTES)


def describe_partitions(logs: Iterable[Log]) -> list[PartitionDescription]:
    """Sizes of logs. Replicas are never moved between directories here, so none lags behind."""
    return [PartitionDescription(log.topic_partition, log.size_bytes) for log in logs]
