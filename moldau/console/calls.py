"""One request on its way through a handler: who asks, for what, with which clients.

Must not know the table of routes. Invariants: a body is read within its route's limit; a query has
values of the types that its route declares.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import orjson
from aiohttp import web

from moldau.console.clients import ClientPool, Clients
from moldau.console.figures import TrafficRates
from moldau.console.guard import Host
from moldau.console.lags import LagHistories, Point
from moldau.console.people import OWN, Person, principal_of
from moldau.console.problems import Problem
from moldau.console.sessions import Session, Sessions
from moldau.console.settings import ConsoleSettings, Line
from moldau.console.tries import Tries

JSON: Final = "application/json"
SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Every answer has them that does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Site:
    """What all requests of a console share.

    Attributes:
        anonymous_token: what pages show where people do not log in; other sites cannot read it.
        lags: of groups, as people have seen them.
        rates: of the node that serves the console.
    """

    settings: ConsoleSettings
    sessions: Sessions
    tries: Tries
    pool: ClientPool
    anonymous_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    lags: LagHistories = field(default_factory=LagHistories)
    rates: TrafficRates = field(default_factory=lambda: TrafficRates(time.monotonic))

    @classmethod
    def of(cls, settings: ConsoleSettings) -> Site:
        """The parts of a console that has served nothing yet."""
        sessions, tries = Sessions(settings.now_s), Tries(settings.now_s)
        return cls(settings, sessions, tries, ClientPool(settings, sessions, tries))


@dataclass(slots=True)
class Reply:
    """An answer: JSON unless `body` is bytes already.

    Attributes:
        document: what becomes JSON; None for no body.
        headers: further ones.
    """

    document: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON

    def response(self) -> web.Response:
        """The answer of aiohttp."""
        body = self.document
        if body is not None and not isinstance(body, bytes):
            body = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
        answer = web.Response(status=self.status, body=body)
        if body is not None:
            answer.content_type = self.content_type
        else:
            answer.headers.pop("Content-Type", None)
        answer.headers.update({**SECURITY_HEADERS, **self.headers})
        return answer


NO_CONTENT: Final = 204


@dataclass(eq=False)
class Call:
    """One request.

    Attributes:
        path: the names in its path, by those of the route.
        query: its parameters, typed.
        person: whose rights count.
        session: where it came with a cookie.
        body: what a route with a schema takes; it has been checked.
    """

    request: web.BaseRequest
    site: Site
    host: Host
    line: Line
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    person: Person = OWN
    session: Session | None = None
    body: Any = None
    cookie: str | None = None
    scope: AsyncExitStack = field(default_factory=AsyncExitStack)
    _clients: Clients | None = None

    @property
    def address(self) -> str:
        """Where the client is."""
        return self.request.remote or ""

    @property
    def principal(self) -> str:
        """What the cluster calls who asks."""
        if self.session is not None:
            return self.session.principal
        return principal_of(self.person, self.site.settings.way)

    @property
    def base(self) -> str:
        """The address of this server, as the client has it."""
        scheme = "https" if self.request.secure else "http"
        return f"{scheme}://{self.request.headers['Host']}"

    def link(self, *segments: object) -> str:
        """The address of a path, whose segments are names of any text."""
        return "/".join((self.base, *(quote(str(each), safe=":-") for each in segments)))

    async def clients(self) -> Clients:
        """The person's clients, until the request ends. Raises: Problem, KafkaError."""
        if self._clients is None:
            pinned = self.site.pool.of(self.person, self.address)
            self._clients = await self.scope.enter_async_context(pinned)
        return self._clients

    def forget_looks(self) -> None:
        """Have the cluster asked again for what it has lately answered."""
        if self._clients is not None:
            self._clients.looks.forget()

    def remember_lag(self, group_id: str, lag: int | None) -> None:
        """Keep what the person has just seen of a group's lag, if it is known."""
        if lag is not None:
            self.site.lags.add(self.person, group_id, lag)

    def lags_of(self, group_id: str) -> list[Point]:
        """What the person has seen of a group's lag."""
        return self.site.lags.of(self.person, group_id)

    async def cluster_id(self) -> str:
        """The cluster's id, which a path with `{cluster_id}` has to name. Raises: Problem: 404."""
        facts = await (await self.clients()).facts()
        asked = self.path.get("cluster_id")
        if asked is not None and asked != facts.cluster_id:
            raise Problem(404, f"there is no cluster {asked} here")
        return facts.cluster_id

    def is_over(self) -> bool:
        """Whether what lets the person in has ended, for answers that take long."""
        is_out = self.session is not None and self.session.is_over
        return is_out or (self._clients is not None and self._clients.is_refused)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes; the connection's time limit begins again with each part."""
        while chunk := await self.request.content.readany():
            self.line.goes_on()
            yield chunk

    async def whole_body(self, limit_bytes: int) -> bytes:
        """The body. Raises: Problem: 413."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit_bytes:
                raise Problem(413, f"a body of more than {limit_bytes} bytes")
            parts.append(chunk)
        return b"".join(parts)


class Stream:
    """An answer that takes long, written as its reader takes it.

    Invariant: no more than one part waits for a slow reader, beside what the transport holds.
    """

    def __init__(self, call: Call, content_type: str, headers: Mapping[str, str] | None = None):
        self._call = call
        self.response = web.StreamResponse()
        self.response.content_type = content_type
        self.response.charset = "utf-8"
        self.response.headers.update({**SECURITY_HEADERS, **(headers or {})})
        self._lock = asyncio.Lock()

    async def begin(self) -> None:
        """Send the status and the headers."""
        await self.response.prepare(self._call.request)

    async def write(self, part: bytes) -> None:
        """Send a part; waits while the reader has not taken enough of the ones before.

        Raises:
            ConnectionError: the reader has gone.
        """
        async with self._lock:
            await self.response.write(part)
            self._call.line.goes_on()

    async def end(self) -> web.StreamResponse:
        """Nothing more comes."""
        await self.response.write_eof()
        return self.response
