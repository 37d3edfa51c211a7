"""The declaration language of Kafka's messages, and the base classes the declarations build on.

One class declares every version of a message: its fields in wire order, each with the versions it
is part of. This module turns such a class into a slotted value class with a keyword constructor
and into a `StructSpec`, the description that codecs are compiled from; it also owns the limits that
decoders enforce. It never touches bytes itself. Invariant: a class's spec never changes once read,
so that codecs compiled from it stay valid.

    @request(ApiKey.ALTER_PARTITION, versions="2-3", flexible="0+")
    class AlterPartitionRequest(Message):
        broker_id: Int32 = 0
        broker_epoch: Int64 = -1
        topics: list[TopicData] = field()

A field's default is the value it has when the constructor is not given one, and also the value a
reader sees in versions that lack the field. Without an explicit default it is the type's own:
zero, the empty string, an empty list, no records, or a struct of defaults. A struct of defaults
that holds no list is one shared instance that refuses assignment: to change it, assign a new
struct to the field. (A fetch response has three such structs per partition.)
"""

import struct as struct_module
from collections.abc import Callable, Generator
from types import ModuleType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from moldau.constants import MAX_INT16
from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
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
NEVER_FLEXIBLE = MAX_INT16
"""`FLEXIBLE_SINCE` of a message that has no flexible version."""


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


class Struct:
    """A value with named fields: the base of every nested struct, and of `Message`.

    Fields are set by keyword, compared by value, and never checked: what cannot be encoded is
    refused when it is encoded.
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

_ENCODE_MISUSE = (struct_module.error, AttributeError, OverflowError, TypeError, UnicodeEncodeError)
_DECODE_FAULTS = (struct_module.error, IndexError, OverflowError, UnicodeDecodeError)


class Message(Struct):
    """A struct with versions of its own: a request, response, header, record or payload.

    `MIN_VERSION` and `MAX_VERSION` bound what the class can encode and decode; versions above
    `LATEST_STABLE_VERSION` are defined by Kafka but not yet settled and must not be advertised by
    default. `FLEXIBLE_SINCE` is the first version with compact lengths and tagged fields.
    """

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = -1
    LATEST_STABLE_VERSION: ClassVar[int] = -1
    FLEXIBLE_SINCE: ClassVar[int] = NEVER_FLEXIBLE

    _encoders: ClassVar[dict[int, Encoder]]
    _decoders: ClassVar[dict[int, Decoder]]
    _step_decoders: ClassVar[dict[int, StepDecoder]]

    def encode(self, version: int) -> list[Part]:
        """Encode as `version`; a `records` value becomes a part of its own, untouched.

        Raises LocalProtocolError: the version does not exist, a value does not fit its type, or a
        field that the version lacks has a value other than its default.
        """
        encoder = self._encoders.get(version)
        try:
            if encoder is None:
                encoder = self._compile_encoder(version)
            return encoder(self)
        except _ENCODE_MISUSE as error:
            raise LocalProtocolError(
                f"{type(self).__name__} v{version} cannot be encoded: {error}"
            ) from error

    def to_bytes(self, version: int) -> bytes:
        """Encode as `version` into one bytes object; its `records` must be in memory.

        Raises LocalProtocolError: as `encode`.
        """
        parts: list[Any] = self.encode(version)
        try:
            return b"".join(parts)
        except TypeError as error:
            raise LocalProtocolError(f"{type(self).__name__}: {error}") from error

    @classmethod
    def decode(cls, buffer: Buffer, version: int, position: int = 0) -> tuple[Self, int]:
        """Decode the message that starts at `position`; return it and the position after it.

        `records` fields are memoryviews of `buffer`. Bytes behind the message are the caller's.

        Raises RemoteProtocolError: the bytes are not this message, or the version does not exist.
        """
        decoder = cls._decoders.get(version)
        try:
            if decoder is None:
                decoder = cls._compile_decoder(version)
            return decoder(buffer, position)
        except _DECODE_FAULTS as error:
            raise RemoteProtocolError(
                f"{cls.__name__} v{version} cannot be decoded: {error}"
            ) from error

    @classmethod
    def decode_in_steps(
        cls, buffer: Buffer, version: int, position: int = 0
    ) -> Generator[tuple[Self, int], None, tuple[Self, int]]:
        """As `decode`, for a message that may be large: after each step of about STEP_BYTES it
        yields the message, as far as it goes, and how many bytes of memory the step took, by an
        estimate that is rather too high. The first time is before the first array: what comes
        before it is set then.

        Raises RemoteProtocolError: as `decode`.
        """
        decoder = cls._step_decoders.get(version)
        try:
            if decoder is None:
                decoder = cls._compile_step_decoder(version)
            return (yield from decoder(buffer, position))
        except _DECODE_FAULTS as error:
            raise RemoteProtocolError(
                f"{cls.__name__} v{version} cannot be decoded: {error}"
            ) from error

    @classmethod
    def supports(cls, version: int) -> bool:
        return cls.MIN_VERSION <= version <= cls.MAX_VERSION

    @classmethod
    def _compile_encoder(cls, version: int) -> Encoder:
        if not cls.supports(version):
            raise LocalProtocolError(f"{cls.__name__} has no version {version}")
        from moldau.protocol.compile_encode import EncoderBuilder

        encoder = cls._encoders[version] = EncoderBuilder(cls, version).build()
        return encoder

    @classmethod
    def _compile_decoder(cls, version: int) -> Decoder:
        if not cls.supports(version):
            raise RemoteProtocolError(f"{cls.__name__} has no version {version}")
        from moldau.protocol.compile_decode import DecoderBuilder

        decoder = cls._decoders[version] = DecoderBuilder(cls, version).build()
        return decoder

    @classmethod
    def _compile_step_decoder(cls, version: int) -> StepDecoder:
        if not cls.supports(version):
            raise RemoteProtocolError(f"{cls.__name__} has no version {version}")
        from moldau.protocol.compile_step_decode import StepDecoderBuilder

        decoder = cls._step_decoders[version] = StepDecoderBuilder(cls, version).build_steps()
        return decoder


Response = TypeVar("Response", bound=Message)
Response_co = TypeVar("Response_co", bound=Message, covariant=True)


class Request(Message, Generic[Response_co]):
    """A message that a node answers with a `Response_co`, of the same version."""

    __slots__ = ()


AnyRequest: TypeAlias = Request[Any]
"""A request where the type of its response does not matter, or is not known."""


def messages_of(module: ModuleType) -> list[type[Message]]:
    """Every message that a module declares, in its order."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Message)
        if value.__module__ == module.__name__
    ]


