"""Settings of a client: Kafka's dotted names in files and mappings, typed keyword arguments in
code.

Owns parsing, ranges and defaults (those of Kafka's clients). Invariant: an existing `ClientConfig`
is usable as it is; what cannot be used is one clear error that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from moldau.client.errors import ConfigurationError
from moldau.config import parse_properties

DEFAULT_PORT: Final = 9092
MAX_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What every client needs; times in milliseconds.

    Instead of brokers (`bootstrap_servers`) an admin client may be given the cluster's controllers
    (`bootstrap_controllers`, KIP-919).
    """

    bootstrap_servers: Sequence[str] = ()
    bootstrap_controllers: Sequence[str] = ()
    client_id: str = "moldau"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    security_protocol: str = "PLAINTEXT"

    def __post_init__(self) -> None:
        if self.bootstrap_servers and self.bootstrap_controllers:
            raise ConfigurationError(
                "bootstrap.servers and bootstrap.controllers exclude each other"
            )
        if not self.bootstrap_servers and not self.bootstrap_controllers:
            raise ConfigurationError("bootstrap.servers: at least one HOST:PORT is needed")
        for server in self.addresses:
            parse_address(server)
        if self.security_protocol != "PLAINTEXT":
            raise ConfigurationError(
                f"security.protocol={self.security_protocol}: only PLAINTEXT is served so far"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_ms") and (
                not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INT
            ):
                name = field.name.replace("_", ".")
                raise ConfigurationError(f"{name}={value!r}: a number of ms from 0 to {MAX_INT}")

    @property
    def addresses(self) -> Sequence[str]:
        """Whom to ask first: brokers, or controllers."""
        return self.bootstrap_servers or self.bootstrap_controllers

    @property
    def asks_controllers(self) -> bool:
        """Whether the addresses are those of controllers."""
        return bool(self.bootstrap_controllers)

    @classmethod
    def of(cls, bootstrap_servers: str | Sequence[str] = (), **settings: Any) -> Self:
        """From a comma-separated string or a list of addresses, and keyword arguments.

        Raises:
            ConfigurationError: an unknown name, with the nearest known one, or a bad value.
        """
        addresses = _addresses(bootstrap_servers)
        known = {field.name for field in fields(cls)}
        for name in settings:
            if name not in known:
                raise ConfigurationError(f"{name}: no such setting{_nearest(name, known)}")
        if "bootstrap_controllers" in settings:
            settings["bootstrap_controllers"] = _addresses(settings["bootstrap_controllers"])
        return cls(bootstrap_servers=addresses, **settings)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """From dotted keys with text values, as in a client's `.properties` file.

        Raises:
            ConfigurationError: as `of`, and for text that is not a number where one is needed.
        """
        settings: dict[str, Any] = {}
        types = {field.name.replace("_", "."): field for field in fields(cls)}
        for key, text in properties.items():
            field = types.get(key)
            if field is None:
                raise ConfigurationError(f"{key}: no such setting{_nearest(key, types)}")
            if field.name.endswith("_ms"):
                try:
                    settings[field.name] = int(text)
                except ValueError:
                    raise ConfigurationError(f"{key}={text}: a whole number of ms") from None
            else:
                settings[field.name] = text
        servers = settings.pop("bootstrap_servers", "")
        return cls.of(servers, **settings)

    @classmethod
    def from_file(
        cls,
        path: str,
        bootstrap_servers: str | None = None,
        bootstrap_controllers: str | None = None,
    ) -> Self:
        """From a `.properties` file; addresses, when given, win over the file's.

        Raises:
            ConfigurationError: the file cannot be read, or as `from_properties`.
        """
        try:
            with open(path, encoding="utf-8") as opened:
                properties = dict(parse_properties(opened.read()))
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8 text") from error
        for key, others, given in (
            ("bootstrap.servers", "bootstrap.controllers", bootstrap_servers),
            ("bootstrap.controllers", "bootstrap.servers", bootstrap_controllers),
        ):
            if given is not None:
                properties[key] = given
                properties.pop(others, None)
        return cls.from_properties(properties)


def _addresses(given: str | Sequence[str]) -> list[str]:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    return list(given)


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


def _nearest(name: str, known: Any) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else f"; known are {', '.join(sorted(known))}"
