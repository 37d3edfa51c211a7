"""What is said about one field of a message, as declared and as the codecs see it.

Owns the vocabulary of `schema`: version ranges, `field()`, the shapes a field's type can have, and
the limits that decoders enforce. Reads no declaration and touches no bytes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from moldau.protocol.types import WireType

if TYPE_CHECKING:
    from moldau.protocol.schema import Struct

MAX_ARRAY_ELEMENTS = 1_000_000
"""The largest array a decoder accepts."""
MAX_TAGGED_FIELDS = 10_000
"""The largest number of tagged fields in one struct that a decoder accepts."""
MAX_STRING_BYTES = 0x7FFF
"""The longest string, in UTF-8 bytes, in either encoding."""
NEVER_FLEXIBLE = 0x7FFF
"""`FLEXIBLE_SINCE` of a message that has no flexible version."""


class _Missing:
    """Marks "no default was given", where None is a possible default."""

    __slots__ = ()


MISSING = _Missing()


OPEN = 0x7FFF
"""The last version of a range without an end."""


class Versions(NamedTuple):
    """A closed range of versions; `last` is `OPEN` in a range without an end."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """Read "3", "2-5", "2+" or "none"."""
        if text == "none":
            return cls(OPEN, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), OPEN)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


class FieldOptions(NamedTuple):
    """What `field()` was told."""

    default: Any
    since: int
    until: int
    nullable: str | None
    tag: int | None
    ignorable: bool
    flexible: str | None


def field(
    default: Any = MISSING,
    *,
    since: int = 0,
    until: int = OPEN,
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    flexible: str | None = None,
) -> Any:
    """Describe one field of a message.

    Args:
        default: value of an absent field; the type's own empty value when left out.
        since: first version with the field.
        until: last version with the field.
        nullable: versions in which the field may be None, e.g. "2+".
        tag: the field's tag; it then travels in the tagged section, and only when not default.
        ignorable: where the field is absent, drop its value instead of refusing it.
        flexible: "none" for the one string that stays in the old form in flexible versions.
    """
    return FieldOptions(default, since, until, nullable, tag, ignorable, flexible)


class StructType(NamedTuple):
    """A field type: a nested struct."""

    struct: "type[Struct]"


class ArrayType(NamedTuple):
    """A field type: an array of `element`, which is no array itself."""

    element: "WireType | StructType"


FieldType: TypeAlias = WireType | StructType | ArrayType


class FieldSpec(NamedTuple):
    """One field as the codecs see it. `default` is a constant; `fresh_default` makes one if not."""

    name: str
    type: FieldType
    versions: Versions
    nullable: Versions
    tag: int | None
    ignorable: bool
    flexible: bool
    default: Any
    fresh_default: Callable[[], Any] | None

    def default_value(self) -> Any:
        """Return the default, a new object each time when it is mutable."""
        return self.default if self.fresh_default is None else self.fresh_default()


class StructSpec(NamedTuple):
    """A struct's fields, in wire order."""

    name: str
    fields: tuple[FieldSpec, ...]
