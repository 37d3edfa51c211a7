"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

While a group is migrated, members of both protocols are in it (KIP-848). One of the classic
protocol is told of every step of its reconciliation by a rebalance: Heartbeat says
REBALANCE_IN_PROGRESS, JoinGroup says what it still has and takes the step, SyncGroup gives it what
it owns then.

Owns: those requests, JoinGroup by way of `consumer_join`.
Must not: let a classic member assign partitions; nobody is the leader.
Invariant: the generation a classic member is in is its member epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorResult,
    ReplyTo,
    SetTimer,
    is_refused,
)
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup, owned_by_topic
from moldau.broker.coordinator.group.core.consumer_heartbeat import (
    known_member,
    known_static_member,
)
from moldau.broker.coordinator.group.core.consumer_join import ClassicJoins
from moldau.broker.coordinator.group.core.consumer_member import (
    ConsumerGroupMember,
    MemberState,
)
from moldau.broker.coordinator.group.core.consumer_protocol import (
    write_assignment,
)
from moldau.broker.coordinator.group.core.consumer_update import (
    MemberUpdate,
    MemberUpdates,
)
from moldau.broker.coordinator.group.core.context import (
    CONSUMER_PROTOCOL_TYPE,
    ClientInfo,
    ConsumerTimer,
    GroupContext,
    Refusal,
)
from moldau.broker.coordinator.group.core.errors import group_write_error
from moldau.broker.coordinator.group.core.migration import Migration
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.p13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    pass

Fence = Callable[[ConsumerGroup, list[ConsumerGroupMember], float], CoordinatorResult]

_NOBODY: Final = ClientInfo("", "")

_MEMBER_ID_REQUIRED_VERSION: Final = 4
"""From this version of JoinGroup on a member first gets an id, and joins with it (KIP-394)."""


