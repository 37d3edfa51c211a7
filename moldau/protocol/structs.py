"""Structs: values with named fields, and the specs that codecs are compiled from.

Owns the way from a declared class to a slotted one with a keyword constructor and to its
`StructSpec`, and the limits that decoders enforce. Must not touch bytes. Invariant: a class's spec
never changes once read, so that codecs compiled from it stay valid.
"""

from collections.abc import Callable, Generator
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeAlias,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from moldau.constants import MAX_INT16
from moldau.protocol.types import ZERO_UUID, Buffer, Part, WireType

MAX_ARRAY_ELEMENTS = 1_000_000
"""The largest array a decoder accepts."""
MAX_TAGGED_FIELDS = 1_000
"""The largest number of tagged fields in one struct that a decoder accepts: Kafka's structs have
four at most."""
STEP_BYTES = 64 * 1024
"""How much memory a step of `Message.decode_in_steps` takes: 0.3 to 0.6 ms of work."""
MAX_STRING_BYTES = MAX_INT16
"""The longest string, in UTF-8 bytes, in either encoding."""


class _Missing:
    """Marks "no default was given", where None is a possible default."""

    __slots__ = ()


MISSING = _Missing()

OPEN = MAX_INT16
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
    """The arguments of `field()`."""

    default: object
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
    default: object
    fresh_default: Callable[[], object] | None

    def default_value(self) -> object:
        """Return the default, a new object each time when it is mutable."""
        return self.default if self.fresh_default is None else self.fresh_default()


class StructSpec(NamedTuple):
    """A struct's fields, in wire order."""

    name: str
    fields: tuple[FieldSpec, ...]


_EMPTY_VALUES: dict[str, object] = {
    "bool": False,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}


def _read_type(annotation: Any) -> FieldType:
    origin = get_origin(annotation)
    if origin is Annotated:
        for fact in annotation.__metadata__:
            if isinstance(fact, WireType):
                return fact
    elif origin is list:
        element = _read_type(get_args(annotation)[0])
        assert not isinstance(element, ArrayType), "arrays of arrays do not exist on the wire"
        return ArrayType(element)
    elif origin in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        assert len(members) == 1, f"{annotation} is not one type or None"
        return _read_type(members[0])
    elif isinstance(annotation, type) and issubclass(annotation, Struct):
        return StructType(annotation)
    raise AssertionError(f"{annotation!r} is no wire type")


def _read_field(name: str, annotation: object, declared: object) -> FieldSpec:
    options = declared if isinstance(declared, FieldOptions) else field(declared)
    field_type = _read_type(annotation)
    default = options.default
    fresh_default: Callable[[], object] | None = None
    if default is MISSING:
        if isinstance(field_type, ArrayType):
            default, fresh_default = None, list
        elif isinstance(field_type, StructType):
            default = field_type.struct.shared_default()
            fresh_default = field_type.struct if default is None else None
        else:
            default = _EMPTY_VALUES.get(field_type.name, 0)
    return FieldSpec(
        name=name,
        type=field_type,
        versions=Versions(options.since, options.until),
        nullable=Versions.parse(options.nullable or "none"),
        tag=options.tag,
        ignorable=options.ignorable,
        flexible=options.flexible != "none",
        default=default,
        fresh_default=fresh_default,
    )


class _Declaring(type):
    """Builds a declared class with slots in place of its class-level defaults.

    The fields of its bases come first. A class that names its slots itself declares no more.
    """

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **facts: Any
    ) -> "_Declaring":
        if "__slots__" not in body:
            # From Python 3.14 on only a finished class has its annotations.
            annotations = body.get("__annotations__") or type(name, (), dict(body)).__annotations__
            declared = {
                field_name: (annotation, body.pop(field_name, MISSING))
                for field_name, annotation in annotations.items()
            }
            body["__slots__"] = tuple(annotations)
            for base in reversed(bases):
                declared = {**getattr(base, "_declared", {}), **declared}
            body["_declared"] = declared
            body["__init__"] = Struct.__init__  # and not the one that a base has compiled
            body["_spec"] = None
            body["_shared_default"] = None
        return super().__new__(cls, name, bases, body, **facts)


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=_Declaring):
    """A value with named fields: every nested struct of a message, and the base of `Message`.

    A subclass declares fields; its versions are those of the message that it is part of. Fields
    are set by keyword, compared by value, and never checked: what cannot be encoded is refused
    when it is encoded.
    """

    __slots__ = ()
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    _declared: ClassVar[dict[str, tuple[object, object]]] = {}
    _spec: ClassVar[StructSpec | None] = None
    _shared_default: "ClassVar[Struct | None]" = None

    def __init__(self, **values: Any) -> None:
        # The real constructor is compiled when the first instance is made, which keeps importing
        # a module of twenty structs cheap.
        cls = type(self)
        cls.__init__ = _compile_constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    @classmethod
    def spec(cls) -> StructSpec:
        """Return the class's fields as the codecs see them."""
        if cls._spec is None:
            cls._spec = StructSpec(
                cls.__name__,
                tuple(_read_field(name, *facts) for name, facts in cls._declared.items()),
            )
        return cls._spec

    @classmethod
    def shared_default(cls) -> Self | None:
        """Return the class's read-only instance of defaults; None when a default is mutable."""
        if cls._shared_default is None and not any(
            field.fresh_default for field in cls.spec().fields
        ):
            body = {
                "__slots__": (),
                "__setattr__": _refuse_change,
                "__delattr__": _refuse_change,
                # Copies and pickles of it are it.
                "__reduce__": lambda _: (cls.shared_default, ()),
            }
            read_only: Any = type(cls.__name__, (cls,), body)
            made = object.__new__(read_only)
            for field in cls.spec().fields:
                object.__setattr__(made, field.name, field.default)
            cls._shared_default = made
        return cls._shared_default  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or other._declared is not self._declared:
            return NotImplemented
        return self is other or all(
            getattr(self, name) == getattr(other, name) for name in self._declared
        )

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._declared)
        return f"{type(self).__name__}({values})"


def _refuse_change(self: Struct, name: str, *_: object) -> None:
    raise AttributeError(
        f"{name} belongs to a shared default: assign a new {type(self).__name__} to its field"
    )


def _compile_constructor(cls: type[Struct]) -> Callable[..., None]:
    parameters: list[str] = []
    body: list[str] = []
    names: dict[str, object] = {"MISSING": MISSING}
    for spec in cls.spec().fields:
        if spec.fresh_default is None:
            names[f"default_{spec.name}"] = spec.default
            parameters.append(f"{spec.name}=default_{spec.name}")
            body.append(f"    self.{spec.name} = {spec.name}")
        else:
            names[f"new_{spec.name}"] = spec.fresh_default
            parameters.append(f"{spec.name}=MISSING")
            made = f"new_{spec.name}() if {spec.name} is MISSING else {spec.name}"
            body.append(f"    self.{spec.name} = {made}")
    head = (
        f"def __init__(self, *, {', '.join(parameters)}):"
        if parameters
        else ("def __init__(self):")
    )
    source = "\n".join([head, *(body or ["    pass"])])
    exec(compile(source, f"<constructor of {cls.__name__}>", "exec"), names)
    constructor = names["__init__"]
    assert callable(constructor)
    return constructor


Encoder: TypeAlias = Callable[[Any], list[Part]]
Decoder: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
StepDecoder: TypeAlias = Callable[[Buffer, int], Generator[tuple[Any, int], None, tuple[Any, int]]]
