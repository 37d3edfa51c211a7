"""The console as one function of a request: guard, login, route, handler, answer.

Owns the order in which a request is looked at, and how many are under way. Must not listen: a
node's HTTP thread calls it, and so does `moldau console`. Invariants: nothing of a request is acted
on before its host, its site and its path are checked; no handler runs for one who is not let in;
every answer has the headers of security; what a client causes is a problem, never a traceback.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import orjson
from aiohttp import web

from moldau.client import KafkaError
from moldau.console.calls import JSON, Call, Reply, Site
from moldau.console.guard import (
    REQUEST_TOKEN,
    SAFE_METHODS,
    Basic,
    Target,
    check_host,
    check_site,
    cookie_name,
    credentials_of,
    host_of,
    is_of_browser,
    target_of,
)
from moldau.console.pages import PLACE, Pages
from moldau.console.people import PASSWORD, TOKEN, Person
from moldau.console.problems import RETRY, Problem, as_confluents, problem_of
from moldau.console.routes import CONFLUENTS, Route, RouteTable
from moldau.console.schemas import check
from moldau.console.settings import ConsoleSettings
from moldau.console.tables import ROUTES
from moldau.protocol.errors import LocalProtocolError

PROBLEM_JSON: Final = "application/problem+json"
CHALLENGES: Final = {
    PASSWORD: 'Basic realm="moldau", charset="UTF-8"',
    TOKEN: 'Bearer realm="moldau"',
}
"""What clients that are no browsers are asked for: a browser would ask its user by itself."""
LOGIN_NEEDED: Final = "login needed"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(eq=False)
class Console:
    """Answers requests. Call it with each; `close` it in the end."""

    settings: ConsoleSettings
    routes: Iterable[Route] = ROUTES
    pages: Pages = field(default_factory=Pages)
    _under_way: Counter[Person] = field(default_factory=Counter)
    _streams: Counter[Person] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.site = Site.of(self.settings)
        self.table = RouteTable(self.routes)

    async def close(self) -> None:
        """Close all connections of all people."""
        await self.site.pool.close()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to a request, whose headers have come."""
        path = request.raw_path.partition("?")[0]
        is_confluents = path.startswith(f"/{CONFLUENTS}/")
        began: list[Call] = []
        try:
            return await self._answer(request, began)
        except Problem as problem:
            found = problem
        except KafkaError as error:
            found = problem_of(error)
        except LocalProtocolError as error:
            found = Problem(501, f"the cluster does not serve this: {error}")
        for call in began:
            if call.is_over():
                found = Problem(401, f"{LOGIN_NEEDED}: the session has ended")
        if is_confluents:
            found = as_confluents(found)
        headers = dict(found.headers)
        if found.status == 401:
            headers |= self._challenges(request)
        document = found.document(path, is_confluents=is_confluents)
        return Reply(document, found.status, headers, PROBLEM_JSON).response()

    def _challenges(self, request: web.BaseRequest) -> dict[str, str]:
        if is_of_browser(request.headers):
            return {"WWW-Authenticate": "Session"}
        asked = [CHALLENGES[each] for each in self.settings.logins]
        return {"WWW-Authenticate": ", ".join(asked) or "Session"}

    async def _answer(self, request: web.BaseRequest, began: list[Call]) -> web.StreamResponse:
        headers, target = request.headers, target_of(request.raw_path)
        host = host_of(headers.get("Host") if len(headers.getall("Host", [])) == 1 else None)
        check_host(host, self.settings.names, _local_address(request))
        is_page = not target.segments or target.segments[0] == PLACE
        check_site(request.method, headers, host, is_page=is_page)
        if is_page:
            return await self.pages.answer(request, target)
        route, names = self.table.find(request.method, target)
        call = Call(request, self.site, host, self.settings.line_of(request), names)
        async with call.scope:
            began.append(call)
            return await self._served(call, route, target)

    async def _served(self, call: Call, route: Route, target: Target) -> web.StreamResponse:
        _check_body(call, route)
        self._identify(call, route)
        self._check_token(call, route)
        if self.settings.is_read_only and route.method not in SAFE_METHODS and not route.is_open:
            raise Problem(403, "this console only reads")
        call.query = route.parameters(target.query)
        async with self._place(call.person, route):
            if route.is_stream:
                return await self._handled(call, route)
            try:
                async with asyncio.timeout(route.time_limit_s):
                    return await self._handled(call, route)
            except TimeoutError:
                why = f"no answer within {route.time_limit_s:.0f} s"
                raise Problem(503, why, *RETRY) from None

    async def _handled(self, call: Call, route: Route) -> web.StreamResponse:
        if route.body is not None or route.reads_body:
            await _begin_body(call)
        if route.body is not None:
            try:
                call.body = orjson.loads(await call.whole_body(route.max_body_bytes))
            except orjson.JSONDecodeError as error:
                raise Problem(400, f"the body is no JSON: {error}") from None
            check(call.body, route.body)
        if "cluster_id" in call.path:
            await call.cluster_id()
        try:
            answer = await route.handler(call)
        finally:
            if route.method not in SAFE_METHODS:
                call.forget_looks()
        return answer.response() if isinstance(answer, Reply) else answer

    def _identify(self, call: Call, route: Route) -> None:
        """Find who asks. Raises: Problem: 401."""
        if not self.settings.needs_login:
            return
        call.cookie = call.request.cookies.get(cookie_name(call.host))
        header = call.request.headers.get("Authorization")
        if header is not None:
            given = credentials_of(header)
            if isinstance(given, Basic):
                call.person = Person(PASSWORD, given.name, given.password)
            else:
                call.person = Person(TOKEN, "", given.token)
            return
        if call.cookie is not None:
            call.session = self.site.sessions.find(call.cookie)
        if call.session is not None:
            call.person = call.session.person
        elif not route.is_open:
            raise Problem(401, LOGIN_NEEDED)

    def _check_token(self, call: Call, route: Route) -> None:
        """Refuse a change that a page of another site may have had the browser ask for: what a
        browser sends by itself, a cookie or its mere place in the network, is not enough.
        """
        headers = call.request.headers
        if route.method in SAFE_METHODS or route.is_login:
            return
        if call.session is not None:
            expected = call.session.request_token
        elif self.settings.needs_login or not is_of_browser(headers):
            return
        else:
            expected = self.site.anonymous_token
        given = headers.get(REQUEST_TOKEN, "").encode("utf-8", "surrogateescape")
        if not secrets.compare_digest(given, expected.encode()):
            raise Problem(403, f"the header {REQUEST_TOKEN} is needed, with the session's token")

    @asynccontextmanager
    async def _place(self, person: Person, route: Route) -> AsyncIterator[None]:
        """Count a request as under way. Raises: Problem: too many are."""
        limits = self.settings.limits
        if route.is_stream:
            counts, most, most_of_one = self._streams, limits.streams, limits.streams_per_person
        else:
            counts, most = self._under_way, limits.requests
            most_of_one = limits.requests_per_person if self.settings.needs_login else most
        if counts[person] >= most_of_one:
            raise Problem(429, "too many requests of one person at once", *RETRY)
        if counts.total() >= most:
            raise Problem(503, "too many requests at once", *RETRY)
        counts[person] += 1
        try:
            yield
        finally:
            counts[person] -= 1
            if not counts[person]:
                del counts[person]


def _local_address(request: web.BaseRequest) -> str:
    transport = request.transport
    name = None if transport is None else transport.get_extra_info("sockname")
    return str(name[0]) if isinstance(name, tuple) else ""


def _check_body(call: Call, route: Route) -> None:
    """Refuse a body that the route does not take, before any of it is read. Raises: Problem."""
    request = call.request
    if not request.body_exists:
        if route.body is not None or route.reads_body:
            raise Problem(400, "a body is needed")
        return
    if route.body is None and not route.reads_body:
        raise Problem(413, "no body is taken here")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise Problem(415, "bodies are not compressed here")
    if request.content_type != JSON:
        raise Problem(415, f"the body has to be {JSON}")
    length = request.content_length
    if not route.reads_body and length is not None and length > route.max_body_bytes:
        raise Problem(413, f"a body of more than {route.max_body_bytes} bytes")


async def _begin_body(call: Call) -> None:
    """Have the client send the body, which will be read."""
    call.line.takes_body()
    if call.request.headers.get("Expect", "").lower() == "100-continue":
        await call.request.writer.write(_CONTINUE)
        call.request.writer.output_size = 0
