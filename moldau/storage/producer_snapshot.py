"""The `.snapshot` file: the state of a partition's producers, in Kafka's binary format.

Owns: encoding and decoding (int16 version, CRC-32C over what follows it, int32 count, entries).
Must not: decide when a snapshot is taken or which one is used.
Invariant: a file whose version, CRC or length is wrong decodes to an error, never to half a state.
Source: KIP-98, message ProducerSnapshot version 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from moldau.protocol.records.crc import crc32c

SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_VERSION = 1

_HEAD = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_CRC_AT = 2
_CRC_COVERED_FROM = 6


class SnapshotEntry(NamedTuple):
    """One producer as the file knows it: only its last batch, -1 where there is none.

    `last_timestamp_ms` is when the producer was last heard of.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The bytes of a snapshot file."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    data = bytearray(_HEAD.pack(SNAPSHOT_VERSION, 0, len(packed)))
    data += b"".join(packed)
    crc = crc32c(memoryview(data)[_CRC_COVERED_FROM:])
    data[_CRC_AT:_CRC_COVERED_FROM] = crc.to_bytes(4, "big")
    return bytes(data)


def decode_snapshot(data: bytes) -> list[SnapshotEntry]:
    """The entries of a snapshot file. Raises: ValueError saying what is wrong with it."""
    if len(data) < _HEAD.size:
        raise ValueError(f"{len(data)} bytes are no producer snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"producer snapshot of unknown version {version}")
    if crc32c(memoryview(data)[_CRC_COVERED_FROM:]) != crc:
        raise ValueError("the producer snapshot's CRC does not match its contents")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not a snapshot of {count} producers")
    return [SnapshotEntry(*each) for each in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]
