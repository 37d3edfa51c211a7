"""A client with AlterConfigs on the cluster does not become a super user, learns of no files, and
does not silence the log about itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    AuthenticationFailed,
    ClusterAuthorizationFailed,
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
from tests.system.security.nodes import AUTHORIZER, PASSWORD, SecuredNode, keystore

OWN = ConfigResource(ConfigResourceType.BROKER, "1")
LOGGERS = ConfigResource(ConfigResourceType.BROKER_LOGGER, "1")
TRUST = "listener.name.mtls.ssl.truststore.location"
INLINE = "listener.name.mtls.ssl.truststore.certificates"
NO_PLACE = "never in a log directory"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SecuredNode]:
    changed = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice;User:root-client",
        "num.partitions": "1",
    }
    with SecuredNode(tmp_path, changed) as running:
        yield running


def as_user(node: SecuredNode, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": node.address("SASL_SSL"),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_username": user,
        "sasl_password": password,
        **node.trust,
    }


def bob(node: SecuredNode) -> dict[str, Any]:
    return as_user(node, "bob", "b-secret")


@pytest.fixture
def segment(node: SecuredNode) -> Path:
    """A log segment with a certificate of the attacker's authority in a record."""
    topic = f"t-{uuid.uuid4().hex}"
    cluster = AclResourceType.CLUSTER, "kafka-cluster", "User:bob"
    entries = [
        AclBinding(*cluster, AclOperation.ALTER_CONFIGS),
        AclBinding(*cluster, AclOperation.IDEMPOTENT_WRITE),
        AclBinding(AclResourceType.TOPIC, topic, "User:bob", AclOperation.WRITE),
    ]
    with Admin(**as_user(node, "alice", PASSWORD)) as admin:
        admin.create_topics([NewTopic(topic)])
        admin.create_acls(entries)
    attacker = trustme.CA()
    keystore(
        attacker, node.home / "forged.pem", organization_name="x", organization_unit_name="root"
    )
    with Producer(**bob(node)) as producer:
        producer.send(topic, b"\n" + attacker.cert_pem.bytes() + b"\n")
    return node.home / "data" / f"{topic}-0" / f"{0:020}.log"


def set_keys(settings: dict[str, Any], resource: ConfigResource = OWN, **values: str) -> None:
    with Admin(**settings) as admin:
        changes = [
            ConfigChange(key.replace("_", "."), value, ConfigOperation.SET)
            for key, value in values.items()
        ]
        admin.alter_configs({resource: changes})


def is_super_user(node: SecuredNode) -> bool:
    """Whether a client with the attacker's certificate may do what only super users may."""
    forged = {
        "bootstrap_servers": node.address("MTLS"),
        "security_protocol": "SSL",
        "ssl_keystore_location": str(node.home / "forged.pem"),
        "request_timeout_ms": 5000,
        **node.trust,
    }
    try:
        with Admin(**forged) as admin:
            admin.describe_acls()
    except KafkaError:
        return False
    return True


def test_a_log_segment_is_no_trust_store(node: SecuredNode, segment: Path) -> None:
    assert not is_super_user(node)
    for key, value in ((TRUST, str(segment)), (INLINE, segment.read_bytes().decode("latin-1"))):
        with pytest.raises(ClusterAuthorizationFailed, match="ALTER"):
            set_keys(bob(node), **{key: value.replace("\0", "")})
    alice = as_user(node, "alice", PASSWORD)
    link = node.home / "link.pem"
    link.symlink_to(segment)
    for path in (segment, link, node.home / "data" / ".." / "data" / segment.parent.name / "0.log"):
        with pytest.raises(InvalidRequest, match=NO_PLACE):
            set_keys(alice, **{TRUST: str(path)})
    assert not is_super_user(node)
    # A controller stores what is sent to it, for the broker to try.
    set_keys({"bootstrap_controllers": node.address("CONTROLLER")}, **{TRUST: str(segment)})
    until(lambda: node.log().count(NO_PLACE) == 1, what="the broker refuses it")
    assert "keeps its certificate" in node.log()
    assert not is_super_user(node)
    node.process.stop()
    node.process.start()
    node.process.wait_ready()
    assert "dynamic configuration is left out at this start: listener MTLS" in node.log()
    assert not is_super_user(node)
    own = {
        "bootstrap_servers": node.address("MTLS"),
        "security_protocol": "SSL",
        "ssl_keystore_location": str(
            keystore(node.authority, node.home / "c.pem", organization_name="x")
        ),
        **node.trust,
    }
    with Admin(**own) as admin:
        assert admin.describe_cluster().brokers, "the node's own trust store is in use"


def test_the_answers_do_not_say_which_files_exist(node: SecuredNode, segment: Path) -> None:
    def answer(settings: dict[str, Any], path: str) -> str:
        with pytest.raises((ClusterAuthorizationFailed, InvalidRequest)) as caught:
            set_keys(settings, **{TRUST: path})
        return str(caught.value).replace(path, "PATH")

    paths = ("/etc/passwd", "/etc/no-such-file", "/root", "/dev/zero", str(segment), "/x/y")
    assert len({answer(bob(node), path) for path in paths}) == 1
    assert len({answer(as_user(node, "alice", PASSWORD), path) for path in paths}) == 1


def test_the_audited_does_not_silence_the_log_about_it(node: SecuredNode, segment: Path) -> None:
    refused = segment.parent.name.removesuffix("-0")
    for name in ("moldau.authorizer", "moldau.authentication", "moldau.audit"):
        with pytest.raises(InvalidRequest, match="INFO"):
            set_keys(bob(node), LOGGERS, **{name: "ERROR"})
    set_keys(bob(node), LOGGERS, moldau="FATAL", root="FATAL")
    set_keys(bob(node), **{"moldau.log.level": "ERROR"})
    until(lambda: "SET moldau.log.level" in node.log(), what="the change is a line")
    with Admin(**bob(node)) as admin, pytest.raises(KafkaError):
        admin.delete_topics([refused])
    denied = "User:bob is Denied operation = DELETE from host = 127.0.0.1 on resource = Topic:"
    until(lambda: f"{denied}LITERAL:{refused}" in node.log(), what="the denial is a line")
    who = "audit: Principal = User:bob from host = 127.0.0.1 on listener = SASL_SSL changed the "
    assert f"{who}configuration of BROKER_LOGGER:1: SET moldau, SET root" in node.log()
    with pytest.raises(AuthenticationFailed), Admin(**as_user(node, "bob", "wrong")) as admin:
        admin.describe_cluster()
    until(lambda: "failed authentication from host" in node.log(), what="the failure is a line")
