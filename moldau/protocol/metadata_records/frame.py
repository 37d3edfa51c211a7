"""How a metadata record lies in the value of a log record.

Owns the frame of KIP-631: frame version, record type, record version, all unsigned varints, then
the record itself, which must fill the value to its end. The records' keys are null.
"""

from typing import Final

from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.metadata_records import cluster, nodes, security, topics
from moldau.protocol.schema import Message, messages_of
from moldau.protocol.types import Buffer
from moldau.protocol.varint import read_unsigned_varint, unsigned_varint

FRAME_VERSION = 1
"""The only frame version there is."""

_RECORDS: Final[dict[int, type[Message]]] = {
    record.API_KEY: record
    for family in (cluster, nodes, security, topics)
    for record in messages_of(family)
}


def record_types() -> list[int]:
    """Return the number of every metadata record, lowest first."""
    return sorted(_RECORDS)


def record_class(type_id: int) -> type[Message]:
    """Return the metadata record with this number. Raises RemoteProtocolError: there is none."""
    found = _RECORDS.get(type_id)
    if found is None:
        raise RemoteProtocolError(f"there is no metadata record of type {type_id}")
    return found


def encode_record(record: Message, version: int) -> bytes:
    """Return the log record value that holds `record` as `version`.

    Raises LocalProtocolError: the version does not exist or cannot hold the record.
    """
    type_id = record.API_KEY
    if _RECORDS.get(type_id) is not type(record):
        raise LocalProtocolError(f"{type(record).__name__} is no metadata record")
    head = bytes((FRAME_VERSION,)) + unsigned_varint(type_id) + unsigned_varint(version)
    return head + record.to_bytes(version)


def decode_record(buffer: Buffer) -> tuple[Message, int]:
    """Return the record that `buffer`, a log record's value, holds, and the record's version.

    Raises RemoteProtocolError: the frame or the record is of an unknown kind or version, cut short,
    or followed by more bytes.
    """
    frame_version, position = read_unsigned_varint(buffer, 0)
    if frame_version != FRAME_VERSION:
        raise RemoteProtocolError(f"there is no metadata frame version {frame_version}")
    type_id, position = read_unsigned_varint(buffer, position)
    version, position = read_unsigned_varint(buffer, position)
    record, position = record_class(type_id).decode(buffer, version, position)
    if position != len(buffer):
        raise RemoteProtocolError(
            f"{len(buffer) - position} bytes follow a {type(record).__name__}"
        )
    return record, version
