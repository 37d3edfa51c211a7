"""Holds back requests while the node is not ready to answer them.

A listener must be bound before the broker can register its port, and clients may come at once. Owns
the requests that came early. Invariants: they are handed on in the order they came, before any
later one; one that fails costs its own connection, not the start of the node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from moldau.protocol.errors import RemoteProtocolError
from moldau.server.request import Request

MAX_EARLY_REQUESTS: Final = 10_000


class StartGate:
    """The server's handler until `open`; afterwards it only passes on."""

    def __init__(self, handler: Callable[[Request], None]) -> None:
        self._handler = handler
        self._early: deque[Request] = deque()
        self._is_open = False

    def __call__(self, request: Request) -> None:
        """Pass on or hold back one request."""
        if self._is_open:
            self._handler(request)
        elif len(self._early) < MAX_EARLY_REQUESTS:
            self._early.append(request)
        else:
            request.close("the node is starting, and too many requests wait already")

    @property
    def waiting_count(self) -> int:
        """Requests that came early and wait."""
        return len(self._early)

    def open(self) -> None:
        """Hand on what waits, each in a turn of its own; afterwards nothing is held back."""
        loop = asyncio.get_running_loop()
        while self._early:
            loop.call_soon(self._hand_on, self._early.popleft())
        loop.call_soon(self._handed_on)

    def _handed_on(self) -> None:
        if self._early:
            self.open()  # those that came meanwhile
        else:
            self._is_open = True

    def _hand_on(self, request: Request) -> None:
        if request.is_connection_lost:
            request.discard()
            return
        reason = "a request failed inside the node"
        is_taken = False
        try:
            self._handler(request)
            is_taken = True
        except RemoteProtocolError as error:
            reason = f"malformed request: {error}"
        finally:
            if not is_taken:
                request.close(reason)
