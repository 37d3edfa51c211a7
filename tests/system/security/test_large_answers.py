"""Answers of megabytes over TLS."""

from __future__ import annotations

import socket
import ssl
import uuid

import pytest

from moldau.client import NewTopic, TopicPartition
from moldau.client.sync import Admin, Consumer, Producer
from moldau.protocol.headers import encode_request
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from tests.system.security.nodes import HOST, SecuredNode


@pytest.fixture
def topic(node: SecuredNode) -> str:
    name = f"t-{uuid.uuid4().hex}"
    with Admin(node.address("PLAINTEXT")) as admin:
        admin.create_topics([NewTopic(name)])
    return name


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
    context = ssl.create_default_context(cafile=str(node.trust_path))
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
