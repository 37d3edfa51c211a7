"""Client quotas made and shown by Kafka's own tool, and felt by Kafka's own producer."""

from __future__ import annotations

import re

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.interop.java.tools import JavaTools


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
