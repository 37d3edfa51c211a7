"""The records of consumer groups (types 3 to 8 and 16 of `__consumer_offsets`).

Topics and partitions are written in order, so that equal states give equal bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.consumer_member import (
    Assignment,
    ConsumerGroupMember,
    OwnedPartitions,
)
from moldau.protocol.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from moldau.protocol.coordinator_records.consumer_groups import (
    ClassicMemberMetadata,
    ClassicProtocol,
    TopicPartition,
    TopicPartitions,
)
from moldau.protocol.schema import Message


def group_epoch_record(group_id: str, group_epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """The group's epoch, and a hash of the topics it is subscribed to (type 3)."""
    return CoordinatorRecord(
        ConsumerGroupMetadataKey(group_id=group_id),
        ConsumerGroupMetadataValue(epoch=group_epoch, metadata_hash=metadata_hash),
    )


def member_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """The metadata of a member (type 5)."""
    classic = member.classic
    return CoordinatorRecord(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_topic_names),
            subscribed_topic_regex=member.subscribed_topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=None
            if classic is None
            else ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in classic.protocols
                ],
            ),
        ),
    )


def target_epoch_record(
    group_id: str, assignment_epoch: int, timestamp_ms: int
) -> CoordinatorRecord:
    """The epoch of the target assignment, and when it was computed (type 6)."""
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=assignment_epoch, assignment_timestamp=timestamp_ms
        ),
    )


def target_record(group_id: str, member_id: str, target: Assignment) -> CoordinatorRecord:
    """What a member shall own (type 7)."""
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                TopicPartition(topic_id=topic_id, partitions=sorted(target[topic_id]))
                for topic_id in in_order(target)
            ]
        ),
    )


def current_assignment_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """What a member owns (type 8)."""
    return CoordinatorRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            state=member.state,
            assigned_partitions=_topics(member.assigned),
            partitions_pending_revocation=_topics(member.pending_revocation),
        ),
    )


def tombstone(key: Message) -> CoordinatorRecord:
    """The end of what is kept under a key."""
    return CoordinatorRecord(key, None)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """The end of a member: of what it owns, of what it shall own, and of itself."""
    return [
        tombstone(key(group_id=group_id, member_id=member_id))
        for key in (
            ConsumerGroupCurrentMemberAssignmentKey,
            ConsumerGroupTargetAssignmentMemberKey,
            ConsumerGroupMemberMetadataKey,
        )
    ]


def regular_expression_record(
    group_id: str,
    expression: str,
    topic_names: Collection[str],
    metadata_offset: int,
    timestamp_ms: int,
) -> CoordinatorRecord:
    """The topics that an expression stands for, as of a metadata offset (type 16)."""
    return CoordinatorRecord(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression),
        ConsumerGroupRegularExpressionValue(
            topics=sorted(topic_names), version=metadata_offset, timestamp=timestamp_ms
        ),
    )


def in_order(topic_ids: Collection[UUID]) -> list[UUID]:
    """Topic ids in the order in which everything here is written."""
    return sorted(topic_ids) if len(topic_ids) > 1 else list(topic_ids)


def _topics(owned: OwnedPartitions) -> list[TopicPartitions]:
    topics = []
    for topic_id in in_order(owned):
        partitions = sorted(owned[topic_id])
        topics.append(
            TopicPartitions(
                topic_id=topic_id,
                partitions=partitions,
                assignment_epochs=[owned[topic_id][index] for index in partitions],
            )
        )
    return topics
