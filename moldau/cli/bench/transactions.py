"""Loads of transactions: producers that commit one transaction after the other.

Owns, for each transactional id, its producer id and epoch, its sequences and the order of its
requests, with either version of the protocol (KIP-98, KIP-890); the choice of partitions, the clock
and the figures. Must not batch or print. Invariants: a retriable error is retried with the same
bytes, any other ends the load; only transactions whose commit was answered count, each from its
first request to that answer; warming up counts nothing.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from moldau.cli.bench.figures import Cost, payload, percentiles, produce_request, taken
from moldau.cli.bench.plans import TransactionsPlan
from moldau.cli.bench.records import described_topic
from moldau.client import Admin, ClientConfig, NewTopic
from moldau.client.cluster.cluster_client import ClusterClient, Versions
from moldau.client.cluster.coordinators import MOVED, Coordinators, KeyType
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.cluster.metadata_cache import Broker, TopicMetadata
from moldau.client.errors import KafkaError, error_for
from moldau.client.producer.core import transaction_requests as requests
from moldau.client.producer.core.transaction_states import NO_PRODUCER, ProducerIdAndEpoch
from moldau.metadata.features import TRANSACTION_VERSION
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Record, encode_batch
from moldau.protocol.types import TopicPartition

TRANSACTION_TIMEOUT_MS: Final = 60_000
GIVE_UP_S: Final = 60.0
RETRY_PAUSE_S: Final = 0.002
"""Short, for the brokers' own time to show: they are what is measured."""

#: By transaction version: with 2 brokers add partitions by themselves (KIP-890).
PRODUCE_VERSIONS: Final[dict[int, Versions]] = {1: (3, 11), 2: (12, 13)}
PERCENTILES: Final = (50.0, 95.0, 99.0)
Answer = TypeVar("Answer")


