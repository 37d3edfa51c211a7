"""The declaration language of Kafka's messages, and the base class of the declared ones.

One class declares every version of a message: its fields in wire order, each with the versions it
is part of. `structs` makes such a class a slotted value class and the description that codecs are
compiled from; the codecs of a version are compiled when they are first used.

    class AlterPartitionRequest(Request["AlterPartitionResponse"], versions="2-3", flexible="0+"):
        broker_id: Int32 = 0
        broker_epoch: Int64 = -1
        topics: list[TopicData] = field()

    class AlterPartitionResponse(FailableResponse, answers=AlterPartitionRequest):
        topics: list[TopicDataResponse] = field()

A field's default is the value it has when the constructor is not given one, and also the value a
reader sees in versions that lack the field. Without an explicit default it is the type's own:
zero, the empty string, an empty list, no records, or a struct of defaults. A struct of defaults
that holds no list is one shared instance that refuses assignment: to change it, assign a new
struct to the field. (A fetch response has three such structs per partition.)
"""

import struct as struct_module
from collections.abc import Generator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from moldau.constants import MAX_INT16
from moldau.protocol.api_keys import API_KEYS
from moldau.protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from moldau.protocol.structs import Decoder, Encoder, StepDecoder, Versions
from moldau.protocol.structs import Struct as Struct
from moldau.protocol.structs import field as field
from moldau.protocol.types import Buffer, Int16, Int32, Part, String

NEVER_FLEXIBLE = MAX_INT16
"""`FLEXIBLE_SINCE` of a message that has no flexible version."""

_ENCODER = "compile_encode.EncoderBuilder"
_DECODER = "compile_decode.DecoderBuilder"
_STEPS = "compile_step_decode.StepDecoderBuilder"
"""What makes codecs, loaded when the first one is needed."""

_ENCODE_MISUSE = (struct_module.error, AttributeError, OverflowError, TypeError, UnicodeEncodeError)
_DECODE_FAULTS = (struct_module.error, IndexError, OverflowError, UnicodeDecodeError)


class Message(Struct):
    """A struct that has its own versions: a request, response, header, record or payload.

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

    if TYPE_CHECKING:  # a message of any kind may have any fields

        def __init__(self, **values: Any) -> None: ...

    def __init_subclass__(
        cls,
        *,
        number: int = -1,
        versions: str | None = None,
        flexible: str = "none",
        answers: "type[AnyRequest] | None" = None,
    ) -> None:
        """Declare a message: a response, or with versions of its own a header, a record or a
        payload.

        Args:
            number: a record's own, in its frame or its key.
            versions: versions the class covers.
            flexible: versions with compact lengths and tagged fields.
            answers: the request of a response, which has the same number and versions.
        """
        super().__init_subclass__()
        if answers is not None:
            versions = f"{answers.MIN_VERSION}-{answers.MAX_VERSION}"
            cls._declare(answers.API_KEY, versions, f"{answers.FLEXIBLE_SINCE}+")
            cls.LATEST_STABLE_VERSION = answers.LATEST_STABLE_VERSION
        elif versions is not None:
            cls._declare(number, versions, flexible)

    @classmethod
    def _declare(cls, api_key: int, versions: str, flexible: str) -> None:
        cls.API_KEY = api_key
        cls.MIN_VERSION, cls.MAX_VERSION = Versions.parse(versions)
        cls.LATEST_STABLE_VERSION = cls.MAX_VERSION
        cls.FLEXIBLE_SINCE = Versions.parse(flexible).first
        cls._encoders, cls._decoders, cls._step_decoders = {}, {}, {}

    def encode(self, version: int) -> list[Part]:
        """Encode as `version`; a `records` value becomes a separate part, untouched.

        Raises LocalProtocolError: the version does not exist, a value does not fit its type, or a
        field that the version lacks has a value other than its default.
        """
        encoder = self._encoders.get(version)
        try:
            if encoder is None:
                encoder = self._compiled(self._encoders, version, _ENCODER, LocalProtocolError)
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
                decoder = cls._compiled(cls._decoders, version, _DECODER, RemoteProtocolError)
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
                decoder = cls._compiled(cls._step_decoders, version, _STEPS, RemoteProtocolError)
            return (yield from decoder(buffer, position))
        except _DECODE_FAULTS as error:
            raise RemoteProtocolError(
                f"{cls.__name__} v{version} cannot be decoded: {error}"
            ) from error

    @classmethod
    def supports(cls, version: int) -> bool:
        return cls.MIN_VERSION <= version <= cls.MAX_VERSION

    @classmethod
    def _compiled(
        cls, codecs: dict[int, Any], version: int, builder: str, error: type[ProtocolError]
    ) -> Any:
        """The codec of a version, made by a class that is named with its module, and kept."""
        if not cls.supports(version):
            raise error(f"{cls.__name__} has no version {version}")
        module, _, name = builder.partition(".")
        kind = getattr(import_module(f"moldau.protocol.{module}"), name)
        made = codecs[version] = kind(cls, version, version >= cls.FLEXIBLE_SINCE).build()
        return made


Response = TypeVar("Response", bound=Message)
Response_co = TypeVar("Response_co", bound=Message, covariant=True)


class Request(Message, Generic[Response_co]):
    """A message that a node answers with a `Response_co`, of the same version. Its class is named
    after its API.
    """

    __slots__ = ()

    def __init_subclass__(
        cls,
        *,
        versions: str | None = None,
        flexible: str = "none",
        latest_stable: int | None = None,
    ) -> None:
        """Declare an API's request, as a message.

        Args:
            latest_stable: the last settled version, when a later one is declared too.
        """
        number = -1 if versions is None else API_KEYS[cls.__name__.removesuffix("Request")]
        super().__init_subclass__(number=number, versions=versions, flexible=flexible)
        if latest_stable is not None:
            cls.LATEST_STABLE_VERSION = latest_stable


class Failable(Struct):
    """A part of a response that begins with an error and its text."""

    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")


class FailablePartition(Struct):
    """A part of a response that begins with a partition and its error."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class ThrottledResponse(Message):
    """A response that begins with the throttle time."""

    throttle_time_ms: Int32 = 0


class FailableResponse(ThrottledResponse):
    """A response that goes on with an error of the whole request."""

    error_code: Int16 = 0


class ExplainedResponse(FailableResponse):
    """A response that goes on with the error's text."""

    error_message: String | None = field("", nullable="0+")


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
