"""Loads of records: produce, consume, and single records at a fixed rate.

Owns the raw produce and fetch loops: batches are encoded once and sent again and again, fetched
batches are counted by their headers, so that the broker and not this process is the bottleneck.
Must not print. Invariant: every figure is about requests that were answered without an error.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.cli.bench.figures import own_cpu_seconds, payload, percentiles
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.metadata_cache import TopicMetadata
from moldau.client.errors import KafkaError, raise_for
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.records import Codec, Record, encode_batch, iter_batches

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
PRODUCE_TIMEOUT_MS: Final = 30_000
SEQUENCE_LIMIT: Final = 2**31
LATEST: Final = -1
EARLIEST: Final = -2


@dataclass(slots=True)
class Figures:
    """What one load measures, filled as it goes; times in milliseconds.

    `expected_count` is how many records there will be, 0 as long as that is not known.
    """

    expected_count: int = 0
    record_count: int = 0
    record_bytes: int = 0
    request_count: int = 0
    seconds: float = 0.0
    client_cpu_seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON shows it; MB are 10^6 bytes."""
        megabytes = self.record_bytes / 1e6
        return {
            "records": self.record_count,
            "requests": self.request_count,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(self.record_count / self.seconds),
            "mb_per_second": round(megabytes / self.seconds, 2),
            "client_cpu_seconds_per_gb": round(self.client_cpu_seconds / (megabytes / 1e3), 3)
            if megabytes
            else None,
            **percentiles("latency", self.latencies_ms, PERCENTILES),
        }


@dataclass(frozen=True, slots=True)
class ProduceLoad:
    """What to send: `record_count` records of `record_bytes` in batches of about `batch_bytes`."""

    topic: str
    record_count: int
    record_bytes: int
    batch_bytes: int
    acks: int
    in_flight_count: int
    codec: Codec
    idempotent: bool


