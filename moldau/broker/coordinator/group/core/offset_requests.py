"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Owns what these requests mean for a group and its offsets. Must not know topics beyond what the
requests say; permissions are checked before. The records and the answer of a commit are prepared
and encoded one partition after the other, before the operation and from the request alone, so that
a commit of very many partitions leaves turns to others. Invariant: an offset is answered as
committed, or read, only when the record behind it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from moldau.broker.coordinator.core.result import (
    Answerable,
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
    Reply,
    write_error,
)
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.context import (
    GROUP_BYTES,
    offset_read_error,
    offset_write_error,
    refused,
)
from moldau.broker.coordinator.group.core.offset_store import (
    NO_EXPIRY,
    PartitionKey,
    StoredOffset,
    offset_bytes,
    offset_record,
    offset_tombstone,
)
from moldau.metadata.steps import Steps, at_once
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.messages import p08_offset_commit as p08
from moldau.protocol.messages import p28_txn_offset_commit as p28
from moldau.protocol.messages import p47_offset_delete as p47
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from moldau.protocol.records import Record
from moldau.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.core.classic_groups import ClassicGroups
    from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup, GroupContext


CommitResponse = TypeVar("CommitResponse", p08.OffsetCommitResponse, p28.TxnOffsetCommitResponse)
CommitRequest = p08.OffsetCommitRequest | p28.TxnOffsetCommitRequest
_AskedPartition = p08.OffsetCommitRequestPartition | p28.TxnOffsetCommitRequestPartition


class CommitLimits(NamedTuple):
    """The broker's limits: characters of an offset's metadata, and bytes of a batch in the log."""

    max_metadata_length: int
    max_batch_bytes: int


@dataclass(slots=True, eq=False)
class PreparedCommit(Generic[CommitResponse]):
    """The records of a commit, and the answer for when they are committed."""

    response: CommitResponse
    _limits: CommitLimits
    group_id: str
    principal: str
    records: list[CoordinatorRecord] = field(default_factory=list)
    is_too_large: bool = False
    """Whether no batch can hold the records, which are dropped then."""
    _size_bytes: int = 0

    def add(
        self,
        where: PartitionKey,
        asked: _AskedPartition,
        told: p08.OffsetCommitResponsePartition | p28.TxnOffsetCommitResponsePartition,
        now_ms: float,
        expire_timestamp_ms: int = NO_EXPIRY,
        topic_id: UUID = ZERO_UUID,
    ) -> None:
        """Encode and keep the record of one more partition, or refuse it in `told`."""
        if is_metadata_too_large(asked, self._limits.max_metadata_length):
            told.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            return
        if self.is_too_large:
            return
        stored = StoredOffset(
            asked.committed_offset,
            asked.committed_leader_epoch,
            asked.committed_metadata or "",
            int(now_ms),
            expire_timestamp_ms,
            topic_id,
        )
        record = offset_record(where, stored)
        assert record.value is not None
        try:
            row = Record(
                0,
                record.value.commit_timestamp,  # type: ignore[attr-defined]
                CONSUMER_OFFSETS.encode_key(record.key),
                CONSUMER_OFFSETS.encode_value(record.value, record.value_version),
            )
        except LocalProtocolError:
            self.records.append(record)  # its append reports the error
            return
        self.records.append(record._replace(row=row))
        self._size_bytes += len(row.key or b"") + len(row.value or b"")
        if self._size_bytes > self._limits.max_batch_bytes:
            self.is_too_large = True
            self.records.clear()

    def refused(self, error: ErrorCode) -> CommitResponse:
        for topic in self.response.topics:
            for told in topic.partitions:
                told.error_code = error
        return self.response


