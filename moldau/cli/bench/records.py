"""Loads of records: produce, consume, and single records at a fixed rate.

Owns the raw produce and fetch loops: batches are encoded once and sent again and again, fetched
batches are counted by their headers, so that the broker and not this process is the bottleneck.
Must not print. Invariant: every figure is about requests that were answered without an error.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from moldau.cli.bench.figures import Cost, payload, percentiles, produce_request, taken
from moldau.cli.bench.plans import ConsumePlan, LatencyPlan, ProducePlan
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.metadata_cache import TopicMetadata
from moldau.client.errors import KafkaError, raise_for
from moldau.protocol.messages.p00_produce import ProduceRequest
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.records import (
    Codec,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    encode_batch,
    iter_batches,
)
from moldau.runtime.shared_work import look_at_failure

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
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
    cost: Cost = field(default_factory=Cost)
    latencies_ms: list[float] = field(default_factory=list)

    def answered(self, begin: float, record_count: int, record_bytes: int) -> None:
        """The answer to a request that was sent, or due, at `begin` (perf_counter) is here."""
        self.latencies_ms.append((time.perf_counter() - begin) * 1000)
        self.request_count += 1
        self.record_count += record_count
        self.record_bytes += record_bytes

    def document(self) -> dict[str, object]:
        """As JSON shows it; MB are 10^6 bytes."""
        megabytes, seconds = self.record_bytes / 1e6, self.cost.seconds
        return {
            "records": self.record_count,
            "requests": self.request_count,
            "seconds": round(seconds, 3),
            "records_per_second": round(self.record_count / seconds),
            "mb_per_second": round(megabytes / seconds, 2),
            "client_cpu_seconds_per_gb": round(self.cost.own_cpu_seconds / (megabytes / 1e3), 3)
            if megabytes
            else None,
            **percentiles("latency", self.latencies_ms, PERCENTILES),
        }


async def run_produce(client: ClusterClient, figures: Figures, plan: ProducePlan) -> None:
    """Send the whole load, `in_flight` requests at a time per partition."""
    topic = await described_topic(client, plan.topic)
    share, rest = divmod(plan.records, len(topic.partitions))
    with taken() as figures.cost:
        await asyncio.gather(
            *(
                _produce_partition(
                    client, figures, plan, topic, partition, share + (partition < rest)
                )
                for partition in sorted(topic.partitions)
            )
        )


async def _produce_partition(
    client: ClusterClient,
    figures: Figures,
    plan: ProducePlan,
    topic: TopicMetadata,
    partition: int,
    record_count: int,
) -> None:
    per_batch = max(1, plan.batch_bytes // (plan.record_bytes + 8))
    producer_id, producer_epoch = await _producer_id(client) if plan.idempotent else (-1, -1)
    leader_id = await client.leader_of(plan.topic, partition)
    value = payload(plan.record_bytes)
    sequence = 0
    waiting: deque[asyncio.Task[None]] = deque()

    async def send(batch: bytearray, count: int) -> None:
        request = produce_request(
            topic.name, {partition: batch}, acks=plan.acks.number, topic_id=topic.topic_id
        )
        begin = time.perf_counter()
        await _send(client, leader_id, request)
        figures.answered(begin, count, count * plan.record_bytes)

    template = b""
    template_count = 0
    while record_count > 0:
        count = min(per_batch, record_count)
        if plan.idempotent or count != template_count:
            now_ms = time.time_ns() // 1_000_000
            template = bytes(
                encode_batch(
                    [Record(i, now_ms, None, value) for i in range(count)],
                    codec=Codec[plan.codec.name],
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=sequence if plan.idempotent else -1,
                )
            )
            template_count = count
        task = asyncio.create_task(send(bytearray(template), count))
        task.add_done_callback(look_at_failure)  # the first one to fail is reported
        waiting.append(task)
        sequence = (sequence + count) % SEQUENCE_LIMIT
        record_count -= count
        while len(waiting) >= plan.in_flight:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()


async def _send(client: ClusterClient, leader_id: int, request: ProduceRequest) -> None:
    """Send a request with one batch. Raises: KafkaError"""
    response = await client.ask_node(leader_id, request)
    answered = response.responses[0].partition_responses[0]
    what = f"produce to {request.topic_data[0].name}"
    raise_for(answered.error_code, answered.error_message, what)


async def run_latency(client: ClusterClient, figures: Figures, plan: LatencyPlan) -> None:
    """Single records at a fixed rate; a late one is still sent, and its wait counts (no
    coordinated omission).
    """
    topic = await described_topic(client, plan.topic)
    leader_id = await client.leader_of(topic.name, 0)
    value = payload(plan.record_bytes)
    running: set[asyncio.Task[None]] = set()

    async def send(due: float) -> None:
        batch = encode_batch([Record(0, time.time_ns() // 1_000_000, None, value)])
        request = produce_request(
            topic.name, {0: batch}, acks=plan.acks.number, topic_id=topic.topic_id
        )
        await _send(client, leader_id, request)
        figures.answered(due, 1, plan.record_bytes)

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            running.discard(task)

    with taken() as figures.cost:
        begin = time.perf_counter()
        for number in range(plan.records):
            due = begin + number / plan.rate
            pause = due - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            task = asyncio.create_task(send(due))
            running.add(task)
            task.add_done_callback(ended)
        await asyncio.gather(*running)


async def run_consume(client: ClusterClient, figures: Figures, plan: ConsumePlan) -> None:
    """Fetch every partition from its start to the end it has now."""
    topic = await described_topic(client, plan.topic)
    with taken() as figures.cost:
        await asyncio.gather(
            *(
                _consume_partition(client, figures, plan, topic, partition)
                for partition in sorted(topic.partitions)
            )
        )


async def _consume_partition(
    client: ClusterClient,
    figures: Figures,
    plan: ConsumePlan,
    topic: TopicMetadata,
    partition: int,
) -> None:
    fetch_bytes, record_limit = plan.fetch_bytes, plan.records
    leader_id = await client.leader_of(topic.name, partition)
    position = await _offset(client, leader_id, topic.name, partition, EARLIEST)
    end = await _offset(client, leader_id, topic.name, partition, LATEST)
    figures.expected_count += end - position
    while position < end and (record_limit is None or figures.record_count < record_limit):
        wanted = FetchPartition(
            partition=partition, fetch_offset=position, partition_max_bytes=fetch_bytes
        )
        topics = [FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=fetch_bytes, topics=topics)
        begin = time.perf_counter()
        response = await client.ask_node(leader_id, request)
        figures.answered(begin, 0, 0)
        raise_for(response.error_code, None, f"fetch from {topic.name}")
        answered = response.responses[0].partitions[0]
        raise_for(answered.error_code, None, f"fetch from {topic.name}-{partition}")
        records = answered.records or b""
        assert isinstance(records, bytes | memoryview)
        figures.record_bytes += len(records)
        reached = position
        try:
            for _, header in iter_batches(records):
                figures.record_count += header.record_count
                reached = header.next_offset
        except InvalidBatch as error:
            # A fetch may end with a part of a batch.
            if error.reason is not InvalidBatchReason.TRUNCATED:
                raise
        if reached == position and records:
            raise KafkaError(f"{topic.name}-{partition}: no whole batch in {len(records)} bytes")
        position = reached


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
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
    response = await client.ask_node(leader_id, ListOffsetsRequest(replica_id=-1, topics=topics))
    entry = response.topics[0].partitions[0]
    raise_for(entry.error_code, None, f"offsets of {topic}-{partition}")
    return entry.offset


async def _producer_id(client: ClusterClient) -> tuple[int, int]:
    response = await client.ask_any(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    )
    raise_for(response.error_code, None, "producer id")
    return response.producer_id, response.producer_epoch
