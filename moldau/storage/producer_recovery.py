"""Bringing a partition's producer state back from a snapshot and the batches after it.

Owns: the replay of batches, and refilling the last five batches that a snapshot does not hold.
Must not: check CRCs or cut the log.
Invariant: the state after it is what it was when the log had this end, except for when producers
were last heard of: those replayed count as heard of now, so none is forgotten too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.records import BatchHeader, InvalidBatch
from moldau.storage.batch_scan import scan_headers
from moldau.storage.faults import AppendRejected
from moldau.storage.producer_append import note_marker
from moldau.storage.producer_entry import RETAINED_BATCH_COUNT, ProducerBatch, ProducerEntry
from moldau.storage.segment import LogSegment
from moldau.storage.transaction_index import AbortedTransaction, TransactionIndex

if TYPE_CHECKING:
    from moldau.storage.log import Log

RESEED_BYTES = 8 * 1024**2
"""How far before a snapshot the producers' earlier batches are looked for: what may have been in
flight when the node stopped. Only headers are read."""

NARROW_RESEED_BYTES = 1024**2

RESEED_BATCH_COUNT = 500
"""With that many batches it is enough, however narrow the window."""


def replay_batch(
    log: Log,
    header: BatchHeader,
    batch: memoryview | bytes,
    now_ms: int,
    *,
    index: TransactionIndex | None = None,
) -> None:
    """Let one batch of the log act on the producer state.

    `batch`: its bytes (looked at only for control batches). `index`: where aborted transactions are
    written (while the segment's indexes are rebuilt). Raises: OSError.
    """
    if header.producer_id < 0 or (header.is_control and not header.record_count):
        return
    state = log.producer_state
    update = state.prepare(header.producer_id)
    if header.is_control:
        try:
            note_marker(update, batch, 0, header, now_ms, check=False)
        except AppendRejected:
            return  # Intact bytes of a control record nobody here understands.
    else:
        update.add_data(header, header.base_offset, now_ms)
    if update.completed and index is not None:
        for completed, last_stable_offset in state.endings([update]):
            if completed.is_aborted:
                index.append(AbortedTransaction(*completed[:3], last_stable_offset))
    state.apply([update])


def load_producers(log: Log, end_offset: int) -> None:
    """The producer state as of `end_offset`. Raises: OSError, InvalidBatch."""
    state = log.producer_state
    now_ms = log.clock.now_ms()
    # From the first segment, not the log start: a producer whose records were deleted by request
    # may still send its last batch again.
    state.load_newest(log.segments[0].base_offset, end_offset, now_ms)
    if state.producers:
        _reseed(log, state.map_end_offset)
    first = log.segment_index_for(state.map_end_offset)
    for segment in log.segments[first:]:
        if segment.base_offset >= end_offset or state.map_end_offset >= end_offset:
            break
        file = segment.file()
        _, start = segment.offset_index.lookup(state.map_end_offset)
        for position, header in scan_headers(file, start, segment.size_bytes):
            if header.base_offset >= end_offset:
                break
            if header.last_offset < state.map_end_offset or header.producer_id < 0:
                continue
            batch = file.pread(header.size_bytes, position) if header.is_control else b""
            replay_batch(log, header, batch, now_ms)
    state.map_end_offset = end_offset


def reload_producers(log: Log) -> None:
    """The producer state as of the log end offset. Raises: OSError, InvalidBatch."""
    load_producers(log, log.log_end_offset)


def _reseed(log: Log, offset: int) -> None:
    """Find the batches before `offset` that the snapshot's producers may send again.

    A snapshot holds one batch per producer, a producer may have five unacknowledged.
    """
    producers = log.producer_state.producers
    newest = max(entry.last_offset for entry in producers.values())
    index = log.segment_index_for(offset)
    if log.segments[index].base_offset == offset:
        index -= 1
    if index < 0 or newest < log.segments[index].base_offset:
        return
    headers: list[BatchHeader] = []
    left_bytes = RESEED_BYTES
    for segment in reversed(log.segments[: index + 1]):
        if left_bytes <= 0 or len(headers) >= RESEED_BATCH_COUNT:
            break
        try:
            earlier = _last_headers(segment, offset, left_bytes)
        except InvalidBatch:
            break  # Older damage; whoever reads there finds it.
        left_bytes -= sum(header.size_bytes for header in earlier)
        headers = earlier + headers
    _refill(producers, headers)


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
        for _, header in scan_headers(file, start, segment.size_bytes):
            if header.base_offset >= offset:
                break
            headers.append(header)
        if start == 0 or len(headers) >= RESEED_BATCH_COUNT:
            break
    return headers


def _refill(producers: dict[int, ProducerEntry], headers: list[BatchHeader]) -> None:
    found: dict[int, list[ProducerBatch]] = {}
    for header in headers:
        entry = producers.get(header.producer_id)
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
        entry = producers[producer_id]
        if entry.batches and batches[-1] == entry.batches[-1]:
            entry.batches = batches[-RETAINED_BATCH_COUNT:]
