"""Committed offsets, and those of transactions that are still open.

Owns what the log says about offsets, found by group, and their records. Must not know requests
(`offset_requests` does), groups beyond their ids, or what has expired (`offset_removal` does).
Invariants: only `put`, `remove` and `end_transaction`, which replay calls in log order, change the
store; a transaction's offset never replaces a commit that lies behind it in the log; `changed` has
every group that has another size since it was last taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.protocol.coordinator_records.classic_groups import OffsetCommitKey, OffsetCommitValue
from moldau.protocol.types import ZERO_UUID


@dataclass(slots=True)
class StoredOffset:
    """A group's offset in one partition. Times are milliseconds since 1970, -1 is none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    topic_id: UUID = ZERO_UUID
    log_offset: int = -1
    """Its offset in the coordinator's log."""


OFFSET_BYTES: Final = 400
"""What an offset takes in memory, beside its metadata."""


def offset_bytes(stored: StoredOffset) -> int:
    metadata = stored.metadata
    return OFFSET_BYTES + len(metadata) * (1 if metadata.isascii() else 4)


class PartitionKey(NamedTuple):
    """A partition as a group sees it."""

    group_id: str
    topic: str
    partition: int


class _Transaction(NamedTuple):
    """The offsets of an open transaction, and a set of its producer that its partitions share."""

    producer: frozenset[int]
    offsets: dict[PartitionKey, StoredOffset]


