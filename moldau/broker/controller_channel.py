"""The way from a broker to the active controller.

Owns the port through which a broker asks the controller for a change and waits for its answer, and
the form it takes when both live in one process. Must not interpret requests. Invariant: a request
is either answered, or fails with ControllerUnavailable; it is never silently dropped.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from moldau.protocol.schema import Message

MAX_WAITING_REQUESTS: Final = 1_000
DEFAULT_TIMEOUT_MS: Final = 30_000


class ControllerUnavailable(Exception):
    """No active controller answered in time; the change may or may not have happened."""


class ControllerChannel(Protocol):
    """Sends one request to the active controller (KIP-590's forwarding, from the broker's side)."""

    async def send(
        self, request: Message, principal: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> Any:
        """Answer with the controller's response message.

        Raises:
            ControllerUnavailable: no answer within `timeout_ms`, or too many requests wait already.
        """
        ...
