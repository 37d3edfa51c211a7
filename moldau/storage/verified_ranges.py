"""Which bytes of a segment this process may hand out without looking at them.

Owns: the byte ranges whose CRCs were checked since start-up, and the check itself.
Must not: decide what happens to a partition whose bytes fail (log_read does).
Invariant: a range is added only after every batch in it passed; bytes this process wrote itself
need no check.

Why per range and not per segment: the check costs one pass over the bytes (CRC at about 25 GB/s,
and one read that brings a cold range into the page cache anyway), paid by the first reader of that
range only, in the thread pool, and never for more than one response's bytes at a time.
"""

from __future__ import annotations

from bisect import bisect_right

from moldau.protocol.records import InvalidBatch, InvalidBatchReason
from moldau.runtime.filesystem import FileRegion
from moldau.storage.batch_scan import scan_verified
from moldau.storage.leader_epoch_cache import UNDEFINED_EPOCH, LeaderEpochCache

MAX_VERIFIED_RANGES = 256
"""Separate ranges remembered per segment; a random reader beyond that pays again."""


class VerifiedRanges:
    """Byte ranges [start, end) of one segment file, merged where they touch."""

    __slots__ = ("_ends", "_starts", "trusted_from")

    def __init__(self, trusted_from: int) -> None:
        self.trusted_from = trusted_from
        """Bytes from here on were written, or checked by recovery, in this process."""
        self._starts: list[int] = []
        self._ends: list[int] = []

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) may be handed out."""
        end = min(end, self.trusted_from)
        if start >= end:
            return True
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and end <= self._ends[index]

    def add(self, start: int, end: int) -> None:
        """[start, end) was checked."""
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, start - 1)
        high = bisect_right(starts, end)
        if low < high:
            start = min(start, starts[low])
            end = max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
        if end >= self.trusted_from:
            self.trusted_from = min(start, self.trusted_from)
        if len(starts) > MAX_VERIFIED_RANGES:
            # Not the new one: its reader comes back for it now, and would begin again.
            others = (i for i in range(len(starts)) if i != low)
            smallest = min(others, key=lambda i: ends[i] - starts[i])
            del starts[smallest], ends[smallest]

    def truncate(self, size_bytes: int) -> None:
        """The file ends at `size_bytes` now; what is written after it is this process's own."""
        self.trusted_from = min(self.trusted_from, size_bytes)


class RegionVerification:
    """The check of the bytes one read wants to hand out: CRCs, and what no CRC covers.

    Offsets must continue each other, leader epochs be those of the epoch cache.

    `run` blocks on the disk and may run in any thread; it changes nothing but `failure`.
    """

    __slots__ = ("contiguous", "epochs", "expected_offset", "failure", "region")

    def __init__(
        self,
        region: FileRegion,
        expected_offset: int,
        epochs: LeaderEpochCache,
        *,
        contiguous: bool,
    ) -> None:
        self.region = region
        self.epochs = epochs
        self.expected_offset = expected_offset
        """The offset that must lie in the region's first batch."""
        self.contiguous = contiguous
        self.failure: InvalidBatch | OSError | None = None

    def run(self) -> None:
        """Check every batch of the region. Never raises: the outcome is in `failure`."""
        region = self.region
        end = region.position + region.length
        next_offset = -1
        try:
            for position, header, _ in scan_verified(region.file, region.position, end):
                if next_offset < 0:
                    fits = header.last_offset >= self.expected_offset and (
                        not self.contiguous or header.base_offset <= self.expected_offset
                    )
                elif self.contiguous:
                    fits = header.base_offset == next_offset
                else:
                    fits = header.base_offset >= next_offset
                if not fits:
                    raise InvalidBatch(
                        InvalidBatchReason.BAD_OFFSET,
                        f"base offset {header.base_offset} does not follow {next_offset - 1}",
                        position=position,
                    )
                known_epoch = self.epochs.epoch_for_offset(header.base_offset)
                if known_epoch not in (UNDEFINED_EPOCH, header.partition_leader_epoch):
                    raise InvalidBatch(
                        InvalidBatchReason.BAD_OFFSET,
                        f"leader epoch {header.partition_leader_epoch}, not {known_epoch}",
                        position=position,
                    )
                next_offset = header.next_offset
        except (InvalidBatch, OSError) as error:
            self.failure = error
