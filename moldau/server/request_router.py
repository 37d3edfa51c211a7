"""From a frame to the handler that answers it: the one road of broker and controller listeners.

Owns the order of checks (API and version, then the session; handlers ask for permission), the
decoding of the body, the dispatch by a table of routes, and the tasks of requests that take several
turns. Must not answer for an API itself, but for the one rule that belongs to no version: an
unknown version of ApiVersions. Invariants: whatever a peer sends, the worst that happens is that
its own connection is closed; requests of one lane never wait behind those of another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.registry import request_class
from moldau.runtime.slices import Work, in_slices
from moldau.server.quotas.request_time import Stopwatch, TimedWork, timed_steps
from moldau.server.request import RequestContext

if TYPE_CHECKING:
    from moldau.protocol.schema import Message
    from moldau.runtime.clock import Clock
    from moldau.server.authorizer import Authorizer
    from moldau.server.loop_watchdog import LoopWatchdog
    from moldau.server.quotas.client_quotas import Quotas
    from moldau.server.request import Request


class Lane(NamedTuple):
    """Requests that are answered by coroutines and share a limit.

    Attributes:
        max_running: worked on at once; further ones wait in the order they came.
        max_waiting: the connection of one more is closed, for the reason `refusal`.
    """

    max_running: int
    max_waiting: int
    refusal: str


ADMIN: Final = Lane(64, 10_000, "10000 administrative requests already wait")

Handle = Callable[[RequestContext, Any], Iterator[None] | None]
"""Answers through its context, at once or later; a generator, for requests with many parts, yields
after each and is cut into slices."""

Answer = Callable[[RequestContext, Any], Coroutine[object, None, "Message"]]
"""Returns the response."""


class Handler(NamedTuple):
    """What answers an API: one of both."""

    handle: Handle | None = None
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Route:
    """A row of the table: which versions of an API are served, and by what.

    Attributes:
        _load: called on the API's first request.
        opened: what is made of the decoded message before the handler gets it, off the loop if the
            request is large.
    """

    min_version: int
    max_version: int
    _load: Callable[[], Handler]
    lane: Lane = ADMIN
    opened: Callable[[Any], object] | None = None
    message_class: type[Message] | None = None
    handle: Handle | None = None
    answer: Answer | None = None

    def load(self, api_key: ApiKey) -> type[Message]:
        self.handle, self.answer = self._load()
        assert (self.handle is None) != (self.answer is None), f"{api_key.name}: one handler"
        self.message_class = request_class(api_key)
        return self.message_class


class _Call(NamedTuple):
    answer: Answer
    context: RequestContext
    message: object


class _Traffic:
    """The requests of one lane."""

    __slots__ = ("lane", "running", "waiting")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.running: dict[asyncio.Task[None], None] = {}  # in the order they began
        self.waiting: deque[_Call] = deque()


class RequestRouter:
    """Calls the right handler for every request of some listeners.

    Args:
        routes: the table, by API key.
        authorizer, quotas: go into every request's context.
        on_fault: told of an exception that no handler expected; decides if the node goes on.
        watchdog: of the loop, if it has one.
    """

    def __init__(
        self,
        routes: Mapping[int, Route],
        *,
        clock: Clock,
        authorizer: Authorizer,
        on_fault: Callable[[BaseException], None],
        quotas: Quotas | None = None,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self._routes = routes
        self._clock = clock
        self._authorizer = authorizer
        self._on_fault = on_fault
        self._quotas = quotas
        self._watchdog = watchdog
        self._suspended: set[asyncio.Task[None]] = set()
        self._traffic = {route.lane: _Traffic(route.lane) for route in routes.values()}

    def __call__(self, request: Request) -> None:
        route = self._routes.get(request.api_key)
        if route is None:
            request.close(f"API {request.api_key} is not served here")
            return
        api_version = request.api_version
        if not route.min_version <= api_version <= route.max_version:
            self._refuse_version(request, route)
            return
        gate = request.connection.gate
        taken = gate is not None and gate.takes(request)
        if taken:
            if taken is not True:
                self._suspend(request, taken)
            return
        message_class = route.message_class or route.load(ApiKey(request.api_key))
        if request.is_large:
            self._suspend(request, self._decode(route, message_class, request))
            return
        try:
            message: object = message_class.decode(request.body, api_version)[0]
        except RemoteProtocolError as error:
            self._refuse_body(request, message_class, error)
            return
        if route.opened is not None:
            message = route.opened(message)
        work = self._handle(route, request, message)
        if work is not None:
            self._suspend(request, work)

    @property
    def request_count(self) -> int:
        """Requests that are answered by coroutines, and run or wait."""
        return sum(len(each.running) + len(each.waiting) for each in self._traffic.values())

    async def close(self, *, cancels: bool = False) -> None:
        """Drop the requests that wait and let the running ones end.

        Args:
            cancels: end the running ones at once: some may wait long.
        """
        for traffic in self._traffic.values():
            while traffic.waiting:
                traffic.waiting.popleft().context.close("the node is shutting down")
            if cancels:
                for task in traffic.running:
                    task.cancel()
        if (log := self._authorizer.log) is not None:
            log.close()
        while running := {
            *self._suspended,
            *(t for e in self._traffic.values() for t in e.running),
        }:
            await asyncio.wait(running)

    def _handle(self, route: Route, request: Request, message: object) -> Work | None:
        quotas = self._quotas
        context = RequestContext(request, self._authorizer, quotas)
        if quotas is not None and quotas.limits_requests:
            context.stopwatch = Stopwatch(self._clock)
        if route.handle is not None:
            steps = self._first_step(route.handle, context, message)
            return None if steps is None else in_slices(self._clock, steps)
        assert route.answer is not None, "loaded"
        call = _Call(route.answer, context, message)
        lane = route.lane
        traffic = self._traffic[lane]
        if len(traffic.running) < lane.max_running:
            self._start(traffic, call)
        elif len(traffic.waiting) < lane.max_waiting:
            traffic.waiting.append(call)
        else:
            request.close(lane.refusal)
        return None

    @staticmethod
    def _first_step(
        handle: Handle, context: RequestContext, message: object
    ) -> Iterator[None] | None:
        stopwatch = context.stopwatch
        if stopwatch is None:
            return handle(context, message)
        stopwatch.start()
        try:
            steps = handle(context, message)
        finally:
            stopwatch.stop()
        return None if steps is None else timed_steps(stopwatch, steps)

    # -- requests that take several turns ----------------------------------------------------------

    async def _decode(self, route: Route, message_class: type[Message], request: Request) -> None:
        try:
            message: object = await request.decode(message_class)
            if route.opened is not None:
                message = await request.connection.offload(route.opened, message)
        except RemoteProtocolError as error:
            self._refuse_body(request, message_class, error)
            return
        work = self._handle(route, request, message)
        if work is not None:
            await work

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

    def _start(self, traffic: _Traffic, call: _Call) -> None:
        running = self._run(call)
        if call.context.stopwatch is not None:
            running = TimedWork(running, call.context.stopwatch)
        if self._watchdog is not None:
            running = self._watchdog.watch(call.context.request, running)
        task = asyncio.get_running_loop().create_task(running)
        traffic.running[task] = None
        task.add_done_callback(partial(self._finished, traffic, call.context))

    @staticmethod
    async def _run(call: _Call) -> None:
        call.context.respond(await call.answer(call.context, call.message))

    def _finished(
        self, traffic: _Traffic, context: RequestContext, task: asyncio.Task[None]
    ) -> None:
        del traffic.running[task]
        if not context.is_answered:
            context.close("the request failed inside the node")
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._on_fault(error)
        while traffic.waiting and len(traffic.running) < traffic.lane.max_running:
            self._start(traffic, traffic.waiting.popleft())

    # -- refusals --------------------------------------------------------------------------------

    @staticmethod
    def _refuse_body(
        request: Request, message_class: type[Message], error: RemoteProtocolError
    ) -> None:
        version = request.api_version
        request.close(f"{message_class.__name__} v{version} is malformed: {error}")

    @staticmethod
    def _refuse_version(request: Request, route: Route) -> None:
        """An unknown ApiVersions version gets a v0 body that names the known ones (KIP-511)."""
        lowest, highest = route.min_version, route.max_version
        if request.api_key != ApiKey.API_VERSIONS:
            request.close(
                f"version {request.api_version} of API {request.api_key} is not served here"
                f" (served: {lowest} to {highest})",
            )
            return
        from moldau.protocol.messages.p18_api_versions import ApiVersion, ApiVersionsResponse

        known = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=lowest, max_version=highest)
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[known])
        request.respond(response, api_version=0)
