"""The declaration language of Kafka's messages, and the base class of the declared ones.

One class declares every version of a message: its fields in wire order, each with the versions it
is part of. `structs` makes such a class a slotted value class and the description that codecs are
compiled from; the codecs of a version are compiled when they are first used.

    class AlterPartitionRequest(Request["AlterPartitionResponse"], versions="2-3", flexible="0+"):
        broker_id: Int32 = 0
        broker_epoch: Int64 = -1
        topics: list[TopicData] = field()

    class AlterPartitionResponse(Message, answers=AlterPartitionRequest):
        throttle_time_ms: Int32 = 0

A field's default is the value it has when the constructor is not given one, and also the value a
reader sees in versions that lack the field. Without an explicit default it is the type's own:
zero, the empty string, an empty list, no records, or a struct of defaults. A struct of defaults
that holds no list is one shared instance that refuses assignment: to change it, assign a new
struct to the field. (A fetch response has three such structs per partition.)
"""

import struct as struct_module
from collections.abc import Generator
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from moldau.constants import MAX_INT16
from moldau.protocol.api_keys import API_KEYS
from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.structs import Decoder, Encoder, StepDecoder, Versions
from moldau.protocol.structs import Struct as Struct
from moldau.protocol.structs import field as field
from moldau.protocol.types import Buffer, Part

NEVER_FLEXIBLE = MAX_INT16
"""`FLEXIBLE_SINCE` of a message that has no flexible version."""

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

        flexible = version >= cls.FLEXIBLE_SINCE
        encoder = cls._encoders[version] = EncoderBuilder(cls, version, flexible).build()
        return encoder

    @classmethod
    def _compile_decoder(cls, version: int) -> Decoder:
        if not cls.supports(version):
            raise RemoteProtocolError(f"{cls.__name__} has no version {version}")
        from moldau.protocol.compile_decode import DecoderBuilder

        flexible = version >= cls.FLEXIBLE_SINCE
        decoder = cls._decoders[version] = DecoderBuilder(cls, version, flexible).build()
        return decoder

    @classmethod
    def _compile_step_decoder(cls, version: int) -> StepDecoder:
        if not cls.supports(version):
            raise RemoteProtocolError(f"{cls.__name__} has no version {version}")
        from moldau.protocol.compile_step_decode import StepDecoderBuilder

        flexible = version >= cls.FLEXIBLE_SINCE
        decoder = cls._step_decoders[version] = StepDecoderBuilder(
            cls, version, flexible
        ).build_steps()
        return decoder


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
