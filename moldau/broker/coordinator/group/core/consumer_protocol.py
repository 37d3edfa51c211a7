"""The embedded consumer protocol: what classic consumers put into JoinGroup and get from SyncGroup.

An assignment is written in the version of the member's subscription.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from moldau.broker.coordinator.group.core.consumer_member import Assignment
from moldau.metadata.image import MetadataImage
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_payload,
    encode_payload,
    payload_version,
)
from moldau.protocol.messages.consumer_protocol import OwnedTopic as OwnedPartition


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """What a member is subscribed to, and what it claims to own. Raises: RemoteProtocolError."""
    return decode_payload(ConsumerProtocolSubscription, metadata)


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment:
    """What the leader of a classic group gave a member; nothing without bytes. Raises:
    RemoteProtocolError.
    """
    if not assignment:
        return ConsumerProtocolAssignment()
    return decode_payload(ConsumerProtocolAssignment, assignment)


def write_assignment(partitions: Assignment, subscription: bytes, image: MetadataImage) -> bytes:
    """What a member shall own, as it can read it; deleted topics are left out.

    A subscription that cannot be read (a log may hold one) is answered in version 0: a group must
    be able to change without the help of its members.
    """
    try:
        version = payload_version(subscription)
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
    return encode_payload(message, version)


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
