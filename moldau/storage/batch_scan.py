"""Walking over the batches of a segment file: headers only, or every byte with its CRC.

Owns: `BatchOrder`, the check of what no CRC covers: base offset and leader epoch.
Invariant: whatever the file holds, only InvalidBatch (with the file position) and OSError are
raised, no read goes past `end`, and no batch comes out that does not follow the one before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    InvalidBatch,
    InvalidBatchReason,
    read_batch_header,
    verify_crc,
)
from moldau.protocol.records.header import CRC_COVERED_FROM, MAX_BASE_OFFSET, crc32c
from moldau.runtime.files import Buffer, File
from moldau.storage.checkpoints import EpochStartOffset

HEADER_SCAN_BYTES = 8 * 1024
"""Read at a time for headers only: small batches share a read, large ones are skipped."""

VERIFY_SCAN_BYTES = 1024 * 1024
"""Read at a time when every byte is wanted; memory stays at that, however large a batch is."""

crc32c_from = cast("Callable[[Buffer, int], int]", crc32c)
_NO_BYTES = memoryview(b"")

NO_END = MAX_BASE_OFFSET


@dataclass(slots=True, eq=False)
class BatchOrder:
    """Where the batches of one pass may lie, and under which leader epochs.

    Neither the base offset nor the leader epoch is covered by a batch's CRC: one changed bit moves
    all of its records. What a pass over neighbours can tell: offsets ascend within the bounds,
    epochs never descend, and where the epochs of the log are known, each batch has its own.
    A wrong offset that stays between its neighbours, in a gap that compaction left, is not found.
    """

    next_offset: int = 0
    """The next batch begins here, or later; with `contiguous` exactly here."""
    end_offset: int = NO_END
    """No batch reaches it."""
    contiguous: bool = False
    lowest_offset: int | None = None
    """The first batch may begin below `next_offset`, down to here, if it reaches `next_offset`;
    None: it may not."""
    leader_epoch: int = -1
    """The leader epoch of the batch before."""
    epochs: Sequence[EpochStartOffset] = ()
    """The log's leader epochs, as far as they are known; -1 in a batch means unknown."""
    _known_epoch: int = field(default=-1, init=False)
    _known_to: int = field(default=-1, init=False)
    """Batches that begin below it have `_known_epoch`."""

    def check(self, position: int, header: BatchHeader) -> None:
        """Take the next batch, which begins at byte `position`. Raises: InvalidBatch."""
        base_offset, expected = header.base_offset, self.next_offset
        next_offset = base_offset + header.last_offset_delta + 1
        if base_offset != expected:
            lowest = self.lowest_offset
            straddles = lowest is not None and lowest <= base_offset and next_offset > expected
            if self.contiguous if base_offset > expected else not straddles:
                raise bad_offset(position, f"base offset {base_offset} where {expected} is next")
        if not base_offset < next_offset <= self.end_offset:
            reason = f"offsets {base_offset} to {next_offset - 1}, the end is {self.end_offset}"
            raise bad_offset(position, reason)
        leader_epoch = header.partition_leader_epoch
        if leader_epoch < self.leader_epoch:
            reason = f"leader epoch {leader_epoch} after {self.leader_epoch}"
            raise bad_offset(position, reason)
        if base_offset >= self._known_to:
            self._find_epoch(base_offset)
        if leader_epoch != self._known_epoch != -1:
            reason = f"leader epoch {leader_epoch} where the log has {self._known_epoch}"
            raise bad_offset(position, reason)
        self.next_offset, self.leader_epoch, self.lowest_offset = next_offset, leader_epoch, None

    def _find_epoch(self, offset: int) -> None:
        index = bisect_right(self.epochs, offset, key=lambda each: each.start_offset)
        self._known_epoch = self.epochs[index - 1].leader_epoch if index else -1
        following = self.epochs[index : index + 1]
        self._known_to = following[0].start_offset if following else NO_END + 1


def bad_offset(position: int, reason: str) -> InvalidBatch:
    return InvalidBatch(InvalidBatchReason.BAD_OFFSET, reason, position=position)


def check_frame(header: BatchHeader, position: int, end: int) -> None:
    if position + header.size_bytes > end:
        raise InvalidBatch(
            InvalidBatchReason.TRUNCATED,
            f"a batch of {header.size_bytes} bytes where {end - position} are left",
            position=position,
        )


def scan_headers(
    file: File, position: int, end: int, order: BatchOrder
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in [position, end), as `order` demands; record bytes are
    not read.

    Raises: InvalidBatch, OSError.
    """
    chunk = b""
    chunk_position = position
    while position < end:
        at = position - chunk_position
        if at + BATCH_HEADER_SIZE > len(chunk):
            chunk = file.pread(min(HEADER_SCAN_BYTES, end - position), position)
            chunk_position, at = position, 0
        try:
            header = read_batch_header(chunk, at)
        except InvalidBatch as error:
            raise error.at(position) from None
        check_frame(header, position, end)
        order.check(position, header)
        yield position, header
        position += header.batch_length + LOG_OVERHEAD


def scan_verified(
    file: File, position: int, end: int, order: BatchOrder
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of each batch in [position, end), its CRC and `order` checked.

    The bytes are good until the next step; of a batch larger than VERIFY_SCAN_BYTES there are none.
    Raises: InvalidBatch, OSError.
    """
    buffer = bytearray(min(VERIFY_SCAN_BYTES, max(end - position, 1)))
    filled = 0
    chunk_position = position
    while position < end:
        at = position - chunk_position
        header = _header_within(buffer, at, filled, position)
        if header is None or (at and at + header.size_bytes > filled):
            with memoryview(buffer) as view, view[: end - position] as wanted:
                filled = file.pread_into(wanted, position)
            chunk_position, at = position, 0
            header = _header_within(buffer, 0, filled, position)
            if header is None:
                raise InvalidBatch(
                    InvalidBatchReason.TRUNCATED,
                    f"{filled} bytes are no batch header",
                    position=position,
                )
        check_frame(header, position, end)
        if at + header.size_bytes <= filled:
            with memoryview(buffer) as view, view[at : at + header.size_bytes] as batch:
                require_crc(verify_crc(batch, 0, header), position)
                order.check(position, header)
                yield position, header, batch
        else:
            require_crc(_streamed_crc(file, position, header, buffer) == header.crc, position)
            order.check(position, header)
            filled = 0
            yield position, header, _NO_BYTES
        position += header.size_bytes


def require_crc(matches: bool, position: int) -> None:
    if not matches:
        raise InvalidBatch(InvalidBatchReason.BAD_CRC, "the CRC does not match", position=position)


def _streamed_crc(file: File, position: int, header: BatchHeader, buffer: bytearray) -> int:
    """The CRC of a batch larger than `buffer`, read through it. Raises: InvalidBatch, OSError."""
    crc = 0
    at = position + CRC_COVERED_FROM
    end = position + header.size_bytes
    while at < end:
        with memoryview(buffer) as view, view[: end - at] as wanted:
            count = file.pread_into(wanted, at)
            if not count:
                raise InvalidBatch(
                    InvalidBatchReason.TRUNCATED, "the file ends early", position=position
                )
            with wanted[:count] as part:
                crc = crc32c_from(part, crc)
        at += count
    return crc


def _header_within(buffer: bytearray, at: int, filled: int, position: int) -> BatchHeader | None:
    if at + BATCH_HEADER_SIZE > filled:
        return None
    try:
        return read_batch_header(buffer, at)
    except InvalidBatch as error:
        raise error.at(position) from None
