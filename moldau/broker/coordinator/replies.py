"""Those who can be answered without being a request.

Owns the stand-in for a request's context where one coordinator asks another inside the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Answerable(Protocol):
    """Whoever a `Reply` goes to; a request's context is one."""

    def respond(self, message: Any) -> None:
        """Take the answer; it comes exactly once."""


class CallbackReply:
    """Hands the answer to a function."""

    __slots__ = ("respond",)

    def __init__(self, respond: Callable[[Any], None]) -> None:
        self.respond = respond
