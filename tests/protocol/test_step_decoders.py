"""Decoding in steps: the same messages, the same refusals, and the memory that they take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol import registry
from moldau.protocol.compile_decode import DecoderBuilder
from moldau.protocol.compile_step_decode import SLOT_BYTES, StepDecoderBuilder
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.messages.p09_offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.p33_alter_configs import AlterConfigsRequest
from moldau.protocol.schema import Message
from moldau.protocol.structs import (
    MAX_ARRAY_ELEMENTS,
    MAX_TAGGED_FIELDS,
    STEP_BYTES,
    ArrayType,
    Struct,
    StructType,
)
from moldau.protocol.varint import unsigned_varint
from moldau.server.decoding import MAX_GROWTH
from tests.protocol.instances import InstanceMaker

REQUESTS = [registry.request_class(api_key) for api_key in registry.api_keys()]
VERSIONS = [
    (message, version)
    for message in REQUESTS
    for version in range(message.MIN_VERSION, message.MAX_VERSION + 1)
]
NAMES = [f"{message.__name__} v{version}" for message, version in VERSIONS]


def in_steps(message: type[Message], data: bytes, version: int) -> tuple[Any, int, int, int]:
    """The message, where it ends, the bytes counted, and the largest step."""
    steps = message.decode_in_steps(memoryview(data), version)
    total = largest = 0
    while True:
        try:
            _, size = next(steps)
        except StopIteration as end:
            decoded, position = end.value
            return decoded, position, total, largest
        total += size
        largest = max(largest, size)


@pytest.mark.parametrize(("message", "version"), VERSIONS, ids=NAMES)
def test_steps_make_the_same_message(message: type[Message], version: int) -> None:
    maker = InstanceMaker(message.API_KEY * 100 + version)
    for _ in range(2):
        data = maker.make(message, version).to_bytes(version)
        expected = message.decode(data, version)
        decoded, position, _, _ = in_steps(message, data, version)
        assert (decoded, position) == expected
        for cut in range(0, len(data), 1 + len(data) // 6):
            try:
                whole: object = message.decode(data[:cut], version)
            except RemoteProtocolError:
                with pytest.raises(RemoteProtocolError):
                    in_steps(message, data[:cut], version)
            else:
                assert in_steps(message, data[:cut], version)[:2] == whole


def arrays(struct: type[Struct], version: int) -> Iterator[tuple[str, ...]]:
    """The ways to all arrays of a version."""
    for field in struct.spec().fields:
        if version not in field.versions:
            continue
        kind: Any = field.type
        if isinstance(kind, ArrayType):
            yield (field.name,)
            kind = kind.element
        if isinstance(kind, StructType):
            yield from ((field.name, *way) for way in arrays(kind.struct, version))


COUNT = 3_000


def with_many(message: type[Struct], way: tuple[str, ...], version: int, *, is_top: bool) -> Any:
    """The smallest message with COUNT elements in that array, or nearly."""
    made: Any = message()
    field = next(each for each in message.spec().fields if each.name == way[0])
    kind: Any = field.type
    if not isinstance(kind, ArrayType):
        setattr(made, way[0], with_many(kind.struct, way[1:], version, is_top=is_top))
        return made
    element: Any = kind.element
    if len(way) > 1:
        setattr(made, way[0], [with_many(element.struct, way[1:], version, is_top=False)])
    elif isinstance(element, StructType):
        setattr(made, way[0], [element.struct() for _ in range(COUNT)])
    elif element.name == "string":
        setattr(made, way[0], ["ab"] * COUNT)
    elif element.name == "uuid":
        setattr(made, way[0], [UUID(int=number << 64) for number in range(COUNT)])
    elif element.name in ("bytes", "records"):
        setattr(made, way[0], [b"a"] * COUNT)
    else:
        setattr(made, way[0], [1 << (element.size * 8 - 2)] * COUNT)
    return made


BIGGEST = [
    pytest.param(message, version, way, id=f"{message.__name__} v{version} {'.'.join(way)}")
    for message in REQUESTS
    for version in {message.MIN_VERSION, message.MAX_VERSION}
    for way in arrays(message, version)
]


@pytest.mark.parametrize(("message", "version", "way"), BIGGEST)
def test_the_memory_of_the_biggest_arrays_is_counted(
    message: type[Message], version: int, way: tuple[str, ...]
) -> None:
    asked = with_many(message, way, version, is_top=True)
    data = asked.to_bytes(version)
    _, position, counted, largest = in_steps(message, data, version)
    assert position == len(data)
    message.decode(data, version)  # compiles the decoder
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = message.decode(data, version)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept
    taken = after - before
    assert taken <= counted + 8 * 1024, f"{taken} bytes, {counted} counted"
    assert counted <= MAX_GROWTH * len(data), "more than is reserved for it"
    assert largest < 2 * STEP_BYTES


@pytest.mark.parametrize(("message", "version"), VERSIONS, ids=NAMES)
def test_nothing_grows_beyond_what_is_reserved(message: type[Message], version: int) -> None:
    """The bound follows from the sizes of the schema: the smallest element on the wire, and what it
    becomes.
    """
    builder = StepDecoderBuilder(message, version, version >= message.FLEXIBLE_SINCE)

    def check(struct: type[Struct]) -> None:
        spec = struct.spec()
        for field in builder.fields(spec) + builder.tagged_fields(spec):
            kind: Any = field.type
            if isinstance(kind, ArrayType):
                kind = kind.element
                size = builder._size_of(kind) + SLOT_BYTES
                assert size <= MAX_GROWTH * builder._smallest_size(kind), field.name
            if isinstance(kind, StructType):
                check(kind.struct)

    check(message)


def test_a_step_is_small_whatever_it_consists_of() -> None:
    count = 100_000
    topics = b"\x02\x02g" + unsigned_varint(count + 1) + b"\x01\x01\x00" * count + b"\x00\x00\x00"
    partitions = (
        b"\x02\x02g\x02\x02t" + unsigned_varint(count + 1) + b"\1\2\3\4" * count + b"\0" * 4
    )
    tags = b"\x01\x01" + unsigned_varint(MAX_TAGGED_FIELDS) + b"\x05\x00" * MAX_TAGGED_FIELDS
    tagged = b"\x02\x02g" + unsigned_varint(101) + tags * 100 + b"\x00\x00\x00"
    for data in (topics, partitions, tagged):
        decoded, position, counted, largest = in_steps(OffsetFetchRequest, data, 8)
        assert (decoded, position) == OffsetFetchRequest.decode(data, 8)
        assert counted > 4_000_000
        assert largest < 2.5 * STEP_BYTES


def test_what_comes_before_the_first_array_is_known_first() -> None:
    data = OffsetFetchRequest(group_id="the group", topics=[]).to_bytes(7)
    message, size = next(OffsetFetchRequest.decode_in_steps(data, 7))
    assert (message.group_id, size) == ("the group", 0)


def test_a_refused_count_is_refused_before_anything_is_made() -> None:
    data = AlterConfigsRequest().to_bytes(2)[:0] + unsigned_varint(MAX_ARRAY_ELEMENTS + 2)
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        in_steps(AlterConfigsRequest, data + b"\0" * 10, 2)


def test_the_decoder_of_small_messages_counts_nothing() -> None:
    builder = DecoderBuilder(OffsetFetchRequest, 8, flexible=True)
    builder.build()
    assert not any("room" in line or "yield" in line for line in builder._lines)
