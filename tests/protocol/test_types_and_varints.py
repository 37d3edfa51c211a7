"""Uuids in Kafka's text form, nominal types, variable-length integers."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.types import (
    METADATA_TOPIC_ID,
    RESERVED_TOPIC_IDS,
    ZERO_UUID,
    TopicPartition,
    random_topic_id,
    uuid_from_base64,
    uuid_to_base64,
)
from moldau.protocol.varint import (
    read_unsigned_varint,
    unsigned_varint,
)


def test_text_form_of_known_uuids() -> None:
    assert uuid_to_base64(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_base64(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_to_base64(UUID(int=2**128 - 1)) == "_____________________w"


@given(st.uuids())
def test_uuids_come_back_from_their_text(value: UUID) -> None:
    text = uuid_to_base64(value)
    assert len(text) == 22
    assert uuid_from_base64(text) == uuid_from_base64(text + "==") == value


@pytest.mark.parametrize(
    "text", ["", "AAAA", "A" * 21, "A" * 25, "A" * 23 + "B", "!" * 22, "AAAAAAAAAAAAAAAAAAAAAß"]
)
def test_what_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a base64 uuid"):
        uuid_from_base64(text)


def test_topic_ids_are_never_reserved_and_never_begin_with_a_dash() -> None:
    answers = [b"\xfb" + bytes(15), bytes(range(16))]

    class Rigged(random.Random):
        def randbytes(self, n: int) -> bytes:
            return answers.pop(0)

    assert random_topic_id(Rigged()) == UUID(bytes=bytes(range(16)), version=4)
    assert random_topic_id(random.Random(1)) == random_topic_id(random.Random(1))
    assert random_topic_id(random.Random(1)) != random_topic_id(random.Random(2))
    assert {ZERO_UUID, METADATA_TOPIC_ID} < RESERVED_TOPIC_IDS


def test_a_partition_is_named_like_its_directory() -> None:
    assert str(TopicPartition("a-b", 3)) == "a-b-3"


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varints(value: int, encoded: str) -> None:
    assert unsigned_varint(value).hex() == encoded
    assert read_unsigned_varint(b"!" + bytes.fromhex(encoded) + b"!", 1) == (
        value,
        1 + len(encoded) // 2,
    )


@given(st.integers(0, 2**32 - 1))
def test_varints_come_back(value: int) -> None:
    encoded = unsigned_varint(value)
    assert read_unsigned_varint(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    "broken", ["", "80", "ffffffff", "8080808080", "808080808001", "ffffffff1f"]
)
def test_broken_varints_are_refused(broken: str) -> None:
    with pytest.raises(RemoteProtocolError):
        read_unsigned_varint(bytes.fromhex(broken), 0)


def test_a_negative_number_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError):
        unsigned_varint(-1)
