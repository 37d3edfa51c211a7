"""A real browser with the page as it is built, and an API of canned answers, without a server.

Owns: the browser, the answers to each request, and what every page is watched for: errors of its
scripts, breaches of its Content-Security-Policy, requests to other hosts. A missing browser skips
visibly.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pytest

from tests.console import answers
from tests.kit.waiting import patience
from tests.tidy.sources import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Route

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
TIMEOUT_MS = 20_000
HOST: Final = "http://console.test"
BUILT: Final = ROOT / "moldau" / "console" / "page"
TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
POLICY: Final = (
    "default-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven by Playwright. While that runs, its event loop runs in this thread,
    so that no other can: it ends with the module, before tests of other files have their turn.
    """
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("chromium is not installed: the page is not looked at")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@dataclass
class Asked:
    """A request that changes something."""

    method: str
    path: str
    body: Any
    token: str | None


@dataclass
class Api:
    """Answers the page's requests.

    Attributes:
        own: answers below the cluster's path, that a test may change.
        problems: (status, Kafka's name, detail) by method and end of a path.
        changes: what has been asked to change, in order.
        is_dead: whether connections are refused.
    """

    own: dict[str, Any] = field(default_factory=lambda: dict(answers.OWN))
    session: dict[str, Any] = field(default_factory=lambda: dict(answers.SESSION))
    problems: dict[tuple[str, str], tuple[int, str | None, str]] = field(default_factory=dict)
    changes: list[Asked] = field(default_factory=list)
    queries: dict[str, str] = field(default_factory=dict)
    events: str = ""
    is_dead: bool = False

    def handle(self, route: Route, request: Request) -> None:
        url = urlsplit(request.url)
        if f"{url.scheme}://{url.netloc}" != HOST or self.is_dead:
            route.abort()
        elif url.path.startswith("/console/"):
            self._file(route, url.path.removeprefix("/console/"))
        else:
            self._answer(route, request, unquote(url.path), url.query)

    def _file(self, route: Route, name: str) -> None:
        path = BUILT / (name if name.startswith("assets/") else "index.html")
        headers = {
            "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8",
            "Content-Security-Policy": POLICY,
        }
        route.fulfill(body=path.read_bytes(), headers=headers)

    def _answer(self, route: Route, request: Request, path: str, query: str) -> None:
        own = path.removeprefix(f"/api/v1/clusters/{answers.CLUSTER}/")
        self.queries[own] = query
        for (method, end), (status, name, detail) in self.problems.items():
            if request.method == method and path.endswith(end):
                problem = {"title": "Refused", "detail": detail, "kafka_error": name}
                route.fulfill(status=status, json=problem)
                return
        if request.method != "GET":
            body = json.loads(request.post_data) if request.post_data else None
            token = request.headers.get("x-moldau-request-token")
            self.changes.append(Asked(request.method, path, body, token))
        if path == "/api/v1/session":
            self._session(route, request)
        elif own.endswith("/messages/live"):
            route.fulfill(body=self.events, headers={"Content-Type": "text/event-stream"})
        elif path.startswith("/v3/"):
            found = answers.V3.get(path.rpartition("/")[2], {})
            route.fulfill(json=found)
        elif own in self.own:
            route.fulfill(json=self.own[own])
        elif request.method != "GET":
            route.fulfill(json={"partition": 0, "offset": 20, "timestamp_ms": answers.NOW_MS})
        else:
            route.fulfill(status=404, json={"title": "Not found", "detail": f"no {own}"})

    def _session(self, route: Route, request: Request) -> None:
        if request.method == "DELETE":
            self.session = dict(answers.LOGGED_OUT)
            route.fulfill(status=204)
            return
        if request.method == "POST":
            self.session = dict(answers.SESSION)
        route.fulfill(json=self.session)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def open_page(browser: Browser, api: Api) -> Iterator[OpenPage]:
    """Opens the page at a path below /console/; at the end it must have behaved."""
    contexts = []
    wrong: list[str] = []

    def opened(path: str = "", size: str = "wide", scheme: str = "light") -> Page:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(TIMEOUT_MS * patience())
        context.route("**/*", api.handle)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on("console", lambda said: _breaches(said.text, wrong))
        page.on("request", lambda asked: _foreign(asked.url, wrong))
        page.goto(f"{HOST}/console/{path}")
        page.wait_for_selector("h1:not(:text-is('Moldau'))")  # shown until it knows who asks
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def _breaches(text: str, wrong: list[str]) -> None:
    if "Content Security Policy" in text:
        wrong.append(text)


def _foreign(url: str, wrong: list[str]) -> None:
    if not url.startswith((f"{HOST}/", "data:", "blob:")):
        wrong.append(f"a request to {url}")
