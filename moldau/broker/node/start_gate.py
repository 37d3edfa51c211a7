"""Holds back requests while the node is not ready to answer them.

A listener must be bound before the broker can register its port, and clients may come at once. Owns
the requests that came early. Invariant: they are handed on in the order they came, before any later
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from moldau.runtime.request import Request

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

    def open(self) -> None:
        """Hand on what waits; from now on nothing is held back."""
        self._is_open = True
        while self._early:
            request = self._early.popleft()
            if request.is_connection_lost:
                request.discard()
            else:
                self._handler(request)
