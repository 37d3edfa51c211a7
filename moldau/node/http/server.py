"""The HTTP listener: metrics, health and read-only JSON, on a thread and loop of its own. Imported
when it starts: its libraries cost more than the rest of a node.

Owns the thread, the aiohttp application and its routes. Must not run anything on the data loop but
the short functions of `views` and `metrics`, handed over one at a time. Invariant: whatever an HTTP
client does, the data loop never waits for it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from moldau.broker.api.services import BrokerServices
from moldau.node.http import collect, metrics, views
from moldau.node.http.access import HttpAccess, HttpRefused
from moldau.protocol.access_control import Operation, ResourceType
from moldau.runtime.loop_thread import LoopThread, call_on
from moldau.runtime.network import AsyncioNetwork, Listener
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.request import Sender
from moldau.server.server import Server
from moldau.storage.log import Log

logger = logging.getLogger("moldau.node.http")

START_TIMEOUT_S: Final = 60.0
DATA_LOOP_TIMEOUT_S: Final = 5.0
SHUTDOWN_TIMEOUT_S: Final = 2.0
MAX_REQUEST_BODY_BYTES: Final = 65_536
MAX_HANDED_OVER: Final = 16
BACKLOG: Final = 64
MAX_CONNECTIONS: Final = 1_000
"""At once, since descriptors are the node's; one more is closed without a word."""
SILENCE_S: Final = 75.0
"""How long a connection may be without a request, or take for the headers of its first."""

RULES: Final = {
    "/metrics": Operation.DESCRIBE,
    "/healthz": Operation.DESCRIBE,
    "/readyz": Operation.DESCRIBE,
    "/api/v1/cluster": Operation.DESCRIBE,
    "/api/v1/metadata": Operation.DESCRIBE,
    "/api/v1/log-directories": Operation.DESCRIBE,
}
"""What a client must be allowed to do to the cluster to read a page; pages of topics ask for
permissions on these."""
SENDER: Final = web.RequestKey("sender", Sender)
"""Who asks for a page that is not open."""

Result = TypeVar("Result")
Ts = TypeVarTuple("Ts")


