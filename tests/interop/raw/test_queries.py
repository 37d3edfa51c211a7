"""Questions about offsets, epochs, producers, partitions and configs that few clients ask."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.p61_describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from moldau.protocol.messages.p74_list_config_resources import ListConfigResourcesRequest
from moldau.protocol.messages.p75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from moldau.protocol.messages.p75_describe_topic_partitions import TopicRequest as PagedTopic
from moldau.protocol.records import Record, encode_batch
from moldau.runtime.connection import Connection
from tests.interop.raw.probe import connected, new_producer_id, produce_raw, topic_metadata
from tests.interop.samples import BASE_TIMESTAMP_MS
from tests.interop.topics import TopicMaker, fresh_name

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4


async def list_offsets(
    connection: Connection, topic: str, timestamp_ms: int, *, leader_epoch: int = -1
) -> Any:
    response = await connection.send(
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=0,
                            timestamp=timestamp_ms,
                            current_leader_epoch=leader_epoch,
                        )
                    ],
                )
            ],
        )
    )
    return response.topics[0].partitions[0]


async def test_offsets_of_every_kind(bootstrap: str, topic: str) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        empty = await list_offsets(connection, topic, MAX_TIMESTAMP)
        assert (empty.error_code, empty.offset, empty.timestamp) == (0, -1, -1)
        for stamps in ((5, 90, 40), (90, 10)):
            await produce_raw(
                connection,
                topic,
                encode_batch(
                    [Record(n, BASE_TIMESTAMP_MS + s, None, b"v") for n, s in enumerate(stamps)]
                ),
            )
        for asked, offset, timestamp_ms in (
            (LATEST, 5, -1),
            (EARLIEST, 0, -1),
            (MAX_TIMESTAMP, 1, BASE_TIMESTAMP_MS + 90),
            (EARLIEST_LOCAL, 0, -1),
            (LATEST_TIERED, -1, -1),
            (BASE_TIMESTAMP_MS, 0, BASE_TIMESTAMP_MS + 5),
            (BASE_TIMESTAMP_MS + 41, 1, BASE_TIMESTAMP_MS + 90),
            (BASE_TIMESTAMP_MS + 91, -1, -1),
        ):
            found = await list_offsets(connection, topic, asked)
            assert found.error_code == ErrorCode.NONE
            assert (found.offset, found.timestamp) == (offset, timestamp_ms), asked
        ahead = await list_offsets(connection, topic, LATEST, leader_epoch=5)
        assert ahead.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_where_a_leader_epoch_ends(bootstrap: str, topic: str) -> None:
    async def ask(connection: Connection, leader_epoch: int, current: int = -1) -> Any:
        response = await connection.send(
            OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=[
                    OffsetForLeaderTopic(
                        topic=topic,
                        partitions=[
                            OffsetForLeaderPartition(
                                partition=0,
                                current_leader_epoch=current,
                                leader_epoch=leader_epoch,
                            )
                        ],
                    )
                ],
            )
        )
        return response.topics[0].partitions[0]

    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        batch = encode_batch([Record(n, BASE_TIMESTAMP_MS, None, b"v") for n in range(4)])
        await produce_raw(connection, topic, batch)
        known = await ask(connection, 0)
        assert (known.error_code, known.leader_epoch, known.end_offset) == (0, 0, 4)
        future = await ask(connection, 3)
        assert (future.error_code, future.leader_epoch, future.end_offset) == (0, -1, -1)
        assert (await ask(connection, 0, current=9)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_producers_of_a_partition(bootstrap: str, topic: str) -> None:
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        producer_id = await new_producer_id(connection)
        batch = encode_batch(
            [Record(n, BASE_TIMESTAMP_MS + n, None, b"v") for n in range(4)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        await produce_raw(connection, topic, batch)
        response = await connection.send(
            DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0, 3])])
        )
        known, missing = response.topics[0].partitions
        (state,) = known.active_producers
        assert (state.producer_id, state.producer_epoch, state.last_sequence) == (
            producer_id,
            0,
            3,
        )
        assert state.current_txn_start_offset == -1
        # Ours is the time of the append: old timestamps do not make a producer expire.
        assert state.last_timestamp >= BASE_TIMESTAMP_MS + 3
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_partitions_come_in_pages(bootstrap: str, topics: TopicMaker) -> None:
    first, second = sorted([fresh_name("page"), fresh_name("page")])
    topics.create(first, partitions=3)
    topics.create(second, partitions=2)
    async with connected(bootstrap) as connection:
        cursor: Cursor | None = None
        pages = []
        while True:
            response = await connection.send(
                DescribeTopicPartitionsRequest(
                    topics=[PagedTopic(name=second), PagedTopic(name=first)],
                    response_partition_limit=2,
                    cursor=cursor,
                )
            )
            pages.append(
                [(t.name, p.partition_index) for t in response.topics for p in t.partitions]
            )
            if response.next_cursor is None:
                break
            cursor = Cursor(
                topic_name=response.next_cursor.topic_name,
                partition_index=response.next_cursor.partition_index,
            )
        assert pages == [
            [(first, 0), (first, 1)],
            [(first, 2), (second, 0)],
            [(second, 1)],
        ]
        missing = await connection.send(
            DescribeTopicPartitionsRequest(topics=[PagedTopic(name="no-such-topic")])
        )
        assert missing.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_config_resources_are_listed(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"retention.ms": "100000000"})
    async with connected(bootstrap) as connection:
        response = await connection.send(
            ListConfigResourcesRequest(resource_types=[TOPIC_RESOURCE, BROKER_RESOURCE])
        )
        assert response.error_code == ErrorCode.NONE
        listed = {(entry.resource_type, entry.resource_name) for entry in response.config_resources}
        assert (TOPIC_RESOURCE, topic) in listed
        assert (BROKER_RESOURCE, "1") in listed
        unknown = await connection.send(ListConfigResourcesRequest(resource_types=[77]))
        assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("api_version", [0, 1, 2, 3, 4])
async def test_every_version_of_the_first_question(bootstrap: str, api_version: int) -> None:
    async with connected(bootstrap, negotiate=False) as connection:
        response = await connection.send(
            ApiVersionsRequest(client_software_name="probe", client_software_version="1"),
            api_version=api_version,
        )
        assert response.error_code == ErrorCode.NONE
        served = {
            entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys
        }
        assert served[ApiKey.API_VERSIONS][0] == 0
        assert served[ApiKey.PRODUCE][1] >= 12
        assert served[ApiKey.FETCH][1] >= 16


async def test_bad_software_names_are_refused(bootstrap: str) -> None:
    async with connected(bootstrap, negotiate=False) as connection:
        response = await connection.send(
            ApiVersionsRequest(client_software_name="no good!", client_software_version="1"),
            api_version=3,
        )
        assert response.error_code == ErrorCode.INVALID_REQUEST
