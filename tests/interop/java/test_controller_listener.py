"""Apache Kafka's tools talk to our controllers directly (KIP-919), with no broker between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moldau.protocol.messages.p57_update_features import UpdateFeaturesRequest
from tests.interop.java.tools import MAIN_CLASSES, JavaTools, Outcome
from tests.kit.waiting import until_async
from tests.unit.controller.quorum_cluster import BROKER, CLIENT, CONTROLLERS, Cluster
from tests.unit.metadata.builders import CLUSTER_ID

pytestmark = [pytest.mark.interop, pytest.mark.java]

MAIN_CLASSES.setdefault("kafka-metadata-quorum", "org.apache.kafka.tools.MetadataQuorumCommand")


class Tools:
    """The tools, with the address of every controller."""

    def __init__(self, java: JavaTools, cluster: Cluster) -> None:
        self._java = java
        self._addresses = ",".join(
            f"127.0.0.1:{cluster.nodes[node_id].port('CONTROLLER')}" for node_id in CONTROLLERS
        )

    async def check(self, tool: str, *arguments: str) -> Outcome:
        where = ("--bootstrap-controller", self._addresses)
        # kafka-cluster alone wants its action first.
        strings = (*arguments, *where) if tool == "kafka-cluster" else (*where, *arguments)
        return await asyncio.to_thread(self._java.check, tool, *strings)


@pytest.fixture
async def cluster(java: JavaTools, tmp_path: Path) -> AsyncIterator[Cluster]:
    # A busy machine may stop this process, with all the quorum, for a second: that is no failure.
    made = Cluster(tmp_path, controller_quorum_fetch_timeout_ms="10000")
    await made.start()
    await made.channel.forward(UpdateFeaturesRequest(), "User:a", CLIENT)  # a controller leads
    # The tools ask any controller: one that has not replayed the first records knows no features.
    own = [made.nodes[each].own_controller for each in CONTROLLERS]
    end = made.nodes[made.active].own_controller.committed_end_offset()

    async def have_caught_up() -> bool:
        return all(each.committed_end_offset() >= end for each in own)

    await until_async(have_caught_up, what="every controller has the first records")
    yield made
    await made.stop()


async def test_kafkas_tools_at_the_controller_listeners(java: JavaTools, cluster: Cluster) -> None:
    tools = Tools(java, cluster)
    status = (await tools.check("kafka-metadata-quorum", "describe", "--status")).output
    told = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert told["ClusterId"].strip() == CLUSTER_ID
    assert int(told["LeaderId"]) == cluster.active
    assert f'"id": {BROKER}' in told["CurrentObservers"]
    replication = (await tools.check("kafka-metadata-quorum", "describe", "--replication")).lines
    roles = {line.split()[0]: line.split()[-1] for line in replication[1:]}
    assert sorted(roles) == sorted(map(str, (*CONTROLLERS, BROKER)))
    assert roles[str(cluster.active)] == "Leader"
    assert roles[str(BROKER)] == "Observer"
    assert CLUSTER_ID in (await tools.check("kafka-cluster", "cluster-id")).output
    outcome = await tools.check("kafka-cluster", "list-endpoints")
    assert [line.split()[0] for line in outcome.lines[1:]] == [str(each) for each in CONTROLLERS]


async def test_kraft_version_is_raised_by_kafka_features(java: JavaTools, cluster: Cluster) -> None:
    tools = Tools(java, cluster)
    features = (await tools.check("kafka-features", "describe")).output
    before = next(line for line in features.splitlines() if "kraft.version" in line)
    assert "FinalizedVersionLevel: 0" in before
    raised = await tools.check("kafka-features", "upgrade", "--feature", "kraft.version=1")
    assert "kraft.version was upgraded to 1" in raised.output
    features = (await tools.check("kafka-features", "describe")).output
    after = next(line for line in features.splitlines() if "kraft.version" in line)
    assert "FinalizedVersionLevel: 1" in after