class ClassicMembers:
    """Serves the classic protocol's requests to consumer groups.

    Args:
        fence: takes members out of a group.
    """

    def __init__(
        self,
        context: GroupContext,
        updates: MemberUpdates,
        migration: Migration,
        fence: Fence,
    ) -> None:
        self._context = context
        self._updates = updates
        self._migration = migration
        self._fence = fence
        self._joining: set[ConsumerTimer] = set()
        self._joins = ClassicJoins(context, updates, migration, self.forget)
        self.join_group = self._joins.join_group

    # SyncGroup

    def sync_group(
        self, request: SyncGroupRequest, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Answers SyncGroupResponse with what the member owns in its generation."""
        del now_ms
        group = self._context.groups[request.group_id]
        timers: list[SetTimer | CancelTimer] = []
        try:
            member = self._member(group, request.member_id, request.group_instance_id)
            assert member.classic is not None
            _check_generation(member, request.generation_id)
            protocol_name = member.classic.protocols[0][0]
            _check_protocol(request, protocol_name)
            if (
                group.assignment_epoch > member.member_epoch
                and member.state is not MemberState.UNREVOKED_PARTITIONS
            ):
                timers += self._must_join(group, member)
                raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS, "A new rebalance is triggered.")
            assignment = write_assignment(
                owned_by_topic(member.assigned),
                member.classic.protocols[0][1],
                self._context.metadata(),
            )
        except Refusal as refusal:
            refused = CoordinatorResult.reply(
                reply_to, SyncGroupResponse(error_code=refusal.error_code)
            )
            refused.timers = timers
            return refused
        answer = SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocol_name,
            assignment=assignment,
        )
        session_timeout_ms = member.classic.session_timeout_ms
        key = _key("session", group, member.member_id)

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is not ErrorCode.NONE:
                return CoordinatorResult.reply(
                    reply_to, SyncGroupResponse(error_code=group_write_error(error))
                )
            result = CoordinatorResult.reply(reply_to, answer)
            result.timers = [
                CancelTimer(_key("sync", group, member.member_id)),
                SetTimer(key, session_timeout_ms),
            ]
            return result

        return CoordinatorResult(after=after)

    # Heartbeat

    def heartbeat(
        self, request: HeartbeatRequest, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Answers HeartbeatResponse: REBALANCE_IN_PROGRESS when the member has a step to take.

        The group goes on to its next assignment here too: there may be nobody of the new protocol
        left whose heartbeats would see to it.
        """
        group = self._context.groups[request.group_id]
        try:
            member = self._member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
        except Refusal as refusal:
            return CoordinatorResult.reply(
                reply_to, HeartbeatResponse(error_code=refusal.error_code)
            )
        assert member.classic is not None
        update = MemberUpdate(group, member, member, _NOBODY, now_ms, None)
        self._updates.refresh_epoch(update)
        assignment_epoch, _target = self._updates.refresh_target(update)
        result = CoordinatorResult(records=update.records)
        session = SetTimer(
            _key("session", group, member.member_id), member.classic.session_timeout_ms
        )
        # Until it is answered the member waits for the coordinator: its silence does not count.
        result.timers.append(CancelTimer(session.key))
        error_code = ErrorCode.NONE
        must_join: list[SetTimer] = []
        if (
            member.member_epoch < assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (
                member.state is MemberState.UNRELEASED_PARTITIONS
                and not group.waits_for_unreleased(member)
            )
        ):
            error_code = ErrorCode.REBALANCE_IN_PROGRESS
            must_join = self._must_join(group, member)
            result.timers += must_join

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if must_join and is_refused(error):
                self.forget(group.group_id, [member.member_id])
            code = error_code if error is ErrorCode.NONE else group_write_error(error)
            answered = CoordinatorResult.reply(reply_to, HeartbeatResponse(error_code=code))
            if member.member_id in group.members:
                answered.timers.append(session)
            return answered

        result.after = after
        return result

    # LeaveGroup

    def leave_group(
        self,
        request: LeaveGroupRequest,
        reply_to: ReplyTo,
        now_ms: float,
        answers: list[MemberResponse],
    ) -> CoordinatorResult:
        """Answers LeaveGroupResponse in the form of version 3 and later; `answers` has one for each
        member of the request, which gets its error code here.
        """
        group = self._context.groups[request.group_id]
        leaving: dict[str, ConsumerGroupMember] = {}
        for each, told in zip(request.members, answers, strict=True):
            member = _leaving_member(group, each)
            if isinstance(member, ErrorCode):
                told.error_code = member
            else:
                told.error_code = ErrorCode.NONE
                leaving[member.member_id] = member
        result = self._fence(group, list(leaving.values()), now_ms)

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is not ErrorCode.NONE:
                return CoordinatorResult.reply(
                    reply_to, LeaveGroupResponse(error_code=group_write_error(error), members=[])
                )
            return CoordinatorResult.reply(reply_to, LeaveGroupResponse(members=answers))

        result.after = after
        return result

    # Small things

    def _member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> ConsumerGroupMember:
        if instance_id is None:
            member = known_member(group, member_id)
        else:
            member = known_static_member(group, instance_id, member_id)
        if not member.uses_classic_protocol:
            raise Refusal(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"{member_id} is no member of the classic protocol.",
            )
        return member

    def _must_join(self, group: ConsumerGroup, member: ConsumerGroupMember) -> list[SetTimer]:
        """The member is told to join; from the first time on it has its rebalance timeout."""
        key = _key("join", group, member.member_id)
        if key in self._joining:
            return []
        self._joining.add(key)
        return [SetTimer(key, member.rebalance_timeout_ms)]

    def forget(self, group_id: str, member_ids: Iterable[str]) -> None:
        """These members have joined, or are gone with their classic protocol."""
        for member_id in member_ids:
            self._joining.discard(ConsumerTimer("join", group_id, member_id))


def _key(kind: str, group: ConsumerGroup, member_id: str) -> ConsumerTimer:
    return ConsumerTimer(kind, group.group_id, member_id)


def _check_generation(member: ConsumerGroupMember, generation_id: int) -> None:
    if generation_id != member.member_epoch:
        raise Refusal(
            ErrorCode.ILLEGAL_GENERATION,
            f"Generation {generation_id} is not the epoch {member.member_epoch} that member "
            f"{member.member_id} is in.",
        )


def _check_protocol(request: SyncGroupRequest, protocol_name: str) -> None:
    for told, expected in (
        (request.protocol_type, CONSUMER_PROTOCOL_TYPE),
        (request.protocol_name, protocol_name),
    ):
        if told is not None and told != expected:
            raise Refusal(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Member {request.member_id} says {told}, the group {expected}.",
            )


def _leaving_member(
    group: ConsumerGroup, identity: MemberIdentity
) -> ConsumerGroupMember | ErrorCode:
    """The member, or why it cannot leave; without exceptions, for a request may name 50,000."""
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if instance_id is None:
        return group.members.get(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.static_member(instance_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return member if member_id in ("", member.member_id) else ErrorCode.FENCED_INSTANCE_ID
