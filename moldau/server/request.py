"""One request on the server side, which is at the same time its place in the order of responses.

Owns: the request's frame until the response has been built, and the response until it leaves.
Must not: interpret bodies, or be touched from another thread than its connection's loop.
Invariant: answered exactly once; the frame's bytes are released exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.headers import RequestHeader, encode_response
from moldau.protocol.produce_parts import has_more_parts
from moldau.protocol.schema import ArrayType, Message, Struct
from moldau.protocol.types import Part
from moldau.runtime.files import FileRegion

if TYPE_CHECKING:
    from moldau.server.server_connection import ServerConnection

MessageT = TypeVar("MessageT", bound=Message)

LARGE_BODY_BYTES: Final = 64 * 1024
"""A body above it is decoded off the loop: it may hold so many elements that this takes 5 ms."""

LARGE_PART_COUNT: Final = 500
"""A Produce request with more topics and partitions is decoded off the loop."""

LARGE_ELEMENT_COUNT: Final = 1000
"""A response with an array above it is encoded off the loop."""


FREED_AT_ONCE: Final = 500

_NAMED_ONCE: Final = 2
"""What `getrefcount` says of an object that only a local variable names."""


class Request:
    """A decoded request header, the undecoded body, and the way to answer.

    `api_key` is a plain number when it is unknown; `api_version` is not checked against anything.
    `body` is the frame after the header: writable, valid until the request is answered or
    `release_body` is called. Answering may happen inside the handler or any time later; responses
    leave in request order.
    """

    __slots__ = (
        "_frame",
        "_parts",
        "api_key",
        "api_version",
        "body",
        "client_id",
        "connection",
        "correlation_id",
        "handled_ms",
        "is_answered",
        "received_ms",
        "responded_ms",
        "size_bytes",
    )

    def __init__(
        self,
        connection: ServerConnection,
        header: RequestHeader,
        header_size: int,
        frame: memoryview,
        received_ms: float,
    ) -> None:
        self.connection = connection
        self.api_key: int = header.api_key
        self.api_version: int = header.api_version
        self.correlation_id: int = header.correlation_id
        self.client_id: str | None = header.client_id
        self.size_bytes = len(frame)
        self.body = frame[header_size:]
        self.received_ms = received_ms
        self.handled_ms = received_ms
        self.responded_ms = 0.0
        self._frame: memoryview | None = frame
        self._parts: Sequence[Part] | None = None
        self.is_answered = False
        """Whether there is an answer; a large one may still be on its way to being encoded."""

    def __repr__(self) -> str:
        return (
            f"Request(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r})"
        )

    @property
    def is_large(self) -> bool:
        """Whether its body, which must be there, may take long to decode. A Produce request is
        large by its records, which are not decoded, unless it has very many of them.
        """
        if self.size_bytes <= LARGE_BODY_BYTES:
            return False
        return self.api_key != ApiKey.PRODUCE or has_more_parts(
            self.body, self.api_version, LARGE_PART_COUNT
        )

    @property
    def is_done(self) -> bool:
        return self._parts is not None

    @property
    def is_connection_lost(self) -> bool:
        """Whether the client has gone and reads no answer (answering is still required)."""
        return self.connection.is_closed

    async def decode(self, message_class: type[MessageT]) -> MessageT:
        """The body, decoded off the loop.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        version = self.api_version
        message, _ = await self.connection.offload(message_class.decode, self.body, version)
        return message

    def respond(self, message: Message, *, api_version: int | None = None) -> None:
        """Answer with a message, encoded in the request's version unless another is named; a large
        one, or that of a large request, off the loop: it belongs to the request from now on.

        Raises LocalProtocolError when the message cannot be encoded in that version; nothing is
        sent then.
        """
        version = self.api_version if api_version is None else api_version
        is_long = self.size_bytes > LARGE_BODY_BYTES and self.api_key != ApiKey.PRODUCE
        if is_long or is_large_message(message):
            self.is_answered = True
            self.connection.start(self._respond_large(message, version))
        else:
            self.respond_parts(self._encoded(message, version))

    async def _respond_large(self, message: Message, api_version: int) -> None:
        owned = [message]
        del message
        try:
            parts = await self.connection.offload(self._encoded_and_freed, owned, api_version)
        except BaseException:
            self.close("an answer failed inside the node")
            raise
        self.respond_parts(parts)

    def _encoded_and_freed(self, owned: list[Message], api_version: int) -> list[Part]:
        """The last message of `owned`, encoded; the loop is not the one that takes it apart."""
        message = owned.pop()
        parts = self._encoded(message, api_version)
        if getrefcount(message) == _NAMED_ONCE:
            _take_apart(message)
        return parts

    def _encoded(self, message: Message, api_version: int) -> list[Part]:
        return encode_response(message, api_version=api_version, correlation_id=self.correlation_id)

    def respond_parts(self, parts: Sequence[Part]) -> None:
        """Answer with an encoded response, size prefix and header included.

        Parts may refer to the request's own frame: it is kept until they have been copied out. Once
        the connection is closed an answer is only dropped.
        """
        assert self._parts is None or self.connection.is_closed, "a request is answered once"
        self.is_answered = True
        self._parts = parts
        self.connection.on_response(self)

    def respond_nothing(self) -> None:
        """Be done without a response (Produce with acks=0); later responses need not wait."""
        self.respond_parts(())

    def close(self, reason: str) -> None:
        """Close the connection instead of answering, for a peer that broke the protocol."""
        self.is_answered = True
        self.connection.close(reason)
        self.discard()

    def release_body(self) -> None:
        """Give the frame back early: for requests that wait long and need its bytes no more
        (idempotent).

        After it neither `body` nor any slice of it may be read.
        """
        frame = self._frame
        if frame is not None:
            self._frame = None
            self.body.release()
            self.connection.release_frame(frame)

    def take_parts(self) -> Sequence[Part]:
        """For the connection: the response's parts, once."""
        parts = self._parts
        assert parts is not None
        self._parts = ()
        return parts

    def discard(self) -> None:
        """For the connection: the response will not be sent; drop what it holds."""
        for part in self._parts or ():
            if isinstance(part, FileRegion):
                part.release()
        self._parts = ()
        self.release_body()


