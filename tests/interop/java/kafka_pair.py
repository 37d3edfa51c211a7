"""Two Apache Kafka brokers, one of them the controller as well: enough for partitions to move."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moldau.client import Admin
from moldau.config import read_properties_file
from tests.interop.java.jvm import jvm_command
from tests.interop.java.server import START_DEADLINE_S, KafkaServer
from tests.interop.java.tools import JavaTools
from tests.kit.ports import free_port
from tests.kit.waiting import until


@contextmanager
def kafka_pair(java: JavaTools, home: Path) -> Iterator[str]:
    """Run brokers 1 and 2; gives `host:port,host:port`."""
    first = KafkaServer(java, home / "first")
    quorum = "controller.quorum.bootstrap.servers"
    controller = read_properties_file(str(home / "first" / "server.properties"))[quorum]
    meta = read_properties_file(str(first.data_directory / "meta.properties"))
    address = f"127.0.0.1:{free_port()}"
    second = home / "second"
    second.mkdir()
    config = second / "server.properties"
    config.write_text(
        "process.roles=broker\nnode.id=2\nbroker.heartbeat.interval.ms=300\n"
        f"listeners=PLAINTEXT://{address}\ncontroller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"{quorum}={controller}\nlog.dirs={second / 'data'}\nlog.index.size.max.bytes=65536\n"
    )
    java.check("kafka-storage", "format", "-t", meta["cluster.id"], "-c", config)
    with first, (second / "kafka.log").open("wb") as log:
        process = subprocess.Popen(
            jvm_command("kafka.Kafka", str(config), heap_mib=384),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            both = f"{first.bootstrap_server},{address}"
            until(
                lambda: _broker_ids(both) == [1, 2],
                what="both brokers serve",
                deadline_s=START_DEADLINE_S,
            )
            yield both
        finally:
            process.kill()
            process.wait()


def _broker_ids(bootstrap_server: str) -> list[int]:
    async def ask() -> list[int]:
        async with Admin(bootstrap_server) as admin:
            return sorted(each.node_id for each in (await admin.describe_cluster()).brokers)

    return asyncio.run(ask())
