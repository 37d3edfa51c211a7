"""What members of classic consumer groups tell each other through the coordinator.

Owns the bytes of subscriptions and assignments, versions 0 to 3. Must not know groups. Invariant: a
newer version is read as the newest known one; an assignment is written so that its member can read
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from moldau.client.consumer.assignors.assignor import Subscription
from moldau.client.records import TopicPartition
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.messages.consumer_protocol_assignment import (
    TopicPartition as AssignedTopic,
)
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.consumer_protocol_subscription import TopicPartition as OwnedTopic

PROTOCOL_TYPE: Final = "consumer"
NEWEST: Final = 3
_VERSION: Final = Struct(">h")


def version_of(data: bytes) -> int:
    """The version in which to read these bytes.

    Raises:
        RemoteProtocolError: they are none of these.
    """
    if len(data) < _VERSION.size:
        raise RemoteProtocolError(f"{len(data)} bytes are no consumer protocol")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise RemoteProtocolError(f"version {version} of the consumer protocol")
    return min(version, NEWEST)


def write_subscription(subscription: Subscription) -> bytes:
    """For JoinGroup, in the newest version (older members read its beginning)."""
    generation_id = subscription.generation_id
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            OwnedTopic(topic=topic, partitions=partitions)
            for topic, partitions in _by_topic(subscription.owned_partitions).items()
        ],
        generation_id=-1 if generation_id is None else generation_id,
        rack_id=subscription.rack_id,
    )
    return _VERSION.pack(NEWEST) + message.to_bytes(NEWEST)


def read_subscription(metadata: bytes, group_instance_id: str | None) -> Subscription:
    """A member's, as the leader gets it.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    read = ConsumerProtocolSubscription.decode(metadata, version_of(metadata), _VERSION.size)[0]
    return Subscription(
        topics=tuple(read.topics),
        owned_partitions=tuple(
            TopicPartition(each.topic, partition)
            for each in read.owned_partitions
            for partition in each.partitions
        ),
        generation_id=read.generation_id if read.generation_id >= 0 else None,
        rack_id=read.rack_id or None,
        group_instance_id=group_instance_id,
        user_data=None if read.user_data is None else bytes(read.user_data),
    )


def write_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None, version: int
) -> bytes:
    """For one member, in a version it can read."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedTopic(topic=topic, partitions=indexes)
            for topic, indexes in _by_topic(partitions).items()
        ],
        user_data=user_data,
    )
    return _VERSION.pack(version) + message.to_bytes(version)


def read_assignment(assignment: bytes) -> tuple[tuple[TopicPartition, ...], bytes | None]:
    """Partitions and the assignor's own bytes; no bytes at all are no partitions.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    if not assignment:
        return (), None
    version = version_of(assignment)
    read = ConsumerProtocolAssignment.decode(assignment, version, _VERSION.size)[0]
    partitions = tuple(
        TopicPartition(each.topic, partition)
        for each in read.assigned_partitions
        for partition in each.partitions
    )
    return partitions, None if read.user_data is None else bytes(read.user_data)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for each in sorted(partitions):
        by_topic.setdefault(each.topic, []).append(each.partition)
    return by_topic
