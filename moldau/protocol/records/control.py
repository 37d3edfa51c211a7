"""Control records: transaction markers and the quorum's own records (KIP-98, KIP-595, KIP-630,
KIP-853).

The values of the quorum's control records are messages of their own and pass through here as bytes.
Control records live only in batches with the control bit, never beside data.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from moldau.protocol.records.batch import encode_batch
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.records.record import Record

_KEY_STRUCT: Final = struct.Struct(">hh")
_END_TXN_STRUCT: Final = struct.Struct(">hi")
CONTROL_KEY_VERSION: Final = 0
END_TXN_MARKER_VERSION: Final = 0


class ControlRecordType(IntEnum):
    """Types of control records."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(slots=True)
class ControlKey:
    """A control record's key. `type` is a plain int when a newer Kafka defined it."""

    version: int
    type: ControlRecordType | int


@dataclass(slots=True)
class EndTxnMarker:
    """A transaction's end in one partition: COMMIT or ABORT, by which coordinator epoch."""

    type: ControlRecordType
    coordinator_epoch: int


def encode_control_key(record_type: ControlRecordType) -> bytes:
    """Key of a control record, version 0."""
    return _KEY_STRUCT.pack(CONTROL_KEY_VERSION, record_type)


def decode_control_key(key: bytes | None) -> ControlKey:
    """Version and type of a control record. Newer versions may carry more bytes.

    Raises InvalidBatch (BAD_CONTROL) on a key that is absent, short or of a negative version.
    """
    if key is None or len(key) < _KEY_STRUCT.size:
        raise InvalidBatch(InvalidBatchReason.BAD_CONTROL, "a control record without a whole key")
    version, type_id = _KEY_STRUCT.unpack_from(key)
    if version < 0:
        raise InvalidBatch(InvalidBatchReason.BAD_CONTROL, f"control key version {version}")
    try:
        return ControlKey(version, ControlRecordType(type_id))
    except ValueError:
        return ControlKey(version, type_id)


def decode_end_txn_marker(record: Record) -> EndTxnMarker:
    """The marker in a control record of a transactional batch.

    Raises InvalidBatch (BAD_CONTROL) when it is another control record or cut short.
    """
    control_key = decode_control_key(record.key)
    record_type = control_key.type
    if record_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise InvalidBatch(
            InvalidBatchReason.BAD_CONTROL, f"control type {record_type} ends no transaction"
        )
    if record.value is None or len(record.value) < _END_TXN_STRUCT.size:
        raise InvalidBatch(InvalidBatchReason.BAD_CONTROL, "an end-transaction marker cut short")
    version, coordinator_epoch = _END_TXN_STRUCT.unpack_from(record.value)
    if version < END_TXN_MARKER_VERSION:
        raise InvalidBatch(InvalidBatchReason.BAD_CONTROL, f"marker version {version}")
    return EndTxnMarker(ControlRecordType(record_type), coordinator_epoch)


def encode_end_txn_batch(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a transaction of `producer_id` in one partition."""
    assert marker.type in (ControlRecordType.ABORT, ControlRecordType.COMMIT)
    value = _END_TXN_STRUCT.pack(END_TXN_MARKER_VERSION, marker.coordinator_epoch)
    return encode_batch(
        [Record(base_offset, timestamp_ms, encode_control_key(marker.type), value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        partition_leader_epoch=partition_leader_epoch,
    )


def encode_control_batch(
    records: Sequence[tuple[ControlRecordType, bytes]],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytearray:
    """A control batch of the quorum's records, each given as its type and its encoded value."""
    return encode_batch(
        [
            Record(base_offset + index, timestamp_ms, encode_control_key(record_type), value)
            for index, (record_type, value) in enumerate(records)
        ],
        base_offset=base_offset,
        is_control=True,
        partition_leader_epoch=partition_leader_epoch,
    )
