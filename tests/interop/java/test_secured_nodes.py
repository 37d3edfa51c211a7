"""Apache Kafka's nodes and ours in one cluster, by passwords over SASL_SSL and by certificates:
each connects to the other as a follower, as a coordinator and as a controller.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from moldau.client import KafkaError, NewTopic
from moldau.client.sync import Admin, Consumer, Producer
from tests.interop.java.jvm import jvm_command
from tests.interop.java.tools import missing
from tests.kit.waiting import until
from tests.system.security.secured_cluster import CERTIFICATES, SecuredCluster, passwords

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

START_DEADLINE_S = 120.0
OURS, KAFKAS = 1, 2
CONTROLLER = 101
VALUES = {str(number).encode() for number in range(50)}
WAYS = {"SASL_SSL": passwords("SCRAM-SHA-512", "PLAIN"), "SSL": CERTIFICATES}


@contextmanager
def kafka(cluster: SecuredCluster, node_id: int) -> Iterator[None]:
    """Apache Kafka on a node's directory, with the node's own configuration."""
    config = cluster.config_path(node_id)
    with (config.parent / "kafka.log").open("ab") as log:
        process = subprocess.Popen(
            jvm_command("kafka.Kafka", str(config), heap_mib=256),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
        assert process.poll() is None, (config.parent / "kafka.log").read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


def brokers(cluster: SecuredCluster) -> set[int]:
    try:
        with Admin(**cluster.client()) as admin:
            return {each.node_id for each in admin.describe_cluster().brokers}
    except KafkaError:
        return set()


def use(cluster: SecuredCluster) -> None:
    """One partition is led by each; a group and a transaction reach all of them."""
    client = cluster.client()
    with Admin(**client) as admin:
        admin.create_topics(
            [
                NewTopic("both", replica_assignment={0: [OURS, KAFKAS], 1: [KAFKAS, OURS]}),
                NewTopic("copied", replica_assignment={0: [OURS, KAFKAS], 1: [KAFKAS, OURS]}),
            ]
        )
    with Producer(acks="all", **client) as producer:
        for value in VALUES:
            producer.send("both", value, partition=int(value) % 2)
    with Producer(transactional_id="copier", **client) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in VALUES:
            producer.send("copied", value, partition=int(value) % 2)
        producer.commit_transaction()
    for topic in ("both", "copied"):
        with Consumer(
            group_id=topic,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **client,
        ) as consumer:
            consumer.subscribe([topic])
            assert {consumer.getone().value for _ in VALUES} == VALUES
    with Admin(**client) as admin:
        for topic in ("both", "copied"):
            [described] = admin.describe_topics([topic]).values()
            assert [set(each.isr) for each in described.partitions] == [{OURS, KAFKAS}] * 2


@pytest.mark.parametrize("controller_is_kafkas", [False, True], ids=["ours", "kafkas"])
@pytest.mark.parametrize("way", WAYS)
def test_nodes_of_both_trust_one_another(
    way: str, *, controller_is_kafkas: bool, tmp_path: Path
) -> None:
    foreign = [KAFKAS, CONTROLLER] if controller_is_kafkas else [KAFKAS]
    between: Mapping[str, str] = WAYS[way]
    made = SecuredCluster(
        tmp_path, between, controllers=[CONTROLLER], brokers=[OURS, KAFKAS], foreign=foreign
    )
    with ExitStack() as running:
        for node_id in foreign:
            running.enter_context(kafka(made, node_id))
        cluster = running.enter_context(made)
        until(
            lambda: brokers(cluster) == {OURS, KAFKAS},
            what="both brokers serve",
            deadline_s=START_DEADLINE_S,
        )
        use(cluster)
