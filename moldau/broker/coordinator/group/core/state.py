"""The state machine on one partition of `__consumer_offsets`: its groups and their offsets.

Owns: the table of groups, and the way of every record, request and timer to the part it is for: by
the record's key, by the kind of the group. Must not: decide for any of them. Invariant: a group
that offsets are stored for is in the table, of whatever kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.coordinator.core.result import (
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
    Reply,
    ReplyTo,
)
from moldau.broker.coordinator.group.core.classic_answers import ClassicTimer, join_error
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.classic_groups import ClassicGroups
from moldau.broker.coordinator.group.core.consumer_groups import ConsumerGroups
from moldau.broker.coordinator.group.core.context import ClientInfo, ConsumerTimer, GroupContext
from moldau.broker.coordinator.group.core.errors import group_write_error
from moldau.broker.coordinator.group.core.group_requests import GroupRequests
from moldau.broker.coordinator.group.core.joining_protocols import JoiningProtocols
from moldau.broker.coordinator.group.core.offset_removal import OffsetRemoval, OffsetsTimer
from moldau.broker.coordinator.group.core.offset_requests import OffsetRequests
from moldau.broker.coordinator.group.core.offset_store import (
    OffsetStore,
    PartitionKey,
    StoredOffset,
)
from moldau.broker.coordinator.group.core.results import merge, whatever_happens
from moldau.protocol.coordinator_records.classic_groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.coordinator.group.core.consumer_settings import ConsumerGroupSettings
    from moldau.broker.coordinator.group.core.settings import GroupSettings
    from moldau.metadata.image import MetadataDelta, MetadataImage
    from moldau.protocol.messages.p11_join_group import JoinGroupRequest
    from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
    from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberResponse
    from moldau.protocol.messages.p14_sync_group import SyncGroupRequest

CONSUMER: Final = "consumer"
_OFFSET_KEYS: Final = (OffsetCommitKey, LegacyOffsetCommitKey)


def _not_counted(_name: str, _amount: int) -> None:
    return


class GroupState:
    """Groups and offsets of one partition; a `CoordinatorState`.

    Args:
        metadata: the newest image of the cluster.
        random_id: what makes member ids unique.
        count: counts events for the metrics: a name, and how many.
        deleted_topics: topics that were deleted while the partition was being loaded.
    """

    def __init__(
        self,
        partition_index: int,
        *,
        settings: GroupSettings,
        consumer_settings: ConsumerGroupSettings,
        metadata: Callable[[], MetadataImage],
        random_id: Callable[[], str],
        count: Callable[[str, int], None] = _not_counted,
        deleted_topics: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self.partition_index = partition_index
        self._metadata = metadata
        self._outlived: set[PartitionKey] = set()
        """Partitions with an offset of a topic that is not there, as the log is replayed."""
        self._deleted_topics = deleted_topics
        self.groups: dict[str, Any] = {}
        self.offsets = OffsetStore()
        self._replayed_count = 0
        self._end_offset = 0
        self._is_live = False

        def count_one(name: str) -> None:
            count(name, 1)

        self.classic = ClassicGroups(
            self.groups,
            settings,
            random_id=random_id,
            has_offsets=self.offsets.has_any,
            replayed_count=lambda: self._replayed_count,
            count=count_one,
        )
        self.consumer_groups = ConsumerGroups(
            GroupContext(
                groups=self.groups,
                consumer_settings=consumer_settings,
                metadata=metadata,
                random_id=random_id,
                classic_max_group_size=settings.max_group_size,
                count=count_one,
            ),
            begin_migration=self.classic.begin_migration,
            start_classic=self.classic.start_classic,
        )
        self.offset_requests = OffsetRequests(
            self.groups, self.offsets, self.classic, settings, count
        )
        self.removal = OffsetRemoval(
            self.groups, self.offsets, settings, self.classic.discard, count
        )
        self.group_requests = GroupRequests(self.groups, self.removal)

    # -- the classic protocol --------------------------------------------------------------------

    def join_group(
        self,
        request: JoinGroupRequest,
        protocols: JoiningProtocols,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
        now_ms: float,
    ) -> CoordinatorResult:
        """Answers JoinGroupResponse; `protocols` are those of the request."""
        group = self.groups.get(request.group_id)
        is_consumer = group is not None and group.kind == CONSUMER
        is_first = group is None or (is_consumer and group.is_empty)
        error = self.classic.join_error(request, is_first=is_first)
        if error is not ErrorCode.NONE:
            refused = join_error(error, request.member_id, api_version)
            return CoordinatorResult.reply(reply_to, refused)
        if not is_consumer:
            return self.classic.join_group(
                request, protocols, api_version, client, reply_to, now_ms
            )
        if not is_first:
            return self.consumer_groups.join_group(
                request, protocols, api_version, client, reply_to, now_ms
            )
        return self._make_classic(group, request, protocols, api_version, client, reply_to)

    def _make_classic(
        self,
        group: Any,
        request: JoinGroupRequest,
        protocols: JoiningProtocols,
        api_version: int,
        client: ClientInfo,
        reply_to: ReplyTo,
    ) -> CoordinatorResult:
        """An empty consumer group makes room for a classic one (KIP-848); then the join begins."""

        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            if error is ErrorCode.NONE:
                return self.join_group(request, protocols, api_version, client, reply_to, now_ms)
            told = group_write_error(error)
            return CoordinatorResult.reply(
                reply_to, join_error(told, request.member_id, api_version)
            )

        return CoordinatorResult(records=group.tombstones(), after=after)

    def sync_group(
        self, request: SyncGroupRequest, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Answers SyncGroupResponse."""
        return self._for(request.group_id).sync_group(request, reply_to, now_ms)

    def heartbeat(
        self, request: HeartbeatRequest, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Answers HeartbeatResponse."""
        return self._for(request.group_id).heartbeat(request, reply_to, now_ms)

    def leave_group(
        self,
        request: LeaveGroupRequest,
        reply_to: ReplyTo,
        now_ms: float,
        answers: list[MemberResponse],
    ) -> CoordinatorResult:
        """Answers LeaveGroupResponse in the form of version 3 and later.

        Args:
            answers: one for each member of the request, which get their error
                codes here.
        """
        group = self.groups.get(request.group_id)
        if group is not None and group.kind == CONSUMER:
            return self.consumer_groups.leave_group(request, reply_to, now_ms, answers)
        return self.classic.leave_group(request, reply_to, now_ms, answers)

    def _for(self, group_id: str) -> ClassicGroups | ConsumerGroups:
        group = self.groups.get(group_id)
        return (
            self.consumer_groups if group is not None and group.kind == CONSUMER else self.classic
        )

    # -- a CoordinatorState ----------------------------------------------------------------------

    def replay(
        self, record: CoordinatorRecord, record_offset: int, producer: Producer | None
    ) -> None:
        """Take in a record of the log."""
        self._replayed_count += 1
        self._end_offset = record_offset + 1
        key, value, _, _, content = record
        if content is not None:
            where, stored = content
            self._put_offset(where, stored, record_offset, producer)
        elif isinstance(key, _OFFSET_KEYS):
            where = PartitionKey(key.group, key.topic, key.partition)
            if value is None:
                self.offsets.remove(where)
            else:
                self._put_offset(where, _stored(value), record_offset, producer)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self.classic.replay(key.group, value, is_live=self._is_live)
            if value is None and self.offsets.has_any(key.group):
                self._keep(key.group)
        else:
            self.consumer_groups.replay(record)
            group_id = key.group_id  # type: ignore[attr-defined]
            if value is None and self.offsets.has_any(group_id):
                self._keep(group_id)

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
        if not self._is_live and self._is_of_deleted_topic(where.topic, stored.topic_id):
            self._outlived.add(where)

    def _is_of_deleted_topic(self, topic: str, topic_id: UUID) -> bool:
        """Whether an offset that says of which topic it is has outlived it. Metadata are not behind
        the log here: the broker that wrote the offset knew the topic before this one began to lead.
        """
        known = self._metadata().topics.topics_by_name.get(topic)
        return topic_id not in (ZERO_UUID, None if known is None else known.topic_id)

    def _remove_outlived(self) -> CoordinatorResult:
        """Topics were deleted while their groups had no coordinator."""
        outlived = []
        for key in self._outlived:
            stored = self.offsets.get(*key)
            if stored is not None and self._is_of_deleted_topic(key.topic, stored.topic_id):
                outlived.append(key)
        self._outlived.clear()
        return self.removal.remove_outlived(outlived)

    def _keep(self, group_id: str) -> None:
        """Offsets always have a group, if only a simple one without members."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id, -1)

    def replay_end_marker(self, producer: Producer, *, is_commit: bool) -> None:
        """A transaction has ended: its offsets count now, or never did."""
        self._replayed_count += 1
        self.offsets.end_transaction(producer.producer_id, is_commit=is_commit)

    def keys(self) -> Iterable[str]:
        """As the port says."""
        return self.groups

    def loaded(self, now_ms: float) -> CoordinatorResult:
        """Requests will come from now on."""
        self._is_live = True
        result = self.removal.loaded()
        merge(result, self.classic.loaded(now_ms))
        merge(result, self.consumer_groups.loaded(now_ms))
        deleted = self._deleted_topics()
        if deleted:
            merge(result, self.removal.topics_deleted(deleted, self._end_offset))
        if self._outlived:
            merge(result, self._remove_outlived())
        return whatever_happens(result, lambda: self._replayed_count)

    def on_timer(self, key: Hashable, now_ms: float) -> CoordinatorResult:
        """A timer has run out."""
        if isinstance(key, ClassicTimer):
            return self.classic.on_timer(key, now_ms)
        if isinstance(key, OffsetsTimer):
            return self.removal.on_timer(key, now_ms)
        assert isinstance(key, ConsumerTimer), f"nobody's timer: {key!r}"
        return self.consumer_groups.on_timer(key, now_ms)

    def unloaded(self) -> list[Reply]:
        """Leadership is lost."""
        return self.classic.unloaded()

    # -- metadata --------------------------------------------------------------------------------

    def on_metadata_update(
        self, delta: MetadataDelta, image: MetadataImage, now_ms: float
    ) -> CoordinatorResult:
        """The cluster has changed: tell those who follow topics, and drop offsets of deleted ones.

        A topic that was deleted and created again under its name loses its offsets too.
        """
        result = self.consumer_groups.on_metadata_update(delta, image, now_ms)
        deleted = frozenset(topic.name for topic in delta.topics_delta.deleted.values())
        if deleted:
            merge(result, self.removal.topics_deleted(deleted, self._end_offset))
        return whatever_happens(result, lambda: self._replayed_count)


def _stored(value: Any) -> StoredOffset:
    """What a record of an offset says."""
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
