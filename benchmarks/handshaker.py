"""Clients that come by TLS, ask once and go: `python -m benchmarks.handshaker JSON`.

Each thread opens one connection after the other: a handshake, full or resumed, ApiVersions and its
answer, the end. OpenSSL works outside of Python's lock, so that threads keep one core busy.
Invariant: each was answered; those that the node did not resume, although they asked for it, are
counted.
"""

from __future__ import annotations

import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from benchmarks.processes import carry_out
from benchmarks.wire import connected_by, read_answer, request_frame, tls_context
from moldau.cli.bench.figures import taken
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest

API_VERSIONS_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class HandshakeOrder:
    """How many handshakes (0: as many as fit into `seconds`), by how many clients at once."""

    host: str
    port: int
    server_pid: int
    trust_path: str
    client_count: int
    handshake_count: int
    seconds: float = 0.0
    is_resumed: bool = False


@dataclass(frozen=True, slots=True)
class HandshakeOutcome:
    """What was measured."""

    handshake_count: int
    resumed_count: int
    seconds: float
    server_cpu_seconds: float
    client_cpu_seconds: float

    @property
    def per_second(self) -> float:
        """Handshakes."""
        return self.handshake_count / self.seconds

    @property
    def server_milliseconds(self) -> float:
        """CPU of one."""
        return self.server_cpu_seconds / self.handshake_count * 1e3

    @property
    def resumed_share(self) -> float:
        """Of all handshakes."""
        return self.resumed_count / self.handshake_count

    @property
    def client_share(self) -> float:
        """How busy the clients' core was."""
        return self.client_cpu_seconds / self.seconds


class Client:
    """Comes again and again."""

    def __init__(self, order: HandshakeOrder) -> None:
        self._order = order
        self._context = tls_context(order.trust_path)
        self._session: ssl.SSLSession | None = None
        self.resumed_count = 0
        self._request = request_frame(ApiVersionsRequest(), API_VERSIONS_VERSION)

    def visit(self) -> None:
        """One connection."""
        order, session = self._order, self._session
        with connected_by(self._context, order.host, order.port, session) as connection:
            self.resumed_count += bool(connection.session_reused)
            connection.sendall(self._request)
            read_answer(connection)
            # A ticket is for one connection; the answer came after the next one.
            self._session = connection.session if order.is_resumed else None

    def run(self) -> int:
        """How many there were."""
        order = self._order
        if order.handshake_count:
            for _ in range(order.handshake_count):
                self.visit()
            return order.handshake_count
        count, end = 0, time.monotonic() + order.seconds
        while time.monotonic() < end:
            self.visit()
            count += 1
        return count


def run(order: HandshakeOrder) -> HandshakeOutcome:
    """Every client comes once before, with a full handshake."""
    clients = [Client(order) for _ in range(order.client_count)]
    for client in clients:
        client.visit()
    with ThreadPoolExecutor(len(clients)) as threads, taken(order.server_pid) as cost:
        count = sum(threads.map(Client.run, clients))
    resumed_count = sum(client.resumed_count for client in clients)
    server_cpu = cost.cpu_seconds(order.server_pid)
    return HandshakeOutcome(count, resumed_count, cost.seconds, server_cpu, cost.own_cpu_seconds)


if __name__ == "__main__":
    carry_out(HandshakeOrder, run)