def prepare_commit(
    request: p08.OffsetCommitRequest, limits: CommitLimits, now_ms: float, principal: str = ""
) -> Steps[PreparedCommit[p08.OffsetCommitResponse]]:
    """Prepare an OffsetCommit whose topics have names and, if known, ids; a step per partition."""
    expire_timestamp_ms = NO_EXPIRY
    if request.retention_time_ms >= 0:
        expire_timestamp_ms = int(now_ms) + request.retention_time_ms
    prepared = PreparedCommit(p08.OffsetCommitResponse(), limits, request.group_id, principal)
    for topic in request.topics:
        answered = p08.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        prepared.response.topics.append(answered)
        for asked in topic.partitions:
            told = p08.OffsetCommitResponsePartition(partition_index=asked.partition_index)
            answered.partitions.append(told)
            where = PartitionKey(request.group_id, topic.name, asked.partition_index)
            prepared.add(where, asked, told, now_ms, expire_timestamp_ms, topic.topic_id)
            yield
    return prepared


def prepare_transactional(
    request: p28.TxnOffsetCommitRequest, limits: CommitLimits, now_ms: float, principal: str = ""
) -> Steps[PreparedCommit[p28.TxnOffsetCommitResponse]]:
    """Prepare a TxnOffsetCommit; a step for each partition."""
    prepared = PreparedCommit(p28.TxnOffsetCommitResponse(), limits, request.group_id, principal)
    for topic in request.topics:
        answered = p28.TxnOffsetCommitResponseTopic(name=topic.name)
        prepared.response.topics.append(answered)
        for asked in topic.partitions:
            told = p28.TxnOffsetCommitResponsePartition(partition_index=asked.partition_index)
            answered.partitions.append(told)
            where = PartitionKey(request.group_id, topic.name, asked.partition_index)
            prepared.add(where, asked, told, now_ms)
            yield
    return prepared


def is_metadata_too_large(asked: _AskedPartition, max_length: int) -> bool:
    """Whether `offset.metadata.max.bytes` forbids the commit. It counts characters, as in Kafka."""
    return len(asked.committed_metadata or "") > max_length


FIRST_GROUP_NOT_FOUND_VERSION: Final = 9
"""From this version on OffsetCommit to a missing group is GROUP_ID_NOT_FOUND; before,
ILLEGAL_GENERATION."""

MAX_READ_AT_ONCE: Final = 1000
"""The answer for more partitions is made in steps."""

NO_OFFSET: Final = -1


