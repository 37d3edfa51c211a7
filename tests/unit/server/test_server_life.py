"""A server's listeners from their start to their end, and requests that come before its handler."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from moldau.config import ConfigError
from moldau.protocol.errors import RemoteProtocolError
from moldau.server import server as server_module
from moldau.server.authentication.tls_handshakes import TlsHandshakes
from moldau.server.connection_limits import ServerLimits
from moldau.server.memory_shares import PeerKind
from moldau.server.request import Request
from moldau.server.server import ListenerSpec, Server
from tests.kit.manual_clock import ManualClock
from tests.unit.server.connection_rig import Transport, answer, frame, receive

TAKEN = 1_000


class Listener:
    """A port that is bound until it is closed."""

    def __init__(self, port: int, factory: Any, options: dict[str, Any]) -> None:
        self.port = port
        self.factory = factory
        self.options = options
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Network:
    """Binds every port but TAKEN."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    async def listen(self, factory: Any, host: str, port: int, **options: Any) -> Listener:
        if port == TAKEN:
            raise OSError(errno.EADDRINUSE, "in use")
        self.listeners.append(Listener(port, factory, {"host": host, **options}))
        return self.listeners[-1]


class Security:
    """What a listener asks of its clients, and when that was fetched and let go."""

    def __init__(
        self, *, contexts: object = None, sasl: object = None, problem: Exception | None = None
    ) -> None:
        self.contexts = contexts
        self.sasl = sasl
        self.problem = problem
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")
        if self.problem is not None:
            raise self.problem

    async def close(self) -> None:
        self.calls.append("close")

    def greet(self, connection: Any, group: Any) -> None:
        """Every client may come."""


def spec(name: str, port: int = 1, security: Any = None) -> ListenerSpec:
    return ListenerSpec(name, "h", port, security)


async def test_listeners_are_bound_with_what_their_server_is_configured_for() -> None:
    network, secured = Network(), Security(contexts=object(), sasl=object())
    limits = ServerLimits(
        listen_backlog=7, receive_buffer_bytes=9, node_listeners=frozenset({"NODES"})
    )
    server = Server(network=network, limits=limits, clock=ManualClock())  # type: ignore[arg-type]
    assert not server.connections.is_open
    await server.start([spec("PLAIN", 5), spec("NODES", 6, secured)])
    assert server.connections.is_open
    assert (server.port("PLAIN"), server.port("NODES")) == (5, 6)
    plain, nodes = network.listeners
    assert plain.options == {
        "host": "h",
        "backlog": 7,
        "receive_buffer_bytes": 9,
        "handshakes": None,
    }
    assert isinstance(nodes.options["handshakes"], TlsHandshakes)
    assert secured.calls == ["start"]
    kinds = {budget.kind for budget in server.connections.shares}
    assert kinds == {PeerKind.CLIENTS, PeerKind.NODES, PeerKind.NODE_LOGINS}
    connection = nodes.factory()
    assert connection.listener_name == "NODES"
    assert len(server.connections.timers) == 1, "it is swept"
    await server.close(0)
    assert [each.is_closed for each in network.listeners] == [True, True]
    assert secured.calls == ["start", "close"]
    assert not server.connections.is_open
    await server.close(0)
    assert secured.calls == ["start", "close"]


@pytest.mark.parametrize("fault", ["port", "keys"])
async def test_a_start_that_fails_leaves_nothing_bound(fault: str) -> None:
    network, first = Network(), Security()
    second = Security(problem=ConfigError("k", None, "no keys") if fault == "keys" else None)
    server = Server(network=network, clock=ManualClock())  # type: ignore[arg-type]
    last = spec("B", 2, second) if fault == "keys" else spec("B", TAKEN, second)
    with pytest.raises((OSError, ConfigError)):
        await server.start([spec("A", 1, first), last])
    assert [each.is_closed for each in network.listeners] == [True]
    assert (first.calls, second.calls) == (["start", "close"], ["start", "close"])
    assert not server.connections.is_open
    await server.start([spec("A", 1)])
    assert server.port("A") == 1
    await server.close(0)


async def started() -> tuple[Server, Network]:
    network = Network()
    server = Server(network=network, clock=ManualClock())  # type: ignore[arg-type]
    await server.start([spec("A")])
    return server, network


async def settled() -> None:
    """What is to be called soon has been."""
    for _ in range(10):
        await asyncio.sleep(0)


def connected(network: Network, host: str = "10.0.0.7") -> Any:
    connection = network.listeners[0].factory()
    connection.connection_made(Transport(peer=(host, 40000)))
    return connection


async def test_requests_that_come_early_are_handled_in_their_order_and_late_ones_behind_them() -> (
    None
):
    server, network = await started()
    connection = connected(network)
    handled: list[int] = []

    def handle(request: Request) -> None:
        handled.append(request.correlation_id)
        if request.correlation_id == 1:
            receive(connection, frame(3))
        answer(request)

    receive(connection, frame(1), frame(2))
    assert handled == []
    server.open(handle)
    await settled()
    assert handled == [1, 2, 3]
    receive(connection, frame(4))
    assert handled[-1] == 4
    assert b"".join(connection.transport.written) == b"1;2;3;4;"


async def test_only_so_many_requests_may_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_EARLY_REQUESTS", 2)
    server, network = await started()
    first, second = connected(network), connected(network)
    receive(first, frame(1), frame(2))
    assert not first.is_closed
    receive(second, frame(3))
    assert second.is_closed
    handled: list[int] = []
    server.open(lambda request: handled.append(request.correlation_id))
    await settled()
    assert handled == [1, 2]


async def test_early_requests_of_one_address_leave_places_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "MAX_EARLY_REQUESTS", 4)
    server, network = await started()
    greedy = [connected(network, "10.0.0.1") for _ in range(5)]
    for number, connection in enumerate(greedy):
        receive(connection, frame(number))
    good = connected(network, "10.0.0.2")
    receive(good, frame(10), frame(11))
    assert [each.is_closed for each in (*greedy, good)] == [0, 0, 1, 1, 1, 0]
    handled: list[int] = []
    server.open(lambda request: handled.append(request.correlation_id))
    await settled()
    assert sorted(handled) == [0, 1, 10, 11]


@pytest.mark.parametrize("fault", [RemoteProtocolError("nonsense"), KeyError("ours")])
async def test_an_early_request_that_fails_costs_its_own_connection_alone(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    server, network = await started()
    bad, good = connected(network), connected(network)
    receive(bad, frame(1))
    receive(good, frame(2))

    def handle(request: Request) -> None:
        if request.correlation_id == 1:
            raise fault
        answer(request)

    if isinstance(fault, KeyError):
        with pytest.raises(KeyError):
            server._hand_on(handle, server._early.take())
    server.open(handle)
    await settled()
    assert (bad.is_closed, good.is_closed) == (True, False)
    assert good.transport.written == [b"2;"]
    reason = "malformed request: nonsense" if isinstance(fault, RemoteProtocolError) else "inside"
    assert reason in caplog.text


async def test_an_early_request_of_a_client_that_has_gone_is_dropped() -> None:
    server, network = await started()
    connection = connected(network)
    receive(connection, frame(1))
    connection.close("the test ends it")
    handled: list[Request] = []
    server.open(handled.append)
    await settled()
    assert handled == []
    assert server.connections.memory.reserved_bytes == 0
