"""Durations and times as people write them in a pipeline.

Owns their two readings: milliseconds for what we do ourselves, and Spark's interval text for what
Spark does. Must not read a clock. Invariant: what is accepted here, Spark accepts too.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

_DURATION: Final = re.compile(r"\s*(\d{1,9})\s*([A-Za-z]+)\s*")
_MS_OF: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_SHORT: Final = {
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
EXAMPLES: Final = "such as 500 ms, 10 seconds, 1 hour or 2 days"


def duration_text_ms(text: str) -> int:
    """`10 seconds`, `10s`, `1 hour` in milliseconds.

    Raises:
        ValueError: something else; the text says what is wanted.
    """
    count, unit = _parts(text)
    return count * _MS_OF[unit]


def spark_interval(text: str) -> str:
    """The same as Spark's interval text, at least a millisecond long. Raises: ValueError."""
    count, unit = _parts(text)
    if count == 0:
        raise ValueError(f"{text!r} is no time at all")
    return f"{count} {unit}s"


def watermark_interval(text: str) -> str:
    """Like `spark_interval`, and nothing at all is allowed: what comes late by anything is late."""
    count, unit = _parts(text)
    return f"{count} {unit}s"


def time_text_ms(text: str) -> int:
    """An ISO 8601 time with its zone in milliseconds of the epoch. Raises: ValueError."""
    wanted = "a time such as 2026-07-01T12:00:00Z, with its zone"
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not {wanted}") from None
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: write {wanted}")
    return round(found.timestamp() * 1_000)


def _parts(text: str) -> tuple[int, str]:
    match = _DURATION.fullmatch(text)
    unit = "" if match is None else match[2].lower()
    unit = _SHORT.get(unit, unit.removesuffix("s"))
    if match is None or unit not in _MS_OF:
        raise ValueError(f"{text!r} is no duration {EXAMPLES}")
    return int(match[1]), unit
