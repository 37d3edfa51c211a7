"""The pytest plugin: `moldau_cluster` for the session, `moldau_topic` fresh for every test.

Must not import the rest of Moldau before a fixture asks for it: the plugin is loaded in every run
of pytest in the environment it is installed in.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing.cluster import Cluster


@pytest.fixture(scope="session")
def moldau_cluster() -> Iterator[Cluster]:
    """A running one-node cluster, shared by all tests of the session."""
    from moldau.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def moldau_topic(moldau_cluster: Cluster) -> str:
    """The name of a topic with one partition that no other test uses."""
    import asyncio

    from moldau.client import Admin, NewTopic

    topic_name = f"test-{uuid.uuid4().hex}"

    async def create() -> None:
        async with Admin(moldau_cluster.bootstrap_server) as admin:
            await admin.create_topics([NewTopic(topic_name, partition_count=1)])

    asyncio.run(create())
    return topic_name