def is_large_message(struct: Struct) -> bool:
    """Whether an array has LARGE_ELEMENT_COUNT elements, in the first of all elements as well."""
    for name in array_names(type(struct)):
        elements = getattr(struct, name)
        if not elements:
            continue
        if len(elements) > LARGE_ELEMENT_COUNT:
            return True
        if isinstance(elements[0], Struct) and is_large_message(elements[0]):
            return True
    return False


def _take_apart(struct: Struct) -> None:
    """Give the elements of a struct's large arrays free, some at a time: all at once would hold the
    interpreter for 50 ms. What others hold too, an array or a struct, stays as it is.
    """
    for name in array_names(type(struct)):
        elements = getattr(struct, name)
        setattr(struct, name, None)
        if type(elements) is not list or getrefcount(elements) != _NAMED_ONCE:
            continue
        while len(elements) > FREED_AT_ONCE:
            del elements[-FREED_AT_ONCE:]
        while elements:
            element = elements.pop()
            if isinstance(element, Struct) and getrefcount(element) == _NAMED_ONCE:
                _take_apart(element)


_ARRAYS: Final[dict[type[Struct], tuple[str, ...]]] = {}


def array_names(struct: type[Struct]) -> tuple[str, ...]:
    """The names of a struct's fields that are arrays."""
    names = _ARRAYS.get(struct)
    if names is None:
        fields = struct.spec().fields
        names = tuple(field.name for field in fields if isinstance(field.type, ArrayType))
        _ARRAYS[struct] = names
    return names
