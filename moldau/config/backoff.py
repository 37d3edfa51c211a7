"""How long to pause before the next try: one formula for all of Moldau (KIP-144, KIP-580).

It only counts, so that cores may import it; the caller waits (`retry.backoff.ms` and the like). The
quorum's elections have their own formula, which is Raft's.
"""

from __future__ import annotations

import random
from typing import Final

JITTER: Final = 0.2
"""The share by which a pause may be longer or shorter, so that clients do not come in step."""

MAX_DOUBLINGS: Final = 30


def backoff_ms(
    failure_count: int, first_ms: float, most_ms: float, source: random.Random | None = None
) -> float:
    """The pause after so many failures in a row: doubles with each, up to `most_ms`.

    Args:
        failure_count: one or more; zero counts as one.
        source: of the jitter, which comes on top of `most_ms` too; None for no jitter.
    """
    doublings = min(max(failure_count - 1, 0), MAX_DOUBLINGS)
    pause_ms = min(most_ms, first_ms * 2.0**doublings)
    return pause_ms if source is None else pause_ms * source.uniform(1 - JITTER, 1 + JITTER)


class Backoff:
    """The pauses of one thing that is tried again and again.

    Args:
        first_ms, most_ms, source: as `backoff_ms`.
    """

    def __init__(
        self, first_ms: float, most_ms: float, source: random.Random | None = None
    ) -> None:
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._source = source
        self._failure_count = 0

    def next_ms(self) -> float:
        self._failure_count += 1
        return backoff_ms(self._failure_count, self._first_ms, self._most_ms, self._source)

    def reset(self) -> None:
        """The next failure is the first one in a row."""
        self._failure_count = 0
