"""The HTTP listener of a real node: metrics, health, JSON."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moldau.testing import Cluster
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until
from tests.system.processes import Writer, read_all

HTTP_TIMEOUT_S = 10

Get = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def get(cluster: Cluster) -> Get:
    """Asks for a path: status and body."""
    announced = until(
        lambda: re.search(r"HTTP listener on (\S+)", cluster.node().log_path.read_text()),
        what="the HTTP listener",
    )
    assert isinstance(announced, re.Match)
    base = f"http://{announced.group(1)}"

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(base + path, timeout=HTTP_TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    return ask


def metrics(get: Get) -> dict[str, float]:
    """Every sample that is a sum: without labels, or with empty ones."""
    status, text = get("/metrics")
    assert status == 200
    families = list(text_string_to_metric_families(text))
    assert len(families) > 20
    assert all(family.documentation for family in families)
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if not any(sample.labels.values())
    }


def document(get: Get, path: str) -> Any:
    status, text = get(path)
    assert status == 200, text
    return json.loads(text)


def test_health_and_readiness(get: Get) -> None:
    assert get("/healthz") == (200, "ok\n")
    assert get("/readyz") == (200, "ready\n")


def test_metrics_count_what_happens(get: Get, cluster: Cluster, topic: str) -> None:
    before = metrics(get)
    writer = Writer(cluster.bootstrap_server, topic)
    writer.send(500, size_bytes=200)
    writer.flush()
    read_all(cluster.bootstrap_server, topic)
    after = metrics(get)

    def growth(name: str) -> float:
        return after[name] - before[name]

    assert growth("kafka_server_brokertopicmetrics_messagesin_total") == 500
    assert growth("kafka_server_brokertopicmetrics_bytesin_total") >= 100_000
    assert growth("kafka_server_brokertopicmetrics_bytesout_total") >= 100_000
    assert after["kafka_server_replicamanager_partitioncount"] >= 1
    assert after["kafka_log_logmanager_offlinelogdirectorycount"] == 0


def test_json_of_cluster_topics_and_directories(
    get: Get, cluster: Cluster, topics: TopicMaker
) -> None:
    topic = topics.create(partitions=2, config={"retention.ms": "1234567"})
    described = document(get, "/api/v1/cluster")
    assert len(described["cluster_id"]) == 22
    (broker,) = described["brokers"]
    assert broker["listeners"] == {"PLAINTEXT": cluster.bootstrap_server}
    assert not broker["fenced"]
    listed = document(get, "/api/v1/topics")["topics"]
    assert {"name": topic, "partition_count": 2}.items() <= next(
        entry for entry in listed if entry["name"] == topic
    ).items()
    one = document(get, f"/api/v1/topics/{topic}")
    assert one["configs"] == {"retention.ms": "1234567"}
    assert [(part["partition"], part["leader"], part["isr"]) for part in one["partitions"]] == [
        (0, 1, [1]),
        (1, 1, [1]),
    ]
    (directory,) = document(get, "/api/v1/log-directories")["log_directories"]
    assert directory["directory"] == str(cluster.data_directory())
    assert {"topic": topic, "partition": 1}.items() <= next(
        entry
        for entry in directory["partitions"]
        if (entry["topic"], entry["partition"]) == (topic, 1)
    ).items()


@pytest.mark.parametrize(
    "path", ["/nothing", "/api/v1/topics/no-such-topic", "/api/v1/topics/%2e%2e", "/api/v2/cluster"]
)
def test_paths_that_are_not_there(get: Get, path: str) -> None:
    assert get(path)[0] == 404
    assert get("/healthz")[0] == 200
