"""Messages of the protocol, and the records that are made of them, as JSON for people.

Invariant: fields have the names that Kafka's own documents give them; what cannot be decoded says
so and shows its bytes.
"""

from __future__ import annotations

import base64
from uuid import UUID

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.schema import Struct
from moldau.protocol.types import uuid_to_base64

Bytes = bytes | memoryview


def bytes_to_json(value: bytes | memoryview | None) -> object:
    """Text where the bytes are UTF-8 text, else `{"base64": ...}`; None stays None."""
    if value is None:
        return None
    data = bytes(value)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def struct_to_json(value: Struct) -> dict[str, object]:
    """All fields of a message, or of a part of one."""
    fields = type(value).spec().fields
    return {camel_case(field.name): _to_json(getattr(value, field.name)) for field in fields}


def _to_json(value: object) -> object:
    if isinstance(value, Struct):
        return struct_to_json(value)
    if isinstance(value, UUID):
        return uuid_to_base64(value)
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes_to_json(bytes(value))
    return value


def camel_case(name: str) -> str:
    """The name that Kafka's documents give to one of our fields."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def metadata_record_to_json(value: Bytes | None) -> dict[str, object]:
    """The record of the metadata log that a log record's value is."""
    from moldau.protocol.metadata_records import decode_record

    if value is None:
        return {"undecodable": "a metadata record without a value"}
    try:
        message, version = decode_record(value)
    except RemoteProtocolError as error:
        return {"undecodable": str(error), "payload": bytes_to_json(value)}
    return {
        "recordType": type(message).__name__,
        "recordVersion": version,
        "data": struct_to_json(message),
    }


def coordinator_record_to_json(
    topic: str, key: Bytes | None, value: Bytes | None
) -> dict[str, object]:
    """The coordinator's record that a log record of an internal topic is."""
    from moldau.protocol.coordinator_records.frame import CONSUMER_OFFSETS, TRANSACTION_STATE

    log = CONSUMER_OFFSETS if topic == CONSUMER_OFFSETS.topic else TRANSACTION_STATE
    if key is None:
        return {"undecodable": "a coordinator record without a key"}
    try:
        decoded = log.decode_key(key)
        shown = {"keyType": type(decoded).__name__, "keyData": struct_to_json(decoded)}
        if value is None:
            return {**shown, "data": None}
        data, version = log.decode_value(decoded, value)
    except RemoteProtocolError as error:
        return {
            "undecodable": str(error),
            "key": bytes_to_json(key),
            "payload": bytes_to_json(value),
        }
    return {**shown, "recordVersion": version, "data": struct_to_json(data)}
