"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

While a group is migrated, it has members of both protocols (KIP-848). Each step of the
reconciliation of a classic member is a rebalance to it: Heartbeat answers REBALANCE_IN_PROGRESS,
JoinGroup says what the member still owns and takes the step, SyncGroup gives it what it owns then.

Owns those requests. Must not decide how the group changes (`member_updates` does). Invariants: no
member of a consumer group assigns partitions: it reads that another member leads, or that it
leads and shall not assign; the generation of a classic member is its member epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from moldau.broker.coordinator.core.result import (
    After,
    Answerable,
    CancelTimer,
    CoordinatorResult,
    SetTimer,
    is_refused,
    write_error,
)
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup, ClassicGroupState
from moldau.broker.coordinator.group.core.consumer_group import (
    ConsumerGroup,
    GroupContext,
    owned_by_topic,
)
from moldau.broker.coordinator.group.core.consumer_member import (
    Assignment,
    ClassicProtocols,
    ConsumerGroupMember,
    MemberState,
)
from moldau.broker.coordinator.group.core.consumer_protocol import by_topic_id, write_assignment
from moldau.broker.coordinator.group.core.context import (
    CONSUMER_PROTOCOL_TYPE,
    ClientInfo,
    ConsumerTimer,
    Refusal,
    ended_timers,
    refused,
)
from moldau.broker.coordinator.group.core.joining import (
    FIRST_KNOWN_MEMBER_VERSION,
    FIRST_SKIP_ASSIGNMENT_VERSION,
    UNKNOWN_MEMBER,
    Joining,
    heartbeat_error,
    is_of_another_protocol,
    sync_error,
)
from moldau.broker.coordinator.group.core.member_updates import (
    MemberUpdate,
    MemberUpdates,
    replacement_records,
)
from moldau.broker.coordinator.group.core.migration import Migration
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages import p13_leave_group as p13
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupResponse

Fence = Callable[[ConsumerGroup, list[ConsumerGroupMember], float], CoordinatorResult]


