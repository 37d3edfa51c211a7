"""One line on stderr that says how many records have passed and how fast, for people only.

Owns the line. Must not write anything unless stderr is a terminal and told so.
Invariant: when the block ends, the line ends too, so that what follows begins on a line of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERVAL_S: Final = 0.25
CLEAR_TO_END: Final = "\x1b[K"


class RateLine:
    """Shows a count, an amount and the rate of the last moments; `update` as often as you like."""

    def __init__(self, what: str, *, shown: bool) -> None:
        self._what = what
        self._shown = shown
        self._begin = self._last = time.monotonic()
        self._last_count = 0
        self._written = False

    def update(self, record_count: int, byte_count: int) -> None:
        """So many records and bytes altogether; the line changes a few times per second."""
        if not self._shown:
            return
        now = time.monotonic()
        if now - self._last >= INTERVAL_S:
            rate = (record_count - self._last_count) / (now - self._last)
            self._write(record_count, byte_count, rate)
            self._last, self._last_count = now, record_count

    def finish(self, record_count: int, byte_count: int) -> None:
        """The last state, with the rate of the whole."""
        if self._shown:
            seconds = max(time.monotonic() - self._begin, 1e-9)
            self._write(record_count, byte_count, record_count / seconds)
            self.end()

    def end(self) -> None:
        """End the line, if there is one."""
        if self._written:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._written = False

    def _write(self, record_count: int, byte_count: int, rate: float) -> None:
        sys.stderr.write(
            f"\r{self._what}: {record_count:,} records, {byte_count / 1e6:,.1f} MB, "
            f"{rate:,.0f} records/s{CLEAR_TO_END}"
        )
        sys.stderr.flush()
        self._written = True


@contextmanager
def rate_line(what: str, *, beside_terminal: bool) -> Iterator[RateLine]:
    """A line while the block runs.

    Args:
        beside_terminal: records themselves come from or go to a terminal: no line then.
    """
    line = RateLine(what, shown=sys.stderr.isatty() and not beside_terminal)
    try:
        yield line
    finally:
        line.end()
