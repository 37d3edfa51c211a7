"""The HTTP listener: metrics, health, read-only JSON and the console, on its own thread and loop.
Imported when it starts: its libraries cost more than the rest of a node.

Owns the thread, the aiohttp application, its routes (`/metrics`, `/healthz`, `/readyz`,
`/api/v1/…`) and the permission that each needs (`access` asks). Must not run anything on the data
loop but the short functions of `views` and `metrics`, handed over one at a time. Invariants:
whatever a client does, the data loop never waits for it; probes wait for no other page; no page is
served without its row in `RULES`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

import orjson
from aiohttp import web

from moldau.addresses import canonical_address, network_of
from moldau.broker.api.services import BrokerServices
from moldau.node.expirations import Expirations, WatchedStores
from moldau.node.http import collect, metrics, views
from moldau.node.http.access import LISTENER_NAME, HttpAccess, HttpRefused
from moldau.node.http.connections import (
    ClientLines,
    HttpConnection,
    HttpConnections,
    HttpLimits,
    begin,
)
from moldau.node.http.console import NodeConsole, is_console_path
from moldau.node.http.figures import FiguresOfNode
from moldau.node.http.lags import GroupLags
from moldau.protocol.access_control import Operation, ResourceType
from moldau.runtime.loop_thread import LoopThread, call_on, run_on
from moldau.runtime.network import Listener
from moldau.runtime.ports import Ports
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.request import Sender
from moldau.server.server import Server
from moldau.storage.log import Log

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
DATA_LOOP_TIMEOUT_S: Final = 5.0
SHUTDOWN_TIMEOUT_S: Final = 2.0
MAX_PAGES, MAX_PROBES = 4, 16
"""Pages that are made at a time, and probes that are answered beside them."""
BACKLOG: Final = 256

RULES: Final[Mapping[str, Operation | None]] = {
    "/metrics": Operation.DESCRIBE,
    "/healthz": Operation.DESCRIBE,
    "/readyz": Operation.DESCRIBE,
    "/api/v1/cluster": Operation.DESCRIBE,
    "/api/v1/certificates": Operation.DESCRIBE,
    "/api/v1/metadata": Operation.DESCRIBE,
    "/api/v1/log-directories": Operation.DESCRIBE,
    "/api/v1/topics": None,
    "/api/v1/topics/{topic}": None,
}
"""What a client must be allowed to do to the cluster to read each page; None where the page asks
for permissions on topics."""
PROBES: Final = ("/healthz", "/readyz")
SENDER: Final = web.RequestKey("sender", Sender)
"""Who asks for a page that is not open."""

Result = TypeVar("Result")
Ts = TypeVarTuple("Ts")


class _Turns:
    """Whose page is made next: addresses take turns, so that one with many requests delays none of
    another.

    Args:
        limit: pages that are made at a time, one for each address.
    """

    def __init__(self, limit: int) -> None:
        self._all = asyncio.Semaphore(limit)
        self._by_host: weakref.WeakValueDictionary[str, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    @asynccontextmanager
    async def of(self, host: str) -> AsyncIterator[None]:
        own = self._by_host.setdefault(host, asyncio.Lock())
        async with own, self._all:
            yield


@dataclass(eq=False, repr=False)
class HttpListener:
    """Serves `/metrics`, `/healthz`, `/readyz` and `/api/v1/…`.

    It may serve before the broker does, and until it has ended: what then cannot be shown yet or
    any more answers 503.

    Args:
        services: gives the broker that is shown, None while there is nothing to look at.
        server: gives the broker's listeners, None before they exist.
        registry: the metrics, looked at on the data loop.
        is_ready: whether the broker is registered, unfenced and serving.
        data_loop: where `services` may be looked at.
        access: decides who may read what.
        limits: what clients may take.
        expirations: of certificates and what the node logs in with.
        console: serves its paths, which have no row in `RULES`: it looks at who asks by itself.
    """

    services: Callable[[], BrokerServices | None]
    _: KW_ONLY
    server: Callable[[], Server | None]
    registry: Registry
    is_ready: Callable[[], bool]
    data_loop: asyncio.AbstractEventLoop
    access: HttpAccess
    limits: HttpLimits
    expirations: Expirations
    console: NodeConsole | None = None
    port: int = 0
    _runner: web.AppRunner | None = None
    _listener: Listener | None = None
    _connections: HttpConnections | None = None
    _is_closing: bool = False

    def __post_init__(self) -> None:
        self._loop_load = collect.LoopLoad(threading.get_ident())
        self._thread = LoopThread("moldau-http")
        self._lags = GroupLags(self.data_loop)
        self._pages, self._probes = _Turns(MAX_PAGES), _Turns(MAX_PROBES)
        if self.console is not None:
            self.console.figures = FiguresOfNode(
                self.services, self.server, self.registry, self.data_loop
            )

    async def start(self, host: str, port: int) -> None:
        """Bind and serve; `port` 0 lets the system choose (then see `self.port`).

        Raises:
            OSError: the address cannot be bound, or not in time.
        """
        self._thread.start()
        try:
            serving = self._thread.run(self._serve(host, port))
            self.port = await asyncio.wait_for(serving, START_TIMEOUT_S)
        except TimeoutError:
            await self.close()
            reason = f"the HTTP listener was not up within {START_TIMEOUT_S:.0f} s"
            raise OSError(errno.ETIMEDOUT, reason, f"{host}:{port}") from None
        except OSError:
            await self.close()
            raise
        scheme = "HTTP" if self.access.handshakes is None else "HTTPS"
        logger.info("%s listener on %s:%d", scheme, host, self.port)

    def stores(self) -> Iterator[WatchedStores]:
        """Those of TLS, if it has any and runs."""
        for contexts in (self.access.contexts, self.access.provider_context):
            if contexts is not None and self._thread.is_running:
                yield WatchedStores(LISTENER_NAME, contexts, self._thread.loop)

    async def close(self) -> None:
        """Stop serving and end the thread (idempotent)."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._thread.is_running:
            await self._thread.run(self._stop())
            await self._thread.stop()
        await self._lags.close()

    async def _serve(self, host: str, port: int) -> int:
        ports = Ports.of_machine()
        runner = self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            handler_cancellation=True,  # what a client that has gone asked for ends
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
        await runner.setup()
        self.access.start()
        server = runner.server
        assert server is not None, "set up"
        server.request_handler = partial(_receive, server.request_handler, self.console)
        lines = ClientLines(ports.clock, self.access.max_log_lines)
        connections = self._connections = HttpConnections(self.limits, lines)
        self._listener = await ports.network.listen(
            lambda: HttpConnection(connections, server),
            host,
            port,
            backlog=BACKLOG,
            handshakes=self.access.handshakes,
        )
        if self._is_closing:  # the start was called off
            await self._stop()
        return self._listener.port

    async def _stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self.console is not None:
            await self.console.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.access.close()
        if self._connections is not None:
            self._connections.close()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._admit])
        handlers = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/api/v1/cluster": self._cluster,
            "/api/v1/certificates": self._certificates,
            "/api/v1/metadata": self._metadata,
            "/api/v1/topics": self._topics,
            "/api/v1/topics/{topic}": self._topic,
            "/api/v1/log-directories": self._log_directories,
        }
        application.add_routes([web.get(page, handlers[page]) for page in RULES])
        return application

    @web.middleware
    async def _admit(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Serve an open page, or one to a client that is known and may read it."""
        resource = request.match_info.route.resource
        page = None if resource is None else resource.canonical  # None: it is none, or not so asked
        try:
            if not self.access.is_open(request.path):
                sender = request[SENDER] = await self.access.sender(request)
                rule = None if page is None else RULES[page]
                if rule is not None:
                    await self.access.require(sender, rule)
            if page is None:
                return await handler(request)
            if request.body_exists:
                raise HttpRefused(413, "no page takes a body")
            turns = self._probes if page in PROBES else self._pages
            async with turns.of(network_of(canonical_address(request.remote or ""))):
                return await handler(request)
        except HttpRefused as refused:
            answer = _json({"error": str(refused)}, refused.status)
            answer.headers.extend(refused.headers)
            return answer

    async def _on_data_loop(self, function: Callable[[*Ts], Result], *arguments: *Ts) -> Result:
        with _busy_if_late():
            async with asyncio.timeout(DATA_LOOP_TIMEOUT_S):
                return await call_on(self.data_loop, function, *arguments)

    async def _look_at_expirations(self) -> None:
        with _busy_if_late():
            async with asyncio.timeout(DATA_LOOP_TIMEOUT_S):
                await run_on(self.data_loop, self.expirations.look())

    async def _metrics(self, _request: web.Request) -> web.Response:
        samples = await self._on_data_loop(metrics.snapshot, self.registry)
        samples += self._loop_load.samples()
        await self._look_at_expirations()
        samples += collect.expiration_samples(self.expirations)
        server, services = self.server(), self.services()
        if server is not None:
            samples += await self._on_data_loop(collect.server_samples, server.connections)
        if services is not None:
            samples += collect.image_samples(services.metadata.image, time.time() * 1000)
            samples += collect.directory_samples(services)
            cleaner = services.log_manager.cleaner
            samples += await self._on_data_loop(collect.cleaner_samples, cleaner)
            samples += await self._log_samples(services)
        body = await asyncio.to_thread(metrics.render, samples)
        if services is not None:
            body += await self._lags.text(services, self._on_data_loop)
        return web.Response(
            body=body,
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _log_samples(self, services: BrokerServices) -> list[metrics.Sample]:
        totals = collect.LogTotals()
        samples: list[metrics.Sample] = []
        logs: list[Log] = await self._on_data_loop(list, services.log_manager.logs())
        for some, shown in collect.visits(logs):
            samples += await self._on_data_loop(
                partial(collect.log_samples, some, totals, shown=shown)
            )
        return samples + collect.total_samples(totals)

    async def _show(self, view: Callable[[BrokerServices, *Ts], Result], *arguments: *Ts) -> Result:
        """What a view makes of the broker; 503 while there is none to look at."""
        services = self.services()
        if services is None:
            raise web.HTTPServiceUnavailable(text="the broker is starting or stopping\n")
        return await self._on_data_loop(view, services, *arguments)

    async def _healthz(self, _request: web.Request) -> web.Response:
        """Alive: the data loop answers."""
        await self._on_data_loop(lambda: None)
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if await self._on_data_loop(self.is_ready):
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready\n")

    async def _cluster(self, _request: web.Request) -> web.Response:
        return _json(await self._show(views.cluster))

    async def _certificates(self, _request: web.Request) -> web.Response:
        await self._look_at_expirations()
        return _json(views.certificates(self.expirations))

    async def _metadata(self, _request: web.Request) -> web.Response:
        # The image never changes: its digest, which takes long for a big one, delays no other page.
        image = await self._show(lambda services: services.metadata.image)
        return _json(await asyncio.to_thread(views.metadata, image))

    async def _topics(self, request: web.Request) -> web.Response:
        names, next_after = await self._show(views.topic_names, request.query.get("after", ""))
        names = await self.access.allowed_topics(request[SENDER], names)
        return _json(await self._show(views.topics, names, next_after))

    async def _topic(self, request: web.Request) -> web.Response:
        name = request.match_info["topic"]
        first = request.query.get("first_partition", "0")
        if not first.isascii() or not first.isdigit() or len(first) > 9:
            return _json({"error": f"first_partition={first!r} is not a partition number"}, 400)
        access, sender, kind = self.access, request[SENDER], ResourceType.TOPIC
        await access.require(sender, Operation.DESCRIBE, kind, name)
        shows_configs = await access.may(sender, Operation.DESCRIBE_CONFIGS, kind, name)
        view = partial(views.topic, shows_configs=shows_configs)
        document = await self._show(view, name, int(first))
        if document is None:
            return _json({"error": f"there is no topic {name!r}"}, 404)
        return _json(document)

    async def _log_directories(self, _request: web.Request) -> web.Response:
        return _json(await self._show(views.log_directories))


@contextmanager
def _busy_if_late() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise web.HTTPServiceUnavailable(text="the broker is busy\n") from None


async def _receive(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    console: NodeConsole | None,
    request: web.BaseRequest,
) -> web.StreamResponse:
    """Begin with a request whose headers have come. Nothing is expected (RFC 9110, section 10.1.1):
    no page takes a body, but the console's.
    """
    begin(request)
    if console is not None and is_console_path(request.raw_path):
        return await console(request)
    if "Expect" in request.headers:
        return _json({"error": "no expectation is met"}, 417)
    return await handle(request)


def _json(document: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(document) + b"\n", content_type="application/json"
    )
