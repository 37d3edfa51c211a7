"""Records as text, JSON lines or nothing but their values, for `moldau consume`.

Owns the three output formats. Must not write. Invariant: what `json_line` makes is read by
`moldau produce --format json` as the same record, whatever its bytes are.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

Formatter = Callable[["Consumed"], bytes]


class Consumed(Protocol):
    """What is used of a consumed record."""

    @property
    def topic(self) -> str:
        """Where it is from."""

    @property
    def partition(self) -> int:
        """Where it is from."""

    @property
    def offset(self) -> int:
        """Its place there."""

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970, -1 for none."""

    @property
    def timestamp_type(self) -> int:
        """0 set by the producer, 1 by the broker, -1 none."""

    @property
    def key(self) -> Any:
        """Bytes or None."""

    @property
    def value(self) -> Any:
        """Bytes or None."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Names and bytes or None."""


TIMESTAMP_TYPES: Final[Mapping[int, str]] = {-1: "none", 0: "create", 1: "append"}

#: What `--fields` may name.
FIELDS: Final = ("topic", "partition", "offset", "timestamp", "headers", "key", "value")


def text_formatter(
    fields: Sequence[str], separator: bytes, delimiter: bytes, null_marker: bytes
) -> Formatter:
    """One line per record: these fields in this order; bytes go out as they are."""
    if tuple(fields) == ("value",):

        def value_only(record: Consumed) -> bytes:
            value: bytes | None = record.value
            return (null_marker if value is None else value) + delimiter

        return value_only
    makers = [_field_maker(name, null_marker) for name in fields]

    def line(record: Consumed) -> bytes:
        return separator.join([maker(record) for maker in makers]) + delimiter

    return line


def _field_maker(name: str, null_marker: bytes) -> Formatter:
    def key(record: Consumed) -> bytes:
        given: bytes | None = record.key
        return null_marker if given is None else given

    def value(record: Consumed) -> bytes:
        given: bytes | None = record.value
        return null_marker if given is None else given

    def headers(record: Consumed) -> bytes:
        return b",".join(
            b"%b:%b" % (name.encode(), null_marker if value is None else value)
            for name, value in record.headers
        )

    makers: dict[str, Formatter] = {
        "topic": lambda record: record.topic.encode(),
        "partition": lambda record: b"%d" % record.partition,
        "offset": lambda record: b"%d" % record.offset,
        "timestamp": lambda record: b"%d" % record.timestamp_ms,
        "headers": headers,
        "key": key,
        "value": value,
    }
    return makers[name]


def raw_value(record: Consumed) -> bytes:
    """The value's bytes and nothing else; nothing for null."""
    value: bytes | None = record.value
    return value or b""


def json_formatter(*, always_base64: bool = False, json_values: bool = False) -> Formatter:
    """One JSON object per line.

    Keys, values and headers are text where their bytes are UTF-8, else base64 in a field of another
    name (`value_base64`).

    Args:
        always_base64: base64 also where it is text.
        json_values: values that are JSON (but no JSON string) appear as such, not as a string.
    """
    import orjson

    def put(document: dict[str, Any], name: str, data: bytes | None) -> None:
        if data is None:
            document[name] = None
            return
        if not always_base64:
            try:
                document[name] = data.decode()
            except UnicodeDecodeError:
                pass
            else:
                return
        document[f"{name}_base64"] = base64.b64encode(data).decode("ascii")

    def put_json(document: dict[str, Any], data: bytes) -> bool:
        # Only what `moldau produce` would make the same bytes of.
        try:
            given = orjson.loads(data)
        except ValueError:
            return False
        if given is None or isinstance(given, str) or orjson.dumps(given) != data:
            return False
        document["value"] = given
        return True

    def line(record: Consumed) -> bytes:
        document: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms if record.timestamp_ms >= 0 else None,
            "timestamp_type": TIMESTAMP_TYPES.get(int(record.timestamp_type), "none"),
        }
        put(document, "key", record.key)
        value: bytes | None = record.value
        if not (json_values and value is not None and put_json(document, value)):
            put(document, "value", value)
        if record.headers:
            headers = []
            for name, data in record.headers:
                header: dict[str, Any] = {"key": name}
                put(header, "value", data)
                headers.append(header)
            document["headers"] = headers
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)

    return line
