"""ConsumerGroupHeartbeat: what is a legal request, and who the member is that sent it.

Owns: the checks of KIP-848 in Kafka's order, and finding or making the member.
Must not: change the group. Invariant: a member is only found under an epoch it may be in: its
own, or the one before if the answer that told the new one may have been lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
)
from moldau.broker.coordinator.group.core.context import ClientInfo, Refusal
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)

_CLIENT_CHOOSES_ID_VERSION: Final = 1
"""From this version on a member brings its own id (KIP-1082)."""


def check_request(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]
) -> None:
    """Check what can be checked without knowing the group.

    Raises:
        Refusal: INVALID_REQUEST or UNSUPPORTED_ASSIGNOR.
    """
    epoch = request.member_epoch
    needs_id = api_version >= _CLIENT_CHOOSES_ID_VERSION or epoch > 0 or epoch == LEAVE_EPOCH
    for name, value, is_checked in (
        ("MemberId", request.member_id, needs_id),
        ("GroupId", request.group_id, True),
        ("InstanceId", request.instance_id, True),
        ("RackId", request.rack_id, True),
    ):
        if is_checked and value is not None and not value.strip():
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{name} is empty.")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "Only a static member can leave for a while: InstanceId is missing.",
            )
    elif epoch < STATIC_LEAVE_EPOCH:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"There is no member epoch {epoch}.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise Refusal(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {request.server_assignor}; choose one of "
            f"{', '.join(assignors)}.",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Who joins has to name its RebalanceTimeoutMs.")
    if request.topic_partitions is None or request.topic_partitions:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "Who joins owns nothing: TopicPartitions has to be an empty list.",
        )
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "Who joins has to subscribe: SubscribedTopicNames or SubscribedTopicRegex is missing.",
        )


def owned_partitions(
    topics: Iterable[TopicPartitions] | None,
) -> Mapping[UUID, frozenset[int]] | None:
    """What a member says it has."""
    if topics is None:
        return None
    owned: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()).union(topic.partitions)
    return owned


def check_epoch(
    member: ConsumerGroupMember,
    member_epoch: int,
    owned: Mapping[UUID, frozenset[int]] | None,
) -> None:
    """Whether a member may send under `member_epoch`.

    Raises:
        Refusal: FENCED_MEMBER_EPOCH.
    """
    if member_epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if member_epoch > member.member_epoch:
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"Epoch {member_epoch} is ahead of {member.member_epoch}, known here: give up all "
            "partitions and join again.",
        )
    if member_epoch != member.previous_member_epoch or not _is_subset(owned, member):
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"Epoch {member_epoch} is behind {member.member_epoch}, known here: give up all "
            "partitions and join again.",
        )


def _is_subset(owned: Mapping[UUID, frozenset[int]] | None, member: ConsumerGroupMember) -> bool:
    if owned is None:
        return False
    return all(
        topic_id in member.assigned and partitions <= member.assigned[topic_id].keys()
        for topic_id, partitions in owned.items()
    )


def known_member(group: ConsumerGroup, member_id: str) -> ConsumerGroupMember:
    """The member with that id.

    Raises:
        Refusal: UNKNOWN_MEMBER_ID.
    """
    member = group.members.get(member_id)
    if member is None:
        raise Refusal(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Group {group.group_id} has no member {member_id}.",
        )
    return member


def known_static_member(
    group: ConsumerGroup, instance_id: str, member_id: str | None
) -> ConsumerGroupMember:
    """The member with that instance id.

    Args:
        member_id: the id it must have; None: any.

    Raises:
        Refusal: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when another member has the instance id.
    """
    member = group.static_member(instance_id)
    if member is None:
        raise Refusal(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"No member of group {group.group_id} has instance id {instance_id}.",
        )
    if member_id is not None and member.member_id != member_id:
        raise Refusal(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Instance id {instance_id} is no longer {member_id}'s but {member.member_id}'s.",
        )
    return member


def released_static_member(
    group: ConsumerGroup, instance_id: str, member_id: str
) -> ConsumerGroupMember | None:
    """The member whose place a joining static member may take, or None when there is none.

    Raises:
        Refusal: UNRELEASED_INSTANCE_ID, the other one has not left.
    """
    member = group.static_member(instance_id)
    if (
        member is not None
        and not member.uses_classic_protocol
        and member.member_epoch != STATIC_LEAVE_EPOCH
    ):
        raise Refusal(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Instance id {instance_id} still belongs to {member.member_id}, so {member_id} cannot "
            "have it.",
        )
    return member


def successor(old: ConsumerGroupMember, member_id: str) -> ConsumerGroupMember:
    """The member that takes over the place, and the partitions, of a static one."""
    return replace(
        old, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH
    )


def told(
    member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: ClientInfo
) -> ConsumerGroupMember:
    """The member with what its heartbeat says; the same object if that is nothing new."""
    names = request.subscribed_topic_names
    values = {
        "instance_id": _either(request.instance_id, member.instance_id),
        "rack_id": _either(request.rack_id, member.rack_id),
        "client_id": client.client_id,
        "client_host": client.client_host,
        "subscribed_topic_names": (
            member.subscribed_topic_names if names is None else frozenset(names)
        ),
        "subscribed_topic_regex": _either(
            request.subscribed_topic_regex, member.subscribed_topic_regex
        ),
        "rebalance_timeout_ms": (
            member.rebalance_timeout_ms
            if request.rebalance_timeout_ms == -1
            else request.rebalance_timeout_ms
        ),
        "server_assignor": _either(request.server_assignor, member.server_assignor),
        "classic": None,
    }
    if all(getattr(member, name) == value for name, value in values.items()):
        return member
    return replace(member, **values)  # type: ignore[arg-type]


def _either(value: str | None, otherwise: str | None) -> str | None:
    return otherwise if value is None else value


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member told everything, which it does when it may have missed an answer; it is
    answered with everything too.
    """
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )
