"""Prometheus exposition: Kafka's names, one family a name, parsed by Prometheus' own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moldau.node.http.metrics import prometheus_name, render, snapshot
from moldau.runtime.telemetry.metrics import Registry


@pytest.mark.parametrize(
    ("jmx_name", "expected"),
    [
        (
            "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec",
            "kafka_server_brokertopicmetrics_messagesin",
        ),
        (
            "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
            "kafka_log_logmanager_offlinelogdirectorycount",
        ),
        (
            "kafka.server:type=socket-server-metrics,name=connection-count",
            "kafka_server_socket_server_metrics_connection_count",
        ),
    ],
)
def test_names(jmx_name: str, expected: str) -> None:
    assert prometheus_name(jmx_name) == expected


def test_what_prometheus_reads_is_what_was_counted() -> None:
    registry = Registry(lambda: 0.0)
    total = "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec"
    registry.counter(total).add(7)
    registry.counter(total, topic="a").add(5)
    registry.gauge("kafka.server:type=ReplicaManager,name=PartitionCount", lambda: 3)
    times = registry.histogram(
        "kafka.network:type=RequestMetrics,name=TotalTimeMs", bounds=(1.0, 10.0), request="Fetch"
    )
    for value in (0.5, 5.0, 50.0):
        times.observe(value)
    families = {
        family.name: family
        for family in text_string_to_metric_families(render(snapshot(registry)).decode())
    }
    bytes_in = families["kafka_server_brokertopicmetrics_bytesin"]
    assert {s.labels["topic"]: s.value for s in bytes_in.samples} == {"": 7, "a": 5}
    assert families["kafka_server_replicamanager_partitioncount"].samples[0].value == 3
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["kafka_network_requestmetrics_totaltimems"].samples
        if sample.name.endswith("_bucket")
    }
    assert buckets == {"1.0": 1, "10.0": 2, "+Inf": 3}
