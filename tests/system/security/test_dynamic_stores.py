"""Key and trust stores that change by AlterConfigs while a node runs, under load (KIP-226)."""

from __future__ import annotations

import ssl
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from moldau.client import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    InvalidRequest,
    KafkaError,
    NewTopic,
)
from moldau.client.sync import Admin, Producer
from tests.kit.waiting import until
from tests.system.processes import read_all
from tests.system.security.nodes import HOST, SecuredNode, keystore

OWN = ConfigResource(ConfigResourceType.BROKER, "1")
OF_ALL = ConfigResource(ConfigResourceType.BROKER, "")
PREFIX = "listener.name.ssl.ssl."
LOCATION = f"{PREFIX}keystore.location"
SUBJECT = {"organization_name": "moldau", "organization_unit_name": "broker"}
RECORDS = 600


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SecuredNode]:
    """A node whose SSL listener has a certificate with a subject that can be had again."""
    made = SecuredNode(tmp_path, {LOCATION: str(tmp_path / "first.pem")})
    keystore(made.authority, tmp_path / "first.pem", "localhost", HOST, **SUBJECT)
    with made as running:
        yield running


@pytest.fixture
def admin(node: SecuredNode) -> Iterator[Admin]:
    with Admin(node.address("PLAINTEXT")) as made:
        yield made


def alter(admin: Admin, resource: ConfigResource = OWN, **values: str | None) -> None:
    """Set `listener.name.ssl.ssl.KEY`; `_` stands for a dot, None deletes."""
    changes = []
    for name, value in values.items():
        key = PREFIX + name.replace("_", ".")
        changes.append(
            ConfigChange(key, value, ConfigOperation.SET if value else ConfigOperation.DELETE)
        )
    admin.alter_configs({resource: changes})


def shows(node: SecuredNode, path: Path) -> bool:
    """Whether new connections see the certificate of a key store."""
    seen = ssl.get_server_certificate((HOST, node.port("SSL")))
    return seen.strip() in path.read_text()


def renewed(node: SecuredNode, name: str, *names: str, **subject: Any) -> Path:
    return keystore(
        node.authority, node.home / name, *(names or ("localhost", HOST)), **(subject or SUBJECT)
    )


def secured(node: SecuredNode) -> dict[str, Any]:
    return {
        "bootstrap_servers": node.address("SSL"),
        "security_protocol": "SSL",
        **node.trust,
    }


def test_a_certificate_is_renewed_under_load(node: SecuredNode, admin: Admin) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(topic)])
    halfway, go_on = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            with Producer(**secured(node)) as producer:
                for number in range(RECORDS):
                    producer.send(topic, b"%d" % number)
                    if number == RECORDS // 3:
                        halfway.set()
                    if number == 2 * RECORDS // 3:
                        go_on.wait(60)
        except BaseException as failure:  # noqa: BLE001 - the test raises it
            failures.append(failure)

    load = threading.Thread(target=produce)
    load.start()
    assert halfway.wait(60)
    second = renewed(node, "second.pem")
    alter(admin, keystore_location=str(second))
    until(lambda: shows(node, second), what="the new certificate is shown")
    go_on.set()
    load.join(60)
    assert not failures
    values = read_all(node.address("PLAINTEXT"), topic)
    assert values == [b"%d" % number for number in range(RECORDS)], "over the same connection"
    assert "closing connection" not in node.log()
    node.process.stop()
    node.process.start()
    node.process.wait_ready()
    assert shows(node, second), "a restart begins with it"
    with Admin(node.address("PLAINTEXT")) as again:
        alter(again, keystore_location=None)
    until(lambda: shows(node, node.home / "first.pem"), what="the node's own is back")


def test_what_cannot_be_used_is_refused_and_changes_nothing(
    node: SecuredNode, admin: Admin
) -> None:
    first = node.home / "first.pem"
    other = renewed(node, "other.pem", organization_name="x", organization_unit_name="y")
    fewer = renewed(node, "fewer.pem", "localhost")
    empty = node.home / "empty.pem"
    empty.write_text("")
    for path, reason in (
        (node.home / "no-such.pem", "No such file"),
        ("/no\0such.pem", "moldau.ssl.store.directories"),
        (empty, "no PEM in it"),
        (other, "ssl.allow.dn.changes=false"),
        (fewer, "ssl.allow.san.changes=false"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            alter(admin, keystore_location=str(path))
    with pytest.raises(KafkaError, match="per broker"):
        alter(admin, OF_ALL, keystore_location=str(first))
    assert shows(node, first)
    assert LOCATION in admin.describe_configs([OWN])[OWN]
    more = renewed(node, "more.pem", "localhost", HOST, "another.example")
    alter(admin, keystore_location=str(more))
    until(lambda: shows(node, more), what="a certificate with more names is taken")


def test_passwords_work_and_are_never_shown(node: SecuredNode, admin: Admin) -> None:
    second = renewed(node, "second.pem")
    locked = node.home / "locked.pem"
    key, mark, certificates = second.read_bytes().partition(b"-----BEGIN CERTIFICATE")
    locked.write_bytes(
        serialization.load_pem_private_key(key, None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"sesame-open"),
        )
        + mark
        + certificates
    )
    with pytest.raises(InvalidRequest, match="key cannot be used") as refused:
        alter(admin, keystore_location=str(locked), key_password="sesame-shut")
    assert "sesame" not in str(refused.value)
    alter(admin, keystore_location=str(locked), key_password="sesame-open")
    until(lambda: shows(node, locked), what="the locked key is used")
    described = admin.describe_configs([OWN], include_synonyms=True)[OWN]
    password = described[f"{PREFIX}key.password"]
    assert (password.value, password.sensitive) == (None, True)
    assert described[LOCATION].value == str(locked)
    assert "sesame" not in repr(described)
    assert "sesame" not in node.log()
