"""The mistakes and attacks that a secured listener has to survive, one test each, at a real node.

Beside every test a client that nothing is wrong with writes and reads, by TLS and SASL, on
connections that stay open, without retries. After every test it goes on, the node's memory has not
grown by more than a bounded rest, and its log has neither a secret nor an unexpected exception.

What the single parts do with the same input, in every variation, stands elsewhere:

    noise of every kind, from dice          front_ends.py (`make fuzz-listeners`)
    frames of every listener                tests/interop/raw/test_bad_frames.py
    the session's table, every state        tests/unit/server/authentication/test_session.py
    messages of PLAIN and SCRAM             tests/unit/sasl/test_mechanisms.py
    claims, signatures, key ids             tests/unit/sasl/oauthbearer/test_listener.py
    the server of keys, on a manual clock   tests/unit/sasl/oauthbearer/test_jwks.py
    TLS, limits on a manual clock           tests/unit/server/test_secured_server.py
    the same conversations beside Kafka     tests/interop/differential/test_sasl_conversations.py
    10,000 connections, 100,000 ACLs        test_great_numbers.py
"""

from __future__ import annotations

import json
import ssl
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from moldau.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclResourceType,
    DelegationToken,
    ScramMechanism,
    ScramUpsertion,
)
from moldau.client.sync import Admin
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from tests.kit.identity_provider import (
    AUDIENCE,
    BAD_ANSWERS,
    ISSUER,
    IdentityProvider,
    Signer,
    claims_of,
    unsecured,
)
from tests.kit.waiting import until
from tests.system.security.front_ends import complaints_in, framed
from tests.system.security.mistakes import (
    Drip,
    Peer,
    Watched,
    Witness,
    alert_of,
    client_hello,
    in_base64,
    scram_tokens,
)
from tests.system.security.nodes import AUTHORIZER, PASSWORD, SecuredNode

REFUSED = ErrorCode.SASL_AUTHENTICATION_FAILED
MOST_TOKEN_BYTES = 60_000
MOST_FRAME_BYTES = 16_000_000
CAROL, CAROLS_PASSWORD = "carol", "c-secret-of-carol"
SECRET_KEY = "the-key-of-all-nodes"
SUITE = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
OAUTH_URL = "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url"
MANY = 20
PROTOCOL_VERSION, HANDSHAKE_FAILURE = "TLSV1_ALERT_PROTOCOL_VERSION", "HANDSHAKE_FAILURE"


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider
) -> Iterator[SecuredNode]:
    changed = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "sasl.server.max.receive.size": str(MOST_TOKEN_BYTES),
        "socket.request.max.bytes": str(MOST_FRAME_BYTES),
        "delegation.token.secret.key": SECRET_KEY,
        "listener.name.mtls.ssl.cipher.suites": SUITE,
        "listener.name.mtls.ssl.enabled.protocols": "TLSv1.2",
        OAUTH_URL: provider.url,
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": "100",
        "moldau.sasl.oauthbearer.allowed.urls": provider.url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    with SecuredNode(tmp_path_factory.mktemp("mistakes"), changed) as running:
        with Admin(running.address("PLAINTEXT")) as admin:
            carol = ScramUpsertion(CAROL, CAROLS_PASSWORD, ScramMechanism.SCRAM_SHA_256)
            assert admin.alter_user_scram_credentials([carol]) == {CAROL: None}
        yield running


@pytest.fixture(scope="module")
def witness(node: SecuredNode) -> Iterator[Witness]:
    with Witness(node) as running:
        yield running


@pytest.fixture(scope="module")
def secrets(node: SecuredNode, provider: IdentityProvider) -> list[str]:
    """What may never be in the log; tests add what they made themselves."""
    key = node.keystore.read_text().splitlines()[1]
    return [CAROLS_PASSWORD, SECRET_KEY, key]


@pytest.fixture(autouse=True)
def undisturbed(node: SecuredNode, witness: Witness, secrets: list[str]) -> Iterator[None]:
    with Watched(node):
        yield
        witness.goes_on()
    log = node.log()
    assert complaints_in(log) == []
    assert [each for each in secrets if each in log] == []
    assert node.process.running


def trusting(node: SecuredNode) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(node.trust_path))


# -- slow-loris: these begin first, since a node gives them ten seconds for TLS, thirty for SASL --


