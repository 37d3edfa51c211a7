"""Records as text, JSON lines or whole values, for `moldau produce` and `moldau consume`.

Owns the three formats, in both directions, and format strings. Must not know a cluster, nor write.
Invariants: no more than one piece of input (at most the limit given) and one read's worth of bytes
are held at a time; what cannot be a record is one `InputProblem` that names the input and the line;
a line that `json_formatter` makes is read by `JsonFormat` as the same record, whatever its bytes
are.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedIOBase
from typing import Any, Final, NamedTuple

from moldau.client import ConsumerRecord
from moldau.moments import parse_datetime
from moldau.text import did_you_mean

READ_BYTES: Final = 262_144
MAX_PARTITION: Final = 2**31 - 1
MAX_TIMESTAMP_MS: Final = 2**63 - 1

#: Fields of a JSON line that become part of the record.
INPUT_FIELDS: Final = (
    "key",
    "key_base64",
    "value",
    "value_base64",
    "headers",
    "partition",
    "timestamp",
)
#: What `moldau consume --format json` writes besides, so that its output can be read here.
IGNORED_FIELDS: Final = frozenset({"topic", "offset", "timestamp_type", "leader_epoch"})

Headers = Sequence[tuple[str, bytes | None]]
Formatter = Callable[[ConsumerRecord], bytes]
TextEncoder = Callable[[bytes], bytes]
"""The bytes of a key or value that a line of text gives. Raises: InputProblem"""
ValueEncoder = Callable[[object], bytes]
"""The bytes of a key or value in JSON. Raises: InputProblem"""
TIMESTAMP_TYPES: Final[Mapping[int, str]] = {-1: "none", 0: "create", 1: "append"}
#: What `--fields` may name.
OUTPUT_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "headers", "key", "value")
#: What a format string may have behind a percent sign, as in kcat; %v is its %s.
PLACEHOLDERS: Final[Mapping[str, str]] = {
    **{"t": "topic", "p": "partition", "o": "offset", "T": "timestamp", "h": "headers"},
    **{"k": "key", "v": "value", "s": "value"},
    **{"K": "size of the key", "S": "size of the value", "R": "packed size of the value"},
}
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([ntr0\\])|)")
_ESCAPED: Final = bytes.maketrans(b"ntr0\\", b"\n\t\r\0\\")


class InputProblem(ValueError):
    """Input that cannot be made a record, with where it is and what is allowed."""


class InputRecord(NamedTuple):
    """A record as the input gives it; `partition` and `timestamp_ms` only where it says so."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class TextFormat(NamedTuple):
    """One value per line, with a key in front when there is a separator.

    A key or value equal to `null_marker` is null: a null value is a tombstone.
    """

    key_separator: bytes | None = None
    null_marker: bytes | None = None
    key: TextEncoder | None = None
    value: TextEncoder | None = None

    def record(self, line: bytes) -> InputRecord | None:
        """The record of one line. Raises: InputProblem"""
        if self.key_separator is None:
            return InputRecord(self._encoded(line, self.value))
        key, found, value = line.partition(self.key_separator)
        if not found:
            raise InputProblem(f"no key separator {self.key_separator.decode()!r} in it")
        return InputRecord(self._encoded(value, self.value), self._encoded(key, self.key))

    def _encoded(self, text: bytes, encode: TextEncoder | None) -> bytes | None:
        if text == self.null_marker:
            return None
        return text if encode is None else encode(text)


class JsonFormat:
    """One JSON object per line; empty lines are skipped."""

    def __init__(self, key: ValueEncoder | None = None, value: ValueEncoder | None = None) -> None:
        import orjson

        self._encoders = {"key": key, "value": value}
        self._loads: Callable[[bytes], object] = orjson.loads
        self._dumps: Callable[[object], bytes] = orjson.dumps

    def record(self, line: bytes) -> InputRecord | None:
        """The record of one line. Raises: InputProblem"""
        if not line or line.isspace():
            return None
        try:
            document = self._loads(line)
        except ValueError as error:
            raise InputProblem(f"not JSON: {error}") from None
        if not isinstance(document, dict):
            raise InputProblem(f'not a JSON object such as {{"key": "k", "value": "v"}}: {line!r}')
        for name in document:
            if name not in INPUT_FIELDS and name not in IGNORED_FIELDS:
                hint = did_you_mean(name, INPUT_FIELDS, f"; known are {', '.join(INPUT_FIELDS)}")
                raise InputProblem(f"{name!r}: no such field{hint}")
        if "value" not in document and "value_base64" not in document:
            raise InputProblem('no "value" (null for a tombstone) or "value_base64"')
        return InputRecord(
            self._bytes(document, "value"),
            self._bytes(document, "key"),
            self._headers(document.get("headers")),
            _number(document, "partition", MAX_PARTITION),
            _timestamp(document.get("timestamp")),
        )

    def _bytes(self, document: Mapping[str, object], name: str) -> bytes | None:
        encoded = document.get(f"{name}_base64")
        given = document.get(name)
        if encoded is not None:
            if given is not None:
                raise InputProblem(f'both "{name}" and "{name}_base64"')
            return _decoded(encoded, f"{name}_base64")
        if given is None:
            return None
        if (encode := self._encoders.get(name)) is not None:
            return encode(given)
        # A string is its UTF-8 bytes; anything else is sent as JSON.
        return given.encode() if isinstance(given, str) else self._dumps(given)

    def _headers(self, given: object) -> Headers:
        if not given:
            return ()
        if isinstance(given, dict):
            return [(name, self._bytes({"header": each}, "header")) for name, each in given.items()]
        headers = []
        for each in given if isinstance(given, list) else [given]:
            if isinstance(each, list) and len(each) == 2:
                each = {"key": each[0], "value": each[1]}
            if not isinstance(each, dict) or not isinstance(each.get("key"), str):
                raise InputProblem(
                    '"headers" must be {"name": "value"} or [{"key": "name", "value": "value"}] '
                    f"(or value_base64): {each!r}"
                )
            plain = {"header": each.get("value"), "header_base64": each.get("value_base64")}
            headers.append((each["key"], self._bytes(plain, "header")))
        return headers


