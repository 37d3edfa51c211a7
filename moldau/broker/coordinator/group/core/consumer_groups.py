"""The consumer groups of one coordinator partition: requests, timers and records (KIP-848).

Owns the way of every request, record and timer to its part, the end of members by leaving and by
timeout, and what new metadata means to groups. Must not change a group but by `replay`. Invariant:
a member whose session is not renewed in time is fenced, and so is one that does not give partitions
back in its rebalance timeout; what could not be written then is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.classic_members import ClassicMembers
from moldau.broker.coordinator.group.core.consumer_group import (
    RECORD_KEYS,
    ConsumerGroup,
    ResolvedRegularExpression,
)
from moldau.broker.coordinator.group.core.consumer_heartbeats import Heartbeats, check_request
from moldau.broker.coordinator.group.core.consumer_member import (
    LEAVE_EPOCH,
    NOTHING,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    MemberState,
)
from moldau.broker.coordinator.group.core.consumer_records import (
    group_epoch_record,
    member_tombstones,
)
from moldau.broker.coordinator.group.core.context import (
    MEMBER_TIMERS,
    ClientInfo,
    ConsumerTimer,
    GroupContext,
    Refusal,
)
from moldau.broker.coordinator.group.core.member_updates import MemberUpdates
from moldau.broker.coordinator.group.core.metadata_hash import TopicHashes
from moldau.broker.coordinator.group.core.migration import Migration
from moldau.broker.coordinator.group.core.regular_expressions import (
    RegularExpressions,
    ResolveRegularExpressions,
    expression_tombstones,
    resolution_records,
)
from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.protocol.coordinator_records import ConsumerGroupMetadataKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from moldau.protocol.messages.p69_consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1

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
        self._topic_hashes = TopicHashes()
        self._expressions = RegularExpressions(settings.regex_refresh_interval_ms)
        self._updates = MemberUpdates(context, self._topic_hashes, self._expressions)
        self._migration = Migration(context, self._topic_hashes, begin_migration)
        self.classic_members = ClassicMembers(context, self._updates, self._migration, self.fence)
        self._heartbeats = Heartbeats(
            context,
            self._updates,
            self._migration,
            self._expressions,
            self.classic_members,
            self.fence,
        )

    # -- requests --------------------------------------------------------------------------------

    def consumer_group_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
        now_ms: float,
    ) -> CoordinatorResult:
        """Join, stay in, or leave a group; answers ConsumerGroupHeartbeatResponse."""
        try:
            check_request(request, api_version, self._settings.assignors)
            if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                return self._heartbeats.leave(request, reply_to, now_ms)
            return self._heartbeats.heartbeat(request, client, reply_to, now_ms)
        except Refusal as refusal:
            return CoordinatorResult.reply(
                reply_to,
                ConsumerGroupHeartbeatResponse(
                    error_code=refusal.error_code, error_message=refusal.message
                ),
            )

    def consumer_group_describe(
        self, group_ids: Iterable[str], reply_to: ReplyTo
    ) -> CoordinatorResult:
        """Describe groups that live in this partition; answers a list of DescribedGroup."""
        described: list[DescribedGroup] = []
        for group_id in group_ids:
            group = self._context.groups.get(group_id)
            if group is None or group.kind != "consumer":
                reason = "not found" if group is None else "is not a consumer group"
                described.append(
                    DescribedGroup(
                        group_id=group_id,
                        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                        error_message=f"Group {group_id} {reason}.",
                    )
                )
            else:
                described.append(
                    describe(group, self._context.metadata(), self._settings.assignors[0])
                )
        ids = [each.group_id for each in described]
        return CoordinatorResult.reply_when_committed(
            reply_to,
            described,
            on_error=lambda error: [
                DescribedGroup(group_id=group_id, error_code=error, error_message=None)
                for group_id in ids
            ],
        )

    # -- events ----------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord) -> None:
        """Take in a record of types 3 to 8 or 16."""
        key: Any = record.key
        if type(key) not in RECORD_KEYS:
            return
        groups = self._context.groups
        group = groups.get(key.group_id)
        if group is not None and group.kind != "consumer":
            # A classic group gives way to what was written behind its end: a simple one that
            # offsets have kept, or one whose end compaction has removed. The end of a consumer
            # group that has become classic again says nothing any more.
            group = None
        if group is None:
            if record.value is None:
                return
            group = ConsumerGroup(key.group_id, self._topic_index, self._topic_id_of)
            groups[key.group_id] = group
        if record.value is None and type(key) is ConsumerGroupMetadataKey:
            group.forget_subscriptions()
            del groups[key.group_id]
        else:
            group.replay(record, is_live=self._is_live)

    def loaded(self, now_ms: float) -> CoordinatorResult:
        """The log has been replayed: every member gets a whole session."""
        del now_ms
        self._is_live = True
        self._expressions.new_topics_offset = (
            self._context.metadata().provenance.last_contained_offset
        )
        result = CoordinatorResult()
        for group in self._consumer_groups():
            group.take_stock()
            for member in group.members.values():
                result.timers.append(self._heartbeats.session(group, member))
                if member.state is MemberState.UNREVOKED_PARTITIONS and member.member_epoch >= 0:
                    kind = "join" if member.uses_classic_protocol else "rebalance"
                    key = ConsumerTimer(kind, group.group_id, member.member_id)
                    result.timers.append(SetTimer(key, max(0, member.rebalance_timeout_ms)))
        return result

    def on_metadata_update(
        self, delta: MetadataDelta, image: MetadataImage, now_ms: float
    ) -> CoordinatorResult:
        """Topics have changed: the groups subscribed to them see that with their next heartbeat."""
        del now_ms
        topics = delta.topics_delta
        names = [change.name for change in topics.changed.values()]
        if any(change.created for change in topics.changed.values()):
            self._expressions.new_topics_offset = image.provenance.last_contained_offset
        names += [topic.name for topic in topics.deleted.values()]
        for name in names:
            self._topic_hashes.forget(name)
            for group_id in self._topic_index.get(name, ()):
                self._context.groups[group_id].request_metadata_refresh()
        return CoordinatorResult()

    def regular_expressions_resolved(
        self,
        command: ResolveRegularExpressions,
        resolved: Mapping[str, ResolvedRegularExpression] | None,
    ) -> CoordinatorResult:
        """The topics of a group's expressions have been looked up; None: that failed."""
        self._expressions.ended(command.group_id)
        group = self._context.groups.get(command.group_id)
        if group is None or group.kind != "consumer" or not resolved:
            return CoordinatorResult()
        records, names, has_changed = resolution_records(group, resolved)
        metadata_hash = self._topic_hashes.of_group(names, self._context.metadata())
        if records and (has_changed or metadata_hash != group.metadata_hash):
            group_epoch = group.group_epoch + 1
            records.append(group_epoch_record(group.group_id, group_epoch, metadata_hash))
            group.metadata_refreshed(group_epoch)
            self._context.count("consumer-group-rebalance")
        return CoordinatorResult(records=records)

    def on_timer(self, key: ConsumerTimer, now_ms: float) -> CoordinatorResult:
        """A session, or the time of a member for a step of a rebalance, is over."""
        if key.kind == "downgraded":
            return self._start_classic(key.group_id, now_ms)
        group = self._context.groups.get(key.group_id)
        if group is None or group.kind != "consumer":
            return CoordinatorResult()
        member = group.members.get(key.member_id)
        if member is None:
            return CoordinatorResult()
        if key.kind == "rebalance" and (
            member.state is not MemberState.UNREVOKED_PARTITIONS or member.member_epoch < 0
        ):
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
            metadata_hash = self._topic_hashes.of_group(names, self._context.metadata())
            result.records.append(
                group_epoch_record(group.group_id, group.group_epoch + 1, metadata_hash)
            )
            self._context.count("consumer-group-rebalance")
            result.timers += [
                CancelTimer(ConsumerTimer(kind, group.group_id, member.member_id))
                for member in members
                for kind in MEMBER_TIMERS
            ]
        self.classic_members.forget(group.group_id, [member.member_id for member in members])
        return result

    def _topic_id_of(self, name: str) -> UUID | None:
        topic = self._context.metadata().topics.topics_by_name.get(name)
        return None if topic is None else topic.topic_id

    def _consumer_groups(self) -> list[ConsumerGroup]:
        return [group for group in self._context.groups.values() if group.kind == "consumer"]


def describe(group: ConsumerGroup, image: MetadataImage, default_assignor: str) -> DescribedGroup:
    """The group with all its members; deleted topics are left out."""
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        error_message=None,
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
        member_type=CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[UUID, Iterable[int]], image: MetadataImage) -> Assignment:
    topics = image.topics.topics_by_id
    return Assignment(
        topic_partitions=[
            TopicPartitions(
                topic_id=topic_id, topic_name=topics[topic_id].name, partitions=sorted(indexes)
            )
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in topics
        ]
    )
