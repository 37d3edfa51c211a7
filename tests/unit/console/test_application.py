"""The order in which a request is looked at, and what it is refused for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.client import ClientClosed
from moldau.client.errors import error_for
from moldau.console.application import Console
from moldau.console.calls import NO_CONTENT, Call, Reply
from moldau.console.guard import REQUEST_TOKEN
from moldau.console.people import Person, Way
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import INTEGER, record
from moldau.console.settings import ConsoleSettings, Limits
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from tests.unit.console.asking import HOST, ask, request

SECURE = Way({"bootstrap.servers": "localhost:1", "security.protocol": "SASL_SSL"}, ("PLAIN",))
OPEN = Way({"bootstrap.servers": "localhost:1"})
ALICE = Person("password", "alice", "secret")
BROWSER = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"}


class Handlers:
    """Routes of a test, and who came to them."""

    def __init__(self) -> None:
        self.people: list[Person] = []
        self.raises: BaseException | None = None
        self.blocked: asyncio.Event | None = None

    async def serve(self, call: Call) -> Reply:
        self.people.append(call.person)
        if self.blocked is not None:
            await self.blocked.wait()
        if self.raises is not None:
            raise self.raises
        return Reply({"name": call.path.get("name"), "body": call.body, **call.query})

    async def nothing(self, call: Call) -> Reply:
        self.people.append(call.person)
        return Reply(status=NO_CONTENT)

    @property
    def routes(self) -> tuple[Route, ...]:
        body = record({"count": INTEGER})
        return (
            self._route("GET", "/v3/things/{name}"),
            self._route("GET", "/api/v1/things"),
            self._route("POST", "/api/v1/things", body=body, max_body_bytes=100),
            self._route("DELETE", "/api/v1/things", handler=self.nothing),
            self._route("GET", "/api/v1/open", is_open=True),
            self._route("GET", "/api/v1/slow", time_limit_s=0.01),
            self._route("GET", "/api/v1/stream", is_stream=True),
        )

    def _route(self, method: str, path: str, **more: Any) -> Route:
        own = {"handler": self.serve, "name": f"{method} {path}", "summary": "x", **more}
        return Route(method=method, path=path, **own)


def made(handlers: Handlers, *, needs_login: bool = False, **settings: Any) -> Console:
    way = SECURE if needs_login else OPEN
    return Console(ConsoleSettings(way, needs_login, **settings), handlers.routes)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/things", {}, 200),
        ("/api/v1/things", {"Host": "evil.example"}, 421),
        ("/api/v1/things", {"Host": "a b"}, 400),
        ("/api/v1/things", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/api/v1/things", {"Origin": "http://evil.example"}, 403),
        ("/api/v1/things/", {}, 404),
        ("/api/v1//things", {}, 404),
        ("/api/v1/%2e%2e/v1/things", {}, 404),
        ("/API/v1/things", {}, 404),
        ("/api/v1/%74hings", {}, 404),
        ("http://localhost:8090/api/v1/things", {}, 400),
    ],
)
async def test_a_request_is_guarded(path: str, headers: dict[str, str], status: int) -> None:
    handlers = Handlers()
    answer = await ask(made(handlers), path, headers)
    assert answer.status == status
    assert len(handlers.people) == (status == 200)


async def test_a_request_has_one_host() -> None:
    asked = request("GET", "/api/v1/things")
    twice = asked.clone(headers=[("Host", HOST), ("Host", "evil.example")])  # type: ignore[arg-type]
    assert (await made(Handlers())(twice)).status == 400


async def test_a_console_may_have_other_names() -> None:
    console = made(Handlers(), names={"moldau.example"})
    assert (await ask(console, "/api/v1/things", {"Host": "moldau.example"})).status == 200
    assert (await ask(console, "/api/v1/things")).status == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # curl, or a client of REST: no browser sends this
        (BROWSER, 403),
        ({"Cookie": "a=b"}, 403),
        ({**BROWSER, REQUEST_TOKEN: "wrong"}, 403),
        ({**BROWSER, REQUEST_TOKEN: "ü"}, 403),
        ({"Referer": "http://evil.example/"}, 403),
    ],
)
async def test_changes_without_a_login_need_a_token_of_browsers(
    headers: dict[str, str], status: int
) -> None:
    handlers = Handlers()
    console = made(handlers)
    answer = await ask(console, "/api/v1/things", headers, method="POST", body={"count": 1})
    assert answer.status == status
    good = {**BROWSER, REQUEST_TOKEN: console.site.anonymous_token}
    answer = await ask(console, "/api/v1/things", good, method="POST", body={"count": 1})
    assert answer.status == 200


async def test_a_session_needs_its_own_token() -> None:
    console = made(Handlers(), needs_login=True)
    text, session = console.site.sessions.open(ALICE, "User:alice")
    _, other = console.site.sessions.open(ALICE, "User:alice")
    cookie = {"Cookie": f"moldau-session-8090={text}"}
    for token in ("", other.request_token, console.site.anonymous_token):
        refused = await ask(
            console, "/api/v1/things", {**cookie, REQUEST_TOKEN: token}, method="DELETE"
        )
        assert refused.status == 403
        assert REQUEST_TOKEN in refused.document["detail"]
    headers = {**cookie, REQUEST_TOKEN: session.request_token}
    assert (await ask(console, "/api/v1/things", headers, method="DELETE")).status == 204
    assert (await ask(console, "/api/v1/things", cookie)).status == 200


async def test_people_log_in_before_anything_is_served() -> None:
    handlers = Handlers()
    console = made(handlers, needs_login=True)
    text, _ = console.site.sessions.open(ALICE, "User:alice")
    for cookie in ("", "moldau-session-8090=x", f"moldau-session={text}", f"other={text}"):
        answer = await ask(console, "/api/v1/things", {"Cookie": cookie})
        assert answer.status == 401
        assert answer.document["detail"] == "login needed"
    assert (await ask(console, "/api/v1/open")).status == 200
    assert handlers.people == [Person()]
    cookie = f"moldau-session-8090={text}"
    assert (await ask(console, "/api/v1/things", {"Cookie": cookie})).status == 200
    assert handlers.people[-1] == ALICE


async def test_clients_of_rest_need_no_cookie_and_no_token() -> None:
    handlers = Handlers()
    console = made(handlers, needs_login=True)
    basic, bearer = {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer abc"}
    for headers, person in (
        (basic, Person("password", "a", "b")),
        (bearer, Person("token", "", "abc")),
    ):
        answer = await ask(console, "/api/v1/things", headers, method="DELETE")
        assert answer.status == 204
        assert handlers.people[-1] == person
        # A browser that has kept them sends them for other sites, too.
        foreign = {**headers, "Origin": "http://evil.example"}
        assert (await ask(console, "/api/v1/things", foreign, method="DELETE")).status == 403
    assert (await ask(console, "/api/v1/things", {"Authorization": "Digest x"})).status == 401


async def test_browsers_are_not_asked_to_ask_their_users() -> None:
    console = made(Handlers(), needs_login=True)
    of_client = (await ask(console, "/api/v1/things")).headers["WWW-Authenticate"]
    assert of_client.startswith("Basic ")
    of_page = (await ask(console, "/api/v1/things", BROWSER)).headers["WWW-Authenticate"]
    assert of_page == "Session"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"count": 1}', {}, 200),
        (None, {}, 400),
        (b"", {}, 400),
        (b"{", {}, 400),
        (b'{"count": "1"}', {}, 422),
        (b"\xff", {}, 400),
        (b'{"count": 1}', {"Content-Type": "text/plain"}, 415),
        (b'{"count": 1}', {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        (b'{"count": 1}', {"Content-Type": "application/json; charset=utf-8"}, 200),
        (b'{"count": 1}', {"Content-Encoding": "gzip"}, 415),
        (b'{"count": 1}' + b" " * 100, {}, 413),
        (b'{"count": 1}' + b" " * 100, {"Content-Length": "12"}, 413),
    ],
)
async def test_a_body_is_checked(body: bytes | None, headers: dict[str, str], status: int) -> None:
    handlers = Handlers()
    answer = await ask(made(handlers), "/api/v1/things", headers, method="POST", body=body)
    assert answer.status == status, answer.document
    if status == 200:
        assert answer.document["body"] == {"count": 1}
    else:
        assert handlers.people == []


async def test_a_connection_that_ends_before_its_body_leaves_no_traceback() -> None:
    handlers = Handlers()
    answer = await made(handlers)(
        request("POST", "/api/v1/things", body=b'{"count": 1', is_cut=True)
    )
    assert (answer.status, handlers.people) == (400, [])


async def test_what_takes_no_body_refuses_one() -> None:
    answer = await ask(made(Handlers()), "/api/v1/things", method="DELETE", body={})
    assert answer.status == 413
    answer = await ask(made(Handlers()), "/api/v1/things", body={})
    assert answer.status == 413


async def test_a_console_may_only_read() -> None:
    console = made(Handlers(), is_read_only=True)
    assert (await ask(console, "/api/v1/things")).status == 200
    refused = await ask(console, "/api/v1/things", method="DELETE")
    assert (refused.status, refused.document["detail"]) == (403, "this console only reads")


@pytest.mark.parametrize(
    ("error", "own", "confluents"),
    [
        (Problem(409, "taken"), 409, 400),
        (error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, "x"), 403, 403),
        (error_for(ErrorCode.INVALID_CONFIG, None, "x"), 422, 400),
        (LocalProtocolError("the peer does not serve it"), 501, 501),
        (ClientClosed("closed"), 503, 503),
    ],
)
async def test_failures_are_problems(error: Exception, own: int, confluents: int) -> None:
    handlers = Handlers()
    handlers.raises = error
    console = made(handlers)
    for path, status in (("/api/v1/things", own), ("/v3/things/a%2Fb", confluents)):
        answer = await ask(console, path)
        assert answer.status == answer.document["status"] == status
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.document["instance"] == path


async def test_what_goes_on_for_a_session_that_has_ended_is_refused() -> None:
    handlers = Handlers()
    console = made(handlers, needs_login=True)
    text, session = console.site.sessions.open(ALICE, "User:alice")
    handlers.blocked, handlers.raises = asyncio.Event(), ClientClosed("closed")
    cookie = {"Cookie": f"moldau-session-8090={text}"}
    asking = asyncio.create_task(ask(console, "/api/v1/things", cookie))
    await asyncio.sleep(0)
    console.site.sessions.end(text)
    handlers.blocked.set()
    assert session.is_over
    assert (await asking).status == 401


async def test_an_answer_has_a_time_limit() -> None:
    handlers = Handlers()
    handlers.blocked = asyncio.Event()
    answer = await ask(made(handlers), "/api/v1/slow")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


@pytest.mark.parametrize("path", ["/api/v1/things", "/api/v1/stream"])
async def test_requests_under_way_are_limited(path: str) -> None:
    handlers = Handlers()
    handlers.blocked = asyncio.Event()
    limits = Limits(requests=3, requests_per_person=2, streams=3, streams_per_person=2)
    console = made(handlers, needs_login=True, limits=limits)

    def asked(user: str) -> asyncio.Task[Any]:
        session, _ = console.site.sessions.open(Person("password", user, "x"), f"User:{user}")
        return asyncio.create_task(ask(console, path, {"Cookie": f"moldau-session-8090={session}"}))

    waiting = [asked("alice"), asked("alice")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await asked("alice")).status == 429
    waiting.append(asked("bob"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await asked("carol")).status == 503
    handlers.blocked.set()
    assert [(await each).status for each in waiting] == [200] * 3
    assert (await asked("alice")).status == 200


async def test_names_and_queries_reach_the_handler() -> None:
    answer = await ask(made(Handlers()), "/v3/things/%C3%BC%20%2F?x=1")
    assert answer.document["name"] == "ü /"
    assert (await ask(made(Handlers()), "/v3/things/%ff")).status == 400
