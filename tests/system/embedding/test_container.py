"""`MoldauContainer`, as tests that were written for Testcontainers use it."""

from __future__ import annotations

import socket

import pytest

from moldau.client import ConfigResource, ConfigResourceType
from moldau.client.sync import Admin
from moldau.testing import MoldauContainer


def test_it_starts_is_asked_and_stops():
    kafka = MoldauContainer("confluentinc/cp-kafka:7.6.0").with_kraft()
    kafka.with_env("KAFKA_NUM_PARTITIONS", "4").with_env("KAFKA_HEAP_OPTS", "-Xmx1g")
    with kafka:
        assert kafka.start() is kafka
        address = kafka.get_bootstrap_server()
        broker = ConfigResource(ConfigResourceType.BROKER, "1")
        with Admin(address) as admin:
            [entries] = admin.describe_configs([broker]).values()
        assert entries["num.partitions"].value == "4"
    host, _, port = address.rpartition(":")
    with socket.socket() as caller:
        assert caller.connect_ex((host, int(port))) != 0
    kafka.stop()
    with pytest.raises(RuntimeError, match="not started"):
        kafka.get_bootstrap_server()


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("KAFKA_ADVERTISED_LISTENERS", "are chosen here"),
        ("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "are chosen here"),
        ("KAFKA_NODE_ID", "are chosen here"),
        ("KAFKA_CONTROLLER_QUORUM_VOTERS", "are chosen here"),
        ("CLUSTER_ID", "only variables KAFKA_… are read"),
    ],
)
def test_variables_that_the_container_sets_itself_are_refused(variable: str, said: str):
    with pytest.raises(ValueError, match=f"{variable}: .*{said}"):
        MoldauContainer().with_env(variable, "1")
