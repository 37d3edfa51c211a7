"""The controller's view of the cluster: the image after everything it has appended.

Owns: the working image and the indexes over it that answers need. Must not: decide or write.
Invariant: the image is what replaying the log up to the last append gives, whether committed or
not; losing leadership throws it away and starts again from the committed one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from moldau.config import effective_broker_config
from moldau.config.errors import ConfigError
from moldau.config.table import TOPIC_KEYS
from moldau.config.values import parse_value
from moldau.controller.core.partition_index import PartitionIndex
from moldau.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from moldau.metadata.image import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerRegistration,
    ConfigResourceType,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    Provenance,
    TopicImage,
    TopicsDelta,
)
from moldau.metadata.steps import Steps, at_once
from moldau.protocol.schema import Message
from moldau.protocol.topic_names import collision_key


def is_named_directory(directory: UUID, registered: Collection[UUID]) -> bool:
    """Whether a broker with these registered directories has the one a replica lies in (KIP-858).

    A broker that named no directories is believed: it registered before there were any. So is one
    whose replica's directory is not known yet.
    """
    if directory in registered:
        return True
    if directory == LOST_DIRECTORY:
        return False
    return not registered or directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)


class ControllerState:
    """The working image. Changes only through `replay` and `reset`."""

    __slots__ = ("_names_by_collision_key", "image", "index", "leaving", "voter_ids")

    def __init__(self) -> None:
        self.image = MetadataImage.EMPTY
        self.index = PartitionIndex()
        self.leaving: dict[int, object] = {}
        """Brokers that are on their way out in several steps, by whoever asked for it. Not in the
        log: whoever leads next finds the broker alive, or its session over, and begins anew."""
        self.voter_ids: frozenset[int] = frozenset()
        """The quorum's voters as far as somebody said: all of them must support what is
        finalized."""
        self._names_by_collision_key: dict[str, list[str]] = {}

    def reset(self, image: MetadataImage) -> None:
        """Start from `image`: after loading a snapshot, or when leadership changes."""
        old, self.image = self.image, image
        self.leaving.clear()
        if image.topics is old.topics:
            return  # nothing about topics was appended and not committed
        self.index.move(old.topics.topics_by_id, image.topics.topics_by_id)
        self._names_by_collision_key = {}
        for name in image.topics.topics_by_name:
            self._names_by_collision_key.setdefault(collision_key(name), []).append(name)

    def replay(self, records: Sequence[Message], provenance: Provenance) -> None:
        """Apply one batch of records."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        at_once(self.follow(delta, delta.apply(provenance)))

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> Steps[None]:
        """Go on to `image`, which `delta` made of the present one. The indexes follow in steps;
        when the work is called off, the rest of it is done at once.
        """
        self.image = image
        steps = self._follow_with_indexes(delta.topics_delta)
        try:
            for _ in steps:
                yield
        finally:
            for _ in steps:
                pass

    def _follow_with_indexes(self, delta: TopicsDelta) -> Steps[None]:
        yield from self.index.replay(delta)
        for topic in delta.deleted.values():
            key = collision_key(topic.name)
            names = self._names_by_collision_key[key]
            names.remove(topic.name)
            if not names:
                del self._names_by_collision_key[key]
            yield
        for created in delta.created.values():
            names = self._names_by_collision_key.setdefault(collision_key(created.name), [])
            names.append(created.name)
            yield

    def colliding_topic(self, topic_name: str) -> str | None:
        """A topic whose name differs from `topic_name` only in dots and underscores."""
        for name in self._names_by_collision_key.get(collision_key(topic_name), ()):
            if name != topic_name:
                return name
        return None

    def topic(self, topic_name: str) -> TopicImage | None:
        """A topic by name."""
        return self.image.topics.topics_by_name.get(topic_name)

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        """A broker's registration."""
        return self.image.cluster.brokers.get(broker_id)

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead: registered, not fenced, not shutting down, not leaving."""
        broker = self.image.cluster.brokers.get(broker_id)
        return (
            broker is not None
            and not broker.fenced
            and not broker.in_controlled_shutdown
            and broker_id not in self.leaving
        )

    def has_online_directory(self, partition: PartitionRegistration, broker_id: int) -> bool:
        """Whether a broker has the directory that its replica lies in (KIP-858)."""
        if broker_id not in partition.replicas:
            return False
        return self.is_online_directory(partition.directory(broker_id), broker_id)

    def is_online_directory(self, directory: UUID, broker_id: int) -> bool:
        """Whether a replica in that directory can be used, as far as its broker has registered."""
        broker = self.image.cluster.brokers.get(broker_id)
        return broker is not None and is_named_directory(directory, broker.directories)

    def partition(self, topic_id: UUID, partition_index: int) -> PartitionRegistration | None:
        """A partition by its topic's id."""
        return self.image.topics.partition(topic_id, partition_index)

    @property
    def metadata_level(self) -> int:
        """The finalized `metadata.version`."""
        return self.image.features.metadata_level

    @property
    def eligible_leader_replicas_enabled(self) -> bool:
        """Whether KIP-966 is in force."""
        return self.image.features.level(ELIGIBLE_LEADER_REPLICAS_VERSION) >= 1

    def broker_defaults(self, node_values: Mapping[str, Any]) -> dict[str, Any]:
        """The broker values that topics inherit, with the cluster-wide dynamic defaults applied."""
        cluster_wide = self.image.configs.get(ConfigResourceType.BROKER, "")
        return effective_broker_config(node_values, cluster_wide, {})

    def min_insync_replicas(self, topic_name: str, node_values: Mapping[str, Any]) -> int:
        """What `min.insync.replicas` a topic has in effect."""
        return int(self._topic_value(topic_name, "min.insync.replicas", node_values))

    def unclean_election_allowed(self, topic_name: str, node_values: Mapping[str, Any]) -> bool:
        """What `unclean.leader.election.enable` a topic has in effect."""
        return bool(self._topic_value(topic_name, "unclean.leader.election.enable", node_values))

    def _topic_value(self, topic_name: str, name: str, node_values: Mapping[str, Any]) -> Any:
        """A key that is called the same for topics and brokers: topic, cluster default, static."""
        for resource_type, resource_name in (
            (ConfigResourceType.TOPIC, topic_name),
            (ConfigResourceType.BROKER, ""),
        ):
            text = self.image.configs.get(resource_type, resource_name).get(name)
            if text is None:
                continue
            try:
                return parse_value(TOPIC_KEYS[name], text)
            except ConfigError:
                continue  # written by another version; the next level down is the best there is
        return node_values[name]
