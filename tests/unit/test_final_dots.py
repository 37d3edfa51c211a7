"""Host names that end with a dot, as Kubernetes' charts advertise them, over TLS: the resolver gets
the name as it is, SNI and the certificate's check get it without its dot (RFC 6066).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme

from moldau.addresses import tls_name
from moldau.local.certificate_authority import _general_name
from moldau.runtime.authentication import AuthenticationError
from moldau.runtime.clock import SystemClock
from moldau.runtime.network import AsyncioNetwork
from moldau.sasl.oauthbearer.jwks import EndpointSettings, KeyEndpoint
from moldau.sasl.oauthbearer.token_endpoint import ClientSecret, TokenEndpoint
from moldau.schema_registry.registry import SchemaRegistry, SchemaRegistryError
from tests.kit.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider

pytestmark = pytest.mark.real

HOST, OTHER = "broker-0.kafka.svc.cluster.test", "broker-1.kafka.svc.cluster.test"


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the resolver was asked for; all are this machine's."""
    asked: list[str] = []
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if isinstance(name, str) and name.removesuffix(".").endswith(".test"):
            asked.append(name)
            host = "127.0.0.1"
        return original(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


class Server:
    """What the TLS servers have: a certificate for HOST alone. `names` are the clients' SNI."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(HOST).configure_cert(self.context)
        self.names: list[str | None] = []
        self.context.sni_callback = lambda _, name, _context: self.names.append(name)
        self.trust = directory / "trust.pem"
        authority.cert_pem.write_to_path(self.trust)
        self.trusting = ssl.create_default_context(cafile=str(self.trust))


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.fixture
def provider(server: Server) -> Iterator[IdentityProvider]:
    with IdentityProvider(context=server.context) as running:
        yield running


def url_of(provider: IdentityProvider, host: str, path: str) -> str:
    _, _, port = provider.url.removesuffix("/keys").rpartition(":")
    return f"https://{host}:{port}{path}"


async def test_connections_of_clients_and_nodes(server: Server, resolved: list[str]) -> None:
    closing = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await closing.wait()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server.context)
    port = listening.sockets[0].getsockname()[1]
    network = AsyncioNetwork()
    async with listening:
        for host in (HOST, f"{HOST}."):
            transport, _ = await network.connect(
                asyncio.Protocol, host, port, ssl_context=server.trusting
            )
            transport.abort()
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await network.connect(asyncio.Protocol, f"{OTHER}.", port, ssl_context=server.trusting)
        closing.set()
    assert resolved == [HOST, f"{HOST}.", f"{OTHER}."]
    assert server.names == [HOST, HOST, OTHER]


async def test_token_endpoints(
    server: Server, provider: IdentityProvider, resolved: list[str]
) -> None:
    async def ask(host: str) -> None:
        grant = ClientSecret(CLIENT_ID, CLIENT_SECRET)
        url = url_of(provider, host, "/token")
        await TokenEndpoint(url, grant, context=server.trusting, try_count=1)()

    await ask(f"{HOST}.")
    with pytest.raises(AuthenticationError, match="Hostname mismatch"):
        await ask(f"{OTHER}.")
    assert (server.names, resolved) == ([HOST, OTHER], [f"{HOST}.", f"{OTHER}."])
    assert provider.given == 1


async def test_key_sets(server: Server, provider: IdentityProvider, resolved: list[str]) -> None:
    settings = EndpointSettings(url_of(provider, f"{HOST}.", "/keys"), context=server.trusting)
    source = KeyEndpoint(settings, SystemClock())
    await source.start()
    try:
        assert [key.key_id for key in source.keys().keys] == ["first"]
    finally:
        await source.close()
    assert (server.names, set(resolved)) == ([HOST], {f"{HOST}."})


def test_schema_registries(server: Server, provider: IdentityProvider, resolved: list[str]) -> None:
    def ask(host: str) -> None:
        SchemaRegistry(url_of(provider, host, ""), ca_location=str(server.trust)).subjects()

    with pytest.raises(SchemaRegistryError, match="404"):
        ask(f"{HOST}.")
    with pytest.raises(SchemaRegistryError, match="Hostname mismatch"):
        ask(f"{OTHER}.")
    assert (server.names, resolved) == ([HOST, OTHER], [f"{HOST}.", f"{OTHER}."])


class _Proxy(socketserver.StreamRequestHandler):
    """A proxy of HTTPS: connects to a port of this machine, whatever the host."""

    asked: ClassVar[list[str]] = []

    def handle(self) -> None:
        target = self.rfile.readline().split()[1].decode()
        while self.rfile.readline().strip():
            pass
        self.asked.append(target)
        with socket.create_connection(("127.0.0.1", int(target.rpartition(":")[2]))) as beyond:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pump, args=(beyond, self.connection))
            back.start()
            _pump(self.connection, beyond)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def test_schema_registries_behind_a_proxy(
    server: Server, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.server_address[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        url = url_of(provider, f"{HOST}.", "")
        with pytest.raises(SchemaRegistryError, match="404"):
            SchemaRegistry(url, ca_location=str(server.trust)).subjects()
        proxy.shutdown()
        thread.join()
    assert _Proxy.asked == [url.removeprefix("https://")]
    assert server.names == [HOST]


def test_certificates_of_our_own_authority() -> None:
    assert _general_name(f"{HOST}.") == _general_name(HOST)
    assert tls_name(HOST) == HOST
    assert tls_name(f"{HOST}..") == f"{HOST}.", "one dot makes a name complete"
