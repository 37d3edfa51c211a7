"""TLS and SASL as a client: what works, and what is one clear error."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moldau.client import Admin, Consumer, KafkaError, Producer
from moldau.client.errors import AuthenticationFailed, TlsFailed
from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from tests.fake_broker import (
    KAFKA_2_1,
    AnswerError,
    Certificates,
    Change,
    CutResponse,
    FakeCluster,
    Security,
    limited,
)
from tests.unit.client.faults.harness import (
    CONSUMER,
    PRODUCER,
    check_delivered,
    delivered,
    ends,
    partition,
    take,
    values_of,
)
from tests.virtual.machine import pass_time

USER = {"sasl_username": "alice", "sasl_password": "s3cret, with =signs"}
USERS = {"alice": "s3cret, with =signs"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def trust(certificates: Certificates) -> dict[str, Any]:
    return {"ssl_truststore_location": str(certificates.authority_path)}


async def _round_trip(cluster: FakeCluster, settings: dict[str, Any]) -> None:
    """Produce and consume a record."""
    async with Producer(cluster.bootstrap_servers, **{**PRODUCER, **settings}) as producer:
        await ends(producer.send("t", b"secret"), "send")
    async with Consumer(cluster.bootstrap_servers, **{**CONSUMER, **settings}) as consumer:
        consumer.assign([partition(0)])
        assert values_of(await take(consumer, 1)) == [b"secret"]


@pytest.mark.real
async def test_tls(certificates: Certificates, trust: dict[str, Any]):
    async with FakeCluster(1, topics={"t": 1}, security=Security("SSL", certificates)) as cluster:
        await _round_trip(cluster, {"security_protocol": "SSL", **trust})


@pytest.mark.real
async def test_tls_with_a_client_certificate(certificates: Certificates, trust: dict[str, Any]):
    security = Security("SSL", certificates, client_certificate_required=True)
    async with FakeCluster(1, topics={"t": 1}, security=security) as cluster:
        settings = {
            "security_protocol": "SSL",
            **trust,
            "ssl_keystore_certificate_chain": certificates.client_path.read_text(),
            "ssl_keystore_key": certificates.client_key_path.read_text(),
        }
        await _round_trip(cluster, settings)
        del settings["ssl_keystore_certificate_chain"], settings["ssl_keystore_key"]
        settings |= {"default_api_timeout_ms": 500}
        async with Admin(cluster.bootstrap_servers, **settings) as admin:
            with pytest.raises(KafkaError):
                await ends(admin.list_topics(), "without a certificate")


@pytest.mark.real
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_passwords(
    protocol: Any, mechanism: str, certificates: Certificates, trust: dict[str, Any]
):
    security = Security(protocol, certificates, users=USERS)
    async with FakeCluster(1, topics={"t": 1}, security=security) as cluster:
        settings = {"security_protocol": protocol, "sasl_mechanism": mechanism, **USER}
        await _round_trip(cluster, {**settings, **(trust if protocol == "SASL_SSL" else {})})
        assert security.authenticated_count >= 2
        assert security.failed_count == 0


async def test_tokens_are_asked_for_each_time():
    security = Security("SASL_PLAINTEXT", tokens={"token-1", "token-2"})
    given = []

    async def provide() -> str:
        given.append(f"token-{min(len(given) + 1, 2)}")
        return given[-1]

    async with FakeCluster(1, topics={"t": 1}, security=security) as cluster:
        settings = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_provider": provide,
        }
        await _round_trip(cluster, settings)
        assert given[:2] == ["token-1", "token-2"]


async def test_a_java_users_jaas_config_is_understood():
    security = Security("SASL_PLAINTEXT", users={"alice": 'quo"te'})
    async with FakeCluster(1, topics={"t": 1}, security=security) as cluster:
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="alice" password="quo\\"te";',
        }
        async with Producer(cluster.bootstrap_servers, config=config) as producer:
            await ends(producer.send("t", b"v"), "send")
        check_delivered(cluster, "t", {0: [b"v"]})


async def test_old_brokers_without_session_lifetimes():
    """SaslAuthenticate of version 0."""
    security = Security("SASL_PLAINTEXT", users=USERS)
    cluster = FakeCluster(1, topics={"t": 1}, versions=KAFKA_2_1, security=security)
    async with cluster:
        settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", **USER}
        await _round_trip(cluster, settings)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_sessions_are_renewed_before_they_end(mechanism: str):
    """KIP-368: on the same connections, and what comes after a session's end fails this test."""
    security = Security("SASL_PLAINTEXT", users=USERS, tokens={"good"}, session_lifetime_ms=60_000)
    settings = {**PRODUCER, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauthbearer_token_provider"] = lambda: "good"
    else:
        settings |= USER
    sent = []
    async with FakeCluster(1, topics={"t": 1}, security=security) as cluster:
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            await ends(producer.send("t", b"first"), "the first record")
            connection_count = cluster.nodes[0].accepted_count

            async def send() -> None:
                while security.reauthenticated_count < 3:
                    value = b"%d" % len(sent)
                    await producer.send("t", value)
                    sent.append(value)
                    await pass_time(1_000)

            await ends(send(), "sending over several sessions' ends", 1_000)
            assert cluster.nodes[0].accepted_count == connection_count
        check_delivered(cluster, "t", {0: [b"first", *sent]})


async def test_a_session_that_ended_all_the_same_is_begun_again():
    """A machine that slept: the broker closes, and nothing is lost."""
    security = Security("SASL_PLAINTEXT", users=USERS, session_lifetime_ms=60_000)
    security.session_grace_ms = -59_900
    settings = {
        **PRODUCER,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        **USER,
    }
    sent = []
    cluster = FakeCluster(1, topics={"t": 1}, security=security)
    async with cluster:
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            while security.authenticated_count < 4:
                value = b"%d" % len(sent)
                await ends(producer.send("t", value), "over a cut session")
                sent.append(value)
        check_delivered(cluster, "t", {0: sent})
        assert set(cluster.problems) <= {"PRODUCE without authentication"}
        cluster.problems.clear()


WRONG = [
    ("PLAIN", {"sasl_username": "alice", "sasl_password": "wrong"}),
    ("PLAIN", {"sasl_username": "bob", "sasl_password": "s3cret"}),
    ("SCRAM-SHA-256", {"sasl_username": "alice", "sasl_password": "wrong"}),
    ("SCRAM-SHA-512", {"sasl_username": "nobody", "sasl_password": "wrong"}),
    ("OAUTHBEARER", {"sasl_oauthbearer_token_provider": lambda: "stolen"}),
]


@pytest.mark.parametrize(("mechanism", "credentials"), WRONG)
async def test_wrong_credentials_are_raised_at_once(mechanism: str, credentials: dict[str, Any]):
    """One typed error from every kind of client, and no flood of attempts."""
    security = Security("SASL_PLAINTEXT", users=USERS, tokens={"good"})
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        **credentials,
    }
    async with FakeCluster(1, topics={"t": 1}, security=security) as cluster:
        address = cluster.bootstrap_servers
        with pytest.raises(AuthenticationFailed, match=mechanism) as caught:
            await ends(_admin(address, settings), "the admin call")
        assert "wrong" not in str(caught.value)
        with pytest.raises(AuthenticationFailed, match=mechanism):
            await ends(_send(address, settings), "the send")
        with pytest.raises(AuthenticationFailed, match=mechanism):
            await ends(_poll(address, settings), "the poll")
        assert security.failed_count <= 12


