"""A node's console as clients see it: requests over real connections."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from moldau.testing import Cluster
from tests.kit.waiting import until

CONSOLE: Final = {"moldau.http.listener": "127.0.0.1:0", "moldau.console.enable": "true"}
PASSWORD: Final = "a-password-of-users"


def http_address(cluster: Cluster) -> str:
    """HOST:PORT of the first node's HTTP listener."""
    log = cluster.node().log_path
    announced = until(
        lambda: re.search(r"HTTPS? listener on (\S+)", log.read_text()), what="the HTTP listener"
    )
    assert isinstance(announced, re.Match)
    return announced.group(1)


def basic(user: str, password: str = PASSWORD) -> dict[str, str]:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {encoded}"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    document: Any
    cookies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Site:
    """A console that serves."""

    cluster: Cluster
    address: str

    @property
    def origin(self) -> str:
        return f"http://{self.address}"

    async def ask(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: object = None,
    ) -> Answer:
        """One request, by a client without cookies of its own.

        Args:
            body: what becomes JSON, or bytes that are sent as JSON although they may be none.
        """
        sent: dict[str, Any] = {"json": body, "headers": headers}
        if isinstance(body, bytes):
            sent = {
                "data": body,
                "headers": {"Content-Type": "application/json", **(headers or {})},
            }
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, self.origin + path, allow_redirects=False, **sent) as answer,
        ):
            is_json = "json" in answer.headers.get("Content-Type", "")
            document = await (answer.json(content_type=None) if is_json else answer.text())
            cookies = {name: morsel.value for name, morsel in answer.cookies.items()}
            return Answer(answer.status, answer.headers, document, cookies)

    async def cluster_id(self, headers: Mapping[str, str] | None = None) -> str:
        """The cluster's id, as the console names it."""
        document = (await self.ask("/api/v1/session", headers)).document
        found: str = document["cluster_id"]
        return found
