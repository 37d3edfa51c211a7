"""ProducerState: all producers of one partition, their open transactions, and their snapshots.

Owns: the map of producers, first unstable offset, the snapshot files beside the segments.
Must not: read the log (log_recovery replays batches into it) or decide what to acknowledge.
Invariant: the state is exactly the effect of all batches below `map_end_offset` that are still
remembered; a snapshot file `<offset>.snapshot` is the state at that offset.
Source: KIP-98, KIP-447 (last stable offset).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from operator import itemgetter

from moldau.protocol.records import BatchHeader
from moldau.runtime.filesystem import Filesystem
from moldau.storage.producer_append import CompletedTransaction, ProducerUpdate
from moldau.storage.producer_entry import (
    NO_OFFSET,
    RETAINED_BATCH_COUNT,
    ProducerBatch,
    ProducerEntry,
)
from moldau.storage.producer_snapshot import (
    SNAPSHOT_SUFFIX,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)

logger = logging.getLogger("moldau.storage")

MAX_PRODUCER_COUNT = 50_000
"""Producers remembered per partition; past it the ones idle longest are forgotten, as if expired
(their next batch is taken whatever its sequence). Those with an open transaction stay."""


class ProducerState:
    """Producers by id, and what they left undecided. Owned by the log's loop."""

    __slots__ = (
        "_directory",
        "_filesystem",
        "_ongoing",
        "_unreplicated",
        "expiration_ms",
        "map_end_offset",
        "producers",
        "snapshot_offsets",
        "unsynced_snapshot_paths",
    )

    def __init__(self, filesystem: Filesystem, directory: str, expiration_ms: int) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.expiration_ms = expiration_ms
        self.producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}
        """First offset -> producer id of every open transaction, in log order."""
        self._unreplicated: list[CompletedTransaction] = []
        """Ended transactions whose marker is not below the high watermark yet."""
        self.map_end_offset = 0
        self.snapshot_offsets: list[int] = []
        self.unsynced_snapshot_paths: list[str] = []

    # -- appends ---------------------------------------------------------------------------------

    def find_duplicate(self, header: BatchHeader) -> ProducerBatch | None:
        """The earlier append of exactly this batch, if it is among the producer's last five."""
        entry = self.producers.get(header.producer_id)
        return entry.find_duplicate(header) if entry is not None else None

    def prepare(self, producer_id: int) -> ProducerUpdate:
        """An empty pending update on what is known of the producer."""
        return ProducerUpdate(producer_id, self.producers.get(producer_id))

    def apply(self, updates: Iterable[ProducerUpdate]) -> None:
        """Make the pending updates of one append true: its batches are in the file now.

        Over the limit producers are forgotten only then: an update says what is new of its
        producer, which means nothing without what was known of it.
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
                # Producers of one append are applied one by one, their batches may lie mixed.
                ongoing = self._ongoing = dict(sorted(ongoing.items()))

    def endings(self, updates: Iterable[ProducerUpdate]) -> list[tuple[CompletedTransaction, int]]:
        """The transactions that pending updates of one append end, in log order, each with what the
        last stable offset becomes once its marker is replicated.
        """
        events: list[tuple[int, CompletedTransaction | None]] = []
        for update in updates:
            events += [(first_offset, None) for first_offset in update.started_first_offsets]
            events += [(completed.last_offset, completed) for completed in update.completed]
        ongoing = dict.fromkeys(self._ongoing)
        ended = []
        for offset, completed in sorted(events, key=itemgetter(0)):
            if completed is None:
                ongoing[offset] = None
            else:
                ongoing.pop(completed.first_offset, None)
                ended.append((completed, next(iter(ongoing), offset + 1)))
        return ended

    def on_high_watermark(self, high_watermark: int) -> None:
        """Ended transactions whose marker is below `high_watermark` are decided for readers."""
        if self._unreplicated:
            self._unreplicated = [
                each for each in self._unreplicated if each.last_offset >= high_watermark
            ]

    def on_log_start_offset(self, log_start_offset: int) -> None:
        """Records below are gone; transactions that ended there need no waiting for."""
        self._unreplicated = [
            each for each in self._unreplicated if each.last_offset >= log_start_offset
        ]
        self.map_end_offset = max(self.map_end_offset, log_start_offset)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset whose transaction is undecided or not decided for readers yet."""
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
        """How long nothing was heard of the producer whose open transaction began first; None
        without an open one.
        """
        producer_id = next(iter(self._ongoing.values()), None)
        if producer_id is None:
            return None
        return now_ms - self.producers[producer_id].last_timestamp_ms

    # -- expiry ----------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> int:
        """Forget producers silent for `expiration_ms`; returns how many. Transactions hold theirs.

        Source: KIP-854.
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
        """Where the snapshot at `offset` lies."""
        return os.path.join(self._directory, f"{offset:020d}{SNAPSHOT_SUFFIX}")

    def list_snapshots(self) -> None:
        """Learn from the directory which snapshots there are. Raises: OSError."""
        self.snapshot_offsets = [
            int(name[:20])
            for name in self._filesystem.listdir(self._directory)
            if name.endswith(SNAPSHOT_SUFFIX) and len(name) == 29 and name[:20].isdigit()
        ]

    def reset(self, map_end_offset: int) -> None:
        """Know nothing, as of `map_end_offset`."""
        self.producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = map_end_offset

    def load_newest(self, first_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Start from the newest readable snapshot in [first_offset, log_end_offset].

        `first_offset`: where the first segment begins. Snapshots past the end, and unreadable ones,
        are removed. Without any the state is empty as of `first_offset`. Raises: OSError.
        """
        self.reset(first_offset)
        for offset in sorted(self.snapshot_offsets, reverse=True):
            if offset > log_end_offset:
                self.remove_snapshot(offset)
                continue
            if offset < first_offset:
                break
            try:
                entries = decode_snapshot(self._filesystem.read_bytes(self.path_at(offset)))
            except ValueError as error:
                logger.warning("%s: %s: ignored and removed", self.path_at(offset), error)
                self.remove_snapshot(offset)
                continue
            self._restore(entries, now_ms)
            self.map_end_offset = offset
            return

    def _restore(self, entries: Iterable[SnapshotEntry], now_ms: int) -> None:
        open_transactions = []
        for each in entries:
            is_open = each.current_txn_first_offset != NO_OFFSET
            if not is_open and now_ms - each.last_timestamp_ms >= self.expiration_ms:
                continue
            entry = self.producers[each.producer_id] = ProducerEntry(each.producer_id)
            entry.producer_epoch = each.producer_epoch
            entry.last_timestamp_ms = each.last_timestamp_ms
            entry.coordinator_epoch = each.coordinator_epoch
            entry.current_txn_first_offset = each.current_txn_first_offset
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
        self.unsynced_snapshot_paths.append(path)

    def remove_snapshot(self, offset: int) -> None:
        """Remove one snapshot file (a missing one is fine). Raises: OSError."""
        path = self.path_at(offset)
        if self._filesystem.exists(path):
            self._filesystem.unlink(path)
        if offset in self.snapshot_offsets:
            self.snapshot_offsets.remove(offset)
        if path in self.unsynced_snapshot_paths:
            self.unsynced_snapshot_paths.remove(path)

    def drop_snapshots_above(self, offset: int) -> None:
        """Remove snapshots of offsets that are being checked: they may tell of lost batches.

        Raises: OSError.
        """
        for each in [each for each in self.snapshot_offsets if each > offset]:
            self.remove_snapshot(each)

    def drop_all_snapshots(self) -> None:
        """Remove every snapshot: nothing of what they tell is in the log. Raises: OSError."""
        for each in list(self.snapshot_offsets):
            self.remove_snapshot(each)

    def remove_stray_snapshots(self, segment_base_offsets: Iterable[int]) -> None:
        """Keep the snapshots at segment starts and the newest one. Raises: OSError."""
        keep = set(segment_base_offsets)
        if self.snapshot_offsets:
            keep.add(max(self.snapshot_offsets))
        for offset in [each for each in self.snapshot_offsets if each not in keep]:
            self.remove_snapshot(offset)
