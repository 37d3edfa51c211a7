"""The state machine on one partition of `__consumer_offsets`: its groups and their offsets.

Owns the table of groups, the way of every record, request and timer to its part (by the record's
key, by the kind of the group), and DescribeGroups, ListGroups and DeleteGroups. Must not know who
may see what. Invariant: a group that has stored offsets is in the table, of whatever kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import (
    Answerable,
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
    Reply,
    write_error,
)
from moldau.broker.coordinator.group.core.classic_group import (
    NO_TIMESTAMP_MS,
    ClassicGroup,
    ClassicGroupState,
    ClassicTimer,
)
from moldau.broker.coordinator.group.core.classic_groups import ClassicGroups
from moldau.broker.coordinator.group.core.classic_members import ClassicMembers
from moldau.broker.coordinator.group.core.consumer_group import (
    ConsumerGroup,
    GroupContext,
    RecordKey,
)
from moldau.broker.coordinator.group.core.consumer_groups import ConsumerGroups
from moldau.broker.coordinator.group.core.context import (
    GROUP_BYTES,
    ConsumerTimer,
    refused,
)
from moldau.broker.coordinator.group.core.joining import Joining
from moldau.broker.coordinator.group.core.offset_removal import (
    MAX_RECORDS_AT_ONCE,
    OffsetRemoval,
)
from moldau.broker.coordinator.group.core.offset_requests import OffsetRequests
from moldau.broker.coordinator.group.core.offset_store import PartitionKey, StoredOffset
from moldau.protocol.coordinator_records.classic_groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p15_describe_groups import DescribedGroup, DescribedGroupMember
from moldau.protocol.messages.p16_list_groups import ListedGroup
from moldau.protocol.schema import Message
from moldau.protocol.types import ZERO_UUID
from moldau.text import short_message

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.metadata.image import MetadataDelta, MetadataImage


FIRST_NOT_FOUND_VERSION: Final = 6
"""DescribeGroups calls a missing group an error from this version on; before, a dead one."""


_OFFSET_KEYS: Final = (OffsetCommitKey, LegacyOffsetCommitKey)


class GroupState:
    """Groups and offsets of one partition; a `CoordinatorState`. `deleted_topics` gives the topics
    that were deleted while the partition was being loaded.
    """

    def __init__(self, context: GroupContext, deleted_topics: Callable[[], frozenset[str]]) -> None:
        self._metadata = context.metadata
        self._outlived: set[PartitionKey] = set()
        """Partitions with an offset of a topic that no longer exists, as the log is replayed."""
        self._deleted_topics = deleted_topics
        self.groups = context.groups
        self.offsets = context.offsets
        self._memory = context.memory
        self._end_offset = 0
        self._is_live = False
        self.classic = ClassicGroups(context)
        self.consumer_groups = ConsumerGroups(
            context,
            begin_migration=self.classic.begin_migration,
            start_classic=self.classic.start_classic,
        )
        self.offset_requests = OffsetRequests(context, self.classic)
        self.removal = OffsetRemoval(context, self.classic.discard)

    def join_group(self, joining: Joining, now_ms: float) -> CoordinatorResult:
        group = self.groups.get(joining.request.group_id)
        is_first = group is None or (isinstance(group, ConsumerGroup) and group.is_empty)
        error = self.classic.join_error(joining.request, is_first=is_first)
        if error is ErrorCode.NONE and not self._has_memory(group, joining):
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
        if error is not ErrorCode.NONE:
            return joining.refused(error)
        if not isinstance(group, ConsumerGroup):
            result = self.classic.join_group(joining, now_ms)
            self._weigh(joining.request.group_id)
            return result
        if not is_first:
            return self.consumer_groups.classic_members.join_group(joining, now_ms)

        # An empty consumer group makes room for a classic one (KIP-848); then the join begins.
        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            if error is ErrorCode.NONE:
                return self.join_group(joining, now_ms)
            return joining.refused(write_error(error))

        return CoordinatorResult(records=group.tombstones(), after=after)

    def _has_memory(self, group: ClassicGroup | ConsumerGroup | None, joining: Joining) -> bool:
        """Whether the principal may have the coordinator keep what the member brings."""
        request = joining.request
        growth_bytes = joining.size_bytes + (0 if group is not None else GROUP_BYTES)
        if group is not None:
            growth_bytes -= group.member_bytes(request.member_id, request.group_instance_id)
        return self._memory.may_grow(request.group_id, joining.client.principal, growth_bytes)

    def _weigh(self, group_id: str) -> None:
        """Note what a group and its offsets take now."""
        group = self.groups.get(group_id)
        own_bytes = 0 if group is None else group.size_bytes
        self._memory.keep(group_id, own_bytes + self.offsets.size_bytes(group_id))

    def _weigh_offsets(self) -> None:
        changed = self.offsets.changed
        while changed:
            self._weigh(changed.pop())

    def protocol_of(self, group_id: str) -> ClassicGroups | ClassicMembers:
        """What serves SyncGroup, Heartbeat and LeaveGroup of that group."""
        is_consumer = isinstance(self.groups.get(group_id), ConsumerGroup)
        return self.consumer_groups.classic_members if is_consumer else self.classic

    # -- administration --------------------------------------------------------------------------

    def describe_group(
        self, group_id: str, api_version: int, reply_to: Answerable
    ) -> CoordinatorResult:
        """Describe a classic group; answers DescribedGroup."""
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            described = _described(group)
        else:
            reason = "not found" if group is None else "is not a classic group"
            described = _not_found(group_id, api_version, f"Group {group_id} {reason}.")
        return CoordinatorResult.reply_when_committed(
            reply_to,
            described,
            on_error=lambda error: DescribedGroup(group_id=group_id, error_code=write_error(error)),
        )

    def list_groups(
        self, states: frozenset[str], types: frozenset[str], reply_to: Answerable
    ) -> CoordinatorResult:
        """List groups in any of these states and of any of these kinds, both in lower case; an
        empty set is every one. Answers a list of ListedGroup, or an ErrorCode.
        """
        listed = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state_name,
                group_type=group.kind,
            )
            for group in self.groups.values()
            if (not states or group.state_name.lower() in states)
            and (not types or group.kind in types)
        ]
        return CoordinatorResult.reply_when_committed(reply_to, listed, on_error=write_error)

    def delete_group(
        self, group_id: str, reply_to: Answerable, max_count: int = MAX_RECORDS_AT_ONCE
    ) -> CoordinatorResult:
        """Delete a group and its offsets, at most `max_count` at a time; answers an ErrorCode."""
        group = self.groups.get(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.validate_delete()
        if group is None or error is not ErrorCode.NONE:
            return CoordinatorResult(replies=[refused(reply_to, error, lambda error: error)])
        records = self.removal.next_tombstones(group_id, max_count)
        if records:
            # Offsets first, in portions; a commit in between keeps the group alive.
            def after(error: ErrorCode, _now_ms: float) -> CoordinatorResult:
                if error is ErrorCode.NONE:
                    if group_id in self.groups:
                        return self.delete_group(group_id, reply_to, max_count)
                    # Expiry or another DeleteGroups has written the group's tombstone since; the
                    # tombstone may not be committed yet.
                    return CoordinatorResult.reply_when_committed(
                        reply_to, ErrorCode.NONE, on_error=write_error
                    )
                if error is ErrorCode.MESSAGE_TOO_LARGE and len(records) > 1:
                    return self.delete_group(group_id, reply_to, len(records) // 2)
                return CoordinatorResult.reply(reply_to, write_error(error))

            return CoordinatorResult(records=records, after=after)
        result = CoordinatorResult.reply_when_committed(
            reply_to, ErrorCode.NONE, on_error=write_error, records=group.tombstones()
        )
        if isinstance(group, ClassicGroup):
            group.cancel_timers(result)
        return result

    # -- a CoordinatorState ----------------------------------------------------------------------

    def replay(
        self, record: CoordinatorRecord, record_offset: int, producer: Producer | None
    ) -> None:
        self._end_offset = record_offset + 1
        key, value, _, _, content = record
        if content is not None:
            where, stored = content
            self._put_offset(where, stored, record_offset, producer)
        elif isinstance(key, _OFFSET_KEYS):
            where = PartitionKey(key.group, key.topic, key.partition)
            if value is None:
                self.offsets.remove(where)
                self._weigh_offsets()
            else:
                self._put_offset(where, _stored(value), record_offset, producer)
        elif isinstance(key, GroupMetadataKey | RecordKey):
            if isinstance(key, GroupMetadataKey):
                assert value is None or isinstance(value, GroupMetadataValue)
                group_id = key.group
                self.classic.replay(group_id, value, is_live=self._is_live)
            else:
                group_id = key.group_id
                self.consumer_groups.replay(key, record)
            if value is None and self.offsets.has_any(group_id):
                self._keep(group_id)
            self._weigh(group_id)

    def _put_offset(
        self,
        where: PartitionKey,
        stored: StoredOffset,
        record_offset: int,
        producer: Producer | None,
    ) -> None:
        stored.log_offset = record_offset
        self.offsets.put(where, stored, None if producer is None else producer.producer_id)
        self._keep(where.group_id)
        if self.offsets.changed:
            self._weigh_offsets()
        if not self._is_live and self._is_of_deleted_topic(where.topic, stored.topic_id):
            self._outlived.add(where)

    def _is_of_deleted_topic(self, topic: str, topic_id: UUID) -> bool:
        """Whether an offset with a topic id has outlived that topic. Metadata are not behind the
        log here: the broker that wrote the offset knew the topic before this one began to lead.
        """
        known = self._metadata().topics.topics_by_name.get(topic)
        return topic_id not in (ZERO_UUID, None if known is None else known.topic_id)

    def _keep(self, group_id: str) -> None:
        """Offsets always have a group, if only a simple one without members."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id, NO_TIMESTAMP_MS)

    def replay_end_marker(self, producer: Producer, *, is_commit: bool) -> None:
        self.offsets.end_transaction(producer.producer_id, is_commit=is_commit)
        self._weigh_offsets()

    def keys(self) -> Iterable[str]:
        return self.groups

    def loaded(self, now_ms: float) -> CoordinatorResult:
        self._is_live = True
        result = CoordinatorResult(timers=[self.removal.next_round()])
        result.merge(self.classic.loaded(now_ms))
        result.merge(self.consumer_groups.loaded())
        deleted = self._deleted_topics()
        if deleted:
            result.merge(self.removal.topics_deleted(deleted, self._end_offset))
        if self._outlived:
            # Topics were deleted while their groups had no coordinator.
            outlived = []
            for key in self._outlived:
                stored = self.offsets.get(*key)
                if stored is not None and self._is_of_deleted_topic(key.topic, stored.topic_id):
                    outlived.append(key)
            self._outlived.clear()
            result.merge(self.removal.remove_outlived(outlived))
        return result

    def on_timer(self, key: Hashable, now_ms: float) -> CoordinatorResult:
        if isinstance(key, ClassicTimer):
            result = self.classic.on_timer(key, now_ms)
            self._weigh(key.group_id)
            return result
        if isinstance(key, str):
            return self.removal.on_timer(key, now_ms)
        assert isinstance(key, ConsumerTimer), f"unknown timer {key!r}"
        return self.consumer_groups.on_timer(key, now_ms)

    def unloaded(self) -> list[Reply]:
        self._memory.forget_all()
        return self.classic.unloaded()

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> CoordinatorResult:
        """The cluster has changed: tell consumer groups, and drop the offsets of deleted topics.

        A topic that was deleted and created again under its name loses its offsets too.
        """
        self.consumer_groups.on_metadata_update(delta, image)
        deleted = frozenset(topic.name for topic in delta.topics_delta.deleted.values())
        if not deleted:
            return CoordinatorResult()
        return self.removal.topics_deleted(deleted, self._end_offset)


def _stored(value: Message) -> StoredOffset:
    if isinstance(value, LegacyOffsetCommitValue):
        return StoredOffset(
            value.offset, metadata=value.metadata, commit_timestamp_ms=value.commit_timestamp
        )
    assert isinstance(value, OffsetCommitValue)
    return StoredOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )


def _not_found(group_id: str, api_version: int, message: str) -> DescribedGroup:
    is_error = api_version >= FIRST_NOT_FOUND_VERSION
    return DescribedGroup(
        group_id=group_id,
        group_state=ClassicGroupState.DEAD.value,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
        error_message=short_message(message) if is_error else None,
    )


def _described(group: ClassicGroup) -> DescribedGroup:
    is_stable = group.state is ClassicGroupState.STABLE
    protocol = group.protocol_name or ""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type,
        protocol_data=protocol if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
