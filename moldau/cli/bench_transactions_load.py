"""The load of `moldau bench transactions`: producers that commit one transaction after the other.

Owns the choice of partitions, the clock and the figures. Must not print. Invariant: only
transactions whose commit was answered count, each from its first request to that answer; warming up
counts nothing.
"""

from __future__ import annotations

import asyncio
import math
import resource
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.cli.bench_transactional_producer import TransactionalProducer
from moldau.client import Admin, ClientConfig, NewTopic
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.metadata_cache import TopicMetadata
from moldau.client.errors import KafkaError, raise_for

TRANSACTION_FEATURE: Final = "transaction.version"
IMPLICIT_ADD_LEVEL: Final = 2
PERCENTILES: Final = (50.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsPlan:
    """What is measured: for each of `partition_counts`, `seconds` of transactions of so many
    partitions by `producer_count` producers at once.

    `topic` None makes one for the time. `transaction_version` None takes what is finalized.
    """

    partition_counts: Sequence[int] = (1, 10, 100)
    producer_count: int = 8
    seconds: float = 10.0
    warm_up_seconds: float = 3.0
    record_bytes: int = 100
    topic: str | None = None
    replication_factor: int = -1
    transaction_version: int | None = None


@dataclass(slots=True)
class TransactionFigures:
    """One number of partitions; times in milliseconds."""

    partition_count: int
    seconds: float = 0.0
    retry_count: int = 0
    client_cpu_seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    commit_latencies_ms: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON shows it."""
        count = len(self.latencies_ms)
        return {
            "partitions": self.partition_count,
            "commits": count,
            "seconds": round(self.seconds, 3),
            "commits_per_second": round(count / self.seconds, 1) if self.seconds else 0.0,
            **_percentiles("latency", self.latencies_ms),
            **_percentiles("commit", self.commit_latencies_ms),
            "retries": self.retry_count,
            "client_cpu_percent": round(self.client_cpu_seconds / self.seconds * 100, 1)
            if self.seconds
            else 0.0,
        }


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"{name}_p{percent:g}_ms": round(
            ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)], 3
        )
        for percent in PERCENTILES
        if ordered
    }


async def measure_transactions(
    config: ClientConfig, plan: TransactionsPlan
) -> tuple[int, list[TransactionFigures]]:
    """The transaction version in use, and the figures. Raises: KafkaError, OSError"""
    async with Admin(config=config) as admin:
        version = plan.transaction_version
        if version is None:
            level = (await admin.describe_features()).finalized.get(TRANSACTION_FEATURE, 0)
            version = 2 if level >= IMPLICIT_ADD_LEVEL else 1
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
    for number in range(plan.producer_count):
        client = ClusterClient(config)
        stack.push_async_callback(client.close)
        topic = await _described(client, topic_name, max(plan.partition_counts))
        producers.append(
            TransactionalProducer(
                client,
                f"bench-{run_id}-{number}",
                topic,
                transaction_version=version,
                record_bytes=plan.record_bytes,
            )
        )
    await asyncio.gather(*(each.begin_session() for each in producers))
    return producers


async def _described(client: ClusterClient, name: str, least: int) -> TopicMetadata:
    async def attempt() -> TopicMetadata:
        await client.refresh_metadata([name])
        topic = client.metadata.topics.get(name)
        if topic is None:
            raise_for(client.metadata.problem(name, 0), None, f"topic {name}")
            raise KafkaError(f"topic {name} is not there")
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
    begin, cpu_begin = time.perf_counter(), _cpu_seconds()
    await _commit_for(producers, figures, plan.seconds)
    figures.seconds = time.perf_counter() - begin
    figures.client_cpu_seconds = _cpu_seconds() - cpu_begin
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


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
