"""A client cannot come by a reserved name, whichever way it says who it is."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from moldau.client import KafkaError
from moldau.client.sync import Admin
from moldau.local.layout import PortHolder
from tests.system.security.nodes import (
    AUTHORIZER,
    HOST,
    PLAIN_MODULE,
    SecuredNode,
    keystore,
)

NAMES = ("nodes", "ANONYMOUS", "kafka-7")
PASSWORD = "p-secret"
BEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
RULES = r"RULE:^OU=([A-Za-z0-9-]+),O=.*$/$1/,DEFAULT"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    home = tmp_path_factory.mktemp("reserved")
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in (*NAMES, "alice"))
    ports = PortHolder(HOST)
    [port] = ports.take()
    made = SecuredNode(
        home,
        {
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS;User:nodes;User:kafka-7;User:alice",
            "moldau.node.principals": "User:kafka-*",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f"{PLAIN_MODULE} required {users};"
            ),
            "listener.name.mtls.ssl.principal.mapping.rules": RULES,
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
                f'{BEARER_MODULE} required unsecuredLoginStringClaim_sub="x";'
            ),
            "moldau.http.listener": f"{HOST}:{port}",
            "moldau.http.ssl.keystore.location": str(home / "broker.pem"),
            "moldau.http.ssl.client.auth": "requested",
            "moldau.http.ssl.truststore.location": str(home / "ca.pem"),
            "moldau.http.ssl.principal.mapping.rules": RULES,
            "moldau.http.authentication": "BASIC",
            "connection.failed.authentication.delay.ms": "0",
        },
    )
    made.http_port = port  # type: ignore[attr-defined]
    with made as running:
        yield running
    ports.close()


def may_come(address: str, settings: Mapping[str, Any]) -> bool:
    try:
        with Admin(address, request_timeout_ms=10_000, **settings) as admin:
            admin.list_topics(timeout_ms=10_000)
    except KafkaError:
        return False
    return True


def by_password(node: SecuredNode, name: str) -> bool:
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": name,
        "sasl_password": PASSWORD,
    }
    return may_come(node.address("SASL_PLAINTEXT"), settings)


def by_token(node: SecuredNode, name: str) -> bool:
    login = f'{BEARER_MODULE} required unsecuredLoginStringClaim_sub="{name}";'
    settings = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_jaas_config": login,
    }
    return may_come(node.address("SASL_SSL"), {**node.trust, **settings})


def store_of(node: SecuredNode, name: str) -> Path:
    return keystore(node.authority, node.home / f"{name}.pem", organization_unit_name=name)


def by_certificate(node: SecuredNode, name: str) -> bool:
    settings = {"security_protocol": "SSL", "ssl_keystore_location": str(store_of(node, name))}
    return may_come(node.address("MTLS"), {**node.trust, **settings})


def by_certificate_over_http(node: SecuredNode, name: str) -> bool:
    context = ssl.create_default_context(cafile=str(node.trust_path))
    context.load_cert_chain(store_of(node, name))
    connection = http.client.HTTPSConnection(
        HOST,
        node.http_port,  # type: ignore[attr-defined]
        timeout=20,
        context=context,
    )
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status == 200
    finally:
        connection.close()


WAYS = (by_password, by_token, by_certificate, by_certificate_over_http)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_client_comes_by_a_reserved_name(node: SecuredNode, way: Any) -> None:
    assert way(node, "alice")
    before = node.log().count("is a reserved name, which no client may have")
    for name in NAMES:
        assert not way(node, name)
        assert f"{name!r} is a reserved name, which no client may have" in node.log()
    assert node.log().count("is a reserved name, which no client may have") >= before + len(NAMES)


def test_users_with_reserved_names_are_named_at_the_start(node: SecuredNode) -> None:
    lines = [line for line in node.log().splitlines() if "users with reserved names" in line]
    assert len(lines) == 1
    assert "WARNING" in lines[0]
    for name in NAMES:
        assert f"{name!r} of PLAIN on listener SASL_PLAINTEXT" in lines[0]
    assert "alice" not in lines[0]
    assert PASSWORD not in node.log()
