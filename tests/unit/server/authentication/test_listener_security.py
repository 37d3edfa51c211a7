"""What a listener makes of the node's configuration."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from moldau.config import ConfigError, NodeConfig
from moldau.config.listeners import Endpoint
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.metadata.scram_users import ScramUsers
from moldau.protocol.metadata_records import UserScramCredentialRecord
from moldau.protocol.scram import KnownKeys, ScramKeys
from moldau.sasl.mechanism import Offer, SaslRefused
from moldau.sasl.scram import ScramServer
from moldau.server.authentication.certificates import PrincipalMapping
from moldau.server.authentication.listener_security import ListenerSecurity, SaslSettings
from moldau.server.authentication.tls_handshakes import TlsHandshakes, handshake_problem
from moldau.server.connection_limits import ServerLimits

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
    made = ListenerSecurity.of(*configured(protocol, **keys), ScramUsers())
    assert made is not None
    return made


def test_a_plaintext_listener_has_none() -> None:
    assert ListenerSecurity.of(*configured("PLAINTEXT"), ScramUsers()) is None


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


def test_every_exchange_of_scram_has_its_own_nonce() -> None:
    made = security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "SCRAM-SHA-512"})
    assert made.sasl is not None
    begin = made.sasl.mechanisms["SCRAM-SHA-512"].begin
    answers = []
    for _ in range(2):
        exchange = begin()
        assert isinstance(exchange, ScramServer)
        answers.append(exchange.step(b"n,,n=a,r=client"))
    nonces = [bytes(answer).split(b",")[0] for answer in answers]  # type: ignore[arg-type]
    assert nonces[0] != nonces[1]
    # The salt of a user that does not exist is the same each time.
    salts = [bytes(answer).split(b",")[1] for answer in answers]  # type: ignore[arg-type]
    assert salts[0] == salts[1]


class CountedInventions(ScramUsers):
    """Notes for which names keys are invented."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.names: list[str] = []

    def keys(self, mechanism: str, name: str) -> ScramKeys:
        self.names.append(name)
        return super().keys(mechanism, name)

    def token_keys(self, mechanism: str, token_id: str) -> ScramKeys:
        self.names.append(f"token {token_id}")
        return super().token_keys(mechanism, token_id)


