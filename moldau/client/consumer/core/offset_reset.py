"""Where reading begins when there is no position: `auto.offset.reset`.

Owns the strategies and their words, `by_duration` with its ISO 8601 durations among them
(KIP-1106). Must not look up offsets. Invariant: a strategy is a plain value; equal words, equal
strategies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
"""What ListOffsets takes for "the end" and "the beginning"."""

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:[.,](?P<part>\d{1,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_MAX_DURATION_MS: Final = 2**63 - 1


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

    @classmethod
    def parse(cls, text: str) -> OffsetReset:
        """From the value of `auto.offset.reset`.

        Raises: ValueError, with what is allowed.
        """
        word, colon, rest = text.strip().partition(":")
        word = word.lower()
        if colon and word == ResetKind.BY_DURATION.value:
            return cls(ResetKind.BY_DURATION, parse_duration_ms(rest))
        if not colon and word in ("earliest", "latest", "none"):
            return cls(ResetKind(word))
        raise ValueError(
            f"{text!r} is not one of earliest, latest, none, by_duration:<ISO 8601 duration> "
            "(by_duration:PT1H for an hour)"
        )

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
        return self.kind.value


EARLIEST: Final[OffsetReset] = OffsetReset(ResetKind.EARLIEST)
LATEST: Final[OffsetReset] = OffsetReset(ResetKind.LATEST)
NONE: Final[OffsetReset] = OffsetReset(ResetKind.NONE)


def parse_duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes, seconds: `P1DT2H30M`.

    Raises: ValueError.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or match.end() - match.start() < len("P1D") or text.strip()[-1] in "Tt":
        raise ValueError(
            f"{text!r} is not an ISO 8601 duration of days and time, such as PT30M or P1DT12H"
        )
    days, hours, minutes, seconds = (
        int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    duration_ms = whole * 1000 + int((match["part"] or "").ljust(9, "0")) // 1_000_000
    if duration_ms > _MAX_DURATION_MS:
        raise ValueError(f"{text!r} is longer than {_MAX_DURATION_MS} ms")
    return duration_ms
