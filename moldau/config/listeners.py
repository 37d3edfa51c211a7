"""Listener and peer addresses as typed endpoints, one configuration value at a time.

An `Endpoint` always names a security protocol; IPv6 hosts carry no brackets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from moldau.addresses import canonical_address
from moldau.config.definition import ConfigError
from moldau.config.validators import MAX_PORT
from moldau.constants import MAX_INT32

_ENDPOINT = re.compile(r"([A-Za-z0-9_.\-]*)://(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:/\s]*)):(\d{1,5})")
_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:/@\s]+)):(\d{1,5})")
_VOTER = re.compile(r"(\d{1,10})@(.+)")
META_ADDRESSES = ("0.0.0.0", "::")


class SecurityProtocol(Enum):
    """The layer below the Kafka protocol; the numbers are those of metadata records."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Endpoint(NamedTuple):
    """One listener. `host` "" means every interface; `port` 0 means one that the system picks."""

    listener_name: str
    host: str
    port: int
    security_protocol: SecurityProtocol

    def __str__(self) -> str:
        return f"{self.listener_name}://{host_and_port(self.host, self.port)}"


class HostPort(NamedTuple):
    """The address of a peer."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


class QuorumVoter(NamedTuple):
    """One static controller of `controller.quorum.voters`."""

    node_id: int
    host: str
    port: int


def host_and_port(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_security_protocol_map(key: str, text: str) -> dict[str, SecurityProtocol]:
    """Parses `NAME:PROTOCOL,…`; names come out in upper case, as Kafka compares them.

    Raises ConfigError: not a pair, an unknown protocol, or a repeated name.
    """
    protocols: dict[str, SecurityProtocol] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = (part.strip() for part in pair.rpartition(":"))
        if not separator or not name:
            raise ConfigError(key, pair, "must be NAME:PROTOCOL pairs")
        if protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(key, pair, f"the protocol must be one of {known}")
        if name.upper() in protocols:
            raise ConfigError(key, pair, "maps the same listener name twice")
        protocols[name.upper()] = SecurityProtocol[protocol]
    return protocols


def parse_endpoints(
    key: str, elements: Sequence[str], protocols: Mapping[str, SecurityProtocol]
) -> tuple[Endpoint, ...]:
    """Parses `NAME://HOST:PORT` elements.

    Raises:
        ConfigError: malformed, a port out of range, a repeated name, or a name without a protocol.
    """
    endpoints: list[Endpoint] = []
    for element in elements:
        match = _ENDPOINT.fullmatch(element)
        if match is None or not match[1]:
            raise ConfigError(key, element, "must be NAME://HOST:PORT (IPv6 addresses in brackets)")
        name = match[1].upper()
        port = _port(key, element, match[4])
        if name not in protocols:
            raise ConfigError(
                key, element, f"listener {name} needs an entry in listener.security.protocol.map"
            )
        if any(other.listener_name == name for other in endpoints):
            raise ConfigError(key, element, f"listener name {name} is used twice")
        endpoints.append(Endpoint(name, match[2] or match[3] or "", port, protocols[name]))
    return tuple(endpoints)


def parse_bootstrap_servers(key: str, elements: Sequence[str]) -> tuple[HostPort, ...]:
    """Parses `HOST:PORT` elements. Raises ConfigError: malformed or a port out of range."""
    return tuple(_host_port(key, element, element) for element in elements)


def parse_quorum_voters(key: str, elements: Sequence[str]) -> tuple[QuorumVoter, ...]:
    """Parses `ID@HOST:PORT` elements.

    Raises ConfigError: malformed, an id beyond 32 bits, or a repeated id.
    """
    voters: list[QuorumVoter] = []
    for element in elements:
        match = _VOTER.fullmatch(element)
        if match is None or int(match[1]) > MAX_INT32:
            raise ConfigError(key, element, "must be ID@HOST:PORT")
        node_id = int(match[1])
        if any(voter.node_id == node_id for voter in voters):
            raise ConfigError(key, element, f"voter {node_id} is listed twice")
        address = _host_port(key, match[2], element)
        voters.append(QuorumVoter(node_id, address.host, address.port))
    return tuple(voters)


def parse_connection_overrides(key: str, text: str) -> dict[str, int]:
    """Parses `HOST:COUNT,…`, the exceptions from a limit per client address, by its canonical form.

    Raises ConfigError: not such a pair, or a host given twice.
    """
    counts: dict[str, int] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        host, _, digits = (part.strip() for part in pair.rpartition(":"))
        host = canonical_address(host.removeprefix("[").removesuffix("]"))
        if not host or not re.fullmatch(r"[0-9]{1,9}", digits):
            raise ConfigError(key, pair, "must be HOST:COUNT pairs")
        if host in counts:
            raise ConfigError(key, pair, f"limits {host} twice")
        counts[host] = int(digits)
    return counts


def _host_port(key: str, text: str, element: str) -> HostPort:
    match = _HOST_PORT.fullmatch(text)
    if match is None:
        raise ConfigError(key, element, "must be HOST:PORT (IPv6 addresses in brackets)")
    return HostPort(match[1] or match[2], _port(key, element, match[3]))


def _port(key: str, element: str, digits: str) -> int:
    port = int(digits)
    if port > MAX_PORT:
        raise ConfigError(key, element, f"the port must be between 0 and {MAX_PORT}")
    return port
