"""Writes the source of a message's decoder.

Fixed-width values are collected in a pending run and read by one call when something of variable
width, or a branch, comes next.
"""

from typing import Final

from moldau.protocol.compiler import SourceBuilder
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.structs import (
    MAX_ARRAY_ELEMENTS,
    ArrayType,
    Decoder,
    FieldSpec,
    FieldType,
    Struct,
    StructSpec,
    StructType,
)
from moldau.protocol.types import WireType

_PAST_END: Final = "the frame ends inside the message"


class DecoderBuilder(SourceBuilder):
    """Builds `decode(buffer, position) -> (message, position)` for one version."""

    def __init__(self, message: type[Struct], version: int, flexible: bool) -> None:
        super().__init__(message, version, flexible)
        self._run: list[tuple[WireType, str]] = []
        self._after_run: list[str] = []

    def build(self) -> Decoder:
        with self.block("def decode(buffer, position):"):
            self.line("end = len(buffer)")
            if self._has_records(self.message.spec()):
                self.line("view = buffer if type(buffer) is memoryview else memoryview(buffer)")
            self._begin()
            message = self._struct(self.message)
            self._flush()
            self.refuse("if position > end", RemoteProtocolError, _PAST_END)
            self._end(message)
            self.line(f"return {message}, position")
        return self.finish("decode")

    def _has_records(self, spec: StructSpec) -> bool:
        for field in self.fields(spec) + self.tagged_fields(spec):
            kind = field.type.element if isinstance(field.type, ArrayType) else field.type
            if isinstance(kind, StructType):
                if self._has_records(kind.struct.spec()):
                    return True
            elif kind.name == "records":
                return True
        return False

    # What a decoder in steps does besides

    def _begin(self) -> None:
        """At the beginning."""

    def _before_array(self, spec: StructSpec, made: str) -> None:
        """Before an array, as a field of a struct."""

    def _element_begins(self, element: WireType | StructType) -> None:
        """At the beginning of a loop's body."""

    def _made(self, target: str) -> None:
        """After a string or bytes."""

    def _tag_begins(self) -> None:
        """Before a tagged field."""

    def _pause(self) -> None:
        """At the end of a loop's body, with nothing pending."""

    def _end(self, message: str) -> None:
        """Before the message is returned."""

    # Fixed-width runs

    def _read(self, kind: WireType, target: str, after: str = "") -> None:
        self._run.append((kind, target))
        if after:
            self._after_run.append(after)

    def _flush(self) -> None:
        if not self._run:
            return
        size_bytes = sum(kind.size for kind, _ in self._run)
        if [kind.name for kind, _ in self._run] == ["uint8"]:
            self.line(f"{self._run[0][1]} = buffer[position]")
        else:
            letters = "".join(kind.format for kind, _ in self._run)
            targets = ", ".join(target for _, target in self._run)
            comma = "," if len(self._run) == 1 else ""
            unpack = self.packing("unpack_from", letters)
            self.line(f"{targets}{comma} = {unpack}(buffer, position)")
        self.line(f"position += {size_bytes}")
        for line in self._after_run:
            self.line(line)
        self._run.clear()
        self._after_run.clear()

    # Structs

    def _struct(self, struct: type[Struct]) -> str:
        spec = struct.spec()
        made = self.variable("o")
        self.line(f"{made} = new({self.constant(struct.__name__, struct)})")
        for field in self.fields(spec):
            if isinstance(field.type, ArrayType):
                self._before_array(spec, made)
            self._field(spec, field, f"{made}.{field.name}")
        for field in self.absent_fields(spec) + self.tagged_fields(spec):
            self._default(field, f"{made}.{field.name}")
        if self.flexible:
            self._tagged_section(spec, made)
        return made

    def _default(self, field: FieldSpec, target: str) -> None:
        if field.fresh_default is list:
            self.line(f"{target} = []")
        elif field.fresh_default is not None:
            self.line(f"{target} = {self.constant('make', field.fresh_default)}()")
        elif field.default is None or type(field.default) in (int, str, bool, bytes):
            self.line(f"{target} = {field.default!r}")
        else:
            self.line(f"{target} = {self.constant('default', field.default)}")

    def _field(self, spec: StructSpec, field: FieldSpec, target: str) -> None:
        name = f"{spec.name}.{field.name}"
        nullable = self.version in field.nullable
        if isinstance(field.type, StructType):
            self._struct_field(field.type, target, nullable, self.is_tagged(field))
        else:
            self._value(field.type, target, name, nullable, self.flexible and field.flexible)

    def _struct_field(self, kind: StructType, target: str, nullable: bool, tagged: bool) -> None:
        if not nullable:
            self.line(f"{target} = {self._struct(kind.struct)}")
            return
        # An int8 says whether the struct is present, -1 or 1; in a tagged field it is a
        # varint, 0 or 1.
        marker = self.variable("n")
        self._read(WireType("uint8", "B", 1) if tagged else WireType("int8", "b", 1), marker)
        self._flush()
        if tagged:
            self._long(marker)
        self.line(f"if {marker} {'==' if tagged else '<'} 0:")
        self.line(f"    {target} = None")
        with self.block("else:"):
            made = self._struct(kind.struct)
            self._flush()
            self.line(f"{target} = {made}")

    def _tagged_section(self, spec: StructSpec, made: str) -> None:
        count = self.variable("t")
        self._read(WireType("uint8", "B", 1), count)
        self._flush()
        with self.block(f"if {count}:"):
            tagged = self.tagged_fields(spec)
            if tagged:
                self._known_tags(spec, tagged, made, count)
            else:
                self._skip_tags(count)

    def _skip_tags(self, count: str) -> None:
        self.line(f"position = skip_tagged_fields(buffer, position, {count})")

    def _known_tags(self, spec: StructSpec, tagged: list[FieldSpec], made: str, count: str) -> None:
        tag, size, stop = self.variable("k"), self.variable("s"), self.variable("q")
        self._long(count)
        self.line(f"check_tagged_count({count}, end - position)")
        with self.block(f"for _ in range({count}):"):
            self._tag_begins()
            for variable in (tag, size):
                self.line(f"{variable} = buffer[position]")
                self.line("position += 1")
                self._long(variable)
            self.line(f"{stop} = position + {size}")
            self.refuse(f"if {stop} > end", RemoteProtocolError, _PAST_END)
            word = "if"
            for field in tagged:
                with self.block(f"{word} {tag} == {field.tag}:"):
                    self._field(spec, field, f"{made}.{field.name}")
                    self._flush()
                    name = f"{spec.name}.{field.name}"
                    text = f"the tagged field {name} has another size than announced"
                    self.refuse(f"if position != {stop}", RemoteProtocolError, text)
                word = "elif"
            self.line("else:")
            self.line(f"    position = {stop}")
            self._pause()

    def _long(self, variable: str, helper: str = "long_count", two_bytes: bool = False) -> None:
        """Read the rest of a longer varint; in place when two bytes are likely."""
        rest = f"{variable}, position = {helper}(buffer, position, {variable})"
        with self.block(f"if {variable} > 127:"):
            if not two_bytes:
                self.line(rest)
                return
            second = self.variable("m")
            self.line(f"{second} = buffer[position]")
            self.line(f"if {second} < 128:")
            self.line(f"    {variable} = {variable} & 127 | {second} << 7")
            self.line("    position += 1")
            self.line("else:")
            self.line(f"    {rest}")

    # Values

    def _value(
        self, kind: FieldType, target: str, name: str, nullable: bool, compact: bool
    ) -> None:
        if isinstance(kind, ArrayType):
            self._array(kind, target, name, nullable, compact)
            return
        assert isinstance(kind, WireType)
        if kind.name == "uuid":
            raw = self.variable("u")
            self._read(kind, raw, f"{target} = UUIDS[{raw}]")
        elif kind.format:
            self._read(kind, target)
        else:
            self._bytes_like(kind, target, name, nullable, compact)

    def _length(
        self, old: WireType, helper: str, compact: bool, two_bytes: bool = False
    ) -> tuple[str, int]:
        """Read a length; return its variable and the value that stands for length zero."""
        length = self.variable("n")
        if not compact:
            self._read(old, length)
            self._flush()
            return length, 0
        self._read(WireType("uint8", "B", 1), length)
        self._flush()
        self._long(length, helper, two_bytes)
        return length, 1

    def _null(self, target: str, name: str, nullable: bool) -> None:
        if nullable:
            self.line("else:")
            self.line(f"    {target} = None")
        else:
            self.refuse("else", RemoteProtocolError, f"{name} is null")

    def _bytes_like(
        self, kind: WireType, target: str, name: str, nullable: bool, compact: bool
    ) -> None:
        if kind.name == "string":
            length, zero = self._length(WireType("int16", "h", 2), "long_string", compact)
        else:
            length, zero = self._length(
                WireType("int32", "i", 4), "long_count", compact, two_bytes=True
            )
        with self.block(f"if {length} > {zero}:"):
            stop = self.variable("q")
            self.line(f"{stop} = position + {length}" + (" - 1" if zero else ""))
            source = {
                "string": f'str(buffer[position:{stop}], "utf-8")',
                "bytes": f"bytes(buffer[position:{stop}])",
                "records": f"view[position:{stop}]",
            }[kind.name]
            self.line(f"{target} = {source}")
            self.line(f"position = {stop}")
            if kind.name != "records":
                self._made(target)
        self.line(f"elif {length} == {zero}:")
        empty = {"string": '""', "bytes": 'b""', "records": "view[0:0]"}[kind.name]
        self.line(f"    {target} = {empty}")
        self._null(target, name, nullable)

    def _array(
        self, kind: ArrayType, target: str, name: str, nullable: bool, compact: bool
    ) -> None:
        count, zero = self._length(WireType("int32", "i", 4), "long_count", compact)
        smallest = self._smallest_size(kind.element)
        assert smallest > 0, f"{name}: an element without bytes could not be bounded"
        with self.block(f"if {count} > {zero}:"):
            if zero:
                self.line(f"{count} -= 1")
            limit = f"{count} > {MAX_ARRAY_ELEMENTS} or {count} * {smallest} > end - position"
            self.line(f"if {limit}:")
            self.line(f"    raise bad_array({name!r}, {count}, end - position)")
            self._elements(kind.element, target, name, count)
        self.line(f"elif {count} == {zero}:")
        self.line(f"    {target} = []")
        self._null(target, name, nullable)

    def _elements(self, element: WireType | StructType, target: str, name: str, count: str) -> None:
        if isinstance(element, WireType) and element.format and element.name != "uuid":
            self._packed(element, target, count)
            return
        items = self.variable("l")
        self.line(f"{items} = {target} = []")
        add = self.variable("add")
        self.line(f"{add} = {items}.append")
        with self.block(f"for _ in range({count}):"):
            self._element_begins(element)
            if isinstance(element, StructType):
                item = self._struct(element.struct)
            else:
                item = self.variable("v")
                self._value(element, item, name, False, self.flexible)
            self._flush()
            self.line(f"{add}({item})")
            self._pause()

    def _packed(self, element: WireType, target: str, count: str) -> None:
        """Numbers, side by side."""
        unpack = f"packed_array({element.format!r}, {count}).unpack_from(buffer, position)"
        self.line(f"{target} = list({unpack})")
        self.line(f"position += {count} * {element.size}")

    def _smallest_size(self, kind: FieldType, flexible: bool = True, nullable: bool = False) -> int:
        """The smallest number of bytes that a value of this type takes."""
        compact = self.flexible and flexible
        if isinstance(kind, ArrayType):
            return 1 if compact else 4
        if isinstance(kind, StructType):
            return 1 if nullable else self._smallest_struct(kind.struct.spec())
        if kind.name == "string":
            return 1 if compact else 2
        if kind.name in ("bytes", "records"):
            return 1 if compact else 4
        return kind.size

    def _smallest_struct(self, spec: StructSpec) -> int:
        size = 1 if self.flexible else 0
        for field in self.fields(spec):
            nullable = self.version in field.nullable
            size += self._smallest_size(field.type, field.flexible, nullable)
        return size
