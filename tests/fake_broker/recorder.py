"""What the brokers have received, for tests to look at.

Owns the list of requests and of what clients did wrong. Must not judge answers. Invariant: every
whole request is recorded once, in the order of arrival, before it is carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from moldau.protocol import ApiKey
from moldau.protocol.schema import Message

MAX_RECORDED_COUNT = 500_000
"""More is a mistake of the test: it would compare with what was forgotten."""

_M = TypeVar("_M", bound=Message)


@dataclass(eq=False, slots=True)
class Received:
    """One request as it came."""

    node_id: int
    connection_id: int
    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    message: Any
    at_ms: float
    size_bytes: int


class Recorder:
    """All requests, and the event that tests wait on."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.problems: list[str] = []
        self._changed = asyncio.Event()

    def note(self, received: Received) -> None:
        """Record a request."""
        assert len(self.requests) < MAX_RECORDED_COUNT, "too many requests to record"
        self.requests.append(received)
        self.poke()

    def problem(self, text: str) -> None:
        """Record that a client broke the protocol."""
        self.problems.append(text)
        self.poke()

    def poke(self) -> None:
        """Let all waiting callers look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Wait until a condition on what the brokers have seen or stored holds.

        Raises TimeoutError.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()

    def of(self, kind: type[_M], *, node_id: int | None = None) -> list[_M]:
        """The messages of one kind, in order."""
        return [
            each.message
            for each in self.requests
            if isinstance(each.message, kind) and node_id in (None, each.node_id)
        ]

    def count(self, api_key: ApiKey, *, node_id: int | None = None) -> int:
        """How many requests of an API have come."""
        return sum(
            each.api_key == api_key and node_id in (None, each.node_id) for each in self.requests
        )

    def versions(self, api_key: ApiKey) -> set[int]:
        """The versions in which an API was used."""
        return {each.api_version for each in self.requests if each.api_key == api_key}