class TransactionalProducer:
    """One transactional id. States: made → `begin_session` → any number of `run`."""

    def __init__(
        self,
        client: ClusterClient,
        transactional_id: str,
        topic: TopicMetadata,
        transaction_version: int,
        record_bytes: int,
    ) -> None:
        """`client` is this producer's own: its connections are not shared with others."""
        self.retry_count = 0
        self.partition_count = len(topic.partitions)
        self._client = client
        self._coordinators = Coordinators(client)
        self._id = transactional_id
        self._topic = topic
        self._version = transaction_version
        self._value = payload(record_bytes)
        self._coordinator: Broker | None = None
        self._producer = NO_PRODUCER
        self._sequences: defaultdict[int, int] = defaultdict(int)

    async def begin_session(self) -> None:
        """Get the producer id; open transactions of the id are aborted by that."""
        ask = requests.initialize(
            self._id, TRANSACTION_TIMEOUT_MS, NO_PRODUCER, two_phase=False, keep_prepared=False
        )
        response = await self._ask_coordinator(ask, "initialise")
        self._producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    async def run(self, partitions: Sequence[int]) -> float:
        """One transaction with a record on each partition, committed; the seconds that ending it
        took.
        """
        if self._version == 1:
            await self._add(partitions)
        await self._produce(partitions)
        begin = time.perf_counter()
        await self._commit()
        return time.perf_counter() - begin

    async def _add(self, partitions: Sequence[int]) -> None:
        wanted = [TopicPartition(self._topic.name, each) for each in partitions]
        while wanted:
            ask = requests.add_partitions(self._id, self._producer, wanted)
            del wanted[: len(ask.partitions)]

            def worst(response: Any, asked: requests.Ask = ask) -> int:
                # A partition that may not join stops the others, which have an error then, too.
                codes = requests.partition_codes(asked, response).values()
                return next((code for code in codes if code), ErrorCode.NONE)

            await self._ask_coordinator(ask, "add partitions", worst)

    async def _produce(self, partitions: Sequence[int]) -> None:
        now_ms = time.time_ns() // 1_000_000
        batches = {
            partition: encode_batch(
                [Record(0, now_ms, None, self._value)],
                producer_id=self._producer.producer_id,
                producer_epoch=self._producer.producer_epoch,
                base_sequence=self._sequences[partition],
                is_transactional=True,
            )
            for partition in partitions
        }
        await self._retry(lambda: self._produce_once(batches), "produce")
        for partition in partitions:
            self._sequences[partition] = (self._sequences[partition] + 1) % 2**31

    async def _produce_once(self, batches: dict[int, bytearray]) -> tuple[int, None]:
        """Send what is not acknowledged yet, by leader; the first error, NONE when all are."""
        by_leader: defaultdict[int, list[int]] = defaultdict(list)
        for partition in batches:
            by_leader[await self._client.leader_of(self._topic.name, partition)].append(partition)

        async def send(leader_id: int, partitions: list[int]) -> int:
            request = produce_request(
                self._topic.name,
                {each: batches[each] for each in partitions},
                topic_id=self._topic.topic_id,
                transactional_id=self._id,
            )
            response = await self._client.ask_node(
                leader_id, request, versions=PRODUCE_VERSIONS[self._version]
            )
            code: int = ErrorCode.NONE
            for entry in response.responses[0].partition_responses:
                if entry.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    batches.pop(entry.index, None)
                else:
                    code = entry.error_code
            return code

        codes = await asyncio.gather(*(send(*group) for group in by_leader.items()))
        code = next((code for code in codes if code), ErrorCode.NONE)
        if ErrorCode.of(code).invalidates_metadata:
            self._client.metadata.forget_leader(self._topic.name)
        return code, None

    async def _commit(self) -> None:
        ask = requests.end(self._id, self._producer, self._version, is_commit=True)
        response = await self._ask_coordinator(ask, "end")
        if self._version == requests.TRANSACTION_VERSION_2:
            self._producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
            self._sequences.clear()

    async def _ask_coordinator(
        self,
        ask: requests.Ask,
        what: str,
        error_of: Callable[[Any], int] = lambda response: int(response.error_code),
    ) -> Any:
        async def once() -> tuple[int, Any]:
            if self._coordinator is None:
                found = (await self._coordinators.find(KeyType.TRANSACTION, [self._id]))[self._id]
                if isinstance(found, KafkaError):
                    raise found
                self._coordinator = found
            broker = self._coordinator
            response = await self._client.ask_address(
                *(broker.host, broker.port, ask.request),
                versions=(ask.lowest_version, ask.highest_version),
            )
            code = error_of(response)
            if code in MOVED:
                self._coordinator = None
            return code, response

        return await self._retry(once, what)

    async def _retry(self, once: Callable[[], Awaitable[tuple[int, Answer]]], what: str) -> Answer:
        """The answer that comes with NONE. Raises: KafkaError"""
        deadline = time.perf_counter() + GIVE_UP_S
        while True:
            try:
                code, answer = await once()
                if code == ErrorCode.NONE:
                    return answer
            except PASSING_FAULTS:
                self._coordinator = None
                self._client.metadata.forget_leader(self._topic.name)
                code = ErrorCode.NETWORK_EXCEPTION
            if not ErrorCode.of(code).retriable or time.perf_counter() > deadline:
                raise error_for(code, None, f"{self._id}: {what}")
            self.retry_count += 1
            await asyncio.sleep(RETRY_PAUSE_S)


@dataclass(slots=True)
class TransactionFigures:
    """One number of partitions; times in milliseconds."""

    partition_count: int
    cost: Cost = field(default_factory=Cost)
    retry_count: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    commit_latencies_ms: list[float] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        count = len(self.latencies_ms)
        return {
            "partitions": self.partition_count,
            "commits": count,
            "seconds": round(self.cost.seconds, 3),
            "commits_per_second": round(count / self.cost.seconds, 1),
            **percentiles("latency", self.latencies_ms, PERCENTILES),
            **percentiles("commit", self.commit_latencies_ms, PERCENTILES),
            "retries": self.retry_count,
            "client_cpu_percent": round(self.cost.own_cpu_seconds / self.cost.seconds * 100, 1),
        }