def lines(source: BufferedIOBase, delimiter: bytes | None, limit_bytes: int) -> Iterator[bytes]:
    """The pieces between delimiters; what follows the last one, if anything, is a piece too.

    None for newlines, each with the carriage return in front of it, if there is one. Raises:
    InputProblem: a piece is longer than `limit_bytes`
    """
    held = bytearray()
    strip = delimiter is None
    delimiter = delimiter or b"\n"
    while read := source.read1(READ_BYTES):
        seen = max(0, len(held) - len(delimiter) + 1)
        held += read
        if held.find(delimiter, seen) >= 0:
            *pieces, rest = bytes(held).split(delimiter)
            held = bytearray(rest)
            for piece in pieces:
                if len(piece) > limit_bytes:
                    raise _too_long(limit_bytes)
                yield piece[:-1] if strip and piece.endswith(b"\r") else piece
        if len(held) > limit_bytes:
            raise _too_long(limit_bytes)
    if held:
        yield bytes(held[:-1] if strip and held.endswith(b"\r") else held)


def whole(source: BufferedIOBase, limit_bytes: int) -> bytes:
    """Everything as one piece. Raises: InputProblem: it is longer than `limit_bytes`."""
    pieces = []
    size_bytes = 0
    while read := source.read1(READ_BYTES):
        size_bytes += len(read)
        if size_bytes > limit_bytes:
            raise _too_long(limit_bytes)
        pieces.append(read)
    return b"".join(pieces)


