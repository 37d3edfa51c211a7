"""ProducerState: all producers of one partition, their open transactions, and their snapshots.

Owns: the map of producers and which are forgotten (`producer.id.expiration.ms`), first unstable
offset, the `.snapshot` files beside the segments, the replay of batches.
Must not: judge epochs and sequences (`producer_entry` does), check CRCs, cut the log, or decide
what to acknowledge.
Invariant: the state is exactly the effect of all batches below `map_end_offset` that are still
remembered; a snapshot file `<offset>.snapshot` is the state at that offset. After a replay the
state is what it was when the log had this end, except for when producers last appended: replayed
producers count as active now, so that none expires too early.
Sources: KIP-98, KIP-447 (last stable offset), message ProducerSnapshot version 1.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from moldau.protocol.records import BatchHeader, InvalidBatch
from moldau.protocol.records.header import crc32c
from moldau.runtime.filesystem import Filesystem
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.batch_scan import scan_headers
from moldau.storage.faults import AppendRejected, is_out_of_room
from moldau.storage.indexes import AbortedTransaction, TransactionIndex
from moldau.storage.producer_entry import (
    NO_OFFSET,
    RETAINED_BATCH_COUNT,
    CompletedTransaction,
    ProducerBatch,
    ProducerEntry,
    ProducerUpdate,
    Verification,
)
from moldau.storage.segment import LogSegment

logger = logging.getLogger(__name__)

MAX_PRODUCER_COUNT = 50_000
"""Producers remembered per partition; beyond it the ones idle longest are forgotten, as if expired
(their next batch is accepted whatever its sequence). Producers with an open transaction stay."""

DEFAULT_EXPIRATION_MS = 24 * 3600 * 1000
"""The expiration of producers in Apache Kafka: one that was idle for less is in a snapshot."""

RESEED_BYTES = 8 * 1024**2
"""How far before a snapshot the producers' earlier batches are looked for: what may have been in
flight when the node stopped. Only headers are read."""

NARROW_RESEED_BYTES = 1024**2

RESEED_BATCH_COUNT = 500
"""With that many batches it is enough, however narrow the window."""

SNAPSHOT_SUFFIX = ".snapshot"
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_CRC_AT = 2
_CRC_COVERED_FROM = 6
NO_CRC = 0


class SnapshotEntry(NamedTuple):
    """One producer in a snapshot: only its last batch, -1 where there is none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """Int16 version, CRC-32C over what follows it, int32 count, entries."""
    packed = [_SNAPSHOT_ENTRY.pack(*entry) for entry in entries]
    data = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, 0, len(packed)))
    data += b"".join(packed)
    crc = crc32c(memoryview(data)[_CRC_COVERED_FROM:])
    data[_CRC_AT:_CRC_COVERED_FROM] = crc.to_bytes(4, "big")
    return bytes(data)


def snapshot_crc(data: bytes) -> int:
    """The CRC in a snapshot's head, which distinguishes one snapshot from another."""
    return int.from_bytes(data[_CRC_AT:_CRC_COVERED_FROM], "big")


