"""Client quotas on real nodes, with real clients: pauses, refusals, restarts, other clients."""

from __future__ import annotations

import contextlib
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from moldau.client import KafkaError, NewPartitions, NewTopic
from moldau.client.sync import Admin, Consumer, Producer
from moldau.testing import Cluster
from tests.kit.waiting import until

ANONYMOUS = (("user", "ANONYMOUS"),)
VALUE = b"x" * 10_000


def alter(cluster: Cluster, entity: Any, **values: float | None) -> None:
    with Admin(cluster.bootstrap_server) as admin:
        outcome = admin.alter_client_quotas({entity: values})
        assert outcome == {entity: None}


def test_a_producer_is_throttled_and_others_are_not(tmp_path: Path) -> None:
    """The quota is set before a restart: it comes back from the metadata log."""
    with Cluster(directory=tmp_path) as cluster:
        with Admin(cluster.bootstrap_server) as admin:
            admin.create_topics([NewTopic("t")])
        alter(cluster, (("client-id", "slow"),), producer_byte_rate=2_000.0)
    with Cluster(directory=tmp_path) as cluster:
        throttled = {
            client_id: _throttle_times(cluster.bootstrap_server, client_id)
            for client_id in ("slow", "free")
        }
        assert max(throttled["slow"]) > 0
        assert max(throttled["free"]) == 0
        with Admin(cluster.bootstrap_server) as admin:
            found = admin.describe_client_quotas()
        assert found == {(("client-id", "slow"),): {"producer_byte_rate": 2_000.0}}


def _throttle_times(bootstrap: str, client_id: str) -> list[float]:
    """What librdkafka says of the pauses of three requests."""
    pauses: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "throttle_cb": lambda event: pauses.append(event.throttle_time),
        }
    )
    for _ in range(3):
        producer.produce("t", VALUE)
        assert producer.flush(60) == 0
    producer.poll(0)
    return pauses or [0.0]


def test_a_throttled_consumer_gets_everything_in_the_end() -> None:
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_server
        with Producer(bootstrap) as producer:
            for _ in range(12):
                producer.send("t", VALUE)
                producer.flush()
        # Ten windows allow two of these records.
        alter(cluster, (("client-id", "slow"),), consumer_byte_rate=2.5 * len(VALUE) / 10)
        with Consumer(
            bootstrap, client_id="slow", group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["t"])
            assert consumer.getone().value == VALUE
            alter(cluster, (("client-id", "slow"),), consumer_byte_rate=10.0 * len(VALUE))
            values = [consumer.getone().value for _ in range(11)]
        assert values == [VALUE] * 11
        others = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "slow",
                "group.id": "h",
                "auto.offset.reset": "earliest",
            }
        )
        others.subscribe(["t"])
        count = 0
        while count < 12:
            message = others.poll(60)
            assert message is not None
            assert message.error() is None
            count += 1
        others.close()


def test_mutations_are_refused_and_come_back() -> None:
    with Cluster(brokers=2, controllers=1) as cluster:
        bootstrap = cluster.bootstrap_server
        alter(cluster, ANONYMOUS, controller_mutation_rate=1.0)
        with Admin(bootstrap) as admin:
            admin.create_topics([NewTopic("large", 100)])
        # Each has its own connection: a refusal makes the connection pause.
        refused: tuple[Callable[[Admin], object], ...] = (
            lambda admin: admin.create_topics([NewTopic("one-more")], timeout_ms=1000),
            lambda admin: admin.create_partitions({"large": NewPartitions(101)}, timeout_ms=1000),
            lambda admin: admin.delete_topics(["large"], timeout_ms=1000),
        )
        for mutate in refused:
            with (
                Admin(bootstrap) as admin,
                pytest.raises(KafkaError, match="controller_mutation_rate is used up"),
            ):
                mutate(admin)
        with Admin(bootstrap) as admin:
            assert admin.list_topics() == ["large"]
        # librdkafka asks in a version that does not know the error: it is done, and paused for.
        others = AdminClient({"bootstrap.servers": bootstrap, "client.id": "other"})
        others.delete_topics(["large"], request_timeout=60, operation_timeout=60)["large"].result()
        with Admin(bootstrap) as admin:
            assert admin.list_topics() == []
        alter(cluster, ANONYMOUS, controller_mutation_rate=1000.0)
        with Admin(bootstrap) as admin:
            admin.create_topics([NewTopic("one-more")])


def test_connections_of_an_address_are_closed_and_those_of_a_node_wait() -> None:
    with Cluster() as cluster:
        host, _, port = cluster.bootstrap_server.rpartition(":")
        where = host, int(port)
        alter(cluster, (("ip", "127.0.0.1"),), connection_creation_rate=1.0)
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(socket.create_connection(where, 30)) for _ in range(20)]
            with contextlib.suppress(ConnectionError):
                assert opened[-1].recv(1) == b"", "nothing but its end"
    with Cluster(config={"max.connection.creation.rate": "2"}) as cluster:
        host, _, port = cluster.bootstrap_server.rpartition(":")
        with contextlib.ExitStack() as stack:
            for _ in range(22):
                stack.enter_context(socket.create_connection((host, int(port)), 30))
            with Admin(cluster.bootstrap_server) as admin:
                assert admin.list_topics() == []


def test_metrics_tell_of_throttled_clients() -> None:
    with Cluster(config={"moldau.http.listener": "127.0.0.1:0"}) as cluster:
        alter(cluster, (("user", "ANONYMOUS"), ("client-id", None)), producer_byte_rate=1_000.0)
        with Producer(cluster.bootstrap_server, client_id="mine") as producer:
            producer.send("t", VALUE * 5)
            producer.flush()
        announced = until(
            lambda: re.search(r"HTTP listener on (\S+)", cluster.node().log_path.read_text()),
            what="the HTTP listener",
        )
        assert isinstance(announced, re.Match)
        with urllib.request.urlopen(f"http://{announced.group(1)}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = {
            line.partition("{")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if 'client_id="mine"' in line and 'user="ANONYMOUS"' in line
        }
        assert found["kafka_server_produce_byte_rate"] > 1_000
        assert found["kafka_server_produce_throttle_time"] > 0
