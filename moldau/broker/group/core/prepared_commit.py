"""OffsetCommit and TxnOffsetCommit, as far as they can be worked on without the group.

Owns: the records and the answer of a commit, made and encoded one partition after the other, so
that a commit of very many partitions gives others their turn. Must not: look at groups or offsets.
Invariant: what is prepared depends on the request alone; the commit itself is one operation.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.core.steps import Steps
from moldau.broker.group.core.offset_store import StoredOffset
from moldau.broker.group.core.records import NO_EXPIRY, offset_record
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


class PreparedCommit(NamedTuple):
    """What is written, and what is answered when it is."""

    records: list[CoordinatorRecord]
    response: Any
    """OffsetCommitResponse or TxnOffsetCommitResponse."""

    def refused(self, error: ErrorCode) -> Any:
        """The answer, with the same error for every partition."""
        for topic in self.response.topics:
            for told in topic.partitions:
                told.error_code = error
        return self.response


def prepare_commit(
    request: OffsetCommitRequest, max_metadata_length: int, now_ms: float
) -> Steps[PreparedCommit]:
    """Prepare an OffsetCommit whose topics have names and, if known, ids; a step for each
    partition.
    """
    expire_timestamp_ms = NO_EXPIRY
    if request.retention_time_ms >= 0:
        expire_timestamp_ms = int(now_ms) + request.retention_time_ms
    prepared = PreparedCommit([], OffsetCommitResponse(topics=[]))
    for topic in request.topics:
        answered = OffsetCommitResponseTopic(
            name=topic.name, topic_id=topic.topic_id, partitions=[]
        )
        prepared.response.topics.append(answered)
        for asked in topic.partitions:
            told = OffsetCommitResponsePartition(partition_index=asked.partition_index)
            answered.partitions.append(told)
            if is_metadata_too_large(asked, max_metadata_length):
                told.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                stored = _to_store(asked, now_ms, expire_timestamp_ms, topic.topic_id)
                prepared.records.append(_encoded(request.group_id, topic.name, asked, stored))
            yield
    return prepared


def prepare_transactional(
    request: TxnOffsetCommitRequest, max_metadata_length: int, now_ms: float
) -> Steps[PreparedCommit]:
    """Prepare a TxnOffsetCommit; a step for each partition."""
    prepared = PreparedCommit([], TxnOffsetCommitResponse(topics=[]))
    for topic in request.topics:
        answered = TxnOffsetCommitResponseTopic(name=topic.name, partitions=[])
        prepared.response.topics.append(answered)
        for asked in topic.partitions:
            told = TxnOffsetCommitResponsePartition(partition_index=asked.partition_index)
            answered.partitions.append(told)
            if is_metadata_too_large(asked, max_metadata_length):
                told.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                stored = _to_store(asked, now_ms, NO_EXPIRY, ZERO_UUID)
                prepared.records.append(_encoded(request.group_id, topic.name, asked, stored))
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


def _encoded(
    group_id: str,
    topic: str,
    asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    stored: StoredOffset,
) -> CoordinatorRecord:
    record = offset_record(group_id, topic, asked.partition_index, stored)
    assert record.value is not None
    try:
        row = Record(
            0,
            stored.commit_timestamp_ms,
            CONSUMER_OFFSETS.encode_key(record.key),
            CONSUMER_OFFSETS.encode_value(record.value, record.value_version),
        )
    except LocalProtocolError:
        return record  # whoever appends it says so
    return record._replace(row=row)
