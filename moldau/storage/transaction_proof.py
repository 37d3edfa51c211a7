"""TransactionProof: a transaction index that no seal speaks for, read again from the markers.

Owns: in which order segments are read, and what is known of open transactions on the way.
Must not: change offsets or batches, or tell readers of aborted transactions.
Invariant: an index is proved by all batches of its segment, from a state of the producers that is
itself certain: that of an empty log, of a sealed snapshot, or of the segment read before.
"""

from __future__ import annotations

import logging

from moldau.protocol.records import InvalidBatch, verify_crc
from moldau.runtime.files import FileRegion
from moldau.storage.batch_scan import VERIFY_SCAN_BYTES, require_crc, scan_headers
from moldau.storage.faults import LogOffline
from moldau.storage.indexes import AbortedTransaction
from moldau.storage.log import Log
from moldau.storage.producer_entry import NO_OFFSET
from moldau.storage.producer_state import NO_CRC, ProducerState
from moldau.storage.segment import LogSegment

logger = logging.getLogger(__name__)


class TransactionProof:
    """Steps: `while proof.locate(): await offload(proof.run)`, as those of a `TimestampSearch`.

    `locate` belongs to the log's loop: it takes over what the last `run` has read, and picks the
    next segment. `run` reads the batch headers of one segment and its markers; it may run in any
    thread and touches nothing but the proof.
    """

    def __init__(self, log: Log, start_offset: int, upper_bound_offset: int) -> None:
        """Prove what `Log.aborted_transactions` of that range looks at."""
        self._log = log
        self._range = start_offset, upper_bound_offset
        self._begin()

    def _begin(self) -> None:
        self._state: ProducerState | None = None
        self._segment: LogSegment | None = None
        self._region: FileRegion | None = None
        self._failure: InvalidBatch | OSError | None = None
        self._snapshot_crc = NO_CRC

    def locate(self) -> bool:
        """Whether there is a step to `run`; False: the range is proved. Raises: LogOffline."""
        log = self._log
        log.require_online()
        try:
            self._take_over()
            return self._choose_segment()
        except (InvalidBatch, OSError) as error:
            raise log.lookup_failed("transaction index", error) from None

    def _choose_segment(self) -> bool:
        log = self._log
        segments = log.segments
        needed = segments.first_unproved(*self._range)
        if needed is None:
            segments.has_unproved = any(not each.transaction_index.is_proved for each in segments)
            return False
        if self._state is None:
            number = self._restore(needed)
        else:
            number = segments.index_for(self._state.map_end_offset)
        segment = self._segment = segments[number]
        self._changes = log.truncation_count, segments.replacement_count
        self._end_offset = log.end_offset_of(number)
        self._order = segment.order(self._end_offset)
        self._entries: list[AbortedTransaction] = []
        self._region = FileRegion(segment.file(), 0, segment.size_bytes)
        self._now_ms = log.clock.now_ms()
        return True

    def _restore(self, needed: int) -> int:
        """Begin with the last certain state at or before segment number `needed`."""
        log = self._log
        producers = log.producer_state
        state = self._state = ProducerState(log.filesystem, log.directory, producers.expiration_ms)
        for number in range(needed, 0, -1):
            base_offset = log.segments[number].base_offset
            if base_offset in producers.snapshot_crcs and base_offset in producers.snapshot_offsets:
                state.snapshot_offsets = [base_offset]
                state.snapshot_crcs = {base_offset: producers.snapshot_crcs[base_offset]}
                state.load_newest(base_offset, base_offset, log.clock.now_ms())
                if state.snapshot_offsets:
                    return number
                producers.remove_snapshot(base_offset)
        return 0

    def run(self) -> None:
        """Read the segment's headers and markers. Never raises: `locate` evaluates the outcome."""
        region, state = self._region, self._state
        assert region is not None, "locate chooses what to run"
        assert state is not None
        self._region = None
        try:
            for position, header in scan_headers(region.file, 0, region.length, self._order):
                if header.producer_id < 0:
                    continue
                batch = b""
                if header.is_control and header.size_bytes <= VERIFY_SCAN_BYTES:
                    batch = region.file.pread(header.size_bytes, position)
                    require_crc(verify_crc(batch, 0, header), position)
                state.replay(header, batch, self._now_ms, index=self._entries)
                if header.is_control:
                    state.on_high_watermark(header.next_offset)  # Their ends need no memory.
            state.map_end_offset = self._end_offset
            self._snapshot_crc = _crc_of_snapshot(state)
        except (InvalidBatch, OSError) as error:
            self._failure = error
        finally:
            region.release()

    def _take_over(self) -> None:
        """Use what the last `run` has read, unless the log was changed. Raises: OSError,
        InvalidBatch.
        """
        log, segment, state, failure = self._log, self._segment, self._state, self._failure
        if segment is None or state is None:
            return
        now = log.truncation_count, log.segments.replacement_count
        if self._changes != now or segment not in log.segments:
            self._begin()
            return
        if failure is not None:
            raise failure
        end_offset = self._end_offset
        producers = log.producer_state
        if end_offset in producers.snapshot_offsets and self._snapshot_crc != NO_CRC:
            producers.snapshot_crcs[end_offset] = self._snapshot_crc
        index = segment.transaction_index
        index.settled_below = min(state.open_transactions(), default=end_offset)
        if index.is_proved:
            return
        if index.adopt(self._entries, end_offset):
            logger.warning("%s: rebuilt from the log: it was not whole", index.path)
        if end_offset <= log.recovery_point:
            number = log.segments.index_for(segment.base_offset)
            epochs = log.leader_epoch_cache.entries
            log.segments.seal_closed([number], log.log_end_offset, epochs)


def _crc_of_snapshot(state: ProducerState) -> int:
    """The CRC of the snapshot where `state` stands, if the same transactions are open in both."""
    try:
        entries, crc = state.read_snapshot(state.map_end_offset)
    except (OSError, ValueError):
        return NO_CRC
    found = {
        each.current_txn_first_offset: each.producer_id
        for each in entries
        if each.current_txn_first_offset != NO_OFFSET
    }
    return crc if found == state.open_transactions() else NO_CRC


async def prove(log: Log, start_offset: int, upper_bound_offset: int) -> bool:
    """Prove what `Log.aborted_transactions` of that range looks at, and seal it; whether it is."""
    proof = TransactionProof(log, start_offset, upper_bound_offset)
    try:
        while proof.locate():
            await log.filesystem.offload(proof.run)
    except LogOffline as offline:
        logger.error("%s", offline)
        return False
    try:
        await log.filesystem.offload(log.segments.seals.write)
    except OSError as error:
        logger.warning("%s: its segments are not sealed now: %s", log.name, error)
    return True
