"""Client quotas made and shown by Kafka's own tool, and felt by Kafka's own producer."""

from __future__ import annotations

import re

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.interop.java.tools import JavaTools


@pytest.mark.timeout(300)
def test_client_quotas_by_kafkas_tool(java: JavaTools) -> None:
    with Cluster() as cluster:
        configs = ("kafka-configs", "--bootstrap-server", cluster.bootstrap_server)
        alice = ("--entity-type", "users", "--entity-name", "alice")
        every_client = ("--entity-type", "clients", "--entity-default")
        address = ("--entity-type", "ips", "--entity-name", "127.0.0.9")
        rates = "producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=12.5"
        java.check(*configs, "--alter", *alice, "--add-config", rates)
        java.check(*configs, "--alter", *alice, *every_client, "--add-config", rates)
        java.check(*configs, "--alter", *every_client, "--add-config", "controller_mutation_rate=5")
        java.check(*configs, "--alter", *address, "--add-config", "connection_creation_rate=3")
        with Admin(cluster.bootstrap_server) as admin:
            assert admin.describe_client_quotas() == {
                (("user", "alice"),): {
                    "producer_byte_rate": 1024,
                    "consumer_byte_rate": 2048,
                    "request_percentage": 12.5,
                },
                (("client-id", None), ("user", "alice")): {
                    "producer_byte_rate": 1024,
                    "consumer_byte_rate": 2048,
                    "request_percentage": 12.5,
                },
                (("client-id", None),): {"controller_mutation_rate": 5},
                (("ip", "127.0.0.9"),): {"connection_creation_rate": 3},
            }
        shown = java.check(*configs, "--describe", *every_client).output
        assert "the default client-id are controller_mutation_rate=5.0" in shown
        shown = java.check(*configs, "--describe", *alice, *every_client).output
        assert "producer_byte_rate=1024.0" in shown
        shown = java.check(*configs, "--describe", *address).output
        assert "connection_creation_rate=3.0" in shown
        java.check(*configs, "--alter", *address, "--delete-config", "connection_creation_rate")
        java.check(*configs, "--alter", *alice, "--delete-config", "producer_byte_rate")
        with Admin(cluster.bootstrap_server) as admin:
            left = admin.describe_client_quotas(any_of=["user"], strict=True)
            assert left[("user", "alice"),].keys() == {"consumer_byte_rate", "request_percentage"}
            assert admin.describe_client_quotas(any_of=["ip"]) == {}


@pytest.mark.timeout(300)
def test_kafkas_producer_is_held_to_its_quota(java: JavaTools) -> None:
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_server
        with Admin(bootstrap) as admin:
            admin.create_topics([NewTopic("t")])
            limited = {(("client-id", "perf-producer-client"),): {"producer_byte_rate": 100_000.0}}
            assert list(admin.alter_client_quotas(limited).values()) == [None]
        # 1.5 MB: ten windows allow 1 MB at once, the rest comes at 100 kB a second.
        done = java.check(
            "kafka-producer-perf-test", "--bootstrap-server", bootstrap, "--topic", "t",
            "--num-records", "1500", "--record-size", "1000", "--throughput", "-1",
            "--print-metrics", "--command-property", "batch.size=16384",
        )  # fmt: skip
        assert "1500 records sent" in done.output
        [longest] = re.findall(r"produce-throttle-time-max:\S*\s*:\s*([\d.]+)", done.output)
        assert float(longest) > 0
