"""Settings that every client has, and addresses.

Owns the common keys with the ranges and defaults of Kafka's Java clients. Invariant: an existing
configuration is usable as it is; what cannot be used is one clear error that names the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Unpack

from moldau.client.config import keys
from moldau.client.config.security import SecurityConfig, SecuritySettings
from moldau.client.errors import ConfigurationError

DEFAULT_PORT: Final = 9092


class ClientSettings(SecuritySettings, total=False):
    """Keyword settings of every client; times in milliseconds."""

    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    connections_max_idle_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    metadata_max_age_ms: int
    metadata_recovery_strategy: Literal["rebootstrap", "none"]
    metadata_recovery_rebootstrap_trigger_ms: int


class ClientConfig(SecurityConfig):
    """What every client needs; times in milliseconds.

    Args:
        bootstrap_servers: `HOST:PORT,…` or a list of these.
        settings: the keys of Kafka's clients, with underscores instead of dots.

    Raises:
        ConfigurationError: an unknown name, with the nearest known one, or a bad value.
    """

    bootstrap_servers: tuple[str, ...] = keys.texts(())
    client_id: str = keys.text("moldau")
    request_timeout_ms: int = keys.milliseconds(30_000)
    default_api_timeout_ms: int = keys.milliseconds(60_000)
    retry_backoff_ms: int = keys.long_milliseconds(100)
    retry_backoff_max_ms: int = keys.long_milliseconds(1_000)
    reconnect_backoff_ms: int = keys.long_milliseconds(50)
    reconnect_backoff_max_ms: int = keys.long_milliseconds(1_000)
    socket_connection_setup_timeout_ms: int = keys.long_milliseconds(10_000)
    socket_connection_setup_timeout_max_ms: int = keys.long_milliseconds(30_000)
    connections_max_idle_ms: int = keys.long_milliseconds(540_000, lowest=-(2**63))
    # Not Kafka's 128 and 32 or 64 KB: what the system chooses by itself is faster.
    send_buffer_bytes: int = keys.byte_count(-1, lowest=-1)
    receive_buffer_bytes: int = keys.byte_count(-1, lowest=-1)
    metadata_max_age_ms: int = keys.long_milliseconds(300_000)
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = keys.choice(
        "rebootstrap", "rebootstrap", "none", any_case=True
    )
    metadata_recovery_rebootstrap_trigger_ms: int = keys.long_milliseconds(300_000)

    def __init__(
        self, bootstrap_servers: str | Sequence[str] = (), **settings: Unpack[ClientSettings]
    ) -> None:
        self._load({"bootstrap_servers": bootstrap_servers, **settings})

    @property
    def addresses(self) -> Sequence[str]:
        """Whom to ask first."""
        return self.bootstrap_servers

    @property
    def asks_controllers(self) -> bool:
        """Whether the addresses are those of controllers."""
        return False

    def _check(self) -> None:
        if not self.addresses:
            raise ConfigurationError("bootstrap.servers: at least one HOST:PORT is needed")
        for server in self.addresses:
            parse_address(server)
        # As in Java: the longest pause is at least the first one.
        self._settle(
            reconnect_backoff_max_ms=max(self.reconnect_backoff_ms, self.reconnect_backoff_max_ms),
            retry_backoff_max_ms=max(self.retry_backoff_ms, self.retry_backoff_max_ms),
        )


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `HOST` (port 9092) or `[IPV6]:PORT`.

    Raises:
        ConfigurationError: it is none of these.
    """
    problem = ConfigurationError(
        f"bootstrap.servers: {address!r} is not HOST:PORT with a port from 1 to 65535"
    )
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise problem
        port_text = rest[1:]
    else:
        host, _, port_text = address.partition(":")
    if not port_text and not address.endswith(":"):
        port_text = str(DEFAULT_PORT)
    if not host or not port_text.isascii() or not port_text.isdigit():
        raise problem
    port = int(port_text)
    if not 1 <= port <= 65_535:
        raise problem
    try:
        host.encode("idna")
    except UnicodeError:
        raise problem from None
    return host, port
