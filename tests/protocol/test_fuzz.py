"""Decoders on bytes that no well-meaning peer sends.

Whatever comes, a decoder ends soon, takes no more memory than the frame justifies, and either
returns a message or raises RemoteProtocolError; the interpreter of the schema must agree with it.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.protocol.compiler import MAX_CACHED_UUIDS, UuidCache
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.headers import decode_request_header, decode_response
from moldau.protocol.messages.p01_fetch import FetchRequest
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.metadata_records import decode_record
from moldau.protocol.schema import Message
from moldau.protocol.structs import MAX_ARRAY_ELEMENTS, MAX_STRING_BYTES, MAX_TAGGED_FIELDS
from moldau.protocol.varint import unsigned_varint
from tests.kit.counting import collector_at_rest
from tests.protocol import interpreter
from tests.protocol.instances import InstanceMaker, all_versions

MUTATIONS_PER_VERSION = 25
VERSIONS = all_versions()
EVERY_VERSION = pytest.mark.parametrize(
    ("message_class", "version"), VERSIONS, ids=lambda part: getattr(part, "__name__", None)
)
NASTY = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80\x01",
    b"\xc3\x28",
)


def decoded_or_refused(decode: Any, *arguments: Any) -> Any:
    """What `decode` returns, or None when it refuses; anything else it raises is a failure."""
    try:
        return decode(*arguments)
    except RemoteProtocolError:
        return None


def check_garbage(message_class: type[Message], version: int, garbage: bytes) -> None:
    """Decode with both codecs and compare."""
    compiled = decoded_or_refused(message_class.decode, garbage, version)
    interpreted = decoded_or_refused(interpreter.decode, message_class, garbage, version)
    assert (compiled is None) == (interpreted is None), garbage.hex()
    if compiled is not None:
        assert compiled[1] == interpreted[1] <= len(garbage)
        # Compared as bytes, because NaN is not equal to itself.
        assert compiled[0].to_bytes(version) == interpreter.encode(interpreted[0], version)


def mutated(chosen: random.Random, frame: bytes) -> bytes:
    """A copy of the frame with one to three things wrong with it."""
    damaged = bytearray(frame)
    for _ in range(chosen.randint(1, 3)):
        position = chosen.randint(0, len(damaged))
        match chosen.randint(0, 4):
            case 0 if position < len(damaged):
                damaged[position] ^= 1 << chosen.randint(0, 7)
            case 1:
                damaged[position : position + chosen.randint(1, 8)] = b""
            case 2:
                damaged[position:position] = chosen.randbytes(chosen.randint(1, 8))
            case 3:
                nasty = chosen.choice(NASTY)
                damaged[position : position + len(nasty)] = nasty
            case _:
                damaged[position:] = damaged[chosen.randint(0, len(damaged)) :]
    return bytes(damaged)


@EVERY_VERSION
def test_damaged_frames(message_class: type[Message], version: int) -> None:
    seed = zlib.crc32(f"fuzz {message_class.__name__} {version}".encode())
    print("seed", seed)
    chosen = random.Random(seed)
    maker = InstanceMaker(seed, max_elements=2)
    for _ in range(3):
        frame = maker.make(message_class, version).to_bytes(version)
        for _ in range(MUTATIONS_PER_VERSION):
            check_garbage(message_class, version, mutated(chosen, frame))
    for size in (0, 1, 7, 40, 400):
        check_garbage(message_class, version, chosen.randbytes(size))
        check_garbage(message_class, version, bytes(chosen.choices((0, 1, 2, 255), k=size)))


@EVERY_VERSION
def test_no_prefix_of_a_message_passes(message_class: type[Message], version: int) -> None:
    seed = zlib.crc32(f"prefix {message_class.__name__} {version}".encode())
    print("seed", seed)
    maker = InstanceMaker(seed, max_elements=2, long_values=False)
    frame = maker.make(message_class, version).to_bytes(version)
    sizes = list(range(len(frame)))
    if len(frame) > 200:
        sizes = sorted(random.Random(seed).sample(sizes, 200))
    for size in sizes:
        with pytest.raises(RemoteProtocolError):
            message_class.decode(frame[:size], version)


@given(st.sampled_from(VERSIONS), st.binary(max_size=300))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes(chosen: tuple[type[Message], int], garbage: bytes) -> None:
    check_garbage(*chosen, garbage)


@given(st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_bytes_as_headers_and_frames(garbage: bytes) -> None:
    header = decoded_or_refused(decode_request_header, garbage)
    assert header is None or header[0].correlation_id == int.from_bytes(
        garbage[4:8], "big", signed=True
    )
    for api_key, api_version in ((18, 3), (3, 12)):
        response = decoded_or_refused(decode_response, api_key, api_version, garbage)
        assert response is None or api_key == response[1].API_KEY
    record = decoded_or_refused(decode_record, b"\x01" + garbage)
    assert record is None or record[0].supports(record[1])
    for log in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        key = decoded_or_refused(log.decode_key, b"\x00" + garbage)
        if key is not None:
            value = decoded_or_refused(log.decode_value, key, b"\x00\x00" + garbage)
            assert value is None or value[0].API_KEY == key.API_KEY


def peak_bytes_of_refusing(message_class: type[Message], version: int, frame: bytes) -> int:
    """The memory that refusing `frame` takes at most. What threads of others take comes on top,
    so the smallest of several measurements counts.
    """
    with pytest.raises(RemoteProtocolError):
        message_class.decode(frame, version)
    peaks = []
    with collector_at_rest():
        for _ in range(3):
            tracemalloc.start()
            try:
                with pytest.raises(RemoteProtocolError):
                    message_class.decode(frame, version)
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
    return min(peaks)


@pytest.mark.parametrize(
    ("message_class", "version", "frame"),
    [
        (MetadataRequest, 8, struct.pack(">i", 2**31 - 1)),
        (MetadataRequest, 8, struct.pack(">i", 1000) + b"\0" * 100),
        (MetadataRequest, 12, unsigned_varint(2**31 - 1)),
        (MetadataRequest, 12, unsigned_varint(2**32 - 1)),
        (ApiVersionsRequest, 3, unsigned_varint(2**31 - 1) + b"\0" * 64),
        (ApiVersionsRequest, 3, b"\x01\x01" + unsigned_varint(9999)),
        (FetchRequest, 12, b"\0" * 21 + b"\x01\x02\x01a" + unsigned_varint(10**6) + b"\0" * 64),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_huge_lengths_in_small_frames_take_no_memory(
    message_class: type[Message], version: int, frame: bytes
) -> None:
    assert peak_bytes_of_refusing(message_class, version, frame) < 64 * 1024


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (8, struct.pack(">i", 3) + b"\0" * 5),
        (12, b"\x04" + b"\0" * 53),
    ],
)
def test_an_array_must_have_room_in_the_frame(version: int, frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"topics: 3 elements do not fit into the \d+ "):
        MetadataRequest.decode(frame, version)


def test_numbers_over_32_bits_are_refused() -> None:
    request = FetchRequest().to_bytes(12)
    assert request.endswith(b"\0")
    largest_tag = b"\x01\xff\xff\xff\xff\x0f\x00"
    assert FetchRequest.decode(request[:-1] + largest_tag, 12)[0] == FetchRequest()
    for too_large in (b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x00"):
        with pytest.raises(RemoteProtocolError):
            FetchRequest.decode(request[:-1] + b"\x01" + too_large + b"\x00", 12)


def test_the_cache_of_uuids_is_bounded() -> None:
    uuids = UuidCache()
    for number in range(MAX_CACHED_UUIDS + 10):
        raw = number.to_bytes(16, "big")
        assert uuids[raw] is uuids[raw]
        assert uuids[raw].bytes == raw
    assert len(uuids) <= MAX_CACHED_UUIDS


def test_more_array_elements_than_allowed() -> None:
    too_many = struct.pack(">i", MAX_ARRAY_ELEMENTS + 1) + b"\0\0" * (MAX_ARRAY_ELEMENTS + 2)
    assert peak_bytes_of_refusing(MetadataRequest, 0, too_many) < 64 * 1024
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        MetadataRequest.decode(too_many, 0)


def test_as_many_array_elements_as_allowed() -> None:
    frame = struct.pack(">i", MAX_ARRAY_ELEMENTS) + b"\0\0" * MAX_ARRAY_ELEMENTS
    request, position = MetadataRequest.decode(frame, 0)
    assert request.topics is not None
    assert (len(request.topics), position) == (MAX_ARRAY_ELEMENTS, len(frame))


@pytest.mark.parametrize(
    ("count", "is_allowed"), [(MAX_TAGGED_FIELDS, True), (MAX_TAGGED_FIELDS + 1, False)]
)
def test_tagged_fields_are_limited(count: int, is_allowed: bool) -> None:
    tags = b"".join(unsigned_varint(tag) + b"\x01x" for tag in range(count))
    frame = b"\x01\x01" + unsigned_varint(count) + tags
    if is_allowed:
        assert ApiVersionsRequest.decode(frame, 3) == (ApiVersionsRequest(), len(frame))
    else:
        with pytest.raises(RemoteProtocolError, match="over the limit"):
            ApiVersionsRequest.decode(frame, 3)


def test_strings_are_limited_in_both_forms() -> None:
    longest = b"x" * MAX_STRING_BYTES
    frame = unsigned_varint(MAX_STRING_BYTES + 1) + longest + b"\x01\x00"
    assert len(ApiVersionsRequest.decode(frame, 3)[0].client_software_name) == MAX_STRING_BYTES
    frame = unsigned_varint(MAX_STRING_BYTES + 2) + longest + b"x\x01\x00"
    with pytest.raises(RemoteProtocolError, match="too long"):
        ApiVersionsRequest.decode(frame, 3)


def test_text_must_be_utf8() -> None:
    with pytest.raises(RemoteProtocolError, match="utf-8"):
        ApiVersionsRequest.decode(b"\x03\xc3\x28\x01\x00", 3)


def test_a_boolean_is_true_unless_zero() -> None:
    for byte, expected in ((0, False), (1, True), (2, True), (255, True)):
        frame = struct.pack(">iB", -1, byte)
        assert MetadataRequest.decode(frame, 4)[0].allow_auto_topic_creation is expected


def test_null_is_refused_where_there_must_be_a_value() -> None:
    assert MetadataRequest.decode(struct.pack(">i", -1), 1)[0].topics is None
    with pytest.raises(RemoteProtocolError, match=r"topics is null"):
        MetadataRequest.decode(struct.pack(">i", -1), 0)
