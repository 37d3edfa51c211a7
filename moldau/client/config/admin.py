"""Settings of the admin client. Owns the keys that only it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

from moldau.client.config import keys
from moldau.client.config.client import ClientConfig, ClientSettings
from moldau.client.errors import ConfigurationError


class AdminSettings(ClientSettings, total=False):
    """Keyword settings of the admin client; times in milliseconds."""

    bootstrap_controllers: str | Sequence[str]
    retries: int


class AdminConfig(ClientConfig):
    """What the admin client needs.

    Instead of brokers (`bootstrap_servers`) it may be given the cluster's controllers
    (`bootstrap_controllers`, KIP-919).
    """

    KIND: ClassVar[str] = "admin client"

    bootstrap_controllers: tuple[str, ...] = keys.texts(())
    connections_max_idle_ms: int = keys.long_milliseconds(300_000, lowest=-(2**63))
    retries: int = keys.integer(keys.MAX_INT, 0)

    def __init__(
        self, bootstrap_servers: str | Sequence[str] = (), **settings: Unpack[AdminSettings]
    ) -> None:
        self._load({"bootstrap_servers": bootstrap_servers, **settings})

    @property
    def addresses(self) -> Sequence[str]:
        """Whom to ask first: brokers, or controllers."""
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
