"""Metrics that no counter holds: read from the broker's parts when `/metrics` is asked for.

Owns the names of what is derived from logs, the metadata image and the server. Must not be called
on hot paths. `log_samples` and `server_samples` look at mutable parts and run on the data loop, a
bounded number of partitions at a time; the others read values that never change, or the system,
and run on the HTTP thread. Invariant: the number of series is bounded, whatever the cluster holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.metadata.image import NO_LEADER, MetadataImage
from moldau.node.expirations import Expirations
from moldau.node.http.metrics import Sample
from moldau.server.connection_group import ConnectionGroup
from moldau.storage.cleaner.log_cleaner import CLEANER_MANAGER, LogCleaner
from moldau.storage.log import Log

MAX_LOGS_SHOWN: Final = 5_000
"""Partitions with series of their own; the others count in the totals alone."""

LOGS_PER_VISIT: Final = 500
"""Logs looked at before the data loop serves others again (about half a millisecond)."""

LOG: Final = "kafka.log:type=Log,name="
LOG_MANAGER: Final = "kafka.log:type=LogManager,name="
CONTROLLER: Final = "kafka.controller:type=KafkaController,name="
BROKER_METADATA: Final = "kafka.server:type=broker-metadata-metrics,name="
SOCKET_SERVER: Final = "kafka.network:type=SocketServer,name="
CONNECTIONS: Final = "kafka.server:type=socket-server-metrics,name="
CERTIFICATES: Final = "kafka.server:type=certificate-metrics,name=expiry-seconds"
LOGINS: Final = "kafka.server:type=login-metrics,name=expiry-seconds"


@dataclass(slots=True)
class LogTotals:
    """Sums over all logs, shown or not."""

    producer_ids: int = 0
    size_bytes: int = 0


def log_samples(logs: Iterable[Log], totals: LogTotals, *, shown: bool) -> list[Sample]:
    """Size, offsets and segments of some logs; on the data loop."""
    samples = []
    for log in logs:
        size_bytes = log.size_bytes
        totals.size_bytes += size_bytes
        totals.producer_ids += len(log.producer_state.producers)
        if not shown:
            continue
        topic, partition = log.topic_partition
        labels = (("partition", str(partition)), ("topic", topic))
        for name, value in (
            ("Size", size_bytes),
            ("LogStartOffset", log.log_start_offset),
            ("LogEndOffset", log.log_end_offset),
            ("NumLogSegments", len(log.segments)),
        ):
            samples.append(_gauge(LOG + name, value, labels))
    return samples


def total_samples(totals: LogTotals) -> list[Sample]:
    """What `log_samples` has added up."""
    return [
        _gauge("kafka.server:type=ReplicaManager,name=ProducerIdCount", totals.producer_ids),
        _gauge(LOG_MANAGER + "TotalLogSize", totals.size_bytes),
    ]


def server_samples(connections: ConnectionGroup) -> list[Sample]:
    """Connections, bytes, requests under way and their memory; on the data loop."""
    queued = sum(connection.in_flight_count for connection in connections)
    return [
        _gauge(CONNECTIONS + "connection-count", len(connections)),
        _counter(CONNECTIONS + "connection-creation", connections.created_count),
        _counter(CONNECTIONS + "connection-rejected", connections.rejected_count),
        _counter(CONNECTIONS + "incoming-byte", connections.bytes_received),
        _counter(CONNECTIONS + "outgoing-byte", connections.bytes_sent),
        _gauge("kafka.network:type=RequestChannel,name=RequestQueueSize", queued),
        _gauge(SOCKET_SERVER + "MemoryPoolUsed", connections.shares.held_bytes),
        _gauge(
            SOCKET_SERVER + "MemoryPoolAvailable",
            max(connections.shares.limit_bytes - connections.shares.held_bytes, 0),
        ),
    ]


def image_samples(image: MetadataImage, now_ms: float) -> list[Sample]:
    """The cluster as this node's newest metadata has it; an image never changes."""
    topics = image.topics.topics_by_id.values()
    brokers = image.cluster.brokers.values()
    fenced = sum(broker.fenced for broker in brokers)
    offline = imbalanced = partition_count = 0
    for topic in topics:
        partition_count += len(topic.partitions)
        for partition in topic.partitions.values():
            offline += partition.leader == NO_LEADER
            imbalanced += not partition.has_preferred_leader
    provenance = image.provenance
    applied_ms = provenance.last_contained_log_time_ms
    return [
        _gauge(CONTROLLER + "ActiveBrokerCount", len(brokers) - fenced),
        _gauge(CONTROLLER + "FencedBrokerCount", fenced),
        _gauge(CONTROLLER + "GlobalTopicCount", len(topics)),
        _gauge(CONTROLLER + "GlobalPartitionCount", partition_count),
        _gauge(CONTROLLER + "OfflinePartitionsCount", offline),
        _gauge(CONTROLLER + "PreferredReplicaImbalanceCount", imbalanced),
        _gauge(BROKER_METADATA + "last-applied-record-offset", provenance.last_contained_offset),
        _gauge(BROKER_METADATA + "last-applied-record-timestamp", applied_ms),
        _gauge(BROKER_METADATA + "last-applied-record-lag-ms", max(now_ms - applied_ms, 0)),
        _gauge(
            "kafka.server:type=MetadataLoader,name=CurrentMetadataVersion",
            image.features.finalized_levels.get("metadata.version", 0),
        ),
    ]


