"""JoinGroup of the classic protocol.

Owns: who is let in, under which id, and what a joining member's request means for the rebalance.
Must not: complete generations (`classic_rebalance` does). Invariant: a request is answered at once
or waits at its member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorResult,
    Reply,
    ReplyTo,
    SetTimer,
    is_refused,
)
from moldau.broker.coordinator.group.core import classic_answers as answers
from moldau.broker.coordinator.group.core.classic_answers import SESSION, ClassicTimer, join_error
from moldau.broker.coordinator.group.core.classic_group import (
    UNKNOWN_MEMBER,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    Protocols,
)
from moldau.broker.coordinator.group.core.errors import group_write_error
from moldau.broker.coordinator.group.core.records import group_metadata_record
from moldau.broker.coordinator.group.core.results import add_after
from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.classic_rebalance import ClassicRebalance
    from moldau.broker.coordinator.group.core.context import ClientInfo
    from moldau.broker.coordinator.group.core.settings import GroupSettings
    from moldau.protocol.messages.p11_join_group import JoinGroupRequest

FIRST_REBALANCE_TIMEOUT_VERSION: Final = 1
FIRST_KNOWN_MEMBER_VERSION: Final = 4
FIRST_SKIP_ASSIGNMENT_VERSION: Final = 9

_MAX_PREFIX_LENGTH: Final = 8000
"""Characters of the instance's or client's id in a member id, which has to fit into a string of the
protocol (32,767 bytes) together with its random part.
"""


class _Joining:
    """One JoinGroup request."""

    __slots__ = (
        "api_version",
        "client",
        "group_instance_id",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "reply_to",
        "session_timeout_ms",
    )

    def __init__(
        self,
        request: JoinGroupRequest,
        protocols: Protocols,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
    ) -> None:
        self.member_id = request.member_id
        self.group_instance_id = request.group_instance_id
        self.protocol_type = request.protocol_type
        self.protocols = protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = (
            request.rebalance_timeout_ms
            if api_version >= FIRST_REBALANCE_TIMEOUT_VERSION
            else request.session_timeout_ms
        )
        self.api_version = api_version
        self.client = client
        self.reply_to = reply_to

    def refuse(
        self, error: ErrorCode, out: CoordinatorResult, member_id: str | None = None
    ) -> None:
        told = self.member_id if member_id is None else member_id
        out.replies.append(Reply(self.reply_to, join_error(error, told, self.api_version)))


class ClassicJoin:
    """Lets members in."""

    def __init__(
        self,
        settings: GroupSettings,
        rebalance: ClassicRebalance,
        random_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._rebalance = rebalance
        self._random_id = random_id

    def join(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        protocols: Protocols,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
        out: CoordinatorResult,
        now_ms: float,
    ) -> None:
        """A request to a group that exists, if only since now."""
        joining = _Joining(request, protocols, api_version, client, reply_to)
        if not self._has_room(group, joining.member_id):
            self._turn_away(group, joining, out, now_ms)
        elif not group.supports(joining.protocol_type, (name for name, _ in joining.protocols)):
            joining.refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, out)
        elif joining.member_id == UNKNOWN_MEMBER:
            self._join_new(group, joining, out, now_ms)
        else:
            self._join_existing(group, joining, out, now_ms)

    # -- capacity --------------------------------------------------------------------------------

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        if group.is_empty:
            return True
        member = group.members.get(member_id)
        limit = self._settings.max_group_size
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            # Members have to prove that they are there; who comes first is in.
            waits = member is not None and member.join_reply_to is not None
            return waits or group.waiting_to_join_count < limit
        return member is not None or len(group.members) < limit

    def _turn_away(
        self, group: ClassicGroup, joining: _Joining, out: CoordinatorResult, now_ms: float
    ) -> None:
        joining.refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, out, UNKNOWN_MEMBER)
        member = group.members.get(joining.member_id)
        if joining.member_id in group.pending_members:
            self._forget_pending(group, joining.member_id, out)
        elif member is not None:
            self._rebalance.remove_member(group, member, out)
        else:
            return
        self._rebalance.maybe_complete_join(group, out, now_ms)

    def _forget_pending(self, group: ClassicGroup, member_id: str, out: CoordinatorResult) -> None:
        group.pending_members.discard(member_id)
        out.timers.append(CancelTimer(ClassicTimer(SESSION, group.group_id, member_id)))

    # -- without a member id ---------------------------------------------------------------------

    def _join_new(
        self, group: ClassicGroup, joining: _Joining, out: CoordinatorResult, now_ms: float
    ) -> None:
        prefix = joining.group_instance_id
        if prefix is None:
            prefix = joining.client.client_id
        member_id = f"{prefix[:_MAX_PREFIX_LENGTH]}-{self._random_id()}"
        if joining.group_instance_id is not None:
            known = group.static_members.get(joining.group_instance_id)
            if known is None:
                self._add(group, joining, member_id, out, now_ms)
            else:
                self._replace(group, group.members[known], joining, member_id, out, now_ms)
            return
        if joining.api_version < FIRST_KNOWN_MEMBER_VERSION:
            self._add(group, joining, member_id, out, now_ms)
            return
        # It must come back with the id: one that loses the answer would be left behind (KIP-394).
        group.pending_members.add(member_id)
        timer = ClassicTimer(SESSION, group.group_id, member_id)
        out.timers.append(SetTimer(timer, joining.session_timeout_ms))
        joining.refuse(ErrorCode.MEMBER_ID_REQUIRED, out, member_id)

    def _add(
        self,
        group: ClassicGroup,
        joining: _Joining,
        member_id: str,
        out: CoordinatorResult,
        now_ms: float,
    ) -> None:
        member = ClassicMember(
            member_id,
            joining.group_instance_id,
            joining.client.client_id,
            joining.client.client_host,
            joining.rebalance_timeout_ms,
            joining.session_timeout_ms,
            joining.protocols,
        )
        member.is_new = True
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is ClassicGroupState.EMPTY
        ):
            group.new_member_added = True
        group.add(member, joining.protocol_type)
        group.wait_for_join(member, joining.reply_to, joining.api_version)
        self._rebalance.heard_of(group, member, out)
        self._rebalance.members_changed(group, out, now_ms)

    # -- a static member that has come back ------------------------------------------------------

    def _replace(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        joining: _Joining,
        member_id: str,
        out: CoordinatorResult,
        now_ms: float,
    ) -> None:
        old_member_id = member.member_id
        old_leader_id = group.leader_id
        old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        answers.refuse_waiting(group, member, ErrorCode.FENCED_INSTANCE_ID, out)
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

        def written(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            del now_ms
            result = CoordinatorResult()
            if member.join_reply_to is not joining.reply_to:
                return result  # answered meanwhile: it left, or came back once more
            if error is ErrorCode.NONE:
                self._answer_replaced(group, member, joining, old_leader_id, result)
                return result
            told = group_write_error(error)
            answers.answer_join(
                group, member, join_error(told, UNKNOWN_MEMBER, joining.api_version), result
            )
            if is_refused(error):
                # As if it had not come back: the log still knows the old id.
                result.timers.append(CancelTimer(ClassicTimer(SESSION, group.group_id, member_id)))
                group.update(member, *old)
                group.rename(member, old_member_id)
                self._rebalance.heard_of(group, member, result)
            return result

        assignments = {each.member_id: each.assignment for each in group.members.values()}
        out.records.append(group_metadata_record(group, assignments))
        add_after(out, written)

    def _answer_replaced(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        joining: _Joining,
        old_leader_id: str | None,
        out: CoordinatorResult,
    ) -> None:
        """The generation goes on. A leader that came back is told so only if it can be told not to
        assign (KIP-814); others are given the old leader's id, and believe to be followers.
        """
        if joining.api_version >= FIRST_SKIP_ASSIGNMENT_VERSION:
            is_leader = group.leader_id == member.member_id
            message = answers.join_response(group, member, skip_assignment=is_leader)
        else:
            message = answers.join_response(group, member, leader_id=old_leader_id)
        answers.answer_join(group, member, message, out)

    # -- with a member id ------------------------------------------------------------------------

    def _join_existing(
        self, group: ClassicGroup, joining: _Joining, out: CoordinatorResult, now_ms: float
    ) -> None:
        member_id = joining.member_id
        if member_id in group.pending_members and joining.group_instance_id is None:
            self._forget_pending(group, member_id, out)
            self._add(group, joining, member_id, out, now_ms)
            return
        error = group.validate_member(member_id, joining.group_instance_id)
        if error is not ErrorCode.NONE:
            joining.refuse(error, out)
            return
        member = group.members[member_id]
        state = group.state
        is_same = list(member.protocols) == list(joining.protocols)
        if state is ClassicGroupState.COMPLETING_REBALANCE and is_same:
            # Its first request's answer may have been lost: the generation is the same.
            self._repeat(group, member, joining, out)
        elif state is ClassicGroupState.STABLE and is_same and group.leader_id != member_id:
            self._repeat(group, member, joining, out)
        elif state in (ClassicGroupState.EMPTY, ClassicGroupState.DEAD):
            joining.refuse(ErrorCode.UNKNOWN_MEMBER_ID, out)
        else:
            self._update(group, member, joining, out)
            self._rebalance.members_changed(group, out, now_ms)

    def _repeat(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        joining: _Joining,
        out: CoordinatorResult,
    ) -> None:
        out.replies.append(Reply(joining.reply_to, answers.join_response(group, member)))

    def _update(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        joining: _Joining,
        out: CoordinatorResult,
    ) -> None:
        # An earlier request of the same member can only be one whose answer nobody waits for.
        answers.answer_join_error(group, member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        group.update(
            member, joining.protocols, joining.rebalance_timeout_ms, joining.session_timeout_ms
        )
        group.wait_for_join(member, joining.reply_to, joining.api_version)
