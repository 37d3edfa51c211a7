"""The controller's view of the cluster: the image after everything it has appended.

Owns: the working image and the indexes over it that answers need. Must not: decide or write.
Invariant: the image is what replaying the log up to the last append gives, whether committed or
not; losing leadership throws it away and starts again from the committed one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from moldau.config import NodeConfig, effective_broker_config
from moldau.config.definition import ConfigError, Values
from moldau.config.table import TOPIC_KEYS
from moldau.config.values import parse_value
from moldau.controller.core.partition_index import PartitionIndex
from moldau.controller.core.result import MAX_CHANGES_PER_STEP
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
)
from moldau.metadata.image.security import AccessControlEntry, EntryChanges
from moldau.metadata.steps import Steps, at_once
from moldau.metadata.token_secrets import TokenSecrets
from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message
from moldau.protocol.types import collision_key

T = TypeVar("T")

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"


class Random(Protocol):
    """The part of `random.Random` that placement and topic ids need."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to `stop` - 1."""

    def shuffle(self, x: list[T], /) -> None:
        """Put a list in any order."""

    def randbytes(self, n: int, /) -> bytes:
        """So many bytes."""


class ControllerSettings(NamedTuple):
    """What the controller is given at its start; what may change at run time is in the image.

    `node_config` has the controller's own keys, and the defaults behind topic and broker
    configuration. `scram_secret` is drawn for a cluster that has none yet; "" for not at all.
    `own_names` are what other nodes call this one.
    """

    node_config: NodeConfig
    cluster_id: str
    scram_secret: str = ""
    own_names: frozenset[str] = frozenset()
    max_changes_per_step: int = MAX_CHANGES_PER_STEP


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
    """What decisions look at. The working image changes only by `replay`, `follow` and `reset`."""

    def __init__(self, settings: ControllerSettings, random: Random) -> None:
        self.settings = settings
        self.random = random
        self.image = MetadataImage.EMPTY
        self.index = PartitionIndex()
        self.leaving: dict[int, object] = {}
        """Brokers that are on their way out in several steps, with the request that makes them
        leave. Not in the log: the next leader finds the broker alive, or its session over, and
        begins again."""
        self.voter_ids: frozenset[int] = frozenset()
        """The quorum's voters, as the driver last said: all must support what is finalized."""
        self.token_secrets = TokenSecrets(settings.node_config["delegation.token.secret.key"])
        self.access_control_entries: dict[AccessControlEntry, UUID] = {}
        """The ids of the image's entries."""
        self.token_ids_by_owner: dict[str, dict[str, None]] = {}
        """The image's delegation tokens by the principal they stand for, oldest first."""
        self._names_by_collision_key: dict[str, list[str]] = {}

    def reset(self, image: MetadataImage) -> None:
        """Start from `image`: after loading a snapshot, or when leadership changes."""
        old, self.image = self.image, image
        self.leaving.clear()
        if image.acls is not old.acls:
            entries = image.acls.entries_by_id
            self.access_control_entries = {entries[each]: each for each in entries}
        if image.delegation_tokens is not old.delegation_tokens:
            self.token_ids_by_owner = {}
            for token_id, token in image.delegation_tokens.tokens_by_id.items():
                self.token_ids_by_owner.setdefault(token.owner, {})[token_id] = None
        if image.topics is old.topics:
            return  # nothing about topics was appended and not committed
        self.index.move(old.topics.topics_by_id, image.topics.topics_by_id)
        self._names_by_collision_key = {}
        for name in image.topics.topics_by_name:
            self._names_by_collision_key.setdefault(collision_key(name), []).append(name)

    def replay(self, records: Sequence[Message], provenance: Provenance) -> EntryChanges:
        """Move on by committed records; returns the access control entries that have changed."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        at_once(self.follow(delta, delta.apply(provenance)))
        return delta.acls_delta.changes

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> Steps[None]:
        """Move on to `image`, which `delta` made of the current one. The indexes follow in steps;
        when the work is called off, the rest of it is done at once.
        """
        self.image = image
        steps = self._follow_with_indexes(delta)
        try:
            for _ in steps:
                yield
        finally:
            for _ in steps:
                pass

    def _follow_with_indexes(self, delta: MetadataDelta) -> Steps[None]:
        ids, before = self.access_control_entries, delta.image.acls.entries_by_id
        for entry_id, entry in delta.acls_delta.changes.items():
            old = before.get(entry_id)
            if old is not None and ids.get(old) == entry_id:
                del ids[old]
            if entry is not None:
                ids[entry] = entry_id
            yield
        tokens_before = delta.image.delegation_tokens.tokens_by_id
        for token_id, token in delta.delegation_tokens_delta.changes.items():
            before_it = tokens_before.get(token_id)
            if before_it is not None and (token is None or token.owner != before_it.owner):
                ids_of_owner = self.token_ids_by_owner[before_it.owner]
                del ids_of_owner[token_id]
                if not ids_of_owner:
                    del self.token_ids_by_owner[before_it.owner]
            if token is not None:
                self.token_ids_by_owner.setdefault(token.owner, {})[token_id] = None
            yield
        topics = delta.topics_delta
        yield from self.index.replay(topics)
        for topic in topics.deleted.values():
            key = collision_key(topic.name)
            names = self._names_by_collision_key[key]
            names.remove(topic.name)
            if not names:
                del self._names_by_collision_key[key]
            yield
        for created in topics.created.values():
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
        return self.image.topics.topics_by_name.get(topic_name)

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        return self.image.cluster.brokers.get(broker_id)

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> ErrorCode:
        """NONE when the broker is registered with exactly this broker epoch."""
        broker = self.broker(broker_id)
        is_current = broker is not None and broker.broker_epoch == broker_epoch
        return ErrorCode.NONE if is_current else ErrorCode.STALE_BROKER_EPOCH

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

    @property
    def metadata_level(self) -> int:
        return self.image.features.metadata_level

    @property
    def eligible_leader_replicas_enabled(self) -> bool:
        """Whether KIP-966 is in force."""
        return self.image.features.level(ELIGIBLE_LEADER_REPLICAS_VERSION) >= 1

    def broker_defaults(self) -> Values:
        """The broker values that topics inherit, with the cluster-wide dynamic defaults applied."""
        cluster_wide = self.image.configs.get(ConfigResourceType.BROKER, "")
        return effective_broker_config(self.settings.node_config, cluster_wide, {})

    def min_insync_replicas(self, topic_name: str) -> int:
        value = self._topic_value(topic_name, MIN_INSYNC_REPLICAS)
        assert isinstance(value, int)
        return value

    def unclean_election_allowed(self, topic_name: str) -> bool:
        return bool(self._topic_value(topic_name, "unclean.leader.election.enable"))

    def _topic_value(self, topic_name: str, name: str) -> object:
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
        return self.settings.node_config[name]
