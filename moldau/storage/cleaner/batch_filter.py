"""What stays of a batch when its log is cleaned, and its new bytes.

Owns: which producer is inside an aborted transaction at a point of the log, the rules for whole
batches (aborted data, markers, last batches of producers), delete horizons (`delete.retention.ms`),
rewriting with offsets, producer, sequence and codec as they were.
Must not: know files or keys (`OffsetMap.judge` says which rows are the newest of theirs).
Invariant: batches are given in offset order, all of them. Base offset and last offset of what is
kept never change; a marker or tombstone goes only after its delete horizon, which is set by the
first cleaning that could do without it. Sources: KIP-98, KIP-534.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    ControlRecordType,
    Record,
    TimestampType,
    decode_control_key,
    decode_records,
)
from moldau.protocol.records import _implementation as implementation
from moldau.protocol.records.batch import finish_batch
from moldau.protocol.records.header import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    write_header,
)
from moldau.storage.cleaner.job import NO_OFFSET, ProducerTail
from moldau.storage.cleaner.offset_map import KEEP, KEEP_TOMBSTONE
from moldau.storage.indexes import AbortedTransaction


class TransactionWalk:
    """States per producer: outside -> in a committed or an aborted transaction -> outside."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: all aborted transactions with records in what is going to be read."""
        self._waiting = sorted(aborted, key=attrgetter("first_offset"))
        self._next = 0
        self._in_aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """Producer id -> its aborted transaction, and whether a batch of it was seen."""
        self._committed: set[int] = set()
        self.index_entries: list[AbortedTransaction] = []
        """Aborted transactions with remaining batches whose marker was read: still needed."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Add a batch of data; returns whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        current = self._in_aborted.get(header.producer_id)
        if current is None or current[0].last_offset < header.base_offset:
            self._committed.add(header.producer_id)
            return False
        self._in_aborted[header.producer_id] = (current[0], True)
        return True

    def is_empty_end(self, header: BatchHeader, batch: bytes | memoryview) -> bool:
        """Add a control batch; returns whether it ends a transaction without a remaining batch.

        Raises: InvalidBatch.
        """
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True  # An earlier cleaning removed its record.
        control_type = decode_control_key(decode_records(batch)[0].key).type
        if control_type == ControlRecordType.ABORT:
            current = self._in_aborted.pop(header.producer_id, None)
            if current is None or not current[1]:
                return True
            self.index_entries.append(current[0])
            return False
        if control_type == ControlRecordType.COMMIT:
            was_there = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not was_there
        return False

    def take_index_entries(self) -> list[AbortedTransaction]:
        entries, self.index_entries = self.index_entries, []
        return entries

    def _begin_up_to(self, offset: int) -> None:
        waiting = self._waiting
        while self._next < len(waiting) and waiting[self._next].first_offset <= offset:
            aborted = waiting[self._next]
            current = self._in_aborted.get(aborted.producer_id)
            if current is None or current[0].last_offset < aborted.first_offset:
                self._in_aborted[aborted.producer_id] = (aborted, False)
            self._next += 1


class Empty(Enum):
    """What becomes of a batch of which no record stays."""

    DROP = "drop"
    KEEP_PRODUCER = "keep producer"
    """Its header stays: offsets, producer, epoch, sequence."""
    KEEP_OFFSETS = "keep offsets"
    """A header without producer, transaction or marker stays: it shows where the batch ended."""


class BatchFate(NamedTuple):
    """The decision about one batch before its records are read."""

    empty: Empty
    discards_records: bool
    ends_empty_transaction: bool


@dataclass(eq=False)
class BatchFilter:
    """Decides batch by batch, in offset order, through one log."""

    walk: TransactionWalk
    producers: Mapping[int, ProducerTail]
    now_ms: int
    delete_retention_ms: int

    def fate(self, header: BatchHeader, batch: bytes, *, is_last: bool) -> BatchFate:
        """`is_last`: the batch is the last of a new segment's sources, whose end must be kept.

        Raises: InvalidBatch.
        """
        ends_empty_transaction = False
        if header.is_control:
            ends_empty_transaction = self.walk.is_empty_end(header, batch)
            discards = ends_empty_transaction and self._is_past_horizon(header)
        else:
            discards = self.walk.is_aborted(header)
        empty = Empty.KEEP_OFFSETS if is_last else Empty.DROP
        if self._is_last_of_producer(header):
            empty = Empty.KEEP_PRODUCER
        return BatchFate(empty, discards, ends_empty_transaction)

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp_ms <= self.now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether the batch holds the last sequence, or else the last epoch, of a live producer."""
        tail = self.producers.get(header.producer_id)
        if tail is None:
            return False
        if tail.last_offset != NO_OFFSET:
            return header.last_offset == tail.last_offset
        return header.is_control and header.producer_epoch == tail.producer_epoch

    def rewrite(
        self, header: BatchHeader, batch: bytes, fate: BatchFate, verdict: bytes | None
    ) -> tuple[BatchHeader, bytes | bytearray, int] | None:
        """The batch as it will lie in the new segment, with its header and count of records; None
        when it goes.

        `verdict`: per record as of `OffsetMap.judge`; None for a control batch, or when the fate
        says that all records go. Raises: InvalidBatch.
        """
        if fate.discards_records:
            keeps, has_tombstones = b"", False
        elif verdict is None:
            keeps, has_tombstones = bytes([KEEP]) * header.record_count, False
        else:
            keeps, has_tombstones = self._keeps(header, verdict)
        kept_count = len(keeps) - keeps.count(0)
        if not kept_count:
            if fate.empty is Empty.DROP:
                return None
            return (*_emptied(header, fate.empty), 0)
        needs_horizon = not header.has_delete_horizon and (
            has_tombstones or fate.ends_empty_transaction
        )
        if kept_count == header.record_count and not needs_horizon:
            return header, batch, kept_count
        horizon_ms = None
        if needs_horizon:
            horizon_ms = self.now_ms + self.delete_retention_ms
        elif header.has_delete_horizon:
            horizon_ms = header.base_timestamp_ms
        kept = [record for record, keep in zip(decode_records(batch), keeps, strict=True) if keep]
        return (*_rebuilt(header, kept, horizon_ms), kept_count)

    def _keeps(self, header: BatchHeader, verdict: bytes) -> tuple[bytes, bool]:
        has_tombstones = KEEP_TOMBSTONE in verdict
        if has_tombstones and self._is_past_horizon(header):
            return verdict.replace(bytes([KEEP_TOMBSTONE]), b"\x00"), False
        return verdict, has_tombstones


