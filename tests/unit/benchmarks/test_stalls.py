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
    ("begin_ms", "is_touched"),
    [(0, False), (7.9, False), (8.1, True), (15, True), (20, False), (38.5, True), (60, False)],
)
@pytest.mark.parametrize("length_ms", [0.1, 1, 10, 1_000])
def test_a_stall_of_any_core_soon_after_its_begin_touches_a_span_however_long_it_is(
    begin_ms: float, length_ms: float, is_touched: bool
):
    stalls = _stalls([(0.010, 0.020), (0.070, 0.080)], [(0.040, 0.045)], [])
    begin_s = begin_ms / 1_000
    assert stalls.touch(Span(begin_s, begin_s + length_ms / 1_000)) is is_touched


def test_both_selections_and_what_was_left_out():
    spans = [Span(0.0, 1.5), Span(1.5, 1.75), Span(2.0, 2.125)]
    stalls = _stalls([(1.0, 2.0)])
    selected = {name: of(spans) for name, of in selections(stalls).items()}
    assert selected == {ALL: [1500.0, 250.0, 125.0], UNSTALLED: [1500.0, 125.0]}
    assert "33.3% (x) of the spans" in touched(stalls, {"x": spans}, "spans")
    assert list(selections(None)) == [ALL]
    assert "superuser" in touched(None, {"x": spans}, "spans")


def _spin(seconds: float) -> Span:
    begin = time.monotonic()
    while (now := time.monotonic()) < begin + seconds:
        pass
    return Span(begin, now)


@pytest.mark.real
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
