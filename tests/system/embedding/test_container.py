"""`MoldauContainer`, as tests that were written for Testcontainers use it."""

from __future__ import annotations

import re
import socket

import pytest

from moldau.client import ConfigResource, ConfigResourceType
from moldau.client.sync import Admin
from moldau.testing import MoldauContainer

CHOSEN = "MoldauContainer chooses addresses, ids, roles and directories by itself; leave it out"


def test_it_starts_is_asked_and_stops():
    kafka = MoldauContainer("confluentinc/cp-kafka:7.6.0").with_kraft()
    kafka.with_env("KAFKA_NUM_PARTITIONS", "4").with_env("KAFKA_HEAP_OPTS", "-Xmx1g")
    assert kafka.with_name("kafka").with_envs(KAFKA_DEFAULT_REPLICATION_FACTOR="1") is kafka
    with kafka:
        assert kafka.start() is kafka
        address = kafka.get_bootstrap_server()
        broker = ConfigResource(ConfigResourceType.BROKER, "1")
        with Admin(address) as admin:
            [entries] = admin.describe_configs([broker]).values()
        assert entries["num.partitions"].value == "4"
        assert address == f"{kafka.get_container_host_ip()}:{kafka.get_exposed_port(9093)}"
        with pytest.raises(RuntimeError, match="KAFKA_NUM_PARTITIONS: the node runs already"):
            kafka.with_env("KAFKA_NUM_PARTITIONS", "5")
    host, _, port = address.rpartition(":")
    with socket.socket() as caller:
        assert caller.connect_ex((host, int(port))) != 0
    kafka.stop()
    with pytest.raises(RuntimeError, match="not started"):
        kafka.get_bootstrap_server()


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("KAFKA_ADVERTISED_LISTENERS", CHOSEN),
        ("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", CHOSEN),
        ("KAFKA_NODE_ID", CHOSEN),
        ("KAFKA_CONTROLLER_QUORUM_VOTERS", CHOSEN),
        ("CLUSTER_ID", "only variables KAFKA_… are read"),
    ],
)
def test_variables_that_the_container_sets_itself_are_refused(variable: str, said: str):
    with pytest.raises(ValueError, match=f"{variable}: .*{said}"):
        MoldauContainer().with_env(variable, "1")


def test_what_only_a_container_has_is_named_with_what_exists():
    said = "with_bind_ports: no container runs; MoldauContainer has with_kraft, with_name, "
    with pytest.raises(AttributeError, match=re.escape(said)):
        MoldauContainer(port=9093).with_bind_ports(9093, 9093)
    assert not hasattr(MoldauContainer(), "exec")