class Patient:
    """Peers that say little or nothing, all there from the first test to the last."""

    def __init__(self, node: SecuredNode, stack: ExitStack) -> None:
        def peers(listener: str) -> list[Peer]:
            return [stack.enter_context(Peer(node, listener)) for _ in range(MANY)]

        self.silent, self.hello_only = peers("SSL"), peers("SASL_SSL")
        for each in self.hello_only:
            each.send(client_hello())
        self.unauthenticated = peers("SASL_PLAINTEXT")
        tls, sasl, requests = peers("SSL"), peers("SASL_PLAINTEXT"), peers("SASL_PLAINTEXT")
        for each in sasl:
            each.choose("PLAIN")
        for each in requests:
            each.log_in()
        self.tls = Drip(tls, client_hello())
        self.sasl = Drip(sasl, struct.pack(">ihhih", 50_000, 36, 2, 2, -1) + bytes(2_000))
        # As much as is announced: they must be there in the end, however long the tests take.
        self.requests = Drip(requests, struct.pack(">ihhih", 900_000, 0, 9, 3, -1) + bytes(800_000))
        for drip in (self.tls, self.sasl, self.requests):
            stack.callback(drip.stop)


@pytest.fixture(scope="module", autouse=True)
def patient(node: SecuredNode, witness: Witness) -> Iterator[Patient]:
    with ExitStack() as stack:
        yield Patient(node, stack)


# -- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL"])
def test_garbage_bytes(node: SecuredNode, listener: str) -> None:
    for garbage in (b"\xff" * 100, bytes(5) + b"\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x80" * 70_000):
        with Peer(node, listener) as peer:
            peer.send(garbage)
            answer = peer.end()
            assert answer == b"" or alert_of(answer) is not None


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("size", [MOST_TOKEN_BYTES + 1_000, 2**31 - 1, -1, 0, 3])
def test_frames_of_impossible_sizes(node: SecuredNode, listener: str, size: int) -> None:
    """Before authentication the limit is `sasl.server.max.receive.size`."""
    context = trusting(node) if listener == "SASL_SSL" else None
    with Peer(node, listener, context) as peer:
        peer.send(struct.pack(">i", size) + bytes(8))
        assert peer.end() == b""


def test_an_oversized_frame_of_an_authenticated_client(node: SecuredNode) -> None:
    with Peer(node, "SASL_PLAINTEXT") as peer:
        assert peer.log_in().error_code == ErrorCode.NONE
        peer.send(struct.pack(">i", MOST_FRAME_BYTES + 1) + bytes(1_000))
        assert peer.end() == b""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_oversized_tokens(node: SecuredNode, mechanism: str) -> None:
    with Peer(node, "SASL_PLAINTEXT") as peer:
        peer.choose(mechanism)
        with pytest.raises(EOFError):
            peer.token(b"n" * (MOST_TOKEN_BYTES + 1))
    with Peer(node, "SASL_PLAINTEXT") as peer:
        peer.choose(mechanism)
        assert peer.token(b"n" * (MOST_TOKEN_BYTES - 100)).error_code == REFUSED


# -- TLS ------------------------------------------------------------------------------------------