@dataclass(slots=True, eq=False)
class OffsetRequests:
    """What clients do with committed offsets."""

    _context: GroupContext
    _classic: ClassicGroups

    def commit(
        self,
        request: CommitRequest,
        prepared: PreparedCommit[CommitResponse],
        api_version: int,
        reply_to: Answerable,
    ) -> CoordinatorResult:
        """Store offsets of topics that exist; `request.topics` have names and, if known, ids. Those
        of a TxnOffsetCommit count when the producer's transaction commits.
        """
        error = self._commit_error(request, api_version)
        if error is ErrorCode.NONE and (prepared.is_too_large or not self._has_memory(prepared)):
            error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        if error is not ErrorCode.NONE:
            return CoordinatorResult(
                replies=[refused(reply_to, error, prepared.refused, offset_write_error)]
            )
        self._context.count("offset-commit", len(prepared.records))
        result = CoordinatorResult.reply_when_committed(
            reply_to,
            prepared.response,
            on_error=lambda error: prepared.refused(offset_write_error(error)),
            records=prepared.records,
        )
        if isinstance(request, p08.OffsetCommitRequest):
            self._classic.note_commit(request.group_id, request.member_id, result)
        elif prepared.records:
            result.producer = Producer(request.producer_id, request.producer_epoch)
        return result

    def _has_memory(self, prepared: PreparedCommit[CommitResponse]) -> bool:
        """Whether the principal may have the coordinator keep these offsets. Those that replace
        others with as much metadata are always taken.
        """
        growth_bytes = 0 if prepared.group_id in self._context.groups else GROUP_BYTES
        if self._context.memory.limit.is_tight:
            for record in prepared.records:
                where, stored = record.content
                older = self._context.offsets.get(*where)
                growth_bytes += offset_bytes(stored) - (offset_bytes(older) if older else 0)
        return self._context.memory.may_grow(prepared.group_id, prepared.principal, growth_bytes)

    def _commit_error(self, request: CommitRequest, api_version: int) -> ErrorCode:
        if isinstance(request, p08.OffsetCommitRequest):
            is_transactional, epoch = False, request.generation_id_or_member_epoch
        else:
            is_transactional, epoch = True, request.generation_id
        if is_transactional and not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._context.groups.get(request.group_id)
        if group is None:
            if epoch < 0:
                return ErrorCode.NONE  # replay makes a group for these offsets alone
            if not is_transactional and api_version >= FIRST_GROUP_NOT_FOUND_VERSION:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return ErrorCode.ILLEGAL_GENERATION
        error = group.validate_offset_commit(
            request.member_id,
            request.group_instance_id,
            epoch,
            is_transactional=is_transactional,
            api_version=api_version,
        )
        if error is ErrorCode.NONE and not isinstance(group, ClassicGroup):
            error = self._partitions_error(group, request, epoch, is_transactional=is_transactional)
        if is_transactional and error is ErrorCode.STALE_MEMBER_EPOCH:
            # The clients of this API do not know it.
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _partitions_error(
        self,
        group: ConsumerGroup,
        request: CommitRequest,
        member_epoch: int,
        *,
        is_transactional: bool,
    ) -> ErrorCode:
        """The first error of a partition, of those that would be stored."""
        for topic in request.topics:
            topic_id = (
                topic.topic_id if isinstance(topic, p08.OffsetCommitRequestTopic) else ZERO_UUID
            )
            for asked in topic.partitions:
                if is_metadata_too_large(asked, self._context.settings.max_metadata_bytes):
                    continue  # not stored, whatever its epoch
                error = group.partition_commit_error(
                    request.member_id,
                    member_epoch,
                    topic_id,
                    topic.name,
                    asked.partition_index,
                    is_transactional=is_transactional,
                )
                if error is not ErrorCode.NONE:
                    return error
        return ErrorCode.NONE

    def fetch(
        self,
        request: OffsetFetchRequestGroup,
        reply_to: Answerable,
        *,
        require_stable: bool,
        is_confirmed: bool = True,
    ) -> CoordinatorResult:
        """Read offsets: those asked for, or all when `topics` is None. Answers
        OffsetFetchResponseGroup, or if there are very many of them the steps that make it of what
        is stored now; an open transaction makes an offset UNSTABLE_OFFSET_COMMIT where
        `require_stable` asks for it (KIP-447).

        Without `is_confirmed`, this may be a former coordinator that does not know it yet:

        1. it is cut off from the controllers, which put another one in its place;
        2. a transaction commits offsets there;
        3. a client that still asks here would get the offsets before the transaction.

        So the answer waits until this coordinator has proven its leadership.
        """
        group = self._context.groups.get(request.group_id)
        error = ErrorCode.NONE
        if group is not None:
            error = group.validate_offset_fetch(request.member_id, request.member_epoch)
        if error is not ErrorCode.NONE:
            refuse = partial(refused_fetch, request)
            return CoordinatorResult(replies=[refused(reply_to, error, refuse, offset_read_error)])

        def on_error(error: ErrorCode) -> OffsetFetchResponseGroup:
            return refused_fetch(request, offset_read_error(error))

        answer = self._read(request, require_stable=require_stable)
        if not is_confirmed:
            return CoordinatorResult(replies=[Reply(reply_to, answer, on_error)])
        return CoordinatorResult.reply_when_committed(reply_to, answer, on_error=on_error)

    def _read(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup | Steps[OffsetFetchResponseGroup]:
        group_id, offsets = request.group_id, self._context.offsets
        stored = offsets.topics(group_id)
        checks_pending = require_stable and offsets.has_open_transactions(group_id)
        if not _is_large(request, stored):
            is_pending = partial(offsets.is_pending, group_id) if checks_pending else None
            return at_once(_answer_steps(group_id, _asked(request, stored), stored, is_pending))
        # The store may change while the answer is made.
        names = stored if request.topics is None else {each.name for each in request.topics}
        stored = {name: dict(found) for name, found in stored.items() if name in names}
        unstable = set(offsets.pending_partitions(group_id)) if checks_pending else set()
        return _answer_steps(
            group_id,
            _asked(request, stored),
            stored,
            lambda topic, index: (group_id, topic, index) in unstable,
        )

    def delete(self, request: p47.OffsetDeleteRequest, reply_to: Answerable) -> CoordinatorResult:
        """Remove offsets of topics that no member is subscribed to (KIP-496)."""
        group, offsets = self._context.groups.get(request.group_id), self._context.offsets
        error = ErrorCode.GROUP_ID_NOT_FOUND
        if group is not None:
            error = group.validate_offset_delete()
        if error is not ErrorCode.NONE:
            return CoordinatorResult(replies=[refused(reply_to, error, _not_deleted)])
        assert group is not None
        records: list[CoordinatorRecord] = []
        response = p47.OffsetDeleteResponse()
        for topic in request.topics:
            told = ErrorCode.NONE
            if group.is_subscribed_to(topic.name):
                told = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            answered = p47.OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answered)
            for asked in topic.partitions:
                where = PartitionKey(request.group_id, topic.name, asked.partition_index)
                answered.partitions.append(
                    p47.OffsetDeleteResponsePartition(
                        partition_index=where.partition, error_code=told
                    )
                )
                is_there = offsets.get(*where) is not None
                if told is ErrorCode.NONE and (is_there or offsets.is_pending(*where)):
                    records.append(offset_tombstone(*where))
        self._context.count("offset-deletion", len(records))

        def on_error(error: ErrorCode) -> p47.OffsetDeleteResponse:
            return _not_deleted(write_error(error))

        if not records:  # a former coordinator may not know the offsets, or what is subscribed to
            return CoordinatorResult(replies=[Reply(reply_to, response, on_error)])
        return CoordinatorResult.reply_when_committed(
            reply_to, response, on_error=on_error, records=records
        )


