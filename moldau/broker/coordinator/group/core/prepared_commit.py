"""OffsetCommit and TxnOffsetCommit, as far as they can be worked on without the group.

Owns: the records and the answer of a commit, made and encoded one partition after the other, so
that a commit of very many partitions gives others their turn. Must not: look at groups or offsets.
Invariant: what is prepared depends on the request alone; the commit itself is one operation.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.offset_store import StoredOffset
from moldau.broker.coordinator.group.core.records import NO_EXPIRY, offset_record
from moldau.metadata.steps import Steps
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.p28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from moldau.protocol.records import Record
from moldau.protocol.types import ZERO_UUID


class CommitLimits(NamedTuple):
    """Of the broker: characters of an offset's metadata, and bytes of a batch in the log."""

    max_metadata_length: int
    max_batch_bytes: int


class PreparedCommit:
    """What is written, and what is answered when it is.

    Args:
        response: an empty OffsetCommitResponse or TxnOffsetCommitResponse.
        limits: for what is to be prepared.
    """

    __slots__ = ("_limits", "_size_bytes", "is_too_large", "records", "response")

    def __init__(self, response: Any, limits: CommitLimits) -> None:
        self.response = response
        self.records: list[CoordinatorRecord] = []
        self.is_too_large = False
        """Whether no batch can hold the records, which there are none of then."""
        self._limits = limits
        self._size_bytes = 0

    def add(self, record: CoordinatorRecord) -> None:
        """Encode and keep one more record."""
        if self.is_too_large:
            return
        assert record.value is not None
        try:
            row = Record(
                0,
                record.value.commit_timestamp,  # type: ignore[attr-defined]
                CONSUMER_OFFSETS.encode_key(record.key),
                CONSUMER_OFFSETS.encode_value(record.value, record.value_version),
            )
        except LocalProtocolError:
            self.records.append(record)  # its append says so
            return
        self.records.append(record._replace(row=row))
        self._size_bytes += len(row.key or b"") + len(row.value or b"")
        if self._size_bytes > self._limits.max_batch_bytes:
            self.is_too_large = True
            self.records.clear()

    def refused(self, error: ErrorCode) -> Any:
        """The answer, with the same error for every partition."""
        for topic in self.response.topics:
            for told in topic.partitions:
                told.error_code = error
        return self.response


def prepare_commit(
    request: OffsetCommitRequest, limits: CommitLimits, now_ms: float
) -> Steps[PreparedCommit]:
    """Prepare an OffsetCommit whose topics have names and, if known, ids; a step for each
    partition.
    """
    expire_timestamp_ms = NO_EXPIRY
    if request.retention_time_ms >= 0:
        expire_timestamp_ms = int(now_ms) + request.retention_time_ms
    prepared = PreparedCommit(OffsetCommitResponse(topics=[]), limits)
    for topic in request.topics:
        answered = OffsetCommitResponseTopic(
            name=topic.name, topic_id=topic.topic_id, partitions=[]
        )
        prepared.response.topics.append(answered)
        for asked in topic.partitions:
            told = OffsetCommitResponsePartition(partition_index=asked.partition_index)
            answered.partitions.append(told)
            if is_metadata_too_large(asked, limits.max_metadata_length):
                told.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                stored = _to_store(asked, now_ms, expire_timestamp_ms, topic.topic_id)
                index = asked.partition_index
                prepared.add(offset_record(request.group_id, topic.name, index, stored))
            yield
    return prepared


def prepare_transactional(
    request: TxnOffsetCommitRequest, limits: CommitLimits, now_ms: float
) -> Steps[PreparedCommit]:
    """Prepare a TxnOffsetCommit; a step for each partition."""
    prepared = PreparedCommit(TxnOffsetCommitResponse(topics=[]), limits)
    for topic in request.topics:
        answered = TxnOffsetCommitResponseTopic(name=topic.name, partitions=[])
        prepared.response.topics.append(answered)
        for asked in topic.partitions:
            told = TxnOffsetCommitResponsePartition(partition_index=asked.partition_index)
            answered.partitions.append(told)
            if is_metadata_too_large(asked, limits.max_metadata_length):
                told.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                stored = _to_store(asked, now_ms, NO_EXPIRY, ZERO_UUID)
                index = asked.partition_index
                prepared.add(offset_record(request.group_id, topic.name, index, stored))
            yield
    return prepared


def is_metadata_too_large(
    asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition, max_length: int
) -> bool:
    """Whether `offset.metadata.max.bytes` forbids it. Characters, whatever the key is called: so
    does Kafka.
    """
    return len(asked.committed_metadata or "") > max_length


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
