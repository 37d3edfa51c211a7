"""All classic groups of one partition of `__consumer_offsets`: the classic protocol's requests.

Owns JoinGroup, SyncGroup, Heartbeat and LeaveGroup, the way of every event to its group, and what
the log says about classic groups. Must not know consumer groups (the state machine asks them first)
or complete generations (`classic_rebalance` does). Invariants: only `replay` makes a group
persistent; a group that was never written and has no members is forgotten; a JoinGroup is answered
at once or waits at its member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorResult,
    Reply,
    SetTimer,
    is_refused,
)
from moldau.broker.coordinator.group.core.classic_group import (
    JOIN,
    SESSION,
    SYNC,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    ClassicTimer,
)
from moldau.broker.coordinator.group.core.classic_rebalance import ClassicRebalance
from moldau.broker.coordinator.group.core.context import group_write_error
from moldau.broker.coordinator.group.core.joining import (
    FIRST_KNOWN_MEMBER_VERSION,
    FIRST_SKIP_ASSIGNMENT_VERSION,
    UNKNOWN_MEMBER,
    Joining,
    join_error,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p12_heartbeat import HeartbeatResponse
from moldau.protocol.messages.p13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from moldau.protocol.messages.p14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from moldau.broker.coordinator.core.replies import Answerable
    from moldau.broker.coordinator.group.core.consumer_group import Groups
    from moldau.broker.coordinator.group.core.context import GroupSettings
    from moldau.protocol.coordinator_records.classic_groups import GroupMetadataValue
    from moldau.protocol.messages.p11_join_group import JoinGroupRequest
    from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
    from moldau.protocol.messages.p14_sync_group import SyncGroupRequest


FIRST_REBALANCE_TIMEOUT_VERSION: Final = 1

_MAX_PREFIX_LENGTH: Final = 8000
"""Characters of the instance's or client's id in a member id, which has to fit into a string of the
protocol (32,767 bytes) together with its random part.
"""


class ClassicGroups:
    """The classic protocol on the groups of `groups` that speak it."""

    def __init__(
        self,
        groups: Groups,
        settings: GroupSettings,
        *,
        random_id: Callable[[], str],
        has_offsets: Callable[[str], bool],
        replayed_count: Callable[[], int],
        count: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._settings = settings
        self._has_offsets = has_offsets
        self._replayed_count = replayed_count
        self._rebalance = ClassicRebalance(
            settings, self.discard_if_unused, lambda: count("group-completed-rebalance")
        )
        self._random_id = random_id

    def get(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def discard_if_unused(self, group: ClassicGroup) -> None:
        """Forget a group that has never been more than a name."""
        is_known = self._groups.get(group.group_id) is group
        if is_known and group.is_unused and not self._has_offsets(group.group_id):
            self.discard(group)

    def discard(self, group: ClassicGroup) -> None:
        """Forget a group of which the log knows nothing."""
        group.transition_to(ClassicGroupState.DEAD, group.state_timestamp_ms)
        del self._groups[group.group_id]

    # -- requests --------------------------------------------------------------------------------

    def join_error(self, request: JoinGroupRequest, *, is_first: bool) -> ErrorCode:
        """What is wrong with a JoinGroup, whatever kind of group it is for.

        Args:
            is_first: the group does not exist, or has to become a classic one first.
        """
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        settings = self._settings
        timeout_ms = request.session_timeout_ms
        if not settings.min_session_timeout_ms <= timeout_ms <= settings.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if is_first and request.member_id != UNKNOWN_MEMBER:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if is_first and not (request.protocol_type and request.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def join_group(self, joining: Joining, now_ms: float) -> CoordinatorResult:
        """Join, or come back for the next generation. The request has passed `join_error`."""
        out = CoordinatorResult()
        request = joining.request
        group = self._groups.get(request.group_id)
        if group is None:
            group = self._groups[request.group_id] = ClassicGroup(request.group_id, now_ms)
        assert isinstance(group, ClassicGroup)
        names = (name for name, _ in joining.protocols)
        if not self._has_room(group, request.member_id):
            self._turn_away(group, joining, out, now_ms)
        elif not group.supports(request.protocol_type, names):
            out.replies.append(joining.refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_new(group, joining, out, now_ms)
        else:
            self._join_existing(group, joining, out, now_ms)
        self.discard_if_unused(group)
        return out.whatever_happens(self._replayed_count)

    def sync_group(self, request: SyncGroupRequest, reply_to: Answerable) -> CoordinatorResult:
        group = self.get(request.group_id)
        error = _sync_error(group, request)
        if error is not ErrorCode.NONE:
            return CoordinatorResult.reply(reply_to, SyncGroupResponse(error_code=error))
        assert group is not None
        out = CoordinatorResult()
        member = group.members[request.member_id]
        self._rebalance.has_synced(group, member, out)
        if group.state is ClassicGroupState.STABLE:
            out.replies.append(Reply(reply_to, group.sync_response(member)))
            return out
        superseded = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        member.answer_sync(superseded, out)
        member.sync_reply_to = reply_to
        if group.leader_id == member.member_id:
            self._write_assignment(group, request, out)
        return out.whatever_happens(self._replayed_count)

    def heartbeat(
        self, request: HeartbeatRequest, reply_to: Answerable, now_ms: float
    ) -> CoordinatorResult:
        """Renew a session; the answer says whether the member must join again."""
        del now_ms
        group = self.get(request.group_id)
        out = CoordinatorResult()
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if not request.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        elif group is not None:
            error = group.validate_member(request.member_id, request.group_instance_id)
            if error is ErrorCode.NONE and request.generation_id != group.generation_id:
                error = ErrorCode.ILLEGAL_GENERATION
            if error is ErrorCode.NONE:
                self._rebalance.heard_of(group, group.members[request.member_id], out)
                if group.state is ClassicGroupState.PREPARING_REBALANCE:
                    error = ErrorCode.REBALANCE_IN_PROGRESS
        out.replies.append(Reply(reply_to, HeartbeatResponse(error_code=error)))
        return out

    def leave_group(
        self,
        request: LeaveGroupRequest,
        reply_to: Answerable,
        now_ms: float,
        answers: list[MemberResponse],
    ) -> CoordinatorResult:
        """Members leave, or an administrator removes them. `answers` has one for each member of the
        request, and all of them say UNKNOWN_MEMBER_ID.
        """
        if not request.group_id:
            message = LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            return CoordinatorResult.reply(reply_to, message)
        group = self.get(request.group_id)
        if group is None:
            return CoordinatorResult.reply(reply_to, LeaveGroupResponse(members=answers))
        out = CoordinatorResult()
        response = LeaveGroupResponse(members=answers)
        has_left = False
        members, static, pending = group.members, group.static_members, group.pending_members
        for leaving, told in zip(request.members, answers, strict=True):
            instance_id = leaving.group_instance_id
            is_known = (
                leaving.member_id in members if instance_id is None else instance_id in static
            )
            if is_known or leaving.member_id in pending:
                error = told.error_code = self._leave(group, leaving, out)
                has_left = has_left or error is ErrorCode.NONE
        if has_left and group.state is not ClassicGroupState.EMPTY:
            self._rebalance.members_changed(group, out, now_ms)
        self.discard_if_unused(group)
        if not out.records:
            out.replies.append(Reply(reply_to, response))
            return out
        out.answer_when_committed(
            reply_to,
            response,
            lambda error: LeaveGroupResponse(error_code=group_write_error(error)),
        )
        return out.whatever_happens(self._replayed_count)

    def note_commit(self, group: ClassicGroup, member_id: str, out: CoordinatorResult) -> None:
        member = group.members.get(member_id)
        if member is not None and group.state in (
            ClassicGroupState.STABLE,
            ClassicGroupState.PREPARING_REBALANCE,
        ):
            self._rebalance.heard_of(group, member, out)

    # -- other events ----------------------------------------------------------------------------

    def on_timer(self, timer: ClassicTimer, now_ms: float) -> CoordinatorResult:
        out = CoordinatorResult()
        group = self.get(timer.group_id)
        if group is None:
            return out
        if timer.kind == SESSION:
            self._rebalance.session_over(group, timer.member_id, out, now_ms)
        elif timer.kind == JOIN:
            self._rebalance.joins_over(group, out, now_ms)
        elif timer.kind == SYNC:
            self._rebalance.syncs_over(group, out, now_ms)
        return out.whatever_happens(self._replayed_count)

    def loaded(self, now_ms: float) -> CoordinatorResult:
        """Every member gets a full session to find the new coordinator. A group that was written in
        the middle of a rebalance goes on with it; one that has become too big begins one, so that
        the members that join first keep their place.
        """
        out = CoordinatorResult()
        for group in list(self._groups.values()):
            if not isinstance(group, ClassicGroup):
                continue
            self._start(group, out, now_ms)
            if (
                group.state is ClassicGroupState.STABLE
                and len(group.members) > self._settings.max_group_size
            ):
                self._rebalance.prepare(group, out, now_ms)
            elif not group.is_persisted:
                self.discard_if_unused(group)
        return out

    def unloaded(self) -> list[Reply]:
        out = CoordinatorResult()
        for group in self._groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    group.refuse_waiting(member, ErrorCode.NOT_COORDINATOR, out)
        return out.replies

    def start_classic(self, group_id: str, now_ms: float) -> CoordinatorResult:
        """Take over a group that was a consumer group until now (KIP-848)."""
        out = CoordinatorResult()
        group = self.get(group_id)
        if group is None:
            return out
        self._start(group, out, now_ms)
        return out.whatever_happens(self._replayed_count)

    def _start(self, group: ClassicGroup, out: CoordinatorResult, now_ms: float) -> None:
        """Begin the sessions and the rebalance of a group that is as its record says."""
        for member in group.members.values():
            self._rebalance.heard_of(group, member, out)
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            self._rebalance.collect_joins(group, out, now_ms)

    def begin_migration(self, group: ClassicGroup) -> CoordinatorResult:
        """Let go of a group that is to become a consumer group: its timers end, and its waiting
        members are told to join again.
        """
        out = CoordinatorResult()
        group.cancel_timers(out)
        for member in group.members.values():
            group.refuse_waiting(member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        return out

    def replay(self, group_id: str, value: GroupMetadataValue | None, *, is_live: bool) -> None:
        """Take in a record of a classic group.

        Args:
            is_live: this state machine has just written the record, whose group in memory is what
                the record says, but for the assignments.
        """
        group = self.get(group_id)
        if value is None:
            if group is not None:
                group.transition_to(ClassicGroupState.DEAD, group.state_timestamp_ms)
                del self._groups[group_id]
            return
        if group is None or group.is_simple or not is_live:
            self._groups[group_id] = ClassicGroup.from_record(group_id, value)
            return
        group.is_persisted = True
        for written in value.members:
            member = group.members.get(written.member_id)
            if member is not None and value.generation == group.generation_id:
                member.assignment = bytes(written.assignment)

    # -- joining ---------------------------------------------------------------------------------

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        if group.is_empty:
            return True
        member = group.members.get(member_id)
        limit = self._settings.max_group_size
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            # Members have to prove that they are present; the first ones have a place.
            waits = member is not None and member.join_reply_to is not None
            return waits or group.waiting_to_join_count < limit
        return member is not None or len(group.members) < limit

    def _turn_away(
        self, group: ClassicGroup, joining: Joining, out: CoordinatorResult, now_ms: float
    ) -> None:
        out.replies.append(joining.refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER))
        member = group.members.get(joining.request.member_id)
        if joining.request.member_id in group.pending_members:
            self._forget_pending(group, joining.request.member_id, out)
        elif member is not None:
            self._rebalance.remove_member(group, member, out)
        else:
            return
        self._rebalance.maybe_complete_join(group, out, now_ms)

    def _forget_pending(self, group: ClassicGroup, member_id: str, out: CoordinatorResult) -> None:
        group.pending_members.discard(member_id)
        out.timers.append(CancelTimer(ClassicTimer(SESSION, group.group_id, member_id)))

    def _join_new(
        self, group: ClassicGroup, joining: Joining, out: CoordinatorResult, now_ms: float
    ) -> None:
        prefix = joining.request.group_instance_id
        if prefix is None:
            prefix = joining.client.client_id
        member_id = f"{prefix[:_MAX_PREFIX_LENGTH]}-{self._random_id()}"
        if joining.request.group_instance_id is not None:
            known = group.static_members.get(joining.request.group_instance_id)
            if known is None:
                self._add(group, joining, member_id, out, now_ms)
            else:
                self._replace(group, group.members[known], joining, member_id, out, now_ms)
            return
        if joining.api_version < FIRST_KNOWN_MEMBER_VERSION:
            self._add(group, joining, member_id, out, now_ms)
            return
        # The member must come back with the id: otherwise each lost answer would leave a member
        # without a client behind (KIP-394).
        group.pending_members.add(member_id)
        timer = ClassicTimer(SESSION, group.group_id, member_id)
        out.timers.append(SetTimer(timer, joining.request.session_timeout_ms))
        out.replies.append(joining.refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _add(
        self,
        group: ClassicGroup,
        joining: Joining,
        member_id: str,
        out: CoordinatorResult,
        now_ms: float,
    ) -> None:
        member = ClassicMember(
            member_id,
            joining.request.group_instance_id,
            joining.client.client_id,
            joining.client.client_host,
            _rebalance_timeout_ms(joining),
            joining.request.session_timeout_ms,
            joining.protocols,
        )
        member.is_new = True
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is ClassicGroupState.EMPTY
        ):
            group.new_member_added = True
        group.add(member, joining.request.protocol_type)
        group.wait_for_join(member, joining.reply_to, joining.api_version)
        self._rebalance.heard_of(group, member, out)
        self._rebalance.members_changed(group, out, now_ms)

    def _replace(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        joining: Joining,
        member_id: str,
        out: CoordinatorResult,
        now_ms: float,
    ) -> None:
        old_member_id = member.member_id
        old_leader_id = group.leader_id
        old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        group.refuse_waiting(member, ErrorCode.FENCED_INSTANCE_ID, out)
        out.timers.append(CancelTimer(ClassicTimer(SESSION, group.group_id, old_member_id)))
        group.rename(member, member_id)
        self._update(group, member, joining, out)
        self._rebalance.heard_of(group, member, out)
        if group.state is not ClassicGroupState.STABLE:
            # In CompletingRebalance the leader may already assign to the old id.
            self._rebalance.members_changed(group, out, now_ms)
            return
        if group.select_protocol() != group.protocol_name:
            self._rebalance.prepare(group, out, now_ms)
            return

        def written(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            result = CoordinatorResult()
            if member.join_reply_to is not joining.reply_to:
                return result  # answered since: the member left, or came back once more
            if error is ErrorCode.NONE:
                self._answer_replaced(group, member, joining, old_leader_id, result)
                return result
            told = group_write_error(error)
            group.answer_join(member, join_error(told, UNKNOWN_MEMBER, joining.api_version), result)
            if is_refused(error):
                # Undo the change: the log still knows the old id.
                result.timers.append(CancelTimer(ClassicTimer(SESSION, group.group_id, member_id)))
                group.update(member, *old)
                group.rename(member, old_member_id)
                self._rebalance.heard_of(group, member, result)
            return result

        assignments = {each.member_id: each.assignment for each in group.members.values()}
        out.records.append(group.record(assignments))
        out.add_after(written)

    def _answer_replaced(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        joining: Joining,
        old_leader_id: str | None,
        out: CoordinatorResult,
    ) -> None:
        """The generation goes on. A leader that came back is told that it leads only if it can be
        told not to assign (KIP-814); an older client is given the old leader's id, as a follower.
        """
        if joining.api_version >= FIRST_SKIP_ASSIGNMENT_VERSION:
            is_leader = group.leader_id == member.member_id
            message = group.join_response(member, skip_assignment=is_leader)
        else:
            message = group.join_response(member, leader_id=old_leader_id)
        group.answer_join(member, message, out)

    def _join_existing(
        self, group: ClassicGroup, joining: Joining, out: CoordinatorResult, now_ms: float
    ) -> None:
        member_id = joining.request.member_id
        if member_id in group.pending_members and joining.request.group_instance_id is None:
            self._forget_pending(group, member_id, out)
            self._add(group, joining, member_id, out, now_ms)
            return
        error = group.validate_member(member_id, joining.request.group_instance_id)
        if error is not ErrorCode.NONE:
            out.replies.append(joining.refusal(error))
            return
        member = group.members[member_id]
        state = group.state
        is_same = list(member.protocols) == list(joining.protocols)
        if state is ClassicGroupState.COMPLETING_REBALANCE and is_same:
            # Its first request's answer may have been lost: the generation is the same.
            out.replies.append(Reply(joining.reply_to, group.join_response(member)))
        elif state is ClassicGroupState.STABLE and is_same and group.leader_id != member_id:
            out.replies.append(Reply(joining.reply_to, group.join_response(member)))
        elif state in (ClassicGroupState.EMPTY, ClassicGroupState.DEAD):
            out.replies.append(joining.refusal(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._update(group, member, joining, out)
            self._rebalance.members_changed(group, out, now_ms)

    def _update(
        self, group: ClassicGroup, member: ClassicMember, joining: Joining, out: CoordinatorResult
    ) -> None:
        # The client does not wait any more for the answer to an earlier request of the member.
        group.refuse_join(member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        group.update(
            member,
            joining.protocols,
            _rebalance_timeout_ms(joining),
            joining.request.session_timeout_ms,
        )
        group.wait_for_join(member, joining.reply_to, joining.api_version)

    def _write_assignment(
        self, group: ClassicGroup, request: SyncGroupRequest, out: CoordinatorResult
    ) -> None:
        assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
        generation_id = group.generation_id
        out.records.append(group.record(assignments))

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            result = CoordinatorResult()
            # A member may have come or gone since, which ends this generation.
            if (
                group.state is ClassicGroupState.COMPLETING_REBALANCE
                and group.generation_id == generation_id
            ):
                told = group_write_error(error)
                self._rebalance.assigned(group, told, result, now_ms)
            return result.whatever_happens(self._replayed_count)

        out.add_after(after)

    def _leave(
        self, group: ClassicGroup, leaving: MemberIdentity, out: CoordinatorResult
    ) -> ErrorCode:
        member_id = leaving.member_id
        instance_id = leaving.group_instance_id
        if member_id == UNKNOWN_MEMBER:
            # An administrator names static members by their instance id alone.
            known = None if instance_id is None else group.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = known
        elif member_id in group.pending_members:
            group.pending_members.remove(member_id)
            timer = ClassicTimer(SESSION, group.group_id, member_id)
            out.timers.append(CancelTimer(timer))
            return ErrorCode.NONE
        else:
            error = group.validate_member(member_id, instance_id)
            if error is not ErrorCode.NONE:
                return error
        self._rebalance.remove_member(group, group.members[member_id], out)
        return ErrorCode.NONE


def _sync_error(group: ClassicGroup | None, request: SyncGroupRequest) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    for told, known in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if told is not None and known is not None and told != known:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _rebalance_timeout_ms(joining: Joining) -> int:
    if joining.api_version >= FIRST_REBALANCE_TIMEOUT_VERSION:
        return joining.request.rebalance_timeout_ms
    return joining.request.session_timeout_ms
