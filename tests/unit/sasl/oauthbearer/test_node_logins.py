"""Nodes that log in to other nodes with tokens: their settings, and what their log says."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from moldau.config import NodeConfig
from moldau.config.definition import ConfigError
from moldau.runtime.authentication import LoginExpiration
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.connector import Connector, PeerRefused
from moldau.sasl.oauthbearer.client import TokenLogin
from moldau.server.authentication.peer_security import peer_security
from tests.kit.identity_provider import AUDIENCE, Signer, claims_of
from tests.kit.manual_clock import ManualClock
from tests.unit.runtime.test_connector import HOST, MECHANISM_KEY, NODE, Peer
from tests.unit.sasl.oauthbearer.test_tokens import jwt

URL = "sasl.oauthbearer.token.endpoint.url"
ID = "sasl.oauthbearer.client.credentials.client.id"
SECRET = "sasl.oauthbearer.client.credentials.client.secret"
ASSERTION = "sasl.oauthbearer.assertion.file"
RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
ALLOWED = "moldau.sasl.oauthbearer.allowed.urls"
JAAS = "listener.name.nodes.oauthbearer.sasl.jaas.config"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ENDPOINT = "https://127.0.0.1:1/token"


def by_tokens(directory: Path, **changed: str | None) -> NodeConfig:
    """A node that reads its token and the keys of others' tokens from files."""
    token, keys = (directory / "token", directory / "keys.json")
    values: dict[str, str | None] = {
        **NODE,
        "listener.security.protocol.map": "NODES:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        MECHANISM_KEY: "OAUTHBEARER",
        URL: token.as_uri(),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        ALLOWED: f"{token.as_uri()},{keys.as_uri()}",
        "moldau.sasl.oauthbearer.allowed.files": f"{token},{keys}",
        # Accepted, as Apache Kafka's settings have it:
        "listener.name.nodes.oauthbearer.sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        **changed,
    }
    return NodeConfig({key: value for key, value in values.items() if value is not None})


def connector(config: NodeConfig, clock: Clock) -> Connector:
    return Connector(None, clock, peer_security(config, "NODES", MECHANISM_KEY, clock=clock))


