"""Writes the source of a message's encoder.

Fixed-width values are collected in a pending run and packed by one call when something of variable
width, or a branch, comes next. Everything between two `records` values is joined into one part.
"""

from moldau.protocol.compiler import SourceBuilder
from moldau.protocol.errors import LocalProtocolError
from moldau.protocol.structs import (
    ArrayType,
    Encoder,
    FieldSpec,
    FieldType,
    Struct,
    StructSpec,
    StructType,
)
from moldau.protocol.types import WireType
from moldau.protocol.varint import unsigned_varint


class EncoderBuilder(SourceBuilder):
    """Builds `encode(message) -> parts` for one version."""

    def __init__(self, message: type[Struct], version: int, flexible: bool) -> None:
        super().__init__(message, version, flexible)
        self._letters = ""
        self._values: list[str] = []
        self._add = "add"

    def build(self) -> Encoder:
        with self.block("def encode(message):"):
            self.line("pieces = []")
            self.line("add = pieces.append")
            self.line("parts = []")
            self._struct(self.message.spec(), "message")
            self._flush()
            self.line("if pieces or not parts:")
            self.line('    parts.append(b"".join(pieces))')
            self.line("return parts")
        return self.finish("encode")

    # Fixed-width runs

    def _write(self, letter: str, value: str = "") -> None:
        self._letters += letter
        if value:
            self._values.append(value)

    def _flush(self, varint: str = "", helper: str = "varint") -> None:
        """Write the pending run, and behind it `varint`, a variable that is mostly below 128."""
        if not varint:
            if self._letters:
                self.line(self._packed(self._letters, self._values))
        else:
            self.line(f"if {varint} < 128:")
            self.line("    " + self._packed(self._letters + "B", [*self._values, varint]))
            if helper == "varint":
                two = [*self._values, f"{varint} & 127 | 128", f"{varint} >> 7"]
                self.line(f"elif {varint} < 16384:")
                self.line("    " + self._packed(self._letters + "BB", two))
            with self.block("else:"):
                if self._letters:
                    self.line(self._packed(self._letters, self._values))
                self.line(f"{self._add}({helper}({varint}))")
        self._letters = ""
        self._values = []

    def _packed(self, letters: str, values: list[str]) -> str:
        if not values:
            return f"{self._add}({bytes(len(letters))!r})"
        return f"{self._add}({self.packing('pack', letters)}({', '.join(values)}))"

    # Structs

    def _struct(self, spec: StructSpec, value: str) -> None:
        for field in self.absent_fields(spec):
            if not field.ignorable:
                differs = self._differs(field, f"{value}.{field.name}")
                text = f"{spec.name}.{field.name} cannot be sent in version {self.version}"
                self.refuse(f"if {differs}", LocalProtocolError, text)
        for field in self.fields(spec):
            self._field(field, f"{value}.{field.name}")
        if self.flexible:
            self._tagged_section(spec, value)

    def _differs(self, field: FieldSpec, value: str) -> str:
        """Return the condition that the field's value is not its default."""
        if field.fresh_default is list:
            return f"{value} is None or len({value})"
        if field.fresh_default is not None:
            return f"{value} != {self.constant('default', field.default_value())}"
        if field.default is None:
            return f"{value} is not None"
        if isinstance(field.default, Struct):
            default = self.constant("default", field.default)
            return f"{value} is not {default} and {value} != {default}"
        if type(field.default) in (int, str, bytes):
            return f"{value} != {field.default!r}"
        return f"{value} != {self.constant('default', field.default)}"

    def _field(self, field: FieldSpec, value: str) -> None:
        nullable = self.version in field.nullable
        if isinstance(field.type, StructType):
            self._struct_field(field.type, value, nullable, self.is_tagged(field))
        else:
            self._value(field.type, value, nullable, self.flexible and field.flexible)

    def _struct_field(self, kind: StructType, value: str, nullable: bool, tagged: bool) -> None:
        inner = self.variable("o")
        self.line(f"{inner} = {value}")
        if not nullable:
            self._struct(kind.struct.spec(), inner)
            return
        self._flush()
        self.line(f"if {inner} is None:")
        # An int8, -1 or 1, says whether the struct is present; in a tagged field a varint, 0 or 1.
        self.line(f"    {self._add}({bytes(1) if tagged else bytes((0xFF,))!r})")
        with self.block("else:"):
            self._write("b", "1")
            self._struct(kind.struct.spec(), inner)
            self._flush()

    def _tagged_section(self, spec: StructSpec, value: str) -> None:
        tagged = self.tagged_fields(spec)
        if not tagged:
            self._write("x")
            return
        conditions = [self._differs(field, f"{value}.{field.name}") for field in tagged]
        letters, values = self._letters, self._values
        with self.block("if " + " or ".join(f"({one})" for one in conditions) + ":"):
            self._flush()
            section = self.variable("tags")
            self.line(f"{section} = []")
            for field, condition in zip(tagged, conditions, strict=True):
                self._tagged_field(field, condition, f"{value}.{field.name}", section)
            self.line(f"{self._add}(varint(len({section}) // 3))")
            pieces = self.variable("p")
            self.line(f"for {pieces} in {section}:")
            self.line(f"    {self._add}({pieces})")
        with self.block("else:"):
            self._letters, self._values = letters, values
            self._write("x")
            self._flush()

    def _tagged_field(self, field: FieldSpec, condition: str, value: str, section: str) -> None:
        outer_add = self._add
        pieces, payload = self.variable("p"), self.variable("b")
        self._add = self.variable("add")
        with self.block(f"if {condition}:"):
            self.line(f"{pieces} = []")
            self.line(f"{self._add} = {pieces}.append")
            self._field(field, value)
            self._flush()
            self.line(f'{payload} = b"".join({pieces})')
            tag = unsigned_varint(field.tag or 0)
            self.line(f"{section} += ({tag!r}, varint(len({payload})), {payload})")
        self._add = outer_add

    # Values

    def _value(self, kind: FieldType, value: str, nullable: bool, compact: bool) -> None:
        if isinstance(kind, ArrayType):
            self._array(kind, value, nullable, compact)
            return
        assert isinstance(kind, WireType)
        if kind.name == "uuid":
            self._write(kind.format, f"{value}.bytes")
        elif kind.format:
            self._write(kind.format, value)
        else:
            self._bytes_like(kind, value, nullable, compact)

    def _length(self, letter: str, length: str, helper: str, compact: bool) -> None:
        if compact:
            self._flush(length, helper)
        else:
            self._write(letter, length)
            self._flush()

    def _bytes_like(self, kind: WireType, value: str, nullable: bool, compact: bool) -> None:
        raw, length = self.variable("b"), self.variable("n")
        is_string = kind.name == "string"
        is_records = kind.name == "records"
        one_more = " + 1" if compact else ""
        if nullable:
            if value != raw:
                self.line(f"{raw} = {value}")
            self.line(f"if {raw} is None:")
            self.line(f"    {length} = {0 if compact else -1}")
            with self.block("else:"):
                if is_string:
                    self.line(f"{raw} = {raw}.encode()")
                self.line(f"{length} = len({raw}){one_more}")
        else:
            self.line(f"{raw} = {value}" + (".encode()" if is_string else ""))
            self.line(f"{length} = len({raw}){one_more}")
        helper = "string_size" if is_string else "varint"
        self._length("h" if is_string else "i", length, helper, compact)
        self.line(f"if {length} > {1 if compact else 0}:")
        if is_records:
            assert self._add == "add", "records in a tagged field would have to be copied"
            self.line('    parts.append(b"".join(pieces))')
            self.line("    pieces.clear()")
            self.line(f"    parts.append({raw})")
        else:
            self.line(f"    {self._add}({raw})")

    def _array(self, kind: ArrayType, value: str, nullable: bool, compact: bool) -> None:
        items, count = self.variable("l"), self.variable("n")
        self.line(f"{items} = {value}")
        counted = f"len({items})" + (" + 1" if compact else "")
        if nullable:
            counted = f"{0 if compact else -1} if {items} is None else {counted}"
        self.line(f"{count} = {counted}")
        self._length("i", count, "varint", compact)
        element = kind.element
        with self.block(f"if {count} > {1 if compact else 0}:"):
            if isinstance(element, WireType) and element.format and element.name != "uuid":
                pack = f"packed_array({element.format!r}, len({items})).pack(*{items})"
                self.line(f"{self._add}({pack})")
                return
            item = self.variable("i")
            with self.block(f"for {item} in {items}:"):
                if isinstance(element, StructType):
                    self._struct(element.struct.spec(), item)
                else:
                    self._value(element, item, False, self.flexible)
                self._flush()
