"""A benchmark whose requests fail while others are under way ends with the first failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cli.bench.plans import LatencyPlan, ProducePlan
from moldau.cli.bench.records import Figures, run_latency, run_produce
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.metadata_cache import TopicMetadata
from moldau.client.errors import KafkaError, NoBrokerAvailable
from tests.kit.loop_reports import heard_reports
from tests.virtual.machine import pass_time

TOPIC = TopicMetadata("t", UUID(int=1), False, cast("dict[int, Any]", {0: None}))


class DeadBroker:
    """A client's face; each request fails, the first one after so long, the next after less."""

    def __init__(self, patience_ms: float) -> None:
        self.patience_ms = patience_ms
        self.metadata = SimpleNamespace(topics={"t": TOPIC})
        self.asked_count = 0

    async def refresh_metadata(self, topics: list[str]) -> None:
        """Known already."""

    async def leader_of(self, topic: str, partition: int) -> int:
        return 1

    async def ask_node(self, node_id: int, request: object) -> object:
        self.asked_count += 1
        await pass_time(max(self.patience_ms - self.asked_count, 0.0))
        raise NoBrokerAvailable("gone")


async def fails(work: Any) -> None:
    """The bench fails, and lets the other requests end too."""
    with pytest.raises(KafkaError, match="gone"):
        await work
    await pass_time(1_000)


async def test_only_the_first_of_several_failed_produce_requests_is_reported() -> None:
    client = DeadBroker(10.0)
    plan = ProducePlan(
        topic="t", records=30, record_bytes=100, batch_bytes=1_000, in_flight=3, idempotent=False
    )
    with heard_reports() as reports:
        await fails(run_produce(cast(ClusterClient, client), Figures(), plan))
    assert client.asked_count == 3
    assert reports == []


async def test_a_record_at_a_fixed_rate_that_fails_early_fails_the_run() -> None:
    plan = LatencyPlan(topic="t", rate=1_000, seconds=0.01, record_bytes=10)
    with heard_reports() as reports:
        await fails(run_latency(cast(ClusterClient, DeadBroker(0.0)), Figures(), plan))
    assert reports == []