async def _admin(address: str, settings: dict[str, Any]) -> None:
    async with Admin(address, **settings) as admin:
        await admin.list_topics()


async def _send(address: str, settings: dict[str, Any]) -> None:
    async with Producer(address, **{**PRODUCER, **settings}) as producer:
        await producer.send("t", b"value")


async def _poll(address: str, settings: dict[str, Any]) -> None:
    async with Consumer(address, **{**CONSUMER, **settings}) as consumer:
        consumer.assign([partition(0)])
        await consumer.getone()


IMPOSTORS = [
    lambda response: setattr(response, "auth_bytes", b"v=" + b"A" * 43 + b"="),
    lambda response: setattr(response, "auth_bytes", b"v="),
    lambda response: setattr(response, "auth_bytes", b""),
    lambda response: setattr(response, "auth_bytes", b"e=other-error"),
    lambda response: setattr(response, "auth_bytes", b"\xff\x00"),
]
WEAK_CHALLENGES = [
    b"r=somebody-elses-nonce,s=c2FsdHNhbHQ=,i=4096",
    b"r=,s=c2FsdHNhbHQ=,i=4096",
    b"s=c2FsdHNhbHQ=,i=4096",
    b"",
    b"\xff\xfe",
    b"r=%s,s=c2FsdHNhbHQ=,i=1",
    b"r=%s,s=c2FsdHNhbHQ=,i=99999999999",
    b"r=%s,s=not base64!,i=4096",
    b"r=%s,s=c2FsdHNhbHQ=,i=many",
    b"m=extension,r=%s,s=c2FsdHNhbHQ=,i=4096",
]


