"""All classic groups of one partition of `__consumer_offsets`: the classic protocol's requests.

Owns: SyncGroup, Heartbeat and LeaveGroup, the way of every event to its group, and what the log
says about classic groups. Must not: know consumer groups (the state machine asks them first).
Invariant: `replay` is all that makes a group persistent; a group that was never written and that
nobody uses is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.broker.coordinator.core.result import CancelTimer, CoordinatorResult, Reply, ReplyTo
from moldau.broker.coordinator.group.core import classic_answers as answers
from moldau.broker.coordinator.group.core.classic_answers import JOIN, SESSION, SYNC, ClassicTimer
from moldau.broker.coordinator.group.core.classic_group import (
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
)
from moldau.broker.coordinator.group.core.classic_join import ClassicJoin
from moldau.broker.coordinator.group.core.classic_rebalance import ClassicRebalance
from moldau.broker.coordinator.group.core.errors import group_write_error
from moldau.broker.coordinator.group.core.joining_protocols import JoiningProtocols
from moldau.broker.coordinator.group.core.records import group_metadata_record
from moldau.broker.coordinator.group.core.results import add_after, whatever_happens
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
    from moldau.broker.coordinator.group.core.context import ClientInfo
    from moldau.broker.coordinator.group.core.settings import GroupSettings
    from moldau.protocol.coordinator_records.classic_groups import GroupMetadataValue
    from moldau.protocol.messages.p11_join_group import JoinGroupRequest
    from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
    from moldau.protocol.messages.p14_sync_group import SyncGroupRequest


class ClassicGroups:
    """The classic protocol on the groups of `groups` that speak it.

    Args:
        groups: every group of the partition, of any kind, by id.
        has_offsets: whether anything is stored for a group id.
        replayed_count: see `results.whatever_happens`.
        count: counts one event for the metrics.
    """

    def __init__(
        self,
        groups: dict[str, Any],
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
        self._join = ClassicJoin(settings, self._rebalance, random_id)

    def get(self, group_id: str) -> ClassicGroup | None:
        """The classic group of that id."""
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

    def join_group(
        self,
        request: JoinGroupRequest,
        protocols: JoiningProtocols,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
        now_ms: float,
    ) -> CoordinatorResult:
        """Join, or come back for the next generation. The request has passed `join_error`."""
        out = CoordinatorResult()
        group = self._groups.get(request.group_id)
        if group is None:
            group = self._groups[request.group_id] = ClassicGroup(request.group_id, now_ms)
        assert isinstance(group, ClassicGroup)
        self._join.join(group, request, protocols.named, api_version, client, reply_to, out, now_ms)
        self.discard_if_unused(group)
        return whatever_happens(out, self._replayed_count)

    def sync_group(
        self, request: SyncGroupRequest, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Hand in the assignment, or ask for one's own."""
        del now_ms
        group = self.get(request.group_id)
        error = _sync_error(group, request)
        if error is not ErrorCode.NONE:
            return CoordinatorResult.reply(reply_to, SyncGroupResponse(error_code=error))
        assert group is not None
        out = CoordinatorResult()
        member = group.members[request.member_id]
        self._rebalance.has_synced(group, member, out)
        if group.state is ClassicGroupState.STABLE:
            out.replies.append(Reply(reply_to, answers.sync_response(group, member)))
            return out
        superseded = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        answers.answer_sync(member, superseded, out)
        member.sync_reply_to = reply_to
        if group.leader_id == member.member_id:
            self._write_assignment(group, request, out)
        return whatever_happens(out, self._replayed_count)

    def heartbeat(
        self, request: HeartbeatRequest, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Say that one lives, hear whether to join again."""
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
        reply_to: ReplyTo,
        now_ms: float,
        answers: list[MemberResponse],
    ) -> CoordinatorResult:
        """Leave, or have members removed by an administrator.

        Args:
            answers: one for each member of the request, which says UNKNOWN_MEMBER_ID until here.
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

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            del now_ms
            if error is ErrorCode.NONE:
                return CoordinatorResult.reply(reply_to, response)
            told = group_write_error(error)
            return CoordinatorResult.reply(reply_to, LeaveGroupResponse(error_code=told))

        add_after(out, after)
        return whatever_happens(out, self._replayed_count)

    def note_commit(self, group: ClassicGroup, member_id: str, out: CoordinatorResult) -> None:
        """A member that commits lives."""
        member = group.members.get(member_id)
        if member is not None and group.state in (
            ClassicGroupState.STABLE,
            ClassicGroupState.PREPARING_REBALANCE,
        ):
            self._rebalance.heard_of(group, member, out)

    # -- other events ----------------------------------------------------------------------------

    def on_timer(self, timer: ClassicTimer, now_ms: float) -> CoordinatorResult:
        """One of the timers that were set here."""
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
        return whatever_happens(out, self._replayed_count)

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
        """Nobody may wait here any more."""
        out = CoordinatorResult()
        for group in self._groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    answers.refuse_waiting(group, member, ErrorCode.NOT_COORDINATOR, out)
        return out.replies

    def start_classic(self, group_id: str, now_ms: float) -> CoordinatorResult:
        """Take over a group that was a consumer group until now (KIP-848)."""
        out = CoordinatorResult()
        group = self.get(group_id)
        if group is None:
            return out
        self._start(group, out, now_ms)
        return whatever_happens(out, self._replayed_count)

    def _start(self, group: ClassicGroup, out: CoordinatorResult, now_ms: float) -> None:
        """Begin the sessions and the rebalance of a group that is as its record says."""
        for member in group.members.values():
            self._rebalance.heard_of(group, member, out)
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            self._rebalance.collect_joins(group, out, now_ms)

    def begin_migration(self, group: ClassicGroup) -> CoordinatorResult:
        """Let go of a group that is to become a consumer group: timers end, and who waits is told
        to join again.
        """
        out = CoordinatorResult()
        answers.cancel_timers(group, out)
        for member in group.members.values():
            answers.refuse_waiting(group, member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        return out

    # -- replay ----------------------------------------------------------------------------------

    def replay(self, group_id: str, value: GroupMetadataValue | None, *, is_live: bool) -> None:
        """What the log says about a classic group.

        Args:
            is_live: the record was just written by this state machine, whose group in memory is
                what the record says, but for the assignments.
        """
        group = self.get(group_id)
        if value is None:
            if group is not None:
                group.transition_to(ClassicGroupState.DEAD, group.state_timestamp_ms)
                del self._groups[group_id]
            return
        if group is None or group.is_simple or not is_live:
            self._groups[group_id] = _from_record(group_id, value)
            return
        group.is_persisted = True
        for written in value.members:
            member = group.members.get(written.member_id)
            if member is not None and value.generation == group.generation_id:
                member.assignment = bytes(written.assignment)

    # -- the steps -------------------------------------------------------------------------------

    def _write_assignment(
        self, group: ClassicGroup, request: SyncGroupRequest, out: CoordinatorResult
    ) -> None:
        assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
        generation_id = group.generation_id
        out.records.append(group_metadata_record(group, assignments))

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            result = CoordinatorResult()
            # A member may have come or gone meanwhile, and with it this generation.
            if (
                group.state is ClassicGroupState.COMPLETING_REBALANCE
                and group.generation_id == generation_id
            ):
                told = group_write_error(error)
                self._rebalance.assigned(group, told, result, now_ms)
            return whatever_happens(result, self._replayed_count)

        add_after(out, after)

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


def _from_record(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """The group that a record describes. One with members is stable. One without a leader is in the
    middle of a rebalance: the assignments in the record are handed to no member.
    """
    group = ClassicGroup(group_id, value.current_state_timestamp)
    group.is_persisted = True
    group.protocol_type = value.protocol_type
    group.protocol_name = value.protocol
    group.generation_id = value.generation
    for written in value.members:
        session_ms = written.session_timeout
        rebalance_ms = written.rebalance_timeout
        member = ClassicMember(
            written.member_id,
            written.group_instance_id,
            written.client_id,
            written.client_host,
            session_ms if rebalance_ms < 0 else rebalance_ms,
            session_ms,
            [(value.protocol or "", bytes(written.subscription))],
        )
        member.assignment = bytes(written.assignment)
        group.add(member, value.protocol_type)
    if group.members:
        if value.leader in group.members:
            group.leader_id = value.leader
        group.state = group.previous_state = ClassicGroupState.STABLE
        if value.leader is None:
            group.state = ClassicGroupState.PREPARING_REBALANCE
    group.read_subscriptions()
    return group
