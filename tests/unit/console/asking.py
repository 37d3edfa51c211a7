"""Requests to a console without a socket, and what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final
from unittest import mock

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.test_utils import make_mocked_request

from moldau.console.application import Console

HOST: Final = "localhost:8090"


class Answer:
    """What came back."""

    def __init__(self, response: web.StreamResponse) -> None:
        assert isinstance(response, web.Response)
        self.status = response.status
        self.headers = response.headers
        self.body = response.body or b""

    @property
    def document(self) -> Any:
        """The body as JSON."""
        assert isinstance(self.body, bytes)
        return json.loads(self.body)


def request(
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    *,
    is_cut: bool = False,
) -> web.Request:
    """A request whose headers have come, with its body behind them.

    Args:
        is_cut: whether the connection has ended before the body did.
    """
    own = {"Host": HOST, **(headers or {})}
    payload: Any = EMPTY_PAYLOAD
    if body is not None:
        own.setdefault("Content-Type", "application/json")
        own.setdefault("Content-Length", str(len(body)))
        payload = StreamReader(
            mock.Mock(spec=BaseProtocol, connected=not is_cut),
            1 << 16,
            loop=asyncio.get_running_loop(),
        )
        payload.feed_data(body)
        if not is_cut:
            payload.feed_eof()
    return make_mocked_request(method, path, headers=own, payload=payload)


async def ask(
    console: Console,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    body: object = None,
) -> Answer:
    """One request: its answer. A body that is no bytes is sent as JSON."""
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    assert raw is None or isinstance(raw, bytes)
    return Answer(await console(request(method, path, headers, raw)))