@pytest.mark.real
async def test_a_token_of_a_file_and_a_missing_one_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signer = Signer("first")
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [signer.public()]}))
    config, clock = by_tokens(tmp_path), ManualClock()
    caplog.set_level(logging.INFO)
    async with Peer(config) as one, Peer(config) as other:
        assert not (tmp_path / "token").exists()
        own = connector(config, clock)
        for peer in (one, other, one):
            with pytest.raises(PeerRefused, match="token file"):
                await own.connect(HOST, peer.port)
            clock.advance(60_000)
        assert (one.principals, other.principals) == ([], [])
        said = [
            each.getMessage() for each in caplog.records if each.name == "moldau.runtime.connector"
        ]
        assert len(said) == 1
        assert said[0].startswith("no connection of listener NODES to another node: token file")
        (tmp_path / "token").write_text(signer.token(claims_of("node-1")))
        own = connector(config, SystemClock())
        for peer in (one, other):
            (await own.connect(HOST, peer.port)).close()
            assert peer.principals[-1] == "User:node-1"


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({URL: None}, f"{URL}: listener NODES: this node needs it"),
        ({ALLOWED: None}, f"{ALLOWED} must have it"),
        ({"moldau.sasl.oauthbearer.allowed.files": None}, "allowed.files must have it"),
        ({URL: "https://u:hidden@h/token"}, "without a password"),
        ({URL: ENDPOINT, ALLOWED: ENDPOINT}, "listener NODES: sasl.oauthbearer.token.endpoint.url"),
        ({URL: ENDPOINT, ALLOWED: ENDPOINT, ID: "a"}, "client.id and .client.secret are needed"),
        ({URL: ENDPOINT, ALLOWED: ENDPOINT, SECRET: "hidden"}, "are needed with it"),
        ({ASSERTION: "/no/such.jwt"}, "/no/such.jwt: is not allowed: moldau.sasl.oauthbearer"),
        ({RETRIEVER: "org.example.Own"}, f"listener NODES: {RETRIEVER}=org.example.Own: one of"),
        ({URL: None, JAAS: f'{MODULE} required unsecuredLoginStringClaim_x="y";'}, "Claim_sub is"),
        ({JAAS: "x.PlainLoginModule required;"}, "OAUTHBEARER needs OAuthBearerLoginModule"),
        (
            {
                URL: ENDPOINT,
                ALLOWED: ENDPOINT,
                JAAS: f'{MODULE} required clientId="a" clientSecret="hidden" '
                'ssl.truststore.location="/no/such.pem";',
            },
            "/no/such.pem: No such file",
        ),
    ],
)
def test_settings_that_cannot_work(
    tmp_path: Path, changed: dict[str, str | None], complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        connector(by_tokens(tmp_path, **changed), SystemClock())
    assert complaint in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_client_credentials_of_keys_go_before_those_of_the_login_module(tmp_path: Path) -> None:
    plain = "http://127.0.0.1:1/token"
    jaas = f'{MODULE} required clientId="a" clientSecret="b" scope="c";'
    settings = {URL: plain, ALLOWED: plain, JAAS: jaas}
    own = {ID: "x", f"listener.name.nodes.{SECRET}": "y", "sasl.oauthbearer.scope": "z"}
    for changed, expected in ((settings, ("a", "b", "c")), (settings | own, ("x", "y", "z"))):
        made = connector(by_tokens(tmp_path, **changed), SystemClock())
        assert made.security is not None
        login = made.security.login
        assert isinstance(login, TokenLogin)
        grant = login.tokens._source.grant  # type: ignore[attr-defined]
        assert (grant.client_id, grant.client_secret, grant.scope) == expected
        assert repr(expected[1]) not in repr(made.security)


@pytest.mark.parametrize(
    ("least", "most", "pauses_ms"),
    [("100", "300", [100, 200, 300, 300]), ("1", "3", [1, 2, 3, 3]), ("0", "0", [1, 1, 1, 1])],
)
def test_pauses_between_tries_are_those_of_the_settings(
    tmp_path: Path, least: str, most: str, pauses_ms: list[float]
) -> None:
    keys = {"sasl.login.retry.backoff.ms": least, "sasl.login.retry.backoff.max.ms": most}
    made = connector(by_tokens(tmp_path, **keys), SystemClock())
    assert made.security is not None
    login = made.security.login
    assert isinstance(login, TokenLogin)
    pauses = login.tokens._pauses  # type: ignore[attr-defined]
    assert [pauses.next_ms() for _ in pauses_ms] == pauses_ms


def expiring(config: NodeConfig) -> list[LoginExpiration]:
    security = connector(config, SystemClock()).security
    assert security is not None
    assert security.login is not None
    return list(security.login.expirations())


def test_files_with_tokens_and_assertions_say_until_when_they_are_good(tmp_path: Path) -> None:
    token, assertion = tmp_path / "token", tmp_path / "assertion"
    config = by_tokens(tmp_path)
    assert expiring(config) == [], "the file is not there yet"
    token.write_text(jwt(iat=1_000, exp=4_600))
    assert expiring(config) == [LoginExpiration(f"token file: {token}", 4_600_000, 3_600_000)]
    token.write_text(jwt(exp=4_600) + "\n")
    assert expiring(config) == [LoginExpiration(f"token file: {token}", 4_600_000, None)]
    for without_end in (jwt(iat=1_000), "opaque", jwt(exp="soon"), ""):
        token.write_text(without_end)
        assert expiring(config) == []
    assertion.write_text(jwt(exp=5))
    asking = {
        URL: ENDPOINT,
        ALLOWED: ENDPOINT,
        ASSERTION: str(assertion),
        "moldau.sasl.oauthbearer.allowed.files": str(assertion),
    }
    [found] = expiring(by_tokens(tmp_path, **asking))
    assert found == LoginExpiration(f"{ASSERTION}: {assertion}", 5_000, None)
    by_secret = {URL: ENDPOINT, ALLOWED: ENDPOINT, ID: "a", SECRET: "b"}
    assert expiring(by_tokens(tmp_path, **by_secret)) == [], "this node renews its tokens itself"
