"""What a listener makes of the node's configuration."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from moldau.config import ConfigError, NodeConfig
from moldau.config.listeners import Endpoint
from moldau.server.authentication.core.mechanism import SaslRefused
from moldau.server.authentication.core.scram import Scram
from moldau.server.authentication.listener_security import ListenerSecurity

PLAIN = "listener.name.outside.plain.sasl.jaas.config"
USERS = 'org.example.PlainLoginModule required user_alice="s3cret" user_b="" username="node";'


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    leaf = trustme.CA().issue_cert("localhost")
    path = tmp_path_factory.mktemp("store") / "broker.pem"
    path.write_bytes(
        leaf.private_key_pem.bytes() + b"".join(each.bytes() for each in leaf.cert_chain_pems)
    )
    return path


def configured(protocol: str, **keys: str) -> tuple[NodeConfig, Endpoint]:
    config = NodeConfig(
        {
            "process.roles": "broker",
            "node.id": "1",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "127.0.0.1:1",
            "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "listener.security.protocol.map": (
                f"OUTSIDE:{protocol},PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            **keys,
        }
    )
    return config, next(each for each in config.listeners if each.listener_name == "OUTSIDE")


def security(protocol: str, **keys: str) -> ListenerSecurity:
    made = ListenerSecurity.of(*configured(protocol, **keys), lambda mechanism, user: None)
    assert made is not None
    return made


def test_a_plaintext_listener_has_none() -> None:
    assert ListenerSecurity.of(*configured("PLAINTEXT"), lambda mechanism, user: None) is None


@pytest.mark.parametrize(
    ("protocol", "keys", "mode"),
    [
        ("SSL", {}, ssl.CERT_NONE),
        ("SSL", {"ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
        ("SSL", {"listener.name.outside.ssl.client.auth": "requested"}, ssl.CERT_OPTIONAL),
        ("SASL_SSL", {"ssl.client.auth": "required"}, ssl.CERT_NONE),
        ("SASL_SSL", {"listener.name.outside.ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
    ],
)
async def test_certificates_are_asked_for_beside_sasl_by_the_listener_s_own_key_only(
    store: Path, protocol: str, keys: dict[str, str], mode: ssl.VerifyMode
) -> None:
    """KIP-684."""
    mechanisms = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    made = security(protocol, **{"ssl.keystore.location": str(store), **mechanisms, **keys})
    assert made.contexts is not None
    assert (await made.contexts.current()).verify_mode is mode


def test_users_of_plain() -> None:
    keys = {"sasl.enabled.mechanisms": "PLAIN", PLAIN: USERS}
    made = security("SASL_PLAINTEXT", **keys)
    assert made.contexts is None
    assert made.sasl is not None
    begin = made.sasl.mechanisms["PLAIN"].begin
    assert begin().step(b"\0alice\0s3cret").user == "alice"  # type: ignore[union-attr]
    for token in (b"\0b\0", b"\0username\0node", b"\0node\0", b"\0alice\0x"):
        with pytest.raises(SaslRefused):
            begin().step(token)
    assert "s3cret" not in repr(configured("SASL_PLAINTEXT", **keys)[0])


def test_every_exchange_of_scram_has_a_nonce_of_its_own() -> None:
    made = security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "SCRAM-SHA-512"})
    assert made.sasl is not None
    begin = made.sasl.mechanisms["SCRAM-SHA-512"].begin
    answers = []
    for _ in range(2):
        exchange = begin()
        assert isinstance(exchange, Scram)
        answers.append(exchange.step(b"n,,n=a,r=client"))
    nonces = [bytes(answer).split(b",")[0] for answer in answers]  # type: ignore[arg-type]
    assert nonces[0] != nonces[1]
    # The salt of a user that does not exist is the same each time.
    salts = [bytes(answer).split(b",")[1] for answer in answers]  # type: ignore[arg-type]
    assert salts[0] == salts[1]


def test_passwords_are_in_no_error() -> None:
    for text in ('x required user_a="s3cret"', 'x.Scram required user_a="s3cret";', "s3cret"):
        with pytest.raises(ConfigError) as refused:
            security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "PLAIN", PLAIN: text})
        assert "s3cret" not in str(refused.value)
        assert PLAIN in str(refused.value)
