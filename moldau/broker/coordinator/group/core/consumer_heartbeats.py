"""ConsumerGroupHeartbeat from request to answer: joining, staying in, and leaving (KIP-848).

Owns: finding or making the group and the member, and what one heartbeat adds up to: records,
timers, look-ups, the answer. Must not: decide how a group changes; that is `consumer_update`.
Invariant: a request that is refused has changed nothing, in memory either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    ReplyTo,
    SetTimer,
    is_refused,
)
from moldau.broker.coordinator.group.core.consumer_classic import ClassicMembers
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_heartbeat import (
    check_epoch,
    is_full,
    known_member,
    known_static_member,
    owned_partitions,
    released_static_member,
    successor,
    told,
)
from moldau.broker.coordinator.group.core.consumer_member import (
    JOIN_EPOCH,
    NOTHING_OWNED,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    OwnedPartitions,
)
from moldau.broker.coordinator.group.core.consumer_records import current_assignment_record
from moldau.broker.coordinator.group.core.consumer_update import (
    MemberUpdate,
    MemberUpdates,
    replacement_records,
)
from moldau.broker.coordinator.group.core.context import (
    MEMBER_TIMERS,
    ClientInfo,
    ConsumerTimer,
    GroupContext,
    Refusal,
)
from moldau.broker.coordinator.group.core.errors import group_write_error
from moldau.broker.coordinator.group.core.migration import Migration, Upgrade
from moldau.broker.coordinator.group.core.regular_expressions import RegularExpressions
from moldau.broker.coordinator.group.core.results import add_after, merge
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

Fence = Callable[[ConsumerGroup, list[ConsumerGroupMember], float], CoordinatorResult]


class Heartbeats:
    """Carries out heartbeats that have passed `check_request`.

    Args:
        fence: takes members out of a group.
    """

    def __init__(
        self,
        context: GroupContext,
        updates: MemberUpdates,
        migration: Migration,
        expressions: RegularExpressions,
        classic: ClassicMembers,
        fence: Fence,
    ) -> None:
        self._context = context
        self._settings = context.consumer_settings
        self._updates = updates
        self._migration = migration
        self._expressions = expressions
        self._classic = classic
        self._fence = fence

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        reply_to: ReplyTo,
        now_ms: float,
    ) -> CoordinatorResult:
        """Join a group or stay in it.

        Raises:
            Refusal: the request cannot be carried out.
        """
        group, upgrade, before = self._group_for(request)
        self._check_size(group, request.member_id)
        member_id = request.member_id or self._context.random_id()
        owned = owned_partitions(request.topic_partitions)
        old, replaced_id = self._member_for(group, request, member_id, owned)
        update = MemberUpdate(
            group, old, told(old, request, client), client, now_ms, owned, replaced_id
        )
        if replaced_id is not None:
            update.records += replacement_records(group, replaced_id, old)
        self._updates.tell(update)
        target_epoch, target = self._updates.refresh_target(update)
        self._updates.reconcile(update, target_epoch, target)
        result = CoordinatorResult(records=before + update.records, timers=update.timers)
        let_go = CoordinatorResult()
        if upgrade is not None:
            let_go = self._migration.let_go(upgrade.classic_group)
            merge(result, let_go)
            result.timers += upgrade.timers
        result.timers += self._ended_timers(update)
        session = self.session(group, update.new)
        # Until it is answered the member waits for the coordinator: its silence does not count.
        result.timers.append(CancelTimer(session.key))
        result.commands += update.commands
        for command in update.commands:
            self._expressions.started(command.group_id)
        shows_assignment = is_full(request) or _indexes(update.new.assigned) != _indexes(
            old.assigned
        )
        answer = self._answer(group, update.new, shows_assignment=shows_assignment)

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is ErrorCode.NONE:
                answered = CoordinatorResult.reply(reply_to, answer)
            else:
                answered = self._failed(update, reply_to, error)
            known = self._known(group.group_id)
            if upgrade is not None and known is upgrade.classic_group:
                # Nothing was written, but who waited in the classic group has been let go of.
                answered.replies += let_go.replies
            elif isinstance(known, ConsumerGroup) and update.new.member_id in known.members:
                answered.timers.append(session)
            return answered

        add_after(result, after)
        return result

    def _failed(
        self, update: MemberUpdate, reply_to: ReplyTo, error: ErrorCode
    ) -> CoordinatorResult:
        """The heartbeat could not be written, or not committed in time."""
        if is_refused(error):
            for command in update.commands:
                self._expressions.ended(command.group_id)
        return CoordinatorResult.reply(
            reply_to, ConsumerGroupHeartbeatResponse(error_code=group_write_error(error))
        )

    def _known(self, group_id: str) -> Any:
        return self._context.groups.get(group_id)

    def _ended_timers(self, update: MemberUpdate) -> list[CancelTimer]:
        """Timers of the member whose place is taken, or of the classic protocol left behind."""
        group_id, member_id = update.group.group_id, update.new.member_id
        ended = []
        if update.replaced_id is not None:
            ended += [ConsumerTimer(kind, group_id, update.replaced_id) for kind in MEMBER_TIMERS]
        if update.old.uses_classic_protocol:
            self._classic.forget(group_id, [member_id, update.replaced_id or member_id])
            ended += [ConsumerTimer(kind, group_id, member_id) for kind in ("join", "sync")]
        return [CancelTimer(key) for key in ended]

    def _group_for(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> tuple[ConsumerGroup, Upgrade | None, list[CoordinatorRecord]]:
        """The group, how it is made if it is a classic one until now, and what has to be written
        before anything else.
        """
        group_id = request.group_id
        group = self._context.groups.get(group_id)
        if group is not None and group.kind == "consumer":
            return group, None, []
        if request.member_epoch != JOIN_EPOCH:
            reason = "not found" if group is None else "is not a consumer group"
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        if group is None:
            return ConsumerGroup(group_id, {}), None, []
        if group.is_empty:
            return ConsumerGroup(group_id, {}), None, group.tombstones()
        upgrade = self._migration.upgrade(group)
        return upgrade.group, upgrade, upgrade.records

    def _check_size(self, group: ConsumerGroup, member_id: str) -> None:
        limit = self._settings.max_group_size
        if len(group.members) >= limit and member_id not in group.members:
            raise Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The group is full: it has {limit} members.",
            )

    def _member_for(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Any,
    ) -> tuple[ConsumerGroupMember, str | None]:
        """The member as it is until now, and the id of the one whose place it takes."""
        is_joining = request.member_epoch == JOIN_EPOCH
        instance_id = request.instance_id
        if instance_id is None:
            member = group.members.get(member_id)
            if member is None and is_joining:
                return ConsumerGroupMember(member_id), None
            member = known_member(group, member_id)
            check_epoch(member, request.member_epoch, owned)
            return member, None
        if not is_joining:
            member = known_static_member(group, instance_id, member_id)
            check_epoch(member, request.member_epoch, owned)
            return member, None
        static = released_static_member(group, instance_id, member_id)
        if static is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id), None
        if static.member_id == member_id:
            return replace(static, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH), None
        return successor(static, member_id), static.member_id

    def _answer(
        self, group: ConsumerGroup, member: ConsumerGroupMember, *, shows_assignment: bool
    ) -> ConsumerGroupHeartbeatResponse:
        times = self._settings.of_group(self._context.metadata().configs, group.group_id)
        assignment = None
        if shows_assignment:
            assignment = Assignment(
                topic_partitions=[
                    TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in sorted(member.assigned.items())
                ]
            )
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=times.heartbeat_interval_ms,
            assignment=assignment,
        )

    def leave(
        self, request: ConsumerGroupHeartbeatRequest, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Leave a group, a static member perhaps only for a while.

        Raises:
            Refusal: there is no such group or member.
        """
        group = self._context.groups.get(request.group_id)
        if group is None or group.kind != "consumer":
            reason = "not found" if group is None else "is not a consumer group"
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} {reason}.")
        if request.instance_id is None:
            member = known_member(group, request.member_id)
        else:
            member = known_static_member(group, request.instance_id, request.member_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            result = self._leave_for_a_while(group, member)
        else:
            result = self._fence(group, [member], now_ms)
        answer = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
        )

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is ErrorCode.NONE:
                return CoordinatorResult.reply(reply_to, answer)
            refused = ConsumerGroupHeartbeatResponse(error_code=group_write_error(error))
            return CoordinatorResult.reply(reply_to, refused)

        result.after = after
        return result

    def _leave_for_a_while(
        self, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> CoordinatorResult:
        """A static member stops: it keeps what it owns until it comes back, or its session ends."""
        gone = replace(
            member,
            member_epoch=STATIC_LEAVE_EPOCH,
            assigned={
                topic_id: dict.fromkeys(partitions, 0)
                for topic_id, partitions in member.assigned.items()
            },
            pending_revocation=NOTHING_OWNED,
        )
        key = ConsumerTimer("rebalance", group.group_id, member.member_id)
        return CoordinatorResult(
            records=[current_assignment_record(group.group_id, gone)], timers=[CancelTimer(key)]
        )

    def session(self, group: ConsumerGroup, member: ConsumerGroupMember) -> SetTimer:
        """A member's session begins anew."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            configs = self._context.metadata().configs
            timeout_ms = self._settings.of_group(configs, group.group_id).session_timeout_ms
        return SetTimer(ConsumerTimer("session", group.group_id, member.member_id), timeout_ms)


def _indexes(owned: OwnedPartitions) -> dict[Any, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}
