"""compose.yaml's nodes as processes: they found a cluster, are healthy, stop and come back, and
expose what alerts and dashboard ask for.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from confluent_kafka import KafkaException, Producer

from moldau.client import (
    Admin,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    QuorumDescription,
    QuorumReplica,
    TopicPartition,
)
from moldau.client.sync import Consumer as SyncConsumer
from moldau.config import read_properties_file
from moldau.protocol.types import uuid_from_base64, uuid_to_base64
from tests.deploy.files import DEPLOY, compose_variables, yaml_of
from tests.deploy.local_nodes import LocalNode, LocalNodes
from tests.deploy.promql import (
    OF_PROMETHEUS,
    OF_SECURED,
    TARGET_LABELS,
    Selector,
    alerts,
    dashboard_queries,
    is_series_of,
    selectors,
    variable_queries,
)
from tests.deploy.test_compose import BROKERS, CONTROLLERS
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="every node has a loopback address"),
]

Result = TypeVar("Result")

RECORD_COUNT = 300
TOPIC = "flights"
READER = {"group.id": "readers", "auto.offset.reset": "earliest"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    with LocalNodes(tmp_path_factory.mktemp("compose")) as running:
        yield running


@pytest.fixture(scope="module")
def records(cluster: LocalNodes) -> int:
    """A topic made with the cluster's own defaults, and records in it."""

    async def create(admin: Admin) -> None:
        await admin.create_topics([NewTopic(TOPIC, 3)])

    with_admin(create, cluster.client_properties)
    producer = Producer({**of_librdkafka(cluster), "acks": "all"})
    for number in range(RECORD_COUNT):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    return RECORD_COUNT


def of_librdkafka(cluster: LocalNodes) -> dict[str, object]:
    """The super user's settings by librdkafka's names."""
    given = cluster.client_properties
    password = given["sasl.jaas.config"].partition('password="')[2].partition('"')[0]
    return {
        **{key: given[key] for key in ("bootstrap.servers", "security.protocol", "sasl.mechanism")},
        "sasl.username": "admin",
        "sasl.password": password,
        "ssl.ca.location": str(cluster.secrets / "ca.pem"),
        "log_level": 0,
    }


def record_count(cluster: LocalNodes) -> int:
    """How many records the topic's first partition has, read as a client does."""
    count = 0
    settings = {**cluster.client_properties, "auto.offset.reset": "earliest"}
    with SyncConsumer(config=settings) as consumer:
        partition = TopicPartition(TOPIC, 0)
        end = consumer.end_offsets([partition])[partition]
        consumer.assign([partition])
        while count < end:
            consumer.getone()
            count += 1
    return count


def with_admin(work: Callable[[Admin], Awaitable[Result]], settings: dict[str, str]) -> Result:
    """Ask the cluster something."""

    async def run() -> Result:
        async with Admin(config=settings) as admin:
            return await work(admin)

    return asyncio.run(run())


def quorum(cluster: LocalNodes) -> QuorumDescription:
    """The quorum as its leader sees it."""

    async def describe(admin: Admin) -> QuorumDescription:
        return await admin.describe_metadata_quorum()

    return with_admin(describe, cluster.controller_properties)


def test_the_named_controllers_found_the_quorum(cluster: LocalNodes):
    variables = compose_variables()
    described = quorum(cluster)
    assert {(each.replica_id, uuid_to_base64(each.directory_id)) for each in described.voters} == {
        (number, variables[f"DIRECTORY_ID_{number}"]) for number in (101, 102, 103)
    }
    assert {each.replica_id for each in described.observers} == {1, 2, 3}
    listed = cluster.nodes["broker-1"].run("moldau", "brokers", "list", "--json")
    assert json.loads(listed.stdout)["cluster_id"] == variables["CLUSTER_ID"]


def test_without_a_name_only_open_pages_are_read(cluster: LocalNodes):
    node = cluster.nodes["broker-1"]
    assert [node.get(page)[0] for page in ("/readyz", "/metrics")] == [200, 200]
    assert node.get("/api/v1/cluster")[0] in (401, 403)


def test_clients_from_outside_and_strangers(cluster: LocalNodes):
    """A client without the password, or without TLS, is refused."""
    outside = read_properties_file(str(cluster.secrets / "client/profiles/outside.properties"))
    assert outside["bootstrap.servers"].startswith("localhost:")
    assert outside["sasl.jaas.config"] == cluster.client_properties["sasl.jaas.config"]
    wrong = {**of_librdkafka(cluster), "sasl.password": "wrong"}
    plain = {"bootstrap.servers": cluster.bootstrap_server, "log_level": 0}
    for settings in (wrong, plain):
        producer = Producer(settings)
        with pytest.raises(KafkaException):
            producer.list_topics(timeout=3)


def test_certificates_are_renewed_while_nodes_run(cluster: LocalNodes):
    """The service `certificates` again, with all of them due; and `moldau certificates` there."""
    processes = [node.process.pid for node in cluster.nodes.values() if node.process is not None]
    certificates = cluster.certificates
    before = {name: (cluster.secrets / name / "certificate.pem").read_bytes() for name in BROKERS}
    wanted = json.loads(certificates.environment["MOLDAU_SECRETS"])
    certificates.environment["MOLDAU_SECRETS"] = json.dumps({**wanted, "renew_days": 365})
    made = certificates.run(*certificates.service["command"])
    assert made.returncode == 0, made.stderr
    for name, content in before.items():
        assert (cluster.secrets / name / "certificate.pem").read_bytes() != content
    shown = certificates.run("moldau", "certificates", "show", str(cluster.secrets), "--json")
    assert shown.returncode == 0, shown.stderr
    assert "broker-1" in {each["name"] for each in json.loads(shown.stdout)}
    listed = cluster.nodes["broker-2"].run("moldau", "topics", "list")
    assert listed.returncode == 0, listed.stderr
    assert processes == [
        node.process.pid for node in cluster.nodes.values() if node.process is not None
    ]


