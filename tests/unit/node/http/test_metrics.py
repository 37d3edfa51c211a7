"""Prometheus exposition: Kafka's names, one family a name, parsed by Prometheus' own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moldau.node.http.metrics import Sample, prometheus_name, render, snapshot
from moldau.runtime.telemetry.metrics import Registry
from tests.kit.counting import Newcomers, collector_at_rest


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


def test_a_family_has_all_labels_of_its_series_and_a_histogram_its_sum() -> None:
    registry = Registry(lambda: 0.0)
    name = "kafka.server:type=Test,name=Things"
    for labels in ({"b": "1"}, {"a": "2", "b": "3"}):
        registry.counter(name, **labels).add(1)
    times = registry.histogram("kafka.server:type=Test,name=Times", bounds=(1.0,), topic="t")
    for value in (0.5, 0.25, 7.0):
        times.observe(value)
    text = render(snapshot(registry)).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    things = families["kafka_server_test_things"]
    assert (things.type, things.documentation) == ("counter", name)
    assert [each.labels for each in things.samples if each.value] == [
        {"a": "", "b": "1"},
        {"a": "2", "b": "3"},
    ]
    found = {
        (each.name.rpartition("_")[2], each.labels.get("le")): each.value
        for each in families["kafka_server_test_times"].samples
    }
    assert found == {
        ("bucket", "1.0"): 2,
        ("bucket", "+Inf"): 3,
        ("count", None): 3,
        ("sum", None): 7.75,
    }
    labels = [each.labels["topic"] for each in families["kafka_server_test_times"].samples]
    assert set(labels) == {"t"}


def test_figures_of_the_process_are_among_them() -> None:
    text = render([]).decode()
    for name in ("process_resident_memory_bytes", "python_gc_collections_total"):
        assert f"\n# TYPE {name.removesuffix('_total')}" in text or f"# TYPE {name}" in text


def test_a_page_leaves_no_cycle() -> None:
    registry = Registry(lambda: 0.0)
    registry.counter("kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec").add()
    new = Newcomers(Sample)
    with collector_at_rest():
        assert b"messagesin" in render(snapshot(registry))
        assert new.objects() == []
