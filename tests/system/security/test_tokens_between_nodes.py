"""Nodes that log in to one another with tokens of an identity provider: a real cluster."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.testing import NodeFailed
from tests.kit.identity_provider import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    JWT_BEARER,
    IdentityProvider,
    Signer,
)
from tests.kit.waiting import until
from tests.system.security.nodes import SecuredNode
from tests.system.security.secured_cluster import BROKER_IDS, CONTROLLER_IDS, SecuredCluster
from tests.system.security.test_between_nodes import use

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PREFIX = "sasl.oauthbearer."
TOKEN_LIFE_S = 16.0


def tokens(provider: IdentityProvider) -> dict[str, str]:
    """Client credentials are in keys for brokers, in the login module for controllers."""
    prefix = "listener.name.internal.sasl.oauthbearer.client.credentials.client"
    return {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SASL_SSL,CONTROLLER:SASL_SSL",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        **{
            f"listener.name.{name}.sasl.enabled.mechanisms": "OAUTHBEARER"
            for name in ("internal", "controller")
        },
        "sasl.oauthbearer.jwks.endpoint.url": provider.url,
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "moldau.sasl.oauthbearer.allowed.urls": f"{provider.url},{provider.token_url}",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.login.refresh.min.period.seconds": "0",
        "sasl.login.refresh.buffer.seconds": "0",
        "sasl.login.refresh.window.factor": "0.5",
        f"{prefix}.id": CLIENT_ID,
        f"{prefix}.secret": CLIENT_SECRET,
        "listener.name.controller.oauthbearer.sasl.jaas.config": (
            f'{MODULE} required clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}";'
        ),
        "super.users": f"User:admin;User:{CLIENT_ID}",
    }


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        running.token_life_s = TOKEN_LIFE_S
        yield running


def small_cluster(
    directory: Path, between: dict[str, str], changed: dict[str, str], *, broker_count: int = 2
) -> SecuredCluster:
    """One controller, and few brokers."""
    return SecuredCluster(
        directory,
        between,
        controllers=CONTROLLER_IDS[:1],
        brokers=BROKER_IDS[:broker_count],
        changed=changed,
    )


def test_tokens_are_renewed_and_their_endpoint_may_be_down(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    between = tokens(provider)
    super_users = {"super.users": between.pop("super.users")}
    with small_cluster(tmp_path, between, super_users) as cluster:
        use(cluster)
        # Each node has one token for each way to other nodes, and renews it before its end.
        given = provider.given
        until(lambda: provider.given >= given + 6, what="renewed tokens")
        use(cluster)
        for node_id in cluster.nodes:
            log = cluster.log(node_id)
            assert "the token has expired" not in log
            assert "no connection of listener" not in log
        # Without the endpoint all tokens run out; a broker that starts then waits for it.
        broker_id = cluster.brokers[1]
        cluster.nodes[broker_id].kill()
        provider.is_down = True
        before = {node_id: len(cluster.log(node_id)) for node_id in cluster.nodes}
        cluster.nodes[broker_id].start()

        def complaints(node_id: int) -> list[str]:
            lines = cluster.log(node_id)[before[node_id] :].splitlines()
            return [line for line in lines if "no connection of listener" in line]

        for node_id in cluster.brokers:
            until(lambda each=node_id: complaints(each), what="the log says so")  # type: ignore[misc]
        refused = provider.refused
        until(lambda: provider.refused >= refused + 5, what="further tries")
        starting = [line for line in complaints(broker_id) if "listener CONTROLLER" in line]
        assert len(starting) == 1
        assert f"token endpoint {provider.token_url}: HTTP Error 503" in starting[0]
        provider.is_down = False
        cluster.nodes[broker_id].wait_ready()
        use(cluster)
        for node_id in cluster.nodes:
            assert CLIENT_SECRET not in cluster.log(node_id)
            assert "eyJ" not in cluster.log(node_id)


def test_a_stop_does_not_wait_for_an_endpoint_that_hangs(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    between = tokens(provider) | {"sasl.login.read.timeout.ms": str(10 * 60 * 1000)}
    super_users = {"super.users": between.pop("super.users")}
    with small_cluster(tmp_path, between, super_users, broker_count=1) as cluster:
        use(cluster)
        provider.hangs = True
        before = len(provider.requests)
        until(lambda: len(provider.requests) >= before + 1, what="a renewal that hangs")
        broker = cluster.nodes[BROKER_IDS[0]]
        # A node that is still there after the deadline is killed, and this is its status then.
        assert broker.stop() == 0
        before = len(provider.requests)
        broker.start()
        until(lambda: len(provider.requests) > before, what="a request at the start")
        assert broker.stop() == 0
        assert cluster.nodes[CONTROLLER_IDS[0]].stop() == 0


def test_assertions_and_the_jwt_bearer_grant(tmp_path: Path, provider: IdentityProvider) -> None:
    """Brokers ask with assertions in place of a secret, controllers with the JWT bearer grant."""
    client = Signer("nodes", "EC")
    provider.clients = [client]
    key, template = tmp_path / "key", tmp_path / "template.json"
    key.write_bytes(client.private_pem())
    template.write_text('{"header": {"kid": "nodes"}, "payload": {"sub": "a node"}}')
    between = tokens(provider)
    super_users = {"super.users": between.pop("super.users")}
    for name in [each for each in between if "credentials" in each or "jaas" in each]:
        del between[name]
    between |= {
        f"{PREFIX}assertion.private.key.file": str(key),
        f"{PREFIX}assertion.algorithm": "ES256",
        f"{PREFIX}assertion.claim.aud": "the provider",
        f"listener.name.internal.{PREFIX}assertion.claim.iss": CLIENT_ID,
        f"listener.name.controller.{PREFIX}assertion.template.file": str(template),
        f"listener.name.controller.oauthbearer.{PREFIX}jwt.retriever.class": (
            "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
        ),
        "moldau.sasl.oauthbearer.allowed.files": f"{key},{template}",
    }
    with small_cluster(tmp_path, between, super_users) as cluster:
        use(cluster)
    forms = [each.form for each in provider.requests]
    kinds = {each["grant_type"] for each in forms}
    assert kinds == {"client_credentials", JWT_BEARER}
    for form in forms:
        assertion = form.get("assertion") or form["client_assertion"]
        header, claims = (json.loads(_decoded(each)) for each in assertion.split(".")[:2])
        assert claims["aud"] == "the provider"
        if form["grant_type"] == JWT_BEARER:
            assert (header["kid"], claims["sub"]) == ("nodes", "a node")
        else:
            assert claims["iss"] == CLIENT_ID
    assert provider.refused == 0


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "==")


def test_unsecured_tokens(tmp_path: Path) -> None:
    """For development alone, with the settings that Apache Kafka's documentation has."""
    jaas = f'{MODULE} required unsecuredLoginStringClaim_sub="node";'
    between = {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SASL_SSL,CONTROLLER:SASL_SSL",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
    }
    for name in ("internal", "controller"):
        between[f"listener.name.{name}.sasl.enabled.mechanisms"] = "OAUTHBEARER"
        between[f"listener.name.{name}.oauthbearer.sasl.jaas.config"] = jaas
    super_users = {"super.users": "User:admin;User:node"}
    with small_cluster(tmp_path, between, super_users) as cluster:
        use(cluster)
        for node_id in cluster.nodes:
            log = cluster.log(node_id)
            assert "logs in to listener CONTROLLER with unsecured tokens" in log
            assert "listener CONTROLLER accepts unsecured tokens" in log or node_id in BROKER_IDS


