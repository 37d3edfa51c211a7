"""The consumer groups of one coordinator partition: requests, timers and records (KIP-848).

Owns ConsumerGroupHeartbeat from request to answer (the checks in Kafka's order, finding or making
the group and the member, and what one heartbeat adds up to), ConsumerGroupDescribe, the end of
members by leaving and by timeout, and what new metadata means to groups. Which partitions members
get is computed in `assignors`. Must not decide what a change of a member leads to (`member_updates`
does), or change a group but by `replay`. Invariants: a request that is refused has changed nothing,
in memory either; a member whose session is not renewed in time is fenced, and so is one that does
not give partitions back in its rebalance timeout; what could not be written then is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from moldau.broker.coordinator.core.result import (
    Answerable,
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    SetTimer,
    is_refused,
    write_error,
)
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.classic_members import ClassicMembers
from moldau.broker.coordinator.group.core.consumer_group import (
    ConsumerGroup,
    GroupContext,
    RecordKey,
    owned_by_topic,
)
from moldau.broker.coordinator.group.core.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NOTHING,
    NOTHING_OWNED,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    ResolvedRegularExpression,
    current_assignment_record,
    group_epoch_record,
    member_tombstones,
)
from moldau.broker.coordinator.group.core.context import (
    GROUP_BYTES,
    ClientInfo,
    ConsumerTimer,
    Refusal,
    ended_timers,
    refused,
)
from moldau.broker.coordinator.group.core.member_updates import (
    MemberUpdate,
    MemberUpdates,
    replacement_records,
)
from moldau.broker.coordinator.group.core.migration import Migration, Upgrade
from moldau.broker.coordinator.group.core.regular_expressions import (
    RegularExpressions,
    ResolveRegularExpressions,
    expression_tombstones,
    resolution_records,
)
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.protocol.coordinator_records.consumer_groups import ConsumerGroupMetadataKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p68_consumer_group_heartbeat as p68
from moldau.protocol.messages.p69_consumer_group_describe import Assignment as DescribedAssignment
from moldau.protocol.messages.p69_consumer_group_describe import DescribedGroup, Member
from moldau.protocol.messages.p69_consumer_group_describe import (
    TopicPartitions as DescribedPartitions,
)

_CLIENT_CHOOSES_ID_VERSION: Final = 1
"""From this version on a member brings its own id (KIP-1082)."""


def check_request(
    request: p68.ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]
) -> None:
    """Check what can be checked without knowing the group. Raises: Refusal."""
    problem = _problem(request, api_version)
    if problem is not None:
        raise Refusal(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise Refusal(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {request.server_assignor}; choose one of "
            f"{', '.join(assignors)}.",
        )


def _problem(request: p68.ConsumerGroupHeartbeatRequest, api_version: int) -> str | None:
    epoch = request.member_epoch
    needs_id = api_version >= _CLIENT_CHOOSES_ID_VERSION or epoch > 0 or epoch == LEAVE_EPOCH
    for name, value, is_checked in (
        ("MemberId", request.member_id, needs_id),
        ("GroupId", request.group_id, True),
        ("InstanceId", request.instance_id, True),
        ("RackId", request.rack_id, True),
    ):
        if is_checked and value is not None and not value.strip():
            return f"{name} is empty."
    if epoch < STATIC_LEAVE_EPOCH:
        return f"There is no member epoch {epoch}."
    if epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        return "Only a static member can leave for a while: InstanceId is missing."
    if epoch != JOIN_EPOCH:
        return None
    if request.rebalance_timeout_ms == -1:
        return "Who joins has to name its RebalanceTimeoutMs."
    if request.topic_partitions is None or request.topic_partitions:
        return "Who joins owns nothing: TopicPartitions has to be an empty list."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "Who joins subscribes: SubscribedTopicNames or SubscribedTopicRegex is missing."
    return None


def refused_heartbeat(refusal: Refusal) -> p68.ConsumerGroupHeartbeatResponse:
    """The answer to a heartbeat that cannot be carried out."""
    return p68.ConsumerGroupHeartbeatResponse(
        error_code=refusal.error_code, error_message=refusal.message
    )


def owned_partitions(
    topics: Iterable[p68.TopicPartitions] | None,
) -> Mapping[UUID, frozenset[int]] | None:
    if topics is None:
        return None
    owned: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()).union(topic.partitions)
    return owned


def told(
    member: ConsumerGroupMember, request: p68.ConsumerGroupHeartbeatRequest, client: ClientInfo
) -> ConsumerGroupMember:
    """The member with what its heartbeat says; the same object if nothing is new."""
    names = request.subscribed_topic_names
    timeout_ms = request.rebalance_timeout_ms
    new = replace(
        member,
        instance_id=_either(request.instance_id, member.instance_id),
        rack_id=_either(request.rack_id, member.rack_id),
        client_id=client.client_id,
        client_host=client.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=_either(
            request.subscribed_topic_regex, member.subscribed_topic_regex
        ),
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=_either(request.server_assignor, member.server_assignor),
        classic=None,
    )
    return member if new == member else new


def _either(value: str | None, otherwise: str | None) -> str | None:
    return otherwise if value is None else value


def is_full(request: p68.ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request is complete, as after a lost answer; then the answer is complete too."""
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def _not_written(error: ErrorCode) -> p68.ConsumerGroupHeartbeatResponse:
    return p68.ConsumerGroupHeartbeatResponse(error_code=write_error(error))


