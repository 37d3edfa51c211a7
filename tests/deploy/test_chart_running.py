"""The chart's pods and jobs as processes, from the rendered files: secured, with users, renewed
while they run, and with a broker less.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography import x509

from moldau.client import AuthenticationFailed, TopicAuthorizationFailed
from moldau.client.sync import Consumer
from moldau.client.sync import Producer as OwnProducer
from tests.deploy.chart_pods import ChartPods, Pod
from tests.deploy.helm_chart import Document, rendered

pytestmark = [
    pytest.mark.real,
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="every pod has a loopback address"),
]

ALL_IN_ONE = yaml.safe_load("""
combined: true
brokers:
  replicas: 4
  scaleDown: move
security:
  users:
    - name: alice
      acls: [--producer --topic flights, --consumer --topic flights --group board]
""")
ONE_NODE = {"combined": True, "controllers": {"replicas": 1}, "brokers": {"replicas": 1}}
APART = {"controllers": {"replicas": 1}, "brokers": {"replicas": 1}}
TOPIC = "flights"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartPods]:
    home = tmp_path_factory.mktemp("chart")
    with ChartPods(rendered(ALL_IN_ONE), home) as running:
        made = running.run_job("demo-moldau-users")
        assert made.returncode == 0, made.stderr
        yield running


@pytest.fixture(scope="module")
def trust(cluster: ChartPods, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file that NOTES.txt has clients make."""
    path = tmp_path_factory.mktemp("client") / "ca.crt"
    path.write_bytes(cluster.api.data("demo-moldau-admin-tls")["ca.crt"])
    return str(path)


def of_librdkafka(settings: dict[str, str]) -> dict[str, Any]:
    renamed = {**settings, "ssl.ca.location": settings["ssl.truststore.location"]}
    del renamed["ssl.truststore.location"]
    return {**renamed, "log_level": 0}


@pytest.fixture(scope="module")
def alice(cluster: ChartPods, trust: str) -> dict[str, str]:
    return {
        "bootstrap.servers": cluster.address(),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": cluster.api.data("demo-moldau-users")["alice"].decode(),
        "ssl.truststore.location": trust,
    }


def broker(cluster: ChartPods, number: int = 1) -> Pod:
    return cluster.pods[f"demo-moldau-broker-{number}"]


# -- who comes in ----------------------------------------------------------------------------------


def test_commands_in_a_pod_are_the_super_users(cluster: ChartPods):
    made = broker(cluster).run("moldau", "topics", "create", TOPIC, "--partitions", "8")
    assert made.returncode == 0, made.stderr
    described = broker(cluster, 4).run("moldau", "topics", "describe", TOPIC, "--json")
    [topic] = json.loads(described.stdout)
    assert {len(row["replicas"]) for row in topic["partitions"]} == {3}
    for option in ((), ("--profile", "controllers")):
        voters = broker(cluster, 2).run("moldau", "quorum", "replication", "--json", *option)
        assert voters.returncode == 0, voters.stderr
        followers = [each for each in json.loads(voters.stdout) if each["status"] != "Observer"]
        assert {each["node_id"] for each in followers} == {1, 2, 3}


def test_a_client_that_logs_in_produces_and_consumes(cluster: ChartPods, alice: dict[str, str]):
    producer = Producer(of_librdkafka(alice))
    failed: list[object] = []
    for number in range(100):
        producer.produce(TOPIC, b"%d" % number, on_delivery=lambda e, _: failed.append(e))
    assert producer.flush(30) == 0
    assert [each for each in failed if each is not None] == []
    with Consumer(config={**alice, "group.id": "board", "auto.offset.reset": "earliest"}) as reader:
        reader.subscribe([TOPIC])
        assert len({reader.getone().value for _ in range(100)}) == 100


def test_a_wrong_password_is_refused(alice: dict[str, str]):
    with (
        OwnProducer(config={**alice, "sasl.password": "wrong"}) as producer,
        pytest.raises(AuthenticationFailed),
    ):
        producer.send(TOPIC, b"x")


def test_what_no_acl_allows_is_refused(alice: dict[str, str]):
    with OwnProducer(config=alice) as producer, pytest.raises(TopicAuthorizationFailed):
        producer.send("others", b"x")


@pytest.mark.parametrize("port", ["9091", "9092", "9093"])
def test_nothing_is_said_without_tls(cluster: ChartPods, port: str):
    """A request of ApiVersions in plain text, at every listener: no byte comes back."""
    address = (broker(cluster).address, int(cluster.ports[port]))
    with socket.create_connection(address, 10) as plain:
        plain.sendall(bytes.fromhex("0000000e001200000000000100000474657374")[:18])
        plain.shutdown(socket.SHUT_WR)
        answer = plain.recv(100)
    assert not answer or answer[0] == 21  # an alert of TLS


@pytest.mark.parametrize("port", ["9091", "9093"])
def test_no_client_comes_to_a_listener_between_nodes(
    cluster: ChartPods, alice: dict[str, str], port: str
):
    client = AdminClient({**of_librdkafka(alice), "bootstrap.servers": cluster.address(port)})
    with pytest.raises(KafkaException) as refused:
        client.list_topics(timeout=3)
    assert refused.value.args[0].code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


