"""Produce requests that must be refused (CRC, magic, lengths), each with Kafka's own error."""

from __future__ import annotations

import struct

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Codec, Record, encode_batch
from moldau.runtime.connection import Connection
from tests.interop.conftest import EXISTING
from tests.interop.raw.probe import connected, fetch_raw, produce_raw, topic_metadata
from tests.interop.samples import BASE_TIMESTAMP_MS
from tests.interop.topics import TopicMaker

# Apache Kafka 4.3.0 never answers a request without records.
ours_alone = pytest.mark.skipif(bool(EXISTING), reason="Apache Kafka does not answer this")

MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
RECORD_COUNT_POSITION = 57


def good(count: int = 3, *, codec: Codec = Codec.NONE) -> bytearray:
    records = [Record(number, BASE_TIMESTAMP_MS, b"key", b"value" * 20) for number in range(count)]
    return encode_batch(records, codec=codec)


def corrupt_crc() -> bytes:
    batch = good()
    batch[-1] ^= 1
    return bytes(batch)


def with_magic(magic: int) -> bytes:
    batch = good()
    batch[MAGIC_POSITION] = magic
    return bytes(batch)


def truncated() -> bytes:
    return bytes(good()[:-5])


def reseal(batch: bytearray) -> bytes:
    """Make the CRC right again after a lie in the header."""
    from crc32c import crc32c

    struct.pack_into(">I", batch, CRC_POSITION, crc32c(bytes(batch[ATTRIBUTES_POSITION:])))
    return bytes(batch)


def wrong_count() -> bytes:
    batch = good()
    struct.pack_into(">i", batch, RECORD_COUNT_POSITION, 7)
    return reseal(batch)


def garbage_in_gzip() -> bytes:
    batch = good(codec=Codec.GZIP)
    batch[RECORD_COUNT_POSITION + 4 : RECORD_COUNT_POSITION + 14] = b"notgzipped"
    return reseal(batch)


async def end_of(connection: Connection, topic: str) -> int:
    """Bytes stored in the topic."""
    return len(await fetch_raw(connection, topic))


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        pytest.param(corrupt_crc(), ErrorCode.CORRUPT_MESSAGE, id="crc"),
        pytest.param(truncated(), ErrorCode.INVALID_RECORD, id="truncated"),
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="empty"),
        pytest.param(None, ErrorCode.INVALID_RECORD, id="null", marks=ours_alone),
        pytest.param(bytes(good() + good()), ErrorCode.INVALID_RECORD, id="two-batches"),
        pytest.param(b"\x00" * 100, ErrorCode.CORRUPT_MESSAGE, id="zeros"),
        pytest.param(with_magic(3), ErrorCode.CORRUPT_MESSAGE, id="magic-3"),
        pytest.param(with_magic(1), ErrorCode.INVALID_RECORD, id="magic-1"),
        pytest.param(wrong_count(), ErrorCode.INVALID_RECORD, id="count"),
    ],
)
async def test_what_is_no_batch_is_not_stored(
    bootstrap: str, topic: str, batches: bytes | None, error: ErrorCode
) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        answer = await produce_raw(connection, topic, batches)
        assert ErrorCode(answer.error_code) == error
        assert answer.base_offset == -1
        accepted = await produce_raw(connection, topic, good())
        assert (accepted.error_code, accepted.base_offset) == (0, 0)
        assert await end_of(connection, topic) == len(good())


async def test_a_batch_over_the_limit_of_the_topic(bootstrap: str, topics: TopicMaker) -> None:
    batch = good()
    topic = topics.create(config={"max.message.bytes": str(len(batch) - 1)})
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        answer = await produce_raw(connection, topic, batch)
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await produce_raw(connection, topic, good(1))).error_code == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_acks_that_do_not_exist(bootstrap: str, topic: str, acks: int) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        answer = await produce_raw(connection, topic, good(), acks=acks)
        assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert (await produce_raw(connection, topic, good())).base_offset == 0


async def test_unknown_topics_and_partitions(bootstrap: str, topic: str) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        for name, partition in ((topic, 5), (topic, -1), ("no-such-topic", 0)):
            answer = await produce_raw(connection, name, good(), partition=partition)
            assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_timestamps_far_away_are_refused_where_the_topic_says_so(
    bootstrap: str, topics: TopicMaker
) -> None:
    topic = topics.create(config={"message.timestamp.before.max.ms": "60000"})
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        answer = await produce_raw(connection, topic, good())
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


async def test_a_recompressing_topic_refuses_what_cannot_be_unpacked(
    bootstrap: str, topics: TopicMaker
) -> None:
    topic = topics.create(config={"compression.type": "lz4"})
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        answer = await produce_raw(connection, topic, garbage_in_gzip())
        assert ErrorCode(answer.error_code) in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
        assert (await produce_raw(connection, topic, good())).base_offset == 0
