"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Owns: what these requests mean for a group and its offsets. Must not: know topics beyond what the
requests say; who may see which topic is decided before. Invariant: an offset is answered as
committed, or read, only when the record behind it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from moldau.broker.coordinator.core.result import (
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
    ReplyTo,
)
from moldau.broker.group.core.classic_group import ClassicGroup
from moldau.broker.group.core.errors import (
    group_write_error,
    offset_read_error,
    offset_write_error,
)
from moldau.broker.group.core.offset_store import OffsetStore, StoredOffset
from moldau.broker.group.core.records import NO_EXPIRY, offset_record, offset_tombstone
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from moldau.protocol.messages.p28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from moldau.protocol.messages.p47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from moldau.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.group.core.classic_groups import ClassicGroups
    from moldau.broker.group.core.settings import GroupSettings

FIRST_GROUP_NOT_FOUND_VERSION: Final = 9
"""OffsetCommit says from this version on that there is no such group; before, that the generation
is unknown."""

NO_OFFSET: Final = -1
NO_PARTITION: Final = -1


class OffsetRequests:
    """What clients do with committed offsets."""

    def __init__(
        self,
        groups: dict[str, Any],
        offsets: OffsetStore,
        classic: ClassicGroups,
        settings: GroupSettings,
        count: Callable[[str, int], None],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._classic = classic
        self._settings = settings
        self._count = count

    # -- commit ----------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, api_version: int, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Store offsets of topics that exist; `request.topics` have names and, if known, ids."""
        error = self._commit_error(request, api_version)
        if error is not ErrorCode.NONE:
            return CoordinatorResult.reply(reply_to, refused_commit(request, error))
        expire_timestamp_ms = NO_EXPIRY
        if request.retention_time_ms >= 0:
            expire_timestamp_ms = int(now_ms) + request.retention_time_ms
        records: list[CoordinatorRecord] = []
        response = OffsetCommitResponse(topics=[])
        for topic in request.topics:
            answered = OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=[]
            )
            response.topics.append(answered)
            for asked in topic.partitions:
                stored = _to_store(asked, now_ms, expire_timestamp_ms, topic.topic_id)
                written = self._record_of(request.group_id, topic.name, asked, stored, records)
                answered.partitions.append(
                    OffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=written
                    )
                )
        self._count("offset-commit", len(records))
        result = CoordinatorResult.reply_when_committed(
            reply_to,
            response,
            on_error=lambda error: refused_commit(request, offset_write_error(error)),
            records=records,
        )
        group = self._classic.get(request.group_id)
        if group is not None:
            self._classic.note_commit(group, request.member_id, result)
        return result

    def commit_transactional(
        self, request: TxnOffsetCommitRequest, api_version: int, reply_to: ReplyTo, now_ms: float
    ) -> CoordinatorResult:
        """Store offsets that count when the producer's transaction commits."""
        error = self._transactional_error(request, api_version)
        if error is not ErrorCode.NONE:
            return CoordinatorResult.reply(reply_to, refused_transactional(request, error))
        records: list[CoordinatorRecord] = []
        response = TxnOffsetCommitResponse(topics=[])
        for topic in request.topics:
            answered = TxnOffsetCommitResponseTopic(name=topic.name, partitions=[])
            response.topics.append(answered)
            for asked in topic.partitions:
                stored = _to_store(asked, now_ms, NO_EXPIRY, ZERO_UUID)
                written = self._record_of(request.group_id, topic.name, asked, stored, records)
                answered.partitions.append(
                    TxnOffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=written
                    )
                )
        self._count("offset-commit", len(records))
        return CoordinatorResult.reply_when_committed(
            reply_to,
            response,
            on_error=lambda error: refused_transactional(request, offset_write_error(error)),
            records=records,
            producer=Producer(request.producer_id, request.producer_epoch) if records else None,
        )

    def _record_of(
        self,
        group_id: str,
        topic: str,
        asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
        stored: StoredOffset,
        records: list[CoordinatorRecord],
    ) -> ErrorCode:
        if self._is_metadata_too_large(asked):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        records.append(offset_record(group_id, topic, asked.partition_index, stored))
        return ErrorCode.NONE

    def _is_metadata_too_large(
        self, asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition
    ) -> bool:
        # Characters, whatever the key is called: so does Kafka.
        return len(asked.committed_metadata or "") > self._settings.max_metadata_bytes

    def _commit_error(self, request: OffsetCommitRequest, api_version: int) -> ErrorCode:
        group = self._groups.get(request.group_id)
        epoch = request.generation_id_or_member_epoch
        if group is None:
            if epoch < 0:
                return ErrorCode.NONE  # replay makes a group for these offsets alone
            if api_version >= FIRST_GROUP_NOT_FOUND_VERSION:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return ErrorCode.ILLEGAL_GENERATION
        error: ErrorCode = group.validate_offset_commit(
            request.member_id,
            request.group_instance_id,
            epoch,
            is_transactional=False,
            api_version=api_version,
        )
        if error is not ErrorCode.NONE or isinstance(group, ClassicGroup):
            return error
        for topic in request.topics:
            for asked in topic.partitions:
                if self._is_metadata_too_large(asked):
                    continue  # not stored, whichever epoch it is from
                error = group.partition_commit_error(
                    request.member_id,
                    epoch,
                    topic.topic_id,
                    topic.name,
                    asked.partition_index,
                    is_transactional=False,
                )
                if error is not ErrorCode.NONE:
                    return error
        return ErrorCode.NONE

    def _transactional_error(self, request: TxnOffsetCommitRequest, api_version: int) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(request.group_id)
        generation = request.generation_id
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        error: ErrorCode = group.validate_offset_commit(
            request.member_id,
            request.group_instance_id,
            generation,
            is_transactional=True,
            api_version=api_version,
        )
        if error is ErrorCode.NONE and not isinstance(group, ClassicGroup):
            for topic in request.topics:
                for asked in topic.partitions:
                    if self._is_metadata_too_large(asked):
                        continue
                    error = error or group.partition_commit_error(
                        request.member_id,
                        generation,
                        ZERO_UUID,
                        topic.name,
                        asked.partition_index,
                        is_transactional=True,
                    )
        # This API's clients do not know the new protocol's code.
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error

    # -- fetch -----------------------------------------------------------------------------------

    def fetch(
        self,
        request: OffsetFetchRequestGroup,
        reply_to: ReplyTo,
        *,
        require_stable: bool,
        is_confirmed: bool = True,
    ) -> CoordinatorResult:
        """Read offsets: those asked for, or all when `topics` is None. Answers
        OffsetFetchResponseGroup; an open transaction makes an offset UNSTABLE_OFFSET_COMMIT where
        `require_stable` asks for it (KIP-447).

        Not `is_confirmed`, this may be a former coordinator that does not know it yet:

        1. it is cut off from the controllers, which put another in its place;
        2. a transaction commits offsets there;
        3. a client that still comes here would be told the offsets before it.

        So a record that says nothing is written first, and the answer waits for its commit, which a
        former leader does not reach.
        """
        group = self._groups.get(request.group_id)
        error = ErrorCode.NONE
        if group is not None:
            error = group.validate_offset_fetch(request.member_id, request.member_epoch)
        if error not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return CoordinatorResult.reply(reply_to, refused_fetch(request, error))
        if request.topics is None:
            topics = [
                self._fetch_topic(request.group_id, name, ZERO_UUID, list(found), require_stable)
                for name, found in self._offsets.topics(request.group_id).items()
            ]
        else:
            topics = [
                self._fetch_topic(
                    request.group_id,
                    topic.name,
                    topic.topic_id,
                    topic.partition_indexes,
                    require_stable,
                )
                for topic in request.topics
            ]
        return CoordinatorResult.reply_when_committed(
            reply_to,
            OffsetFetchResponseGroup(group_id=request.group_id, topics=topics),
            on_error=lambda error: refused_fetch(request, offset_read_error(error)),
            records=[] if is_confirmed else [offset_tombstone("", "", NO_PARTITION)],
        )

    def _fetch_topic(
        self,
        group_id: str,
        topic: str,
        topic_id: UUID,
        partitions: list[int],
        require_stable: bool,
    ) -> OffsetFetchResponseTopics:
        answered = OffsetFetchResponseTopics(name=topic, topic_id=topic_id, partitions=[])
        for partition in partitions:
            if require_stable and self._offsets.is_pending(group_id, topic, partition):
                slot = no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            else:
                stored = self._offsets.get(group_id, topic, partition)
                if stored is None or _is_of_another_topic(stored.topic_id, topic_id):
                    slot = no_offset(partition)
                else:
                    slot = OffsetFetchResponsePartitions(
                        partition_index=partition,
                        committed_offset=stored.offset,
                        committed_leader_epoch=stored.leader_epoch,
                        metadata=stored.metadata,
                    )
            answered.partitions.append(slot)
        return answered

    # -- delete ----------------------------------------------------------------------------------

    def delete(self, request: OffsetDeleteRequest, reply_to: ReplyTo) -> CoordinatorResult:
        """Remove offsets of topics that no member is subscribed to (KIP-496)."""
        group = self._groups.get(request.group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND
        if not request.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        elif group is not None:
            error = group.validate_offset_delete()
        if error is not ErrorCode.NONE:
            return CoordinatorResult.reply(reply_to, OffsetDeleteResponse(error_code=error))
        assert group is not None
        records: list[CoordinatorRecord] = []
        response = OffsetDeleteResponse(topics=[])
        for topic in request.topics:
            told = ErrorCode.NONE
            if group.is_subscribed_to(topic.name):
                told = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            answered = OffsetDeleteResponseTopic(name=topic.name, partitions=[])
            response.topics.append(answered)
            for asked in topic.partitions:
                partition = asked.partition_index
                answered.partitions.append(
                    OffsetDeleteResponsePartition(partition_index=partition, error_code=told)
                )
                if told is ErrorCode.NONE and self._is_there(
                    request.group_id, topic.name, partition
                ):
                    records.append(offset_tombstone(request.group_id, topic.name, partition))
        self._count("offset-deletion", len(records))
        return CoordinatorResult.reply_when_committed(
            reply_to,
            response,
            on_error=lambda error: OffsetDeleteResponse(error_code=group_write_error(error)),
            records=records,
        )

    def _is_there(self, group_id: str, topic: str, partition: int) -> bool:
        store = self._offsets
        return store.get(group_id, topic, partition) is not None or store.is_pending(
            group_id, topic, partition
        )


def _to_store(
    asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    now_ms: float,
    expire_timestamp_ms: int,
    topic_id: UUID,
) -> StoredOffset:
    return StoredOffset(
        asked.committed_offset,
        asked.committed_leader_epoch,
        asked.committed_metadata or "",
        int(now_ms),
        expire_timestamp_ms,
        topic_id,
    )


def _is_of_another_topic(stored_id: UUID, asked_id: UUID) -> bool:
    """Whether the offset belongs to a topic of the same name that has been deleted since."""
    return ZERO_UUID not in (stored_id, asked_id) and stored_id != asked_id


def no_offset(partition: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    """What is said about a partition without a committed offset."""
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_OFFSET,
        metadata="",
        error_code=error,
    )


def refused_commit(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=error
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refused_transactional(
    request: TxnOffsetCommitRequest, error: ErrorCode
) -> TxnOffsetCommitResponse:
    """The same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=error
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refused_fetch(request: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
    """The error for the whole group."""
    return OffsetFetchResponseGroup(group_id=request.group_id, error_code=error, topics=[])
