"""What a client last heard about brokers, topics and leaders.

Owns the cache and nothing else; the client decides when to ask again. Invariant: an entry is what
one Metadata response said, never a mixture, and an older leader epoch never replaces a newer one
(KIP-320).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataResponse, MetadataResponseTopic
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterResponse


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's address as told to this client."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition; `leader` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic that exists."""

    name: str
    topic_id: uuid.UUID
    is_internal: bool
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)


class MetadataCache:
    """Brokers, topics and the errors of topics that could not be described."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.topic_errors: dict[str, ErrorCode] = {}

    def update(self, response: MetadataResponse, *, complete: bool) -> None:
        """Take over a response; `complete` when all topics were asked for."""
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            broker.node_id: Broker(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        if complete:
            self.topics.clear()
            self.topic_errors.clear()
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code == ErrorCode.NONE:
                self.topics[name] = self._merged(name, topic)
                self.topic_errors.pop(name, None)
            else:
                self.topics.pop(name, None)
                self.topic_errors[name] = ErrorCode.of(topic.error_code)

    def update_controllers(self, response: DescribeClusterResponse) -> None:
        """Take over who the controllers are and which one is active (KIP-919)."""
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            node.broker_id: Broker(node.broker_id, node.host, node.port, node.rack)
            for node in response.brokers
        }

    def leader(self, topic: str, partition: int) -> int | None:
        """The leading broker, None when the cache does not know one."""
        found = self._partition(topic, partition)
        if found is None or found.leader not in self.brokers:
            return None
        return found.leader

    def forget_leader(self, topic: str) -> None:
        """Drop a topic because a broker said it does not lead it any more."""
        self.topics.pop(topic, None)

    def problem(self, topic: str, partition: int) -> ErrorCode:
        """Why there is no leader to talk to."""
        if topic in self.topic_errors:
            return self.topic_errors[topic]
        if self._partition(topic, partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.LEADER_NOT_AVAILABLE

    def _partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition)

    def _merged(self, name: str, topic: MetadataResponseTopic) -> TopicMetadata:
        known = self.topics.get(name)
        merged = TopicMetadata(name, topic.topic_id, topic.is_internal)
        for entry in topic.partitions:
            fresh = PartitionMetadata(
                entry.partition_index,
                entry.leader_id,
                entry.leader_epoch,
                tuple(entry.replica_nodes),
                tuple(entry.isr_nodes),
                tuple(entry.offline_replicas),
                ErrorCode.of(entry.error_code),
            )
            old = None if known is None else known.partitions.get(entry.partition_index)
            same_topic = known is not None and known.topic_id == topic.topic_id
            if old is not None and same_topic and old.leader_epoch > fresh.leader_epoch >= 0:
                fresh = old
            merged.partitions[entry.partition_index] = fresh
        return merged
