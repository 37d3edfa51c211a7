"""What tests of groups between the protocols have in common.

Owns: subscriptions and assignments as classic members send them, and classic groups that work.
"""

from __future__ import annotations

from typing import Any

from moldau.broker.coordinator.group.core.consumer_protocol import read_assignment
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from moldau.protocol.messages.consumer_protocol import (
    OwnedTopic as OwnedPartitions,
)
from tests.unit.broker.coordinator.group.consumer_harness import ConsumerShard
from tests.unit.broker.coordinator.group.harness import INITIAL_DELAY_MS, Member


def shard(partition_count: int = 4, **config: Any) -> ConsumerShard:
    groups = ConsumerShard(**config)
    groups.create_topic("events", partition_count)
    return groups


def assignment(user_data: bytes | None = None, **topics: list[int]) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=name, partitions=partitions) for name, partitions in topics.items()
        ],
        user_data=user_data,
    )
    return b"\0\1" + message.to_bytes(1)


def subscription(owned: dict[str, list[int]], *topics: str) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[
            OwnedPartitions(topic=name, partitions=partitions) for name, partitions in owned.items()
        ],
    )
    return b"\0\1" + message.to_bytes(1)


def owned(member: Member) -> dict[str, list[int]]:
    """What SyncGroup gave a classic member."""
    answer = member.syncing.answer
    assert answer.error_code == ErrorCode.NONE, ErrorCode.of(answer.error_code)
    return {
        topic.topic: topic.partitions
        for topic in read_assignment(bytes(answer.assignment)).assigned_partitions
    }


def stable_classic(groups: ConsumerShard, *shares: list[int], **options: Any) -> list[Member]:
    """A classic group whose leader has handed out the shares of "events"."""
    protocols = {"range": subscription({}, "events")}
    members = [groups.member(protocols=protocols, **options) for _ in shares]
    for member in members:
        member.join()
    groups.advance(INITIAL_DELAY_MS)
    while not all(member.joining.is_answered for member in members):
        groups.advance(INITIAL_DELAY_MS)
    leader_id = ""
    for member in members:
        leader_id = member.joined().leader
    given = {
        member.member_id: assignment(events=share)
        for member, share in zip(members, shares, strict=True)
    }
    for member in sorted(members, key=lambda each: each.member_id != leader_id):
        member.sync(given if member.member_id == leader_id else None)
    return members


def rejoin(member: Member, keeps: dict[str, list[int]]) -> dict[str, list[int]]:
    """JoinGroup, with what the member still has, and SyncGroup."""
    member.protocols = {"range": subscription(keeps, "events")}
    member.join()
    member.joined()
    member.sync()
    return owned(member)
