"""Where reading begins when there is no position: `auto.offset.reset`.

Owns the strategies, `by_duration` among them (KIP-1106). Must not look up offsets nor read
settings. Invariant: a strategy is a plain value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
"""What ListOffsets takes for "the end" and "the beginning"."""


class ResetKind(Enum):
    """The words before the colon."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """One strategy. `duration_ms` is how far back from now, for BY_DURATION."""

    kind: ResetKind
    duration_ms: int = 0

    def timestamp_ms(self, now_ms: int) -> int:
        """What ListOffsets is asked for. NONE has no such thing."""
        assert self.kind is not ResetKind.NONE
        if self.kind is ResetKind.EARLIEST:
            return EARLIEST_TIMESTAMP
        if self.kind is ResetKind.LATEST:
            return LATEST_TIMESTAMP
        return max(now_ms - self.duration_ms, 0)

    def __str__(self) -> str:
        if self.kind is ResetKind.BY_DURATION:
            return f"by_duration of {self.duration_ms} ms"
        return str(self.kind.value)


EARLIEST: Final[OffsetReset] = OffsetReset(ResetKind.EARLIEST)
LATEST: Final[OffsetReset] = OffsetReset(ResetKind.LATEST)
NONE: Final[OffsetReset] = OffsetReset(ResetKind.NONE)
