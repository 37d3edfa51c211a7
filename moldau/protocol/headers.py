"""The headers in front of requests and responses, and whole frames made of header and body.

The response to ApiVersions always has the oldest header, because its sender cannot know yet which
ones we use.
"""

from struct import Struct as PackedStruct
from struct import error as PackingError

from moldau.protocol import registry
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.compiler import skip_tagged_fields
from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.schema import Message, field
from moldau.protocol.types import Buffer, Int16, Int32, Part, String

_SIZE_BYTES = 4
_REQUEST_HEAD = PackedStruct(">hhih")
_SIZED_REQUEST_HEAD = PackedStruct(">ihhih")
_SIZED_RESPONSE_HEAD = PackedStruct(">ii")
_SIZED_FLEXIBLE_RESPONSE_HEAD = PackedStruct(">iix")
_CORRELATION_ID = PackedStruct(">i")
_UNSUPPORTED_VERSION = PackedStruct(">h").pack(ErrorCode.UNSUPPORTED_VERSION)


class RequestHeader(Message, versions="1-2", flexible="2+"):
    """What stands in front of every request; 2 adds tagged fields behind the client id."""

    api_key: Int16 = 0
    api_version: Int16 = 0
    correlation_id: Int32 = 0
    client_id: String | None = field("", nullable="1+", flexible="none")


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    """What stands in front of every response; 1 adds tagged fields."""

    correlation_id: Int32 = 0


def request_header_version(api_key: int, api_version: int) -> int:
    """Return the header version of a request; 1 for an API that does not exist."""
    if not registry.is_known(api_key):
        return 1
    return 2 if api_version >= registry.request_class(api_key).FLEXIBLE_SINCE else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """Return the header version of a response; 0 for an API that does not exist."""
    if api_key == ApiKey.API_VERSIONS or not registry.is_known(api_key):
        return 0
    return 1 if api_version >= registry.response_class(api_key).FLEXIBLE_SINCE else 0


def decode_request_header(buffer: Buffer) -> tuple[RequestHeader, int]:
    """Return a request's header and where its body begins in `buffer`, a frame without its size.

    The API and the version may be unknown: the header is then read as such a version would have it,
    so that the caller can still answer, or name the client whose connection it closes.

    Raises RemoteProtocolError: the bytes are no request header.
    """
    if len(buffer) < _REQUEST_HEAD.size:
        raise RemoteProtocolError(f"a request of {len(buffer)} bytes has no room for its header")
    api_key, api_version, correlation_id, client_id_size = _REQUEST_HEAD.unpack_from(buffer)
    position = _REQUEST_HEAD.size
    client_id: str | None = None
    if client_id_size >= 0:
        stop = position + client_id_size
        if stop > len(buffer):
            raise RemoteProtocolError("a request's client id reaches past the end of the frame")
        try:
            client_id = str(buffer[position:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a request's client id is not UTF-8: {error}") from error
        position = stop
    if request_header_version(api_key, api_version) == 2:
        position = _skip_tagged_section(buffer, position)
    request_header = RequestHeader(
        api_key=api_key, api_version=api_version, correlation_id=correlation_id, client_id=client_id
    )
    return request_header, position


def encode_request(
    message: Message,
    *,
    api_version: int,
    correlation_id: int,
    client_id: str | None,
    body: list[Part] | None = None,
) -> list[Part]:
    """Return the frame of a request, size prefix included; `body` is what the message is encoded
    as, where that is known already.

    Raises LocalProtocolError: the message has no such version or does not fit it, or the frame
    would be larger than its size prefix can say.
    """
    if body is None:
        body = message.encode(api_version)
    name = b"" if client_id is None else client_id.encode()
    name_size = -1 if client_id is None else len(name)
    tags = b"\0" if api_version >= message.FLEXIBLE_SINCE else b""
    size_bytes = _REQUEST_HEAD.size + len(name) + len(tags) + sum(map(len, body))
    try:
        head = _SIZED_REQUEST_HEAD.pack(
            size_bytes, message.API_KEY, api_version, correlation_id, name_size
        )
    except PackingError as error:
        raise LocalProtocolError(f"{type(message).__name__} cannot be framed: {error}") from error
    return _with_head(head + name + tags, body)


def encode_response(message: Message, *, api_version: int, correlation_id: int) -> list[Part]:
    """Return the frame of a response, size prefix included.

    Raises LocalProtocolError: as `encode_request`.
    """
    body = message.encode(api_version)
    packing = _SIZED_RESPONSE_HEAD
    if api_version >= message.FLEXIBLE_SINCE and message.API_KEY != ApiKey.API_VERSIONS:
        packing = _SIZED_FLEXIBLE_RESPONSE_HEAD
    size_bytes = packing.size - _SIZE_BYTES + sum(map(len, body))
    try:
        head = packing.pack(size_bytes, correlation_id)
    except PackingError as error:
        raise LocalProtocolError(f"{type(message).__name__} cannot be framed: {error}") from error
    return _with_head(head, body)


def decode_response(api_key: int, api_version: int, buffer: Buffer) -> tuple[int, Message]:
    """Return the correlation id and the message of a response, a frame without its size.

    An ApiVersions response that says UNSUPPORTED_VERSION is read as version 0, whatever was asked:
    that is how nodes answer a version they do not know (KIP-511).

    Raises RemoteProtocolError: the bytes are not this response.
    """
    if len(buffer) < _CORRELATION_ID.size:
        raise RemoteProtocolError(f"a response of {len(buffer)} bytes has no room for its header")
    correlation_id: int = _CORRELATION_ID.unpack_from(buffer)[0]
    position = _CORRELATION_ID.size
    if response_header_version(api_key, api_version) == 1:
        position = _skip_tagged_section(buffer, position)
    if api_key == ApiKey.API_VERSIONS and buffer[position : position + 2] == _UNSUPPORTED_VERSION:
        api_version = 0
    message, position = registry.response_class(api_key).decode(buffer, api_version, position)
    if position != len(buffer):
        raise RemoteProtocolError(
            f"{len(buffer) - position} bytes follow a {type(message).__name__}"
        )
    return correlation_id, message


def may_throttle(api_key: int, api_version: int, buffer: Buffer) -> bool:
    """Whether an encoded response, a frame without its size, may have a throttle time: the field is
    not 0, or does not come first.
    """
    fields = registry.response_class(api_key).spec().fields
    if fields[0].name != "throttle_time_ms":
        return any(field.name == "throttle_time_ms" for field in fields)
    position = _CORRELATION_ID.size + response_header_version(api_key, api_version)
    return any(buffer[position : position + 4])


def _skip_tagged_section(buffer: Buffer, position: int) -> int:
    if position >= len(buffer):
        raise RemoteProtocolError("the frame ends inside its header")
    count = buffer[position]
    return skip_tagged_fields(buffer, position + 1, count) if count else position + 1


def _with_head(head: bytes, body: list[Part]) -> list[Part]:
    """Put `head` in front of the body, in one part with it when that copies little."""
    first = body[0]
    if type(first) is bytes:
        body[0] = head + first
        return body
    return [head, *body]
