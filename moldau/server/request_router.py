"""From a frame to the handler that answers it: the one road of broker and controller listeners.

Owns the order of checks (API and version by `apis`, then the session; handlers ask for permission),
the decoding of the body, the dispatch by a table of routes, and the tasks of requests that take
several turns. Must not answer for an API itself, but for the one rule that belongs to no version:
an unknown version of ApiVersions. Invariants: whatever a peer sends, the worst that happens is that
its own connection is closed; requests of one lane never wait behind those of another; in a lane,
principals take turns; a place that is waited for ends with the connection that waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau.addresses import network_of
from moldau.metadata.steps import at_once
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.registry import request_class
from moldau.runtime.event_loop import this_task
from moldau.runtime.slices import Work, in_slices
from moldau.runtime.telemetry.logs import Event
from moldau.server.audit_log import DEFAULT_MAX_LINES, Lines
from moldau.server.decoding import DEFAULT_MEMORY_BYTES, SCALARS, Budget, Decoding, Steps
from moldau.server.fair_shares import FairShares, Lane, Waiting
from moldau.server.quotas.request_time import Stopwatch, TimedWork, timed_steps
from moldau.server.request import RequestContext, TooLarge
from moldau.server.server_connection import ANONYMOUS
from moldau.text import quoted, short_name

if TYPE_CHECKING:
    from moldau.protocol.schema import Message
    from moldau.runtime.clock import Clock
    from moldau.server.authorizer import Authorizer
    from moldau.server.loop_watchdog import LoopWatchdog
    from moldau.server.quotas.client_quotas import Quotas
    from moldau.server.request import Request


_LOG: Final = logging.getLogger(__name__)


MAX_WAITING_REQUESTS: Final = 128
"""How many requests of a principal wait in a lane before the connections of further ones are not
read: each of those adds one request at most."""

Handle = Callable[[RequestContext, Any], Iterator[None] | None]
"""Answers through its context, at once or later; a generator, for requests with many parts, yields
between them and is cut into slices."""

Answer = Callable[[RequestContext, Any], Coroutine[object, None, "Message | bytes"]]
"""Returns the response, or its frame (without the size) as another node has encoded it."""


class Handler(NamedTuple):
    """What answers an API: one of both."""

    handle: Handle | None = None
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Route:
    """A row of the table: which versions of an API are served, and by what.

    Attributes:
        _load: called on the API's first request.
        lane: of an API that is answered by a coroutine; None for the others.
        opened: what is made of the decoded message before the handler gets it, in steps.
        asked_for_by: the party that has an opened message sent through another node, None when
            the sender itself has.
        budget: of the decoding of requests that are not small.
    """

    min_version: int
    max_version: int
    _load: Callable[[], Handler]
    lane: Lane | None = None
    opened: Callable[[Any], Steps[object]] | None = None
    asked_for_by: Callable[[RequestContext, Any], str | None] | None = None
    budget: Budget = SCALARS
    message_class: type[Message] | None = None
    handle: Handle | None = None
    answer: Answer | None = None

    def load(self, api_key: ApiKey) -> type[Message]:
        self.handle, self.answer = self._load()
        assert (self.handle is None) != (self.answer is None), f"{api_key.name}: one handler"
        assert (self.answer is None) == (self.lane is None), f"{api_key.name}: its lane"
        self.message_class = request_class(api_key)
        return self.message_class


def party_of(principal: str, client_host: str) -> str:
    """Who shares with others: a principal, or the address of clients that have none."""
    return network_of(client_host) if principal == ANONYMOUS else principal


class _Call:
    """A request that is answered by a coroutine.

    Attributes:
        message: decoded and opened; None until its turn comes.
        lane: whose place it holds, None while it waits for one.
        suspends: whether its connection is not read while it waits.
    """

    __slots__ = ("lane", "message", "party", "request", "route", "suspends", "waiting")

    def __init__(self, route: Route, request: Request, message: object, party: str) -> None:
        self.route = route
        self.request = request
        self.message = message
        self.party = party
        self.lane: Lane | None = None
        self.suspends = False
        self.waiting: Waiting | None = None


_ENDING: Final = "ending"
"""Where a connection's state has what ends with it: calls that wait, and tasks."""