def test_handshakes_that_are_broken_off(node: SecuredNode) -> None:
    hello = client_hello()
    for size in (1, 5, len(hello) // 2, len(hello)):
        for _ in range(20):
            with Peer(node, "SASL_SSL") as peer:
                peer.send(hello[:size])
    with Peer(node, "SASL_SSL") as peer:
        peer.send(hello)
        assert peer.socket.recv(1) == b"\x16"  # closed when the server has said its part


def test_plaintext_at_a_port_of_tls(node: SecuredNode) -> None:
    with Peer(node, "SASL_SSL") as peer:
        peer.send(framed(ApiVersionsRequest(), 0, 1))
        answer = peer.end()
        assert answer == b"" or alert_of(answer) is not None


def test_tls_at_a_plaintext_port(node: SecuredNode) -> None:
    for listener in ("PLAINTEXT", "SASL_PLAINTEXT"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Peer(node, listener, trusting(node))


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_a_downgrade_to_an_old_tls(node: SecuredNode, version: str) -> None:
    context = trusting(node)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    context.set_ciphers("ALL:@SECLEVEL=0")
    for listener in ("SSL", "MTLS", "SASL_SSL"):
        with pytest.raises(ssl.SSLError) as refused:
            Peer(node, listener, context)
        assert refused.value.reason == PROTOCOL_VERSION


def test_a_downgrade_to_a_cipher_that_is_not_enabled(node: SecuredNode) -> None:
    context = trusting(node)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError) as refused:
        Peer(node, "MTLS", context)
    assert HANDSHAKE_FAILURE in str(refused.value.reason)


# -- SASL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "GSSAPI", "žluť", "", "x" * 30_000])
def test_a_mechanism_that_is_not_enabled_or_not_known(node: SecuredNode, mechanism: str) -> None:
    with Peer(node, "SASL_PLAINTEXT") as peer:
        answer = peer.choose(mechanism)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"]
        assert peer.end() == b""


def test_a_mechanism_that_changes_after_the_handshake(node: SecuredNode) -> None:
    """PLAIN was chosen: the first message of SCRAM is no token of it, nor a second handshake."""
    with Peer(node, "SASL_PLAINTEXT") as peer:
        peer.choose("PLAIN")
        assert peer.token(b"n,,n=carol,r=abc").error_code == REFUSED
        assert peer.end() == b""
    with Peer(node, "SASL_PLAINTEXT") as peer:
        peer.choose("PLAIN")
        assert peer.choose("SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert peer.end() == b""


def test_a_request_before_authentication(node: SecuredNode) -> None:
    for chosen in (None, "PLAIN"):
        with Peer(node, "SASL_PLAINTEXT") as peer:
            if chosen is not None:
                peer.choose(chosen)
            with pytest.raises(EOFError):
                peer.ask(MetadataRequest(), 12)


def test_a_request_right_behind_a_wrong_password(node: SecuredNode) -> None:
    with Peer(node, "SASL_PLAINTEXT") as peer:
        assert peer.log_in(b"\0alice\0guessed").error_code == REFUSED
        peer.send(framed(MetadataRequest(), 12, 9))
        assert peer.end() == b""


def test_replayed_messages_of_scram(node: SecuredNode) -> None:
    """The client's nonce may come again; what proves the password depends on the server's."""
    with Peer(node, "SASL_PLAINTEXT") as peer:
        first, final, answer = scram_tokens(peer, CAROL, CAROLS_PASSWORD, "the-same-nonce")
        assert answer.error_code == ErrorCode.NONE
    for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
        context = trusting(node) if listener == "SASL_SSL" else None
        with Peer(node, listener, context) as peer:
            peer.choose("SCRAM-SHA-256")
            assert peer.token(first).error_code == ErrorCode.NONE
            assert peer.token(final).error_code == REFUSED
            assert peer.end() == b""


def test_a_nonce_of_the_server_that_is_changed(node: SecuredNode) -> None:
    def cut(final: bytes) -> bytes:
        nonce = final[final.index(b",r=") + 3 : final.index(b",p=")]
        return final.replace(nonce, nonce[:-1])

    for change in (cut, lambda final: final.replace(b",p=", b"x,p=")):
        with Peer(node, "SASL_PLAINTEXT") as peer:
            peer.choose("SCRAM-SHA-256")
            first, final = b"n,,n=carol,r=abc", b"c=biws,r=%s,p=AAAA"
            told = bytes(peer.token(first).auth_bytes)
            nonce = told[2 : told.index(b",")]
            assert peer.token(change(final % nonce)).error_code == REFUSED


def test_a_replayed_login_by_a_delegation_token(node: SecuredNode, secrets: list[str]) -> None:
    token = _token_of_carol(node)
    secrets.append(in_base64(token.hmac))
    as_token = {"tokenauth": "true"}
    with Peer(node, "SASL_PLAINTEXT") as peer:
        first, final, answer = scram_tokens(
            peer, token.token_id, in_base64(token.hmac), extensions=as_token
        )
        assert answer.error_code == ErrorCode.NONE
    with Peer(node, "SASL_PLAINTEXT") as peer:
        peer.choose("SCRAM-SHA-256")
        assert peer.token(first).error_code == ErrorCode.NONE
        assert peer.token(final).error_code == REFUSED
    with Peer(node, "SASL_PLAINTEXT") as peer:  # as a user's name, the token's id is none
        refused = scram_tokens(peer, token.token_id, in_base64(token.hmac))[2]
        assert refused.error_code == REFUSED


def _token_of_carol(node: SecuredNode) -> DelegationToken:
    with Admin(
        node.address("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username=CAROL,
        sasl_password=CAROLS_PASSWORD,
    ) as admin:
        return admin.create_delegation_token()


@pytest.mark.parametrize("flag", [b"y", b"p=tls-unique", b"p=tls-exporter"])
def test_a_downgrade_by_channel_binding(node: SecuredNode, flag: bytes) -> None:
    """No mechanism with -PLUS is offered: a client that binds is misled (RFC 5802, section 6)."""
    with Peer(node, "SASL_SSL", trusting(node)) as peer:
        peer.choose("SCRAM-SHA-256")
        assert peer.token(flag + b",,n=carol,r=abc").error_code == REFUSED
        assert peer.end() == b""
    with Peer(node, "SASL_PLAINTEXT") as peer:  # "n" first, another flag where it is proved
        peer.choose("SCRAM-SHA-256")
        told = bytes(peer.token(b"n,,n=carol,r=abc").auth_bytes)
        bound = in_base64(flag + b",,").encode()
        final = b"c=%s,r=%s,p=AAAA" % (bound, told[2 : told.index(b",")])
        assert peer.token(final).error_code == REFUSED


# -- bearer tokens --------------------------------------------------------------------------------


def by_bearer(node: SecuredNode, token: str) -> Any:
    """The last answer, and what the challenge before it says; {} without one."""
    with Peer(node, "SASL_PLAINTEXT") as peer:
        peer.choose("OAUTHBEARER")
        answer = peer.token(b"n,,\x01auth=Bearer %s\x01\x01" % token.encode())
        if answer.error_code or not answer.auth_bytes:
            return answer, {}
        told = json.loads(bytes(answer.auth_bytes))
        final = peer.token(b"\x01")
        assert final.error_code == REFUSED
        assert peer.end() == b""
        return final, told


def comes_in(node: SecuredNode, token: str) -> bool:
    return by_bearer(node, token)[0].error_code == ErrorCode.NONE


JWTS: dict[str, Callable[[Signer], str]] = {
    "expired": lambda signer: signer.token(claims_of(age_s=600, left_s=-60)),
    "not valid yet": lambda signer: signer.token(claims_of(nbf=4_000_000_000)),
    "another issuer": lambda signer: signer.token(claims_of(iss="https://evil.example")),
    "another audience": lambda signer: signer.token(claims_of(aud="x")),
    "no subject": lambda signer: signer.token(claims_of(sub=None)),
    "signed by another": lambda signer: Signer(signer.key_id).token(),
    "an unknown key": lambda signer: Signer("unknown").token(),
    "a changed claim": lambda signer: _with_claims_of(signer.token(), signer),
    "no signature": lambda signer: signer.token().rsplit(".", 1)[0] + ".",
    "alg none": lambda signer: unsecured(),
    "alg NONE": lambda signer: unsecured(algorithm="NONE"),
    "alg none with a signature": lambda signer: unsecured(signature=b"x" * 256),
    "HS256 by the public key": lambda signer: signer.signed_by_hmac("HS256"),
    "HS512 by the public key": lambda signer: signer.signed_by_hmac("HS512"),
    "no token": lambda signer: "e30.e30.e30",
}


def _with_claims_of(token: str, signer: Signer) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{signer.token(claims_of('alice')).split('.')[1]}.{signature}"


@pytest.mark.parametrize("make", JWTS.values(), ids=JWTS)
def test_jwts_that_are_expired_or_wrongly_signed(
    node: SecuredNode, provider: IdentityProvider, secrets: list[str], make: Callable[..., str]
) -> None:
    token = make(provider.signer)
    if len(token) > 100:
        secrets.append(token[-40:])
    answer, told = by_bearer(node, token)
    assert answer.error_code == REFUSED
    assert told["status"] == "invalid_token"
    assert comes_in(node, provider.signer.token())


@pytest.mark.parametrize("kind", BAD_ANSWERS)
def test_a_server_of_keys_that_is_slow_dead_or_lies(
    node: SecuredNode, provider: IdentityProvider, kind: str
) -> None:
    """What it said last stays true until it says better."""
    newer = Signer(f"newer-{kind}", "EC")
    provider.answer, asked = BAD_ANSWERS[kind], provider.asked
    try:
        until(lambda: provider.asked > asked, what="the node asks it")
        assert not comes_in(node, newer.token())
        assert comes_in(node, provider.signer.token())
    finally:
        provider.answer = None
    provider.keys.append(newer.public())
    try:
        until(lambda: comes_in(node, newer.token()), what="the next good answer")
    finally:
        provider.keys.pop()


def test_a_server_of_keys_that_gives_another_s_key_under_a_known_name(
    node: SecuredNode, provider: IdentityProvider
) -> None:
    """A key set is believed as a whole: the name of a key proves nothing, its signature does."""
    right, other = list(provider.keys), Signer(provider.signer.key_id)
    provider.keys[:] = [other.public()]
    try:
        until(lambda: comes_in(node, other.token()), what="the other key")
        assert not comes_in(node, provider.signer.token())
    finally:
        provider.keys[:] = right
    until(lambda: comes_in(node, provider.signer.token()), what="the right key")
    assert not comes_in(node, other.token())


# -- names ----------------------------------------------------------------------------------------

ODD_NAMES = (
    "eve\r\n[2026-01-01] INFO FORGED", "a\tb\x1b[31m", 'a"b\'c`d', "a,b=c;d", "*", "User:*",
    "=2C", "%2C", "../../etc/passwd", "{}{0}%s%n", "\u202eevil", "\ufeffbom", "e\u0301", "é",
    "\ufb01", "fi", " ", "x" * 10_000,
)  # fmt: skip


def every_character() -> list[str]:
    """Names that have every character of Unicode between them."""
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    return ["".join(map(chr, points[at : at + 4_096])) for at in range(0, len(points), 4_096)]


def test_principals_with_every_character(node: SecuredNode) -> None:
    """A principal of users, ACLs and quotas comes back as it was given, none is taken for
    another.
    """
    names = [*every_character(), *ODD_NAMES]
    kind = ScramMechanism.SCRAM_SHA_256
    with Admin(node.address("PLAINTEXT"), default_api_timeout_ms=120_000) as admin:
        users = admin.alter_user_scram_credentials(
            [ScramUpsertion(each, PASSWORD, kind) for each in names]
        )
        assert {name: error for name, error in users.items() if error} == {}
        assert set(names) <= set(admin.describe_user_scram_credentials())
        acls = [
            AclBinding(AclResourceType.TOPIC, "t-odd", f"User:{each}", AclOperation.READ)
            for each in names
        ]
        admin.create_acls(acls)
        assert set(admin.describe_acls(AclFilter(resource_name="t-odd"))) == set(acls)
        quotas = {(("user", each),): {"request_percentage": 1_000.0} for each in names}
        done = admin.alter_client_quotas(quotas)
        assert {name: error for name, error in done.items() if error} == {}
        assert admin.describe_client_quotas(any_of=["user"]) == quotas
        # Each by itself, and away again.
        for each in ODD_NAMES:
            wanted = AclFilter(resource_name="t-odd", principal=f"User:{each}")
            assert [acl.principal for acl in admin.delete_acls([wanted])] == [f"User:{each}"]
        admin.delete_acls([AclFilter(resource_name="t-odd")])
        gone = {entity: {"request_percentage": None} for entity in quotas}
        assert not any(admin.alter_client_quotas(gone).values())
        assert admin.describe_client_quotas(any_of=["user"]) == {}


def test_users_log_in_under_every_name(node: SecuredNode) -> None:
    """As in Apache Kafka, names are compared by their characters, without SASLprep; RFC 5802 rules
    NUL out. A name with a line break starts no line of the log.
    """
    names = [each.replace("\0", "") for each in (*every_character()[::40], *ODD_NAMES)]
    kind = ScramMechanism.SCRAM_SHA_256
    with Admin(node.address("PLAINTEXT")) as admin:
        for number, each in enumerate(names):
            admin.alter_user_scram_credentials([ScramUpsertion(each, f"p-{number}", kind)])
    for number, each in enumerate(names):
        with Peer(node, "SASL_PLAINTEXT") as peer:
            assert scram_tokens(peer, each, f"p-{number}")[2].error_code == ErrorCode.NONE
            allowed = peer.ask(MetadataRequest(topics=None), 12)
            assert [topic for topic in allowed.topics if topic.name] == []
        with Peer(node, "SASL_PLAINTEXT") as peer:
            assert scram_tokens(peer, each, f"p-{number + 1}")[2].error_code == REFUSED
    with Peer(node, "SASL_PLAINTEXT") as peer:
        peer.choose("SCRAM-SHA-256")
        assert peer.token(b"n,,n=a\0b,r=abc").error_code == REFUSED
    assert not any(
        line.startswith(("[2026-01-01]", "FORGED")) or "\x1b" in line
        for line in node.log().splitlines()
    )


# -- the end of those that began first ------------------------------------------------------------


def test_slow_loris_in_tls(patient: Patient) -> None:
    """A byte at a time, and no byte at all: a handshake has ten seconds."""
    for each in (*patient.silent, *patient.hello_only):
        each.end()
    patient.tls.join(60)
    assert len(patient.tls.life_s) == MANY


def test_slow_loris_in_sasl(patient: Patient) -> None:
    """Authentication has thirty seconds, however it is spent."""
    for each in patient.unauthenticated:
        assert each.end() == b""
    patient.sasl.join(60)
    assert len(patient.sasl.life_s) == MANY


def test_slow_loris_in_requests(node: SecuredNode, patient: Patient) -> None:
    """A client that is known may be slow, as in Apache Kafka: it costs what it has sent, and not
    the 900,000 bytes that it has announced.
    """
    assert patient.requests.is_alive()
    assert patient.requests.life_s == []
    with Watched(node, growth_bytes=16 * 2**20):
        patient.requests.stop()
