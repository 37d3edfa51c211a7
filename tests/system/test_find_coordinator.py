"""FindCoordinator on real processes: the first question makes the topic, and one broker is enough
where its configuration says so (ADR 0012).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork
from moldau.testing import Cluster
from tests.kit.waiting import until_async

GROUP, TRANSACTION, SHARE = 0, 1, 2


async def find(connection: Connection, version: int, key_type: int) -> tuple[int, int, int]:
    """Error, node and port that one key gets."""
    request = FindCoordinatorRequest(key_type=key_type)
    if version >= 4:
        request.coordinator_keys = ["k"]
    else:
        request.key = "k"
    response = await connection.send(request, api_version=version)
    assert isinstance(response, FindCoordinatorResponse)
    found = response.coordinators[0] if version >= 4 else response
    return found.error_code, found.node_id, found.port


async def connected(bootstrap_server: str) -> tuple[Connection, int]:
    host, _, port = bootstrap_server.rpartition(":")
    return await Connection.connect(AsyncioNetwork(), host, int(port)), int(port)


@pytest.mark.system
async def test_every_version_and_kind_of_key(tmp_path: Path) -> None:
    """The transaction topic is asked to have more replicas than there are brokers."""
    config = {"transaction.state.log.replication.factor": "3"}
    async with Cluster(config=config, directory=tmp_path) as cluster:
        connection, port = await connected(cluster.bootstrap_server)
        error, node_id, _ = await find(connection, 6, GROUP)
        assert (error, node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)

        async def is_found() -> bool:
            return (await find(connection, 6, GROUP))[0] == ErrorCode.NONE

        await until_async(is_found, what="a coordinator of groups", deadline_s=20)
        for version in range(7):
            assert await find(connection, version, GROUP) == (ErrorCode.NONE, 1, port)

        async def is_refused() -> bool:
            error = (await find(connection, 6, TRANSACTION))[0]
            assert error == ErrorCode.COORDINATOR_NOT_AVAILABLE
            log = (tmp_path / "node-1" / "node.log").read_text()
            return "__transaction_state cannot be created: INVALID_REPLICATION_FACTOR" in log

        await until_async(is_refused, what="the broker's word about it", deadline_s=20)
        for version in range(1, 7):
            error, node_id, _ = await find(connection, version, TRANSACTION)
            assert (error, node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
            assert (await find(connection, version, 9))[0] == ErrorCode.INVALID_REQUEST
        assert (await find(connection, 5, SHARE))[0] == ErrorCode.INVALID_REQUEST
        assert (await find(connection, 6, SHARE))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        connection.close()