class RequestRouter:
    """Calls the right handler for every request of some listeners.

    Args:
        routes: the table, by API key.
        authorizer, quotas: go into every request's context.
        on_fault: called with an exception that no handler expected; decides if the node goes on.
        watchdog: of the loop, if it has one.
        decoded_max_bytes: `moldau.decoded.max.bytes`.
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
        decoded_max_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        self._routes = routes
        self._clock = clock
        self._authorizer = authorizer
        self._on_fault = on_fault
        self._quotas = quotas
        self._watchdog = watchdog
        self._suspended: set[asyncio.Task[None]] = set()
        self._decoding = Decoding(clock, decoded_max_bytes)
        self._places: dict[Lane, FairShares] = {}
        self._waiting: dict[_Call, None] = {}
        self._running: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._lines = Lines(_LOG, logging.WARNING, clock, DEFAULT_MAX_LINES)

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
            self._suspend(request, self._take_large(route, message_class, request))
            return
        if route.answer is not None and route.opened is None:
            self._enter(_Call(route, request, None, self._party(route, request, None)))
            return
        try:
            message: object = message_class.decode(request.body, api_version)[0]
        except RemoteProtocolError as error:
            self._refuse_body(request, message_class, error)
            return
        if route.opened is not None:
            message = at_once(route.opened(message))
        work = self._handle(route, request, message)
        if work is not None:
            party = party_of(request.connection.principal, request.connection.client_host)
            self._suspend(request, self._in_turn(party, work))

    @property
    def request_count(self) -> int:
        """Requests that are answered by coroutines, and run or wait."""
        return len(self._running) + len(self._waiting)

    async def close(self, *, cancels: bool = False) -> None:
        """Drop the requests that wait and let the running ones end.

        Args:
            cancels: end the running ones at once: some may wait long.
        """
        while self._waiting:
            self._drop(next(iter(self._waiting)))
        if cancels:
            for task in self._running:
                task.cancel()
        if (log := self._authorizer.log) is not None:
            log.close()
        self._lines.close()
        while running := {*self._suspended, *self._running}:
            await asyncio.wait(running)

    def _context(self, request: Request) -> RequestContext:
        quotas = self._quotas
        context = RequestContext(request, self._authorizer, quotas)
        if quotas is not None and quotas.limits_requests:
            context.stopwatch = Stopwatch(self._clock)
        return context

    def _handle(self, route: Route, request: Request, message: object) -> Work | None:
        if route.handle is not None:
            quotas = self._quotas
            context = RequestContext(request, self._authorizer, quotas)
            if quotas is not None and quotas.limits_requests:
                context.stopwatch = Stopwatch(self._clock)
            steps = self._first_step(route.handle, context, message)
            return None if steps is None else in_slices(self._clock, steps)
        self._enter(_Call(route, request, message, self._party(route, request, message)))
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

    def _decoded(self, message_class: type[Message], request: Request) -> object | None:
        """The message of a small request whose turn has come; None when it is malformed: then the
        connection is closed.
        """
        try:
            message: object = message_class.decode(request.body, request.api_version)[0]
        except RemoteProtocolError as error:
            self._refuse_body(request, message_class, error)
            return None
        return message

    # -- requests that take several turns ----------------------------------------------------------

    async def _take_large(
        self, route: Route, message_class: type[Message], request: Request
    ) -> None:
        """Decode and handle a large request."""
        connection = request.connection
        party = party_of(connection.principal, connection.client_host)
        try:
            message = await self._decode_large(party, route, message_class, request)
        except TooLarge as error:
            name, sender = message_class.__name__, short_name(connection.principal)
            request.close(f"{name} v{request.api_version} of {sender}: {error}")
            return
        except RemoteProtocolError as error:
            self._refuse_body(request, message_class, error)
            return
        work = self._handle(route, request, message)
        del message
        if work is not None:
            await self._in_turn(party, work)

    async def _decode_large(
        self, party: str, route: Route, message_class: type[Message], request: Request
    ) -> object:
        """The opened message; what this waits for ends with the connection. Raises as
        `Decoding.decode`.
        """
        ending, decoding = self._ending(request), self._decoding
        ending.add(this_task())
        try:
            context = self._context(request)
            decoded = request.decoded = await decoding.decode(
                party, context, message_class, route.budget
            )
            if route.opened is None:
                return decoded.message
            async with decoding.turns.share(party):
                return await decoding.take(decoded, route.opened(decoded.message))
        finally:
            ending.discard(this_task())

    async def _in_turn(self, party: str, work: Work) -> None:
        """Do work in slices when there is room for it."""
        try:
            await self._decoding.turns.taken(party)
        except BaseException:
            work.close()
            raise
        try:
            await work
        finally:
            self._decoding.turns.give_back(party)

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
        if error is not None or (task.cancelled() and not request.is_answered):
            request.close("a request failed inside the node")
        if error is not None:
            self._on_fault(error)
        request.connection.proceed()

    # -- lanes -----------------------------------------------------------------------------------

    def _party(self, route: Route, request: Request, message: object) -> str:
        connection = request.connection
        if route.asked_for_by is not None:
            party = route.asked_for_by(self._context(request), message)
            if party is not None:
                return party
        return party_of(connection.principal, connection.client_host)

    def _places_of(self, lane: Lane) -> FairShares:
        places = self._places.get(lane)
        if places is None:
            places = self._places[lane] = FairShares(lane.max_running)
        return places

    def _enter(self, call: _Call) -> None:
        """Start a call, or have it wait for its party's turn."""
        lane, request = call.route.lane, call.request
        assert lane is not None, "loaded"
        if request.is_connection_lost:
            request.close("its client has gone")
            return
        places = self._places_of(lane)
        if places.take(call.party):
            self._start(lane, call, begins=asyncio.current_task() is None)
            return
        call.waiting = places.wait(call.party, 1, lambda: self._start(lane, call))
        self._waiting[call] = None
        self._ending(request).add(call)
        if call.message is None:
            request.copy_small_body()
        # Through another node's connection come the requests of many: it is read on.
        is_own = call.route.asked_for_by is None
        if is_own and places.waiting_count(call.party) > MAX_WAITING_REQUESTS:
            call.suspends = True
            request.connection.suspend()
            self._tell(lane, call, places)

    def _tell(self, lane: Lane, call: _Call, places: FairShares) -> None:
        connection = call.request.connection
        principal, host = connection.principal, connection.client_host

        def event() -> Event:
            fields: dict[str, object] = {
                "principal": short_name(principal),
                "host": host,
                "lane": lane.name,
                "running": places.held_by(call.party),
                "waiting": places.waiting_count(call.party),
            }
            text = (
                f"Principal = {quoted(short_name(principal))} from host = {quoted(host)} has "
                f"{fields['running']} requests under way in the lane of {lane.name}, and "
                f"{fields['waiting']} wait: its connections are not read until they have had "
                "their turns"
            )
            return Event("a lane full of one client's requests", text, fields, is_counted=True)

        self._lines.tell((lane, principal, host), (principal, host), event)

    def _waited(self, call: _Call) -> None:
        """It waits no more."""
        call.waiting = None
        del self._waiting[call]
        self._ending(call.request).discard(call)
        if call.suspends:
            call.suspends = False
            call.request.connection.proceed()

    def _ending(self, request: Request) -> set[_Call | asyncio.Task[None]]:
        """What ends with a connection."""
        connection = request.connection
        ending: set[_Call | asyncio.Task[None]] | None = connection.state.get(_ENDING)
        if ending is None:
            ending = connection.state[_ENDING] = set()
            connection.on_close(lambda _: self._connection_ended(ending))
        return ending

    def _connection_ended(self, ending: set[_Call | asyncio.Task[None]]) -> None:
        for each in tuple(ending):
            if isinstance(each, _Call):
                self._drop(each)
            else:
                each.cancel()

    def _drop(self, call: _Call) -> None:
        """Take a call that waits out of the line for good."""
        waiting, lane = call.waiting, call.route.lane
        assert waiting is not None, "it waits"
        assert lane is not None, "loaded"
        self._waited(call)
        self._places_of(lane).give_up(waiting)
        call.request.close("the node is shutting down")

    def _start(self, lane: Lane, call: _Call, *, begins: bool = False) -> None:
        """Answer a call, which has a place of the lane; `begins` while its connection has the turn:
        many an answer takes one step, which then is not another turn.
        """
        if call.waiting is not None:
            self._waited(call)
        route, request = call.route, call.request
        message = call.message
        if message is None:
            assert route.message_class is not None, "loaded"
            message = self._decoded(route.message_class, request)
            if message is None:
                self._places_of(lane).give_back(call.party)
                return
        call.lane = lane
        context = self._context(request)
        context.change_lane = partial(self._change_lane, call)
        assert route.answer is not None, "loaded"
        running: Coroutine[object, None, None] = self._run(route.answer, context, message)
        call.message = None
        if context.stopwatch is not None:
            running = TimedWork(running, context.stopwatch)
        if self._watchdog is not None:
            running = self._watchdog.watch(request, running)
        steps = request.connection.in_turns(running)
        task = asyncio.get_running_loop().create_task(steps)
        self._running[task] = None
        if lane.ends_with_connection:
            self._ending(request).add(task)
        task.add_done_callback(partial(self._finished, call, context))
        if begins:
            steps.begin(task)

    @staticmethod
    async def _run(answer: Answer, context: RequestContext, message: object) -> None:
        response = await answer(context, message)
        if isinstance(response, bytes):
            context.request.respond_parts((len(response).to_bytes(4, "big"), response))
        else:
            context.respond(response)

    async def _change_lane(self, call: _Call, lane: Lane) -> None:
        """Give a call's place back, and go on with one of another lane."""
        assert call.lane is not None, "it runs"
        self._places_of(call.lane).give_back(call.party)
        call.lane = None
        if lane.ends_with_connection:
            self._ending(call.request).add(this_task())
        places = self._places_of(lane)
        suspends = places.waiting_count(call.party) >= MAX_WAITING_REQUESTS
        if suspends:
            call.request.connection.suspend()
        try:
            await places.taken(call.party)
        finally:
            if suspends:
                call.request.connection.proceed()
        call.lane = lane

    def _finished(self, call: _Call, context: RequestContext, task: asyncio.Task[None]) -> None:
        del self._running[task]
        ending = call.request.connection.state.get(_ENDING)
        if ending is not None:
            ending.discard(task)
        if not context.is_answered:
            context.close("the request failed inside the node")
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._on_fault(error)
        if call.lane is not None:
            self._places_of(call.lane).give_back(call.party)

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