def test_pages_with_secrets_want_a_password(cluster: ChartPods):
    pod, password = broker(cluster), cluster.api.data("demo-moldau-admin")["password"].decode()
    assert pod.get("/metrics") == 200
    assert pod.get("/api/v1/cluster") == 401
    assert pod.get("/api/v1/cluster", password) == 200


# -- what runs beside ------------------------------------------------------------------------------


def test_the_probe_that_restarts_pods_answers(cluster: ChartPods):
    for pod in cluster.pods.values():
        done = pod.run(*pod.container["livenessProbe"]["exec"]["command"])
        assert done.returncode == 0, done.stderr


def test_a_broker_that_is_to_stop_is_answered(cluster: ChartPods):
    pod = broker(cluster, 2)
    words = pod.container["lifecycle"]["preStop"]["exec"]["command"]
    done = pod.run(*words)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_hook_changes_nothing_when_it_runs_again(cluster: ChartPods):
    before = list(cluster.api.changed)
    done = cluster.run_job("demo-moldau-secrets", role="demo-moldau-secrets-hook")
    assert (done.returncode, done.stderr) == (0, "")
    assert cluster.api.changed == before
    assert sorted(cluster.api.secrets) == [
        "demo-moldau-admin",
        "demo-moldau-admin-tls",
        "demo-moldau-authority",
        "demo-moldau-broker-tls",
        "demo-moldau-users",
    ]


def serial_number(pod: Pod, port: str, trust: str) -> int:
    """The number of the certificate that a listener shows to a new connection, which is checked."""
    context = ssl.create_default_context(cafile=trust)
    with (
        socket.create_connection((pod.address, int(pod.ports[port])), 10) as plain,
        context.wrap_socket(plain, server_hostname=pod.address) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_renewed_certificates_are_shown_without_a_restart(
    cluster: ChartPods, trust: str, alice: dict[str, str]
):
    ports = ("9092", "9091", "9093", "8080")
    pods = [broker(cluster, number) for number in (1, 2, 3)]
    processes = [pod.process.pid for pod in pods if pod.process is not None]
    before = {(pod.name, port): serial_number(pod, port, trust) for pod in pods for port in ports}
    with OwnProducer(config=alice) as producer:
        producer.send(TOPIC, b"before")
        soon = {"security": {**ALL_IN_ONE["security"], "certificates": {"renewDays": 365}}}
        due = rendered({**ALL_IN_ONE, **soon}, is_upgrade=True)
        done = cluster.run_job("demo-moldau-secrets", documents=due)
        assert (done.returncode, done.stderr.count("made a certificate")) == (0, 2)
        cluster.refresh()
        for pod in pods:
            for port in ports:
                assert serial_number(pod, port, trust) != before[pod.name, port], (pod.name, port)
        producer.send(TOPIC, b"after, on the connection from before")
    assert [pod.process.pid for pod in pods if pod.process is not None] == processes
    # Nodes connect to one another with them, too.
    stopped = broker(cluster, 3)
    assert cluster.stop(stopped) == 0
    cluster.start(stopped)
    with OwnProducer(config=alice) as producer:
        producer.send(TOPIC, b"after")


# -- fewer brokers ---------------------------------------------------------------------------------


def fewer(mode: str) -> list[Document]:
    values = {**ALL_IN_ONE, "brokers": {"replicas": 3, "scaleDown": mode}}
    return rendered(values, is_upgrade=True, brokers_before=4)


def test_a_broker_goes_when_it_has_been_emptied(cluster: ChartPods):
    """The steps of `helm upgrade --set brokers.replicas=3`."""
    refused = cluster.run_job("demo-moldau-before-scaling", documents=fewer("refuse"))
    assert refused.returncode == 1
    assert "replicas are on brokers that are to go (4): " in refused.stderr
    assert "moldau topics reassign execute --without 4 --wait" in refused.stderr

    moved = cluster.run_job("demo-moldau-before-scaling", documents=fewer("move"))
    assert moved.returncode == 0, moved.stderr
    assert "no replica is on 4" in moved.stderr
    assert cluster.stop(broker(cluster, 4)) == 0

    gone = cluster.run_job("demo-moldau-after-scaling", documents=fewer("move"))
    assert gone.returncode == 0, gone.stderr
    listed = json.loads(broker(cluster).run("moldau", "brokers", "list", "--json").stdout)
    assert [each["broker_id"] for each in listed["brokers"]] == [1, 2, 3]


# -- other sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [ONE_NODE, APART], ids=["one node", "controllers apart"])
def test_smaller_clusters_run(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory):
    # A short name: the path of a health socket has 107 bytes at most.
    with ChartPods(rendered(values), tmp_path_factory.mktemp("size")) as cluster:
        made = broker(cluster).run("moldau", "topics", "create", TOPIC)
        assert made.returncode == 0, made.stderr
        if values is APART:
            # In a controller's pod commands ask controllers, with the super user's certificate.
            pod = cluster.pods["demo-moldau-controller-101"]
            status = pod.run("moldau", "quorum", "status")
            assert status.returncode == 0, status.stderr
            assert "101" in status.stdout
