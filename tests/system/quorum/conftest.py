"""Clusters of several processes, and what the tests ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from moldau.client import Admin, ClusterDescription, KafkaError, NewTopic, QuorumDescription
from moldau.testing import Cluster
from tests.kit.waiting import until

Result = TypeVar("Result")

#: Shorter than the defaults, so that a silent broker is fenced within a test's patience.
CONFIG = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@pytest.fixture
def many() -> Iterator[Cluster]:
    """Three controllers and three brokers, for one test alone."""
    with Cluster(brokers=3, controllers=3, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def standing() -> Iterator[Cluster]:
    """As `many`, for tests that leave all nodes running, and who votes."""
    with Cluster(brokers=3, controllers=3, config=CONFIG) as cluster:
        yield cluster


def ask(cluster: Cluster, work: Callable[[Admin], Awaitable[Result]]) -> Result:
    """Ask the brokers."""

    async def run() -> Result:
        async with Admin(cluster.bootstrap_server) as admin:
            return await work(admin)

    return asyncio.run(run())


def create_topic(cluster: Cluster, name: str, partitions: int = 3) -> None:
    """Create a topic on one replica each."""
    ask(cluster, lambda admin: admin.create_topics([NewTopic(name, partitions, 1)]))


def topics(cluster: Cluster) -> list[str]:
    """The names of all topics."""
    return ask(cluster, lambda admin: admin.list_topics())


def wait_for_topics(cluster: Cluster, *names: str) -> list[str]:
    """Wait until the broker that happens to be asked knows of these, which may be later than the
    one through which they were created; the names of all its topics, sorted.
    """

    def known() -> list[str] | None:
        found = topics(cluster)
        return sorted(found) if set(names) <= set(found) else None

    found = until(known, what=f"topics {', '.join(names)}")
    assert found is not None
    return found


def quorum(cluster: Cluster) -> QuorumDescription:
    """The quorum as its leader sees it."""
    return ask(cluster, lambda admin: admin.describe_metadata_quorum())


def described(cluster: Cluster) -> ClusterDescription:
    """The brokers, fenced ones too."""
    return ask(cluster, lambda admin: admin.describe_cluster(include_fenced_brokers=True))


def fenced(cluster: Cluster) -> set[int]:
    """Ids of brokers that are registered and do not serve."""
    return {broker.node_id for broker in described(cluster).brokers if broker.fenced}


def wait_for_another_leader(cluster: Cluster, old_id: int) -> int:
    """Wait until the quorum has a leader that is not `old_id`; its id."""

    def another() -> int | None:
        try:
            leader_id = cluster.active_controller_id()
        except KafkaError:
            return None
        return leader_id if leader_id not in (old_id, -1) else None

    found = until(another, what=f"a leader other than {old_id}")
    assert found is not None
    return found


def wait_until_caught_up(cluster: Cluster, node_id: int) -> None:
    """Wait until a replica of the metadata log has all that was committed when it was first
    asked.
    """
    target = quorum(cluster).high_watermark

    def has_caught_up() -> bool:
        told = quorum(cluster)
        found = [each for each in (*told.voters, *told.observers) if each.replica_id == node_id]
        return bool(found) and found[0].log_end_offset >= target

    until(has_caught_up, what=f"node {node_id} has caught up")
