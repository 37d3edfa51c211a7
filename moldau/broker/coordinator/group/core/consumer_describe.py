"""ConsumerGroupDescribe: a consumer group as administrators see it.

Owns: turning a group into a DescribedGroup. Must not: change anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import NOTHING, ConsumerGroupMember
from moldau.metadata.image import MetadataImage
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p69_consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def describe(group: ConsumerGroup, image: MetadataImage, default_assignor: str) -> DescribedGroup:
    """The group with all its members; topics that are gone are left out."""
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        error_message=None,
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or default_assignor,
        members=[_member(group, member, image) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerGroupMember, image: MetadataImage) -> Member:
    owned: dict[UUID, set[int]] = {}
    for partitions in (member.assigned, member.pending_revocation):
        for topic_id, indexes in partitions.items():
            owned.setdefault(topic_id, set()).update(indexes)
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex or "",
        assignment=_assignment(owned, image),
        target_assignment=_assignment(group.targets.get(member.member_id, NOTHING), image),
        member_type=CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[UUID, Iterable[int]], image: MetadataImage) -> Assignment:
    topics = image.topics.topics_by_id
    return Assignment(
        topic_partitions=[
            TopicPartitions(
                topic_id=topic_id, topic_name=topics[topic_id].name, partitions=sorted(indexes)
            )
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in topics
        ]
    )