def _not_deleted(error: ErrorCode) -> p47.OffsetDeleteResponse:
    return p47.OffsetDeleteResponse(error_code=error)


def _is_of_another_topic(stored_id: UUID, asked_id: UUID) -> bool:
    """Whether the offset belongs to a topic of the same name that has been deleted since."""
    return ZERO_UUID not in (stored_id, asked_id) and stored_id != asked_id


Stored = Mapping[str, Mapping[int, StoredOffset]]


def _asked(
    request: OffsetFetchRequestGroup, stored: Stored
) -> Iterator[tuple[str, UUID, Iterable[int]]]:
    if request.topics is None:
        return ((name, ZERO_UUID, list(found)) for name, found in stored.items())
    return ((each.name, each.topic_id, each.partition_indexes) for each in request.topics)


def _is_large(request: OffsetFetchRequestGroup, stored: Stored) -> bool:
    parts = stored.values() if request.topics is None else request.topics
    if len(parts) > MAX_READ_AT_ONCE:
        return True
    if request.topics is None:
        return sum(map(len, stored.values())) > MAX_READ_AT_ONCE
    return sum(len(topic.partition_indexes) for topic in request.topics) > MAX_READ_AT_ONCE


def _answer_steps(
    group_id: str,
    asked: Iterator[tuple[str, UUID, Iterable[int]]],
    stored: Stored,
    is_pending: Callable[[str, int], bool] | None,
) -> Steps[OffsetFetchResponseGroup]:
    response = OffsetFetchResponseGroup(group_id=group_id)
    for name, topic_id, indexes in asked:
        answered = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
        response.topics.append(answered)
        found = stored.get(name, {})
        for index in indexes:
            offset = found.get(index)
            if is_pending is not None and is_pending(name, index):
                slot = no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            elif offset is None or _is_of_another_topic(offset.topic_id, topic_id):
                slot = no_offset(index)
            else:
                slot = OffsetFetchResponsePartitions(
                    partition_index=index,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                )
            answered.partitions.append(slot)
            yield
    return response


def no_offset(partition: int, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=NO_OFFSET, error_code=error
    )


def refused_fetch(request: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=request.group_id, error_code=error)
