"""The two clusters of a comparison: one combined node each, with the same configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from moldau.config import read_properties_file
from moldau.local.layout import PROPERTIES
from moldau.testing import Cluster
from tests.interop.differential.asking import Node, Pair
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools

CONFIG: Final = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.index.size.max.bytes": "65536",
    "num.partitions": "2",
    "compression.type": "producer",
    "log.segment.bytes": "104857600",
}
"""Some keys that topics inherit are among them, so that static sources are compared too."""


@contextmanager
def both_clusters(
    java: JavaTools, home: Path, config: Mapping[str, str] = CONFIG
) -> Iterator[Pair]:
    """Run both; the connections are closed before the nodes end."""
    kafka_server = KafkaServer(java, home / "kafka", config=config)
    with Cluster(config=config) as cluster, kafka_server:
        ours_home = cluster.directory / "node-1"
        pair = Pair(
            Node("Moldau", cluster.bootstrap_server, _aliases(ours_home)),
            Node("Apache Kafka", kafka_server.bootstrap_server, _aliases(home / "kafka")),
        )
        try:
            yield pair
        finally:
            pair.close()


def _aliases(home: Path) -> dict[str, str]:
    """The words for what is this node's own, longest first."""
    properties: Mapping[str, str] = read_properties_file(str(home / PROPERTIES))
    listeners = dict(each.split("://") for each in properties["listeners"].split(","))
    meta = read_properties_file(str(Path(properties["log.dirs"]) / "meta.properties"))
    found = {
        properties["log.dirs"]: "DATA",
        meta["cluster.id"]: "CLUSTER",
        meta["directory.id"]: "DIRECTORY",
        ":" + listeners["PLAINTEXT"].rpartition(":")[2]: ":BROKER_PORT",
        ":" + listeners["CONTROLLER"].rpartition(":")[2]: ":CONTROLLER_PORT",
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))
