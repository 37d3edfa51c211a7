"""Serializers and deserializers: there and back, Java's bytes, errors that say what is wrong."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client import SerializationError
from moldau.client.serialization import (
    DoubleDeserializer,
    DoubleSerializer,
    FloatSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    JsonDeserializer,
    JsonSerializer,
    LongDeserializer,
    LongSerializer,
    ShortDeserializer,
    ShortSerializer,
    StringDeserializer,
    StringSerializer,
    UuidDeserializer,
    UuidSerializer,
    deserialize_function,
    serialize_function,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)
CASES = [
    (StringSerializer(), StringDeserializer(), st.text(st.characters(codec="utf-8"))),
    (StringSerializer("utf-16-le"), StringDeserializer("utf-16-le"), st.text("aβ")),
    (ShortSerializer(), ShortDeserializer(), st.integers(-(2**15), 2**15 - 1)),
    (IntegerSerializer(), IntegerDeserializer(), st.integers(-(2**31), 2**31 - 1)),
    (LongSerializer(), LongDeserializer(), st.integers(-(2**63), 2**63 - 1)),
    (DoubleSerializer(), DoubleDeserializer(), st.floats(allow_nan=False)),
    (UuidSerializer(), UuidDeserializer(), st.uuids()),
    (JsonSerializer(), JsonDeserializer(), JSON),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]).__name__)
def test_what_is_written_is_read(case: tuple[Any, Any, st.SearchStrategy[Any]]) -> None:
    serializer, deserializer, values = case

    @given(values)
    def check(value: Any) -> None:
        assert deserializer.deserialize("t", serializer.serialize("t", value)) == value

    check()


@pytest.mark.parametrize(
    ("serializer", "value", "expected"),
    [
        (ShortSerializer(), 258, b"\x01\x02"),
        (IntegerSerializer(), -2, b"\xff\xff\xff\xfe"),
        (LongSerializer(), 1, b"\0\0\0\0\0\0\0\x01"),
        (FloatSerializer(), 1, b"\x3f\x80\0\0"),
        (DoubleSerializer(), 0.5, b"\x3f\xe0\0\0\0\0\0\0"),
        (UuidSerializer(), uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
        (JsonSerializer(), {"a": [1, None]}, b'{"a":[1,null]}'),
        (StringSerializer(), "é", b"\xc3\xa9"),
    ],
)
def test_the_bytes_are_those_of_java(serializer: Any, value: Any, expected: bytes) -> None:
    assert serializer.serialize("t", value) == expected


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (StringSerializer(), b"bytes"),
        (ShortSerializer(), 2**15),
        (IntegerSerializer(), 1.5),
        (IntegerSerializer(), True),
        (LongSerializer(), 2**63),
        (FloatSerializer(), 1e300),
        (DoubleSerializer(), "1"),
        (UuidSerializer(), "text"),
        (JsonSerializer(), object()),
    ],
)
def test_values_that_do_not_fit(serializer: Any, value: Any) -> None:
    with pytest.raises(SerializationError):
        serializer.serialize("t", value)


@pytest.mark.parametrize(
    ("deserializer", "data"),
    [
        (StringDeserializer(), b"\xff"),
        (ShortDeserializer(), b"\0"),
        (IntegerDeserializer(), b""),
        (LongDeserializer(), bytes(9)),
        (UuidDeserializer(), b"no uuid"),
        (JsonDeserializer(), b"{"),
    ],
)
def test_bytes_that_are_no_such_value(deserializer: Any, data: bytes) -> None:
    with pytest.raises(SerializationError):
        deserializer.deserialize("t", data)


def test_plain_functions_do_as_well() -> None:
    serialize = serialize_function(str.encode)
    deserialize = deserialize_function(bytes.decode)
    assert serialize is not None
    assert deserialize is not None
    assert deserialize("t", serialize("t", "text")) == "text"
    assert serialize_function(None) is None
    assert deserialize_function(None) is None
    with pytest.raises(TypeError, match="no serializer"):
        serialize_function(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no deserializer"):
        deserialize_function("x")  # type: ignore[arg-type]
