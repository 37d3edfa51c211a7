"""Connections to other nodes: certificates, logins, refusals and the pauses behind them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from moldau.config import ConfigError, NodeConfig
from moldau.metadata.scram_users import ScramUsers
from moldau.runtime.connection import Connection, NothingHeard
from moldau.runtime.connector import FIRST_PAUSE_MS, Connector, PeerRefused, ToldProblems
from moldau.runtime.network import AsyncioNetwork
from moldau.server.authentication.listener_security import ListenerSecurity
from moldau.server.authentication.peer_security import check_own_certificate, peer_security
from moldau.server.request import Request
from moldau.server.server import ListenerSpec, Server
from tests.kit.manual_clock import ManualClock

pytestmark = pytest.mark.real

HOST = "127.0.0.1"
MECHANISM_KEY = "sasl.mechanism.inter.broker.protocol"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
NODE = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "c:1",
    "controller.listener.names": "CONTROLLER",
    "listeners": "NODES://:1",
    "inter.broker.listener.name": "NODES",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
}


class Peer:
    """A listener of another node, with settings of its own."""

    def __init__(self, config: NodeConfig) -> None:
        [endpoint] = config.listeners
        security = ListenerSecurity.of(config, endpoint, ScramUsers())
        self.principals: list[str] = []
        self._server = Server(self._handle)
        self._spec = ListenerSpec("NODES", HOST, 0, security)

    def _handle(self, request: Request) -> None:
        from moldau.protocol.messages.p18_api_versions import ApiVersion, ApiVersionsResponse

        gate = request.connection.gate
        if gate is not None and gate.takes(request):
            self.principals.append(request.connection.principal)
            return
        if gate is None:
            self.principals.append(request.connection.principal)
        keys = [ApiVersion(api_key=key, min_version=0, max_version=4) for key in (17, 18, 36)]
        request.respond(ApiVersionsResponse(api_keys=keys))

    async def __aenter__(self) -> Peer:
        await self._server.start([self._spec])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close(0)

    @property
    def port(self) -> int:
        return self._server.port("NODES")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def stored(authority: trustme.CA, path: Path, name: str = HOST) -> None:
    leaf = authority.issue_cert(name, common_name="node-1")
    new = path.with_suffix(".new")
    new.write_bytes(
        leaf.private_key_pem.bytes() + b"".join(each.bytes() for each in leaf.cert_chain_pems)
    )
    os.replace(new, path)


def by_tls(authority: trustme.CA, directory: Path, **changed: str) -> NodeConfig:
    """A node with a certificate and trust in the authority."""
    directory.mkdir(exist_ok=True)
    stored(authority, directory / "own.pem")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    return NodeConfig(
        {
            **NODE,
            "listener.security.protocol.map": "NODES:SSL,CONTROLLER:PLAINTEXT",
            "ssl.client.auth": "required",
            "ssl.keystore.location": str(directory / "own.pem"),
            "ssl.truststore.location": str(directory / "ca.pem"),
            **{key.replace("_", "."): value for key, value in changed.items()},
        }
    )


def by_password(password: str = "right") -> NodeConfig:
    return NodeConfig(
        {
            **NODE,
            "listener.security.protocol.map": "NODES:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            MECHANISM_KEY: "PLAIN",
            "listener.name.nodes.plain.sasl.jaas.config": (
                f'{PLAIN} required username="n" password="{password}" user_n="right";'
            ),
        }
    )


def connector(config: NodeConfig, clock: Any = None) -> Connector:
    return Connector(None, clock, peer_security(config, "NODES", MECHANISM_KEY))


async def test_each_shows_its_certificate_and_a_renewed_one_later(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async with Peer(by_tls(authority, tmp_path / "peer")) as peer:
        own = connector(by_tls(authority, tmp_path / "own"))
        (await own.connect(HOST, peer.port)).close()
        assert "CN=node-1" in peer.principals[0]
        stored(trustme.CA(), tmp_path / "own" / "own.pem")
        with pytest.raises(PeerRefused, match="refuses our certificate"):
            await own.connect(HOST, peer.port)
        stored(authority, tmp_path / "own" / "own.pem")
        (await own.connect(HOST, peer.port)).close()


@pytest.mark.parametrize(
    ("peer_name", "algorithm", "is_taken"),
    [("other", "https", False), ("other", "", True), (HOST, "https", True)],
)
async def test_the_peers_name_is_checked(
    authority: trustme.CA, tmp_path: Path, peer_name: str, algorithm: str, *, is_taken: bool
) -> None:
    config = by_tls(authority, tmp_path / "peer")
    stored(authority, tmp_path / "peer" / "own.pem", peer_name)
    key = "listener.name.nodes.ssl.endpoint.identification.algorithm"
    own = connector(by_tls(authority, tmp_path / "own", **{key: algorithm}))
    async with Peer(config) as peer:
        if is_taken:
            (await own.connect(HOST, peer.port)).close()
        else:
            with pytest.raises(PeerRefused, match="its certificate is refused"):
                await own.connect(HOST, peer.port)


async def test_a_plaintext_node_gets_a_hint_where_the_peer_speaks_tls(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async with Peer(by_tls(authority, tmp_path / "peer")) as peer:
        with pytest.raises(NothingHeard, match=r"is listener\.security\.protocol\.map right"):
            await Connector().connect(HOST, peer.port)


async def test_a_login_is_tried_again_after_a_pause_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    caplog.set_level(logging.INFO)
    async with Peer(by_password()) as peer:
        good = connector(by_password())
        (await good.connect(HOST, peer.port)).close()
        assert peer.principals[-1] == "User:n"
        own = connector(by_password("wrong-secret"), clock)
        for number in range(3):
            trying = asyncio.ensure_future(own.connect(HOST, peer.port))
            if number:
                await asyncio.sleep(0)
                asked = len(peer.principals)
                assert not trying.done()
                assert len(peer.principals) == asked, "no attempt within the pause"
                clock.advance(FIRST_PAUSE_MS * 2**number)
            with pytest.raises(PeerRefused, match="the user name or the password is wrong"):
                await trying
    told = [each.getMessage() for each in caplog.records if each.name == "moldau.runtime.connector"]
    assert len(told) == 1
    assert "listener NODES" in told[0]
    assert "wrong-secret" not in caplog.text


async def test_a_pause_may_end_in_the_turn_that_cancels_its_attempt() -> None:
    clock = ManualClock()
    async with Peer(by_password()) as peer:
        own = connector(by_password("wrong-secret"), clock)
        with pytest.raises(PeerRefused):
            await own.connect(HOST, peer.port)
        trying = asyncio.ensure_future(own.connect(HOST, peer.port))
        await asyncio.sleep(0)
        assert clock.timer_count == 1
        trying.cancel()
        clock.advance(FIRST_PAUSE_MS)
        with pytest.raises(asyncio.CancelledError):
            await trying


async def test_two_ways_to_a_peer_say_once_what_is_wrong_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker has two to a controller, on two event loops."""
    caplog.set_level(logging.INFO)
    told, clock = ToldProblems(), ManualClock()
    wrong, right = (
        [
            Connector(None, clock, peer_security(by_password(each), "NODES", MECHANISM_KEY), told)
            for _ in range(2)
        ]
        for each in ("wrong", "right")
    )
    async with Peer(by_password()) as peer, Peer(by_password()) as other:
        for _ in range(2):
            for each in wrong:
                with pytest.raises(PeerRefused):
                    await each.connect(HOST, peer.port)
            with pytest.raises(PeerRefused):
                await wrong[0].connect(HOST, other.port)
            clock.advance(60_000)
        for each, bad in zip(right, wrong, strict=True):
            each._problems = bad._problems
            (await each.connect(HOST, peer.port)).close()
        with pytest.raises(PeerRefused):
            await wrong[1].connect(HOST, peer.port)
        port = f":{peer.port}"
    said = [each.getMessage() for each in caplog.records if each.name == "moldau.runtime.connector"]
    refused, again = "no connection of listener NODES", "takes connections of this node again"
    assert [refused in line for line in said] == [True, True, False, True]
    assert again in said[2]
    assert [port in line for line in said] == [True, False, True, True]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: {"ssl.keystore.location": str(path / "missing.pem")}, "No such file"),
        (
            lambda _: {"ssl.endpoint.identification.algorithm": "ldap"},
            "ldap: listener NODES: https, or nothing",
        ),
    ],
)
def test_settings_that_cannot_work(
    authority: trustme.CA, tmp_path: Path, make: Callable[[Path], dict[str, str]], reason: str
) -> None:
    config = by_tls(authority, tmp_path / "own", **make(tmp_path))
    with pytest.raises(ConfigError, match=reason):
        peer_security(config, "NODES", MECHANISM_KEY)


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_a_node_that_would_refuse_itself(
    authority: trustme.CA, tmp_path: Path, client_auth: str
) -> None:
    config = by_tls(authority, tmp_path / "own", **{"ssl.client.auth": client_auth})

    def check() -> None:
        own = ListenerSecurity.of(config, config.listeners[0], ScramUsers())
        check_own_certificate(own, peer_security(config, "NODES", MECHANISM_KEY))

    check()
    stored(trustme.CA(), tmp_path / "own" / "own.pem", "other.example.com")
    with pytest.raises(ConfigError, match="listener NODES: nodes with these settings refuse"):
        check()


def test_a_login_needs_a_name_and_a_password() -> None:
    key = "listener.name.nodes.plain.sasl.jaas.config"
    for jaas in (None, f'{PLAIN} required user_n="secret";', f'{PLAIN} required username="n";'):
        values = dict(by_password().explicit)
        del values[key]
        config = NodeConfig({**values, **({} if jaas is None else {key: jaas})})
        with pytest.raises(ConfigError) as refused:
            peer_security(config, "NODES", MECHANISM_KEY)
        assert str(refused.value).startswith(f"{key}: needs username and password")
        assert "secret" not in str(refused.value)


async def test_plaintext_needs_nothing() -> None:
    config = NodeConfig(
        {**NODE, "listener.security.protocol.map": "NODES:PLAINTEXT,CONTROLLER:PLAINTEXT"}
    )
    assert peer_security(config, "NODES", MECHANISM_KEY) is None
    async with Peer(config) as peer:
        opened = await Connector(AsyncioNetwork()).connect(HOST, peer.port)
        assert isinstance(opened, Connection)
        opened.close()
