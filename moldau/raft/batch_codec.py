"""Metadata records in record batches, and back.

Owns: how a run of metadata records becomes one batch, and what a batch of the metadata log means.
Must not: touch files. Invariant: a data batch holds framed metadata records without keys, a control
batch holds control records, and nothing else is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.metadata_records.frame import decode_record, encode_record
from moldau.protocol.records import (
    BatchHeader,
    ControlRecordType,
    InvalidBatch,
    Record,
    decode_control_key,
    decode_records,
    encode_batch,
    iter_batches,
    verify_crc,
)
from moldau.protocol.schema import Message
from moldau.protocol.types import Buffer
from moldau.raft.values import CommittedBatch, MetadataLogError

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
    values: Sequence[bytes],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
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
            records = decode_records(data, position, max_bytes=MAX_DECOMPRESSED_BYTES)
            if header.is_control:
                control = tuple(
                    (decode_control_key(record.key).type, bytes(record.value or b""))
                    for record in records
                )
                yield DecodedBatch(header, control_records=control)
            else:
                yield DecodedBatch(header, tuple(_metadata_record(record) for record in records))
    except (InvalidBatch, RemoteProtocolError) as error:
        raise MetadataLogError(f"{source}: {error}") from None


def _metadata_record(record: Record) -> Message:
    if record.value is None:
        raise RemoteProtocolError(f"the record at offset {record.offset} has no value")
    return decode_record(record.value)[0]
