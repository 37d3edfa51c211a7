"""Rebalances of classic groups: which members are waited for, and when a generation begins.

Owns the steps from a change of members to a new generation, and the removal of members. Must not
parse requests. Invariant: a group in PreparingRebalance has a join timer, one in
CompletingRebalance a sync timer or a leader's assignment on its way to the log, so that no member
waits for ever.

All functions add what is to be done to `out`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from moldau.broker.coordinator.core.result import CancelTimer, CoordinatorResult, SetTimer
from moldau.broker.coordinator.group.core.classic_group import (
    JOIN,
    SESSION,
    SYNC,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    ClassicTimer,
)
from moldau.broker.coordinator.group.core.context import NEW_MEMBER_TIMEOUT_MS, GroupSettings
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p14_sync_group import SyncGroupResponse

_CAN_REBALANCE: Final = (
    ClassicGroupState.EMPTY,
    ClassicGroupState.STABLE,
    ClassicGroupState.COMPLETING_REBALANCE,
)


class ClassicRebalance:
    """What happens to a classic group when its members change.

    Args:
        on_completed: called for every generation that is complete, for the meters.
    """

    def __init__(
        self,
        settings: GroupSettings,
        discard: Callable[[ClassicGroup], None],
        on_completed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._discard = discard
        self.on_completed = on_completed

    def heard_of(self, group: ClassicGroup, member: ClassicMember, out: CoordinatorResult) -> None:
        timeout_ms = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        timer = ClassicTimer(SESSION, group.group_id, member.member_id)
        out.timers.append(SetTimer(timer, timeout_ms))

    def session_over(
        self, group: ClassicGroup, member_id: str, out: CoordinatorResult, now_ms: float
    ) -> None:
        """A member's session is over. A member with a waiting request stays, unless it is a new
        one, which may have lost its connection before it knew its id.
        """
        if member_id in group.pending_members:
            group.pending_members.remove(member_id)
            self.maybe_complete_join(group, out, now_ms)
            self._discard(group)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        waits = member.join_reply_to is not None or member.sync_reply_to is not None
        if waits and not member.is_new:
            return
        self.remove_member(group, member, out)
        self.members_changed(group, out, now_ms)

    def remove_member(
        self, group: ClassicGroup, member: ClassicMember, out: CoordinatorResult
    ) -> None:
        """Take a member out; its waiting requests get UNKNOWN_MEMBER_ID, so that it comes back."""
        group.refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID, out)
        out.timers.append(CancelTimer(ClassicTimer(SESSION, group.group_id, member.member_id)))
        group.remove(member)

    def members_changed(self, group: ClassicGroup, out: CoordinatorResult, now_ms: float) -> None:
        """A member came, left or changed its subscription: begin a rebalance, or go on with it."""
        if group.state in _CAN_REBALANCE:
            self.prepare(group, out, now_ms)
        else:
            self.maybe_complete_join(group, out, now_ms)

    def prepare(self, group: ClassicGroup, out: CoordinatorResult, now_ms: float) -> None:
        """Begin a rebalance: all members have to join again."""
        is_initial = group.is_empty
        self._refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, out)
        out.timers.append(CancelTimer(ClassicTimer(SYNC, group.group_id)))
        group.transition_to(ClassicGroupState.PREPARING_REBALANCE, now_ms)
        if is_initial:
            delay_ms = max(self._settings.initial_rebalance_delay_ms, 0)
            group.new_member_added = False
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            out.timers.append(SetTimer(ClassicTimer(JOIN, group.group_id), delay_ms))
        else:
            self.collect_joins(group, out, now_ms)

    def collect_joins(self, group: ClassicGroup, out: CoordinatorResult, now_ms: float) -> None:
        """Wait until all members have joined again, unless they have already."""
        if group.have_all_joined:
            self._complete_join(group, out, now_ms)
        else:
            self._wait_for_joins(group, out)

    def maybe_complete_join(
        self, group: ClassicGroup, out: CoordinatorResult, now_ms: float
    ) -> None:
        """Begin the generation if all members have joined; a first one waits for its delay."""
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is not ClassicGroupState.EMPTY
            and group.have_all_joined
        ):
            self._complete_join(group, out, now_ms)

    def joins_over(self, group: ClassicGroup, out: CoordinatorResult, now_ms: float) -> None:
        if group.state is not ClassicGroupState.PREPARING_REBALANCE:
            return
        is_initial = group.previous_state is ClassicGroupState.EMPTY
        if is_initial and group.new_member_added and group.initial_delay_left_ms:
            # Members still come: one more delay, until the rebalance timeout is used up.
            step_ms = max(self._settings.initial_rebalance_delay_ms, 0)
            delay_ms = min(step_ms, group.initial_delay_left_ms)
            group.initial_delay_left_ms = max(group.initial_delay_left_ms - step_ms, 0)
            group.new_member_added = False
            out.timers.append(SetTimer(ClassicTimer(JOIN, group.group_id), delay_ms))
            return
        self._complete_join(group, out, now_ms)

    def _wait_for_joins(self, group: ClassicGroup, out: CoordinatorResult) -> None:
        delay_ms = max(group.rebalance_timeout_ms, 0)
        out.timers.append(SetTimer(ClassicTimer(JOIN, group.group_id), delay_ms))

    def _complete_join(self, group: ClassicGroup, out: CoordinatorResult, now_ms: float) -> None:
        out.timers.append(CancelTimer(ClassicTimer(JOIN, group.group_id)))
        absent = [member for member in group.members.values() if member.join_reply_to is None]
        for member in absent:
            # Static members keep their place until their session ends.
            if not member.is_static:
                self.remove_member(group, member, out)
        if group.members and not group.elect_joined_leader():
            self._wait_for_joins(group, out)
            return
        group.begin_generation(now_ms)
        if not group.members:
            out.records.append(group.record({}))
            return
        for member in group.members.values():
            group.answer_join(member, group.join_response(member), out)
            member.is_new = False
            self.heard_of(group, member, out)
            group.pending_sync.add(member.member_id)
        delay_ms = max(group.rebalance_timeout_ms, 0)
        out.timers.append(SetTimer(ClassicTimer(SYNC, group.group_id), delay_ms))

    def has_synced(
        self, group: ClassicGroup, member: ClassicMember, out: CoordinatorResult
    ) -> None:
        if member.member_id in group.pending_sync:
            group.pending_sync.remove(member.member_id)
            if not group.pending_sync:
                out.timers.append(CancelTimer(ClassicTimer(SYNC, group.group_id)))

    def syncs_over(self, group: ClassicGroup, out: CoordinatorResult, now_ms: float) -> None:
        """The sync timer has run out: remove the members that have not asked for a share."""
        if group.state not in (ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE):
            return
        missing = [member for name, member in group.members.items() if name in group.pending_sync]
        for member in missing:
            self.remove_member(group, member, out)
        group.pending_sync.clear()
        if missing:
            self.prepare(group, out, now_ms)

    def assigned(
        self, group: ClassicGroup, error: ErrorCode, out: CoordinatorResult, now_ms: float
    ) -> None:
        """The leader's assignment is in the log, or could not be written."""
        if error is not ErrorCode.NONE:
            self._refuse_syncs(group, error, out)
            self.prepare(group, out, now_ms)
            return
        group.transition_to(ClassicGroupState.STABLE, now_ms)
        self.on_completed()
        for member in group.members.values():
            if member.sync_reply_to is not None:
                member.answer_sync(group.sync_response(member), out)
                self.heard_of(group, member, out)

    def _refuse_syncs(self, group: ClassicGroup, error: ErrorCode, out: CoordinatorResult) -> None:
        if group.state is not ClassicGroupState.COMPLETING_REBALANCE:
            return
        for member in group.members.values():
            if member.sync_reply_to is not None:
                member.answer_sync(SyncGroupResponse(error_code=error), out)
                self.heard_of(group, member, out)
