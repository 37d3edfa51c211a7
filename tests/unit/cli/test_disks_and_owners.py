"""What a command says about a broker's disks, and whose configuration it is that is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p35_describe_log_dirs as directories
from moldau.protocol.messages import p44_incremental_alter_configs as altering
from moldau.protocol.messages.p60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from tests.unit.cli.test_cluster_commands import moldau, ok
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

pytestmark = pytest.mark.real

GONE, ALIVE, MIB = "/gone", "/alive", 2**20


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        host, _, port = scripted.address.rpartition(":")
        node = DescribeClusterBroker(broker_id=NODE_ID, host=host, port=int(port))
        answer = DescribeClusterResponse(cluster_id="c", controller_id=NODE_ID, brokers=[node])
        scripted.script(ApiKey.DESCRIBE_CLUSTER, lambda _: answer)
        yield scripted


async def test_a_disk_that_is_gone_has_no_sizes(broker: ScriptedBroker):
    results = [
        directories.DescribeLogDirsResult(
            log_dir=GONE, error_code=ErrorCode.KAFKA_STORAGE_ERROR, topics=[]
        ),
        directories.DescribeLogDirsResult(
            log_dir=ALIVE, topics=[], total_bytes=3 * MIB, usable_bytes=2 * MIB
        ),
    ]
    broker.script(
        ApiKey.DESCRIBE_LOG_DIRS, lambda _: directories.DescribeLogDirsResponse(results=results)
    )
    lines = (await ok(broker, "brokers", "describe", NODE_ID)).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("/")}
    assert rows[GONE] == ["-", "-", "-", "-", "KAFKA_STORAGE_ERROR"]
    assert rows[ALIVE] == ["0", "0", "B", "2.0", "MiB", "3.0", "MiB", "-"]


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("brokers", "", "configuration of all brokers: "),
        ("topics", "1", "configuration of topic 1: "),
        ("broker-loggers", "7", "configuration of loggers of broker 7: "),
        ("brokers", "7", "configuration of broker 7: "),
    ],
)
async def test_whose_configuration_is_refused_is_named(
    broker: ScriptedBroker, kind: str, name: str, said: str
):
    number = {"topics": 2, "brokers": 4, "broker-loggers": 8}[kind]
    refusal = altering.AlterConfigsResourceResponse(
        error_code=ErrorCode.INVALID_CONFIG,
        error_message="no",
        resource_type=number,
        resource_name=name,
    )
    answer = altering.IncrementalAlterConfigsResponse(responses=[refusal])
    broker.script(ApiKey.INCREMENTAL_ALTER_CONFIGS, lambda _: answer)
    done = await moldau(broker, "configs", "alter", kind, name, "--set", "a=1")
    assert (done.status, done.output) == (1, "")
    assert f"moldau: {said}INVALID_CONFIG: no" in done.errors
