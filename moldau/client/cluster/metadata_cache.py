"""What a client last heard about brokers, topics and leaders.

Owns the cache and nothing else; the client decides when to ask again. Invariant: a topic's entry is
what one Metadata response said, brought forward by newer leaders that other answers told of
(KIP-951); an older leader epoch never replaces a newer one (KIP-320), nor a topic of the same name
that was deleted the one that was created again, whichever broker still tells of it.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataResponse, MetadataResponseTopic
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterResponse

KEPT_IDS: Final = 8
"""So many ids that a topic's name has had are remembered: a broker lags by one or two."""
MAX_REFUSALS: Final = 5
"""So often in a row a former id, or another one than is expected, is taken for the word of a broker
that lags. An id that is told on and on is the topic's: a client that begins may hear of the former
topic after the new one.
"""
KEPT_GONE: Final = 1_000
"""Of so many topics that are gone their ids are remembered, until there are more."""


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


class NodeEndpoint(Protocol):
    """A broker as Produce and Fetch answers name it (KIP-951)."""

    @property
    def node_id(self) -> int:
        """The broker."""

    @property
    def host(self) -> str:
        """Where it is."""

    @property
    def port(self) -> int:
        """Its port."""

    @property
    def rack(self) -> str | None:
        """Its rack."""


