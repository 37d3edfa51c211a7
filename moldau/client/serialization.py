"""Values to bytes and back: the protocols, and the serializers that Kafka's own clients have.

Owns the byte formats of strings, numbers, UUIDs and JSON. Must not see records, topics' schemas or
connections. Invariant: None never reaches a serializer or deserializer: a null stays a null.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

from moldau.client.errors import SerializationError

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Number = TypeVar("Number", int, float)
if TYPE_CHECKING:
    # Type checkers take the default of Python 3.13's TypeVar from here.
    import typing_extensions

    Key = typing_extensions.TypeVar("Key", default=Any)
    Value = typing_extensions.TypeVar("Value", default=Any)
else:
    Key, Value = TypeVar("Key"), TypeVar("Value")


class Serializer(Protocol[In]):
    """Makes bytes of keys or values."""

    def serialize(self, topic: str, value: In) -> bytes:
        """The bytes of `value`, which is never None. May raise anything: it becomes the cause of
        the `SerializationError` that `send` raises.
        """
        ...


class Deserializer(Protocol[Out]):
    """Makes keys or values of bytes."""

    def deserialize(self, topic: str, data: bytes) -> Out:
        """The value in `data`. May raise anything: it becomes the cause of the error of the poll
        that would have handed the record out.
        """
        ...


SerializerLike: TypeAlias = Serializer[Value] | Callable[[Value], bytes]
"""A serializer, or simply a function from a value to bytes."""
DeserializerLike: TypeAlias = Deserializer[Value] | Callable[[bytes], Value]
"""A deserializer, or simply a function from bytes to a value."""


def serialize_function(given: SerializerLike | None) -> Callable[[str, object], bytes] | None:
    """A function of (topic, value) for what a user gave as a serializer.

    Raises:
        TypeError: it is neither a serializer nor callable.
    """
    return _function_of(given, "serialize", "value")


def deserialize_function(given: DeserializerLike | None) -> Callable[[str, bytes], object] | None:
    """A function of (topic, data) for what a user gave as a deserializer.

    Raises:
        TypeError: it is neither a deserializer nor callable.
    """
    return _function_of(given, "deserialize", "data")


def _function_of(given: object, name: str, argument: str) -> Callable[[str, Any], Any] | None:
    if given is None:
        return None
    method: Callable[[str, Any], Any] | None = getattr(given, name, None)
    if method is not None:
        return method
    if callable(given):
        return lambda _topic, value: given(value)
    raise TypeError(f"{given!r} is no {name}r: it has no {name}(topic, {argument})")


class StringSerializer:
    """Text in an encoding, UTF-8 unless another is named."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding: str = encoding

    def serialize(self, topic: str, value: str) -> bytes:
        if not isinstance(value, str):
            raise SerializationError(f"a str is needed for topic {topic}, not {_kind(value)}")
        return value.encode(self.encoding)


class StringDeserializer:
    """Text in an encoding, UTF-8 unless another is named."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding: str = encoding

    def deserialize(self, topic: str, data: bytes) -> str:
        try:
            return str(data, self.encoding)
        except UnicodeDecodeError as error:
            raise SerializationError(
                f"byte {error.start} of {len(data)} is no {self.encoding} text{_of(topic)}"
            ) from error


class JsonSerializer:
    """Compact JSON, UTF-8; dataclasses, datetimes, UUIDs and enums as orjson writes them."""

    def serialize(self, topic: str, value: object) -> bytes:
        import orjson

        try:
            return orjson.dumps(value)
        except TypeError as error:
            raise SerializationError(f"{_kind(value)} has no JSON form ({error})") from error


class JsonDeserializer:
    """JSON, UTF-8."""

    def deserialize(self, topic: str, data: bytes) -> Any:
        import orjson

        try:
            return orjson.loads(data)
        except ValueError as error:
            raise SerializationError(f"no JSON{_of(topic)}: {error}") from error


class _Numbers:
    """Numbers of one width, big endian as in Java."""

    format: struct.Struct = struct.Struct("")
    kinds: tuple[type, ...] = (int,)

    def __init_subclass__(
        cls, *, format: str | None = None, kinds: tuple[type, ...] | None = None
    ) -> None:
        super().__init_subclass__()
        cls.format = cls.format if format is None else struct.Struct(format)
        cls.kinds = kinds or cls.kinds


class _NumberSerializer(_Numbers, Generic[Number]):
    def serialize(self, topic: str, value: Number) -> bytes:
        """The number's bytes, big endian as in Java."""
        if not isinstance(value, self.kinds) or isinstance(value, bool):
            raise SerializationError(
                f"{type(self).__name__} needs {self.kinds[-1].__name__}, not {_kind(value)}"
            )
        try:
            return self.format.pack(value)
        except (struct.error, OverflowError) as error:
            raise SerializationError(
                f"{value} does not fit the {self.format.size} bytes of {type(self).__name__}"
            ) from error


class _NumberDeserializer(_Numbers, Generic[Number]):
    def deserialize(self, topic: str, data: bytes) -> Number:
        """The number in big endian bytes."""
        if len(data) != self.format.size:
            raise SerializationError(
                f"{type(self).__name__} needs {self.format.size} bytes, not {len(data)}"
                + _of(topic)
            )
        return cast("Number", self.format.unpack(data)[0])


class ShortSerializer(_NumberSerializer[int], format=">h"):
    """Whole numbers of 16 bits."""


class ShortDeserializer(_NumberDeserializer[int], format=">h"):
    """Whole numbers of 16 bits."""


class IntegerSerializer(_NumberSerializer[int], format=">i"):
    """Whole numbers of 32 bits."""


class IntegerDeserializer(_NumberDeserializer[int], format=">i"):
    """Whole numbers of 32 bits."""


class LongSerializer(_NumberSerializer[int], format=">q"):
    """Whole numbers of 64 bits."""


class LongDeserializer(_NumberDeserializer[int], format=">q"):
    """Whole numbers of 64 bits."""


class FloatSerializer(_NumberSerializer[float], format=">f", kinds=(int, float)):
    """Floating point numbers of 32 bits."""


class FloatDeserializer(_NumberDeserializer[float], format=">f"):
    """Floating point numbers of 32 bits."""


class DoubleSerializer(_NumberSerializer[float], format=">d", kinds=(int, float)):
    """Floating point numbers of 64 bits."""


class DoubleDeserializer(_NumberDeserializer[float], format=">d"):
    """Floating point numbers of 64 bits."""


class UuidSerializer:
    """UUIDs as text, as Kafka's UUIDSerializer writes them."""

    def serialize(self, topic: str, value: uuid.UUID) -> bytes:
        """36 characters."""
        if not isinstance(value, uuid.UUID):
            raise SerializationError(f"a UUID is needed for topic {topic}, not {_kind(value)}")
        return str(value).encode()


class UuidDeserializer:
    """UUIDs as text."""

    def deserialize(self, topic: str, data: bytes) -> uuid.UUID:
        try:
            return uuid.UUID(str(data, "utf-8"))
        except ValueError as error:
            raise SerializationError(f"no UUID{_of(topic)}: {error}") from error


def _of(topic: str) -> str:
    """What an error says of the topic, which not every caller knows."""
    return f" (topic {topic})" if topic else ""


def _kind(value: object) -> str:
    return type(value).__name__
