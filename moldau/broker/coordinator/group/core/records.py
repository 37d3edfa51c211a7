"""The records of classic groups and committed offsets.

Owns: which record says what, and in which version Apache Kafka 4.3 writes it. Must not: decide
when they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.offset_store import PartitionKey, StoredOffset
from moldau.protocol.coordinator_records.classic_groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from moldau.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.classic_group import ClassicGroup

OFFSET_VERSION: Final = 4
EXPIRING_OFFSET_VERSION: Final = 1
"""The only version with an expiry of its own, which clients before OffsetCommit v5 may set; it has
neither leader epoch nor topic id.
"""

GROUP_METADATA_VERSION: Final = 3
NO_EXPIRY: Final = -1


def offset_record(
    group_id: str, topic: str, partition: int, stored: StoredOffset
) -> CoordinatorRecord:
    """A committed offset."""
    version = OFFSET_VERSION
    if stored.expire_timestamp_ms != NO_EXPIRY:
        version = EXPIRING_OFFSET_VERSION
        stored = replace(stored, leader_epoch=-1, topic_id=ZERO_UUID)
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition),
        OffsetCommitValue(
            offset=stored.offset,
            leader_epoch=stored.leader_epoch,
            metadata=stored.metadata,
            commit_timestamp=stored.commit_timestamp_ms,
            expire_timestamp=stored.expire_timestamp_ms,
            topic_id=stored.topic_id,
        ),
        version,
        content=(PartitionKey(group_id, topic, partition), stored),
    )


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """The end of a committed offset."""
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), None
    )


def group_metadata_record(
    group: ClassicGroup, assignments: Mapping[str, bytes]
) -> CoordinatorRecord:
    """A classic group with its members, as of now, and who has been assigned what."""
    protocol = group.protocol_name
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(protocol or ""),
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    return CoordinatorRecord(
        GroupMetadataKey(group=group.group_id),
        GroupMetadataValue(
            protocol_type=group.protocol_type,
            generation=group.generation_id,
            protocol=protocol,
            leader=group.leader_id,
            current_state_timestamp=group.state_timestamp_ms,
            members=members,
        ),
        GROUP_METADATA_VERSION,
    )


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """The end of a classic group."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)
