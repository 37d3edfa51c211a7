"""Every client over every listener: produce, consume in a group, and be refused."""

from __future__ import annotations

import asyncio
import socket
import ssl
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import pytest

from moldau.client import NewTopic, TopicPartition
from moldau.client.sync import Admin, Consumer, Producer
from moldau.protocol.headers import encode_request
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.testing import wait_until
from tests.interop.kafka_python import kafka
from tests.system.security.nodes import HOST, SecuredNode, keystore

VALUES = {b"1", b"2", b"3"}


class Way(NamedTuple):
    """How a client comes in."""

    listener: str
    protocol: str
    mechanism: str | None = None
    user: str | None = None
    has_certificate: bool = False

    @property
    def password(self) -> str | None:
        return (
            None
            if self.user is None
            else {"alice": "a-secret"}.get(self.user, f"{self.user[0]}-secret")
        )


WAYS = {
    "SSL": Way("SSL", "SSL"),
    "mTLS": Way("MTLS", "SSL", has_certificate=True),
    "PLAIN": Way("SASL_SSL", "SASL_SSL", "PLAIN", "alice"),
    "PLAIN without TLS": Way("SASL_PLAINTEXT", "SASL_PLAINTEXT", "PLAIN", "alice"),
    "SCRAM-SHA-256": Way("SASL_SSL", "SASL_SSL", "SCRAM-SHA-256", "carol"),
    "SCRAM-SHA-512": Way("SASL_SSL", "SASL_SSL", "SCRAM-SHA-512", "dave"),
    "SCRAM-SHA-512 without TLS": Way("SASL_PLAINTEXT", "SASL_PLAINTEXT", "SCRAM-SHA-512", "dave"),
}


@pytest.fixture(scope="session")
def certificate(node: SecuredNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a client that the rules call orders-client."""
    return keystore(
        node.authority,
        tmp_path_factory.mktemp("client") / "client.pem",
        "client",
        organization_name="moldau",
        organization_unit_name="orders",
    )


@pytest.fixture
def topic(node: SecuredNode) -> str:
    name = f"t-{uuid.uuid4().hex}"
    with Admin(node.address("PLAINTEXT")) as admin:
        admin.create_topics([NewTopic(name)])
    return name


def with_ours(node: SecuredNode, way: Way, topic: str, certificate: Path) -> set[bytes]:
    settings: dict[str, Any] = {"security_protocol": way.protocol}
    if "SSL" in way.protocol:
        settings |= node.trust
    if way.has_certificate:
        settings["ssl_keystore_location"] = str(certificate)
    if way.mechanism is not None:
        settings |= {
            "sasl_mechanism": way.mechanism,
            "sasl_username": way.user,
            "sasl_password": way.password,
        }
    bootstrap = node.address(way.listener)
    with Producer(bootstrap, **settings) as producer:
        for value in VALUES:
            producer.send(topic, value)
    with Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe([topic])
        return {consumer.getone().value or b"" for _ in VALUES}


def with_librdkafka(node: SecuredNode, way: Way, topic: str, certificate: Path) -> set[bytes]:
    settings: dict[str, Any] = {
        "bootstrap.servers": node.address(way.listener),
        "security.protocol": way.protocol,
        "ssl.ca.location": str(node.trust_path),
    }
    if way.has_certificate:
        settings |= {
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(certificate),
        }
    if way.mechanism is not None:
        settings |= {
            "sasl.mechanism": way.mechanism,
            "sasl.username": way.user,
            "sasl.password": way.password,
        }
    producer = confluent_kafka.Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: set[bytes] = set()

    def read_all() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.add(message.value())
        return found == VALUES

    try:
        wait_until(read_all, what="the records")
    finally:
        consumer.close()
    return found


def python_context(node: SecuredNode, way: Way, certificate: Path) -> ssl.SSLContext | None:
    if "SSL" not in way.protocol:
        return None
    context = ssl.create_default_context(cafile=str(node.trust_path))
    if way.has_certificate:
        context.load_cert_chain(certificate)
    return context


def python_settings(node: SecuredNode, way: Way, certificate: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": node.address(way.listener),
        "security_protocol": way.protocol,
        "ssl_context": python_context(node, way, certificate),
    }
    if way.mechanism is not None:
        settings |= {
            "sasl_mechanism": way.mechanism,
            "sasl_plain_username": way.user,
            "sasl_plain_password": way.password,
        }
    return settings


def with_aiokafka(node: SecuredNode, way: Way, topic: str, certificate: Path) -> set[bytes]:
    settings = python_settings(node, way, certificate)

    async def travel() -> set[bytes]:
        producer = aiokafka.AIOKafkaProducer(**settings)
        await producer.start()
        try:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **settings
        )
        await consumer.start()
        try:
            async with asyncio.timeout(60):
                return {(await consumer.getone()).value for _ in VALUES}
        finally:
            await consumer.stop()

    return asyncio.run(travel())


def with_kafka_python(node: SecuredNode, way: Way, topic: str, certificate: Path) -> set[bytes]:
    settings = python_settings(node, way, certificate)
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value).get(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
        **settings,
    )
    try:
        return {next(consumer).value for _ in VALUES}
    finally:
        consumer.close()


CLIENTS: dict[str, Callable[[SecuredNode, Way, str, Path], set[bytes]]] = {
    "moldau": with_ours,
    "confluent-kafka": with_librdkafka,
    "aiokafka": with_aiokafka,
    "kafka-python": with_kafka_python,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_records_travel(
    node: SecuredNode,
    topic: str,
    certificate: Path,
    client: Callable[[SecuredNode, Way, str, Path], set[bytes]],
    way: Way,
) -> None:
    assert client(node, way, topic, certificate) == VALUES


def test_megabytes_over_tls_go_through_slow_readers_too(node: SecuredNode, topic: str) -> None:
    """Regions of files that are read and encrypted, and a reader that takes its time."""
    settings = {"security_protocol": "SSL", **node.trust}
    values = [b"%06d" % number * 10_000 for number in range(300)]
    with Producer(node.address("SSL"), compression_type="none", **settings) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
    with Consumer(node.address("SSL"), auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [consumer.getone().value for _ in values] == values
    context = python_context(node, WAYS["SSL"], node.keystore)
    assert context is not None
    with (
        socket.create_connection((HOST, node.port("SSL"))) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as slow,
    ):
        slow.settimeout(60)
        size = _fetch(slow, topic)
        received = 0
        while received < size:
            piece = slow.recv(1_000)
            assert piece
            received += len(piece)
    assert size > 10_000_000


def _fetch(connection: ssl.SSLSocket, topic: str) -> int:
    """Ask for everything in a topic; how long the answer is that follows."""
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=1_000,
        min_bytes=1,
        max_bytes=50_000_000,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[FetchPartition(partition=0, partition_max_bytes=50_000_000)],
            )
        ],
    )
    parts = encode_request(request, api_version=11, correlation_id=1, client_id="slow")
    connection.sendall(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]
    head = b""
    while len(head) < 4:
        head += connection.recv(4 - len(head))
    return int.from_bytes(head)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka_is_told_of_a_wrong_password(node: SecuredNode, mechanism: str) -> None:
    codes: list[int] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.address("SASL_SSL"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(node.trust_path),
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": "wrong",
            "error_cb": lambda error: codes.append(error.code()),
        }
    )

    def told() -> bool:
        producer.poll(0.05)
        return bool(codes)

    wait_until(told, what="the refusal")
    assert confluent_kafka.KafkaError._AUTHENTICATION in codes
