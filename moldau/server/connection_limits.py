"""How many connections a server takes (`max.connections`), and what each of them may take.

Owns the count of places by client address (`max.connections.per.ip`). How fast connections may come
is in `quotas`; idle ones are ended in `connection_group`. Invariant: a handshake holds the place of
the connection that may come of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.config.settings import KeyedSettings, of_key
from moldau.runtime.network import OS_DEFAULT_BYTES
from moldau.server.memory_shares import DEFAULT_MEMORY_LIMIT_BYTES, MemoryShares
from moldau.server.quotas.core.connection_rates import ConnectionRates

NO_LIMIT: Final = -1
"""The value of `queued.max.request.bytes` that sets none."""


@dataclass(frozen=True, slots=True)
class ServerLimits(KeyedSettings):
    """Kafka's limits by their own keys."""

    request_max_bytes: int = of_key("socket.request.max.bytes")
    queued_max_request_bytes: int = of_key(
        "queued.max.request.bytes",
        made=lambda most: DEFAULT_MEMORY_LIMIT_BYTES if most == NO_LIMIT else most,
    )
    fair_share: int = of_key("moldau.fair.share")
    max_connections: int = of_key("max.connections")
    max_connections_per_ip: int = of_key("max.connections.per.ip")
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """`max.connections.per.ip.overrides`"""
    connections_max_idle_ms: float = of_key("connections.max.idle.ms", made=float)
    """Negative for never."""
    send_buffer_bytes: int = OS_DEFAULT_BYTES
    """`socket.send.buffer.bytes`"""
    receive_buffer_bytes: int = OS_DEFAULT_BYTES
    """`socket.receive.buffer.bytes`"""
    listen_backlog: int = of_key("socket.listen.backlog.size")
    max_connection_creation_rate: int = of_key("max.connection.creation.rate")
    unlimited_rate_listener: str = ""
    """The listener that the rate does not hold for: the inter-broker one, if it has its own
    listener.
    """
    node_listeners: frozenset[str] = frozenset()
    """Listeners for nodes: what nodes send has memory of its own."""
    tls_handshake_ms: float = 10_000.0
    """Our own limit: a TLS handshake that has not ended by then is cut."""
    authentication_ms: float = 30_000.0
    """Our own limit: a SASL client that is not authenticated by then is cut."""
    audit_log_max_lines: int = of_key("moldau.audit.log.max.lines")
    decoded_max_bytes: int = of_key("moldau.decoded.max.bytes")

    def apply_to(self, rates: ConnectionRates) -> None:
        """Have the limit on new connections per second in force there."""
        rates.node_limit = self.max_connection_creation_rate
        rates.unlimited_listener = self.unlimited_rate_listener
        rates.max_waiting = self.listen_backlog

    def apply_to_memory(self, shares: MemoryShares) -> None:
        """Have the limits on memory in force there."""
        shares.set_limits(self.queued_max_request_bytes, self.fair_share, self.request_max_bytes)


class ConnectionPlaces:
    """Connections and TLS handshakes by client address."""

    __slots__ = ("connections", "handshakes")

    def __init__(self) -> None:
        self.connections: Counter[str] = Counter()
        self.handshakes: Counter[str] = Counter()

    def reached_limit(
        self, limits: ServerLimits, host: str, total: int, *, with_handshakes: bool = False
    ) -> str | None:
        """The limit that one more connection would break, None for none.

        Args:
            total: connections of all clients.
            with_handshakes: whether those that are not connections yet count, too.
        """
        of_host = self.connections[host]
        if with_handshakes:
            total += self.handshakes.total()
            of_host += self.handshakes[host]
        if total >= limits.max_connections:
            return f"max.connections={limits.max_connections}"
        allowed = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        return f"max.connections.per.ip={allowed}" if of_host >= allowed else None

    @staticmethod
    def leave(places: Counter[str], host: str) -> None:
        """One of `connections` or `handshakes` has ended."""
        places[host] -= 1
        if not places[host]:
            del places[host]
