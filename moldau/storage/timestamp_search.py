"""TimestampSearch: finding an offset by time.

Owns: the search over segments, the time index and inside one batch.
Must not: know ListOffsets' special timestamps other than the largest one.
Invariant: batches are decoded only after their CRC was checked; the answer is below the search's
bound, and in the log when it is given. Sources: KIP-33, KIP-734.
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.protocol.records import (
    BatchHeader,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    decode_records,
    verify_crc,
)
from moldau.runtime.files import FileRegion
from moldau.storage.batch_scan import scan_headers
from moldau.storage.log import Log
from moldau.storage.segment import LogSegment


class TimestampedOffset(NamedTuple):
    """A record's timestamp and offset, and the leader epoch it was written under (-1 unknown)."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class TimestampSearch:
    """A search by time in steps: `while search.locate(): await offload(search.run)`, then `found`.

    `locate` belongs to the log's loop: it evaluates the last `run` and picks the segment and the
    position for the next one. `run` reads and decompresses at most one batch per candidate; it may
    run in any thread and touches nothing but the search. In between the log may roll, be cut or
    deleted: records that were removed since are not found, the search begins again instead.
    """

    def __init__(self, log: Log, timestamp_ms: int, *, max_offset: int | None = None) -> None:
        """`max_offset` is exclusive; None: the log end offset of now."""
        self._log = log
        self._timestamp_ms = timestamp_ms
        self._limit = log.log_end_offset if max_offset is None else max_offset
        self.found: TimestampedOffset | None = None
        self._begin()

    @classmethod
    def for_max_timestamp(cls, log: Log) -> TimestampSearch:
        """Search for the first record with the largest timestamp. Raises: LogOffline."""
        log.require_online()
        try:
            largest = max(each.max_timestamp()[0] for each in log.segments)
        except (InvalidBatch, OSError) as error:
            raise log.lookup_failed("lookup by time", error) from None
        return cls(log, largest, max_offset=None if largest >= 0 else 0)

    def _begin(self) -> None:
        self._base_offset = -1
        """Segments up to the one that begins here hold no such record."""
        self._is_rebuilt = False
        self._segment: LogSegment | None = None
        self._region: FileRegion | None = None
        self._seen: TimestampedOffset | None = None
        self._failure: InvalidBatch | OSError | None = None

    def locate(self) -> bool:
        """Whether there is a step to `run`; False: the search has ended. Raises: LogOffline."""
        log = self._log
        log.require_online()
        try:
            return not self._is_over() and self._choose_segment()
        except (InvalidBatch, OSError) as error:
            raise log.lookup_failed("lookup by time", error) from None

    def _is_over(self) -> bool:
        """Whether the last step ended the search. Raises: OSError, InvalidBatch."""
        segment, seen, failure = self._segment, self._seen, self._failure
        if segment is None:
            return False
        log = self._log
        if (
            self._truncation_count != log.truncation_count
            or self._replacement_count != log.segments.replacement_count
            or (seen is not None and seen.offset < log.log_start_offset)
        ):
            self._begin()
            return False
        if isinstance(failure, InvalidBatch) and not self._is_rebuilt:
            # A wrong index is rebuilt once from the log file. A segment that was deleted since has
            # no file of that name any more, and nothing to find either.
            self._is_rebuilt = True
            if segment in log.segments:
                segment.rebuild_indexes(log.config)
                return False
        elif failure is not None:
            raise failure
        self._base_offset = segment.base_offset
        self._is_rebuilt = False
        if seen is None:
            return False
        self.found = seen if seen.offset < self._limit else None
        return True

    def _choose_segment(self) -> bool:
        """Set out the next step, if there is one. Raises: OSError, InvalidBatch."""
        log = self._log
        for segment in log.segments:
            if segment.base_offset >= self._limit:
                break
            if segment.base_offset <= self._base_offset or not segment.size_bytes:
                continue
            if segment.max_timestamp()[0] < self._timestamp_ms:
                continue
            self._segment = segment
            self._seen = self._failure = None
            self._truncation_count = log.truncation_count
            self._replacement_count = log.segments.replacement_count
            self._log_start_offset = log.log_start_offset
            file = segment.file()
            # No record up to that entry's offset reaches the timestamp, unless it equals it.
            _, offset = segment.time_index.lookup(self._timestamp_ms - 1)
            _, start = segment.offset_index.lookup(max(offset, log.log_start_offset))
            self._region = FileRegion(file, start, segment.size_bytes - start)
            return True
        return False

    def run(self) -> None:
        """Read the batches `locate` chose. Never raises: `locate` evaluates the outcome."""
        region, self._region = self._region, None
        assert region is not None, "locate chooses what to run"
        try:
            self._seen = self._search(region)
        except (InvalidBatch, OSError) as error:
            self._failure = error
        finally:
            region.release()

    def _search(self, region: FileRegion) -> TimestampedOffset | None:
        timestamp_ms, log_start_offset = self._timestamp_ms, self._log_start_offset
        end = region.position + region.length
        assert self._segment is not None
        order = self._segment.order()
        for position, header in scan_headers(region.file, region.position, end, order):
            if header.max_timestamp_ms < timestamp_ms or header.last_offset < log_start_offset:
                continue
            for record in _records(region, position, header):
                if record.timestamp_ms >= timestamp_ms and record.offset >= log_start_offset:
                    return TimestampedOffset(
                        record.timestamp_ms, record.offset, header.partition_leader_epoch
                    )
        return None


def _records(region: FileRegion, position: int, header: BatchHeader) -> list[Record]:
    data = region.file.pread(header.size_bytes, position)
    if len(data) != header.size_bytes or not verify_crc(data, 0, header):
        raise InvalidBatch(
            InvalidBatchReason.BAD_CRC,
            f"{region.file.name}: the CRC does not match",
            position=position,
        )
    try:
        return decode_records(data)
    except InvalidBatch:
        # A producer sent this, intact and unreadable: no damage, and no single record to name.
        return [Record(header.base_offset, header.max_timestamp_ms, None, None)]
