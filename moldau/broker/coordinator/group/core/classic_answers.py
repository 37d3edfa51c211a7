"""The answers of the classic protocol.

Owns: turning a group and its members into JoinGroup and SyncGroup responses, and answering who
waits. Must not: change anything but who waits. Invariant: each waiting request is answered once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.coordinator.core.result import CancelTimer, CoordinatorResult, Reply
from moldau.broker.coordinator.group.core.classic_group import NO_GENERATION, UNKNOWN_MEMBER
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p11_join_group import JoinGroupResponse, JoinGroupResponseMember
from moldau.protocol.messages.p14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.classic_group import ClassicGroup, ClassicMember

NULLABLE_PROTOCOL_VERSION: Final = 7
SESSION: Final = "classic session"
JOIN: Final = "classic join"
SYNC: Final = "classic sync"


class ClassicTimer(NamedTuple):
    """A timer of a classic group: a member's session, or an end of waiting for joins or syncs."""

    kind: str
    group_id: str
    member_id: str = UNKNOWN_MEMBER


def join_error(error: ErrorCode, member_id: str, api_version: int) -> JoinGroupResponse:
    """A refused JoinGroup."""
    return JoinGroupResponse(
        error_code=error,
        generation_id=NO_GENERATION,
        protocol_name=None if api_version >= NULLABLE_PROTOCOL_VERSION else "",
        leader=UNKNOWN_MEMBER,
        member_id=member_id,
    )


def join_members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    """What the leader is told about everybody."""
    protocol = group.protocol_name or ""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(protocol),
        )
        for member in group.members.values()
    ]


def join_response(
    group: ClassicGroup,
    member: ClassicMember,
    *,
    leader_id: str | None = None,
    skip_assignment: bool = False,
) -> JoinGroupResponse:
    """The generation as a member is told; only the leader hears who is in it.

    Args:
        leader_id: named as leader instead of the group's.
    """
    told_leader = (group.leader_id if leader_id is None else leader_id) or UNKNOWN_MEMBER
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name or "",
        leader=told_leader,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=join_members(group) if told_leader == member.member_id else [],
    )


def sync_response(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """The member's share of the generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def answer_join(
    group: ClassicGroup, member: ClassicMember, message: JoinGroupResponse, out: CoordinatorResult
) -> None:
    """Answer the member's JoinGroup, if one waits."""
    reply_to = group.take_join_reply(member)
    if reply_to is not None:
        out.replies.append(Reply(reply_to, message))


def answer_join_error(
    group: ClassicGroup, member: ClassicMember, error: ErrorCode, out: CoordinatorResult
) -> None:
    """Refuse the member's JoinGroup, if one waits."""
    if member.join_reply_to is not None:
        told = UNKNOWN_MEMBER if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        message = join_error(error, told, member.join_api_version)
        answer_join(group, member, message, out)


def answer_sync(member: ClassicMember, message: SyncGroupResponse, out: CoordinatorResult) -> None:
    """Answer the member's SyncGroup, if one waits."""
    if member.sync_reply_to is not None:
        out.replies.append(Reply(member.sync_reply_to, message))
        member.sync_reply_to = None


def refuse_waiting(
    group: ClassicGroup, member: ClassicMember, error: ErrorCode, out: CoordinatorResult
) -> None:
    """Refuse whatever of this member waits."""
    answer_join_error(group, member, error, out)
    answer_sync(member, SyncGroupResponse(error_code=error), out)


def cancel_timers(group: ClassicGroup, out: CoordinatorResult) -> None:
    """Cancel everything that runs for the group."""
    for member_id in [*group.members, *group.pending_members]:
        out.timers.append(CancelTimer(ClassicTimer(SESSION, group.group_id, member_id)))
    out.timers.append(CancelTimer(ClassicTimer(JOIN, group.group_id)))
    out.timers.append(CancelTimer(ClassicTimer(SYNC, group.group_id)))
