"""When the machine held up a core: `python -m benchmarks.stalls CORE`, JSON on stdout.

On a virtual machine a core stops for milliseconds now and then, whatever runs on it, and a tail
latency is mostly that. A sentry on each core wakes up every half millisecond, before every other
process (first in, first out): where it comes late, nothing could run. Invariant: a process that is
busy, be it the measured one, makes no sentry late; only the machine does, or the kernel. What is
left out does not depend on how long it took: a slow one would meet a stall more often, and with it
the very delays would go that are looked for.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from benchmarks.processes import outcome_of, running

PACE_S: Final = 0.000_5
LATE_S: Final = 0.000_3
WINDOW_S: Final = 0.002
"""A span counts as touched by the stalls in so much time from its begin, however long it is."""

PRIORITY: Final = 50
NO_STALLS_KNOWN: Final = (
    "Stalls of the machine are not known: only the superuser may run a process before all others."
)


class Span(NamedTuple):
    """What was measured, from when to when, by the monotonic clock in seconds."""

    begin_s: float
    end_s: float

    @property
    def milliseconds(self) -> float:
        """How long it took."""
        return (self.end_s - self.begin_s) * 1_000


def timed(work: Callable[[], object]) -> Span:
    """From when it began to when it was done."""
    begin_s = time.monotonic()
    work()
    return Span(begin_s, time.monotonic())


class Stalls:
    """The stalls of all cores since the watch began; complete when it has ended."""

    def __init__(self) -> None:
        self._by_core: list[list[Span]] = []

    def add(self, stalls: Sequence[Span]) -> None:
        """Of one core, in their order; they do not overlap."""
        self._by_core.append(list(stalls))

    def touch(self, span: Span) -> bool:
        """Whether any core was held up within WINDOW_S of the span's begin."""
        end_s = span.begin_s + WINDOW_S
        for stalls in self._by_core:
            at = bisect_left(stalls, end_s, key=lambda stall: stall.begin_s)
            if at and stalls[at - 1].end_s > span.begin_s:
                return True
        return False

    def spared(self, spans: Sequence[Span]) -> list[Span]:
        """Those that no stall touched."""
        return [span for span in spans if not self.touch(span)]


def milliseconds(spans: Sequence[Span]) -> list[float]:
    """Of each."""
    return [span.milliseconds for span in spans]


ALL: Final = "all"
UNSTALLED: Final = "no stall"


def selections(stalls: Stalls | None) -> dict[str, Callable[[Sequence[Span]], list[float]]]:
    """Milliseconds of all spans, and of those that no stall touched where that is known."""
    if stalls is None:
        return {ALL: milliseconds}
    return {ALL: milliseconds, UNSTALLED: lambda spans: milliseconds(stalls.spared(spans))}


def touched(stalls: Stalls | None, spans_by_name: Mapping[str, Sequence[Span]], what: str) -> str:
    """How many of each a stall touched, for a note."""
    if stalls is None:
        return NO_STALLS_KNOWN
    shares = [
        f"{sum(map(stalls.touch, spans)) / len(spans):.1%} ({name})"
        for name, spans in spans_by_name.items()
    ]
    return f"A stall of a core touched {', '.join(shares)} of the {what}."


@contextlib.contextmanager
def watched() -> Iterator[Stalls | None]:
    """Watch every core during the run; None where that is not allowed."""
    if not _may_go_first():
        yield None
        return
    stalls = Stalls()
    with contextlib.ExitStack() as stack:
        cores = sorted(os.sched_getaffinity(0))
        sentries = [stack.enter_context(running("stalls", core, place=None)) for core in cores]
        yield stalls
        for sentry in sentries:
            sentry.process.terminate()
            stalls.add([Span(*pair) for pair in outcome_of(sentry.process)])


def _may_go_first() -> bool:
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *before)
    return True


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


def stand_sentry(core: int) -> None:
    """Ends by SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    os.sched_setaffinity(0, [core])
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    gc.disable()
    found = []
    print("watching", flush=True)
    try:
        due = time.monotonic()
        while True:
            due += PACE_S
            time.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            if now - due > LATE_S:
                found.append((due, now))
                due = now
    finally:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    stand_sentry(int(sys.argv[1]))
