"""Writes the source of a decoder for large messages: the work in steps, and the memory it takes.

Must not be used for small messages: it takes a tenth longer than the decoder in one go, from which
it differs only in what it does besides.
"""

import sys
from typing import Final

from moldau.protocol.compile_decode import DecoderBuilder
from moldau.protocol.structs import (
    STEP_BYTES,
    ArrayType,
    FieldType,
    Struct,
    StructSpec,
    StructType,
)
from moldau.protocol.types import WireType

NUMBER_BYTES: Final = 32
UUID_BYTES: Final = 104
VIEW_BYTES: Final = 200
LIST_BYTES: Final = 56
SLOT_BYTES: Final = 10
"""The size of an element in its list, which has room for some more."""
HEADER_BYTES: Final = 16
"""What the garbage collector keeps beside each object that has attributes."""
TAG_BYTES: Final = 64
"""Counted for a tagged field, for the time that it takes: one that is not known is not kept."""
PIECE: Final = 1_000
"""Numbers that are read at a time."""


class StepDecoderBuilder(DecoderBuilder):
    """Builds `decode(buffer, position)` for one version as a generator: `decode_in_steps` says what
    it yields. The sizes are those of CPython 3.11 to 3.14, or a little more.
    """

    def __init__(self, message: type[Struct], version: int, flexible: bool) -> None:
        super().__init__(message, version, flexible)
        self.names["sizeof"] = sys.getsizeof
        self._root = ""
        self._is_headed = False

    def _begin(self) -> None:
        self.line(f"room = {STEP_BYTES - self._size_of(StructType(self.message))}")

    def _struct(self, struct: type[Struct]) -> str:
        if struct is self.message:
            self._root = f"o{self._variables + 1}"
        return super()._struct(struct)

    def _before_array(self, spec: StructSpec, made: str) -> None:
        if made == self._root and not self._is_headed:
            self._is_headed = True
            self._flush()
            self.line(f"yield {made}, 0")

    def _element_begins(self, element: WireType | StructType) -> None:
        self.line(f"room -= {self._size_of(element) + SLOT_BYTES}")

    def _made(self, target: str) -> None:
        self.line(f"room -= sizeof({target})")

    def _tag_begins(self) -> None:
        self.line(f"room -= {TAG_BYTES}")

    def _skip_tags(self, count: str) -> None:
        begin = self.variable("b")
        self.line(f"{begin} = position")
        super()._skip_tags(count)
        # Two bytes are the least that a tagged field has.
        self.line(f"room -= {TAG_BYTES // 2} * (position - {begin})")

    def _pause(self) -> None:
        with self.block("if room < 0:"):
            self.line(f"yield {self._root}, {STEP_BYTES} - room")
            self.line(f"room = {STEP_BYTES}")

    def _end(self, message: str) -> None:
        self.line(f"yield {message}, {STEP_BYTES} - room")

    def _packed(self, element: WireType, target: str, count: str) -> None:
        items, piece = self.variable("l"), self.variable("c")
        self.line(f"{items} = {target} = []")
        with self.block(f"while {count}:"):
            self.line(f"{piece} = {count} if {count} < {PIECE} else {PIECE}")
            packed = f"packed_array({element.format!r}, {piece})"
            self.line(f"{items} += {packed}.unpack_from(buffer, position)")
            self.line(f"position += {piece} * {element.size}")
            self.line(f"{count} -= {piece}")
            self.line(f"room -= {self._size_of(element) + SLOT_BYTES} * {piece}")
            self._pause()

    def _size_of(self, kind: FieldType) -> int:
        """Bytes of a value, without its elements, and without what `sizeof` says of it."""
        if isinstance(kind, ArrayType):
            return LIST_BYTES
        if isinstance(kind, StructType):
            spec = kind.struct.spec()
            present = [*self.fields(spec), *self.tagged_fields(spec)]
            size = kind.struct.__basicsize__ + HEADER_BYTES
            size += sum(self._size_of(field.type) for field in present)
            return size + sum(
                self._size_of(field.type)
                for field in self.absent_fields(spec)
                if field.fresh_default is not None
            )
        if kind.name == "records":
            return VIEW_BYTES
        if kind.name == "uuid":
            return UUID_BYTES
        return 0 if kind.name in ("string", "bytes", "bool") else NUMBER_BYTES
