"""Who a client is decides what it may do: by SASL, by certificate, at restarts and changes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    NewTopic,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
    TlsFailed,
    TopicAuthorizationFailed,
)
from moldau.client.sync import Admin, Producer
from moldau.x509 import subject_name
from tests.system.processes import properties, run_cli, run_node
from tests.system.security.nodes import AUTHORIZER, PASSWORD, SecuredNode, keystore

NOT_ALLOWED = (ClusterAuthorizationFailed, TopicAuthorizationFailed)


def by_sasl(
    node: SecuredNode, user: str, password: str, mechanism: str = "PLAIN"
) -> dict[str, Any]:
    return {
        "bootstrap_servers": node.address("SASL_SSL"),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_username": user,
        "sasl_password": password,
        **node.trust,
    }


def test_acls_are_about_the_authenticated_user(node: SecuredNode, tmp_path: Path) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    alice = by_sasl(node, "alice", PASSWORD)
    bob = by_sasl(node, "bob", "b-secret")
    own = keystore(node.authority, tmp_path / "c.pem", "c", organization_name="other")
    by_certificate = {
        "bootstrap_servers": node.address("MTLS"),
        "security_protocol": "SSL",
        "ssl_keystore_location": str(own),
        **node.trust,
    }
    with Admin(**alice) as admin:
        admin.create_topics([NewTopic(topic)])
        for refused in (bob, by_certificate):
            with Producer(**refused) as producer, pytest.raises(NOT_ALLOWED):
                producer.send(topic, b"x")
        admin.create_acls(
            [
                AclBinding(AclResourceType.TOPIC, topic, principal, AclOperation.WRITE)
                for principal in ("User:bob", _principal(own))
            ]
        )
        for allowed in (bob, by_certificate):
            with Producer(**allowed) as producer:
                producer.send(topic, b"x")
        with Admin(**bob) as other, pytest.raises(TopicAuthorizationFailed):
            other.delete_topics([topic])


def _principal(certificate: Path) -> str:
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    return f"User:{subject_name(loaded.public_bytes(Encoding.DER))}"


def test_scram_users_come_change_and_go(node: SecuredNode) -> None:
    kind = ScramMechanism.SCRAM_SHA_256
    name = f"user-{uuid.uuid4().hex}"

    def may_come(password: str) -> bool:
        try:
            with Admin(**by_sasl(node, name, password, "SCRAM-SHA-256")) as admin:
                admin.list_topics()
        except AuthenticationFailed:
            return False
        return True

    with Admin(node.address("PLAINTEXT")) as admin:
        assert not may_come("first")
        admin.alter_user_scram_credentials([ScramUpsertion(name, "first", kind)])
        assert may_come("first")
        admin.alter_user_scram_credentials([ScramUpsertion(name, "second", kind)])
        assert not may_come("first")
        assert may_come("second")
        admin.alter_user_scram_credentials([ScramDeletion(name, kind)])
        assert not may_come("second")
    assert "second" not in node.log()


def test_without_a_certificate_or_with_a_wrong_one(node: SecuredNode) -> None:
    with (
        Admin(node.address("MTLS"), security_protocol="SSL", **node.trust) as admin,
        pytest.raises(TlsFailed),
    ):
        admin.list_topics()
    with Admin(node.address("SSL"), security_protocol="SSL") as admin, pytest.raises(TlsFailed):
        admin.list_topics()
    with Admin(node.address("SSL")) as admin, pytest.raises(TlsFailed, match="speaks TLS"):
        admin.list_topics()


def test_users_and_certificates_outlive_restarts(tmp_path: Path) -> None:
    secured = SecuredNode(
        tmp_path, {"authorizer.class.name": AUTHORIZER, "super.users": "User:admin"}
    )
    done = run_cli(
        "storage", "format", "--config", secured.config_path, "--standalone",
        "--add-scram", "SCRAM-SHA-512=[name=admin,password=f1rst]",
    )  # fmt: skip
    assert done.status == 0, done.errors
    assert "f1rst" not in done.output + done.errors
    admin_settings = by_sasl(secured, "admin", "f1rst", "SCRAM-SHA-512")
    with secured:
        with Admin(**admin_settings) as admin:
            admin.create_topics([NewTopic("t")])
            described = admin.describe_user_scram_credentials()
            assert [info.iterations for info in described["admin"]] == [4_096]  # type: ignore[union-attr]
        secured.process.stop()
        secured.process.start()
        secured.process.wait_ready()
        with Admin(**admin_settings) as admin:
            assert admin.list_topics() == ["t"]
            keystore(secured.authority, secured.keystore)
            admin.describe_cluster()
        with Admin(**admin_settings) as admin:
            admin.describe_cluster()
        assert "has read its key and trust stores again" in secured.log()
    assert "f1rst" not in secured.log()


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({}, "listener OUTSIDE: ssl.keystore: ssl.keystore.location (or"),
        ({"ssl.keystore.location": "/none.pem"}, "listener OUTSIDE: ssl.keystore.location: /none"),
        (
            {"listener.security.protocol.map": "SASL_PLAINTEXT"},
            "listener.name.outside.gssapi.sasl.jaas.config: is needed for GSSAPI, Kafka's default",
        ),
        (
            {
                "listener.security.protocol.map": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            "listener.name.outside.plain.sasl.jaas.config: is needed: PlainLoginModule required",
        ),
        (
            {
                "listener.security.protocol.map": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.outside.plain.sasl.jaas.config": 'Plain required user_a="s3cret"',
            },
            "listener.name.outside.plain.sasl.jaas.config: sasl.jaas.config: it is LoginModule",
        ),
        (
            {
                "listener.security.protocol.map": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.outside.plain.sasl.jaas.config": 'x.Scram required user_a="s3cret";',
            },
            "PLAIN needs PlainLoginModule",
        ),
        (
            {
                "listener.security.protocol.map": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "ssl.principal.mapping.rules": "RULE:x",
            },
            "ssl.principal.mapping.rules=RULE:x: listener OUTSIDE: 'RULE:x' is neither",
        ),
    ],
)
def test_settings_that_cannot_work_are_one_line(
    tmp_path: Path, changed: dict[str, str], complaint: str
) -> None:
    protocol = changed.pop("listener.security.protocol.map", "SSL")
    config = properties(
        tmp_path,
        **{
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "listener.security.protocol.map": (
                f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTSIDE:{protocol}"
            ),
            **changed,
        },
    )
    ended = run_node(config)
    assert ended.status != 0
    assert complaint in ended.complaint
    assert "s3cret" not in ended.errors
