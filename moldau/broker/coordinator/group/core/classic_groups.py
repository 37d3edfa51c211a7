"""All classic groups of one partition of `__consumer_offsets`: the classic protocol's requests.

Owns JoinGroup, SyncGroup, Heartbeat and LeaveGroup, the way of every event to its group, the steps
from a change of members to a new generation (`group.initial.rebalance.delay.ms`), the end of
sessions, and what the log says about classic groups. Must not know consumer groups (the state
machine asks them first). Invariants: only `replay` makes a group persistent; a group that was never
written and has no members is forgotten; a JoinGroup is answered at once or waits at its member; a
group in PreparingRebalance has a join timer, one in CompletingRebalance a sync timer or a leader's
assignment on its way to the log, so that no member waits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import (
    Answerable,
    CancelTimer,
    CoordinatorResult,
    Reply,
    SetTimer,
    is_refused,
    write_error,
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
from moldau.broker.coordinator.group.core.context import refused
from moldau.broker.coordinator.group.core.joining import (
    FIRST_KNOWN_MEMBER_VERSION,
    FIRST_SKIP_ASSIGNMENT_VERSION,
    UNKNOWN_MEMBER,
    Joining,
    heartbeat_error,
    is_of_another_protocol,
    join_error,
    sync_error,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p13_leave_group as p13
from moldau.protocol.messages.p14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.consumer_group import GroupContext
    from moldau.protocol.coordinator_records.classic_groups import GroupMetadataValue
    from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupResponse
    from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
    from moldau.protocol.messages.p14_sync_group import SyncGroupRequest


_MAX_PREFIX_LENGTH: Final = 8000
"""Characters of the instance's or client's id in a member id, which has to fit into a string of the
protocol (32,767 bytes) together with its random part.
"""


@dataclass(slots=True, eq=False)
class ClassicRebalance:
    """What one event does to a classic group; `out` collects what is to be done."""

    context: GroupContext
    group: ClassicGroup
    out: CoordinatorResult
    now_ms: float

    def session_over(self, member_id: str) -> None:
        """A member's session is over. A member with a waiting request stays, unless it is a new
        one, which may have lost its connection before it knew its id.
        """
        group = self.group
        if member_id in group.pending_members:
            group.pending_members.remove(member_id)
            self.maybe_complete_join()
        elif member_id in group.members:
            member = group.members[member_id]
            waits = member.join_reply_to is not None or member.sync_reply_to is not None
            if member.is_new or not waits:
                self.remove_member(member)
                self.members_changed()

    def remove_member(self, member: ClassicMember) -> None:
        """Take a member out; its waiting requests get UNKNOWN_MEMBER_ID, so that it comes back."""
        self.group.refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID, self.out)
        self.group.end_session(member.member_id, self.out)
        self.group.remove(member)

    def members_changed(self) -> None:
        """A member came, left or changed its subscription: begin a rebalance, or go on with it."""
        if self.group.state is ClassicGroupState.PREPARING_REBALANCE:
            self.maybe_complete_join()
        else:
            self.prepare()

    def prepare(self) -> None:
        """Begin a rebalance: all members have to join again."""
        group = self.group
        is_initial = group.is_empty
        self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self._cancel(SYNC)
        group.transition_to(ClassicGroupState.PREPARING_REBALANCE, self.now_ms)
        if is_initial:
            delay_ms = max(self.context.settings.initial_rebalance_delay_ms, 0)
            group.new_member_added = False
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._wait(JOIN, delay_ms)
        else:
            self.collect_joins()

    def collect_joins(self) -> None:
        """Wait until all members have joined again, unless they have already."""
        if self.group.have_all_joined:
            self._complete_join()
        else:
            self._wait(JOIN, self.group.rebalance_timeout_ms)

    def maybe_complete_join(self) -> None:
        """Begin the generation if all members have joined; a first one waits for its delay."""
        group = self.group
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is not ClassicGroupState.EMPTY
            and group.have_all_joined
        ):
            self._complete_join()

    def joins_over(self) -> None:
        group = self.group
        if group.state is not ClassicGroupState.PREPARING_REBALANCE:
            return
        is_initial = group.previous_state is ClassicGroupState.EMPTY
        if is_initial and group.new_member_added and group.initial_delay_left_ms:
            # Members still come: one more delay, until the rebalance timeout is used up.
            step_ms = max(self.context.settings.initial_rebalance_delay_ms, 0)
            delay_ms = min(step_ms, group.initial_delay_left_ms)
            group.initial_delay_left_ms = max(group.initial_delay_left_ms - step_ms, 0)
            group.new_member_added = False
            self._wait(JOIN, delay_ms)
            return
        self._complete_join()

    def _complete_join(self) -> None:
        group, out = self.group, self.out
        self._cancel(JOIN)
        absent = [member for member in group.members.values() if member.join_reply_to is None]
        for member in absent:
            # Static members (KIP-345) keep their place until their session ends.
            if member.group_instance_id is None:
                self.remove_member(member)
        if group.members and not group.elect_joined_leader():
            self._wait(JOIN, group.rebalance_timeout_ms)
            return
        group.begin_generation(self.now_ms)
        if not group.members:
            out.records.append(group.record({}))
            return
        for member in group.members.values():
            group.answer_join(member, group.join_response(member), out)
            member.is_new = False
            group.renew_session(member, out)
            group.pending_sync.add(member.member_id)
        self._wait(SYNC, group.rebalance_timeout_ms)

    def syncs_over(self) -> None:
        """The sync timer has run out: remove the members that have not asked for a share."""
        group = self.group
        if group.state not in (ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE):
            return
        missing = [member for name, member in group.members.items() if name in group.pending_sync]
        for member in missing:
            self.remove_member(member)
        if missing:
            self.prepare()

    def assigned(self, error: ErrorCode) -> None:
        """The leader's assignment is in the log, or could not be written."""
        group = self.group
        if error is not ErrorCode.NONE:
            self._refuse_syncs(error)
            self.prepare()
            return
        group.transition_to(ClassicGroupState.STABLE, self.now_ms)
        self.context.count("group-completed-rebalance", 1)
        for member in group.members.values():
            self._answer_sync(member, group.sync_response(member))

    def _refuse_syncs(self, error: ErrorCode) -> None:
        if self.group.state is ClassicGroupState.COMPLETING_REBALANCE:
            for member in self.group.members.values():
                self._answer_sync(member, SyncGroupResponse(error_code=error))

    def _answer_sync(self, member: ClassicMember, message: SyncGroupResponse) -> None:
        if member.sync_reply_to is not None:
            member.answer_sync(message, self.out)
            self.group.renew_session(member, self.out)

    def _wait(self, kind: str, delay_ms: int) -> None:
        timer = ClassicTimer(kind, self.group.group_id)
        self.out.timers.append(SetTimer(timer, max(delay_ms, 0)))

    def _cancel(self, kind: str) -> None:
        self.out.timers.append(CancelTimer(ClassicTimer(kind, self.group.group_id)))

    # -- joining ---------------------------------------------------------------------------------

    def join(self, joining: Joining) -> None:
        """Take a JoinGroup's member in, have it wait, or refuse it."""
        request = joining.request
        names = (name for name, _ in joining.protocols)
        if not self._has_room(request.member_id):
            self._turn_away(joining)
        elif not self.group.supports(request.protocol_type, names):
            self.out.replies.append(joining.refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_new(joining)
        else:
            self._join_existing(joining)

    def _has_room(self, member_id: str) -> bool:
        group = self.group
        member = group.members.get(member_id)
        limit = self.context.settings.max_group_size
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            # Members have to prove that they are present; the first ones have a place.
            waits = member is not None and member.join_reply_to is not None
            return waits or group.waiting_to_join_count < limit
        return member is not None or len(group.members) < limit

    def _turn_away(self, joining: Joining) -> None:
        member_id = joining.request.member_id
        self.out.replies.append(joining.refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER))
        member = self.group.members.get(member_id)
        if member_id in self.group.pending_members:
            self._forget_pending(member_id)
        elif member is not None:
            self.remove_member(member)
        self.maybe_complete_join()

    def _forget_pending(self, member_id: str) -> None:
        self.group.pending_members.discard(member_id)
        self.group.end_session(member_id, self.out)

    def _join_new(self, joining: Joining) -> None:
        group, out = self.group, self.out
        instance_id = joining.request.group_instance_id
        prefix = joining.client.client_id if instance_id is None else instance_id
        member_id = f"{prefix[:_MAX_PREFIX_LENGTH]}-{self.context.random_id()}"
        if instance_id is not None and instance_id in group.static_members:
            known = group.static_members[instance_id]
            self._replace(group.members[known], joining, member_id)
            return
        if instance_id is not None or joining.api_version < FIRST_KNOWN_MEMBER_VERSION:
            self._add(joining, member_id)
            return
        # The member must come back with the id: otherwise each lost answer would leave a member
        # without a client behind (KIP-394).
        group.pending_members.add(member_id)
        timer = ClassicTimer(SESSION, group.group_id, member_id)
        out.timers.append(SetTimer(timer, joining.request.session_timeout_ms))
        out.replies.append(joining.refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _add(self, joining: Joining, member_id: str) -> None:
        group = self.group
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
        group.new_member_added = True
        group.add(member, joining.request.protocol_type)
        group.wait_for_join(member, joining.reply_to, joining.api_version)
        group.renew_session(member, self.out)
        self.members_changed()

    def _replace(self, member: ClassicMember, joining: Joining, member_id: str) -> None:
        group, out = self.group, self.out
        old_member_id = member.member_id
        old_leader_id = group.leader_id
        old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        group.refuse_waiting(member, ErrorCode.FENCED_INSTANCE_ID, out)
        group.end_session(old_member_id, out)
        group.rename(member, member_id)
        self._update(member, joining)
        group.renew_session(member, out)
        if group.state is not ClassicGroupState.STABLE:
            # In CompletingRebalance the leader may already assign to the old id.
            self.members_changed()
            return
        if group.select_protocol() != group.protocol_name:
            self.prepare()
            return

        def written(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            result = CoordinatorResult()
            if member.join_reply_to is not joining.reply_to:
                return result  # answered since: the member left, or came back once more
            answer = (
                self._replaced_answer(member, joining, old_leader_id)
                if error is ErrorCode.NONE
                else join_error(write_error(error), UNKNOWN_MEMBER, joining.api_version)
            )
            group.answer_join(member, answer, result)
            if is_refused(error):
                # Undo the change: the log still knows the old id.
                group.end_session(member.member_id, result)
                group.update(member, *old)
                group.rename(member, old_member_id)
            # Its session may have ended while it waited: then no other has begun.
            group.renew_session(member, result)
            return result

        assignments = {each.member_id: each.assignment for each in group.members.values()}
        out.records.append(group.record(assignments))
        out.add_after(written)

    def _replaced_answer(
        self, member: ClassicMember, joining: Joining, old_leader_id: str | None
    ) -> JoinGroupResponse:
        """The generation goes on. The answer to a leader that came back says that it leads only if
        it can also say not to assign (KIP-814); an older client is given the old leader's id, as a
        follower.
        """
        if joining.api_version >= FIRST_SKIP_ASSIGNMENT_VERSION:
            is_leader = self.group.leader_id == member.member_id
            return self.group.join_response(member, skip_assignment=is_leader)
        return self.group.join_response(member, leader_id=old_leader_id)

    def _join_existing(self, joining: Joining) -> None:
        group, out = self.group, self.out
        member_id = joining.request.member_id
        if member_id in group.pending_members and joining.request.group_instance_id is None:
            self._add(joining, member_id)
            return
        error = group.validate_member(member_id, joining.request.group_instance_id)
        if error is not ErrorCode.NONE:
            out.replies.append(joining.refusal(error))
            return
        member = group.members[member_id]
        state = group.state
        is_same = list(member.protocols) == list(joining.protocols)
        if is_same and (
            # Its first request's answer may have been lost: the generation is the same.
            state is ClassicGroupState.COMPLETING_REBALANCE
            or (state is ClassicGroupState.STABLE and group.leader_id != member_id)
        ):
            out.replies.append(Reply(joining.reply_to, group.join_response(member)))
        else:
            self._update(member, joining)
            self.members_changed()

    def _update(self, member: ClassicMember, joining: Joining) -> None:
        group = self.group
        # The client does not wait any more for the answer to an earlier request of the member.
        group.refuse_join(member, ErrorCode.REBALANCE_IN_PROGRESS, self.out)
        group.update(
            member,
            joining.protocols,
            _rebalance_timeout_ms(joining),
            joining.request.session_timeout_ms,
        )
        group.wait_for_join(member, joining.reply_to, joining.api_version)

    def leave(self, leaving: p13.MemberIdentity) -> ErrorCode:
        """A member whose id, or instance id, the group knows leaves, or is removed."""
        group, member_id, instance_id = self.group, leaving.member_id, leaving.group_instance_id
        if member_id == UNKNOWN_MEMBER and instance_id is not None:
            # An administrator names static members by their instance id alone.
            member_id = group.static_members[instance_id]
        elif member_id in group.pending_members:
            self._forget_pending(member_id)
            return ErrorCode.NONE
        else:
            error = group.validate_member(member_id, instance_id)
            if error is not ErrorCode.NONE:
                return error
        self.remove_member(group.members[member_id])
        return ErrorCode.NONE


@dataclass(slots=True, eq=False)
class ClassicGroups:
    """The classic protocol on the groups that speak it. What it decides in memory holds anyway
    (`CoordinatorResult`).
    """

    _context: GroupContext

    def get(self, group_id: str) -> ClassicGroup | None:
        group = self._context.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def discard_if_unused(self, group: ClassicGroup) -> None:
        """Forget a group that has never been more than a name."""
        is_known = self._context.groups.get(group.group_id) is group
        if is_known and group.is_unused and not self._context.offsets.has_any(group.group_id):
            self.discard(group)

    def discard(self, group: ClassicGroup) -> None:
        """Forget a group of which the log knows nothing, or nothing any more. No other is dead."""
        group.transition_to(ClassicGroupState.DEAD, group.state_timestamp_ms)
        del self._context.groups[group.group_id]

    # -- requests --------------------------------------------------------------------------------

    def join_error(self, request: JoinGroupRequest, *, is_first: bool) -> ErrorCode:
        """What is wrong with a JoinGroup, whatever kind of group it is for.

        Args:
            is_first: the group does not exist, or has to become a classic one first.
        """
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        settings = self._context.settings
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
        out = CoordinatorResult(holds_anyway=True)
        group_id = joining.request.group_id
        group = self._context.groups.get(group_id)
        if group is None:
            group = self._context.groups[group_id] = ClassicGroup(group_id, now_ms)
        assert isinstance(group, ClassicGroup)
        ClassicRebalance(self._context, group, out, now_ms).join(joining)
        self.discard_if_unused(group)
        return out

    def sync_group(self, request: SyncGroupRequest, reply_to: Answerable) -> CoordinatorResult:
        group = self.get(request.group_id)
        error = _sync_error(group, request)
        if error is not ErrorCode.NONE:
            return CoordinatorResult(replies=[refused(reply_to, error, sync_error)])
        assert group is not None
        out = CoordinatorResult(holds_anyway=True)
        member = group.members[request.member_id]
        group.has_synced(member, out)
        if group.state is ClassicGroupState.STABLE:
            out.replies.append(Reply(reply_to, group.sync_response(member)))
            return out
        superseded = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        member.answer_sync(superseded, out)
        member.sync_reply_to = reply_to
        if group.leader_id == member.member_id:
            self._write_assignment(group, request, out)
        return out

    def heartbeat(
        self, request: HeartbeatRequest, reply_to: Answerable, now_ms: float
    ) -> CoordinatorResult:
        """Renew a session; the answer says whether the member must join again."""
        del now_ms
        group = self.get(request.group_id)
        out = CoordinatorResult()
        error = _member_error(group, request)
        if group is not None and error is ErrorCode.NONE:
            group.renew_session(group.members[request.member_id], out)
            if group.state is ClassicGroupState.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        out.replies.append(refused(reply_to, error, heartbeat_error))
        return out

    def leave_group(
        self,
        request: p13.LeaveGroupRequest,
        reply_to: Answerable,
        now_ms: float,
        answers: list[p13.MemberResponse],
    ) -> CoordinatorResult:
        """Members leave, or an administrator removes them. `answers` has one for each member of the
        request, and all of them say UNKNOWN_MEMBER_ID.
        """
        if not request.group_id:
            message = p13.LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            return CoordinatorResult.reply(reply_to, message)
        group = self.get(request.group_id)
        if group is None:
            return CoordinatorResult.reply(reply_to, p13.LeaveGroupResponse(members=answers))
        out = CoordinatorResult(holds_anyway=True)
        response = p13.LeaveGroupResponse(members=answers)
        rebalance = ClassicRebalance(self._context, group, out, now_ms)
        has_left = False
        members, static, pending = group.members, group.static_members, group.pending_members
        for leaving, told in zip(request.members, answers, strict=True):
            instance_id = leaving.group_instance_id
            is_known = (
                leaving.member_id in members if instance_id is None else instance_id in static
            )
            if is_known or leaving.member_id in pending:
                error = told.error_code = rebalance.leave(leaving)
                has_left = has_left or error is ErrorCode.NONE
        if has_left and group.state is not ClassicGroupState.EMPTY:
            rebalance.members_changed()
        self.discard_if_unused(group)
        if not out.records:
            out.replies.append(Reply(reply_to, response))
            return out
        out.answer_when_committed(
            reply_to,
            response,
            lambda error: p13.LeaveGroupResponse(error_code=write_error(error)),
        )
        return out

    def note_commit(self, group_id: str, member_id: str, out: CoordinatorResult) -> None:
        group = self.get(group_id)
        if group is not None and member_id in group.members:
            group.renew_session(group.members[member_id], out)

    # -- other events ----------------------------------------------------------------------------

    def on_timer(self, timer: ClassicTimer, now_ms: float) -> CoordinatorResult:
        out = CoordinatorResult(holds_anyway=True)
        group = self.get(timer.group_id)
        if group is None:
            return out
        rebalance = ClassicRebalance(self._context, group, out, now_ms)
        if timer.kind == SESSION:
            rebalance.session_over(timer.member_id)
            self.discard_if_unused(group)
        elif timer.kind == JOIN:
            rebalance.joins_over()
        elif timer.kind == SYNC:
            rebalance.syncs_over()
        return out

    def loaded(self, now_ms: float) -> CoordinatorResult:
        """Every member gets a full session to find the new coordinator. A group that was written in
        the middle of a rebalance goes on with it; one that has become too big begins one, so that
        the members that join first keep their place.
        """
        out = CoordinatorResult()
        for group in list(self._context.groups.values()):
            if not isinstance(group, ClassicGroup):
                continue
            rebalance = self._start(group, out, now_ms)
            if (
                group.state is ClassicGroupState.STABLE
                and len(group.members) > self._context.settings.max_group_size
            ):
                rebalance.prepare()
            elif not group.is_persisted:
                self.discard_if_unused(group)
        return out

    def unloaded(self) -> list[Reply]:
        out = CoordinatorResult()
        for group in self._context.groups.values():
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
        return out

    def _start(
        self, group: ClassicGroup, out: CoordinatorResult, now_ms: float
    ) -> ClassicRebalance:
        """Begin the sessions and the rebalance of a group that is as its record says."""
        rebalance = ClassicRebalance(self._context, group, out, now_ms)
        for member in group.members.values():
            group.renew_session(member, out)
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            rebalance.collect_joins()
        return rebalance

    def begin_migration(self, group: ClassicGroup) -> CoordinatorResult:
        """Let go of a group that is to become a consumer group: its timers end, and its waiting
        members are asked to join again.
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
                self.discard(group)
            return
        if group is None or group.is_simple or not is_live:
            self._context.groups[group_id] = ClassicGroup.from_record(group_id, value)
            return
        group.is_persisted = True
        for written in value.members:
            group.assign(group.members[written.member_id], bytes(written.assignment))

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
                rebalance = ClassicRebalance(self._context, group, result, now_ms)
                rebalance.assigned(write_error(error))
            return result

        out.add_after(after)


def _member_error(
    group: ClassicGroup | None, request: HeartbeatRequest | SyncGroupRequest
) -> ErrorCode:
    """What is wrong with a request of a member in the group's generation."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is ErrorCode.NONE and request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _sync_error(group: ClassicGroup | None, request: SyncGroupRequest) -> ErrorCode:
    error = _member_error(group, request)
    if group is None or error is not ErrorCode.NONE:
        return error
    if is_of_another_protocol(request, group.protocol_type, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _rebalance_timeout_ms(joining: Joining) -> int:
    if joining.api_version >= 1:
        return joining.request.rebalance_timeout_ms
    return joining.request.session_timeout_ms
