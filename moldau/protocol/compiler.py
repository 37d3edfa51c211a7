"""What the generated encoders and decoders share: their run-time helpers and their source builder.

`compile_encode` and `compile_decode` compile a message into one flat function, nested structs and
loops included: no dispatch on types is left at run time. They follow `schema` alone; an interpreter
of the same schema in tests/protocol is the slow second opinion on what the generated code does.

How the generated code stays fast:
- neighbouring fixed-width values, and the length that follows them, are one `struct.Struct` call;
- a varint of one byte is read as part of that call, longer ones by a helper;
- structs are made with `object.__new__` and filled slot by slot, in the unpacking assignment;
- whether strings end inside the frame is checked once, at the end: a slice past the end is short
  and harmless, and the next fixed-width read past the end raises.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from struct import Struct as PackedStruct
from typing import Any
from uuid import UUID

from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.structs import (
    MAX_ARRAY_ELEMENTS,
    MAX_STRING_BYTES,
    MAX_TAGGED_FIELDS,
    FieldSpec,
    Struct,
    StructSpec,
)
from moldau.protocol.types import Buffer
from moldau.protocol.varint import (
    MAX_UNSIGNED_VARINT_BYTES,
    read_seven_bit_groups,
    read_unsigned_varint,
    unsigned_varint,
)

MAX_CACHED_UUIDS = 8192
"""Distinct uuids a process keeps decoded; the same topic ids come with every request."""
MAX_CACHED_ARRAY_FORMATS = 512
"""Distinct lengths of fixed-width arrays for which the packing is kept."""


@lru_cache(maxsize=MAX_CACHED_ARRAY_FORMATS)
def packed_array(letter: str, count: int) -> PackedStruct:
    """Return the packing of `count` big-endian values of one struct letter."""
    return PackedStruct(f">{count}{letter}")


class UuidCache(dict[bytes, UUID]):
    """Decoded uuids by their bytes; emptied when full."""

    def __missing__(self, raw: bytes) -> UUID:
        if len(self) >= MAX_CACHED_UUIDS:
            self.clear()
        value = self[raw] = UUID(bytes=raw)
        return value


def long_count(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Finish reading a varint whose first byte, before `position`, was `first`."""
    high, position = read_seven_bit_groups(buffer, position, MAX_UNSIGNED_VARINT_BYTES - 1)
    if high > 0x1FF_FFFF:  # 25 bits: the first byte held the other seven of 32
        raise RemoteProtocolError("a variable-length integer is over 32 bits")
    return high << 7 | first & 0x7F, position


def long_string(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """As `long_count`, for the length of a compact string."""
    length, position = long_count(buffer, position, first)
    if length > MAX_STRING_BYTES + 1:
        raise RemoteProtocolError(f"a string of {length - 1} bytes is too long")
    return length, position


def string_size(length: int) -> bytes:
    """Encode the length, plus one, of a compact string."""
    if length > MAX_STRING_BYTES + 1:
        raise LocalProtocolError(f"a string of {length - 1} bytes is too long")
    return unsigned_varint(length)


def skip_tagged_fields(buffer: Buffer, position: int, count: int) -> int:
    """Return the position after `count` tagged fields that this version does not know."""
    end = len(buffer)
    if count > 0x7F:
        count, position = long_count(buffer, position, count)
    check_tagged_count(count, end - position)
    for _ in range(count):
        if position + 1 < end and buffer[position] < 0x80 and buffer[position + 1] < 0x80:
            position += 2 + buffer[position + 1]
        else:
            _, position = read_unsigned_varint(buffer, position)
            size_bytes, position = read_unsigned_varint(buffer, position)
            position += size_bytes
        if position > end:
            raise RemoteProtocolError("a tagged field reaches past the end of the frame")
    return position


def check_tagged_count(count: int, remaining_bytes: int) -> None:
    if count > MAX_TAGGED_FIELDS:
        raise RemoteProtocolError(f"{count} tagged fields are over the limit")
    if 2 * count > remaining_bytes:
        raise RemoteProtocolError(f"{count} tagged fields do not fit into the frame")


def bad_array(name: str, count: int, remaining_bytes: int) -> RemoteProtocolError:
    """Say why an array's count was refused."""
    if count > MAX_ARRAY_ELEMENTS:
        return RemoteProtocolError(f"{name}: {count} elements are over the limit")
    return RemoteProtocolError(
        f"{name}: {count} elements do not fit into the {remaining_bytes} bytes left"
    )


RUNTIME_NAMES: dict[str, object] = {
    "LocalProtocolError": LocalProtocolError,
    "RemoteProtocolError": RemoteProtocolError,
    "UUIDS": UuidCache(),
    "bad_array": bad_array,
    "check_tagged_count": check_tagged_count,
    "long_count": long_count,
    "long_string": long_string,
    "new": object.__new__,
    "packed_array": packed_array,
    "skip_tagged_fields": skip_tagged_fields,
    "string_size": string_size,
    "varint": unsigned_varint,
}
"""What generated code may call."""


class SourceBuilder:
    """Collects the lines of one generated function and the objects they name."""

    def __init__(self, message: type[Struct], version: int, flexible: bool) -> None:
        self.message = message
        self.version = version
        self.flexible = flexible
        self.names = dict(RUNTIME_NAMES)
        self._lines: list[str] = []
        self._depth = 0
        self._variables = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """Collect the lines below `opening`, a statement that ends in a colon."""
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def refuse(self, clause: str, error: type[Exception], text: str) -> None:
        self.line(f"{clause}:")
        self.line(f"    raise {error.__name__}({text!r})")

    def variable(self, stem: str) -> str:
        """Return a name that the function does not use yet."""
        self._variables += 1
        return f"{stem}{self._variables}"

    def constant(self, stem: str, value: object) -> str:
        """Make `value` available to the function; return its name."""
        name = self.variable(f"{stem}_")
        self.names[name] = value
        return name

    def packing(self, method: str, letters: str) -> str:
        """Make the pack or unpack_from of a fixed-width run available; return its name."""
        name = f"{method}_{letters}".replace("?", "bool").replace("16s", "U")
        self.names[name] = getattr(PackedStruct(f">{letters}"), method)
        return name

    def fields(self, spec: StructSpec) -> list[FieldSpec]:
        """Return the fields of this version that are not in the tagged section."""
        return [f for f in spec.fields if self.version in f.versions and not self.is_tagged(f)]

    def tagged_fields(self, spec: StructSpec) -> list[FieldSpec]:
        """Return the fields in this version's tagged section, in the order of their tags."""
        tagged = [f for f in spec.fields if self.version in f.versions and self.is_tagged(f)]
        return sorted(tagged, key=lambda f: f.tag or 0)

    def absent_fields(self, spec: StructSpec) -> list[FieldSpec]:
        return [f for f in spec.fields if self.version not in f.versions]

    def is_tagged(self, field: FieldSpec) -> bool:
        return field.tag is not None and self.flexible

    def finish(self, name: str) -> Callable[..., Any]:
        """Compile the collected lines; return the function called `name`."""
        title = f"<{name} {self.message.__name__} v{self.version}>"
        exec(compile("\n".join(self._lines), title, "exec"), self.names)
        function = self.names[name]
        assert callable(function)
        return function
