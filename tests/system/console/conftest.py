"""Nodes that serve the console, and who asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from moldau.client import AclBinding, AclOperation, AclResourceType, Admin, ScramUpsertion
from moldau.testing import Cluster
from tests.system.console.site import CONSOLE, PASSWORD, Site, http_address


@pytest.fixture(scope="module")
def open_site() -> Iterator[Site]:
    """A node without security: all are anonymous."""
    with Cluster(config=CONSOLE) as cluster:
        yield Site(cluster, http_address(cluster))


@pytest.fixture(scope="module")
def secure_site() -> Iterator[Site]:
    """A secured node with users: alice may do everything with topics that begin with `a`, bob may
    do nothing.
    """
    with Cluster(secure=True, config=CONSOLE) as cluster:
        asyncio.run(_make_users(cluster))
        yield Site(cluster, http_address(cluster))


async def _make_users(cluster: Cluster) -> None:
    async with Admin(config=cluster.client_properties) as admin:
        await admin.alter_user_scram_credentials(
            [ScramUpsertion(user, PASSWORD) for user in ("alice", "bob", "carol")]
        )
        kinds = (AclResourceType.TOPIC, AclResourceType.GROUP)
        await admin.create_acls(
            [
                AclBinding(kind, "a", "User:alice", AclOperation.ALL, pattern_type=4)
                for kind in kinds
            ]
        )
