"""The metadata image as a tree of paths, for `moldau metadata shell`.

Owns: which paths there are and what they show. Must not: read files. Invariant: secrets (salts,
keys) are never shown; a directory's children are made when it is first looked into.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from moldau.cli.metadata_files import MetadataFiles
from moldau.metadata.features import METADATA_VERSION, metadata_release
from moldau.metadata.image import ConfigResourceType, MetadataImage, TopicImage
from moldau.protocol.types import uuid_to_base64

DEFAULT_NAME: Final = "<default>"
SCRAM_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
HIDDEN: Final = "[hidden]"

Children: TypeAlias = "Mapping[str, Node]"


class Directory:
    """A node with children."""

    def __init__(self, children: Children | Callable[[], Children]) -> None:
        self._children = children

    @property
    def children(self) -> Children:
        """By name, in the order they are shown."""
        if callable(self._children):
            self._children = self._children()
        return self._children


class Leaf:
    """A node with a value; JSON, or text when it is a string."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def text(self) -> str:
        """What `cat` prints."""
        if isinstance(self.value, str):
            return self.value
        return json.dumps(self.value, indent=2, ensure_ascii=False)


Node: TypeAlias = Directory | Leaf


def metadata_tree(files: MetadataFiles) -> Directory:
    """The root."""
    image, identity = files.image, files.identity
    children: dict[str, Node] = {
        "brokers": Directory(lambda: _brokers(image)),
        "clientQuotas": Directory(lambda: _client_quotas(image)),
        "configs": Directory(lambda: _configs(image)),
        "controllers": Directory(lambda: _controllers(image)),
        "acls": Directory(lambda: _acls(image)),
        "delegationTokens": Directory(lambda: _delegation_tokens(image)),
        "features": Directory(lambda: _features(image)),
        "local": Directory(lambda: _local(files)),
        "metadataQuorum": Directory(lambda: _quorum(files)),
        "producerIds": Directory({"nextProducerId": Leaf(image.producer_ids.next_producer_id)}),
        "scram": Directory(lambda: _scram(image)),
        "topics": Directory(
            {
                "byId": Directory(lambda: _topics_by_id(image)),
                "byName": Directory(lambda: _topics_by_name(image)),
            }
        ),
    }
    if identity is not None:
        children["clusterId"] = Leaf(identity.cluster_id)
    return Directory(dict(sorted(children.items())))


def to_json(value: object) -> Any:
    """A value of the image as JSON, under Kafka's kind of names."""
    if is_dataclass(value):
        return {
            _camel_case(each.name): to_json(getattr(value, each.name)) for each in fields(value)
        }
    if isinstance(value, UUID):
        return uuid_to_base64(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {_camel_case(name): to_json(each) for name, each in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return HIDDEN
    return value


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _leaf(value: object) -> Leaf:
    return Leaf(to_json(value))


def _brokers(image: MetadataImage) -> Children:
    return {
        str(broker_id): Directory(
            {
                "fenced": _leaf(registration.fenced),
                "inControlledShutdown": _leaf(registration.in_controlled_shutdown),
                "registration": _leaf(registration),
            }
        )
        for broker_id, registration in sorted(image.cluster.brokers.items())
    }


def _controllers(image: MetadataImage) -> Children:
    return {
        str(controller_id): Directory({"registration": _leaf(registration)})
        for controller_id, registration in sorted(image.cluster.controllers.items())
    }


def _features(image: MetadataImage) -> Children:
    levels = sorted(image.features.finalized_levels.items())
    children: dict[str, Node] = {name: Leaf(level) for name, level in levels}
    if METADATA_VERSION in children:
        release = metadata_release(image.features.metadata_level)
        children[METADATA_VERSION] = Leaf(f"{image.features.metadata_level} ({release})")
    return children


def _topics_by_name(image: MetadataImage) -> Children:
    return {name: _topic(topic) for name, topic in sorted(image.topics.topics_by_name.items())}


def _topics_by_id(image: MetadataImage) -> Children:
    topics = image.topics.topics_by_id.items()
    return dict(sorted((uuid_to_base64(topic_id), _topic(topic)) for topic_id, topic in topics))


def _topic(topic: TopicImage) -> Directory:
    def children() -> Children:
        partitions = {
            str(index): Directory({"data": _leaf(partition)})
            for index, partition in sorted(topic.partitions.items())
        }
        return {**partitions, "id": _leaf(topic.topic_id), "name": Leaf(topic.name)}

    return Directory(children)


def _configs(image: MetadataImage) -> Children:
    types: dict[str, dict[str, Node]] = {}
    for resource, config in sorted(image.configs.configs_by_resource.items()):
        try:
            type_name = ConfigResourceType(resource.resource_type).name
        except ValueError:
            type_name = str(resource.resource_type)
        keys: dict[str, Node] = {key: Leaf(value) for key, value in sorted(config.items())}
        types.setdefault(type_name, {})[resource.name or DEFAULT_NAME] = Directory(keys)
    return {name: Directory(resources) for name, resources in types.items()}


def _client_quotas(image: MetadataImage) -> Children:
    entities: dict[str, Node] = {}
    for entity, quotas in image.client_quotas.quotas_by_entity.items():
        name = ",".join(f"{kind}={part or DEFAULT_NAME}" for kind, part in entity)
        entities[name] = Directory({key: Leaf(value) for key, value in sorted(quotas.items())})
    return dict(sorted(entities.items()))


def _acls(image: MetadataImage) -> Children:
    return {
        uuid_to_base64(entry_id): _leaf(entry)
        for entry_id, entry in sorted(image.acls.entries_by_id.items())
    }


def _scram(image: MetadataImage) -> Children:
    mechanisms: dict[str, dict[str, Node]] = {}
    for key, credential in sorted(image.scram.credentials.items()):
        name = SCRAM_MECHANISMS.get(key.mechanism, str(key.mechanism))
        mechanisms.setdefault(name, {})[key.user] = _leaf(credential)
    return {name: Directory(users) for name, users in mechanisms.items()}


def _delegation_tokens(image: MetadataImage) -> Children:
    return {
        token_id: _leaf(token)
        for token_id, token in sorted(image.delegation_tokens.tokens_by_id.items())
    }


def _quorum(files: MetadataFiles) -> Children:
    provenance = files.image.provenance
    return {
        "kraftVersion": Leaf(files.voters.kraft_version),
        "leader": _leaf({"leaderId": files.leader_id, "leaderEpoch": files.leader_epoch}),
        "offset": Leaf(provenance.last_contained_offset),
        "voters": Directory({str(voter.voter_id): _leaf(voter) for voter in files.voters.voters}),
    }


def _local(files: MetadataFiles) -> Children:
    from moldau import __version__

    provenance, identity = files.image.provenance, files.identity
    children: dict[str, Node] = {
        "damage": Leaf(files.damage),
        "digest": Leaf(files.image.digest()),
        "directory": Leaf(files.directory),
        "files": Leaf(files.sources),
        "lastContainedEpoch": Leaf(provenance.last_contained_epoch),
        "lastContainedLogTimestampMs": Leaf(provenance.last_contained_log_time_ms),
        "lastContainedOffset": Leaf(provenance.last_contained_offset),
        "version": Leaf(__version__),
    }
    if identity is not None:
        children["nodeId"] = Leaf(identity.node_id)
        children["directoryId"] = _leaf(identity.directory_id)
    return dict(sorted(children.items()))
