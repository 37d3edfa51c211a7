"""The HTTP listener of a running node: health, JSON, metrics, logs."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from moldau.client import NewTopic, TopicPartition, sync
from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.deploy.promql import OF_SECURED
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until
from tests.system.http.conftest import Http
from tests.system.processes import properties, run_node

OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
RECORD_COUNT = 25


@pytest.fixture(scope="module")
def topic(cluster: Cluster, topics: TopicMaker) -> str:
    """A topic with three partitions and some records in the first."""
    name = topics.create(partitions=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_server})
    for number in range(RECORD_COUNT):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(20) == 0
    return name


def series(listener: Http) -> dict[str, float]:
    """Every series by its name with labels."""
    answer = listener.ask("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}


def test_health(listener: Http):
    for path in ("/healthz", "/readyz"):
        assert listener.ask(path).status == 200
        head = listener.ask(path, "HEAD")
        assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/api/v1/topics"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_other_methods_are_not_allowed(listener: Http, path: str, method: str):
    answer = listener.ask(path, method, b"{}")
    assert answer.status == 405
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("path", ["/", "/api", "/api/v1/planets", "/metrics/x", "/..%2f..%2fetc"])
def test_paths_that_are_none(listener: Http, path: str):
    assert listener.ask(path).status == 404


def test_what_is_no_http_disturbs_no_other_client(cluster: Cluster, listener: Http):
    host, port = listener._address
    with socket.create_connection((host, port), 10) as raw:
        raw.sendall(b"\x00\x00\x00\x10\x00\x12\x00\x00\r\n\r\n")
        assert raw.recv(1_000).startswith(b"HTTP/1.")
    assert listener.ask("/readyz").status == 200
    assert listener.ask("/healthz?x=" + "y" * 20_000).status in (400, 414)


def test_cluster_document(cluster: Cluster, listener: Http):
    document = listener.ask("/api/v1/cluster").document
    assert document["broker_id"] == document["controller_id"] == 1
    [broker] = document["brokers"]
    assert broker["listeners"] == {"PLAINTEXT": cluster.bootstrap_server}
    assert not broker["fenced"]
    assert document["features"]["metadata.version"] > 0


def test_topic_documents(listener: Http, topic: str):
    listed = listener.ask("/api/v1/topics").document
    assert topic in [each["name"] for each in listed["topics"]]
    assert listed["next_after"] is None
    after = listener.ask(f"/api/v1/topics?after={topic}").document
    assert all(each["name"] > topic for each in after["topics"])
    document = listener.ask(f"/api/v1/topics/{topic}").document
    assert document["partition_count"] == 3
    first = document["partitions"][0]
    assert (first["leader"], first["isr"], first["offline"]) == (1, [1], False)
    assert first["log_end_offset"] == first["high_watermark"] == RECORD_COUNT
    assert first["size_bytes"] > 0
    rest = listener.ask(f"/api/v1/topics/{topic}?first_partition=2").document
    assert [each["partition"] for each in rest["partitions"]] == [2]


def test_wrong_questions(listener: Http, topic: str):
    missing = listener.ask("/api/v1/topics/no-such-topic")
    assert missing.status == 404
    assert "no-such-topic" in missing.document["error"]
    for number in ("x", "-1", "1e3", "99999999999", "%D9%A3"):
        wrong = listener.ask(f"/api/v1/topics/{topic}?first_partition={number}")
        assert wrong.status == 400
        assert "first_partition" in wrong.document["error"]


def test_log_directories(cluster: Cluster, listener: Http, topic: str):
    [directory] = listener.ask("/api/v1/log-directories").document["log_directories"]
    assert directory["directory"] == str(cluster.data_directory())
    assert directory["error"] is None
    shown = {(each["topic"], each["partition"]) for each in directory["partitions"]}
    assert {(topic, 0), (topic, 1), (topic, 2)} <= shown


def test_metrics_count_what_happened(listener: Http, topic: str):
    values = series(listener)
    prefix = "kafka_server_brokertopicmetrics"
    assert values[f'{prefix}_messagesin_total{{topic="{topic}"}}'] == RECORD_COUNT
    assert values[f'{prefix}_messagesin_total{{topic=""}}'] >= RECORD_COUNT
    labels = f'{{partition="0",topic="{topic}"}}'
    assert values[f"kafka_log_log_logendoffset{labels}"] == RECORD_COUNT
    assert values[f"kafka_log_log_size{labels}"] > 0
    assert values["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert values["kafka_controller_kafkacontroller_globalpartitioncount"] >= 3
    assert values["kafka_controller_kafkacontroller_offlinepartitionscount"] == 0
    assert values["kafka_server_kafkaserver_brokerstate"] == 3
    assert values['kafka_network_requestmetrics_requests_total{request="Produce"}'] > 0
    assert values["process_resident_memory_bytes"] > 10_000_000
    assert 0 <= values["kafka_network_socketserver_networkprocessoravgidlepercent"] <= 1


@pytest.fixture
def limited(cluster: Cluster, topic: str) -> str:
    """A client that quotas hold for, which has produced, fetched and made a topic."""
    name = "limited"
    config: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_server, "client_id": name}
    limits = dict.fromkeys(
        ("producer_byte_rate", "consumer_byte_rate", "request_percentage"), 1_000_000_000
    )
    with Admin(config=config) as admin:
        quotas = {(("client-id", name),): {**limits, "controller_mutation_rate": 1_000}}
        assert [*admin.alter_client_quotas(quotas).values()] == [None]
        admin.create_topics([NewTopic("of-the-limited")])
    with sync.Producer(config=config) as producer:
        producer.send("of-the-limited", b"a record")
    with sync.Consumer(config={**config, "auto_offset_reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("of-the-limited", 0)])
        assert consumer.getone().value == b"a record"
    return name


def test_operators_guide_lists_exactly_the_metrics_there_are(listener: Http, limited: str):
    mine = [each for each in series(listener) if f'client_id="{limited}"' in each]
    assert len(mine) == 8, "three quotas of brokers and one of controllers, two series each"
    exposed = set(re.findall(r"^# TYPE (\S+)", listener.ask("/metrics").body.decode(), re.M))
    documented = set(
        re.findall(r"^\| `((?:kafka|process|python)_[a-z_]+)` \|", OPERATIONS.read_text(), re.M)
    )
    assert documented - OF_SECURED == exposed


def test_logs_are_one_json_object_a_line(cluster: Cluster, topic: str):
    def lines() -> list[dict[str, str]]:
        text = cluster.node().log_path.read_text()
        return [json.loads(line) for line in text.splitlines()]

    until(lambda: any(topic in line["event"] for line in lines()), what="the topic is logged")
    for line in lines():
        assert {"timestamp", "level", "logger", "event"} <= set(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["timestamp"])
        assert line["logger"].startswith("moldau")
    [serves] = [line for line in lines() if line["event"] == "node serves"]
    assert serves["address"] == cluster.bootstrap_server


@pytest.mark.parametrize("address", ["nowhere", "localhost:99999", "::1:80", "host:", "a b:1"])
def test_an_address_that_is_none_is_a_mistake_in_the_configuration(address: str, tmp_path: Path):
    ended = run_node(properties(tmp_path, moldau_http_listener=address))
    assert ended.status == 2
    assert f"moldau.http.listener={address}: must be HOST:PORT" in ended.complaint


def test_an_address_of_another_machine(tmp_path: Path):
    ended = run_node(properties(tmp_path, moldau_http_listener="192.0.2.1:0"))
    assert ended.status == 1
    assert "192.0.2.1" in ended.complaint


def test_the_digest_changes_with_the_metadata_and_with_nothing_else(
    listener: Http, topics: TopicMaker
):
    def metadata() -> dict[str, object]:
        answer = listener.ask("/api/v1/metadata")
        assert answer.status == 200
        document: dict[str, object] = json.loads(answer.body)
        return document

    before = metadata()
    assert re.fullmatch("[0-9a-f]{64}", str(before["digest"]))
    assert metadata() == before
    topics.create()
    until(lambda: metadata()["digest"] != before["digest"], what="another digest")
    assert metadata()["last_applied_offset"] > before["last_applied_offset"]  # type: ignore[operator]
