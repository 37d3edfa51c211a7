"""What a server's connections may take: Kafka's limits by their own keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moldau.protocol.framing import DEFAULT_MAX_FRAME_BYTES, DEFAULT_MEMORY_LIMIT_BYTES
from moldau.runtime.network import DEFAULT_BACKLOG, OS_DEFAULT_BYTES
from moldau.server.quotas.core.connection_rates import UNLIMITED, ConnectionRates


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Kafka's limits by their own keys; the defaults are Kafka's, except where it has none."""

    request_max_bytes: int = DEFAULT_MAX_FRAME_BYTES
    """`socket.request.max.bytes`"""
    queued_max_request_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES
    """`queued.max.request.bytes`; Kafka's -1 (no limit) becomes this default."""
    max_connections: int = UNLIMITED
    """`max.connections`"""
    max_connections_per_ip: int = UNLIMITED
    """`max.connections.per.ip`"""
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """`max.connections.per.ip.overrides`"""
    connections_max_idle_ms: float = 600_000.0
    """`connections.max.idle.ms`; negative for never."""
    send_buffer_bytes: int = OS_DEFAULT_BYTES
    """`socket.send.buffer.bytes`"""
    receive_buffer_bytes: int = OS_DEFAULT_BYTES
    """`socket.receive.buffer.bytes`"""
    listen_backlog: int = DEFAULT_BACKLOG
    """`socket.listen.backlog.size`"""
    max_connection_creation_rate: int = UNLIMITED
    """`max.connection.creation.rate`"""
    unlimited_rate_listener: str = ""
    """The listener that the rate does not hold for: the inter-broker one, if it has a listener of
    its own."""

    def apply_to(self, rates: ConnectionRates) -> None:
        """Have the limit on new connections per second in force there."""
        rates.node_limit = self.max_connection_creation_rate
        rates.unlimited_listener = self.unlimited_rate_listener
        rates.max_waiting = self.listen_backlog
