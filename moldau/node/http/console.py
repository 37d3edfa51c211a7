"""The console in a node's HTTP thread: its paths, and its way into the cluster.

Owns which of the node's listeners people come in by. Must not import the console, nor a client,
before the first request of one of its paths. Invariant: where a listener for clients has SASL, all
people log in.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from moldau.config import NodeConfig
from moldau.config.definition import Password
from moldau.config.listeners import META_ADDRESSES, SecurityProtocol, host_and_port
from moldau.metadata.image.values import Endpoint
from moldau.node.http.connections import line_of
from moldau.node.http.figures import FiguresOfNode
from moldau.node.settings import CONSOLE_LISTENER

if TYPE_CHECKING:
    from moldau.console.application import Console
    from moldau.console.people import Way
    from moldau.console.settings import ConsoleSettings
    from moldau.metadata.image import MetadataImage
    from moldau.node.quorum_node import QuorumNode

PATHS: Final = ("/console", "/v3", "/openapi.json", "/api/v1/session", "/api/v1/clusters")
"""The console serves these, what is below them, and `/`."""
_STORE: Final = "ssl.truststore."
_CONSOLE_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")


def is_console_path(raw_target: str) -> bool:
    """Whether the console answers a request, by its target as it came."""
    path = raw_target.partition("?")[0]
    return path == "/" or any(path == each or path.startswith(f"{each}/") for each in PATHS)


@dataclass(eq=False)
class NodeConsole:
    """The console of one node, made at the first request.

    Args:
        registered: gives the listeners that the broker has registered, by name; None before it has.
        host: where the HTTP listener binds.
        figures: what the node knows of itself.
        quorum: gives the node's part in the quorum, whose log the console shows.
        image: gives the newest metadata.
    """

    config: NodeConfig
    registered: Callable[[], Mapping[str, Endpoint] | None]
    host: str
    figures: FiguresOfNode | None = None
    _: KW_ONLY
    quorum: Callable[[], QuorumNode | None]
    image: Callable[[], MetadataImage]
    _console: Console | None = None
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._making = asyncio.Lock()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to a request with one of `PATHS`."""
        async with self._making:
            if self._console is None and not self._is_closed:
                self._console = await self._made()
        if self._console is None or self._is_closed:
            return web.Response(status=503, text="the broker is starting or stopping\n")
        return await self._console(request)

    async def close(self) -> None:
        """Close the connections of all people."""
        self._is_closed = True
        async with self._making:
            if self._console is not None:
                await self._console.close()

    async def _made(self) -> Console | None:
        listeners = self.registered()
        if not listeners:
            return None
        module = await asyncio.to_thread(importlib.import_module, "moldau.console.application")
        made: Console = module.Console(self._settings(listeners))
        return made

    def _settings(self, listeners: Mapping[str, Endpoint]) -> ConsoleSettings:
        from moldau.console.settings import NODE, ConsoleSettings
        from moldau.node.http.metadata_log import NodeMetadataLog

        way, needs_login = _way(self.config, listeners)
        return ConsoleSettings(
            way,
            needs_login,
            names=frozenset(_names(self.config, self.host, listeners)),
            served_from=NODE,
            is_read_only=self.config.get_boolean("moldau.console.read.only"),
            node_figures=self.figures,
            line_of=line_of,
            metadata_log=NodeMetadataLog(self.quorum, self.image),
        )


def _names(config: NodeConfig, host: str, listeners: Mapping[str, Endpoint]) -> Iterator[str]:
    """What browsers may call the HTTP listener."""
    yield from ("localhost", "127.0.0.1", "::1")
    for name in config["moldau.console.hosts"]:
        yield name.lower()
    if not host or host in META_ADDRESSES:
        yield socket.gethostname().lower()
        for endpoint in listeners.values():
            yield endpoint.host.lower()
    else:
        yield host.lower()


def _way(config: NodeConfig, listeners: Mapping[str, Endpoint]) -> tuple[Way, bool]:
    """The way into the cluster by one of the node's listeners, and whether people log in there."""
    from moldau.console.people import Way

    ways: list[tuple[bool, Way]] = []
    for name, endpoint in listeners.items():
        if not _is_for_people(config, name, listeners):
            continue
        protocol = SecurityProtocol(endpoint.security_protocol)
        mechanisms: tuple[str, ...] = ()
        if protocol.has_sasl:
            enabled = config.listener_value(name, "sasl.enabled.mechanisms")
            mechanisms = tuple(each for each in _CONSOLE_MECHANISMS if each in enabled)
        elif config.listener_value(name, "ssl.client.auth") == "required" and protocol.has_tls:
            continue
        properties: dict[str, object] = {
            "bootstrap.servers": host_and_port(endpoint.host, endpoint.port),
            "security.protocol": protocol.name,
        }
        if protocol.has_tls:
            properties |= _trust(config, name)
        ways.append((protocol.has_sasl, Way(properties, mechanisms)))
    if not ways:
        return Way({"bootstrap.servers": "localhost:1"}), True
    needs_login, way = max(ways, key=lambda each: (each[0], bool(each[1].mechanisms)))
    return way, needs_login


def _is_for_people(config: NodeConfig, name: str, listeners: Mapping[str, Endpoint]) -> bool:
    wanted = config.get_string(CONSOLE_LISTENER).upper()
    if wanted:
        return name == wanted
    return len(listeners) == 1 or not config.is_between_nodes(name)


def _trust(config: NodeConfig, listener_name: str) -> dict[str, object]:
    """The listener's trust store, for a client: of a cluster, its nodes have certificates of it."""
    found: dict[str, object] = {}
    for suffix in ("location", "password", "certificates"):
        given = config.listener_value(listener_name, _STORE + suffix)
        value: Any = given.value if isinstance(given, Password) else given
        if value is not None:
            found[_STORE + suffix] = value
    if config.is_set_for_listener(listener_name, f"{_STORE}type"):
        found[f"{_STORE}type"] = config.listener_value(listener_name, f"{_STORE}type")
    return found
