"""The one formula for pauses between tries."""

from __future__ import annotations

import random

import pytest

from moldau.config.backoff import JITTER, Backoff, backoff_ms


@pytest.mark.parametrize(
    ("failure_count", "pause_ms"),
    [(0, 100), (1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (6, 1_000), (10**6, 1_000)],
)
def test_a_pause_doubles_up_to_its_limit(failure_count: int, pause_ms: float) -> None:
    assert backoff_ms(failure_count, 100, 1_000) == pause_ms


def test_jitter_goes_both_ways_and_no_further() -> None:
    source = random.Random(1)
    pauses = [backoff_ms(9, 100, 1_000, source) for _ in range(1_000)]
    assert 1_000 * (1 - JITTER) <= min(pauses) < 850
    assert 1_150 < max(pauses) <= 1_000 * (1 + JITTER)


def test_failures_are_counted_until_all_is_well() -> None:
    backoff = Backoff(100, 350)
    assert [backoff.next_ms() for _ in range(4)] == [100, 200, 350, 350]
    backoff.reset()
    assert backoff.next_ms() == 100