def _rebuilt(
    header: BatchHeader, records: Sequence[Record], horizon_ms: int | None
) -> tuple[BatchHeader, bytearray]:
    """The batch with only these records. With a horizon that is its base timestamp (KIP-534)."""
    base_timestamp_ms = records[0].timestamp_ms if horizon_ms is None else horizon_ms
    out = bytearray(BATCH_HEADER_SIZE)
    implementation.encode_records(out, records, header.base_offset, base_timestamp_ms)
    max_timestamp_ms = header.max_timestamp_ms
    if header.timestamp_type is TimestampType.CREATE_TIME:
        max_timestamp_ms = max(record.timestamp_ms for record in records)
    attributes = header.attributes & ~DELETE_HORIZON_BIT
    new_header = copy(header)
    new_header.attributes = attributes if horizon_ms is None else attributes | DELETE_HORIZON_BIT
    new_header.base_timestamp_ms = base_timestamp_ms
    new_header.max_timestamp_ms = max_timestamp_ms
    new_header.record_count = len(records)
    return new_header, finish_batch(out, new_header)


def _emptied(header: BatchHeader, empty: Empty) -> tuple[BatchHeader, bytearray]:
    new_header = copy(header)
    new_header.attributes &= ~(CODEC_MASK | DELETE_HORIZON_BIT)
    new_header.base_timestamp_ms = NO_TIMESTAMP
    new_header.record_count = 0
    if empty is Empty.KEEP_OFFSETS:
        # Else a later recovery would take it for this producer's last batch, or for the begin of a
        # transaction whose marker was removed.
        new_header.attributes &= ~(TRANSACTIONAL_BIT | CONTROL_BIT)
        new_header.producer_id = NO_PRODUCER_ID
        new_header.producer_epoch = NO_PRODUCER_EPOCH
        new_header.base_sequence = NO_SEQUENCE
    out = bytearray(BATCH_HEADER_SIZE)
    write_header(out, new_header)
    return new_header, out
