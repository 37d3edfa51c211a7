"""ConsumerGroupHeartbeat from request to answer: joining, staying in, and leaving (KIP-848).

Owns the checks of KIP-848 in Kafka's order, finding or making the group and the member, and what
one heartbeat adds up to: records, timers, look-ups, the answer. Must not decide how a group changes
(`member_updates` does). Invariant: a request that is refused has changed nothing, in memory either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    ReplyTo,
    SetTimer,
    is_refused,
)
from moldau.broker.coordinator.group.core.classic_members import ClassicMembers
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup, owned_by_topic
from moldau.broker.coordinator.group.core.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NOTHING_OWNED,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
)
from moldau.broker.coordinator.group.core.consumer_records import current_assignment_record
from moldau.broker.coordinator.group.core.context import (
    MEMBER_TIMERS,
    ClientInfo,
    ConsumerTimer,
    GroupContext,
    Refusal,
    group_write_error,
)
from moldau.broker.coordinator.group.core.member_updates import (
    MemberUpdate,
    MemberUpdates,
    replacement_records,
)
from moldau.broker.coordinator.group.core.migration import Migration, Upgrade
from moldau.broker.coordinator.group.core.regular_expressions import RegularExpressions
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
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
    """The partitions that a member says it owns."""
    if topics is None:
        return None
    owned: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()).union(topic.partitions)
    return owned


def told(
    member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: ClientInfo
) -> ConsumerGroupMember:
    """The member with what its heartbeat says; the same object if nothing is new."""
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
    """Whether the request is complete, as after an answer that may be lost; then the answer is
    complete too.
    """
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
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
            result.merge(let_go)
            result.timers += upgrade.timers
        result.timers += self._ended_timers(update)
        session = self.session(group, update.new)
        # While its request waits for the answer, the silence of the member does not count.
        result.timers.append(CancelTimer(session.key))
        result.commands += update.commands
        for command in update.commands:
            self._expressions.started(command.group_id)
        shows_assignment = is_full(request) or owned_by_topic(
            update.new.assigned
        ) != owned_by_topic(old.assigned)
        answer = self._answer(group, update.new, shows_assignment=shows_assignment)

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is ErrorCode.NONE:
                answered = CoordinatorResult.reply(reply_to, answer)
            else:
                answered = self._failed(update, reply_to, error)
            known = self._context.groups.get(group.group_id)
            if upgrade is not None and known is upgrade.classic_group:
                # Nothing was written, but the waiting members of the classic group are to be
                # refused.
                answered.replies += let_go.replies
            elif isinstance(known, ConsumerGroup) and update.new.member_id in known.members:
                answered.timers.append(session)
            return answered

        result.add_after(after)
        return result

    def _failed(
        self, update: MemberUpdate, reply_to: ReplyTo, error: ErrorCode
    ) -> CoordinatorResult:
        """The heartbeat could not be written, or not committed in time."""
        if is_refused(error):
            for command in update.commands:
                self._expressions.ended(command.group_id)
        return CoordinatorResult.reply(reply_to, _not_written(error))

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
        """The group, how it is made out of a classic one, and what has to be written first."""
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
        """The member before the request, and the id of the member whose place it takes."""
        is_joining = request.member_epoch == JOIN_EPOCH
        instance_id = request.instance_id
        if instance_id is None:
            member = group.members.get(member_id)
            if member is None and is_joining:
                return ConsumerGroupMember(member_id), None
            member = group.known(member_id)
            member.check_epoch(request.member_epoch, owned)
            return member, None
        if not is_joining:
            member = group.known_static_member(instance_id, member_id)
            member.check_epoch(request.member_epoch, owned)
            return member, None
        static = group.released_static_member(instance_id, member_id)
        if static is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id), None
        replaced_id = None if static.member_id == member_id else static.member_id
        return static.successor(member_id), replaced_id

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
        """Leave a group; a static member may leave for a while only.

        Raises:
            Refusal: there is no such group or member.
        """
        group = self._context.groups.get(request.group_id)
        if group is None or group.kind != "consumer":
            reason = "not found" if group is None else "is not a consumer group"
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} {reason}.")
        member = group.known(request.member_id, request.instance_id)
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
        result.answer_when_committed(reply_to, answer, _not_written)
        return result

    def _leave_for_a_while(
        self, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> CoordinatorResult:
        """A static member stops, but owns its partitions until its session ends."""
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
        """The timer that starts a member's session."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            configs = self._context.metadata().configs
            timeout_ms = self._settings.of_group(configs, group.group_id).session_timeout_ms
        return SetTimer(ConsumerTimer("session", group.group_id, member.member_id), timeout_ms)


def _not_written(error: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=group_write_error(error))
