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


@pytest.fixture
def topic(topics: TopicMaker) -> str:
    """A fresh topic with one partition."""
    return topics.create()
