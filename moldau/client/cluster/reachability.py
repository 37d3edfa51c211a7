"""What a client says about what it cannot reach, or find: at once, then less and less often."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, TypeAlias

from moldau.runtime.clock import Clock

Address: TypeAlias = tuple[str, int]

logger: Final = logging.getLogger(__name__)

FIRST_PAUSE_MS: Final = 10_000.0
LONGEST_PAUSE_MS: Final = 300_000.0


class RecurringWarning:
    """A warning about something that lasts: after `after_ms`, 10 s later, and then after pauses
    that double up to 5 minutes. What was not noted for 10 s is something new.
    """

    def __init__(self, clock: Clock, *, after_ms: float = 0.0) -> None:
        self._text = ""
        self._clock = clock
        self._after_ms = after_ms
        self._began_ms = self._noted_ms = self._due_ms = -LONGEST_PAUSE_MS
        self._pause_ms = FIRST_PAUSE_MS
        self._is_told = False

    @property
    def text(self) -> str:
        """What was noted last; empty when it has ended, or was not noted for 10 s."""
        is_old = self._clock.monotonic_ms() - self._noted_ms > FIRST_PAUSE_MS
        return "" if is_old else self._text

    def note(self, text: str) -> None:
        """It lasts: log it if that is due."""
        now_ms = self._clock.monotonic_ms()
        if not self.text:
            self._began_ms = now_ms
        self._text, self._noted_ms = text, now_ms
        if now_ms >= max(self._began_ms + self._after_ms, self._due_ms):
            self._due_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)
            self._is_told = True
            logger.warning("%s", text)

    def end(self, text: str) -> None:
        """It is over: log that if the warning was given. The next one keeps the first pause."""
        if not self._text:
            return
        if self._is_told:
            logger.info("%s", text)
        self._text, self._is_told, self._pause_ms = "", False, FIRST_PAUSE_MS
        self._due_ms = min(self._due_ms, self._clock.monotonic_ms() + FIRST_PAUSE_MS)


def addresses_text(reasons: Mapping[Address, str]) -> str:
    return "; ".join(f"{host}:{port}: {reason}" for (host, port), reason in reasons.items())
