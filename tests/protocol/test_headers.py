"""Headers and whole frames."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from moldau.protocol import headers
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.headers import (
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataResponse
from moldau.protocol.messages.p18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from moldau.protocol.schema import Message


def joined(parts: list[Any]) -> bytes:
    """The frame's bytes without the size, which is checked."""
    frame = b"".join(parts)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    return frame[4:]


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "klient-ß"])
@pytest.mark.parametrize("api_version", [8, 9, 13])
def test_a_request_frame_comes_back(client_id: str | None, api_version: int) -> None:
    request = MetadataRequest(allow_auto_topic_creation=False)
    frame = joined(
        encode_request(request, api_version=api_version, correlation_id=77, client_id=client_id)
    )
    header, position = decode_request_header(memoryview(frame))
    assert header == RequestHeader(
        api_key=ApiKey.METADATA, api_version=api_version, correlation_id=77, client_id=client_id
    )
    assert MetadataRequest.decode(frame, api_version, position) == (request, len(frame))
    version = headers.request_header_version(ApiKey.METADATA, api_version)
    assert version == (2 if api_version >= 9 else 1)
    assert header.to_bytes(version) == frame[:position]
    assert RequestHeader.decode(frame, version) == (header, position)


def test_a_request_header_may_carry_unknown_tags() -> None:
    head = struct.pack(">hhih", ApiKey.METADATA, 9, 5, 1) + b"c"
    header, position = decode_request_header(head + b"\x02\x00\x03abc\x81\x01\x00rest")
    assert (header.correlation_id, header.client_id) == (5, "c")
    assert position == len(head) + 9


def test_the_header_of_an_unknown_api_or_version_can_be_read() -> None:
    unknown_api = struct.pack(">hhih", 999, 0, 5, 2) + b"me"
    assert decode_request_header(unknown_api)[0] == RequestHeader(
        api_key=999, api_version=0, correlation_id=5, client_id="me"
    )
    future = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 6, -1) + b"\x00"
    header, position = decode_request_header(future)
    assert (header.api_version, header.client_id, position) == (99, None, len(future))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03\x00\x09\x00\x00\x00",
        struct.pack(">hhih", 3, 8, 0, 5) + b"abc",
        struct.pack(">hhih", 3, 8, 0, 2) + b"\xc3\x28",
        struct.pack(">hhih", 3, 9, 0, 1) + b"a",
        struct.pack(">hhih", 3, 9, 0, 1) + b"a\x01",
        struct.pack(">hhih", 3, 9, 0, 1) + b"a\x01\x00\x7f",
        struct.pack(">hhih", 3, 9, 0, 1) + b"a\xff\xff\xff\xff\xff\xff",
    ],
)
def test_broken_request_headers_are_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request_header(frame)


def test_no_prefix_of_a_header_passes() -> None:
    frame = joined(
        encode_request(MetadataRequest(), api_version=9, correlation_id=1, client_id="client")
    )
    _, end = decode_request_header(frame)
    for size in range(end):
        with pytest.raises(RemoteProtocolError):
            decode_request_header(frame[:size])


@pytest.mark.parametrize("api_version", [8, 9])
def test_a_response_frame_comes_back(api_version: int) -> None:
    response = MetadataResponse(controller_id=4)
    frame = joined(encode_response(response, api_version=api_version, correlation_id=-3))
    assert decode_response(ApiKey.METADATA, api_version, frame) == (-3, response)
    assert frame[4 : 4 + (api_version == 9)] == b"\x00" * (api_version == 9)
    with pytest.raises(RemoteProtocolError, match="1 bytes follow"):
        decode_response(ApiKey.METADATA, api_version, frame + b"!")
    for size in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode_response(ApiKey.METADATA, api_version, frame[:size])


def test_the_response_to_api_versions_has_the_oldest_header() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=1, max_version=2)])
    frame = joined(encode_response(response, api_version=3, correlation_id=9))
    assert frame == struct.pack(">i", 9) + response.to_bytes(3)
    assert decode_response(ApiKey.API_VERSIONS, 3, frame) == (9, response)


def test_a_refused_version_of_api_versions_is_answered_in_version_0() -> None:
    refusal = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=ApiKey.API_VERSIONS, max_version=4)],
    )
    frame = joined(encode_response(refusal, api_version=0, correlation_id=9))
    assert decode_response(ApiKey.API_VERSIONS, 4, frame) == (9, refusal)


def test_records_travel_as_their_own_part() -> None:
    class Region:
        def __len__(self) -> int:
            return 1000

    region = Region()
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(records=region)])
        ]
    )
    parts = encode_request(request, api_version=9, correlation_id=1, client_id="c")
    assert parts[1] is region
    assert struct.unpack_from(">i", parts[0])[0] == sum(map(len, parts)) - 4
    with pytest.raises(LocalProtocolError):
        request.to_bytes(9)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [(ApiVersionsRequest(), "no version 5"), (MetadataRequest(), "cannot be framed")],
)
def test_what_cannot_be_framed_is_refused(message: Message, complaint: str) -> None:
    with pytest.raises(LocalProtocolError, match=complaint):
        encode_request(message, api_version=5, correlation_id=2**31, client_id="c")
    with pytest.raises(LocalProtocolError, match=complaint):
        encode_response(message, api_version=5, correlation_id=2**31)


def test_a_client_id_must_fit_its_length() -> None:
    with pytest.raises(LocalProtocolError, match="cannot be framed"):
        encode_request(MetadataRequest(), api_version=5, correlation_id=1, client_id="x" * 32768)
