"""Our client's TLS, SASL and security calls against Apache Kafka."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from moldau.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclResourceType,
    Admin,
    AuthenticationFailed,
    BrokerError,
    NewTopic,
    OAuthBearerToken,
    ScramMechanism,
    ScramUpsertion,
    TlsFailed,
)
from tests.interop.java.server import KafkaServer
from tests.interop.java.sessions import ask_beyond_a_session
from tests.interop.java.tools import JavaTools
from tests.kit.ports import free_port
from tests.kit.waiting import until_async

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(300)]

REAUTHENTICATION_MS = 5_000
"""Kafka refuses who comes again within a second."""
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class Secured(NamedTuple):
    """A running node and what its clients need."""

    plaintext: str
    tls: str
    sasl_tls: str
    trust: dict[str, Any]


@pytest.fixture(scope="module")
def secured(java: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A node with a plaintext, a TLS and a SASL listener, ACLs and delegation tokens."""
    home = tmp_path_factory.mktemp("secured")
    server = KafkaServer(java, home / "node")
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    keystore = home / "broker.pem"
    # Kafka takes keys as PKCS8 only.
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    keystore.write_bytes(key + b"".join(each.bytes() for each in leaf.cert_chain_pems))
    trust = home / "ca.pem"
    authority.cert_pem.write_to_path(trust)
    properties = home / "node" / "server.properties"
    text = properties.read_text()
    found = re.search(r"^listeners=(.*)$", text, re.MULTILINE)
    assert found is not None
    tls, sasl = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    sasl_keys = "listener.name.sasl_ssl"
    properties.write_text(
        text + f"listeners={found.group(1)},SSL://{tls},SASL_SSL://{sasl}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
        "SASL_SSL:SASL_SSL\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={keystore}\n"
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER\n"
        f'{sasl_keys}.plain.sasl.jaas.config={_PLAIN} required user_alice="a-secret";\n'
        f"{sasl_keys}.scram-sha-256.sasl.jaas.config={_SCRAM} required;\n"
        f"{sasl_keys}.scram-sha-512.sasl.jaas.config={_SCRAM} required;\n"
        f"{sasl_keys}.oauthbearer.sasl.jaas.config={_OAUTH} required "
        'unsecuredLoginStringClaim_sub="x";\n'
        f"connections.max.reauth.ms={REAUTHENTICATION_MS}\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "super.users=User:ANONYMOUS;User:alice\nallow.everyone.if.no.acl.found=true\n"
        "delegation.token.secret.key=something\n"
    )
    with server:
        yield Secured(server.bootstrap_server, tls, sasl, {"ssl_truststore_location": str(trust)})


def admin_of(secured: Secured, mechanism: str, **credentials: Any) -> Admin:
    return Admin(
        secured.sasl_tls,
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        **secured.trust,
        **credentials,
    )


def unsecured_token(subject: str, age_s: float = 0) -> str:
    now_s = time.time() - age_s
    parts = ({"alg": "none"}, {"sub": subject, "iat": now_s, "exp": now_s + 600})
    encoded = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b""]).decode()


async def test_tls(secured: Secured):
    async with Admin(secured.tls, security_protocol="SSL", **secured.trust) as admin:
        assert (await admin.describe_cluster()).brokers[0].node_id == 1
    async with Admin(secured.tls, security_protocol="SSL") as admin:
        with pytest.raises(TlsFailed, match=r"ssl\.truststore"):
            await admin.describe_cluster()


async def test_mixed_up_protocols(secured: Secured):
    async with Admin(secured.tls) as admin:
        with pytest.raises(TlsFailed, match="speaks TLS"):
            await admin.describe_cluster()
    async with Admin(secured.plaintext, security_protocol="SSL", **secured.trust) as admin:
        with pytest.raises(TlsFailed, match="does not speak TLS"):
            await admin.describe_cluster()
    async with Admin(secured.sasl_tls, security_protocol="SSL", **secured.trust) as admin:
        with pytest.raises(AuthenticationFailed, match="wants SASL"):
            await admin.describe_cluster()


