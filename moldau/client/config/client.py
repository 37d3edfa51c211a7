"""Settings that every client has, those of the admin client, and addresses.

Owns what excludes what. Contexts and credentials are made from the keys of TLS and SASL in
`client.cluster.credentials`. Invariants: an existing configuration is usable as it is; what cannot
be used is one clear error that names the key; secrets are never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from moldau.client.config.keywords import AdminValues, ClientValues
from moldau.client.config.settings import Settings
from moldau.client.errors import ConfigurationError

DEFAULT_PORT: Final = 9092


class ClientConfig(ClientValues, Settings):
    """What every client needs; times in milliseconds unless named otherwise.

    Connections are secured as in KIP-651 for PEM, KIP-768, KIP-1139 and KIP-1258 for OAUTHBEARER.
    Two keys are ours: `ssl.context`, a ready `ssl.SSLContext` in place of all other `ssl.*`, and
    `sasl.oauthbearer.token.provider`. As with librdkafka, `sasl.username` and `sasl.password`, and
    `sasl.kerberos.principal` and `sasl.kerberos.keytab`, replace Java's `sasl.jaas.config`, which
    is understood too. The type of a keystore is read off the file where
    it is not set.

    Args:
        bootstrap_servers: `HOST:PORT,…` or a list of these.
        settings: the keys of Kafka's clients, with underscores instead of dots.

    Raises:
        ConfigurationError: an unknown name, with the nearest known one, or a bad value.
    """

    @property
    def addresses(self) -> Sequence[str]:
        """The nodes to ask first."""
        return self.bootstrap_servers

    @property
    def asks_controllers(self) -> bool:
        """Whether the addresses are those of controllers."""
        return False

    @property
    def node_kind(self) -> str:
        """What the nodes at the addresses are, for messages."""
        return "controller" if self.asks_controllers else "broker"

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
        if "default_api_timeout_ms" not in self.given:
            # As in Java: a whole call has at least the time of one request.
            longer_ms = max(self.request_timeout_ms, self.default_api_timeout_ms)
            self._settle(default_api_timeout_ms=longer_ms)


class AdminConfig(AdminValues, ClientConfig):
    """What the admin client needs: the addresses of brokers (`bootstrap_servers`) or of the
    cluster's controllers (`bootstrap_controllers`, KIP-919).
    """

    KIND: ClassVar[str] = "admin client"

    @property
    def addresses(self) -> Sequence[str]:
        """The nodes to ask first: brokers, or controllers."""
        return self.bootstrap_servers or self.bootstrap_controllers

    @property
    def asks_controllers(self) -> bool:
        """Whether the addresses are those of controllers."""
        return bool(self.bootstrap_controllers)

    def _check(self) -> None:
        if self.bootstrap_servers and self.bootstrap_controllers:
            raise ConfigurationError(
                "bootstrap.servers and bootstrap.controllers exclude each other"
            )
        super()._check()


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `HOST` (port 9092) or `[IPV6]:PORT`. Raises:
    ConfigurationError when it is none of these.
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
