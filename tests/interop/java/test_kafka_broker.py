"""An Apache Kafka 4.3 broker in a cluster whose controllers are ours: it registers, reads the
metadata log, forwards its clients' requests, creates its coordinators' topics through our
controllers, serves a group and a topic across a failover, and leaves in order.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moldau.protocol.messages.p57_update_features import UpdateFeaturesRequest
from tests.interop.java.jvm import jvm_command
from tests.interop.java.server import STOP_DEADLINE_S
from tests.interop.java.tools import MAIN_CLASSES, JavaTools
from tests.kit.ports import free_port
from tests.unit.controller.quorum_cluster import CLIENT, CONTROLLERS, Cluster
from tests.unit.metadata.builders import CLUSTER_ID

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(300)]

MAIN_CLASSES.setdefault("kafka-metadata-quorum", "org.apache.kafka.tools.MetadataQuorumCommand")

KAFKA_ID = 20


class KafkaBroker:
    """The process, and the tools that talk to it."""

    def __init__(self, java: JavaTools, home: Path, cluster: Cluster) -> None:
        self._java = java
        self._log_path = home / "kafka.log"
        self.address = f"127.0.0.1:{free_port()}"
        properties = home / "server.properties"
        voters = ",".join(
            f"{node_id}@127.0.0.1:{cluster.nodes[node_id].port('CONTROLLER')}"
            for node_id in CONTROLLERS
        )
        properties.write_text(
            f"process.roles=broker\nnode.id={KAFKA_ID}\nlisteners=PLAINTEXT://{self.address}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"controller.quorum.voters={voters}\nlog.dirs={home}/data\n"
            "broker.heartbeat.interval.ms=300\nlog.index.size.max.bytes=65536\n"
            "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        java.check("kafka-storage", "format", "-t", CLUSTER_ID, "-c", properties)
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                jvm_command("kafka.Kafka", str(properties), heap_mib=384),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def check(self, tool: str, *arguments: str, stdin: bytes = b"") -> str:
        outcome = await asyncio.to_thread(
            self._java.check,
            tool,
            "--bootstrap-server",
            self.address,
            *arguments,
            stdin=stdin,
        )
        return outcome.output


@pytest.fixture
async def cluster(java: JavaTools, tmp_path: Path) -> AsyncIterator[Cluster]:
    # A busy machine may stop this process, with all the quorum, for a second: that is no failure.
    made = Cluster(tmp_path, controller_quorum_fetch_timeout_ms="10000")
    await made.start()
    await made.channel.forward(UpdateFeaturesRequest(), "User:a", CLIENT)  # a controller leads
    yield made
    await made.stop()


async def test_an_apache_kafka_broker_with_our_controllers(
    java: JavaTools, cluster: Cluster, tmp_path: Path
) -> None:
    home = tmp_path / "kafka"
    home.mkdir()
    kafka = await asyncio.to_thread(KafkaBroker, java, home, cluster)
    try:
        await cluster.metadata.until(
            lambda image: (
                KAFKA_ID in image.cluster.brokers and not image.cluster.brokers[KAFKA_ID].fenced
            ),
            deadline_s=90,
        )
        create = ("--create", "--partitions", "1", "--replication-factor", "1", "--topic")
        await kafka.check("kafka-topics", *create, "before")
        first = cluster.active
        stopping = asyncio.ensure_future(cluster.nodes[first].stop())
        await kafka.check("kafka-topics", *create, "during")
        await stopping
        assert cluster.active != first
        described = await kafka.check("kafka-topics", "--describe", "--topic", "before")
        assert f"Leader: {KAFKA_ID}" in described
        status = await kafka.check("kafka-metadata-quorum", "describe", "--status")
        assert f'"id": {KAFKA_ID}' in status
        await kafka.check("kafka-console-producer", "--topic", "during", stdin=b"a\nb\nc\n")
        read = await kafka.check(
            "kafka-console-consumer", "--topic", "during", "--group", "g", "--from-beginning",
            "--max-messages", "3",
        )  # fmt: skip
        assert read.split()[-3:] == ["a", "b", "c"]
        group = await kafka.check("kafka-consumer-groups", "--describe", "--group", "g")
        assert "during 0 3 3 0" in " ".join(group.split())
        kafka.process.terminate()
        await asyncio.to_thread(kafka.process.wait, STOP_DEADLINE_S)
        await cluster.metadata.until(lambda image: image.cluster.brokers[KAFKA_ID].fenced)
    finally:
        if kafka.process.poll() is None:
            kafka.process.kill()
            kafka.process.wait()
