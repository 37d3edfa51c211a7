"""What a client last heard about brokers, topics and leaders.

Owns the cache and nothing else; `metadata_updates` decides when to ask again. Invariants: a topic's
entry is what one Metadata response said, brought forward by newer leaders from Produce and Fetch
responses (KIP-951); an older leader epoch never replaces a newer one, and a leader of an older
epoch than is expected is not named (KIP-320); a deleted topic never replaces the one of the same
name that was created after it, although a lagging broker may still name it.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataResponse, MetadataResponseTopic
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterResponse

if TYPE_CHECKING:
    from moldau.protocol.messages import p00_produce, p01_fetch

KEPT_IDS: Final = 8
"""How many ids of a topic's name are remembered: a broker lags by one or two."""
MAX_REFUSALS: Final = 5
"""How often in a row a former id, or another one than is expected, counts as the answer of a
lagging broker. After that it is the topic's id: a client that has just started may hear of the
former topic after the new one.
"""
KEPT_GONE: Final = 1_000
"""How many deleted topics' ids are remembered at most."""


class Broker(NamedTuple):
    """A broker's address as its cluster advertises it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
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
    """Brokers, topics and the errors of topics that could not be described. `version` grows with
    every change; `doubted` are topics that the last response has not brought to what is known of
    them already, since a lagging broker may have sent it: they are requested again soon.
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
        self._expected_epochs: dict[str, dict[int, int]] = {}
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
            # `topics` keeps what was known: leaders that are newer than the response stay.
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
        doubted |= self._expect_later()
        self.doubted = frozenset(doubted)
        if len(self._ids) > len(self.topics) + KEPT_GONE:
            kept = self.topics.keys() | self._expected
            self._ids = {name: ids for name, ids in self._ids.items() if name in kept}
            for name in self._expected_epochs.keys() - kept:
                del self._expected_epochs[name]
            self._refusal_counts.clear()

    def expect_topic(self, name: str, topic_id: uuid.UUID) -> None:
        """Take over from another client which id the topic of this name has, until brokers have
        named another one `MAX_REFUSALS` times. A topic with another id is dropped.
        """
        ids = self._ids.setdefault(name, deque(maxlen=KEPT_IDS))
        if ids and ids[-1] == topic_id:
            return
        if topic_id in ids:
            ids.remove(topic_id)
        ids.append(topic_id)
        self._expected.add(name)
        self._refusal_counts.pop(name, None)
        self._expected_epochs.pop(name, None)
        known = self.topics.get(name)
        if known is not None and known.topic_id.int:
            self.topic_names.pop(known.topic_id, None)
            del self.topics[name]
            self.version += 1

    def expect_epoch(self, topic: str, partition: int, leader_epoch: int) -> bool:
        """Take over from a position which epoch its record has (-1: not said), in place of the last
        one. No leader of an older epoch is named until brokers have named this epoch, or a newer
        one, or another topic has got the name. Returns whether the cache is behind.
        """
        is_behind = self._lacks(topic, partition, leader_epoch)
        if is_behind:
            self._expected_epochs.setdefault(topic, {})[partition] = leader_epoch
        elif topic in self._expected_epochs:
            self._expected_epochs[topic].pop(partition, None)
        return is_behind

    def expected_epoch(self, topic: str, partition: int) -> int | None:
        """The epoch that brokers have not named yet."""
        expected = self._expected_epochs.get(topic)
        return None if expected is None else expected.get(partition)

    def _expect_later(self) -> set[str]:
        """Expect what has not come yet. Returns the topics of which something has not."""
        lacking = {}
        for name, epochs in self._expected_epochs.items():
            left = {each: epochs[each] for each in epochs if self._lacks(name, each, epochs[each])}
            if left:
                lacking[name] = left
        self._expected_epochs = lacking
        return set(lacking)

    def _lacks(self, topic: str, partition: int, leader_epoch: int) -> bool:
        """Whether the cache is older than this epoch. Brokers that name none are believed."""
        if leader_epoch < 0:
            return False
        found = self._partition(topic, partition)
        return found is None or 0 <= found.leader_epoch < leader_epoch

    def _was_replaced(self, name: str, topic_id: uuid.UUID) -> bool:
        """Whether another topic has got the name since it had this id; remembers a new id."""
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
            if ids:
                self._expected_epochs.pop(name, None)
            ids.append(topic_id)
        return False

    def update_controllers(self, response: DescribeClusterResponse) -> None:
        """Take over the controllers' addresses and which one is active (KIP-919)."""
        self.version += 1
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            node.broker_id: Broker(node.broker_id, node.host, node.port, node.rack)
            for node in response.brokers
        }

    def learn_broker(self, broker: Broker) -> None:
        """Take over the address from another response, unless the broker is known."""
        if broker.node_id >= 0 and broker.host and broker.node_id not in self.brokers:
            self.brokers[broker.node_id] = broker

    def learn_leader(
        self,
        topic: str,
        partition: int,
        leader_id: int,
        leader_epoch: int,
        node_endpoints: Iterable[p00_produce.NodeEndpoint | p01_fetch.NodeEndpoint] = (),
    ) -> bool:
        """Take over a leader from a Produce or Fetch response (KIP-951). Returns whether the cache
        changed: an epoch that is not newer, and a node without a known address, change nothing.
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
        self.topics[topic].partitions[partition] = found._replace(
            leader=leader_id, leader_epoch=leader_epoch, error=ErrorCode.NONE
        )
        expected = self.expected_epoch(topic, partition)
        if expected is not None:
            self.expect_epoch(topic, partition, expected)
        return True

    def retain(self, names: Container[str]) -> None:
        gone = [name for name in self.topics if name not in names]
        for name in gone:
            self.topic_names.pop(self.topics.pop(name).topic_id, None)
        self._expected = {name for name in self._expected if name in names}
        known: dict[str, Any]
        for known in (self.topic_errors, self._ids, self._refusal_counts, self._expected_epochs):
            for name in [name for name in known if name not in names]:
                del known[name]
        if gone:
            self.version += 1

    def forget_brokers(self) -> None:
        """Start over from the bootstrap servers (KIP-899, KIP-1102)."""
        self.version += 1
        self.brokers = {}
        self.controller_id = -1

    def leader(self, topic: str, partition: int) -> int | None:
        """The leading broker, None when the cache does not know one, or a newer one has to be."""
        found = self._partition(topic, partition)
        if found is None or found.leader not in self.brokers:
            return None
        if self._expected_epochs and self.expected_epoch(topic, partition) is not None:
            return None
        return found.leader

    def forget_leader(self, topic: str) -> None:
        """Drop a topic, since a broker does not lead it any more."""
        self.topics.pop(topic, None)

    def problem(self, topic: str, partition: int) -> ErrorCode:
        if topic in self.topic_errors:
            return self.topic_errors[topic]
        if topic in self._expected:
            return ErrorCode.LEADER_NOT_AVAILABLE  # another client has seen the topic
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
