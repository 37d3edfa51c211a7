"""From configuration keys to the settings of the parts that the node joins.

Owns the translation, key by key. Invariant: a key that a part honours is named here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from moldau.config import NodeConfig
from moldau.config.listeners import parse_connection_overrides
from moldau.runtime.network import OS_DEFAULT_BYTES
from moldau.server.server import ServerLimits

UNLIMITED_REQUEST_BYTES: Final = -1
CONNECTION_OVERRIDES: Final = "max.connections.per.ip.overrides"


def server_limits(
    config: NodeConfig, effective_values: Mapping[str, Any] | None = None
) -> ServerLimits:
    """What the listeners allow; `effective_values` adds dynamic configuration to the node's own.

    Raises:
        ConfigError: `max.connections.per.ip.overrides` is not HOST:COUNT,….
    """
    defaults = ServerLimits()
    values = config if effective_values is None else effective_values
    queued = config.get_int("queued.max.request.bytes")
    return ServerLimits(
        request_max_bytes=config.get_int("socket.request.max.bytes"),
        queued_max_request_bytes=(
            defaults.queued_max_request_bytes if queued == UNLIMITED_REQUEST_BYTES else queued
        ),
        max_connections=values["max.connections"],
        max_connections_per_ip=values["max.connections.per.ip"],
        max_connections_per_ip_overrides=parse_connection_overrides(
            CONNECTION_OVERRIDES, values[CONNECTION_OVERRIDES]
        ),
        connections_max_idle_ms=float(config.get_int("connections.max.idle.ms")),
        send_buffer_bytes=_buffer_bytes(config, "socket.send.buffer.bytes"),
        receive_buffer_bytes=_buffer_bytes(config, "socket.receive.buffer.bytes"),
        listen_backlog=config.get_int("socket.listen.backlog.size"),
    )


def _buffer_bytes(config: NodeConfig, key: str) -> int:
    """Only a size that somebody chose: Kafka's default of 100 KiB switches off the system's own
    tuning and doubled the CPU per request in our measurements.
    """
    return config.get_int(key) if key in config.explicit else OS_DEFAULT_BYTES


def fetch_session_limit(config: NodeConfig) -> int:
    """How many incremental fetch sessions are kept."""
    return config.get_int("max.incremental.fetch.session.cache.slots")


def http_address(config: NodeConfig) -> tuple[str, int] | None:
    """Where the HTTP listener binds, None when it is off; the key's validator knows the form."""
    text = config.get_string("moldau.http.listener")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