class MetadataCache:
    """Brokers, topics and the errors of topics that could not be described.

    Attributes:
        version: grows with everything that changes.
        doubted: topics of which the last response told, that are not known since a broker that lags
            may have told it: to be asked for again soon.
    """

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id: int = -1
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.topic_errors: dict[str, ErrorCode] = {}
        self.topic_names: dict[uuid.UUID, str] = {}
        self.version: int = 0
        self._ids: dict[str, deque[uuid.UUID]] = {}
        self._refusal_counts: dict[str, int] = {}
        self._expected: set[str] = set()
        self.doubted: frozenset[str] = frozenset()

    def update(self, response: MetadataResponse, *, complete: bool) -> None:
        """Take over a response; `complete` when all topics were asked for."""
        self.version += 1
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            broker.node_id: Broker(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        topics = self.topics
        if complete:
            # Kept until here: leaders that are newer than the response stay.
            self.topics = {}
            self.topic_errors = {}
            self.topic_names = {}
        doubted = set()
        for topic in response.topics:
            name = topic.name or ""
            known = topics.get(name)
            if topic.error_code == ErrorCode.NONE and self._was_replaced(name, topic.topic_id):
                if known is not None:
                    self.topics[name] = known
                    self.topic_names[known.topic_id] = name
                else:
                    doubted.add(name)
                continue
            if known is not None:
                self.topic_names.pop(known.topic_id, None)
            if topic.error_code == ErrorCode.NONE:
                self.topics[name] = _merged(known, name, topic)
                if topic.topic_id.int:
                    self.topic_names[topic.topic_id] = name
                self.topic_errors.pop(name, None)
            else:
                self.topics.pop(name, None)
                self.topic_errors[name] = ErrorCode.of(topic.error_code)
        self.doubted = frozenset(doubted)
        if len(self._ids) > len(self.topics) + KEPT_GONE:
            kept = self.topics.keys() | self._expected
            self._ids = {name: ids for name, ids in self._ids.items() if name in kept}
            self._refusal_counts.clear()

    def expect_topic(self, name: str, topic_id: uuid.UUID) -> None:
        """Take the word of another client that the topic of this name has the id, until brokers
        tell otherwise on and on. A topic with another id is not known any more.
        """
        ids = self._ids.setdefault(name, deque(maxlen=KEPT_IDS))
        if ids and ids[-1] == topic_id:
            return
        if topic_id in ids:
            ids.remove(topic_id)
        ids.append(topic_id)
        self._expected.add(name)
        self._refusal_counts.pop(name, None)
        known = self.topics.get(name)
        if known is not None and known.topic_id.int:
            self.topic_names.pop(known.topic_id, None)
            del self.topics[name]
            self.version += 1

    def _was_replaced(self, name: str, topic_id: uuid.UUID) -> bool:
        """Whether the name has gone to another topic since it had this id; notes a new id."""
        if not topic_id.int:
            return False
        ids = self._ids.setdefault(name, deque(maxlen=KEPT_IDS))
        is_newest = bool(ids) and topic_id == ids[-1]
        if not is_newest and (topic_id in ids or name in self._expected):
            refusal_count = self._refusal_counts.get(name, 0) + 1
            if refusal_count <= MAX_REFUSALS:
                self._refusal_counts[name] = refusal_count
                return True
            if topic_id in ids:
                ids.remove(topic_id)
        self._refusal_counts.pop(name, None)
        self._expected.discard(name)
        if not is_newest:
            ids.append(topic_id)
        return False

    def update_controllers(self, response: DescribeClusterResponse) -> None:
        """Take over who the controllers are and which one is active (KIP-919)."""
        self.version += 1
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            node.broker_id: Broker(node.broker_id, node.host, node.port, node.rack)
            for node in response.brokers
        }

    def learn_broker(self, broker: Broker) -> None:
        """Take over an address that another answer told, unless the broker is known."""
        if broker.node_id >= 0 and broker.host and broker.node_id not in self.brokers:
            self.brokers[broker.node_id] = broker

    def learn_leader(
        self,
        topic: str,
        partition: int,
        leader_id: int,
        leader_epoch: int,
        node_endpoints: Iterable[NodeEndpoint] = (),
    ) -> bool:
        """A leader that an answer to Produce or Fetch told of (KIP-951).

        Returns whether it was news: an epoch that is not newer, and a node whose address nobody
        has told, change nothing.
        """
        found = self._partition(topic, partition)
        if found is None or leader_id < 0 or leader_epoch <= found.leader_epoch:
            return False
        for node in node_endpoints:
            if node.node_id == leader_id and node.host:
                self.brokers[leader_id] = Broker(leader_id, node.host, node.port, node.rack)
        if leader_id not in self.brokers:
            return False
        self.version += 1
        self.topics[topic].partitions[partition] = replace(
            found, leader=leader_id, leader_epoch=leader_epoch, error=ErrorCode.NONE
        )
        return True

    def retain(self, names: Container[str]) -> None:
        """Drop all topics but these."""
        gone = [name for name in self.topics if name not in names]
        for name in gone:
            self.topic_names.pop(self.topics.pop(name).topic_id, None)
        for name in [name for name in self.topic_errors if name not in names]:
            del self.topic_errors[name]
        for name in [name for name in self._ids if name not in names]:
            del self._ids[name]
            self._refusal_counts.pop(name, None)
            self._expected.discard(name)
        if gone:
            self.version += 1

    def forget_brokers(self) -> None:
        """Start over from the bootstrap servers (KIP-899, KIP-1102)."""
        self.version += 1
        self.brokers = {}
        self.controller_id = -1

    def leader(self, topic: str, partition: int) -> int | None:
        """The leading broker, None when the cache does not know one."""
        found = self._partition(topic, partition)
        if found is None or found.leader not in self.brokers:
            return None
        return found.leader

    def racks_of(self, node_ids: Sequence[int]) -> frozenset[str]:
        """The racks of some brokers, as far as they have any."""
        racks = (self.brokers[node].rack for node in node_ids if node in self.brokers)
        return frozenset(rack for rack in racks if rack is not None)

    def forget_leader(self, topic: str) -> None:
        """Drop a topic because a broker said it does not lead it any more."""
        self.topics.pop(topic, None)

    def problem(self, topic: str, partition: int) -> ErrorCode:
        """Why there is no leader to talk to."""
        if topic in self.topic_errors:
            return self.topic_errors[topic]
        if topic in self._expected:
            return ErrorCode.LEADER_NOT_AVAILABLE  # it exists, by the word of another client
        if self._partition(topic, partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.LEADER_NOT_AVAILABLE

    def _partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition)


def _merged(known: TopicMetadata | None, name: str, topic: MetadataResponseTopic) -> TopicMetadata:
    merged = TopicMetadata(name, topic.topic_id, topic.is_internal)
    same_topic = known is not None and known.topic_id == topic.topic_id
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
        old = known.partitions.get(entry.partition_index) if known and same_topic else None
        if old is not None and old.leader_epoch > fresh.leader_epoch >= 0:
            fresh = old
        merged.partitions[entry.partition_index] = fresh
    return merged
