"""What is inside records that brokers themselves wrote: control, metadata, coordinator records.

Owns: turning their bytes into JSON-ready values. Must not: read files.
Invariant: bytes that do not decode are shown as what they are, with the reason; never an exception.
"""

from __future__ import annotations

import base64
from struct import Struct as ByteStruct
from typing import Any
from uuid import UUID

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.records import (
    ControlRecordType,
    InvalidBatch,
    Record,
    decode_control_key,
    decode_end_txn_marker,
)
from moldau.protocol.schema import Message, Struct
from moldau.protocol.types import uuid_to_base64

JsonValue = Any
"""None, bool, int, float, str, list or dict of them."""

_INT16 = ByteStruct(">h")


def bytes_to_json(value: bytes | memoryview | None) -> JsonValue:
    """Text where the bytes are UTF-8 text, else `{"base64": ...}`; None stays None."""
    if value is None:
        return None
    data = bytes(value)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def struct_to_json(value: Struct) -> dict[str, JsonValue]:
    """A message's fields under Kafka's JSON names."""
    fields = type(value).spec().fields
    return {_camel_case(field.name): _to_json(getattr(value, field.name)) for field in fields}


def _to_json(value: object) -> JsonValue:
    if isinstance(value, Struct):
        return struct_to_json(value)
    if isinstance(value, UUID):
        return uuid_to_base64(value)
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes_to_json(bytes(value))
    return value


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def control_record_to_json(record: Record) -> dict[str, JsonValue]:
    """Type and contents of a control record."""
    try:
        key = decode_control_key(record.key)
        if key.type in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            marker = decode_end_txn_marker(record)
            return {
                "controlType": marker.type.name,
                "coordinatorEpoch": marker.coordinator_epoch,
            }
        if not isinstance(key.type, ControlRecordType):
            return {"controlType": key.type, "value": bytes_to_json(record.value)}
        return {"controlType": key.type.name, "data": _quorum_record(key.type, record.value)}
    except (InvalidBatch, RemoteProtocolError) as error:
        return {"controlType": None, "undecodable": str(error)}


def _quorum_record(record_type: ControlRecordType, value: bytes | None) -> JsonValue:
    """Raises: RemoteProtocolError."""
    from moldau.protocol.messages import (
        kraft_version_record,
        leader_change_message,
        snapshot_footer_record,
        snapshot_header_record,
        voters_record,
    )

    classes: dict[ControlRecordType, type[Message]] = {
        ControlRecordType.LEADER_CHANGE: leader_change_message.LeaderChangeMessage,
        ControlRecordType.SNAPSHOT_HEADER: snapshot_header_record.SnapshotHeaderRecord,
        ControlRecordType.SNAPSHOT_FOOTER: snapshot_footer_record.SnapshotFooterRecord,
        ControlRecordType.KRAFT_VERSION: kraft_version_record.KRaftVersionRecord,
        ControlRecordType.KRAFT_VOTERS: voters_record.VotersRecord,
    }
    if value is None or len(value) < _INT16.size:
        raise RemoteProtocolError("a control record without a version")
    # Each of these messages begins with its own version as a field.
    version = _INT16.unpack_from(value)[0]
    message, _ = classes[record_type].decode(value, version)
    return struct_to_json(message)


def metadata_record_to_json(record: Record) -> dict[str, JsonValue]:
    """Type, version and fields of a record of `__cluster_metadata`."""
    from moldau.protocol.metadata_records import decode_record

    if record.value is None:
        return {"undecodable": "a metadata record without a value"}
    try:
        message, version = decode_record(record.value)
    except RemoteProtocolError as error:
        return {"undecodable": str(error), "payload": bytes_to_json(record.value)}
    return {
        "recordType": type(message).__name__,
        "recordVersion": version,
        "data": struct_to_json(message),
    }


def coordinator_record_to_json(topic: str, record: Record) -> dict[str, JsonValue]:
    """Key and value of a record of `__consumer_offsets` or `__transaction_state`."""
    from moldau.protocol.coordinator_records.frame import CONSUMER_OFFSETS, TRANSACTION_STATE

    log = CONSUMER_OFFSETS if topic == CONSUMER_OFFSETS.topic else TRANSACTION_STATE
    if record.key is None:
        return {"undecodable": "a coordinator record without a key"}
    try:
        key = log.decode_key(record.key)
        shown = {"keyType": type(key).__name__, "keyData": struct_to_json(key)}
        if record.value is None:
            return {**shown, "data": None}
        value, version = log.decode_value(key, record.value)
    except RemoteProtocolError as error:
        return {
            "undecodable": str(error),
            "key": bytes_to_json(record.key),
            "payload": bytes_to_json(record.value),
        }
    return {**shown, "recordVersion": version, "data": struct_to_json(value)}
