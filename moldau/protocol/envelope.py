"""The inside of an Envelope: a client's request on its way through a broker (KIP-590).

An embedded request and its response have headers of their own, in the version of the embedded API,
and no size prefix.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Generator
from typing import Final, NamedTuple

from moldau.addresses import canonical_address
from moldau.protocol import registry
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.headers import (
    RequestHeader,
    decode_request_header,
    encode_request,
    encode_response,
)
from moldau.protocol.messages.p58_envelope import (
    UNKNOWN_END_OFFSET,
    DefaultPrincipalData,
    EnvelopeRequest,
    EnvelopeResponse,
)
from moldau.protocol.schema import Message
from moldau.protocol.types import Buffer, Part

_SIZE_BYTES: Final = 4
_VERSION_BYTES: Final = 2
_PRINCIPAL_VERSION: Final = DefaultPrincipalData.MAX_VERSION
_UNKNOWN_ADDRESS: Final = bytes(4)


class EnvelopeRefused(Exception):
    """The envelope or what is in it cannot be read; `error` is the Envelope response's."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class ForwardedRequest(NamedTuple):
    """What an Envelope holds: whose request, from where, and the request.

    Attributes:
        token_authenticated: whether a delegation token has proved the principal (KIP-48).
    """

    principal: str
    client_host: str
    header: RequestHeader
    message: Message
    token_authenticated: bool = False


def encode_principal(principal: str, *, token_authenticated: bool = False) -> bytes:
    """A principal "Type:name" as brokers hand it on: a version and DefaultPrincipalData."""
    kind, _, name = principal.partition(":")
    data = DefaultPrincipalData(type=kind, name=name, token_authenticated=token_authenticated)
    return _PRINCIPAL_VERSION.to_bytes(_VERSION_BYTES, "big") + data.to_bytes(_PRINCIPAL_VERSION)


def decode_principal(data: bytes) -> tuple[str, bool]:
    """The reverse of `encode_principal`: the principal, and whether a token has proved it.

    Raises EnvelopeRefused: PRINCIPAL_DESERIALIZATION_FAILURE.
    """
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    try:
        if len(data) < _VERSION_BYTES:
            raise RemoteProtocolError("there is no version")
        principal, _ = DefaultPrincipalData.decode(data, version, _VERSION_BYTES)
    except RemoteProtocolError as error:
        raise EnvelopeRefused(
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"the principal cannot be read: {error}"
        ) from error
    return f"{principal.type}:{principal.name}", principal.token_authenticated


def encode_envelope(
    message: Message,
    *,
    api_version: int,
    correlation_id: int,
    client_id: str | None,
    principal: str,
    client_host: str,
    token_authenticated: bool = False,
    body: Buffer | None = None,
) -> EnvelopeRequest:
    """Put a client's request into an Envelope.

    Args:
        body: the message as the client has encoded it; None encodes it.
        client_host: the client's IP address as text; text that is no address becomes 0.0.0.0.
        token_authenticated: whether a delegation token has proved the principal.

    Raises:
        LocalProtocolError: the message does not fit the version.
    """
    frame = _joined(
        encode_request(
            message,
            api_version=api_version,
            correlation_id=correlation_id,
            client_id=client_id,
            body=None if body is None else [body],
        )
    )
    try:
        address = ipaddress.ip_address(client_host).packed
    except ValueError:
        address = _UNKNOWN_ADDRESS
    return EnvelopeRequest(
        request_data=frame,
        request_principal=encode_principal(principal, token_authenticated=token_authenticated),
        client_host_address=address,
    )


def decode_envelope(
    envelope: EnvelopeRequest, forwardable: Container[int]
) -> Generator[tuple[Message, int], None, ForwardedRequest]:
    """Take a client's request out of its Envelope, in steps as `Message.decode_in_steps` has them.

    Args:
        forwardable: the APIs that brokers may forward.

    Raises EnvelopeRefused: PRINCIPAL_DESERIALIZATION_FAILURE; INVALID_REQUEST for an address that
    is none and an API that may not be forwarded; UNSUPPORTED_VERSION for what cannot be read.
    """
    principal, token_authenticated = decode_principal(bytes(envelope.request_principal or b""))
    address = bytes(envelope.client_host_address)
    if len(address) not in (4, 16):
        raise EnvelopeRefused(
            ErrorCode.INVALID_REQUEST, f"{len(address)} bytes are no client address"
        )
    client_host = canonical_address(str(ipaddress.ip_address(address)))
    data = bytes(envelope.request_data)
    try:
        header, position = decode_request_header(data)
    except RemoteProtocolError as error:
        raise EnvelopeRefused(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
    if not registry.is_known(header.api_key):
        raise EnvelopeRefused(ErrorCode.UNSUPPORTED_VERSION, f"there is no API {header.api_key}")
    if header.api_key not in forwardable:
        raise EnvelopeRefused(
            ErrorCode.INVALID_REQUEST, f"{ApiKey(header.api_key).name} is not to be forwarded"
        )
    try:
        message, _ = yield from registry.request_class(header.api_key).decode_in_steps(
            data, header.api_version, position
        )
    except RemoteProtocolError as error:
        raise EnvelopeRefused(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
    return ForwardedRequest(principal, client_host, header, message, token_authenticated)


def encode_enveloped_response(
    response: Message, header: RequestHeader, *, committed_end_offset: int = UNKNOWN_END_OFFSET
) -> EnvelopeResponse:
    """Put the response to an embedded request into an Envelope's.

    Args:
        committed_end_offset: of the metadata log; every record behind the response is below it.

    Raises:
        LocalProtocolError: the response does not fit the request's version.
    """
    frame = _joined(
        encode_response(
            response, api_version=header.api_version, correlation_id=header.correlation_id
        )
    )
    return EnvelopeResponse(response_data=frame, committed_end_offset=committed_end_offset)


def enveloped_response(envelope: EnvelopeResponse, correlation_id: int) -> bytes:
    """Take the response to an embedded request, header included, out of an Envelope's that has no
    error.

    Raises RemoteProtocolError: it is not the response to that request.
    """
    if envelope.response_data is None:
        raise RemoteProtocolError("an Envelope response has neither error nor content")
    frame = bytes(envelope.response_data)
    received_id = int.from_bytes(frame[:_SIZE_BYTES], "big", signed=True)
    if received_id != correlation_id:
        raise RemoteProtocolError(
            f"an Envelope answers request {received_id} where {correlation_id} was asked"
        )
    return frame


def _joined(parts: list[Part]) -> bytes:
    """A frame in one piece, without its size prefix."""
    try:
        head, *others = parts
        return b"".join((memoryview(head)[_SIZE_BYTES:], *others))  # type: ignore[arg-type]
    except TypeError as error:
        raise LocalProtocolError(f"records in files do not fit an Envelope: {error}") from error
