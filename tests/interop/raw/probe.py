"""Questions in Kafka's own protocol, over `moldau.runtime.connection`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.records import BatchHeader, iter_batches
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork
from tests.kit.waiting import until_async

PRODUCE_NAMES_VERSION = 12
FETCH_NAMES_VERSION = 12  # the last version that names topics instead of giving their ids


@asynccontextmanager
async def connected(bootstrap: str, **options: Any) -> AsyncIterator[Connection]:
    """An open connection to the node, closed at the end."""
    host, _, port = bootstrap.rpartition(":")
    connection = await Connection.connect(
        AsyncioNetwork(), host, int(port), client_id="probe", **options
    )
    try:
        yield connection
    finally:
        connection.close()


async def topic_metadata(connection: Connection, topic: str) -> Any:
    """The topic's entry of a Metadata response, once all its partitions have leaders."""

    async def attempt() -> Any:
        response = await connection.send(
            MetadataRequest(
                topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
            )
        )
        entry = response.topics[0]
        if entry.error_code or any(part.error_code for part in entry.partitions):
            return None
        return entry

    return await until_async(attempt, what=f"metadata of {topic}", deadline_s=15)


async def fetch_raw(
    connection: Connection, topic: str, *, offset: int = 0, max_bytes: int = 50_000_000
) -> bytes:
    """The batches of partition 0 from an offset on, as they are on the wire."""
    response = await connection.send(
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
                        )
                    ],
                )
            ],
        ),
        api_version=FETCH_NAMES_VERSION,
    )
    assert response.error_code == 0
    partition = response.responses[0].partitions[0]
    assert partition.error_code == 0, partition
    return bytes(partition.records or b"")


async def stored_headers(bootstrap: str, topic: str) -> list[BatchHeader]:
    """The headers of all batches in partition 0 of a small topic."""
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        return [header for _, header in iter_batches(await fetch_raw(connection, topic))]


async def produce_raw(
    connection: Connection,
    topic: str,
    records: bytes | bytearray | None,
    *,
    partition: int = 0,
    acks: int = -1,
) -> Any:
    """The answer for one partition to batches that may be anything."""
    response = await connection.send(
        ProduceRequest(
            acks=acks,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    partition_data=[PartitionProduceData(index=partition, records=records)],
                )
            ],
        ),
        api_version=PRODUCE_NAMES_VERSION,
    )
    return response.responses[0].partition_responses[0]


async def new_producer_id(connection: Connection) -> int:
    """A producer id from the cluster, epoch 0."""

    async def attempt() -> Any:
        response = await connection.send(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        )
        return response if response.error_code == 0 else None

    response = await until_async(attempt, what="a producer id", deadline_s=15)
    assert response.producer_epoch == 0
    return int(response.producer_id)