StructClass = TypeVar("StructClass", bound=type[Struct])
MessageClass = TypeVar("MessageClass", bound=type[Message])


def _slotted(cls: Any, **constants: Any) -> Any:
    """Build the declared class again with slots in place of its class-level defaults."""
    annotations = cls.__annotations__
    body = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in annotations and name not in ("__dict__", "__weakref__")
    }
    body["__slots__"] = tuple(annotations)
    body["__qualname__"] = cls.__qualname__
    body["_declared"] = {
        name: (annotation, cls.__dict__.get(name, MISSING))
        for name, annotation in annotations.items()
    }
    body["_spec"] = None
    body["_shared_default"] = None
    body.update(constants)
    return type(cls)(cls.__name__, cls.__bases__, body)


@dataclass_transform(kw_only_default=True)
def struct(cls: StructClass) -> StructClass:
    """Declare a nested struct; its versions are those of the message it is part of."""
    built: StructClass = _slotted(cls)
    return built


@dataclass_transform(kw_only_default=True)
def request(
    api_key: int, *, versions: str, flexible: str, latest_stable: int | None = None
) -> Callable[[MessageClass], MessageClass]:
    """Declare an API's request.

    Args:
        api_key: the API's number; a record's own number, and -1 for what has none.
        versions: versions the class covers.
        flexible: versions with compact lengths and tagged fields.
        latest_stable: the last settled version, when a later one is declared too.
    """
    supported = Versions.parse(versions)

    def declare(cls: MessageClass) -> MessageClass:
        declared: MessageClass = _slotted(
            cls,
            API_KEY=api_key,
            MIN_VERSION=supported.first,
            MAX_VERSION=supported.last,
            LATEST_STABLE_VERSION=supported.last if latest_stable is None else latest_stable,
            FLEXIBLE_SINCE=Versions.parse(flexible).first,
            _encoders={},
            _decoders={},
            _step_decoders={},
        )
        return declared

    return declare


response = request
metadata_record = request
"""Declares a record of `__cluster_metadata`, with its number in the record's frame."""
coordinator_record = request
"""Declares the key or the value of a coordinator's record, with the number that the key says."""


@dataclass_transform(kw_only_default=True)
def data(*, versions: str, flexible: str) -> Callable[[MessageClass], MessageClass]:
    """Declare a message that belongs to no API: a header, or a payload inside something else."""
    return request(-1, versions=versions, flexible=flexible)


header = data