@pytest.mark.parametrize("change", range(len(IMPOSTORS)))
async def test_a_server_that_does_not_know_the_password_is_not_believed(change: int):
    """SCRAM proves the server too (RFC 5802)."""
    security = Security("SASL_PLAINTEXT", users=USERS)
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **USER}
    async with FakeCluster(1, security=security) as cluster:
        cluster.fault(
            ApiKey.SASL_AUTHENTICATE,
            Change(IMPOSTORS[change]),
            when=lambda each: b"p=" in each.message.auth_bytes,
            times=None,
        )
        with pytest.raises(AuthenticationFailed, match="SCRAM"):
            await ends(_admin(cluster.bootstrap_servers, settings), "the impostor")
        assert cluster.recorder.count(ApiKey.METADATA) == 0


@pytest.mark.parametrize("challenge", WEAK_CHALLENGES)
async def test_a_challenge_that_is_none_is_one_error(challenge: bytes):
    security = Security("SASL_PLAINTEXT", users=USERS)
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", **USER}

    def change(response: Any) -> None:
        nonce = bytes(response.auth_bytes).split(b",")[0].removeprefix(b"r=")
        response.auth_bytes = challenge % nonce if b"%s" in challenge else challenge

    async with FakeCluster(1, security=security) as cluster:
        cluster.fault(
            ApiKey.SASL_AUTHENTICATE,
            Change(change),
            when=lambda each: b"p=" not in each.message.auth_bytes,
            times=None,
        )
        with pytest.raises(AuthenticationFailed, match="SCRAM"):
            await ends(_admin(cluster.bootstrap_servers, settings), "the challenge")
        assert b"p=" not in b"".join(
            bytes(each.auth_bytes) for each in cluster.recorder.of(SaslAuthenticateRequest)
        ), "no proof for whoever asks badly"


async def test_a_mechanism_that_is_not_offered_names_those_that_are():
    security = Security("SASL_PLAINTEXT", users=USERS, mechanisms=("SCRAM-SHA-512",))
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", **USER}
    async with FakeCluster(1, security=security) as cluster:
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-512"):
            await ends(_admin(cluster.bootstrap_servers, settings), "the refusal")


MIX_UPS = [
    ("PLAINTEXT", "SSL"),
    ("SSL", "PLAINTEXT"),
    ("PLAINTEXT", "SASL_PLAINTEXT"),
    ("SASL_PLAINTEXT", "PLAINTEXT"),
    ("SASL_PLAINTEXT", "SASL_SSL"),
    ("SASL_SSL", "SASL_PLAINTEXT"),
]


