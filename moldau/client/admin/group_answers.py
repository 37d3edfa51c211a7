"""Responses about groups as the admin client's values.

Owns the reading, that of the bytes which members of classic groups leave with their coordinator
included. Must not ask anything. Invariant: what a member wrote can be anything; it never fails a
description.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from moldau.client.admin.group_types import (
    CLASSIC,
    CONSUMER,
    CommittedOffset,
    GroupDescription,
    GroupMember,
)
from moldau.client.cluster.coordinators import PASSING, Refusal
from moldau.client.cluster.metadata_cache import Broker
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages import p09_offset_fetch as fetch
from moldau.protocol.messages import p15_describe_groups as classic
from moldau.protocol.messages import p69_consumer_group_describe as consumer
from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.schema import Message
from moldau.protocol.types import TopicPartition

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
NO_OFFSET: Final = -1
MEMBER_TYPES: Final = {0: CLASSIC, 1: CONSUMER}
PartitionErrors = Mapping[TopicPartition, int]
_VERSION: Final = struct.Struct(">h")


def read_consumer(
    response: consumer.ConsumerGroupDescribeResponse, _: Sequence[str], broker: Broker
) -> dict[str, GroupDescription | Refusal]:
    """Groups of KIP-848, or why each is not described."""
    found: dict[str, GroupDescription | Refusal] = {}
    for group in response.groups:
        if group.error_code != ErrorCode.NONE:
            found[group.group_id] = Refusal(group.error_code, group.error_message)
            continue
        found[group.group_id] = GroupDescription(
            group.group_id,
            CONSUMER,
            CONSUMER_PROTOCOL_TYPE,
            group.group_state,
            group.assignor_name,
            broker,
            tuple(_consumer_member(member) for member in group.members),
            group.group_epoch,
            group.assignment_epoch,
        )
    return found


def _consumer_member(member: consumer.Member) -> GroupMember:
    return GroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        _partitions(member.assignment),
        _partitions(member.target_assignment),
        member.member_epoch,
        MEMBER_TYPES.get(member.member_type),
        member.rack_id,
        tuple(member.subscribed_topic_names),
        member.subscribed_topic_regex or None,
    )


def _partitions(assignment: consumer.Assignment) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


def read_classic(
    response: classic.DescribeGroupsResponse, _: Sequence[str], broker: Broker
) -> dict[str, GroupDescription | Refusal]:
    """Classic groups, or why each is not described."""
    found: dict[str, GroupDescription | Refusal] = {}
    for group in response.groups:
        if group.error_code != ErrorCode.NONE:
            found[group.group_id] = Refusal(group.error_code, group.error_message)
        elif group.group_state == "Dead" and not group.members:
            # Before version 6 that is how a group is described that is not there.
            found[group.group_id] = Refusal(ErrorCode.GROUP_ID_NOT_FOUND)
        else:
            is_consumers = group.protocol_type == CONSUMER_PROTOCOL_TYPE
            found[group.group_id] = GroupDescription(
                group.group_id,
                CLASSIC,
                group.protocol_type,
                group.group_state,
                group.protocol_data,
                broker,
                tuple(
                    _classic_member(member, is_consumers=is_consumers) for member in group.members
                ),
            )
    return found


def _classic_member(member: classic.DescribedGroupMember, *, is_consumers: bool) -> GroupMember:
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        assigned_partitions(member.member_assignment) if is_consumers else frozenset(),
        subscribed_topics=subscribed_topics(member.member_metadata) if is_consumers else (),
    )


def assigned_partitions(assignment: bytes) -> frozenset[TopicPartition]:
    """The partitions in what a classic group's leader has assigned; none where it is not readable:
    these bytes are the members' own business.
    """
    message = _embedded(ConsumerProtocolAssignment, assignment)
    if message is None:
        return frozenset()
    return frozenset(
        TopicPartition(topic.topic, index)
        for topic in message.assigned_partitions
        for index in topic.partitions
    )


def subscribed_topics(subscription: bytes) -> tuple[str, ...]:
    """The topics that a member of a classic group asks for, likewise."""
    message = _embedded(ConsumerProtocolSubscription, subscription)
    return () if message is None else tuple(message.topics)


def _embedded(kind: type[Message], data: bytes) -> Any:
    """A message behind its version; one of a later version begins like the latest we know."""
    if len(data) < _VERSION.size:
        return None
    (version,) = _VERSION.unpack_from(data)
    if version < kind.MIN_VERSION:
        return None
    try:
        message, _ = kind.decode(data, min(version, kind.MAX_VERSION), _VERSION.size)
    except RemoteProtocolError:
        return None
    return message


def read_offsets(
    response: fetch.OffsetFetchResponse, *_: object
) -> dict[str, dict[TopicPartition, CommittedOffset] | Refusal]:
    """What groups have committed; an error of one partition is the group's."""
    return {group.group_id: _offsets(group.error_code, group.topics) for group in response.groups}


def read_offsets_of_one(
    response: fetch.OffsetFetchResponse, group_ids: Sequence[str], *_: object
) -> dict[str, dict[TopicPartition, CommittedOffset] | Refusal]:
    """Likewise, as it is told before version 8."""
    return {group_ids[0]: _offsets(response.error_code, response.topics)}


def _offsets(
    error_code: int,
    topics: Sequence[fetch.OffsetFetchResponseTopics] | Sequence[fetch.OffsetFetchResponseTopic],
) -> dict[TopicPartition, CommittedOffset] | Refusal:
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in topics:
        for entry in topic.partitions:
            error_code = error_code or entry.error_code
            if entry.committed_offset != NO_OFFSET:
                offsets[TopicPartition(topic.name, entry.partition_index)] = CommittedOffset(
                    entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                )
    return Refusal(error_code) if error_code != ErrorCode.NONE else offsets


def partition_errors(response: Any) -> PartitionErrors | Refusal:
    """Each partition's code. When all have the same passing one it is about the group."""
    errors = {
        TopicPartition(topic.name, entry.partition_index): entry.error_code
        for topic in response.topics
        for entry in topic.partitions
    }
    passing = [code for code in errors.values() if ErrorCode.of(code) in PASSING]
    return Refusal(passing[0]) if passing else errors


def read_deleted(response: Any, *_: object) -> dict[str, bool | Refusal]:
    """True for each group that is gone."""
    return {
        each.group_id: True if each.error_code == ErrorCode.NONE else Refusal(each.error_code)
        for each in response.results
    }
