"""The classic group protocol's requests: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Owns who is refused and why. Must not change states by itself: the group does. Invariant: a request
of a member that is not current changes nothing.
"""

from __future__ import annotations

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p11_join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.p13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupResponse
from tests.fake_broker.context import Context, Handler
from tests.fake_broker.group import ClassicGroup, GroupState, JoinResult, Member

_MEMBER_ID_FIRST_SINCE = 4
_SKIP_ASSIGNMENT_SINCE = 9
_PROTOCOL_NULL_SINCE = 7
_MANY_LEAVE_SINCE = 3


async def join_group(context: Context, request: JoinGroupRequest) -> JoinGroupResponse:
    """Join and wait for the generation."""
    groups = context.cluster.groups
    error = context.refusal("top") or groups.here(context, request.group_id)
    if (
        not error
        and request.session_timeout_ms < context.cluster.settings.group_min_session_timeout_ms
    ):
        error = ErrorCode.INVALID_SESSION_TIMEOUT
    if error:
        return _joined(context, request.member_id, JoinResult(error))
    group = groups.get(request.group_id)
    if group.consumer.members:
        return _joined(
            context, request.member_id, JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        )
    return await _join(context, group.classic, request)


async def _join(
    context: Context, group: ClassicGroup, request: JoinGroupRequest
) -> JoinGroupResponse:
    protocols = [(each.name, bytes(each.metadata)) for each in request.protocols]
    static = group.static_member(request.group_instance_id)
    member = group.members.get(request.member_id)
    if static is not None and request.member_id and static.member_id != request.member_id:
        return _joined(context, request.member_id, JoinResult(ErrorCode.FENCED_INSTANCE_ID))
    if request.member_id and member is None and request.member_id not in group.pending:
        return _joined(context, request.member_id, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
    others_alone = group if member is None and static is None else None
    if others_alone is not None and not group.supports(request.protocol_type, protocols):
        result = JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return _joined(context, request.member_id, result)
    if static is not None and not request.member_id:
        return await _join_again_as_static(context, group, static, protocols)
    if member is None:
        new_id = request.member_id or context.cluster.groups.new_member_id(
            request.group_instance_id or context.received.client_id
        )
        is_dynamic = request.group_instance_id is None
        if not request.member_id and is_dynamic and context.version >= _MEMBER_ID_FIRST_SINCE:
            group.hand_out_id(new_id, request.session_timeout_ms)
            return _joined(context, new_id, JoinResult(ErrorCode.MEMBER_ID_REQUIRED))
        member = Member(
            new_id,
            request.group_instance_id,
            context.received.client_id or "",
            request.session_timeout_ms,
            request.rebalance_timeout_ms
            if request.rebalance_timeout_ms >= 0
            else request.session_timeout_ms,
            request.protocol_type,
            protocols,
        )
        group.add(member)
        return _joined(context, new_id, await group.wait_to_join(member))
    return await _rejoin(context, group, member, protocols)


async def _rejoin(
    context: Context, group: ClassicGroup, member: Member, protocols: list[tuple[str, bytes]]
) -> JoinGroupResponse:
    has_changed = member.protocols != protocols
    member.protocols = protocols
    group.touch(member)
    is_leader = member.member_id == group.leader_id
    if group.state is GroupState.COMPLETING and not has_changed:
        # The answer to its join was lost.
        everybody = list(group.members.values()) if is_leader else []
        return _joined(context, member.member_id, group.joined(everybody))
    if group.state is GroupState.STABLE and not has_changed and not is_leader:
        return _joined(context, member.member_id, group.joined([]))
    return _joined(context, member.member_id, await group.wait_to_join(member))


async def _join_again_as_static(
    context: Context, group: ClassicGroup, static: Member, protocols: list[tuple[str, bytes]]
) -> JoinGroupResponse:
    new_id = context.cluster.groups.new_member_id(static.instance_id)
    was_leader = group.leader_id == static.member_id
    old_id = static.member_id
    has_changed = [n for n, _ in static.protocols] != [n for n, _ in protocols]
    member = group.replace_static(static, new_id)
    member.protocols = protocols
    if group.state is not GroupState.STABLE or has_changed:
        return _joined(context, new_id, await group.wait_to_join(member))
    if not was_leader:
        return _joined(context, new_id, group.joined([]))
    if context.version >= _SKIP_ASSIGNMENT_SINCE:
        # It leads, but the assignment stands (KIP-814).
        everybody = list(group.members.values())
        return _joined(context, new_id, group.joined(everybody, skip_assignment=True))
    result = group.joined([])
    result.leader_id = old_id
    return _joined(context, new_id, result)


def _joined(context: Context, member_id: str, result: JoinResult) -> JoinGroupResponse:
    protocol = result.protocol
    if protocol is None and context.version < _PROTOCOL_NULL_SINCE:
        protocol = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation_id,
        protocol_type="consumer" if result.protocol is not None else None,
        protocol_name=protocol,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=member_id,
        members=[
            JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata_for(result.protocol or ""),
            )
            for each in result.members
        ],
    )


