"""Keys, values and records as the console shows them.

Owns the formats that people choose, the length at which a shown part is cut, and the names of
columns that JSON values give. Must not read records. Invariants: what is shown of a record is
bounded, and says where it is cut; numbers in JSON keep their digits; what is not of the chosen
format is shown as it is.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from moldau.client import ConsumerRecord
from moldau.console.reading import shown_bytes, shown_record
from moldau.protocol.as_json import coordinator_record_to_json
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE

AUTO, TEXT, HEX, JSON = "auto", "text", "hex", "json"
PLAIN_FORMATS: Final = (AUTO, TEXT, HEX, JSON)
UTF_8, BASE64, RECORD = "utf-8", "base64", "record"
MAX_SHOWN_HEADERS: Final = 200
MAX_COLUMNS: Final = 200
MAX_COLUMN_DEPTH: Final = 4
MAX_COLUMN_RECORDS: Final = 200
"""So many values are looked at for columns."""
_DECODED_TOPICS: Final = frozenset({CONSUMER_OFFSETS.topic, TRANSACTION_STATE.topic})
KEY_FIELDS: Final = ("keyType", "keyData")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JSON_STARTS: Final = (b"{", b"[")

Form = dict[str, Any]


def form_of(data: bytes | None, how: str, limit_bytes: int) -> Form | None:
    """A key or a value in one of `PLAIN_FORMATS`, cut at a limit."""
    if data is not None and how == HEX:
        return _in_base64(data, limit_bytes)
    form = shown_bytes(data, limit_bytes)
    if data is None or form is None:
        return None
    if how == TEXT and form["encoding"] != UTF_8:
        form |= {"encoding": UTF_8, "text": data[:limit_bytes].decode(errors="replace")}
    elif form["encoding"] == UTF_8 and not form["is_truncated"] and _is_json(data, how):
        form["encoding"] = JSON
    return form


def record_form(
    record: ConsumerRecord[bytes, bytes],
    formats: tuple[str, str],
    limit_bytes: int,
    *,
    most_headers: int | None = MAX_SHOWN_HEADERS,
) -> Form:
    """A record as JSON has it.

    Args:
        formats: of its key and its value.
        limit_bytes: of what is shown of the key, the value, a header.
        most_headers: so many are shown; None for all.
    """
    cut = record
    if most_headers is not None and len(record.headers) > most_headers:
        cut = ConsumerRecord(**{**_fields(record), "headers": record.headers[:most_headers]})
    form = shown_record(cut, limit_bytes)
    form["header_count"] = len(record.headers)
    form["key"] = form_of(record.key, formats[0], limit_bytes)
    form["value"] = form_of(record.value, formats[1], limit_bytes)
    if record.topic in _DECODED_TOPICS:
        _show_coordinators(record, formats, limit_bytes, form)
    return form


def columns_of(forms: Iterable[Form]) -> list[str]:
    """The paths of what JSON values of records have, as filters write them, in their order."""
    found: dict[str, None] = {}
    for number, form in enumerate(forms):
        value = form["value"]
        if number >= MAX_COLUMN_RECORDS or len(found) >= MAX_COLUMNS:
            break
        if value is None or value["is_truncated"] or value["encoding"] in (UTF_8, BASE64):
            continue
        _collect(orjson.loads(value["text"]), "", MAX_COLUMN_DEPTH, found)
    return [*found][:MAX_COLUMNS]


def _in_base64(data: bytes, limit_bytes: int) -> Form:
    cut = data[:limit_bytes]
    return {
        "encoding": BASE64,
        "text": base64.b64encode(cut).decode(),
        "size_bytes": len(data),
        "is_truncated": len(cut) < len(data),
    }


def _is_json(data: bytes, how: str) -> bool:
    """Whether to show UTF-8 text as JSON: an object or a list, or whatever is said to be JSON."""
    if how == TEXT or (how == AUTO and not data.lstrip().startswith(_JSON_STARTS)):
        return False
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def _show_coordinators(
    record: ConsumerRecord[bytes, bytes], formats: tuple[str, str], limit_bytes: int, form: Form
) -> None:
    """Put a coordinator's record into the form, where it can be decoded."""
    found = coordinator_record_to_json(record.topic, record.key, record.value)
    if "undecodable" in found:
        return
    key = {name: each for name, each in found.items() if name in KEY_FIELDS}
    value = {name: each for name, each in found.items() if name not in KEY_FIELDS}
    if formats[0] == AUTO and record.key is not None:
        form["key"] = _as_record(key, len(record.key), limit_bytes)
    if formats[1] == AUTO and record.value is not None:
        form["value"] = _as_record(value, len(record.value), limit_bytes)


def _as_record(document: Mapping[str, object], size_bytes: int, limit_bytes: int) -> Form:
    text = orjson.dumps(document)
    cut = text[:limit_bytes]
    return {
        "encoding": RECORD,
        "text": cut.decode(errors="ignore"),
        "size_bytes": size_bytes,
        "is_truncated": len(cut) < len(text),
    }


def _collect(value: object, path: str, depth: int, found: dict[str, None]) -> None:
    """Add the paths of an object's members that are no objects themselves."""
    if not isinstance(value, dict):
        return
    for name, each in value.items():
        if len(found) >= MAX_COLUMNS:
            return
        if _NAME.fullmatch(name):
            inner = f"{path}.{name}" if path else name
        else:
            inner = f"{path}[{orjson.dumps(name).decode()}]"
        if isinstance(each, dict) and each and depth > 1:
            _collect(each, inner, depth - 1, found)
        else:
            found[inner] = None


def _fields(record: ConsumerRecord[bytes, bytes]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