@dataclass(slots=True, eq=False)
class ClassicMembers:
    """Serves the classic protocol's requests to consumer groups."""

    _context: GroupContext
    _updates: MemberUpdates
    _migration: Migration
    _fence: Fence
    _joining: set[ConsumerTimer] = field(default_factory=set)

    def join_group(self, joining: Joining, now_ms: float) -> CoordinatorResult:
        """Answers JoinGroupResponse, as to a follower."""
        try:
            return self._join(self._group(joining.request.group_id), joining, now_ms)
        except Refusal as refusal:
            return joining.refused(refusal.error_code, UNKNOWN_MEMBER)

    def _join(self, group: ConsumerGroup, joining: Joining, now_ms: float) -> CoordinatorResult:
        request = joining.request
        group.check_size(request.member_id, self._context.consumer_settings.max_group_size)
        names = {protocol.name for protocol in request.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.supports_classic_protocols(
            names
        ):
            raise Refusal(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Member {request.member_id} does not support a protocol of the group.",
            )
        if (
            not request.member_id
            and request.group_instance_id is None
            and joining.api_version >= FIRST_KNOWN_MEMBER_VERSION
        ):
            return joining.refused(ErrorCode.MEMBER_ID_REQUIRED, self._context.random_id())
        update = self._update(group, joining, now_ms)
        replaced = group.members.get(update.replaced_id or update.old.member_id)
        converts = (
            replaced is not None
            and request.group_instance_id is not None
            and not replaced.uses_classic_protocol
            and self._migration.can_downgrade(group, [replaced], joining=1)
        )
        if update.replaced_id is not None and not converts:
            update.result.records += replacement_records(group, update.replaced_id, update.old)
        self._updates.tell(update)
        if converts:
            assert replaced is not None
            result = self._convert(update, replaced, joining.api_version)
        else:
            target_epoch, target = self._updates.refresh_target(update)
            self._updates.reconcile(update, target_epoch, target)
            result = update.result
        result.after = self._when_joined(update, joining, converts=converts)
        return result

    def _convert(
        self, update: MemberUpdate, replaced: ConsumerGroupMember, api_version: int
    ) -> CoordinatorResult:
        """The last member of the new protocol, a static one, goes on with the classic protocol.

        From now on a member has to watch the topics: the one that joins reads that it leads, if
        its answer can also say not to assign (KIP-814); otherwise there is a rebalance. Apache
        Kafka 4.3 names no member as leader, so that new partitions of a topic have no owner before
        the next rebalance.
        """
        group = update.group
        # The group's next epoch, as decided so far, is not written: the group ends here.
        rebalances = (
            api_version < FIRST_SKIP_ASSIGNMENT_VERSION
            or update.group_epoch > group.assignment_epoch
            or not all(
                member.is_reconciled_to(group.assignment_epoch)
                for member in group.members.values()
                if member is not replaced
            )
        )
        self.forget(group.group_id, list(group.members))
        update.new = replace(update.new, member_epoch=group.group_epoch)
        return self._migration.downgrade(
            group, [replaced], now_ms=update.now_ms, joining=update.new, rebalances=rebalances
        )

    def _when_joined(self, update: MemberUpdate, joining: Joining, *, converts: bool) -> After:
        group, member = update.group, update.new
        session_timeout_ms = joining.request.session_timeout_ms
        answer = JoinGroupResponse(
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=joining.protocols[0][0],
            member_id=member.member_id,
        )

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is ErrorCode.NONE:
                told = self._answer_to_leader(group.group_id, member.member_id) or answer
                result = CoordinatorResult.reply(joining.reply_to, told)
            else:
                result = joining.refused(write_error(error), UNKNOWN_MEMBER)
            if not converts and not is_refused(error):
                self.forget(group.group_id, [member.member_id])
                result.timers = [
                    CancelTimer(_key("join", group, member.member_id)),
                    SetTimer(_key("session", group, member.member_id), session_timeout_ms),
                    SetTimer(_key("sync", group, member.member_id), member.rebalance_timeout_ms),
                ]
                if update.replaced_id is not None:
                    result.timers += ended_timers(group.group_id, [update.replaced_id])
                result.timers.append(CancelTimer(_key("rebalance", group, member.member_id)))
            return result

        return after

    def _answer_to_leader(self, group_id: str, member_id: str) -> JoinGroupResponse | None:
        """The answer to the member that leads the classic group that a consumer group has become,
        if it does, and the group has not begun a rebalance since.
        """
        group = self._context.groups.get(group_id)
        if (
            not isinstance(group, ClassicGroup)
            or group.leader_id != member_id
            or group.state is not ClassicGroupState.STABLE
        ):
            return None
        return group.join_response(group.members[member_id], skip_assignment=True)

    def _update(self, group: ConsumerGroup, joining: Joining, now_ms: float) -> MemberUpdate:
        request, client = joining.request, joining.client
        try:
            subscription = joining.subscription
        except RemoteProtocolError as error:
            raise Refusal(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"The subscription of {request.member_id} is malformed: {error}.",
            ) from None
        owned = by_topic_id(subscription.owned_partitions, self._context.metadata())
        old, replaced_id = self._member_for(group, request, owned)
        new = replace(
            old,
            instance_id=(
                old.instance_id if request.group_instance_id is None else request.group_instance_id
            ),
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
            classic=ClassicProtocols(request.session_timeout_ms, tuple(joining.protocols)),
        )
        told = old if new == old else new
        return MemberUpdate(group, old, told, client, now_ms, owned, replaced_id)

    def _member_for(
        self, group: ConsumerGroup, request: JoinGroupRequest, owned: Assignment
    ) -> tuple[ConsumerGroupMember, str | None]:
        """The member as it is until now, and the id of the one whose place it takes.

        Raises:
            Refusal: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        member_id = request.member_id
        if request.group_instance_id is None:
            if not member_id:
                return ConsumerGroupMember(self._context.random_id()), None
            member = group.members.get(member_id)
            if member is None and owned:
                # Unlike Kafka 4.3, which lets it commit for what other members own by now.
                raise Refusal(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"{member_id} has been expelled, and has to give up all its partitions first.",
                )
            return member or ConsumerGroupMember(member_id), None
        if member_id:
            return group.known(member_id, request.group_instance_id), None
        member_id = self._context.random_id()
        found = group.static_member(request.group_instance_id)
        if found is None:
            return ConsumerGroupMember(member_id), None
        # A static member without an id has restarted, and takes its place whatever its state was.
        return found.successor(member_id), found.member_id

    def sync_group(self, request: SyncGroupRequest, reply_to: Answerable) -> CoordinatorResult:
        """Answers SyncGroupResponse with what the member owns in its generation."""
        group = self._group(request.group_id)
        timers: list[SetTimer | CancelTimer] = []
        try:
            member = self._member(group, request.member_id, request.group_instance_id)
            assert member.classic is not None
            _check_generation(member, request.generation_id)
            protocol_name = member.classic.protocols[0][0]
            if is_of_another_protocol(request, CONSUMER_PROTOCOL_TYPE, protocol_name):
                raise Refusal(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"Member {request.member_id} says another protocol than the group.",
                )
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
            reply = refused(reply_to, refusal.error_code, sync_error)
            return CoordinatorResult(replies=[reply], timers=timers)
        answer = SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL_TYPE, protocol_name=protocol_name, assignment=assignment
        )
        session_timeout_ms = member.classic.session_timeout_ms
        key = _key("session", group, member.member_id)

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            if error is not ErrorCode.NONE:
                return CoordinatorResult.reply(reply_to, sync_error(write_error(error)))
            result = CoordinatorResult.reply(reply_to, answer)
            result.timers = [
                CancelTimer(_key("sync", group, member.member_id)),
                SetTimer(key, session_timeout_ms),
            ]
            return result

        return CoordinatorResult(after=after)

    def heartbeat(
        self, request: HeartbeatRequest, reply_to: Answerable, now_ms: float
    ) -> CoordinatorResult:
        """Answers HeartbeatResponse: REBALANCE_IN_PROGRESS when the member has a step to take.

        The group goes on to its next assignment here too: it may have no member of the new protocol
        whose heartbeats would do that.
        """
        group = self._group(request.group_id)
        try:
            member = self._member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
        except Refusal as refusal:
            reply = refused(reply_to, refusal.error_code, heartbeat_error)
            return CoordinatorResult(replies=[reply])
        assert member.classic is not None
        update = MemberUpdate(group, member, member, ClientInfo("", ""), now_ms, None)
        self._updates.refresh_epoch(update)
        assignment_epoch, _target = self._updates.refresh_target(update)
        result = update.result
        session = SetTimer(
            _key("session", group, member.member_id), member.classic.session_timeout_ms
        )
        # While its request waits for the answer, the silence of the member does not count.
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
            code = error_code if error is ErrorCode.NONE else write_error(error)
            answered = CoordinatorResult.reply(reply_to, heartbeat_error(code))
            if member.member_id in group.members:
                answered.timers.append(session)
            return answered

        result.after = after
        return result

    def leave_group(
        self,
        request: p13.LeaveGroupRequest,
        reply_to: Answerable,
        now_ms: float,
        answers: list[p13.MemberResponse],
    ) -> CoordinatorResult:
        """Answers LeaveGroupResponse in the form of version 3 and later; `answers` has one for each
        member of the request, which gets its error code here.
        """
        group = self._group(request.group_id)
        leaving: dict[str, ConsumerGroupMember] = {}
        for each, told in zip(request.members, answers, strict=True):
            member = _leaving_member(group, each)
            if isinstance(member, ErrorCode):
                told.error_code = member
            else:
                told.error_code = ErrorCode.NONE
                leaving[member.member_id] = member
        result = self._fence(group, list(leaving.values()), now_ms)
        result.answer_when_committed(
            reply_to,
            p13.LeaveGroupResponse(members=answers),
            lambda error: p13.LeaveGroupResponse(error_code=write_error(error)),
        )
        return result

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._context.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def _member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> ConsumerGroupMember:
        member = group.known(member_id, instance_id)
        if not member.uses_classic_protocol:
            raise Refusal(
                ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of the classic protocol."
            )
        return member

    def _must_join(self, group: ConsumerGroup, member: ConsumerGroupMember) -> list[SetTimer]:
        """The member is asked to join; the first time starts its rebalance timeout."""
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


def _leaving_member(
    group: ConsumerGroup, identity: p13.MemberIdentity
) -> ConsumerGroupMember | ErrorCode:
    """The member, or why it cannot leave; without exceptions, for a request may name 50,000."""
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if instance_id is None:
        return group.members.get(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.static_member(instance_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return member if member_id in ("", member.member_id) else ErrorCode.FENCED_INSTANCE_ID
