"""Which broker: a Moldau node, and an Apache Kafka node where Java and Maven are.

Owns one node of each kind per test process. `MOLDAU_CLIENT_BOOTSTRAP=host:port` runs the suite
against a cluster that exists already, instead.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import pytest

from moldau.client import Admin, NewTopic
from moldau.testing import Cluster
from tests.interop.conftest import QUICK_GROUPS
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools, missing

EXISTING = os.environ.get("MOLDAU_CLIENT_BOOTSTRAP", "")
KINDS = ("existing",) if EXISTING else ("moldau", "kafka")


@pytest.fixture(scope="session", params=KINDS)
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """`host:port` of a node of the kind."""
    if request.param == "existing":
        yield EXISTING
    elif request.param == "moldau":
        with Cluster(config=QUICK_GROUPS) as cluster:
            yield cluster.bootstrap_server
    else:
        reason = missing()
        if reason:
            pytest.skip(reason)
        home = tmp_path_factory.mktemp("kafka")
        with (home / "jvm.log").open("wb") as errors, JavaTools(errors) as java:
            server = KafkaServer(java, home / "node")
        with server:
            yield server.bootstrap_server


class MakeTopic(Protocol):
    """Makes a fresh topic."""

    async def __call__(self, partitions: int = 1, **configs: str) -> str:
        """Its name."""
        ...


@pytest.fixture
async def make_topic(bootstrap: str) -> AsyncIterator[MakeTopic]:
    """Fresh topics, deleted when the test is over."""
    made: list[str] = []
    async with Admin(bootstrap) as admin:

        async def make(partitions: int = 1, **configs: str) -> str:
            name = f"client-{uuid.uuid4().hex}"
            named = {key.replace("_", "."): value for key, value in configs.items()}
            topic = NewTopic(name, partition_count=partitions, configs=named)
            await admin.create_topics([topic])
            made.append(name)
            return name

        yield make
        if made:
            await admin.delete_topics(made)


@pytest.fixture
def fresh() -> str:
    """A name for a group or a transactional id that no other test has."""
    return f"client-{uuid.uuid4().hex}"