def test_names_that_exist_cost_what_others_cost() -> None:
    known = ScramKeys(b"salt", b"stored", b"server", 4_096)
    delta = MetadataDelta(MetadataImage.EMPTY)
    delta.replay(UserScramCredentialRecord(name="alice", mechanism=1, **known._asdict()))
    image = delta.apply(Provenance())
    users = CountedInventions(
        image=lambda: image,
        find_token=lambda mechanism, token: KnownKeys(known, "a", 1.0) if token == "t" else None,
    )
    made = ListenerSecurity.of(
        *configured("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "SCRAM-SHA-256"}), users
    )
    assert made is not None
    assert made.sasl is not None
    begin = made.sasl.mechanisms["SCRAM-SHA-256"].begin
    for first in (
        "n=alice,r=c",
        "n=nobody,r=c",
        "n=t,r=c,tokenauth=true",
        "n=u,r=c,tokenauth=true",
    ):
        answer = begin().step(f"n,,{first}".encode())
        is_known = first.startswith(("n=alice", "n=t"))
        assert (b"s=c2FsdA==" in answer) == is_known  # type: ignore[operator]
    assert users.names == ["alice", "nobody", "token t", "token u"]


def test_passwords_are_in_no_error() -> None:
    for text in ('x required user_a="s3cret"', 'x.Scram required user_a="s3cret";', "s3cret"):
        with pytest.raises(ConfigError) as refused:
            security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "PLAIN", PLAIN: text})
        assert "s3cret" not in str(refused.value)
        assert PLAIN in str(refused.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_plug_in_of_the_server_s_side_is_refused(mechanism: str) -> None:
    key = f"listener.name.outside.{mechanism.lower()}.sasl.server.callback.handler.class"
    with pytest.raises(ConfigError, match=f"plug-ins are not served for {mechanism}"):
        security(
            "SASL_PLAINTEXT",
            **{"sasl.enabled.mechanisms": mechanism, PLAIN: USERS, key: "com.example.Mine"},
        )


def test_plain_needs_its_users_and_rules_that_can_be_read() -> None:
    with pytest.raises(ConfigError, match="PlainLoginModule required user_NAME"):
        security("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "PLAIN"})
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules.*listener OUTSIDE"):
        security(
            "SASL_PLAINTEXT",
            **{
                "sasl.enabled.mechanisms": "PLAIN",
                PLAIN: USERS,
                "ssl.principal.mapping.rules": "nonsense",
            },
        )
    with pytest.raises(ConfigError, match="listener OUTSIDE"):
        security("SSL", **{"ssl.keystore.location": "/nowhere"})


def test_the_limits_of_sasl_are_those_of_the_configuration() -> None:
    keys = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        PLAIN: USERS,
        "sasl.server.max.receive.size": "1000",
        "connection.failed.authentication.delay.ms": "250",
        "listener.name.outside.plain.connections.max.reauth.ms": "5000",
    }
    sasl = security("SASL_PLAINTEXT", **keys).sasl
    assert sasl is not None
    assert (sasl.max_receive_bytes, sasl.refusal_delay_ms) == (1_000, 250.0)
    assert [each.max_session_ms for each in sasl.mechanisms.values()] == [5_000.0, 0.0]


class Greeted:
    """A connection, and the TLS it came by."""

    principal = "User:ANONYMOUS"
    gate: object = None

    def __init__(self, certificate: bytes | None, *, has_tls: bool = True) -> None:
        tls = SimpleNamespace(getpeercert=lambda binary_form: binary_form and certificate)
        extra = {"ssl_object": tls if has_tls else None}
        self.transport = SimpleNamespace(get_extra_info=extra.get)
        self.limits: list[int] = []

    def authenticate(self, principal: str) -> None:
        self.principal = principal

    def limit_frames(self, max_bytes: int, min_bytes: int = 1) -> None:
        self.limits.append(max_bytes)


def test_who_a_client_of_tls_is_its_certificate_says(store: Path) -> None:
    leaf = trustme.CA().issue_cert("x", organization_name="moldau", organization_unit_name="orders")
    certificate = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    rules = {"ssl.principal.mapping.rules": "RULE:^OU=([a-z]+),O=moldau$/$1/"}
    made = security("SSL", **{"ssl.keystore.location": str(store), **rules})
    for client, name in (
        (Greeted(certificate), "User:orders"),
        (Greeted(None), "User:ANONYMOUS"),
        (Greeted(certificate, has_tls=False), "User:ANONYMOUS"),
    ):
        assert made.greet(client, None) is None  # type: ignore[arg-type]
        assert (client.principal, client.gate) == (name, None)
    other = trustme.CA().issue_cert("x", organization_name="m", organization_unit_name="X")
    stranger = Greeted(ssl.PEM_cert_to_DER_cert(other.cert_chain_pems[0].bytes().decode()))
    assert "matches 'OU=X,O=m'" in str(made.greet(stranger, None))  # type: ignore[arg-type]
    assert stranger.principal == "User:ANONYMOUS"


def test_a_client_of_sasl_has_a_gate_whatever_its_certificate_says() -> None:
    keys = {"sasl.enabled.mechanisms": "PLAIN", PLAIN: USERS, "sasl.server.max.receive.size": "99"}
    client = Greeted(b"not looked at")
    assert security("SASL_PLAINTEXT", **keys).greet(client, None) is None  # type: ignore[arg-type]
    assert client.gate is not None
    assert (client.principal, client.limits) == ("User:ANONYMOUS", [99])


class Keys:
    """Counts its starts, and its ends."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        self.calls.append("close")


async def test_the_keys_of_tokens_live_as_long_as_their_listener() -> None:
    for failure in (None, ConfigError("sasl.oauthbearer.jwks.endpoint.url", None, "refused")):
        keys = Keys(failure)
        offers = {"X": Offer(pytest.fail), "Y": Offer(pytest.fail, keys=keys)}  # type: ignore[arg-type]
        sasl = SaslSettings(offers, 1, 0.0)
        made = ListenerSecurity(None, PrincipalMapping("DEFAULT"), sasl, lambda user: False)
        if failure is None:
            await made.start()
        else:
            with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url: refused"):
                await made.start()
        await made.close()
        assert keys.calls == ["start", "close"]
    bare = ListenerSecurity(None, PrincipalMapping("DEFAULT"), None, lambda user: False)
    await bare.start()
    await bare.close()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "the client shows no certificate, and ssl.client"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "the client does not accept the certificate shown to it"),
        ("TLSV1_ALERT_UNKNOWN_CA", "the client does not accept the certificate shown to it"),
        ("HTTP_REQUEST", "the client does not speak TLS"),
        ("WRONG_VERSION_NUMBER", "the client does not speak TLS"),
        ("NO_SHARED_CIPHER", "no TLS connection (NO_SHARED_CIPHER)"),
        (None, "no TLS connection (broken off)"),
    ],
)
def test_what_a_failed_handshake_means(reason: str | None, words: str) -> None:
    error = ssl.SSLError("what was said")
    error.reason = reason  # type: ignore[assignment]
    assert handshake_problem(error).startswith(words)
    refused = ssl.SSLCertVerificationError("refused")
    refused.verify_message = "it has expired"
    problem = "the client's certificate is refused: it has expired"
    assert handshake_problem(refused) == problem


class Ended:
    """What a group of connections hears of handshakes."""

    limits = ServerLimits(tls_handshake_ms=1_234.0)

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str | None]] = []

    def end_handshake(self, listener: str, host: str, problem: str | None) -> None:
        self.told.append((listener, host, problem))


def test_only_faults_of_tls_and_slowness_of_a_handshake_are_reported() -> None:
    group = Ended()
    handshakes = TlsHandshakes(None, group, "OUT")  # type: ignore[arg-type]
    assert handshakes.timeout_ms == 1_234.0
    error = ssl.SSLError("what was said")
    error.reason = "NO_SHARED_CIPHER"
    handshakes.end("h", None, is_late=False)
    handshakes.end("h", ConnectionResetError(), is_late=False)
    handshakes.end("h", error, is_late=False)
    handshakes.end("h", TimeoutError(), is_late=True)
    handshakes.end("h", error, is_late=True)
    late = "no TLS handshake within 1234 ms"
    problems = [None, None, "no TLS connection (NO_SHARED_CIPHER)", late, late]
    assert group.told == [("OUT", "h", problem) for problem in problems]