async def test_plain_and_sessions_that_are_renewed(secured: Secured):
    credentials = {"sasl_username": "alice", "sasl_password": "a-secret"}
    async with admin_of(secured, "PLAIN", **credentials) as admin:
        connection = await admin._client.any_connection()
        await ask_beyond_a_session(admin, REAUTHENTICATION_MS)
        # Kafka closes a connection whose session is over at its next request.
        assert await admin._client.any_connection() is connection
    async with admin_of(secured, "PLAIN", sasl_username="alice", sasl_password="no") as admin:
        with pytest.raises(AuthenticationFailed, match="PLAIN"):
            await admin.describe_cluster()


async def test_scram_and_delegation_tokens(secured: Secured):
    async with Admin(secured.plaintext) as admin:
        outcome = await admin.alter_user_scram_credentials(
            [
                ScramUpsertion("bob", "b-secret", ScramMechanism.SCRAM_SHA_256),
                ScramUpsertion("carol", "c-secret", ScramMechanism.SCRAM_SHA_512, 8_192),
            ]
        )
        assert outcome == {"bob": None, "carol": None}
        told = await admin.describe_user_scram_credentials(["carol"])
        assert isinstance(told["carol"], list)
        assert told["carol"][0].iterations == 8_192
    for mechanism, name in (("SCRAM-SHA-256", "bob"), ("SCRAM-SHA-512", "carol")):
        secret = f"{name[0]}-secret"
        credentials = {"sasl_username": name, "sasl_password": secret}
        async with admin_of(secured, mechanism, **credentials) as admin:
            token = await admin.create_delegation_token(renewers=["User:alice"])
            assert token.owner == f"User:{name}"
        credentials["sasl_password"] = "wrong"
        async with admin_of(secured, mechanism, **credentials) as admin:
            with pytest.raises(AuthenticationFailed, match=mechanism):
                await admin.describe_cluster()
    jaas = (
        f'{_SCRAM} required username="{token.token_id}" '
        f'password="{b64encode(token.hmac).decode()}" tokenauth="true";'
    )
    async with admin_of(secured, "SCRAM-SHA-256", sasl_jaas_config=jaas) as admin:
        assert (await admin.describe_cluster()).brokers
    async with admin_of(secured, "PLAIN", sasl_username="alice", sasl_password="a-secret") as admin:
        assert await admin.renew_delegation_token(token.hmac) >= token.issued_at_ms
        known = await admin.describe_delegation_tokens()
        assert token.token_id in {each.token_id for each in known}
        await admin.expire_delegation_token(token.hmac)

        async def is_gone() -> bool:
            known = await admin.describe_delegation_tokens()
            return token.token_id not in {each.token_id for each in known}

        await until_async(is_gone, what="the token's end", deadline_s=20)
        with pytest.raises(BrokerError, match="DELEGATION_TOKEN"):
            await admin.renew_delegation_token(b"no such token")


async def test_oauthbearer(secured: Secured):
    def provider() -> str:
        return unsecured_token("dave")

    async with admin_of(secured, "OAUTHBEARER", sasl_oauthbearer_token_provider=provider) as admin:
        assert (await admin.describe_cluster()).brokers
    old = OAuthBearerToken(unsecured_token("dave", 10_000), (time.time() + 600) * 1_000)
    async with admin_of(
        secured, "OAUTHBEARER", sasl_oauthbearer_token_provider=lambda: old
    ) as admin:
        with pytest.raises(AuthenticationFailed, match="OAUTHBEARER"):
            await admin.describe_cluster()


async def test_acls_and_quotas(secured: Secured):
    binding = AclBinding(AclResourceType.TOPIC, "t", "User:bob", AclOperation.READ)
    async with Admin(secured.plaintext) as admin:
        await admin.create_topics([NewTopic("t", partition_count=1)])
        await admin.create_acls([binding])

        # What the controller has committed the broker may learn a moment later.
        async def is_there() -> bool:
            return await admin.describe_acls(AclFilter(resource_name="t")) == [binding]

        await until_async(is_there, what="the ACL", deadline_s=20)
        assert await admin.delete_acls([AclFilter(principal="User:bob")]) == [binding]
        bob = (("user", "bob"),)
        changes = {bob: {"producer_byte_rate": 1e6}}
        assert await admin.alter_client_quotas(changes) == {bob: None}

        async def is_set() -> bool:
            return await admin.describe_client_quotas({"user": "bob"}) == changes

        await until_async(is_set, what="the quota", deadline_s=20)