def test_topics_are_replicated_by_default(cluster: LocalNodes, records: int):
    """What brokers say counts for nothing here: the controllers decide."""
    described = cluster.nodes["broker-2"].run("moldau", "topics", "describe", TOPIC, "--json")
    [topic] = json.loads(described.stdout)
    assert [sorted(each["replicas"]) for each in topic["partitions"]] == [[1, 2, 3]] * 3

    async def describe(admin: Admin) -> str | None:
        topic = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
        return (await admin.describe_configs([topic]))[topic]["min.insync.replicas"].value

    assert with_admin(describe, cluster.client_properties) == "2"
    assert record_count(cluster) == records


@pytest.mark.parametrize("name", ["broker-1", "controller-101"])
def test_the_health_check_of_compose(cluster: LocalNodes, name: str):
    node = cluster.nodes[name]
    _, *command = node.service["healthcheck"]["test"]
    assert node.run(*command).returncode == 0


def test_a_broker_stops_in_order_and_comes_back_with_its_data(cluster: LocalNodes, records: int):
    node = cluster.nodes["broker-3"]
    waited = node.run("moldau-node", "wait-in-sync", "/etc/moldau/server.properties")
    assert (waited.returncode, waited.stderr) == (0, "")
    assert cluster.stop(node) == 0
    _, *command = node.service["healthcheck"]["test"]
    assert node.run(*command).returncode == 1
    assert (node.data / "data" / ".kafka_cleanshutdown").exists()
    cluster.start(node)
    cluster.wait_ready(node)
    assert node.log.count("formatted ") == 1
    assert record_count(cluster) == records


def test_a_controller_whose_disk_is_lost_does_not_vote_as_the_one_it_was(cluster: LocalNodes):
    # The leader would take with it what it knows of its own log, in a cluster as young as this one.
    leader = quorum(cluster).leader_id
    number = next(each for each in (103, 102) if each != leader)
    lost = uuid_from_base64(compose_variables()[f"DIRECTORY_ID_{number}"])

    def voter() -> QuorumReplica:
        [found] = [each for each in quorum(cluster).voters if each.replica_id == number]
        return found

    until(lambda: voter().log_end_offset > 0, what=f"the leader has heard of {number}")
    node = cluster.nodes[f"controller-{number}"]
    assert cluster.stop(node) == 0
    shutil.rmtree(node.data)
    node.data.mkdir()
    cluster.start(node)
    cluster.wait_ready(node)
    assert "joins as an observer" in node.log
    assert voter().directory_id == lost

    # The steps that docs/operations.md gives.
    for words in (
        *[("remove-controller", "-i", str(number), "-d", uuid_to_base64(lost))],
        *[("add-controller", "-c", "/etc/moldau/server.properties")],
    ):
        done = node.run("moldau", "quorum", *words)
        assert done.returncode == 0, done.stderr
    assert voter().directory_id != lost


# -- metrics ---------------------------------------------------------------------------------------


def exposed(nodes: list[LocalNode]) -> dict[str, set[str]]:
    """The labels of every family, over some nodes."""
    labels: dict[str, set[str]] = {}
    for node in nodes:
        status, text = node.get("/metrics")
        assert status == 200
        for family in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
            labels.setdefault(family, set())
        for name, inside in re.findall(r"^(\w+)\{(.*)\} \S+$", text, re.MULTILINE):
            family = next(each for each in labels if is_series_of(name, {each}))
            labels[family] |= set(re.findall(r'(\w+)="', inside))
    return labels


def wanted() -> list[Selector]:
    """What alerts and dashboard ask for."""
    texts = [each["expr"] for each in alerts()]
    texts += [text for _, text, _ in dashboard_queries()]
    texts += [text for text, _ in variable_queries()]
    return [selector for text in texts for selector in selectors(text)]


def test_what_alerts_and_dashboard_ask_for_is_served(cluster: LocalNodes, records: int):
    with SyncConsumer(config={**cluster.client_properties, **READER}) as consumer:
        consumer.subscribe([TOPIC])
        consumer.getone()
        consumer.commit()  # a group with a member, and with an offset
        served = exposed([cluster.nodes[name] for name in BROKERS + CONTROLLERS])
    missing = []
    for selector in wanted():
        if selector.metric in OF_PROMETHEUS | OF_SECURED:
            continue
        families = [each for each in served if selector.is_one_of({each})]
        known = {label for each in families for label in served[each]} | TARGET_LABELS
        if not families or not selector.labels <= known:
            missing.append(selector)
    assert missing == []


def test_controllers_serve_what_is_asked_of_controllers(cluster: LocalNodes):
    served = exposed([cluster.nodes[name] for name in CONTROLLERS])
    for name in (
        "kafka_controller_kafkacontroller_activecontrollercount",
        "kafka_network_socketserver_networkprocessoravgidlepercent",
        "kafka_server_dataloop_lagms",
        "process_open_fds",
    ):
        assert name in served


def test_targets_of_prometheus_answer(cluster: LocalNodes):
    [job] = yaml_of(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    for part in job["static_configs"]:
        for target in part["targets"]:
            status, text = cluster.nodes[target.partition(":")[0]].get(job["metrics_path"])
            assert status == 200
            assert "process_start_time_seconds" in text
