"""Appending to a log: from checked batches to bytes in the active segment.

Owns: the order of checks, of changes in the caller's buffer, on disk and in memory.
Must not: wait, or acknowledge; replication is the partition's business.
Invariant: the buffer is changed only when every batch passed, memory only when the bytes are in the
file; after a failure the log is what it was, or offline. Source: KIP-98.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import BatchHeader, InvalidBatch, patch_batch, patch_log_append_time
from moldau.storage import append
from moldau.storage.append import (
    AppendOrigin,
    AppendResult,
    check_batches,
    whole_batches_bytes,
)
from moldau.storage.faults import AppendRejected, is_out_of_room
from moldau.storage.producer_append import ProducerUpdate, Verification, note_marker
from moldau.storage.producer_entry import ProducerBatch
from moldau.storage.segment import MAX_RELATIVE_OFFSET, LogSegment
from moldau.storage.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from moldau.storage.log import Log

logger = logging.getLogger("moldau.storage")

Batches = list[tuple[int, BatchHeader]]

ROOMLESS_MS: Final = 1_000
"""How long after a batch found no room those behind it are told the same: they are in flight."""
MAX_ROOMLESS_PRODUCERS: Final = 1_000
"""As many are remembered for that."""


def needs_preparation(log: Log, records: bytearray | memoryview) -> bool:
    """Whether `append.prepare(records, log.config)` must run first, off the loop."""
    return log.config.looks_at_records and append.needs_preparation(records, log.config)


def append_as_leader(
    log: Log,
    records: bytearray | memoryview,
    *,
    leader_epoch: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    verification: Verification | None = None,
    transaction_version: int = 0,
) -> AppendResult:
    """Check batches, give them offsets and the leader epoch in place, write them at the end.

    `records` is changed only if all batches pass. A batch that an idempotent producer sends
    again is not written; the result names its first offsets. Never raises for bad input or a
    bad disk: the result carries the error.

    Args:
        verification: for a client's batch that begins a transaction (KIP-890).
        transaction_version: for a marker: of the transaction that it ends.
    """
    if log.offline:
        return _storage_error(log, log.offline_reason)
    config = log.config
    now_ms = log.clock.now_ms()
    batches: Batches = []
    try:
        batches = check_batches(records, config, origin, now_ms)
        if config.compacts:
            append.require_keys(records, batches)
        from_client = origin is AppendOrigin.CLIENT
        duplicate = _assign_offsets(log, batches, leader_epoch, from_client)
        if duplicate is not None:
            return _duplicate(log, duplicate, now_ms)
        updates = _check_producers(
            log, records, batches, now_ms, origin, verification, transaction_version
        )
    except AppendRejected as error:
        if error.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            refused_ms = log.roomless_producers.get(batches[0][1].producer_id)
            if refused_ms is not None and log.clock.monotonic_ms() - refused_ms < ROOMLESS_MS:
                # librdkafka takes a gap for lost records: it begins a new epoch in all partitions,
                # and sends again there what may be written already.
                return _storage_error(log, "the producer's batch before this one found no room")
        return AppendResult(
            error.error,
            error.message,
            log_start_offset=log.log_start_offset,
            record_errors=error.record_errors,
            keyless_count=error.keyless_count,
        )
    for position, header in batches:
        patch_batch(
            records,
            position,
            base_offset=header.base_offset,
            partition_leader_epoch=leader_epoch,
        )
        if config.uses_log_append_time:
            patch_log_append_time(records, position, header, now_ms)
    return _write(log, records, batches, updates, now_ms)


def _assign_offsets(
    log: Log, batches: Batches, leader_epoch: int, from_client: bool
) -> ProducerBatch | None:
    """Put offsets and leader epoch in the headers; a duplicate ends it."""
    offset = log.log_end_offset
    for _, header in batches:
        if from_client and header.producer_id >= 0:
            duplicate = log.producer_state.find_duplicate(header)
            if duplicate is not None:
                return duplicate
        header.base_offset = offset
        header.partition_leader_epoch = leader_epoch
        offset += header.last_offset_delta + 1
    if offset - log.log_end_offset > 2**31:
        raise AppendRejected(ErrorCode.INVALID_RECORD, "more records than a segment can number")
    return None


def append_as_follower(
    log: Log, records: bytearray | memoryview, *, leader_epoch: int
) -> AppendResult:
    """Write batches fetched from the leader, with the offsets and epochs they carry.

    What the leader took is taken, whatever the limits of the topic say now; more than a segment
    holds goes into several. A batch that is not there whole (a response ends where its limit was)
    is left for the next fetch, and so are batches of a newer epoch than `leader_epoch` (KIP-966:
    they are another leader's). Never raises: the result carries the error. After a full disk the
    log ends with one of the batches.
    """
    if log.offline:
        return _storage_error(log, log.offline_reason)
    now_ms = log.clock.now_ms()
    try:
        whole_bytes = whole_batches_bytes(records)
        if whole_bytes < len(records):
            records = memoryview(records)[:whole_bytes]
        checked = check_batches(records, log.config, AppendOrigin.REPLICATION, now_ms)
        batches = _following(log, checked, leader_epoch)
    except AppendRejected as error:
        return AppendResult(error.error, error.message, log_start_offset=log.log_start_offset)
    if not batches:
        return AppendResult(ErrorCode.NONE, log_start_offset=log.log_start_offset)
    if log.first_dirty_offset is None and _has_holes(log.log_end_offset, batches):
        try:
            log.note_first_dirty(log.log_start_offset)
        except OSError as error:
            log.first_dirty_offset = None
            return _write_failed(log, error, log.log_end_offset)
    if len(batches) < len(checked):
        records = memoryview(records)[: checked[len(batches)][0]]
    return _write_fetched(log, records, batches, now_ms)


def _following(log: Log, batches: Batches, leader_epoch: int) -> Batches:
    """Those that belong to `leader_epoch` or before it, each behind the one before.

    Raises: AppendRejected with CORRUPT_MESSAGE.
    """
    next_offset = log.log_end_offset
    # The first batch of an empty log may begin below it: the log start offset can lie inside the
    # leader's batch.
    may_begin_below = log.log_start_offset == next_offset and not log.active_segment.size_bytes
    for index, (_, header) in enumerate(batches):
        if header.partition_leader_epoch > leader_epoch:
            return batches[:index]
        if (header.last_offset if may_begin_below else header.base_offset) < next_offset:
            raise AppendRejected(
                ErrorCode.CORRUPT_MESSAGE,
                f"base offset {header.base_offset} where {next_offset} is next",
            )
        next_offset = header.next_offset
        may_begin_below = False
    return batches


def _has_holes(next_offset: int, batches: Batches) -> bool:
    """Whether offsets are missing: the leader's log was compacted."""
    for _, header in batches:
        if header.base_offset > next_offset:
            return True
        next_offset = header.base_offset + header.last_offset_delta + 1
    return False


def _write_fetched(
    log: Log, records: bytearray | memoryview, batches: Batches, now_ms: int
) -> AppendResult:
    """Write them in as few pieces as segments allow; what is written stays, whatever comes of the
    next piece.
    """
    whole: AppendResult | None = None
    view = memoryview(records)
    for start, end, piece in _pieces(batches, len(records), log.config.segment_bytes):
        part = records if end - start == len(records) else view[start:end]
        try:
            updates = _check_producers(log, part, piece, now_ms, None)
        except AppendRejected as error:
            return AppendResult(error.error, error.message, log_start_offset=log.log_start_offset)
        result = _write(log, part, piece, updates, now_ms)
        if result.error is not ErrorCode.NONE:
            return result
        if whole is None:
            whole = result
        else:
            whole.last_offset = result.last_offset
            whole.record_count += result.record_count
            whole.size_bytes += result.size_bytes
    assert whole is not None
    return whole


def _pieces(
    batches: Batches, size_bytes: int, segment_bytes: int
) -> Iterator[tuple[int, int, Batches]]:
    """`(start, end, batches)` of what fits in a segment each; positions count from the start. A
    batch that is larger than a segment gets one of its own.
    """
    first_offset = batches[0][1].base_offset
    if (
        size_bytes <= segment_bytes
        and batches[-1][1].last_offset - first_offset <= MAX_RELATIVE_OFFSET
    ):
        yield 0, size_bytes, batches
        return
    start = end = 0
    piece: Batches = []
    for position, header in batches:
        end = position + header.size_bytes
        if piece and (
            end - start > segment_bytes or header.last_offset - first_offset > MAX_RELATIVE_OFFSET
        ):
            yield start, position, piece
            start, first_offset, piece = position, header.base_offset, []
        piece.append((position - start, header))
    yield start, end, piece


def _check_producers(
    log: Log,
    records: bytearray | memoryview,
    batches: Batches,
    now_ms: int,
    origin: AppendOrigin | None,
    verification: Verification | None = None,
    transaction_version: int = 0,
) -> list[ProducerUpdate]:
    """What the batches do to their producers, or AppendRejected. A follower (no origin) takes
    what its leader took.
    """
    updates: dict[int, ProducerUpdate] = {}
    for position, header in batches:
        producer_id = header.producer_id
        if producer_id < 0:
            continue
        is_control = header.is_control
        if is_control and not header.record_count:
            continue  # Compaction took its record: it says nothing any more.
        update = updates.get(producer_id)
        if update is None:
            update = updates[producer_id] = log.producer_state.prepare(producer_id)
        if is_control:
            note_marker(
                update,
                records,
                position,
                header,
                now_ms,
                check=origin is not None,
                transaction_version=transaction_version,
            )
        else:
            if origin is AppendOrigin.CLIENT:
                update.check_data(header, verification)
            elif origin is AppendOrigin.COORDINATOR:
                update.check_coordinator_data(header)
            update.add_data(header, header.base_offset, now_ms)
    return list(updates.values())


def _write(
    log: Log,
    records: bytearray | memoryview,
    batches: Batches,
    updates: list[ProducerUpdate],
    now_ms: int,
) -> AppendResult:
    first = batches[0][1]
    last = batches[-1][1]
    next_offset = last.base_offset + last.last_offset_delta + 1
    segment = log.active_segment
    try:
        if not segment.is_active:
            segment.activate(log.config)
        if _must_roll(log, segment, len(records), batches, next_offset - 1, now_ms):
            segment = log.roll_to(_base_for(log, first.base_offset, next_offset - 1))
        aborts = any(each.is_aborted for update in updates for each in update.completed)
        try:
            if aborts:
                _note_aborted(log, segment, updates)
            segment.append(records, batches, log.config.index_interval_bytes)
        except OSError:
            if aborts:
                segment.transaction_index.truncate_to(first.base_offset)
            raise
    except (OSError, InvalidBatch) as error:
        if isinstance(error, OSError) and is_out_of_room(error):
            _note_roomless(log, batches)
        return _write_failed(log, error, first.base_offset)
    if log.is_out_of_room:
        log.is_out_of_room = False
        logger.info("%s: there is room again to append", log.name)
    if log.roomless_producers:
        for _, header in batches:
            log.roomless_producers.pop(header.producer_id, None)
    for _, header in batches:
        if header.partition_leader_epoch != log.leader_epoch_cache.latest_epoch:
            log.leader_epoch_cache.assign(header.partition_leader_epoch, header.base_offset)
    log.producer_state.apply(updates)
    log.producer_state.map_end_offset = next_offset
    log.log_end_offset = next_offset
    return AppendResult(
        ErrorCode.NONE,
        None,
        first.base_offset,
        next_offset - 1,
        now_ms if log.config.uses_log_append_time else -1,
        log.log_start_offset,
        (),
        False,
        next_offset - first.base_offset,
        len(records),
    )


def _note_roomless(log: Log, batches: Batches) -> None:
    """What these producers have sent behind these batches will come before them."""
    roomless = log.roomless_producers
    for _, header in batches:
        if header.producer_id >= 0:
            roomless.pop(header.producer_id, None)
            roomless[header.producer_id] = log.clock.monotonic_ms()
    while len(roomless) > MAX_ROOMLESS_PRODUCERS:
        del roomless[next(iter(roomless))]


def _base_for(log: Log, first_offset: int, last_offset: int) -> int:
    """Where a new segment for these offsets begins: at the log's end, so that a gap between
    segments is a power loss's work; but not farther from the last than it can number.
    """
    end = log.log_end_offset
    return first_offset if last_offset - end > MAX_RELATIVE_OFFSET else min(first_offset, end)


def _note_aborted(log: Log, segment: LogSegment, updates: list[ProducerUpdate]) -> None:
    """Aborted transactions go to the index first: without room for it nothing is written."""
    for completed, last_stable_offset in log.producer_state.endings(updates):
        if completed.is_aborted:
            segment.transaction_index.append(AbortedTransaction(*completed[:3], last_stable_offset))


def _duplicate(log: Log, batch: ProducerBatch, now_ms: int) -> AppendResult:
    return AppendResult(
        ErrorCode.NONE,
        None,
        batch.first_offset,
        batch.last_offset,
        now_ms if log.config.uses_log_append_time else -1,
        log.log_start_offset,
        is_duplicate=True,
    )


def _write_failed(log: Log, error: OSError | InvalidBatch, offset: int) -> AppendResult:
    if isinstance(error, OSError) and is_out_of_room(error):
        if log.active_segment.is_cut_back():
            if not log.is_out_of_room:
                log.is_out_of_room = True
                logger.warning("%s: no room to append at offset %d: %s", log.name, offset, error)
            return _storage_error(log, f"no room: {error}")
        log.take_offline(f"an append could not be undone: {error}")
    else:
        log.take_offline(f"append at offset {offset} failed: {error}")
    return _storage_error(log, log.offline_reason)


def _storage_error(log: Log, message: str) -> AppendResult:
    return AppendResult(
        ErrorCode.KAFKA_STORAGE_ERROR, message, log_start_offset=log.log_start_offset
    )


def _must_roll(
    log: Log,
    segment: LogSegment,
    size_bytes: int,
    batches: Batches,
    last_offset: int,
    now_ms: int,
) -> bool:
    if not segment.has_room_for(size_bytes, last_offset, log.config):
        return True
    if not segment.size_bytes:
        return False
    timestamp_ms = batches[0][1].max_timestamp_ms
    if len(batches) > 1:
        timestamp_ms = max([header.max_timestamp_ms for _, header in batches])
    base_ms = segment.rolling_base_timestamp_ms()
    waited_ms = timestamp_ms - base_ms if base_ms >= 0 else now_ms - segment.created_ms
    return waited_ms > log.config.max_segment_ms - _roll_jitter_ms(log, segment)


def _roll_jitter_ms(log: Log, segment: LogSegment) -> int:
    """Spreads the rolls of logs begun together; the same for a segment after a restart."""
    limit = min(log.config.segment_jitter_ms, log.config.max_segment_ms)
    if limit <= 0:
        return 0
    return zlib.crc32(f"{log.name}/{segment.base_offset}".encode()) % limit
