"""Batches from a leader, before a follower appends them.

Owns: what is demanded of them: whole, intact, continuing the log without a gap, epochs that never
fall. Must not: touch the log; runs in any thread. Invariant: what it lets through can be appended
byte for byte, and everything after the first fault is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    InvalidBatch,
    read_batch_header,
    validate_header,
    verify_crc,
)
from moldau.protocol.types import Buffer
from moldau.raft.batch_codec import DecodedBatch, decode_batches
from moldau.raft.values import CommittedBatch, MetadataLogError

MAX_PIECE_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class FetchedPiece:
    """Consecutive batches for one append, and what is known of each."""

    records: memoryview
    batches: list[CommittedBatch | None] = field(default_factory=list)
    """None for one whose metadata records are of a kind not known here."""
    control: list[DecodedBatch] = field(default_factory=list)


@dataclass(slots=True)
class FetchedBatches:
    """What may be appended, in order; `refusal` says why there is no more, None if nothing is
    wrong.
    """

    pieces: list[FetchedPiece] = field(default_factory=list)
    refusal: str | None = None


def check_fetched(
    records: Buffer,
    *,
    base_offset: int,
    last_leader_epoch: int,
    leader_epoch: int,
    max_piece_bytes: int = MAX_PIECE_BYTES,
) -> FetchedBatches:
    """Check batches that shall be appended at `base_offset`.

    A last batch that is not whole is no fault: a response ends where its size limit does. The first
    one must be whole.

    Args:
        last_leader_epoch: of the record before `base_offset`.
        leader_epoch: of the leader they came from; no batch can be newer.
        max_piece_bytes: of one append, larger single batches excepted.
    """
    view = memoryview(records)
    fetched = FetchedBatches()
    position = piece_start = 0
    next_offset, epoch = base_offset, last_leader_epoch
    piece = FetchedPiece(view[:0])
    while position < len(view):
        try:
            header = _check_batch(view, position, next_offset, epoch, leader_epoch)
            if header is None:
                if position == 0:
                    fetched.refusal = f"{len(view)} bytes hold no whole batch"
                break
            end = position + header.size_bytes
            decoded = _decode(view[position:end], header)
        except (InvalidBatch, MetadataLogError) as error:
            fetched.refusal = str(error)
            break
        if piece.batches and end - piece_start > max_piece_bytes:
            piece.records = view[piece_start:position]
            fetched.pieces.append(piece)
            piece, piece_start = FetchedPiece(view[:0]), position
        piece.batches.append(decoded.as_committed() if decoded is not None else None)
        if decoded is not None and decoded.control_records:
            piece.control.append(decoded)
        position = end
        next_offset, epoch = header.next_offset, header.partition_leader_epoch
    if piece.batches:
        piece.records = view[piece_start:position]
        fetched.pieces.append(piece)
    return fetched


def _check_batch(
    view: memoryview, position: int, next_offset: int, epoch: int, leader_epoch: int
) -> BatchHeader | None:
    """The header of the batch at `position`; None when the batch is not whole.

    Raises: InvalidBatch, MetadataLogError.
    """
    if len(view) - position < BATCH_HEADER_SIZE:
        return None
    header = read_batch_header(view, position)
    if position + header.size_bytes > len(view):
        return None
    if not verify_crc(view, position, header):
        raise MetadataLogError(f"at offset {next_offset}: the CRC does not match")
    validate_header(header, position, from_client=False)
    if header.base_offset != next_offset:
        raise MetadataLogError(f"base offset {header.base_offset} where {next_offset} is next")
    if not epoch <= header.partition_leader_epoch <= leader_epoch:
        raise MetadataLogError(
            f"at offset {next_offset}: leader epoch {header.partition_leader_epoch} after {epoch}, "
            f"from the leader of {leader_epoch}"
        )
    return header


def _decode(data: memoryview, header: BatchHeader) -> DecodedBatch | None:
    """The batch's records; None when they are metadata records of a kind not known here.

    Such bytes are intact and belong into the log; whoever is to apply them will say more.

    Raises: MetadataLogError: a control batch that makes no sense.
    """
    try:
        (decoded,) = decode_batches(data, "fetched")
    except MetadataLogError:
        if header.is_control:
            raise
        return None
    return decoded