@pytest.mark.real
@pytest.mark.parametrize(("listener", "client"), MIX_UPS)
async def test_the_wrong_security_protocol_is_one_error_that_names_the_setting(
    listener: Any, client: str, certificates: Certificates, trust: dict[str, Any]
):
    security = Security(listener, certificates, users=USERS)
    settings: dict[str, Any] = {
        "security_protocol": client,
        "default_api_timeout_ms": 3_000,
        "request_timeout_ms": 1_000,
        "socket_connection_setup_timeout_ms": 1_000,
        **(trust if client.endswith("SSL") else {}),
    }
    if client.startswith("SASL"):
        settings |= {"sasl_mechanism": "PLAIN", **USER}
    cluster = FakeCluster(1, topics={"t": 1}, security=security)
    async with cluster:
        with pytest.raises(KafkaError, match=r"security\.protocol") as caught:
            await ends(_admin(cluster.bootstrap_servers, settings), f"{client} to {listener}")
        if listener.endswith("SSL") != client.endswith("SSL"):
            assert isinstance(caught.value, TlsFailed)
        cluster.problems.clear()


@pytest.mark.real
async def test_a_certificate_of_an_unknown_authority_is_refused(certificates: Certificates):
    async with FakeCluster(1, security=Security("SSL", certificates)) as cluster:
        settings: dict[str, Any] = {"security_protocol": "SSL", "default_api_timeout_ms": 3_000}
        with pytest.raises(TlsFailed, match=r"ssl\.truststore"):
            await ends(_admin(cluster.bootstrap_servers, settings), "the refusal")
        for is_idempotent in (True, False):
            settings = {"security_protocol": "SSL", "enable_idempotence": is_idempotent}
            with pytest.raises(TlsFailed, match=r"ssl\.truststore"):
                await ends(_send(cluster.bootstrap_servers, settings), "the refusal")


@pytest.mark.real
async def test_a_certificate_of_another_host(tmp_path: Path):
    certificates = Certificates(tmp_path, host="elsewhere.example.org")
    async with FakeCluster(1, topics={"t": 1}, security=Security("SSL", certificates)) as cluster:
        settings: dict[str, Any] = {
            "security_protocol": "SSL",
            "default_api_timeout_ms": 3_000,
            "ssl_truststore_location": str(certificates.authority_path),
        }
        with pytest.raises(TlsFailed, match=r"127\.0\.0\.1"):
            await ends(_admin(cluster.bootstrap_servers, settings), "the refusal")
        settings["ssl_endpoint_identification_algorithm"] = ""
        await ends(_admin(cluster.bootstrap_servers, settings), "without the check")


@pytest.mark.parametrize("api_key", [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE])
async def test_a_connection_that_breaks_during_authentication_is_opened_again(api_key: ApiKey):
    security = Security("SASL_PLAINTEXT", users=USERS)
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **USER}
    async with FakeCluster(1, topics={"t": 1}, security=security) as cluster:
        for at_byte in (0, 3, 5, 9, 20):
            fault = cluster.fault(api_key, CutResponse(at_byte))
            await ends(_send(cluster.bootstrap_servers, settings), f"{api_key.name} {at_byte}")
            assert fault.fired_count == 1
        assert delivered(cluster, "t") == [b"value"] * 5


@pytest.mark.real
async def test_over_tls_faults_are_overcome_as_without(
    certificates: Certificates, trust: dict[str, Any]
):
    security = Security("SASL_SSL", certificates, users=USERS)
    settings = {
        **PRODUCER,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        **USER,
        **trust,
    }
    values = [b"%d" % number for number in range(40)]
    async with FakeCluster(2, topics={"t": 1}, security=security) as cluster:
        async with Producer(
            cluster.bootstrap_servers, **{**settings, "batch_size": 60}
        ) as producer:
            for nth, action in enumerate((CutResponse(0), CutResponse(9)), start=1):
                cluster.fault(ApiKey.PRODUCE, action, nth=3 * nth)
            cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER), nth=2)
            await ends(asyncio.gather(*(producer.send("t", value) for value in values)), "over TLS")
        check_delivered(cluster, "t", {0: values})


async def test_a_broker_without_sasl_at_all_is_one_error():
    versions = limited(KAFKA_2_1, sasl_handshake=None, sasl_authenticate=None)
    async with FakeCluster(1, versions=versions) as cluster:
        settings = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "default_api_timeout_ms": 3_000,
            **USER,
        }
        with pytest.raises(KafkaError, match=r"(?i)sasl"):
            await ends(_admin(cluster.bootstrap_servers, settings), "the refusal")
        cluster.problems.clear()