class _Refusal(asyncio.Protocol):
    """Of a connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


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
    """

    def __init__(
        self,
        services: Callable[[], BrokerServices | None],
        *,
        server: Callable[[], Server | None],
        registry: Registry,
        is_ready: Callable[[], bool],
        data_loop: asyncio.AbstractEventLoop,
        access: HttpAccess,
    ) -> None:
        self._access = access
        self._services = services
        self._server = server
        self._loop_load = collect.LoopLoad(threading.get_ident())
        self._registry = registry
        self._is_ready = is_ready
        self._data_loop = data_loop
        self._thread = LoopThread("moldau-http")
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._handed_over = asyncio.Semaphore(MAX_HANDED_OVER)
        self._is_closing = False
        self.port = 0

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
        scheme = "HTTP" if self._access.handshakes is None else "HTTPS"
        logger.info("%s listener on %s:%d", scheme, host, self.port)

    async def close(self) -> None:
        """Stop serving and end the thread (idempotent)."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._thread.is_running:
            await self._thread.run(self._stop())
            await self._thread.stop()

    async def _serve(self, host: str, port: int) -> int:
        runner = self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=_protocol_logger(),
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            keepalive_timeout=SILENCE_S,
        )
        await runner.setup()
        self._access.start()
        server = runner.server
        assert server is not None, "set up"

        def protocol() -> asyncio.BaseProtocol:
            return server() if len(server.connections) < MAX_CONNECTIONS else _Refusal()

        self._listener = await AsyncioNetwork().listen(
            protocol, host, port, backlog=BACKLOG, handshakes=self._access.handshakes
        )
        if self._is_closing:  # the start was called off
            await self._stop()
        return self._listener.port

    async def _stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._access.close()

    def _application(self) -> web.Application:
        application = web.Application(
            client_max_size=MAX_REQUEST_BODY_BYTES, middlewares=[self._admit]
        )
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/api/v1/cluster", self._cluster),
                web.get("/api/v1/metadata", self._metadata),
                web.get("/api/v1/topics", self._topics),
                web.get("/api/v1/topics/{topic}", self._topic),
                web.get("/api/v1/log-directories", self._log_directories),
            ]
        )
        return application

    @web.middleware
    async def _admit(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Serve an open page, or one to a client that is known and may read it."""
        try:
            if not self._access.is_open(request.path):
                sender = request[SENDER] = await self._access.sender(request)
                rule = RULES.get(request.path)
                if rule is not None:
                    await self._access.require(sender, rule)
            return await handler(request)
        except HttpRefused as refused:
            answer = _json({"error": str(refused)}, refused.status)
            answer.headers.extend(refused.headers)
            return answer

    async def _on_data_loop(self, function: Callable[[*Ts], Result], *arguments: *Ts) -> Result:
        async with self._handed_over:
            try:
                async with asyncio.timeout(DATA_LOOP_TIMEOUT_S):
                    return await call_on(self._data_loop, function, *arguments)
            except TimeoutError:
                raise web.HTTPServiceUnavailable(text="the broker is busy\n") from None

    async def _metrics(self, _request: web.Request) -> web.Response:
        samples = await self._on_data_loop(metrics.snapshot, self._registry)
        samples += self._loop_load.samples()
        server, services = self._server(), self._services()
        if server is not None:
            samples += await self._on_data_loop(collect.server_samples, server.connections)
        if services is not None:
            samples += collect.image_samples(services.metadata.image, time.time() * 1000)
            samples += collect.directory_samples(services)
            cleaner = services.log_manager.cleaner
            samples += await self._on_data_loop(collect.cleaner_samples, cleaner)
            samples += await self._log_samples(services)
        return web.Response(
            body=metrics.render(samples),
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
        services = self._services()
        if services is None:
            raise web.HTTPServiceUnavailable(text="the broker is starting or stopping\n")
        return await self._on_data_loop(view, services, *arguments)

    async def _healthz(self, _request: web.Request) -> web.Response:
        """Alive: the data loop answers."""
        await self._on_data_loop(lambda: None)
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if await self._on_data_loop(self._is_ready):
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready\n")

    async def _cluster(self, _request: web.Request) -> web.Response:
        return _json(await self._show(views.cluster))

    async def _metadata(self, _request: web.Request) -> web.Response:
        # The image never changes: its digest, which takes long for a big one, is made right here.
        image = await self._show(lambda services: services.metadata.image)
        return _json(views.metadata(image))

    async def _topics(self, request: web.Request) -> web.Response:
        names, next_after = await self._show(views.topic_names, request.query.get("after", ""))
        names = await self._access.allowed_topics(request[SENDER], names)
        return _json(await self._show(views.topics, names, next_after))

    async def _topic(self, request: web.Request) -> web.Response:
        name = request.match_info["topic"]
        first = request.query.get("first_partition", "0")
        if not first.isascii() or not first.isdigit() or len(first) > 9:
            return _json({"error": f"first_partition={first!r} is not a partition number"}, 400)
        access, sender, kind = self._access, request[SENDER], ResourceType.TOPIC
        await access.require(sender, Operation.DESCRIBE, kind, name)
        shows_configs = await access.may(sender, Operation.DESCRIBE_CONFIGS, kind, name)
        view = partial(views.topic, shows_configs=shows_configs)
        document = await self._show(view, name, int(first))
        if document is None:
            return _json({"error": f"there is no topic {name!r}"}, 404)
        return _json(document)

    async def _log_directories(self, _request: web.Request) -> web.Response:
        return _json(await self._show(views.log_directories))


def _protocol_logger() -> logging.Logger:
    """For what goes wrong inside the HTTP library; what a client got wrong is not news."""

    def is_ours(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)

    protocol_logger = logging.getLogger("moldau.node.http.protocol")
    protocol_logger.filters[:] = [is_ours]
    return protocol_logger


def _json(document: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(document) + b"\n", content_type="application/json"
    )
