"""TLS and SASL on real sockets: who gets in, who is cut, and that the others do not notice."""

from __future__ import annotations

import asyncio
import datetime
import errno
import logging
import os
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from moldau.config import NodeConfig
from moldau.config.listeners import Endpoint, SecurityProtocol
from moldau.metadata.scram_users import ScramUsers
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import ReceiveMemory
from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataResponse
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from moldau.protocol.scram import KnownKeys, salted_password, scram_keys
from moldau.runtime import tls_transport
from moldau.runtime.ports import Ports
from moldau.runtime.tls_transport import TlsTransport
from moldau.sasl.plain import WRONG_PASSWORD, PlainLogin
from moldau.sasl.scram import ScramClient
from moldau.server.authentication.listener_security import ListenerSecurity
from moldau.server.authentication.out_of_place import refuse_handshake, refuse_token
from moldau.server.authorizer import Authorizer
from moldau.server.connection_limits import ServerLimits
from moldau.server.quotas.core.connection_rates import ConnectionRates
from moldau.server.request import RequestContext
from moldau.server.request_router import Handler, RequestRouter, Route
from moldau.server.server import ListenerSpec, Server
from moldau.server.server_connection import ServerConnection
from tests.kit.counting import Newcomers, collector_at_rest
from tests.kit.manual_clock import ManualClock
from tests.kit.server_harness import Harness, Peer
from tests.kit.waiting import until_async

pytestmark = [pytest.mark.real, pytest.mark.virtual_too]

PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_alice="a-secret" user_bob="b-secret";'
)
SALT, ITERATIONS = b"some salt", 4_096
OTHERS = ScramUsers()
CAROL = scram_keys(
    "SCRAM-SHA-256",
    salted_password("SCRAM-SHA-256", "c-secret", SALT, ITERATIONS),
    SALT,
    ITERATIONS,
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write_store(authority: trustme.CA, path: Path) -> None:
    leaf = authority.issue_cert("127.0.0.1")
    path.write_bytes(
        leaf.private_key_pem.bytes() + b"".join(each.bytes() for each in leaf.cert_chain_pems)
    )


@pytest.fixture
def stores(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    """Keys of a listener that shows a certificate, and trusts the authority."""
    path = tmp_path / "broker.pem"
    write_store(authority, path)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return {
        "ssl.keystore.location": str(path),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
    }


def find_keys(mechanism: str, *name: Any) -> KnownKeys:
    return KnownKeys(CAROL, "carol") if name == ("carol", False) else OTHERS(mechanism, *name)


def configured(protocol: SecurityProtocol, **keys: str) -> tuple[NodeConfig, Endpoint]:
    config = NodeConfig(
        {
            "process.roles": "broker",
            "node.id": "1",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "127.0.0.1:1",
            "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "listener.security.protocol.map": (
                f"OUTSIDE:{protocol.name},PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.outside.plain.sasl.jaas.config": PLAIN_USERS,
            "connection.failed.authentication.delay.ms": "0",
            **keys,
        }
    )
    return config, next(each for each in config.listeners if each.listener_name == "OUTSIDE")


def answer(context: RequestContext, request: Any) -> None:
    """A Metadata handler that says who asks."""
    context.respond(MetadataResponse(cluster_id=context.principal))


def router(clock: Any) -> RequestRouter:
    def route(handle: Callable[..., None], highest: int) -> Route:
        return Route(0, highest, lambda: Handler(handle=handle))

    return RequestRouter(
        {
            ApiKey.METADATA: route(answer, 13),
            ApiKey.API_VERSIONS: route(lambda c, _: c.respond(ApiVersionsResponse()), 4),
            ApiKey.SASL_HANDSHAKE: route(refuse_handshake, 1),
            ApiKey.SASL_AUTHENTICATE: route(refuse_token, 2),
        },
        clock=clock,
        authorizer=Authorizer(),
        on_fault=lambda error: None,
    )


class Client(Peer):
    """A peer that sends whole requests."""

    count = 0

    async def ask(self, message: Message, version: int) -> Any:
        self.tell(message, version)
        async with asyncio.timeout(20):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            frame = await self.reader.readexactly(size)
        number, response = decode_response(message.API_KEY, version, frame)
        assert number == self.count
        return response

    def tell(self, message: Message, version: int) -> None:
        self.count += 1
        parts = encode_request(
            message, api_version=version, correlation_id=self.count, client_id="test"
        )
        self.writer.write(b"".join(parts))  # type: ignore[arg-type]

    async def raw(self, token: bytes) -> bytes:
        self.writer.write(struct.pack(">i", len(token)) + token)
        async with asyncio.timeout(20):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def log_in(self, name: str, password: str) -> Any:
        """Log in by PLAIN; returns the answer to the token."""
        chosen = await self.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert chosen.error_code == ErrorCode.NONE
        token = PlainLogin(name, password).first()
        return await self.ask(SaslAuthenticateRequest(auth_bytes=token), 2)

    async def who_am_i(self) -> str:
        return (await self.ask(MetadataRequest(), 12)).cluster_id


class Secured:
    """A server with a plaintext and a secured listener, and clients of it."""

    def __init__(self, harness: Harness, server: Server, authority: trustme.CA) -> None:
        self.harness = harness
        self.server = server
        self.authority = authority

    async def client(
        self, listener: str = "OUTSIDE", context: ssl.SSLContext | None = None
    ) -> Client:
        port = self.server.port(listener)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        made = Client(reader, writer)
        self.harness.stack.callback(made.close)
        return made

    async def tls_client(self, leaf: trustme.LeafCert | None = None) -> Client:
        return await self.client(context=self.context(leaf))

    def context(self, leaf: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=None)
        self.authority.configure_trust(context)
        if leaf is not None:
            leaf.configure_cert(context)
        return context


async def secured(
    harness: Harness,
    authority: trustme.CA,
    protocol: SecurityProtocol,
    keys: dict[str, str],
    *,
    limits: ServerLimits | None = None,
    clock: Any = None,
    rates: ConnectionRates | None = None,
) -> Secured:
    config, endpoint = configured(protocol, **keys)
    security = ListenerSecurity.of(config, endpoint, find_keys)
    ports = Ports.of_machine()
    clock = clock or ports.clock
    server = Server(
        router(clock),
        memory=ReceiveMemory(poison=True),
        limits=limits,
        clock=clock,
        rates=rates,
        network=ports.network,
    )
    await server.start(
        [
            ListenerSpec("PLAINTEXT", "127.0.0.1", 0),
            ListenerSpec("OUTSIDE", "127.0.0.1", 0, security),
        ]
    )
    harness.stack.push_async_callback(server.close, 0)
    return Secured(harness, server, authority)


# -- TLS ------------------------------------------------------------------------------------------


async def test_tls_clients_are_served(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    made = await secured(harness, authority, SecurityProtocol.SSL, stores)
    for _ in range(3):
        client = await made.tls_client()
        assert await client.who_am_i() == "User:ANONYMOUS"
    await until_async(lambda: made.server.connections.memory.reserved_bytes == 0)


async def test_large_answers_over_tls_wait_for_a_slow_reader(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    made = await secured(harness, authority, SecurityProtocol.SSL, stores)
    handled: list[int] = []

    def large(request: Any) -> None:
        size = 3_000_000 if request.connection.listener_name == "OUTSIDE" else 10
        handled.append(size)
        request.respond_parts([struct.pack(">ii", size + 4, request.correlation_id), bytes(size)])

    made.server.connections.handler = large
    slow, other = await made.tls_client(), await made.client("PLAINTEXT")
    slow.send(*(slow.request(number) for number in range(5)))
    await until_async(lambda: bool(handled))
    for number in range(5, 20):
        slow.send(slow.request(number))
        other.send(other.request(number))
        assert (await other.receive())[0] == number
    # Those that came with the first one may have been handled before its answer was sent.
    assert handled.count(3_000_000) <= 5, "its further requests wait until it reads"
    for number in range(20):
        assert await slow.receive() == (number, bytes(3_000_000))


@pytest.mark.virtual_too(False)
async def test_plaintext_on_a_tls_port_and_tls_on_a_plaintext_port(
    harness: Harness,
    authority: trustme.CA,
    stores: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = await secured(harness, authority, SecurityProtocol.SSL, stores)
    other = await made.tls_client()
    with caplog.at_level(logging.WARNING):
        plaintext = await made.client()
        plaintext.tell(MetadataRequest(), 12)
        await until_async(lambda: bool(caplog.records))
    assert [record.getMessage() for record in caplog.records] == [
        "failed authentication from host = 127.0.0.1 on listener = OUTSIDE: the client does not "
        "speak TLS, which this listener does"
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING), suppress(OSError):
        await made.client("PLAINTEXT", made.context())
    assert len(caplog.records) == 1
    assert "the peer speaks TLS, which is not spoken here" in caplog.text
    assert await other.who_am_i() == "User:ANONYMOUS"


async def test_a_handshake_that_does_not_end_is_cut_and_holds_up_no_other(
    harness: Harness,
    authority: trustme.CA,
    stores: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ServerLimits(tls_handshake_ms=300.0)
    made = await secured(harness, authority, SecurityProtocol.SSL, stores, limits=limits)
    silent = [await made.client() for _ in range(20)]
    halfway = await made.client()
    halfway.writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
    with caplog.at_level(logging.WARNING):
        assert await (await made.tls_client()).who_am_i() == "User:ANONYMOUS"
        for each in (*silent, halfway):
            assert await each.at_eof()
    assert "no TLS handshake within 300 ms" in caplog.text
    assert len(caplog.records) == 1  # those like it are counted
    assert len(made.server.connections) == 1


async def test_handshakes_count_as_connections(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    limits = ServerLimits(max_connections_per_ip=3)
    made = await secured(harness, authority, SecurityProtocol.SSL, stores, limits=limits)
    assert await (await made.tls_client()).who_am_i() == "User:ANONYMOUS"
    waiting = [await made.client() for _ in range(2)]
    await until_async(lambda: made.server.connections.rejected_count == 0)
    refused = await made.client()
    assert await refused.at_eof()
    assert made.server.connections.rejected_count == 1
    for each in waiting:
        each.close()

    async def let_in() -> bool:
        try:
            return await (await made.tls_client()).who_am_i() == "User:ANONYMOUS"
        except OSError:
            return False

    while not await let_in():
        pass


@pytest.mark.virtual_too(False)
@pytest.mark.usefixtures("dual_stack")
async def test_handshakes_count_for_the_address_in_one_form(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    limits = ServerLimits(max_connections_per_ip_overrides={"127.0.0.1": 1})
    made = await secured(harness, authority, SecurityProtocol.SSL, stores, limits=limits)
    assert await (await made.tls_client()).who_am_i() == "User:ANONYMOUS"
    with pytest.raises((ConnectionError, ssl.SSLError)):  # before the handshake has ended
        await made.tls_client()


async def test_certificates_are_asked_for_and_name_the_client(
    harness: Harness,
    authority: trustme.CA,
    stores: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    rules = "RULE:^OU=([a-z]+),O=.*$/$1-client/"
    keys = {**stores, "ssl.client.auth": "required", "ssl.principal.mapping.rules": rules}
    made = await secured(harness, authority, SecurityProtocol.SSL, keys)

    def issued(unit: str, by: trustme.CA = authority) -> trustme.LeafCert:
        return by.issue_cert("client", organization_name="moldau", organization_unit_name=unit)

    assert await (await made.tls_client(issued("orders"))).who_am_i() == "User:orders-client"
    for leaf, reason, told in (
        (None, "shows no certificate", "CERTIFICATE_REQUIRED"),
        (issued("orders", trustme.CA()), "certificate is refused", "UNKNOWN_CA"),
        (issued("ORDERS"), "no rule of ssl.principal.mapping.rules matches", None),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            client = await made.tls_client(leaf)
            client.tell(MetadataRequest(), 12)
            async with asyncio.timeout(20):
                # With TLS 1.3 the client learns it when it reads.
                if told is None:
                    assert await client.at_eof()
                else:
                    with pytest.raises(ssl.SSLError) as refused:
                        await client.reader.read(1)
                    assert told in str(refused.value.reason)
            await until_async(lambda: bool(caplog.records))
        assert reason in caplog.text


class Resuming:
    """A client that resumes its session of TLS with each connection, as Java's clients do."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self._context = context
        self._port = port
        self._session: ssl.SSLSession | None = None

    def ask(self) -> tuple[bool, str | None]:
        """Whether its session was resumed, and who it is; None when it is cut."""
        parts = encode_request(MetadataRequest(), api_version=12, correlation_id=1, client_id="r")
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=20) as raw,
            self._context.wrap_socket(raw, session=self._session) as tls,
        ):
            is_resumed, answered = bool(tls.session_reused), b""
            with suppress(ConnectionError):
                tls.sendall(b"".join(parts))  # type: ignore[arg-type]
                while chunk := tls.recv(65_536):
                    answered += chunk
                    if len(answered) == 4 + struct.unpack_from(">i", answered)[0]:
                        break
            if not answered:
                return is_resumed, None
            self._session = tls.session
        return is_resumed, decode_response(ApiKey.METADATA, 12, answered[4:])[1].cluster_id


@pytest.mark.virtual_too(False)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_not_resumed_after_its_certificate_s_end(
    harness: Harness,
    authority: trustme.CA,
    stores: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    version: ssl.TLSVersion,
) -> None:
    keys = {**stores, "ssl.client.auth": "required"}
    made = await secured(harness, authority, SecurityProtocol.SSL, keys)
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    end = now + datetime.timedelta(hours=1)
    leaf = authority.issue_cert("client", common_name="carol", not_after=end)
    context = made.context(leaf)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version
    client = Resuming(context, made.server.port("OUTSIDE"))
    for is_second in (False, True):
        resumed, name = await asyncio.to_thread(client.ask)
        assert resumed is is_second
        assert "CN=carol" in str(name)
    clock = SimpleNamespace(time=lambda: end.timestamp() - 1)
    monkeypatch.setattr(tls_transport, "time", clock)
    assert (await asyncio.to_thread(client.ask))[1] is not None
    clock.time = lambda: end.timestamp()
    with caplog.at_level(logging.WARNING):
        assert await asyncio.to_thread(client.ask) == (True, None)
        await until_async(lambda: bool(caplog.records))
    assert caplog.messages == [
        "failed authentication from host = 127.0.0.1 on listener = OUTSIDE: the client's "
        "certificate is refused: certificate has expired"
    ]
    await until_async(lambda: not len(made.server.connections))
    other = await made.tls_client(authority.issue_cert("client", common_name="dave"))
    assert "CN=dave" in await other.who_am_i()


async def test_certificates_may_be_optional(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    keys = {**stores, "ssl.client.auth": "requested"}
    made = await secured(harness, authority, SecurityProtocol.SSL, keys)
    leaf = authority.issue_cert("client", common_name="alice", organization_name="moldau")
    assert await (await made.tls_client()).who_am_i() == "User:ANONYMOUS"
    assert "CN=alice" in await (await made.tls_client(leaf)).who_am_i()


def shown(client: Client) -> bytes:
    """The certificate that the server has shown."""
    return client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)


async def test_clients_are_served_while_a_new_certificate_cannot_be_loaded(
    harness: Harness,
    authority: trustme.CA,
    stores: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = await secured(harness, authority, SecurityProtocol.SSL, stores)

    before = shown(await made.tls_client())
    write_store(authority, Path(stores["ssl.keystore.location"]))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(os, "memfd_create", full, raising=False)
        patched.setattr(tempfile, "mkstemp", full)
        for _ in range(3):
            client = await made.tls_client()
            assert await client.who_am_i() == "User:ANONYMOUS"
            assert shown(client) == before
    assert caplog.messages == [
        "listener OUTSIDE keeps its certificate, the files that have changed cannot be used: "
        "ssl.keystore: No space left on device"
    ]
    assert shown(await made.tls_client()) != before


async def test_a_new_certificate_is_for_new_connections(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    made = await secured(harness, authority, SecurityProtocol.SSL, stores)
    before = await made.tls_client()
    write_store(authority, Path(stores["ssl.keystore.location"]))
    after = await made.tls_client()

    assert shown(before) != shown(after)
    assert await before.who_am_i() == await after.who_am_i()


@pytest.mark.virtual_too(False)
async def test_connections_that_are_gone_leave_no_cycles(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    """The collector of a node comes seldom, and a TLS connection holds much memory."""
    made = await secured(harness, authority, SecurityProtocol.SSL, stores)
    new = Newcomers(ServerConnection, TlsTransport)
    with collector_at_rest():
        for _ in range(3):
            client = await made.tls_client()
            assert await client.who_am_i() == "User:ANONYMOUS"
            client.close()
            for listener, noise in (("OUTSIDE", b"GET / HTTP/1.1"), ("PLAINTEXT", b"\xff" * 4)):
                stranger = await made.client(listener)
                stranger.send(noise)
                assert (await stranger.reader.read())[:1] in (b"", b"\x15"), "an alert at most"
                stranger.close()
        await until_async(lambda: not len(made.server.connections))
        await until_async(lambda: not new.objects())


# -- SASL -----------------------------------------------------------------------------------------


async def sasl(harness: Harness, **options: Any) -> Secured:
    keys = options.pop("keys", {})
    return await secured(harness, trustme.CA(), SecurityProtocol.SASL_PLAINTEXT, keys, **options)


async def test_a_session_by_plain(harness: Harness) -> None:
    made = await sasl(harness)
    client = await made.client()
    assert (await client.ask(ApiVersionsRequest(), 3)).error_code == ErrorCode.NONE
    logged_in = await client.log_in("alice", "a-secret")
    assert (logged_in.error_code, logged_in.error_message) == (ErrorCode.NONE, None)
    assert (logged_in.auth_bytes, logged_in.session_lifetime_ms) == (b"", 0)
    assert await client.who_am_i() == "User:alice"
    # A session without an end cannot be renewed; the connection stays.
    again = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert (again.error_code, again.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    token = await client.ask(SaslAuthenticateRequest(auth_bytes=b"x"), 2)
    assert token.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert await client.who_am_i() == "User:alice"
    assert (await client.ask(ApiVersionsRequest(), 3)).error_code == ErrorCode.NONE


async def test_sasl_requests_on_a_plaintext_listener(harness: Harness) -> None:
    made = await sasl(harness)
    client = await made.client("PLAINTEXT")
    again = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert await client.who_am_i() == "User:ANONYMOUS"


async def test_scram_over_tls(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    made = await secured(harness, authority, SecurityProtocol.SASL_SSL, stores)
    client = await made.tls_client()
    await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
    exchange = ScramClient("sha256", "carol", "c-secret", "nonce")
    token: bytes | None = exchange.first()
    while token is not None:
        response = await client.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
        assert response.error_code == ErrorCode.NONE
        token = exchange.answer(bytes(response.auth_bytes))
    assert exchange.is_complete
    assert await client.who_am_i() == "User:carol"


async def test_wrong_credentials(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    made = await sasl(harness)
    other = await made.client()
    await other.log_in("bob", "b-secret")
    for name, password, reason in (
        ("alice", "b-secret", "the password is wrong"),
        ("mallory", "a-secret", "there is no such user"),
    ):
        caplog.clear()
        client = await made.client()
        refused = await client.log_in(name, password)
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.at_eof()
        assert len(caplog.records) == 1
        assert f"authentication with PLAIN failed: {name!r}: {reason}" in caplog.text
        assert refused.error_message == WRONG_PASSWORD
        assert "-secret" not in caplog.text + refused.error_message
    assert await other.who_am_i() == "User:bob"


async def test_a_mechanism_that_is_not_enabled(harness: Harness) -> None:
    client = await (await sasl(harness)).client()
    refused = await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
    assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert refused.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    assert await client.at_eof()


async def test_nothing_is_answered_before_the_client_is_authenticated(harness: Harness) -> None:
    made = await sasl(harness)
    early = await made.client()
    early.tell(MetadataRequest(), 12)
    assert await early.at_eof()
    late = await made.client()
    await late.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    late.tell(MetadataRequest(), 12)
    assert await late.at_eof()
    behind = await made.client()
    behind.tell(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    behind.tell(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
    behind.tell(MetadataRequest(), 12)
    async with asyncio.timeout(20):
        everything = await behind.reader.read()
    assert b"User:" not in everything


async def test_requests_behind_the_token_in_one_write(harness: Harness) -> None:
    client = await (await sasl(harness)).client()
    client.tell(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    client.tell(SaslAuthenticateRequest(auth_bytes=b"\0alice\0a-secret"), 2)
    for _ in range(2):
        await client.receive()
    assert await client.who_am_i() == "User:alice"


async def test_raw_tokens_behind_a_handshake_of_version_0(harness: Harness) -> None:
    made = await sasl(harness)
    plain = await made.client()
    await plain.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
    assert await plain.raw(b"\0alice\0a-secret") == b""
    assert await plain.who_am_i() == "User:alice"
    scram = await made.client()
    await scram.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 0)
    exchange = ScramClient("sha256", "carol", "c-secret", "nonce")
    proof = exchange.answer(await scram.raw(exchange.first()))
    assert proof is not None
    exchange.answer(await scram.raw(proof))
    assert exchange.is_complete
    assert await scram.who_am_i() == "User:carol"
    wrong = await made.client()
    await wrong.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
    wrong.writer.write(struct.pack(">i", 7) + b"\0alice\0")
    assert await wrong.at_eof()  # there is no error in raw tokens


async def test_what_is_too_large_before_authentication(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    made = await sasl(harness, keys={"sasl.server.max.receive.size": "1000"})
    client = await made.client()
    client.tell(SaslAuthenticateRequest(auth_bytes=bytes(1_000)), 2)
    assert await client.at_eof()
    assert "over the limit of 1000 bytes" in caplog.text
    good = await made.client()
    await good.log_in("alice", "a-secret")
    good.writer.write(struct.pack(">i", 10_000) + bytes(10_000))
    assert await good.at_eof()
    assert "frame length 10000" not in caplog.text  # that frame was read: its header is at fault


async def test_the_refusal_comes_after_a_pause_and_reads_nothing_more(harness: Harness) -> None:
    clock = ManualClock()
    keys = {"connection.failed.authentication.delay.ms": "5000"}
    made = await sasl(harness, keys=keys, clock=clock)
    client = await made.client()
    await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    client.tell(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
    [connection] = made.server.connections
    await until_async(lambda: connection.in_flight_count == 1)
    client.tell(MetadataRequest(), 12)
    clock.advance(4_990)
    assert connection.in_flight_count == 1
    clock.advance(20)
    number, _ = await client.receive()
    assert number == 2
    assert await client.at_eof()


async def test_a_raw_token_is_refused_after_the_pause_and_reported(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    keys = {"connection.failed.authentication.delay.ms": "5000"}
    made = await sasl(harness, keys=keys, clock=clock)
    client = await made.client()
    await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
    token = b"\0" + b"a" * 100_000 + b"\0wrong"
    client.writer.write(struct.pack(">i", len(token)) + token)
    [connection] = made.server.connections
    await until_async(lambda: connection.in_flight_count == 1)
    clock.advance(4_990)
    assert connection.in_flight_count == 1
    clock.advance(20)
    assert await client.at_eof()
    told = [each for each in caplog.records if each.name == "moldau.authentication"]
    assert "authentication with PLAIN failed" in told[0].getMessage()
    assert max(len(each.getMessage()) for each in caplog.records) < 1_000


async def test_who_begins_to_authenticate_again_has_to_end_it(harness: Harness) -> None:
    clock = ManualClock()
    keys = {"listener.name.outside.plain.connections.max.reauth.ms": "600000"}
    made = await sasl(harness, keys=keys, clock=clock)
    good, slow = await made.client(), await made.client()
    for each in (good, slow):
        await each.log_in("alice", "a-secret")
    clock.advance(100_000)
    for each in (good, slow):
        await each.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    token = PlainLogin("alice", "a-secret").first()
    await good.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
    clock.advance(35_000)
    assert await slow.at_eof()
    assert await good.who_am_i() == "User:alice"


async def test_a_client_that_leaves_before_its_refusal(harness: Harness) -> None:
    clock = ManualClock()
    keys = {"connection.failed.authentication.delay.ms": "5000"}
    made = await sasl(harness, keys=keys, clock=clock)
    client = await made.client()
    await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    client.tell(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
    [connection] = made.server.connections
    await until_async(lambda: connection.in_flight_count == 1)
    connection.close("the test takes it away")
    await until_async(lambda: not len(made.server.connections))
    clock.advance(6_000)
    assert made.server.connections.memory.reserved_bytes == 0


async def test_who_never_authenticates_is_cut(harness: Harness) -> None:
    clock = ManualClock()
    made = await sasl(harness, clock=clock)
    silent = [await made.client() for _ in range(5)]
    good = await made.client()
    await good.log_in("alice", "a-secret")
    busy = await made.client()
    await until_async(lambda: len(made.server.connections) == 7)
    clock.advance(20_000)
    await busy.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
    clock.advance(15_000)
    for each in (*silent, busy):
        assert await each.at_eof()
    assert await good.who_am_i() == "User:alice"


async def test_sessions_end_and_are_renewed(harness: Harness) -> None:
    clock = ManualClock()
    keys = {"listener.name.outside.plain.connections.max.reauth.ms": "5000"}
    made = await sasl(harness, keys=keys, clock=clock)
    client, idle = await made.client(), await made.client()
    for each in (client, idle):
        logged_in = await each.log_in("alice", "a-secret")
        assert logged_in.session_lifetime_ms == 5_000
    clock.advance(4_900)
    assert (await client.log_in("alice", "a-secret")).error_code == ErrorCode.NONE
    clock.advance(4_900)
    assert await client.who_am_i() == "User:alice"
    idle.tell(MetadataRequest(), 12)
    assert await idle.at_eof()
    # As another user: refused.
    refused = await client.log_in("bob", "b-secret")
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await client.at_eof()


async def test_garbage_from_many_clients_disturbs_no_other(harness: Harness) -> None:
    made = await sasl(harness)
    good = await made.client()
    await good.log_in("alice", "a-secret")
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 20, 17, 1, 1, -1) + b"\xff" * 10,
        struct.pack(">ihhih", 12, 36, 2, 1, -1) + b"\xff\xff",
        struct.pack(">i", -5),
        struct.pack(">i", 2**30),
    ):
        client = await made.client()
        client.writer.write(garbage)
        assert await client.at_eof(), garbage
    assert await good.who_am_i() == "User:alice"
    await until_async(lambda: made.server.connections.memory.reserved_bytes == 0)