def _refused(refusal: Refusal, reply_to: Answerable) -> CoordinatorResult:
    def answer(error: ErrorCode) -> p68.ConsumerGroupHeartbeatResponse:
        is_refused_here = error is refusal.error_code
        return refused_heartbeat(refusal) if is_refused_here else _not_written(error)

    return CoordinatorResult(replies=[refused(reply_to, refusal.error_code, answer)])


_RETRY_MS: Final = 500
"""When a timer's records could not be written, it runs again after this time."""

_TOO_BIG: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR)
"""What records that do not fit into a batch, or into their format, are refused with."""


class ConsumerGroups:
    """The groups of kind "consumer" in `context.groups`.

    Args:
        begin_migration: lets go of a classic group that becomes a consumer group.
        start_classic: lets a classic group begin that was a consumer group until now.
    """

    def __init__(
        self,
        context: GroupContext,
        *,
        begin_migration: Callable[[ClassicGroup], CoordinatorResult],
        start_classic: Callable[[str, float], CoordinatorResult],
    ) -> None:
        settings = context.consumer_settings
        self._context = context
        self._settings = settings
        self._start_classic = start_classic
        self._is_live = False
        self._topic_index: dict[str, set[str]] = {}
        self._expressions = RegularExpressions(settings.regex_refresh_interval_ms)
        self._updates = MemberUpdates(context, self._expressions)
        self._migration = Migration(context, begin_migration)
        self.classic_members = ClassicMembers(context, self._updates, self._migration, self.fence)

    def consumer_group_heartbeat(
        self,
        request: p68.ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        reply_to: Answerable,
        now_ms: float,
    ) -> CoordinatorResult:
        """Join, stay in, or leave a group; answers ConsumerGroupHeartbeatResponse. The request has
        passed `check_request`.
        """
        try:
            if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                return self._leave(request, reply_to, now_ms)
            return self._heartbeat(request, client, reply_to, now_ms)
        except Refusal as refusal:
            return _refused(refusal, reply_to)

    def describe_group(self, group_id: str, reply_to: Answerable) -> CoordinatorResult:
        """Describe a group; answers DescribedGroup."""
        try:
            group = self._context.existing_consumer_group(group_id)
            described = describe(group, self._context.metadata(), self._settings.assignors[0])
        except Refusal as refusal:
            described = DescribedGroup(
                group_id=group_id, error_code=refusal.error_code, error_message=refusal.message
            )
        return CoordinatorResult.reply_when_committed(
            reply_to,
            described,
            on_error=lambda error: DescribedGroup(group_id=group_id, error_code=error),
        )

    def _heartbeat(
        self,
        request: p68.ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        reply_to: Answerable,
        now_ms: float,
    ) -> CoordinatorResult:
        """Join a group or stay in it. Raises: Refusal."""
        group, upgrade, before = self._group_for(request)
        group.check_size(request.member_id, self._settings.max_group_size)
        member_id = request.member_id or self._context.random_id()
        owned = owned_partitions(request.topic_partitions)
        old, replaced_id = self._member_for(group, request, member_id, owned)
        update = MemberUpdate(
            group, old, told(old, request, client), client, now_ms, owned, replaced_id
        )
        growth_bytes = update.new.size_bytes - group.member_bytes(replaced_id or member_id, None)
        if group.group_id not in self._context.groups:
            growth_bytes += GROUP_BYTES
        if not self._context.memory.may_grow(group.group_id, client.principal, growth_bytes):
            raise Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The coordinator keeps as much for {client.principal} as it may.",
            )
        if replaced_id is not None:
            update.result.records += replacement_records(group, replaced_id, old)
        self._updates.tell(update)
        target_epoch, target = self._updates.refresh_target(update)
        self._updates.reconcile(update, target_epoch, target)
        result = update.result
        result.records = before + result.records
        let_go = CoordinatorResult()
        if upgrade is not None:
            let_go = self._migration.let_go(upgrade.classic_group)
            result.merge(let_go)
            result.timers += upgrade.timers
        result.timers += self._ended_timers(update)
        session = self._session(group, update.new)
        # While its request waits for the answer, the silence of the member does not count.
        result.timers.append(CancelTimer(session.key))
        if result.commands:
            self._expressions.started(group.group_id)
        shows_assignment = is_full(request) or owned_by_topic(
            update.new.assigned
        ) != owned_by_topic(old.assigned)
        answer = self._answer(group, update.new, shows_assignment=shows_assignment)

        def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
            told = answer if error is ErrorCode.NONE else _not_written(error)
            answered = CoordinatorResult.reply(reply_to, told)
            if is_refused(error) and result.commands:
                self._expressions.ended(group.group_id)
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

    def _ended_timers(self, update: MemberUpdate) -> list[CancelTimer]:
        """Timers of the member whose place is taken, or of the classic protocol left behind."""
        group_id, member_id = update.group.group_id, update.new.member_id
        ended: list[CancelTimer] = []
        if update.replaced_id is not None:
            ended += ended_timers(group_id, [update.replaced_id])
        if update.old.uses_classic_protocol:
            self.classic_members.forget(group_id, [member_id, update.replaced_id or member_id])
            for kind in ("join", "sync"):
                ended.append(CancelTimer(ConsumerTimer(kind, group_id, member_id)))
        return ended

    def _group_for(
        self, request: p68.ConsumerGroupHeartbeatRequest
    ) -> tuple[ConsumerGroup, Upgrade | None, list[CoordinatorRecord]]:
        """The group, how it is made out of a classic one, and what has to be written first."""
        group_id = request.group_id
        if request.member_epoch != JOIN_EPOCH:
            return self._context.existing_consumer_group(group_id), None, []
        group = self._context.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group, None, []
        if group is None:
            return ConsumerGroup(group_id, {}), None, []
        if group.is_empty:
            return ConsumerGroup(group_id, {}), None, group.tombstones()
        upgrade = self._migration.upgrade(group)
        return upgrade.group, upgrade, upgrade.records

    def _member_for(
        self,
        group: ConsumerGroup,
        request: p68.ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Mapping[UUID, frozenset[int]] | None,
    ) -> tuple[ConsumerGroupMember, str | None]:
        """The member before the request, and the id of the member whose place it takes."""
        is_joining = request.member_epoch == JOIN_EPOCH
        instance_id = request.instance_id
        if instance_id is None and is_joining and member_id not in group.members:
            return ConsumerGroupMember(member_id), None
        if instance_id is None or not is_joining:
            member = group.known(member_id, instance_id)
            member.check_epoch(request.member_epoch, owned)
            return member, None
        static = group.released_static_member(instance_id, member_id)
        if static is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id), None
        if static.member_id != member_id:
            if member_id in group.members:
                # With a second place what it had in its first would have no owner.
                raise Refusal(
                    ErrorCode.INVALID_REQUEST,
                    f"{member_id} is a member already, and cannot take the place of "
                    f"{static.member_id}.",
                )
            return static.successor(member_id), static.member_id
        if static.member_epoch == STATIC_LEAVE_EPOCH:
            return static.successor(member_id), None
        # The answer to its join was lost, or it was refused for its epoch: as a dynamic member it
        # gets its state back. Apache Kafka 4.3 answers UNRELEASED_INSTANCE_ID (apache/kafka#23542).
        return static, None

    def _answer(
        self, group: ConsumerGroup, member: ConsumerGroupMember, *, shows_assignment: bool
    ) -> p68.ConsumerGroupHeartbeatResponse:
        times = self._settings.of_group(self._context.metadata().configs, group.group_id)
        assignment = None
        if shows_assignment:
            assignment = p68.Assignment(
                topic_partitions=[
                    p68.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in sorted(member.assigned.items())
                ]
            )
        return p68.ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=times.heartbeat_interval_ms,
            assignment=assignment,
        )

    def _leave(
        self, request: p68.ConsumerGroupHeartbeatRequest, reply_to: Answerable, now_ms: float
    ) -> CoordinatorResult:
        """Leave a group; a static member may leave for a while only. Raises: Refusal."""
        group = self._context.existing_consumer_group(request.group_id)
        member = group.known(request.member_id, request.instance_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            # It owns its partitions until its session ends.
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
            result = CoordinatorResult(
                records=[current_assignment_record(group.group_id, gone)],
                timers=[CancelTimer(key)],
            )
        else:
            result = self.fence(group, [member], now_ms)
        answer = p68.ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
        )
        result.answer_when_committed(reply_to, answer, _not_written)
        return result

    def _session(self, group: ConsumerGroup, member: ConsumerGroupMember) -> SetTimer:
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            configs = self._context.metadata().configs
            timeout_ms = self._settings.of_group(configs, group.group_id).session_timeout_ms
        return SetTimer(ConsumerTimer("session", group.group_id, member.member_id), timeout_ms)

    def replay(self, key: RecordKey, record: CoordinatorRecord) -> None:
        # A classic group gives way to what was written behind its end: a simple one that offsets
        # have kept, or one whose end compaction has removed. The end of a consumer group that has
        # become classic again says nothing any more.
        group = self._context.consumer_group(key.group_id)
        if group is None:
            if record.value is None:
                return
            group = ConsumerGroup(key.group_id, self._topic_index, self._topic_id_of)
            self._context.groups[key.group_id] = group
        if record.value is None and isinstance(key, ConsumerGroupMetadataKey):
            group.forget_subscriptions()
            del self._context.groups[key.group_id]
        else:
            group.replay(record, is_live=self._is_live)

    def loaded(self) -> CoordinatorResult:
        """The log has been replayed: every member gets a whole session."""
        self._is_live = True
        self._expressions.new_topics_offset = (
            self._context.metadata().provenance.last_contained_offset
        )
        result = CoordinatorResult()
        for group in self._context.groups.values():
            if not isinstance(group, ConsumerGroup):
                continue
            group.take_stock()
            for member in group.members.values():
                result.timers.append(self._session(group, member))
                if member.is_giving_back:
                    kind = "join" if member.uses_classic_protocol else "rebalance"
                    key = ConsumerTimer(kind, group.group_id, member.member_id)
                    result.timers.append(SetTimer(key, max(0, member.rebalance_timeout_ms)))
        return result

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Topics have changed: the groups subscribed to them see that with their next heartbeat."""
        topics = delta.topics_delta
        names = [change.name for change in topics.changed.values()]
        if any(change.created for change in topics.changed.values()):
            self._expressions.new_topics_offset = image.provenance.last_contained_offset
        names += [topic.name for topic in topics.deleted.values()]
        for name in names:
            self._context.topic_hashes.forget(name)
            for group_id in self._topic_index.get(name, ()):
                group = self._context.groups[group_id]
                assert isinstance(group, ConsumerGroup)
                group.is_refresh_requested = True

    def regular_expressions_resolved(
        self,
        command: ResolveRegularExpressions,
        resolved: Mapping[str, ResolvedRegularExpression] | None,
    ) -> CoordinatorResult:
        """The topics of a group's expressions have been looked up; None: that failed."""
        self._expressions.ended(command.group_id)
        group = self._context.consumer_group(command.group_id)
        if group is None or not resolved:
            return CoordinatorResult()
        records, names, has_changed = resolution_records(group, resolved)
        metadata_hash = self._context.metadata_hash(names)
        if records and (has_changed or metadata_hash != group.metadata_hash):
            group_epoch = group.group_epoch + 1
            records.append(group_epoch_record(group.group_id, group_epoch, metadata_hash))
            group.metadata_refreshed(group_epoch)
            self._context.count("consumer-group-rebalance", 1)
        return CoordinatorResult(records=records)

    def on_timer(self, key: ConsumerTimer, now_ms: float) -> CoordinatorResult:
        if key.kind == "downgraded":
            return self._start_classic(key.group_id, now_ms)
        group = self._context.consumer_group(key.group_id)
        member = None if group is None else group.members.get(key.member_id)
        if group is None or member is None:
            return CoordinatorResult()
        if key.kind == "rebalance" and not member.is_giving_back:
            return CoordinatorResult()
        return self._expel(key, group, member, now_ms)

    def _expel(
        self,
        key: ConsumerTimer,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        now_ms: float,
        *,
        may_downgrade: bool = True,
    ) -> CoordinatorResult:
        """Fence a member whose timer has run out, if need be without changing the group's kind."""
        result = self.fence(group, [member], now_ms, may_downgrade=may_downgrade)

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            if not is_refused(error):
                return CoordinatorResult()  # a member of that id now is one that has come back
            if error in _TOO_BIG and may_downgrade:
                # The record of a classic group holds all its members.
                return self._expel(key, group, member, now_ms, may_downgrade=False)
            return CoordinatorResult(timers=[SetTimer(key, _RETRY_MS)])

        result.after = after
        return result

    def fence(
        self,
        group: ConsumerGroup,
        members: list[ConsumerGroupMember],
        now_ms: float,
        *,
        may_downgrade: bool = True,
    ) -> CoordinatorResult:
        """Take members out of the group; if only classic ones are left it may become classic."""
        if not members:
            return CoordinatorResult()
        result = CoordinatorResult()
        if may_downgrade and self._migration.can_downgrade(group, members):
            result = self._migration.downgrade(group, members, now_ms=now_ms)
            members = list(group.members.values())
        else:
            for member in members:
                result.records += member_tombstones(group.group_id, member.member_id)
            result.records += expression_tombstones(group, members)
            names = group.subscribed_without(members)
            metadata_hash = self._context.metadata_hash(names)
            result.records.append(
                group_epoch_record(group.group_id, group.group_epoch + 1, metadata_hash)
            )
            self._context.count("consumer-group-rebalance", 1)
            result.timers += ended_timers(group.group_id, (each.member_id for each in members))
        self.classic_members.forget(group.group_id, [member.member_id for member in members])
        return result

    def _topic_id_of(self, name: str) -> UUID | None:
        topic = self._context.metadata().topics.topics_by_name.get(name)
        return None if topic is None else topic.topic_id


def describe(group: ConsumerGroup, image: MetadataImage, default_assignor: str) -> DescribedGroup:
    """The group with all its members; deleted topics are left out."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or default_assignor,
        members=[_member(group, member, image) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerGroupMember, image: MetadataImage) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex or "",
        assignment=_assignment(member.may_read, image),
        target_assignment=_assignment(group.targets.get(member.member_id, NOTHING), image),
        member_type=0 if member.uses_classic_protocol else 1,
    )


def _assignment(
    partitions: Mapping[UUID, Iterable[int]], image: MetadataImage
) -> DescribedAssignment:
    topics = image.topics.topics_by_id
    return DescribedAssignment(
        topic_partitions=[
            DescribedPartitions(
                topic_id=topic_id, topic_name=topics[topic_id].name, partitions=sorted(indexes)
            )
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in topics
        ]
    )
