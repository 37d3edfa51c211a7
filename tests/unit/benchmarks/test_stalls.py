"""The watch for stalls of the machine, without which a tail latency says more of it than of us."""

from __future__ import annotations

import os
import sys
import time

import pytest

from benchmarks.stalls import ALL, UNSTALLED, Span, Stalls, selections, touched, watched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cores are chosen as on Linux")


def _stalls(*cores: list[tuple[float, float]]) -> Stalls:
    stalls = Stalls()
    for core in cores:
        stalls.add([Span(*pair) for pair in core])
    return stalls


@pytest.mark.parametrize(
    ("begin", "end", "is_touched"),
    [
        (0.0, 0.9, False),
        (0.0, 1.0, False),
        (0.0, 1.1, True),
        (1.2, 1.3, True),
        (0.5, 2.5, True),
        (1.9, 2.1, True),
        (2.0, 3.0, False),
        (2.5, 3.5, False),
        (3.9, 4.6, True),
        (4.0, 4.1, True),
        (9.0, 9.5, False),
    ],
)
def test_a_span_is_touched_by_a_stall_of_any_core_that_overlaps_it(
    begin: float, end: float, is_touched: bool
):
    stalls = _stalls([(1.0, 2.0), (5.0, 6.0)], [(4.0, 4.5)], [])
    assert stalls.touch(Span(begin, end)) is is_touched


def test_both_selections_and_what_was_left_out():
    spans = [Span(0.0, 0.5), Span(1.5, 1.75), Span(2.0, 2.125)]
    stalls = _stalls([(1.0, 2.0)])
    selected = {name: of(spans) for name, of in selections(stalls).items()}
    assert selected == {ALL: [500.0, 250.0, 125.0], UNSTALLED: [500.0, 125.0]}
    assert "33.3% (x) of the spans" in touched(stalls, {"x": spans}, "spans")
    assert list(selections(None)) == [ALL]
    assert "superuser" in touched(None, {"x": spans}, "spans")


def _spin(seconds: float) -> Span:
    begin = time.monotonic()
    while (now := time.monotonic()) < begin + seconds:
        pass
    return Span(begin, now)


def test_only_what_goes_before_the_sentries_is_a_stall():
    """A process that no sentry interrupts stands for the machine, which none interrupts either."""
    cores, scheduler = os.sched_getaffinity(0), os.sched_getscheduler(0)
    with watched() as stalls:
        if stalls is None:
            pytest.skip("only the superuser may run a process before all others")
        try:
            os.sched_setaffinity(0, [min(cores)])
            ordinary = [_spin(0.003) for _ in range(100)]
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(90))
            first = _spin(0.05)
        finally:
            os.sched_setscheduler(0, scheduler, os.sched_param(0))
            os.sched_setaffinity(0, cores)
    assert stalls.touch(first)
    assert stalls.spared(ordinary), "a busy process is no stall, though the machine may have some"
