"""The embedded consumer protocol: what classic consumers put into JoinGroup and get from SyncGroup.

Data in a version that is newer than the newest known one are read as that one, as the protocol
demands; an assignment is written in the version of the member's subscription.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final
from uuid import UUID

from moldau.broker.coordinator.group.core.consumer_member import Assignment
from moldau.metadata.image import MetadataImage
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from moldau.protocol.messages.consumer_protocol import OwnedTopic as OwnedPartition

_VERSION: Final = Struct(">h")
_NEWEST: Final = 3


def _version_of(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise RemoteProtocolError(f"{len(data)} bytes are no consumer protocol")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise RemoteProtocolError(f"version {version} of the consumer protocol")
    return min(version, _NEWEST)


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """What a member is subscribed to, and what it claims to own. Raises: RemoteProtocolError."""
    version = _version_of(metadata)
    return ConsumerProtocolSubscription.decode(metadata, version, _VERSION.size)[0]


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment:
    """What the leader of a classic group gave a member; nothing without bytes. Raises:
    RemoteProtocolError.
    """
    if not assignment:
        return ConsumerProtocolAssignment()
    version = _version_of(assignment)
    return ConsumerProtocolAssignment.decode(assignment, version, _VERSION.size)[0]


def write_assignment(partitions: Assignment, subscription: bytes, image: MetadataImage) -> bytes:
    """What a member shall own, as it can read it; deleted topics are left out.

    A subscription that cannot be read (a log may hold one) is answered in version 0: a group must
    be able to change without the help of its members.
    """
    try:
        version = _version_of(subscription)
    except RemoteProtocolError:
        version = 0
    topics = image.topics.topics_by_id
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=topics[topic_id].name, partitions=sorted(indexes))
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in topics
        ],
    )
    return _VERSION.pack(version) + message.to_bytes(version)


def by_topic_id(
    partitions: Iterable[TopicPartition | OwnedPartition], image: MetadataImage
) -> dict[UUID, frozenset[int]]:
    """Partitions by topic id; missing topics are left out."""
    topics = image.topics.topics_by_name
    found: dict[UUID, frozenset[int]] = {}
    for each in partitions:
        if each.topic in topics and each.partitions:
            topic_id = topics[each.topic].topic_id
            found[topic_id] = found.get(topic_id, frozenset()).union(each.partitions)
    return found
