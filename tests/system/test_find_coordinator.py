"""FindCoordinator before there are coordinators: groups fail fast, the rest waits (ADR 0005)."""

from __future__ import annotations

import pytest

from moldau.broker.api import BROKER_APIS
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork
from moldau.testing import Cluster

GROUP, TRANSACTION, SHARE = 0, 1, 2


@pytest.mark.system
async def test_every_version_and_kind_of_key() -> None:
    async with Cluster() as cluster:
        host, _, port = cluster.bootstrap_server.rpartition(":")
        connection = await Connection.connect(AsyncioNetwork(), host, int(port))

        async def ask(version: int, key_type: int) -> tuple[int, int, int]:
            request = FindCoordinatorRequest(key_type=key_type)
            if version >= 4:
                request.coordinator_keys = ["k"]
            else:
                request.key = "k"
            response = await connection.send(request, api_version=version)
            assert isinstance(response, FindCoordinatorResponse)
            found = response.coordinators[0] if version >= 4 else response
            return found.error_code, found.node_id, found.port

        for version in range(7):
            assert await ask(version, GROUP) == (ErrorCode.NONE, 1, int(port))
        for version in range(1, 7):
            code, node_id, _ = await ask(version, TRANSACTION)
            assert (code, node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
            assert (await ask(version, 9))[0] == ErrorCode.INVALID_REQUEST
        assert (await ask(5, SHARE))[0] == ErrorCode.INVALID_REQUEST
        assert (await ask(6, SHARE))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        connection.close()


def test_no_group_api_is_advertised_that_is_not_served() -> None:
    group_apis = {ApiKey.JOIN_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.CONSUMER_GROUP_HEARTBEAT}
    assert not group_apis & BROKER_APIS.keys()