class OffsetStore:
    """The offsets of all groups of one partition of `__consumer_offsets`."""

    __slots__ = ("_bytes", "_committed", "_open", "_open_of_group", "_pending", "changed", "count")

    def __init__(self) -> None:
        self._committed: dict[str, dict[str, dict[int, StoredOffset]]] = {}
        self.count = 0
        self._pending: dict[int, _Transaction] = {}
        self._open: dict[PartitionKey, frozenset[int]] = {}
        """The producers that have an open transaction with an offset of that partition."""
        self._open_of_group: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self.changed: set[str] = set()

    def size_bytes(self, group_id: str) -> int:
        """What the offsets of a group take in memory, those of open transactions included."""
        return self._bytes.get(group_id, 0)

    def _grow(self, group_id: str, change_bytes: int) -> None:
        self.changed.add(group_id)
        left_bytes = self._bytes.get(group_id, 0) + change_bytes
        if left_bytes:
            self._bytes[group_id] = left_bytes
        else:
            self._bytes.pop(group_id, None)

    def get(self, group_id: str, topic: str, partition: int) -> StoredOffset | None:
        topics = self._committed.get(group_id)
        if topics is None:
            return None
        partitions = topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def topics(self, group_id: str) -> dict[str, dict[int, StoredOffset]]:
        """A group's committed offsets, by topic and partition: read only."""
        return self._committed.get(group_id, {})

    def has_any(self, group_id: str) -> bool:
        """Whether anything is stored for that group, in open transactions too."""
        return group_id in self._committed or group_id in self._open_of_group

    def has_open_transactions(self, group_id: str) -> bool:
        return group_id in self._open_of_group

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (group_id, topic, partition) in self._open

    def pending_partitions(self, group_id: str) -> list[PartitionKey]:
        if group_id not in self._open_of_group:
            return []
        return [key for key in self._open if key.group_id == group_id]

    def newest_log_offset(self, key: PartitionKey) -> int:
        """The log offset of a partition's newest offset, also of open transactions; -1 for none."""
        stored = [
            self._pending[producer_id].offsets[key] for producer_id in self._open.get(key, ())
        ]
        committed = self.get(*key)
        if committed is not None:
            stored.append(committed)
        return max((each.log_offset for each in stored), default=-1)

    def partitions_of(self, topics: frozenset[str]) -> Iterator[PartitionKey]:
        """The partitions of these topics with offsets, open transactions included; each once."""
        seen: set[PartitionKey] = set()
        for group_id, stored in self._committed.items():
            for topic in topics & stored.keys():
                for partition in stored[topic]:
                    key = PartitionKey(group_id, topic, partition)
                    seen.add(key)
                    yield key
        for key in self._open:
            if key.topic in topics and key not in seen:
                yield key

    def put(self, key: PartitionKey, stored: StoredOffset, producer_id: int | None) -> None:
        """An offset was written, in the transaction of a producer or without one."""
        if producer_id is None:
            self._put_committed(key, stored)
            return
        transaction = self._pending.get(producer_id)
        if transaction is None:
            transaction = self._pending[producer_id] = _Transaction(frozenset((producer_id,)), {})
        older = transaction.offsets.get(key)
        transaction.offsets[key] = stored
        self._grow(key.group_id, offset_bytes(stored) - (offset_bytes(older) if older else 0))
        producers = self._open.get(key)
        if producers is None:
            self._open[key] = transaction.producer
            self._open_of_group[key.group_id] = self._open_of_group.get(key.group_id, 0) + 1
        elif producer_id not in producers:
            self._open[key] = producers | transaction.producer

    def remove(self, key: PartitionKey) -> None:
        """The offset was removed, with those of open transactions."""
        topics = self._committed.get(key.group_id)
        partitions = None if topics is None else topics.get(key.topic)
        gone = None if partitions is None else partitions.pop(key.partition, None)
        if partitions is not None and gone is not None:
            self.count -= 1
            self._grow(key.group_id, -offset_bytes(gone))
            assert topics is not None
            if not partitions:
                del topics[key.topic]
            if not topics:
                del self._committed[key.group_id]
        for producer_id in self._open.get(key, ()):
            pending = self._pending[producer_id].offsets
            self._grow(key.group_id, -offset_bytes(pending.pop(key)))
            if not pending:
                del self._pending[producer_id]
            self._close(key, producer_id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> list[PartitionKey]:
        """A transaction has ended: its offsets count now, or are forgotten. Returns their keys."""
        transaction = self._pending.pop(producer_id, None)
        if transaction is None:
            return []
        for key, stored in transaction.offsets.items():
            self._close(key, producer_id)
            self._grow(key.group_id, -offset_bytes(stored))
            if is_commit:
                committed = self.get(*key)
                if committed is None or committed.log_offset < stored.log_offset:
                    self._put_committed(key, stored)
        return list(transaction.offsets)

    def _put_committed(self, key: PartitionKey, stored: StoredOffset) -> None:
        group_id, topic, partition = key
        topics = self._committed.get(group_id)
        if topics is None:
            topics = self._committed[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        older = partitions.get(partition)
        partitions[partition] = stored
        if older is None:
            self.count += 1
            self._grow(group_id, offset_bytes(stored))
        elif older.metadata != stored.metadata:
            self._grow(group_id, offset_bytes(stored) - offset_bytes(older))

    def _close(self, key: PartitionKey, producer_id: int) -> None:
        producers = self._open[key]
        if len(producers) > 1:
            self._open[key] = producers - {producer_id}
            return
        del self._open[key]
        left = self._open_of_group[key.group_id] - 1
        if left:
            self._open_of_group[key.group_id] = left
        else:
            del self._open_of_group[key.group_id]


OFFSET_VERSION: Final = 4
EXPIRING_OFFSET_VERSION: Final = 1
"""The only version with its own expiry, which clients before OffsetCommit v5 may set; it has
neither leader epoch nor topic id.
"""

NO_EXPIRY: Final = -1


def offset_record(where: PartitionKey, stored: StoredOffset) -> CoordinatorRecord:
    """A committed offset, in the version that Apache Kafka 4.3 writes."""
    version = OFFSET_VERSION
    if stored.expire_timestamp_ms != NO_EXPIRY:
        version = EXPIRING_OFFSET_VERSION
        stored = replace(stored, leader_epoch=-1, topic_id=ZERO_UUID)
    return CoordinatorRecord(
        OffsetCommitKey(group=where.group_id, topic=where.topic, partition=where.partition),
        OffsetCommitValue(
            offset=stored.offset,
            leader_epoch=stored.leader_epoch,
            metadata=stored.metadata,
            commit_timestamp=stored.commit_timestamp_ms,
            expire_timestamp=stored.expire_timestamp_ms,
            topic_id=stored.topic_id,
        ),
        version,
        content=(where, stored),
    )


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), None
    )
