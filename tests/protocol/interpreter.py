"""Encodes and decodes any message by walking its schema: slow, plain, and the compiler's oracle.

Owns nothing that runs in production; tests compare generated codecs with it, on good bytes and on
garbage. It shares no code with them on purpose, the variable-length integers and the limits apart,
and reads one value after the other in wire order.
"""

import struct
from io import BytesIO
from typing import Any, TypeVar
from uuid import UUID

from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.schema import Message
from moldau.protocol.structs import (
    MAX_ARRAY_ELEMENTS,
    MAX_STRING_BYTES,
    MAX_TAGGED_FIELDS,
    ArrayType,
    FieldSpec,
    FieldType,
    Struct,
    StructType,
)
from moldau.protocol.types import Buffer
from moldau.protocol.varint import read_unsigned_varint, unsigned_varint

MessageT = TypeVar("MessageT", bound=Message)


def encode(message: Message, version: int) -> bytes:
    """Encode `message` as `version`; its `records` must be in memory.

    Raises:
        LocalProtocolError: as `Message.encode`.
    """
    if not message.supports(version):
        raise LocalProtocolError(f"{type(message).__name__} has no version {version}")
    writer = _Writer(version, version >= message.FLEXIBLE_SINCE)
    writer.struct(message)
    return writer.output.getvalue()


def decode(
    message_class: type[MessageT], buffer: Buffer, version: int, position: int = 0
) -> tuple[MessageT, int]:
    """Decode the message at `position`; return it and the position after it.

    Raises:
        RemoteProtocolError: as `Message.decode`.
    """
    if not message_class.supports(version):
        raise RemoteProtocolError(f"{message_class.__name__} has no version {version}")
    reader = _Reader(buffer, position, version, version >= message_class.FLEXIBLE_SINCE)
    message = reader.struct(message_class)
    return message, reader.position


class _Writer:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.output = BytesIO()

    def struct(self, value: Struct) -> None:
        tagged: list[tuple[int, FieldSpec, Any]] = []
        for field in value.spec().fields:
            content = getattr(value, field.name)
            is_default = content == field.default_value()
            if self.version not in field.versions:
                if not is_default and not field.ignorable:
                    raise LocalProtocolError(f"{field.name} has no place in {self.version}")
            elif field.tag is not None and self.flexible:
                if not is_default:
                    tagged.append((field.tag, field, content))
            else:
                self.field(field, content)
        if self.flexible:
            self.output.write(unsigned_varint(len(tagged)))
            for tag, field, content in sorted(tagged, key=lambda entry: entry[0]):
                inner = _Writer(self.version, True)
                inner.field(field, content)
                payload = inner.output.getvalue()
                self.output.write(unsigned_varint(tag) + unsigned_varint(len(payload)) + payload)

    def field(self, field: FieldSpec, content: Any) -> None:
        nullable = self.version in field.nullable
        if content is None and not nullable:
            raise LocalProtocolError(f"{field.name} must not be null in {self.version}")
        if isinstance(field.type, StructType) and nullable:
            is_tagged = field.tag is not None and self.flexible
            absent = b"\x00" if is_tagged else b"\xff"
            self.output.write(absent if content is None else b"\x01")
            if content is None:
                return
        self.value(field.type, content, self.flexible and field.flexible)

    def value(self, kind: FieldType, content: Any, compact: bool) -> None:
        if isinstance(kind, StructType):
            self.struct(content)
        elif isinstance(kind, ArrayType):
            self.length(None if content is None else len(content), ">i", compact)
            for element in content or ():
                self.value(kind.element, element, self.flexible)
        elif kind.name == "uuid":
            self.output.write(content.bytes)
        elif kind.name == "string":
            raw = None if content is None else content.encode("utf-8")
            if raw is not None and len(raw) > MAX_STRING_BYTES:
                raise LocalProtocolError("a string is too long")
            self.length(None if raw is None else len(raw), ">h", compact)
            self.output.write(raw or b"")
        elif kind.name in ("bytes", "records"):
            self.length(None if content is None else len(content), ">i", compact)
            self.output.write(content or b"")
        else:
            self.number(">" + kind.format, content)

    def length(self, length: int | None, number_format: str, compact: bool) -> None:
        if compact:
            self.output.write(unsigned_varint(0 if length is None else length + 1))
        else:
            self.number(number_format, -1 if length is None else length)

    def number(self, number_format: str, content: Any) -> None:
        try:
            self.output.write(struct.pack(number_format, content))
        except struct.error as error:
            raise LocalProtocolError(f"{content!r} does not fit: {error}") from error


