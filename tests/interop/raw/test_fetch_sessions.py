"""Incremental fetch sessions (KIP-227) and fetching by topic id (KIP-516)."""

from __future__ import annotations

import uuid
from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from moldau.protocol.records import Record, encode_batch
from moldau.runtime.connection import Connection
from tests.interop.raw.probe import connected, produce_raw, topic_metadata
from tests.interop.samples import BASE_TIMESTAMP_MS
from tests.interop.topics import TopicMaker

FIRST = 0
SESSIONLESS = -1


def one_record(value: bytes) -> bytearray:
    return encode_batch([Record(0, BASE_TIMESTAMP_MS, None, value)])


async def fetch(
    connection: Connection,
    *,
    session_id: int,
    session_epoch: int,
    wanted: list[tuple[uuid.UUID, int, int]] | None = None,
    forgotten: list[tuple[uuid.UUID, int]] | None = None,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
) -> Any:
    """One Fetch of (topic id, partition, offset) triples."""
    return await connection.send(
        FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1_000_000,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[
                FetchTopic(
                    topic_id=topic_id,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=1_000_000,
                        )
                    ],
                )
                for topic_id, partition, offset in wanted or ()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=[partition])
                for topic_id, partition in forgotten or ()
            ],
        )
    )


def answered(response: Any) -> list[tuple[uuid.UUID, int, int]]:
    """(topic id, partition, bytes) of everything in a response."""
    return [
        (entry.topic_id, part.partition_index, len(part.records or b""))
        for entry in response.responses
        for part in entry.partitions
    ]


async def test_a_session_answers_only_what_changed(bootstrap: str, topics: TopicMaker) -> None:
    quiet, busy = topics.create(), topics.create()
    async with connected(bootstrap) as connection:
        quiet_id = (await topic_metadata(connection, quiet)).topic_id
        busy_id = (await topic_metadata(connection, busy)).topic_id
        first = await fetch(
            connection,
            session_id=0,
            session_epoch=FIRST,
            wanted=[(quiet_id, 0, 0), (busy_id, 0, 0)],
        )
        assert first.error_code == ErrorCode.NONE
        assert first.session_id > 0
        assert answered(first) == [(quiet_id, 0, 0), (busy_id, 0, 0)]
        second = await fetch(connection, session_id=first.session_id, session_epoch=1)
        assert second.session_id == first.session_id
        assert answered(second) == []
        batch = one_record(b"news")
        await produce_raw(connection, busy, batch)
        third = await fetch(
            connection, session_id=first.session_id, session_epoch=2, max_wait_ms=5000
        )
        assert answered(third) == [(busy_id, 0, len(batch))]
        fourth = await fetch(
            connection,
            session_id=first.session_id,
            session_epoch=3,
            forgotten=[(busy_id, 0)],
        )
        assert answered(fourth) == []
        await produce_raw(connection, quiet, batch)
        await produce_raw(connection, busy, batch)
        fifth = await fetch(
            connection, session_id=first.session_id, session_epoch=4, max_wait_ms=5000
        )
        assert answered(fifth) == [(quiet_id, 0, len(batch))]


async def test_unknown_sessions_and_wrong_epochs(bootstrap: str, topic: str) -> None:
    async with connected(bootstrap) as connection:
        topic_id = (await topic_metadata(connection, topic)).topic_id
        unknown = await fetch(connection, session_id=123_456_789, session_epoch=5)
        assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        first = await fetch(
            connection, session_id=0, session_epoch=FIRST, wanted=[(topic_id, 0, 0)]
        )
        skipped = await fetch(connection, session_id=first.session_id, session_epoch=7)
        assert skipped.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        closing = await fetch(connection, session_id=first.session_id, session_epoch=SESSIONLESS)
        assert closing.error_code == ErrorCode.NONE
        gone = await fetch(connection, session_id=first.session_id, session_epoch=1)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_ids_and_offsets_that_are_not_there(bootstrap: str, topic: str) -> None:
    async with connected(bootstrap) as connection:
        topic_id = (await topic_metadata(connection, topic)).topic_id
        nobody = uuid.uuid4()
        response = await fetch(
            connection,
            session_id=0,
            session_epoch=SESSIONLESS,
            wanted=[(nobody, 0, 0), (topic_id, 9, 0), (topic_id, 0, 77)],
        )
        errors = {
            (entry.topic_id, part.partition_index): ErrorCode(part.error_code)
            for entry in response.responses
            for part in entry.partitions
        }
        assert errors == {
            (nobody, 0): ErrorCode.UNKNOWN_TOPIC_ID,
            (topic_id, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (topic_id, 0): ErrorCode.OFFSET_OUT_OF_RANGE,
        }


async def test_a_small_limit_still_gives_one_batch(bootstrap: str, topic: str) -> None:
    batch = one_record(b"x" * 5000)
    async with connected(bootstrap) as connection:
        topic_id = (await topic_metadata(connection, topic)).topic_id
        for _ in range(3):
            await produce_raw(connection, topic, batch)
        response = await connection.send(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=10,
                session_epoch=SESSIONLESS,
                topics=[
                    FetchTopic(
                        topic_id=topic_id,
                        partitions=[
                            FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=10)
                        ],
                    )
                ],
            )
        )
        assert answered(response) == [(topic_id, 0, len(batch))]
        assert response.responses[0].partitions[0].high_watermark == 3