def directory_samples(services: BrokerServices) -> list[Sample]:
    """Which log directories work, and what room their volumes have."""
    log_manager = services.log_manager
    samples = []
    for directory in log_manager.directories.all:
        labels = (("logDirectory", directory.path),)
        samples.append(_gauge(LOG_MANAGER + "LogDirectoryOffline", not directory.is_online, labels))
        if not directory.is_online:
            continue
        try:
            total_bytes, usable_bytes = log_manager.filesystem.disk_usage(directory.path)
        except OSError:
            continue  # the data loop finds out and takes the directory offline
        samples.append(_gauge(LOG_MANAGER + "TotalBytes", total_bytes, labels))
        samples.append(_gauge(LOG_MANAGER + "UsableBytes", usable_bytes, labels))
    for path in log_manager.directories.unavailable:
        labels = (("logDirectory", path),)
        samples.append(_gauge(LOG_MANAGER + "LogDirectoryOffline", 1, labels))
    return samples


def expiration_samples(expirations: Expirations) -> list[Sample]:
    """Seconds until certificates expire, by listener and store, and what the node logs in with."""
    samples = [
        _gauge(
            CERTIFICATES,
            expirations.seconds_left(each.expires_at_ms),
            (("listener", each.listener), ("location", each.location), ("store", each.store)),
        )
        for each in expirations.certificates
    ]
    for watched, login in expirations.logins:
        labels = (
            ("listener", watched.listener),
            ("location", login.source),
            ("mechanism", watched.login.mechanism),
        )
        samples.append(_gauge(LOGINS, expirations.seconds_left(login.expires_at_ms), labels))
    return samples


def cleaner_samples(cleaner: LogCleaner) -> list[Sample]:
    """Log compaction; on the data loop."""
    samples = [_gauge(name, value) for name, value in cleaner.figures.values().items()]
    for path, (count, size_bytes) in cleaner.uncleanable_by_directory().items():
        labels = (("logDirectory", path),)
        samples.append(_gauge(CLEANER_MANAGER + "uncleanable-partitions-count", count, labels))
        samples.append(_gauge(CLEANER_MANAGER + "uncleanable-bytes", size_bytes, labels))
    return samples


class LoopLoad:
    """How busy the data loop's thread is, from the processor time it has used between two looks."""

    def __init__(self, thread_id: int) -> None:
        self._thread_clock = (
            time.pthread_getcpuclockid(thread_id)
            if hasattr(time, "pthread_getcpuclockid")
            else None
        )
        self._last = (time.monotonic(), self._cpu_seconds())

    def samples(self) -> list[Sample]:
        """Processor seconds of the data loop, and the share of time it was idle since last time."""
        now, cpu_seconds = time.monotonic(), self._cpu_seconds()
        elapsed, used = now - self._last[0], cpu_seconds - self._last[1]
        self._last = (now, cpu_seconds)
        idle = 1.0 - min(used / elapsed, 1.0) if elapsed > 0 else 1.0
        return [
            _gauge(SOCKET_SERVER + "NetworkProcessorAvgIdlePercent", idle),
            _counter("kafka.server:type=DataLoop,name=CpuSeconds", cpu_seconds),
        ]

    def _cpu_seconds(self) -> float:
        return 0.0 if self._thread_clock is None else time.clock_gettime(self._thread_clock)


def visits(logs: Sequence[Log]) -> Iterable[tuple[Sequence[Log], bool]]:
    """The logs in pieces for the data loop, each with whether it gets series of its own."""
    for start in range(0, len(logs), LOGS_PER_VISIT):
        yield logs[start : start + LOGS_PER_VISIT], start < MAX_LOGS_SHOWN


def _gauge(name: str, value: float, labels: tuple[tuple[str, str], ...] = ()) -> Sample:
    return Sample(name, "gauge", labels, float(value))


def _counter(name: str, value: float) -> Sample:
    return Sample(name, "counter", (), float(value))
