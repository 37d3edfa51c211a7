"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

While a group is migrated, members of both protocols are in it (KIP-848). One of the classic
protocol is told of every step of its reconciliation by a rebalance: Heartbeat says
REBALANCE_IN_PROGRESS, JoinGroup says what it still has and takes the step, SyncGroup gives it what
it owns then.

Owns: those four requests. Must not: let a classic member assign partitions; nobody is the leader.
Invariant: the generation a classic member is in is its member epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorResult,
    ReplyTo,
    SetTimer,
)
from moldau.broker.group.core.classic_answers import join_error
from moldau.broker.group.core.consumer_group import ConsumerGroup, owned_by_topic
from moldau.broker.group.core.consumer_heartbeat import (
    known_member,
    known_static_member,
    successor,
)
from moldau.broker.group.core.consumer_member import (
    ClassicProtocols,
    ConsumerGroupMember,
    MemberState,
)
from moldau.broker.group.core.consumer_protocol import (
    by_topic_id,
    read_subscription,
    write_assignment,
)
from moldau.broker.group.core.consumer_update import (
    MemberUpdate,
    MemberUpdates,
    replacement_records,
)
from moldau.broker.group.core.context import (
    CONSUMER_PROTOCOL_TYPE,
    ClientInfo,
    ConsumerTimer,
    GroupContext,
    Refusal,
)
from moldau.broker.group.core.errors import group_write_error
from moldau.broker.group.core.migration import Migration
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.p13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from moldau.protocol.messages.consumer_protocol_subscription import (
        ConsumerProtocolSubscription,
    )

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
        self._settings = context.consumer_settings
        self._updates = updates
        self._migration = migration
        self._fence = fence
        self._joining: set[ConsumerTimer] = set()

    # JoinGroup

    def join_group(
        self,
        request: JoinGroupRequest,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
        now_ms: float,
    ) -> CoordinatorResult:
        """Answers JoinGroupResponse, as to a follower."""
        group = self._context.groups[request.group_id]
        try:
            return self._join(group, request, api_version, client, reply_to, now_ms)
        except Refusal as refusal:
            return CoordinatorResult.reply(
                reply_to, join_error(refusal.error_code, request.member_id, api_version)
            )

    def _join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
        now_ms: float,
    ) -> CoordinatorResult:
        self._check_join(group, request)
        if (
            not request.member_id
            and request.group_instance_id is None
            and api_version >= _MEMBER_ID_REQUIRED_VERSION
        ):
            required = join_error(
                ErrorCode.MEMBER_ID_REQUIRED, self._context.random_id(), api_version
            )
            return CoordinatorResult.reply(reply_to, required)
        subscription = _subscription(request)
        update = self._update(group, request, subscription, client, now_ms)
        replaced = group.members.get(update.replaced_id or "")
        converts = (
            replaced is not None
            and not replaced.uses_classic_protocol
            and self._migration.can_downgrade(group, [replaced], joining=1)
        )
        if replaced is not None and not converts:
            update.records += replacement_records(group, replaced.member_id, update.old)
        self._updates.tell(update)
        if converts:
            assert replaced is not None
            result = self._convert(update, replaced)
        else:
            target_epoch, target = self._updates.refresh_target(update)
            self._updates.reconcile(update, target_epoch, target)
            result = CoordinatorResult(
                records=update.records, timers=update.timers, commands=update.commands
            )
        result.after = self._when_joined(update, request, api_version, reply_to, converts=converts)
        return result

    def _convert(self, update: MemberUpdate, replaced: ConsumerGroupMember) -> CoordinatorResult:
        """The last member of the new protocol is replaced by one of the classic protocol."""
        group = update.group
        # What was decided of the group's next epoch is not written: the group ends here.
        rebalances = update.group_epoch > group.assignment_epoch
        update.new = replace(update.new, member_epoch=group.group_epoch)
        return self._migration.downgrade(
            group, [replaced], now_ms=update.now_ms, joining=update.new, rebalances=rebalances
        )

    def _when_joined(
        self,
        update: MemberUpdate,
        request: JoinGroupRequest,
        api_version: int,
        reply_to: ReplyTo,
        *,
        converts: bool,
    ) -> Callable[[ErrorCode, float], CoordinatorResult]:
        group, member = update.group, update.new
        assert member.classic is not None
        answer = JoinGroupResponse(
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=member.classic.protocols[0][0],
            leader="",
            member_id=member.member_id,
            members=[],
        )

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is not ErrorCode.NONE:
                refused = join_error(group_write_error(error), request.member_id, api_version)
                return CoordinatorResult.reply(reply_to, refused)
            result = CoordinatorResult.reply(reply_to, answer)
            if not converts:
                result.timers = [
                    self._ended("join", group, member.member_id),
                    SetTimer(_key("session", group, member.member_id), request.session_timeout_ms),
                    SetTimer(_key("sync", group, member.member_id), member.rebalance_timeout_ms),
                ]
                if update.replaced_id is not None and update.replaced_id != member.member_id:
                    result.timers += [
                        CancelTimer(_key(kind, group, update.replaced_id))
                        for kind in ("session", "rebalance", "join", "sync")
                    ]
                result.timers.append(CancelTimer(_key("rebalance", group, member.member_id)))
            return result

        return after

    def _check_join(self, group: ConsumerGroup, request: JoinGroupRequest) -> None:
        limit = self._settings.max_group_size
        if len(group.members) >= limit and request.member_id not in group.members:
            raise Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )
        names = {protocol.name for protocol in request.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.supports_classic_protocols(
            names
        ):
            raise Refusal(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Member {request.member_id} does not support a protocol of the group.",
            )

    def _update(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        subscription: ConsumerProtocolSubscription,
        client: ClientInfo,
        now_ms: float,
    ) -> MemberUpdate:
        old, replaced_id = self._member_for(group, request)
        new = replace(
            old,
            instance_id=request.group_instance_id or old.instance_id,
            rack_id=subscription.rack_id or old.rack_id,
            client_id=client.client_id,
            client_host=client.client_host,
            subscribed_topic_names=frozenset(subscription.topics),
            subscribed_topic_regex="" if old.subscribed_topic_regex else None,
            rebalance_timeout_ms=(
                request.session_timeout_ms
                if request.rebalance_timeout_ms == -1
                else request.rebalance_timeout_ms
            ),
            classic=ClassicProtocols(
                request.session_timeout_ms,
                tuple((each.name, bytes(each.metadata)) for each in request.protocols),
            ),
        )
        owned: dict[str, list[int]] = {}
        for topic in subscription.owned_partitions:
            owned.setdefault(topic.topic, []).extend(topic.partitions)
        return MemberUpdate(
            group,
            old,
            old if new == old else new,
            client,
            now_ms,
            by_topic_id(owned, self._context.metadata()),
            replaced_id,
        )

    def _member_for(
        self, group: ConsumerGroup, request: JoinGroupRequest
    ) -> tuple[ConsumerGroupMember, str | None]:
        """The member as it is until now, and the id of the one whose place it takes."""
        member_id = request.member_id
        if request.group_instance_id is None:
            if not member_id:
                return ConsumerGroupMember(self._context.random_id()), None
            return group.members.get(member_id) or ConsumerGroupMember(member_id), None
        if member_id:
            static = known_static_member(group, request.group_instance_id, member_id)
            return static, None
        member_id = self._context.random_id()
        found = group.static_member(request.group_instance_id)
        if found is None:
            return ConsumerGroupMember(member_id), None
        # A static member without an id has started anew: whatever it was, it takes its place.
        return successor(found, member_id), found.member_id

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
        result.timers.append(
            SetTimer(
                _key("session", group, member.member_id),
                member.classic.session_timeout_ms,
            )
        )
        error_code = ErrorCode.NONE
        if (
            member.member_epoch < assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (
                member.state is MemberState.UNRELEASED_PARTITIONS
                and not group.waits_for_unreleased(member)
            )
        ):
            error_code = ErrorCode.REBALANCE_IN_PROGRESS
            result.timers += self._must_join(group, member)

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            code = error_code if error is ErrorCode.NONE else group_write_error(error)
            return CoordinatorResult.reply(reply_to, HeartbeatResponse(error_code=code))

        result.after = after
        return result

    # LeaveGroup

    def leave_group(
        self, request: LeaveGroupRequest, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Answers LeaveGroupResponse in the form of version 3 and later."""
        group = self._context.groups[request.group_id]
        leaving: dict[str, ConsumerGroupMember] = {}
        answers = []
        for each in request.members:
            error_code = ErrorCode.NONE
            try:
                member = _leaving_member(group, each)
                leaving[member.member_id] = member
            except Refusal as refusal:
                error_code = refusal.error_code
            answers.append(
                MemberResponse(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=error_code,
                )
            )
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
                f"Member {member_id} does not use the classic protocol.",
            )
        return member

    def _must_join(self, group: ConsumerGroup, member: ConsumerGroupMember) -> list[SetTimer]:
        """The member is told to join; from the first time on it has its rebalance timeout."""
        key = _key("join", group, member.member_id)
        if key in self._joining:
            return []
        self._joining.add(key)
        return [SetTimer(key, member.rebalance_timeout_ms)]

    def _ended(self, kind: str, group: ConsumerGroup, member_id: str) -> CancelTimer:
        key = _key(kind, group, member_id)
        self._joining.discard(key)
        return CancelTimer(key)

    def forget(self, group_id: str, member_ids: Iterable[str]) -> None:
        """These members, or their classic protocol, are gone."""
        for member_id in member_ids:
            self._joining.discard(ConsumerTimer("join", group_id, member_id))


def _key(kind: str, group: ConsumerGroup, member_id: str) -> ConsumerTimer:
    return ConsumerTimer(kind, group.group_id, member_id)


def _subscription(request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    """What the member wants, by its first protocol."""
    try:
        return read_subscription(bytes(request.protocols[0].metadata))
    except RemoteProtocolError as error:
        raise Refusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"The subscription of {request.member_id} is malformed: {error}.",
        ) from None


def _check_generation(member: ConsumerGroupMember, generation_id: int) -> None:
    if generation_id != member.member_epoch:
        raise Refusal(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation_id} is not equal to the member epoch "
            f"{member.member_epoch} of member {member.member_id}.",
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


def _leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerGroupMember:
    if identity.group_instance_id is None:
        return known_member(group, identity.member_id)
    return known_static_member(group, identity.group_instance_id, identity.member_id or None)