def decode_snapshot(data: bytes) -> list[SnapshotEntry]:
    """The entries of a snapshot file. Raises: ValueError saying what is wrong with it."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise ValueError(f"{len(data)} bytes are no producer snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise ValueError(f"producer snapshot of unknown version {version}")
    if crc32c(memoryview(data)[_CRC_COVERED_FROM:]) != crc:
        raise ValueError("the producer snapshot's CRC does not match its contents")
    if count < 0 or len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not a snapshot of {count} producers")
    return [
        SnapshotEntry(*each)
        for each in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size :])
    ]


@dataclass(slots=True, eq=False)
class ProducerState:
    """Producers by id, and their open transactions. Belongs to the log's loop."""

    _filesystem: Filesystem
    _directory: str
    expiration_ms: int
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    _ongoing: dict[int, int] = field(default_factory=dict)
    """First offset -> producer id of every open transaction, in log order."""
    _unreplicated: list[CompletedTransaction] = field(default_factory=list)
    """Ended transactions whose marker is not below the high watermark yet."""
    map_end_offset: int = 0
    snapshot_offsets: list[int] = field(default_factory=list)
    snapshot_crcs: dict[int, int] = field(default_factory=dict)
    """Offset -> CRC of the snapshot that belongs there, as far as that is known."""
    is_proved: bool = True
    """Whether what was loaded last began with such a snapshot, or with the log."""
    unsynced_snapshot_paths: list[str] = field(default_factory=list)

    # -- appends ---------------------------------------------------------------------------------

    def find_duplicate(self, header: BatchHeader) -> ProducerBatch | None:
        """The earlier append of exactly this batch, if it is among the producer's last five."""
        entry = self.producers.get(header.producer_id)
        return entry.find_duplicate(header) if entry is not None else None

    def check_append(
        self,
        batches: RecordBatches,
        now_ms: int,
        origin: AppendOrigin,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> list[ProducerUpdate]:
        """What the batches change in their producers. A follower takes what its leader took.

        Raises: AppendRejected.
        """
        updates: dict[int, ProducerUpdate] = {}
        for position, header in batches.headers:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            is_control = header.is_control
            if is_control and not header.record_count:
                continue  # Compaction removed its record: the batch has no meaning any more.
            update = updates.get(producer_id)
            if update is None:
                entry = self.producers.get(producer_id)
                update = updates[producer_id] = ProducerUpdate(producer_id, entry)
            if is_control:
                update.add_control_batch(
                    header,
                    batches.data,
                    position,
                    now_ms,
                    check=origin is not AppendOrigin.REPLICATION,
                    transaction_version=transaction_version,
                )
            else:
                if origin is AppendOrigin.CLIENT:
                    update.check_data(header, verification)
                elif origin is AppendOrigin.COORDINATOR:
                    update.check_coordinator_data(header)
                update.add_data(header, header.base_offset, now_ms)
        return list(updates.values())

    def apply(self, updates: Iterable[ProducerUpdate]) -> None:
        """Apply the pending updates of one append: its batches are in the file now.

        Producers above the limit are forgotten only after that: an update says what changed in its
        producer, which means nothing without the rest of its entry.
        """
        for update in updates:
            self._apply(update)
            for completed in update.completed:
                # Readers of committed data wait for the high watermark to pass the marker.
                self._ongoing.pop(completed.first_offset, None)
                self._unreplicated.append(completed)
        if len(self.producers) > MAX_PRODUCER_COUNT:
            self._forget_idlest()

    def _apply(self, update: ProducerUpdate) -> None:
        producer_id = update.producer_id
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        if update.resets_batches:
            entry.producer_epoch = update.producer_epoch
            entry.batches = update.batches[-RETAINED_BATCH_COUNT:]
        elif update.batches:
            entry.batches += update.batches
            del entry.batches[:-RETAINED_BATCH_COUNT]
        entry.last_timestamp_ms = update.timestamp_ms
        entry.coordinator_epoch = update.coordinator_epoch
        entry.current_txn_first_offset = update.current_txn_first_offset
        ongoing = self._ongoing
        for first_offset in update.started_first_offsets:
            is_in_order = not ongoing or next(reversed(ongoing)) < first_offset
            ongoing[first_offset] = producer_id
            if not is_in_order:
                # Producers of one append are applied one by one; their batches may be mixed.
                ongoing = self._ongoing = dict(sorted(ongoing.items()))

    def aborts(self, updates: Iterable[ProducerUpdate]) -> list[AbortedTransaction]:
        """The transactions that pending updates of one append abort, in log order.

        Each with what the last stable offset becomes once its marker is replicated.
        """
        events: list[tuple[int, CompletedTransaction | None]] = []
        for update in updates:
            events += [(first_offset, None) for first_offset in update.started_first_offsets]
            events += [(completed.last_offset, completed) for completed in update.completed]
        ongoing = dict.fromkeys(self._ongoing)
        aborted = []
        for offset, completed in sorted(events, key=itemgetter(0)):
            if completed is None:
                ongoing[offset] = None
            else:
                ongoing.pop(completed.first_offset, None)
                if completed.is_aborted:
                    last_stable_offset = next(iter(ongoing), offset + 1)
                    aborted.append(AbortedTransaction(*completed[:3], last_stable_offset))
        return aborted

    def on_high_watermark(self, high_watermark: int) -> None:
        """Ended transactions whose marker is below `high_watermark` are decided for readers."""
        if self._unreplicated:
            self._unreplicated = [
                each for each in self._unreplicated if each.last_offset >= high_watermark
            ]

    def on_log_start_offset(self, log_start_offset: int) -> None:
        """Forget completed transactions whose marker lies below the new start of the log."""
        self.on_high_watermark(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)

    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id of every transaction without an end, in log order."""
        return self._ongoing

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the transactions that are open, or not decided for readers yet."""
        ongoing, unreplicated = self._ongoing, self._unreplicated
        if not ongoing and not unreplicated:
            return None
        first = next(iter(ongoing), None)
        if unreplicated:
            ended = min(each.first_offset for each in unreplicated)
            first = ended if first is None else min(first, ended)
        return first

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the log holds the beginning, but not the end, of a transaction of that epoch."""
        entry = self.producers.get(producer_id)
        return (
            entry is not None
            and entry.current_txn_first_offset != NO_OFFSET
            and entry.producer_epoch == producer_epoch
        )

    def oldest_transaction_idle_ms(self, now_ms: int) -> int | None:
        """How long the producer of the oldest open transaction is idle; None without any."""
        producer_id = next(iter(self._ongoing.values()), None)
        if producer_id is None:
            return None
        return now_ms - self.producers[producer_id].last_timestamp_ms

    # -- expiry ----------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> int:
        """Forget producers idle for `expiration_ms`; returns how many (KIP-854).

        A producer with an open transaction stays.
        """
        expired = [
            producer_id
            for producer_id, entry in self.producers.items()
            if entry.current_txn_first_offset == NO_OFFSET
            and now_ms - entry.last_timestamp_ms >= self.expiration_ms
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    def _forget_idlest(self) -> None:
        idle = sorted(
            (entry.last_timestamp_ms, producer_id)
            for producer_id, entry in self.producers.items()
            if entry.current_txn_first_offset == NO_OFFSET
        )
        excess_count = len(self.producers) - MAX_PRODUCER_COUNT
        dropped = idle[: excess_count + MAX_PRODUCER_COUNT // 10]
        for _, producer_id in dropped:
            del self.producers[producer_id]
        logger.warning(
            "%s: over %d producers, forgot the %d that were idle longest",
            self._directory,
            MAX_PRODUCER_COUNT,
            len(dropped),
        )

    # -- snapshots -------------------------------------------------------------------------------

    def path_at(self, offset: int) -> str:
        return os.path.join(self._directory, f"{offset:020d}{SNAPSHOT_SUFFIX}")

    def list_snapshots(self) -> None:
        self.snapshot_offsets = [
            int(name[:20])
            for name in self._filesystem.listdir(self._directory)
            if name.endswith(SNAPSHOT_SUFFIX) and len(name) == 29 and name[:20].isdigit()
        ]

    def load_newest(self, first_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Load the newest readable snapshot in [first_offset, log_end_offset].

        `first_offset`: where the first segment begins. Snapshots past the end, unreadable ones, and
        those of another offset are removed. Without any the state is empty as of `first_offset`.
        Raises: OSError.
        """
        self.is_proved = True
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = first_offset
        for offset in sorted(self.snapshot_offsets, reverse=True):
            if offset > log_end_offset:
                self.remove_snapshot(offset)
                continue
            if offset < first_offset:
                break
            try:
                entries, _ = self.read_snapshot(offset)
            except ValueError as error:
                logger.warning("%s: %s: ignored and removed", self.path_at(offset), error)
                self.remove_snapshot(offset)
                continue
            self._restore(entries, now_ms)
            self.map_end_offset = offset
            self.is_proved = offset in self.snapshot_crcs
            return

    def read_snapshot(self, end_offset: int) -> tuple[list[SnapshotEntry], int]:
        """The producers in the snapshot at `end_offset`, and its CRC.

        Raises: OSError; ValueError when it is damaged, or is not the one of that offset.
        """
        data = self._filesystem.read_bytes(self.path_at(end_offset))
        entries = decode_snapshot(data)
        crc = snapshot_crc(data)
        if self.snapshot_crcs.get(end_offset, crc) != crc:
            raise ValueError("this is another producer snapshot than the one that was written")
        if any(
            max(each.last_offset, each.current_txn_first_offset) >= end_offset for each in entries
        ):
            raise ValueError("the producer snapshot is of a larger offset")
        return entries, crc

    def _restore(self, entries: Iterable[SnapshotEntry], now_ms: int) -> None:
        open_transactions = []
        for each in entries:
            is_open = each.current_txn_first_offset != NO_OFFSET
            if not is_open and now_ms - each.last_timestamp_ms >= self.expiration_ms:
                continue
            entry = self.producers[each.producer_id] = ProducerEntry(
                each.producer_id,
                each.producer_epoch,
                [],
                each.last_timestamp_ms,
                each.coordinator_epoch,
                each.current_txn_first_offset,
            )
            if each.last_offset >= 0:
                first_sequence = (each.last_sequence - each.offset_delta) & 0x7FFFFFFF
                entry.batches.append(
                    ProducerBatch(
                        first_sequence, each.last_sequence, each.last_offset, each.offset_delta
                    )
                )
            if is_open:
                open_transactions.append((each.current_txn_first_offset, each.producer_id))
        self._ongoing = dict(sorted(open_transactions))

    def take_snapshot(self) -> None:
        """Write the state at `map_end_offset`, unless that snapshot exists. Raises: OSError.

        Not fsynced here: the next flush does it, and until then the log above the recovery point
        would be replayed anyway.
        """
        offset = self.map_end_offset
        if offset in self.snapshot_offsets:
            return
        data = encode_snapshot(
            SnapshotEntry(
                producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_offset,
                entry.batches[-1].offset_delta if entry.batches else 0,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
            for producer_id, entry in self.producers.items()
        )
        path = self.path_at(offset)
        file = self._filesystem.open(path, create=True)
        try:
            file.truncate(0)
            file.append(data)
        except OSError:
            self._filesystem.unlink(path)
            raise
        finally:
            file.close()
        self.snapshot_offsets.append(offset)
        self.snapshot_crcs[offset] = snapshot_crc(data)
        self.unsynced_snapshot_paths.append(path)

    def take_last_snapshot(self, log_end_offset: int, log_name: str) -> None:
        """As `take_snapshot` at the end of a log that closes. Raises: OSError.

        On a full disk there is none: the next start reads the last segment instead.
        """
        self.map_end_offset = log_end_offset
        try:
            self.take_snapshot()
        except OSError as error:
            if not is_out_of_room(error):
                raise
            logger.warning("%s: no room for a snapshot of its producers: %s", log_name, error)

    def remove_snapshot(self, offset: int) -> None:
        """Remove one snapshot file (a missing one is fine). Raises: OSError."""
        path = self.path_at(offset)
        if self._filesystem.exists(path):
            self._filesystem.unlink(path)
        self.snapshot_crcs.pop(offset, None)
        if offset in self.snapshot_offsets:
            self.snapshot_offsets.remove(offset)
        if path in self.unsynced_snapshot_paths:
            self.unsynced_snapshot_paths.remove(path)

    def drop_snapshots_above(self, offset: int) -> None:
        """Remove snapshots of offsets that are being checked: they may include lost batches.

        Raises: OSError.
        """
        for each in [each for each in self.snapshot_offsets if each > offset]:
            self.remove_snapshot(each)

    def drop_all_snapshots(self) -> None:
        """Remove every snapshot: the log holds nothing of it any more. Raises: OSError."""
        for each in list(self.snapshot_offsets):
            self.remove_snapshot(each)

    def remove_stray_snapshots(self, segment_base_offsets: Iterable[int]) -> None:
        """Keep the snapshots at segment starts and the newest one. Raises: OSError."""
        keep = set(segment_base_offsets)
        if self.snapshot_offsets:
            keep.add(max(self.snapshot_offsets))
        for offset in [each for each in self.snapshot_offsets if each not in keep]:
            self.remove_snapshot(offset)

    # -- replay ----------------------------------------------------------------------------------

    def replay(
        self,
        header: BatchHeader,
        batch: memoryview | bytes,
        now_ms: int,
        *,
        index: TransactionIndex | list[AbortedTransaction] | None = None,
    ) -> None:
        """Apply one batch of the log.

        `batch`: its bytes (read only for control batches). `index`: where aborted transactions are
        written (while a segment's index is rebuilt or proved). Raises: OSError.
        """
        producer_id = header.producer_id
        if producer_id < 0 or (header.is_control and not header.record_count):
            return
        update = ProducerUpdate(producer_id, self.producers.get(producer_id))
        if header.is_control:
            try:
                update.add_control_batch(header, batch, 0, now_ms, check=False)
            except AppendRejected:
                return  # Intact bytes of a control record of unknown type.
        else:
            update.add_data(header, header.base_offset, now_ms)
        if update.completed and index is not None:
            for aborted in self.aborts([update]):
                index.append(aborted)
        self.apply([update])

    def load(self, segments: Sequence[LogSegment], end_offset: int, now_ms: int) -> None:
        """Restore the state as of `end_offset`: snapshot, then the batches after it.

        Raises: OSError, InvalidBatch.
        """
        # From the first segment, not the log start: a producer whose records were deleted by
        # request may still send its last batch again.
        self.load_newest(segments[0].base_offset, end_offset, now_ms)
        while not self.is_proved and not self._agrees(segments):
            logger.warning(
                "%s: the log has other producers: ignored and removed",
                self.path_at(self.map_end_offset),
            )
            self.remove_snapshot(self.map_end_offset)
            self.load_newest(segments[0].base_offset, end_offset, now_ms)
        if self.producers:
            self._refill(self._headers_before(segments, self.map_end_offset))
        for segment in segments[_index_for(segments, self.map_end_offset) :]:
            if segment.base_offset >= end_offset or self.map_end_offset >= end_offset:
                break
            file = segment.file()
            _, start = segment.offset_index.lookup(self.map_end_offset)
            for position, header in scan_headers(file, start, segment.size_bytes, segment.order()):
                if header.base_offset >= end_offset:
                    break
                if header.last_offset < self.map_end_offset or header.producer_id < 0:
                    continue
                batch = file.pread(header.size_bytes, position) if header.is_control else b""
                self.replay(header, batch, now_ms)
        self.map_end_offset = end_offset

    def _agrees(self, segments: Sequence[LogSegment]) -> bool:
        """Whether a snapshot that nothing speaks for knows the producers of the batches before it,
        those excepted that may have expired when it was written. Raises: OSError.
        """
        written_ms = self._filesystem.modified_ms(self.path_at(self.map_end_offset))
        for header in self._headers_before(segments, self.map_end_offset):
            entry = self.producers.get(header.producer_id)
            if header.producer_id < 0 or header.is_control:
                continue
            if entry is None:
                if written_ms - header.max_timestamp_ms < DEFAULT_EXPIRATION_MS:
                    return False
            elif entry.last_offset < header.last_offset:
                return False
        return True

    def _headers_before(self, segments: Sequence[LogSegment], offset: int) -> list[BatchHeader]:
        """Headers of batches before `offset` that the snapshot's producers may send again.

        A snapshot holds one batch per producer, a producer may have five unacknowledged. Raises:
        OSError.
        """
        newest = max((entry.last_offset for entry in self.producers.values()), default=NO_OFFSET)
        index = _index_for(segments, offset)
        if segments[index].base_offset == offset:
            index -= 1
        if index < 0 or (self.is_proved and newest < segments[index].base_offset):
            return []
        headers: list[BatchHeader] = []
        left_bytes = RESEED_BYTES
        for segment in reversed(segments[: index + 1]):
            if left_bytes <= 0 or len(headers) >= RESEED_BATCH_COUNT:
                break
            try:
                earlier = _last_headers(segment, offset, left_bytes)
            except InvalidBatch:
                break  # Older damage: the first read there finds it.
            left_bytes -= sum(header.size_bytes for header in earlier)
            headers = earlier + headers
        return headers

    def _refill(self, headers: list[BatchHeader]) -> None:
        found: dict[int, list[ProducerBatch]] = {}
        for header in headers:
            entry = self.producers.get(header.producer_id)
            if entry is None or header.is_control or header.producer_epoch != entry.producer_epoch:
                continue
            found.setdefault(header.producer_id, []).append(
                ProducerBatch(
                    header.base_sequence,
                    header.last_sequence,
                    header.last_offset,
                    header.last_offset_delta,
                )
            )
        for producer_id, batches in found.items():
            entry = self.producers[producer_id]
            if entry.batches and batches[-1] == entry.batches[-1]:
                entry.batches = batches[-RETAINED_BATCH_COUNT:]


def _index_for(segments: Sequence[LogSegment], offset: int) -> int:
    return max(bisect_right(segments, offset, key=lambda each: each.base_offset) - 1, 0)


def _last_headers(segment: LogSegment, offset: int, limit_bytes: int) -> list[BatchHeader]:
    """Headers of the batches below `offset` in the last `limit_bytes` before it.

    A narrow window is tried first: with small batches it holds plenty. Raises: OSError,
    InvalidBatch.
    """
    file = segment.file()
    _, end = segment.offset_index.lookup(offset)
    headers: list[BatchHeader] = []
    for window_bytes in (NARROW_RESEED_BYTES, limit_bytes):
        start = segment.offset_index.position_at_most(max(0, end - window_bytes))
        headers = []
        for _, header in scan_headers(file, start, segment.size_bytes, segment.order()):
            if header.base_offset >= offset:
                break
            headers.append(header)
        if start == 0 or len(headers) >= RESEED_BATCH_COUNT:
            break
    return headers
