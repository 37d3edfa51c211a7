"""Metadata records in record batches, and back; and what a follower demands of fetched batches.

Owns: how a run of metadata records becomes one batch, and what a batch of the metadata log means.
Must not: touch files or the log; runs in any thread. Invariant: a data batch holds framed metadata
records without keys, a control batch holds control records, and nothing else is accepted. What
`check_fetched` lets through can be appended byte for byte, and everything after the first fault is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.metadata.log import CommittedBatch
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.metadata_records.frame import decode_record, encode_record
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    ControlRecordType,
    InvalidBatch,
    Record,
    decode_control_key,
    decode_records,
    encode_batch,
    iter_batches,
    read_batch_header,
    validate_header,
    verify_crc,
)
from moldau.protocol.schema import Message
from moldau.protocol.types import Buffer
from moldau.raft.values import MetadataLogError

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""A batch that grows over this is taken for damage."""


@dataclass(slots=True)
class DecodedBatch:
    """One batch: its records, or its control records."""

    header: BatchHeader
    records: tuple[Message, ...] = ()
    control_records: tuple[tuple[ControlRecordType | int, bytes], ...] = ()

    def as_committed(self) -> CommittedBatch:
        """The form that listeners get."""
        header = self.header
        return CommittedBatch(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.partition_leader_epoch,
            append_timestamp_ms=header.max_timestamp_ms,
            size_bytes=header.size_bytes,
            records=self.records,
        )


def encode_data_batch(
    records: Sequence[tuple[Message, int]],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """One batch of metadata records, each with the version to write it as."""
    return encode_values(
        [encode_record(record, version) for record, version in records],
        timestamp_ms=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def encode_values(
    values: Sequence[bytes], *, timestamp_ms: int, base_offset: int = 0, leader_epoch: int = -1
) -> bytearray:
    """One batch of metadata records that are encoded already."""
    return encode_batch(
        [
            Record(base_offset + index, timestamp_ms, None, value)
            for index, value in enumerate(values)
        ],
        base_offset=base_offset,
        partition_leader_epoch=leader_epoch,
    )


def decode_batches(data: Buffer, source: str) -> Iterator[DecodedBatch]:
    """Every batch of `data`, CRC checked.

    Args:
        source: the file, for messages.

    Raises:
        MetadataLogError: damaged, or of a kind that does not belong here.
    """
    try:
        for position, header in iter_batches(data):
            if not verify_crc(data, position, header):
                raise MetadataLogError(f"{source}: at byte {position}: the CRC does not match")
            yield _decode_batch(data, position, header)
    except (InvalidBatch, RemoteProtocolError) as error:
        raise MetadataLogError(f"{source}: {error}") from None


def _decode_batch(data: Buffer, position: int, header: BatchHeader) -> DecodedBatch:
    """Raises InvalidBatch, RemoteProtocolError."""
    records = decode_records(data, position, max_bytes=MAX_DECOMPRESSED_BYTES)
    if header.is_control:
        control = tuple(
            (decode_control_key(record.key).type, bytes(record.value or b"")) for record in records
        )
        return DecodedBatch(header, control_records=control)
    return DecodedBatch(header, tuple(_metadata_record(record) for record in records))


def _metadata_record(record: Record) -> Message:
    if record.value is None:
        raise RemoteProtocolError(f"the record at offset {record.offset} has no value")
    return decode_record(record.value)[0]


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

    Raises InvalidBatch, MetadataLogError.
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

    Such bytes are intact and belong into the log; the listener that applies them reports them.

    Raises MetadataLogError: a control batch that makes no sense.
    """
    try:
        return _decode_batch(data, 0, header)
    except (InvalidBatch, RemoteProtocolError) as error:
        if header.is_control:
            raise MetadataLogError(f"fetched: {error}") from None
        return None
