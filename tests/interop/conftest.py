"""One node for all interop tests of a process, or a cluster that runs already.

`MOLDAU_INTEROP_BOOTSTRAP=host:port` runs the same tests against that cluster: pointed at Apache
Kafka it shows that the expectations are Kafka's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from moldau.testing import Cluster
from tests.interop.topics import TopicMaker

EXISTING = os.environ.get("MOLDAU_INTEROP_BOOTSTRAP", "")
#: Groups settle, and members that went silent are removed, in moments instead of seconds.
QUICK_GROUPS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
ONE_REPLICA = {"default.replication.factor": "1", "min.insync.replicas": "1"}


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """`host:port` of a node with Kafka's default configuration."""
    if EXISTING:
        yield EXISTING
        return
    with Cluster() as cluster:
        yield cluster.bootstrap_server


@pytest.fixture(scope="session")
def topics(bootstrap: str) -> Iterator[TopicMaker]:
    """Makes topics that no other test uses."""
    with TopicMaker(bootstrap) as maker:
        yield maker


@pytest.fixture(scope="session")
def trio() -> Iterator[str]:
    """Bootstrap servers of three brokers, for groups and transactions."""
    if EXISTING:
        yield EXISTING
        return
    with Cluster(brokers=3, config={**QUICK_GROUPS, **ONE_REPLICA}) as cluster:
        yield cluster.bootstrap_server


@pytest.fixture(scope="session")
def trio_topics(trio: str) -> Iterator[TopicMaker]:
    """Makes topics with three replicas, where there are three brokers."""
    with TopicMaker(trio, min(3, trio.count(",") + 1)) as maker:
        yield maker


@pytest.fixture
def topic(topics: TopicMaker) -> str:
    """A fresh topic with one partition."""
    return topics.create()