async def measure_transactions(
    config: ClientConfig, plan: TransactionsPlan
) -> tuple[int, list[TransactionFigures]]:
    """The transaction version in use, and the figures. Raises: KafkaError, OSError"""
    async with Admin(config=config) as admin:
        version = plan.transaction_version
        if version is None:
            level = (await admin.describe_features()).finalized.get(TRANSACTION_VERSION, 0)
            version = 2 if level >= requests.TRANSACTION_VERSION_2 else 1
        async with _topic(admin, plan) as topic_name, AsyncExitStack() as stack:
            producers = await _producers(config, plan, topic_name, version, stack)
            figures = [await _measure(producers, count, plan) for count in plan.partition_counts]
    return version, figures


@asynccontextmanager
async def _topic(admin: Admin, plan: TransactionsPlan) -> AsyncIterator[str]:
    """The topic that is given, or one that is deleted afterwards."""
    if plan.topic is not None:
        yield plan.topic
        return
    name = f"bench-transactions-{uuid.uuid4().hex[:12]}"
    topic = NewTopic(name, max(plan.partition_counts), plan.replication_factor)
    await admin.create_topics([topic])
    try:
        yield name
    finally:
        await admin.delete_topics([name])


async def _producers(
    config: ClientConfig,
    plan: TransactionsPlan,
    topic_name: str,
    version: int,
    stack: AsyncExitStack,
) -> list[TransactionalProducer]:
    """Producers with their ids, each with connections of its own."""
    run_id = uuid.uuid4().hex[:12]
    producers = []
    for number in range(plan.producers):
        client = ClusterClient(config)
        stack.push_async_callback(client.close)
        topic = await _described(client, topic_name, max(plan.partition_counts))
        transactional_id = f"bench-{run_id}-{number}"
        producers.append(
            TransactionalProducer(client, transactional_id, topic, version, plan.record_bytes)
        )
    await asyncio.gather(*(each.begin_session() for each in producers))
    return producers


async def _described(client: ClusterClient, name: str, least: int) -> TopicMetadata:
    async def attempt() -> TopicMetadata:
        topic = await described_topic(client, name)
        for partition in topic.partitions:
            await client.leader_of(name, partition)
        return topic

    topic = await client.retry(attempt, what=f"topic {name}", timeout_ms=None)
    if len(topic.partitions) < least:
        raise KafkaError(f"topic {name} has {len(topic.partitions)} partitions, not {least}")
    return topic


async def _measure(
    producers: list[TransactionalProducer], partition_count: int, plan: TransactionsPlan
) -> TransactionFigures:
    warm_up = TransactionFigures(partition_count)
    await _commit_for(producers, warm_up, plan.warm_up_seconds)
    figures = TransactionFigures(partition_count)
    retries_before = sum(each.retry_count for each in producers)
    with taken() as figures.cost:
        await _commit_for(producers, figures, plan.seconds)
    figures.retry_count = sum(each.retry_count for each in producers) - retries_before
    return figures


async def _commit_for(
    producers: list[TransactionalProducer], figures: TransactionFigures, seconds: float
) -> None:
    """Every producer begins transactions until the time is over, and ends its last one."""
    deadline = time.perf_counter() + seconds

    async def work(number: int, producer: TransactionalProducer) -> None:
        turn = 0
        while (begin := time.perf_counter()) < deadline:
            # Each begins elsewhere, so that few partitions are not all the same ones.
            first = (number + turn * len(producers)) * figures.partition_count
            every = producer.partition_count
            partitions = [(first + index) % every for index in range(figures.partition_count)]
            commit_seconds = await producer.run(partitions)
            figures.latencies_ms.append((time.perf_counter() - begin) * 1000)
            figures.commit_latencies_ms.append(commit_seconds * 1000)
            turn += 1

    await asyncio.gather(*(work(*numbered) for numbered in enumerate(producers)))