def unescaped(text: str, option: str) -> bytes:
    """The bytes of text with \\n, \\t, \\r, \\0, \\\\ and \\xNN, which is one byte. Raises:
    InputProblem: it is empty or has another escape
    """
    if not text:
        raise InputProblem(f"{option} {text!r}: some characters, such as ':' or '\\t'")

    def meant(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return bytes.fromhex(found[1].decode())
        if not found[2]:
            raise InputProblem(rf"{option} {text!r}: its escapes can be \n \t \r \0 \xHH \\")
        return found[2].translate(_ESCAPED)

    return _ESCAPE.sub(meant, os.fsencode(text))


def _too_long(limit_bytes: int) -> InputProblem:
    return InputProblem(
        f"longer than {limit_bytes} bytes: raise max.request.size (and the topic's "
        "max.message.bytes) to send it"
    )


def _decoded(encoded: object, name: str) -> bytes:
    if not isinstance(encoded, str):
        raise InputProblem(f'"{name}" must be a string')
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputProblem(f'"{name}" is not base64: {error}') from None


def _number(document: Mapping[str, object], name: str, highest: int) -> int | None:
    given = document.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= highest:
        raise InputProblem(f'"{name}" must be a whole number from 0 to {highest}: {given!r}')
    return given


def _timestamp(given: object) -> int | None:
    if isinstance(given, str):
        try:
            return parse_datetime(given)
        except ValueError:
            raise InputProblem(
                f'"timestamp" is neither milliseconds since 1970 nor ISO 8601: {given!r}'
            ) from None
    return _number({"timestamp": given}, "timestamp", MAX_TIMESTAMP_MS)


class Decoders(NamedTuple):
    """How keys and values are shown where not as the bytes that they are.

    Raises: InputProblem: by each of them, for bytes that are something else.
    """

    key: Callable[[bytes], Any] | None = None
    value: Callable[[bytes], Any] | None = None


AS_BYTES: Final = Decoders()


def text_formatter(
    fields: Sequence[str],
    separator: bytes,
    delimiter: bytes,
    null_marker: bytes,
    decoders: Decoders = AS_BYTES,
) -> Formatter:
    """One line per record: these fields in this order; bytes go out as they are, or as the text
    that the decoders make of them.
    """
    if tuple(fields) == ("value",) and decoders.value is None:

        def value_only(record: ConsumerRecord) -> bytes:
            value: bytes | None = record.value
            return (null_marker if value is None else value) + delimiter

        return value_only
    makers = _makers(null_marker, decoders)
    parts = [part for name in fields for part in (separator, makers[name])]
    return _filled([*parts[1:], delimiter])


def template_formatter(text: str, null_marker: bytes, decoders: Decoders = AS_BYTES) -> Formatter:
    """What a format string such as `%t %k %v\\n` makes of a record; nothing is added to it.
    Raises: InputProblem: an unknown placeholder or escape
    """
    makers = _makers(null_marker, decoders)
    parts: list[bytes | Formatter] = []
    for index, piece in enumerate(re.split(r"%(.?)", text, flags=re.DOTALL)):
        if index % 2 == 0:
            parts.append(unescaped(piece, "--format") if piece else b"")
        elif piece in PLACEHOLDERS:
            parts.append(makers[PLACEHOLDERS[piece]])
        elif piece == "%":
            parts.append(b"%")
        else:
            known = ", ".join(f"%{each} {what}" for each, what in PLACEHOLDERS.items())
            raise InputProblem(f"--format: %{piece} is no placeholder: {known}, %% percent sign")
    return _filled(parts)


def _filled(parts: Sequence[bytes | Formatter]) -> Formatter:
    template = b"".join(
        part.replace(b"%", b"%%") if isinstance(part, bytes) else b"%b" for part in parts
    )
    makers = [part for part in parts if not isinstance(part, bytes)]
    return lambda record: template % tuple([maker(record) for maker in makers])


def _makers(null_marker: bytes, decoders: Decoders) -> Mapping[str, Formatter]:
    def shown(data: bytes | None, decode: Callable[[bytes], bytes] | None = None) -> bytes:
        if data is None:
            return null_marker
        return data if decode is None else decode(data)

    def size(data: bytes | None) -> int:
        return -1 if data is None else len(data)

    return {
        "topic": lambda record: record.topic.encode(),
        "partition": lambda record: b"%d" % record.partition,
        "offset": lambda record: b"%d" % record.offset,
        "timestamp": lambda record: b"%d" % record.timestamp_ms,
        "headers": lambda record: b",".join(
            b"%b:%b" % (name.encode(), shown(data)) for name, data in record.headers
        ),
        "key": lambda record: shown(record.key, decoders.key),
        "value": lambda record: shown(record.value, decoders.value),
        "size of the key": lambda record: b"%d" % size(record.key),
        "size of the value": lambda record: b"%d" % size(record.value),
        "packed size of the value": lambda record: struct.pack(">i", size(record.value)),
    }


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def json_formatter(
    *, always_base64: bool = False, json_values: bool = False, decoders: Decoders = AS_BYTES
) -> Formatter:
    """One JSON object per line.

    Keys, values and headers are text where their bytes are UTF-8, else base64 in a field of another
    name (`value_base64`).

    Args:
        always_base64: base64 also where it is text.
        json_values: values that are JSON (but no JSON string) appear as such, not as a string.
        decoders: what they make of keys and values appears as such.
    """
    import orjson

    def put(
        document: dict[str, object],
        name: str,
        data: bytes | None,
        decode: Callable[[bytes], object] | None = None,
    ) -> None:
        if data is None:
            document[name] = None
        elif decode is not None:
            document[name] = decode(data)
        else:
            text = None if always_base64 else _utf8(data)
            if text is None:
                document[f"{name}_base64"] = base64.b64encode(data).decode("ascii")
            else:
                document[name] = text

    def put_json(document: dict[str, object], data: bytes) -> bool:
        # Only what `moldau produce` would make the same bytes of.
        try:
            given = orjson.loads(data)
        except ValueError:
            return False
        if given is None or isinstance(given, str) or orjson.dumps(given) != data:
            return False
        document["value"] = given
        return True

    def line(record: ConsumerRecord) -> bytes:
        document: dict[str, object] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms if record.timestamp_ms >= 0 else None,
            "timestamp_type": TIMESTAMP_TYPES.get(int(record.timestamp_type), "none"),
        }
        put(document, "key", record.key, decoders.key)
        value: bytes | None = record.value
        if not (json_values and value is not None and put_json(document, value)):
            put(document, "value", value, decoders.value)
        if record.headers:
            headers = []
            for name, data in record.headers:
                header: dict[str, object] = {"key": name}
                put(header, "value", data)
                headers.append(header)
            document["headers"] = headers
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)

    return line