def current_member(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation_id: int
) -> tuple[Member | None, ErrorCode]:
    """The member, or why it is not one (any more)."""
    static = group.static_member(instance_id)
    if instance_id is not None and static is None:
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    if static is not None and static.member_id != member_id:
        return None, ErrorCode.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None:
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    if generation_id != group.generation_id:
        return None, ErrorCode.ILLEGAL_GENERATION
    return member, ErrorCode.NONE


async def sync_group(context: Context, request: SyncGroupRequest) -> SyncGroupResponse:
    """Hand out and receive the assignment."""
    groups = context.cluster.groups
    error = context.refusal("top") or groups.here(context, request.group_id)
    if error:
        return SyncGroupResponse(error_code=error)
    group = groups.get(request.group_id).classic
    member, error = current_member(
        group, request.member_id, request.group_instance_id, request.generation_id
    )
    if not error and group.state is GroupState.PREPARING:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    if error or member is None:
        return SyncGroupResponse(error_code=error)
    group.touch(member)
    if group.state is GroupState.STABLE:
        return _synced(group, ErrorCode.NONE, member.assignment)
    future = group.wait_to_sync(member)
    if member.member_id == group.leader_id:
        group.assign({each.member_id: bytes(each.assignment) for each in request.assignments})
    return _synced(group, *await future)


def _synced(group: ClassicGroup, error: ErrorCode, assignment: bytes) -> SyncGroupResponse:
    if error:
        return SyncGroupResponse(error_code=error)
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )


async def heartbeat(context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
    """Stay a member."""
    groups = context.cluster.groups
    error = context.refusal("top") or groups.here(context, request.group_id)
    if error:
        return HeartbeatResponse(error_code=error)
    group = groups.get(request.group_id).classic
    member, error = current_member(
        group, request.member_id, request.group_instance_id, request.generation_id
    )
    if member is not None:
        group.touch(member)
        if group.state is GroupState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    return HeartbeatResponse(error_code=error)


async def leave_group(context: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Leave; one member before version 3, any since."""
    groups = context.cluster.groups
    error = context.refusal("top") or groups.here(context, request.group_id)
    if error:
        return LeaveGroupResponse(error_code=error)
    group = groups.get(request.group_id).classic
    if context.version < _MANY_LEAVE_SINCE:
        identity = MemberIdentity(member_id=request.member_id, group_instance_id=None)
        return LeaveGroupResponse(error_code=_leave(group, identity))
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=_leave(group, each),
            )
            for each in request.members
        ]
    )


def _leave(group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
    static = group.static_member(identity.group_instance_id)
    if static is not None:
        if identity.member_id and identity.member_id != static.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        group.remove(static)
        return ErrorCode.NONE
    if identity.member_id in group.pending:
        group.forget_pending(identity.member_id)
        return ErrorCode.NONE
    member = group.members.get(identity.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    group.remove(member)
    return ErrorCode.NONE


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
}
