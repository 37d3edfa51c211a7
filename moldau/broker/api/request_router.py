"""From a frame to the handler that answers it.

Owns the check of API and version, the decoding of the body, the dispatch by the table in
`broker.api` and the tasks of slow (administrative) handlers. Must not answer for an API itself,
but for the one rule that belongs to no version: an unknown version of ApiVersions. Invariant:
whatever a peer sends, the worst that happens is that its own connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.api import BROKER_APIS, ServedApi, load_handler_module
from moldau.broker.api.request_context import RequestContext
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.registry import request_class
from moldau.runtime.slices import Work, in_slices

if TYPE_CHECKING:
    from moldau.broker.api.authorizer import Authorizer
    from moldau.broker.api.services import BrokerServices
    from moldau.protocol.schema import Message
    from moldau.server.loop_watchdog import LoopWatchdog
    from moldau.server.request import Request

logger = logging.getLogger("moldau.broker.requests")

MAX_RUNNING_ADMIN_REQUESTS: Final = 64
"""Administrative requests worked on at once; further ones wait in the order they came."""

MAX_WAITING_ADMIN_REQUESTS: Final = 10_000
"""Administrative requests that wait their turn; the connection of one more is closed."""

Answer = Callable[..., Coroutine[Any, Any, "Message"]]


class _Route:
    """A row of the table with what is loaded on its first request."""

    __slots__ = ("answer", "handle", "max_version", "min_version", "request_class", "served")

    def __init__(self, served: ServedApi) -> None:
        self.served = served
        self.min_version = served.min_version
        self.max_version = served.max_version
        self.request_class: type[Message] | None = None
        self.handle: Callable[..., Iterator[None] | None] | None = None
        """Answers at once; one that has many parts yields after each, and is cut into slices."""
        self.answer: Answer | None = None

    def load(self, api_key: ApiKey) -> type[Message]:
        module = load_handler_module(self.served)
        self.handle = getattr(module, "handle", None)
        self.answer = getattr(module, "answer", None)
        assert (self.handle is None) != (self.answer is None), f"{module.__name__}: no handler"
        self.request_class = request_class(api_key)
        return self.request_class


class RequestRouter:
    """Calls the right handler for every request of the broker's listeners.

    Args:
        services: what handlers work with.
        authorizer: goes into every request's context.
        on_fault: told of an exception that no handler expected; decides if the node goes on.
        watchdog: of the loop, if it has one.
        apis: the table of served APIs.
    """

    __slots__ = (
        "_authorizer",
        "_on_fault",
        "_routes",
        "_running",
        "_services",
        "_suspended",
        "_waiting",
        "_watchdog",
    )

    def __init__(
        self,
        services: BrokerServices,
        *,
        authorizer: Authorizer,
        on_fault: Callable[[BaseException], None],
        watchdog: LoopWatchdog | None = None,
        apis: dict[ApiKey, ServedApi] = BROKER_APIS,
    ) -> None:
        self._services = services
        self._authorizer = authorizer
        self._on_fault = on_fault
        self._watchdog = watchdog
        self._routes = {int(api_key): _Route(served) for api_key, served in apis.items()}
        self._running: set[asyncio.Task[None]] = set()
        self._suspended: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[_Route, RequestContext, Message]] = deque()

    def __call__(self, request: Request) -> None:
        """Route one request; the `runtime.server` calls this on the loop."""
        route = self._routes.get(request.api_key)
        if route is None:
            request.close(f"API {request.api_key} is not served here")
            return
        api_version = request.api_version
        if not route.min_version <= api_version <= route.max_version:
            self._refuse_version(request, route)
            return
        message_class = route.request_class or route.load(ApiKey(request.api_key))
        if request.is_large:
            self._suspend(request, self._decode(route, message_class, request))
            return
        try:
            message, _end = message_class.decode(request.body, api_version)
        except RemoteProtocolError as error:
            self._refuse_body(request, message_class, error)
            return
        work = self._handle(route, request, message)
        if work is not None:
            self._suspend(request, work)

    def _handle(self, route: _Route, request: Request, message: Message) -> Work | None:
        context = RequestContext(request, self._authorizer)
        if route.handle is not None:
            steps = route.handle(self._services, context, message)
            return None if steps is None else in_slices(self._services.clock, steps)
        self._start_or_queue(route, context, message)
        return None

    async def _decode(self, route: _Route, message_class: type[Message], request: Request) -> None:
        try:
            message = await request.decode(message_class)
        except RemoteProtocolError as error:
            self._refuse_body(request, message_class, error)
            return
        work = self._handle(route, request, message)
        if work is not None:
            await work

    @staticmethod
    def _refuse_body(
        request: Request, message_class: type[Message], error: RemoteProtocolError
    ) -> None:
        version = request.api_version
        request.close(f"{message_class.__name__} v{version} is malformed: {error}")

    def _suspend(self, request: Request, work: Work) -> None:
        """Take several turns for a request; the next one of its connection is handled then."""
        request.connection.suspend()
        if self._watchdog is not None:
            work = self._watchdog.watch(request, work)
        task = asyncio.get_running_loop().create_task(work)
        self._suspended.add(task)
        task.add_done_callback(partial(self._proceed, request))

    def _proceed(self, request: Request, task: asyncio.Task[None]) -> None:
        self._suspended.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            request.close("a request failed inside the node")
            self._on_fault(error)
        request.connection.proceed()

    @property
    def admin_request_count(self) -> int:
        """Administrative requests that run or wait."""
        return len(self._running) + len(self._waiting)

    async def close(self) -> None:
        """Drop the requests that wait and let the running ones end."""
        while self._waiting:
            self._waiting.popleft()[1].close("the node is shutting down")
        while self._running or self._suspended:
            await asyncio.wait(self._running | self._suspended)

    def _refuse_version(self, request: Request, route: _Route) -> None:
        """An unknown ApiVersions version gets a v0 body that names the known ones (KIP-511)."""
        if request.api_key != ApiKey.API_VERSIONS:
            request.close(
                f"version {request.api_version} of API {request.api_key} is not served here"
                f" (served: {route.min_version} to {route.max_version})",
            )
            return
        from moldau.protocol.messages.p18_api_versions import ApiVersion, ApiVersionsResponse

        response = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                ApiVersion(
                    api_key=ApiKey.API_VERSIONS,
                    min_version=route.min_version,
                    max_version=route.max_version,
                )
            ],
        )
        request.respond(response, api_version=0)

    def _start_or_queue(self, route: _Route, context: RequestContext, message: Message) -> None:
        if len(self._running) < MAX_RUNNING_ADMIN_REQUESTS:
            self._start(route, context, message)
        elif len(self._waiting) < MAX_WAITING_ADMIN_REQUESTS:
            self._waiting.append((route, context, message))
        else:
            context.close(f"{MAX_WAITING_ADMIN_REQUESTS} administrative requests already wait")

    def _start(self, route: _Route, context: RequestContext, message: Message) -> None:
        running = self._run(route, context, message)
        if self._watchdog is not None:
            running = self._watchdog.watch(context.request, running)
        task = asyncio.get_running_loop().create_task(running)
        self._running.add(task)
        task.add_done_callback(partial(self._finished, context))

    async def _run(self, route: _Route, context: RequestContext, message: Message) -> None:
        assert route.answer is not None
        context.respond(await route.answer(self._services, context, message))

    def _finished(self, context: RequestContext, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not context.is_answered:
            context.close("the request failed inside the broker")
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._on_fault(error)
        while self._waiting and len(self._running) < MAX_RUNNING_ADMIN_REQUESTS:
            self._start(*self._waiting.popleft())