class _Reader:
    def __init__(self, buffer: Buffer, position: int, version: int, flexible: bool) -> None:
        self.buffer = memoryview(buffer)
        self.position = position
        self.version = version
        self.flexible = flexible

    @property
    def remaining(self) -> int:
        return len(self.buffer) - self.position

    def take(self, size_bytes: int) -> memoryview:
        if size_bytes > self.remaining:
            raise RemoteProtocolError("the frame is too short")
        taken = self.buffer[self.position : self.position + size_bytes]
        self.position += size_bytes
        return taken

    def varint(self) -> int:
        value, self.position = read_unsigned_varint(self.buffer, self.position)
        return value

    def number(self, number_format: str) -> Any:
        return struct.unpack(number_format, self.take(struct.calcsize(number_format)))[0]

    def struct(self, struct_class: Any) -> Any:
        value = struct_class()
        tagged: dict[int, FieldSpec] = {}
        for field in struct_class.spec().fields:
            if self.version not in field.versions:
                continue
            if field.tag is not None and self.flexible:
                tagged[field.tag] = field
            else:
                setattr(value, field.name, self.field(field))
        if self.flexible:
            self.tagged_section(value, tagged)
        return value

    def tagged_section(self, value: Struct, tagged: dict[int, FieldSpec]) -> None:
        count = self.varint()
        if count > MAX_TAGGED_FIELDS:
            raise RemoteProtocolError("too many tagged fields")
        for _ in range(count):
            tag, size_bytes = self.varint(), self.varint()
            if size_bytes > self.remaining:
                raise RemoteProtocolError("a tagged field is too long")
            stop = self.position + size_bytes
            field = tagged.get(tag)
            if field is None:
                self.position = stop
                continue
            setattr(value, field.name, self.field(field))
            if self.position != stop:
                raise RemoteProtocolError("a tagged field has the wrong size")

    def field(self, field: FieldSpec) -> Any:
        nullable = self.version in field.nullable
        if isinstance(field.type, StructType) and nullable:
            is_tagged = field.tag is not None and self.flexible
            marker = self.varint() - 1 if is_tagged else self.number(">b")
            if marker < 0:
                return None
        content = self.value(field.type, self.flexible and field.flexible)
        if content is None and not nullable:
            raise RemoteProtocolError(f"{field.name} is null")
        return content

    def value(self, kind: FieldType, compact: bool) -> Any:
        if isinstance(kind, StructType):
            return self.struct(kind.struct)
        if isinstance(kind, ArrayType):
            return self.array(kind, compact)
        if kind.name == "uuid":
            return UUID(bytes=bytes(self.take(16)))
        if kind.name == "string":
            return self.string(compact)
        if kind.name in ("bytes", "records"):
            length = self.length(">i", compact)
            if length is None:
                return None
            taken = self.take(length)
            return bytes(taken) if kind.name == "bytes" else taken
        return self.number(">" + kind.format)

    def length(self, number_format: str, compact: bool) -> int | None:
        length: int = self.varint() - 1 if compact else self.number(number_format)
        return None if length < 0 else length

    def string(self, compact: bool) -> str | None:
        length = self.length(">h", compact)
        if length is None:
            return None
        if length > MAX_STRING_BYTES:
            raise RemoteProtocolError("a string is too long")
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a string is not UTF-8: {error}") from error

    def array(self, kind: ArrayType, compact: bool) -> list[Any] | None:
        count = self.length(">i", compact)
        if count is None:
            return None
        if count > MAX_ARRAY_ELEMENTS or count > self.remaining:
            raise RemoteProtocolError("an array is too long")
        elements: list[Any] = []
        for _ in range(count):
            element = self.value(kind.element, self.flexible)
            if element is None:
                raise RemoteProtocolError("an array holds a null")
            elements.append(element)
        return elements