class Start(NamedTuple):
    """How a node is started that must not come up, or must all the same."""

    changed: dict[str, str]
    says: str


def token_node(home: Path, provider: IdentityProvider, changed: dict[str, str]) -> SecuredNode:
    """A node that is alone; its listener for nodes asks for tokens, and has its keys and token."""
    values = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,"
        "MTLS:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.plaintext.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.plaintext.sasl.oauthbearer.jwks.endpoint.url": provider.url,
        f"{PREFIX}token.endpoint.url": provider.token_url,
        f"{PREFIX}client.credentials.client.id": CLIENT_ID,
        f"{PREFIX}client.credentials.client.secret": CLIENT_SECRET,
        "moldau.sasl.oauthbearer.allowed.urls": f"{provider.url},{provider.token_url}",
        **changed,
    }
    return SecuredNode(home, values)


def test_a_node_that_the_provider_refuses_does_not_start(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    elsewhere = f"{provider.token_url}/none"
    allowed = {"moldau.sasl.oauthbearer.allowed.urls": f"{elsewhere},{provider.url}"}
    no_keys = {
        "moldau.sasl.oauthbearer.allowed.urls": f"{elsewhere},{provider.token_url}",
        "listener.name.plaintext.sasl.oauthbearer.jwks.endpoint.url": elsewhere,
    }
    starts = [
        Start(
            {f"{PREFIX}client.credentials.client.secret": "wr0ng"},
            "listener PLAINTEXT: this node gets no token to log in with: token endpoint "
            f"{provider.token_url}: HTTP Error 401",
        ),
        Start({f"{PREFIX}token.endpoint.url": elsewhere, **allowed}, "HTTP Error 404"),
        Start(no_keys, f"jwks.endpoint.url: {elsewhere}: it answered with status 404"),
    ]
    for number, (changed, says) in enumerate(starts):
        home = tmp_path / str(number)
        home.mkdir()
        node = token_node(home, provider, changed)
        try:
            with pytest.raises(NodeFailed):
                node.__enter__()
            assert node.process.stop() == 1
            assert says in node.process.complaint()
            assert "Traceback" not in node.log()
            assert "wr0ng" not in node.log()
        finally:
            node.__exit__()


def test_a_node_starts_while_the_provider_is_away(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    """A cluster and its identity provider may start at the same time; one that hangs is as one that
    is down.
    """
    with token_node(tmp_path, provider, {}) as node:
        assert "starts without" not in node.log()
    provider.is_down = True
    with node:
        [line] = [each for each in node.log().splitlines() if "starts without" in each]
        assert "WARNING" in line
        assert "listener PLAINTEXT" in line
        assert f"token endpoint {provider.token_url}: HTTP Error 503" in line
    provider.is_down, provider.hangs = False, True
    with node:
        lines = [each for each in node.log().splitlines() if "starts without" in each]
        assert len(lines) == 2
        assert "no answer within 10" in lines[1]