async def run_produce(client: ClusterClient, load: ProduceLoad, figures: Figures) -> None:
    """Send the whole load, `in_flight_count` requests at a time per partition."""
    topic = await described_topic(client, load.topic)
    per_batch = max(1, load.batch_bytes // (load.record_bytes + 8))
    begin, cpu_begin = time.perf_counter(), own_cpu_seconds()
    share, rest = divmod(load.record_count, len(topic.partitions))
    await asyncio.gather(
        *(
            _produce_partition(
                client, load, topic, partition, share + (partition < rest), per_batch, figures
            )
            for partition in sorted(topic.partitions)
        )
    )
    figures.seconds = time.perf_counter() - begin
    figures.client_cpu_seconds = own_cpu_seconds() - cpu_begin


async def _produce_partition(
    client: ClusterClient,
    load: ProduceLoad,
    topic: TopicMetadata,
    partition: int,
    record_count: int,
    per_batch: int,
    figures: Figures,
) -> None:
    producer_id, producer_epoch = await _producer_id(client) if load.idempotent else (-1, -1)
    leader_id = await client.leader_of(load.topic, partition)
    value = payload(load.record_bytes)
    sequence = 0
    waiting: deque[asyncio.Task[None]] = deque()

    async def send(batch: bytearray, count: int) -> None:
        request = produce_request(topic, {partition: batch}, acks=load.acks)
        begin = time.perf_counter()
        response = await client.ask_node(leader_id, request)
        figures.latencies_ms.append((time.perf_counter() - begin) * 1000)
        answered = response.responses[0].partition_responses[0]
        raise_for(answered.error_code, answered.error_message, f"produce to {load.topic}")
        figures.request_count += 1
        figures.record_count += count
        figures.record_bytes += count * load.record_bytes

    template = b""
    template_count = 0
    while record_count > 0:
        count = min(per_batch, record_count)
        if load.idempotent or count != template_count:
            now_ms = time.time_ns() // 1_000_000
            template = bytes(
                encode_batch(
                    [Record(i, now_ms, None, value) for i in range(count)],
                    codec=load.codec,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=sequence if load.idempotent else -1,
                )
            )
            template_count = count
        waiting.append(asyncio.create_task(send(bytearray(template), count)))
        sequence = (sequence + count) % SEQUENCE_LIMIT
        record_count -= count
        while len(waiting) >= load.in_flight_count:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()


async def run_latency(
    client: ClusterClient,
    *,
    topic_name: str,
    record_bytes: int,
    acks: int,
    rate_per_second: int,
    seconds: float,
    figures: Figures,
) -> None:
    """Single records at a fixed rate; a late one is still sent, and its wait counts (no
    coordinated omission).
    """
    topic = await described_topic(client, topic_name)
    leader_id = await client.leader_of(topic_name, 0)
    value = payload(record_bytes)
    running: set[asyncio.Task[None]] = set()

    async def send(due: float) -> None:
        batch = encode_batch([Record(0, time.time_ns() // 1_000_000, None, value)])
        response = await client.ask_node(
            leader_id,
            produce_request(topic, {0: batch}, acks=acks),
        )
        answered = response.responses[0].partition_responses[0]
        raise_for(answered.error_code, answered.error_message, f"produce to {topic_name}")
        figures.latencies_ms.append((time.perf_counter() - due) * 1000)
        figures.request_count += 1
        figures.record_count += 1
        figures.record_bytes += record_bytes

    begin, cpu_begin = time.perf_counter(), own_cpu_seconds()
    for number in range(int(rate_per_second * seconds)):
        due = begin + number / rate_per_second
        pause = due - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        task = asyncio.create_task(send(due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    figures.seconds = time.perf_counter() - begin
    figures.client_cpu_seconds = own_cpu_seconds() - cpu_begin


async def run_consume(
    client: ClusterClient,
    *,
    topic_name: str,
    fetch_bytes: int,
    record_limit: int | None,
    figures: Figures,
) -> None:
    """Fetch every partition from its start to the end it has now."""
    topic = await described_topic(client, topic_name)
    begin, cpu_begin = time.perf_counter(), own_cpu_seconds()
    await asyncio.gather(
        *(
            _consume_partition(client, topic, partition, fetch_bytes, record_limit, figures)
            for partition in sorted(topic.partitions)
        )
    )
    figures.seconds = time.perf_counter() - begin
    figures.client_cpu_seconds = own_cpu_seconds() - cpu_begin


async def _consume_partition(
    client: ClusterClient,
    topic: TopicMetadata,
    partition: int,
    fetch_bytes: int,
    record_limit: int | None,
    figures: Figures,
) -> None:
    leader_id = await client.leader_of(topic.name, partition)
    position = await _offset(client, leader_id, topic.name, partition, EARLIEST)
    end = await _offset(client, leader_id, topic.name, partition, LATEST)
    figures.expected_count += end - position
    while position < end and (record_limit is None or figures.record_count < record_limit):
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=fetch_bytes,
            topics=[
                FetchTopic(
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=position,
                            partition_max_bytes=fetch_bytes,
                        )
                    ],
                )
            ],
        )
        begin = time.perf_counter()
        response = await client.ask_node(leader_id, request)
        figures.latencies_ms.append((time.perf_counter() - begin) * 1000)
        raise_for(response.error_code, None, f"fetch from {topic.name}")
        answered = response.responses[0].partitions[0]
        raise_for(answered.error_code, None, f"fetch from {topic.name}-{partition}")
        records = answered.records or b""
        assert isinstance(records, bytes | memoryview)
        figures.request_count += 1
        figures.record_bytes += len(records)
        reached = position
        for _, header in iter_batches(_whole_batches(records)):
            figures.record_count += header.record_count
            reached = header.next_offset
        if reached == position and records:
            raise KafkaError(f"{topic.name}-{partition}: no whole batch in {len(records)} bytes")
        position = reached


def _whole_batches(records: memoryview | bytes) -> memoryview:
    """The records without the incomplete batch that a fetch may end with."""
    view = memoryview(records)
    end = 0
    while end + 12 <= len(view):
        size = 12 + int.from_bytes(view[end + 8 : end + 12], "big")
        if end + size > len(view):
            break
        end += size
    return view[:end]


def produce_request(
    topic: TopicMetadata,
    batches: Mapping[int, bytearray],
    *,
    acks: int,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """A request with one batch for each partition."""
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        topic_data=[
            TopicProduceData(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_data=[
                    PartitionProduceData(index=index, records=memoryview(batch))
                    for index, batch in batches.items()
                ],
            )
        ],
    )


async def described_topic(client: ClusterClient, name: str) -> TopicMetadata:
    """A topic that exists. Raises: KafkaError."""
    await client.refresh_metadata([name])
    topic = client.metadata.topics.get(name)
    if topic is None:
        raise_for(client.metadata.problem(name, 0), None, f"topic {name}")
        raise KafkaError(f"topic {name} is not there")
    return topic


async def _offset(
    client: ClusterClient, leader_id: int, topic: str, partition: int, timestamp: int
) -> int:
    response = await client.ask_node(
        leader_id,
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                    ],
                )
            ],
        ),
    )
    entry = response.topics[0].partitions[0]
    raise_for(entry.error_code, None, f"offsets of {topic}-{partition}")
    offset: int = entry.offset
    return offset


async def _producer_id(client: ClusterClient) -> tuple[int, int]:
    response = await client.ask_any(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    )
    raise_for(response.error_code, None, "producer id")
    return response.producer_id, response.producer_epoch
