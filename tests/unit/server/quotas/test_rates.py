"""Rates and token buckets, against plain definitions of what Kafka measures."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.server.quotas.core.rates import MAX_THROTTLE_MS, QuotaRate, TokenBucket, whole_ms

SECOND = 1000.0
SPAN_MS = 11 * SECOND


def test_a_first_burst_is_spread_over_ten_windows() -> None:
    rate = QuotaRate(11, SECOND)
    assert rate.per_second(0.0) == 0.0
    rate.record(1000, 0.0)
    assert rate.per_second(0.0) == 100.0
    assert rate.per_second(500.0) == pytest.approx(1000 / 10.5)
    assert rate.per_second(1000.0) == 100.0
    assert rate.per_second(9_900.0) == pytest.approx(1000 / 10.9)
    assert rate.per_second(10_500.0) == pytest.approx(1000 / 10.5)
    assert rate.per_second(SPAN_MS) == 0.0


def test_what_is_taken_back_was_never_there() -> None:
    rate = QuotaRate(11, SECOND)
    rate.record(100, 0.0)
    rate.record(900, 1.0)
    rate.record(-900, 1.0)
    assert rate.total(1.0) == 100.0


def test_the_pause_is_that_until_the_rate_is_within_the_limit() -> None:
    rate = QuotaRate(11, SECOND)
    rate.record(1000, 0.0)
    assert rate.throttle_ms(100.0, 0.0) == 0
    assert rate.throttle_ms(1000.0, 0.0) == 0
    assert rate.throttle_ms(50.0, 0.0) == 10_000
    assert rate.throttle_ms(1e-9, 0.0) == MAX_THROTTLE_MS


@dataclass
class PlainRate:
    """The definition: every event is kept, samples are made of them again for each question."""

    sample_count: int
    window_ms: float
    events: list[tuple[float, float]] = field(default_factory=list)

    def counted(self, now_ms: float) -> list[tuple[float, float]]:
        """The events of samples that are not too old."""
        samples: list[list[tuple[float, float]]] = []
        for at_ms, amount in self.events:
            if not samples or at_ms - samples[-1][0][0] >= self.window_ms:
                samples.append([])
            samples[-1].append((at_ms, amount))
        samples = samples[-self.sample_count - 1 :]
        span_ms = self.sample_count * self.window_ms
        return [event for each in samples if now_ms - each[-1][0] < span_ms for event in each]

    def per_second(self, now_ms: float) -> float:
        alive = self.counted(now_ms)
        total = sum(amount for _, amount in alive)
        elapsed_ms = now_ms - alive[0][0] if alive else 0.0
        whole_windows = int(elapsed_ms // self.window_ms)
        missing = max(self.sample_count - 1 - whole_windows, 0)
        return total / max(elapsed_ms + missing * self.window_ms, self.window_ms) * SECOND


@pytest.mark.parametrize("seed", range(200))
def test_a_rate_is_that_of_its_definition(seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    rate = QuotaRate(dice.choice([1, 2, 3, 11]), dice.choice([SECOND, 2 * SECOND]))
    plain = PlainRate(rate.sample_count, rate.window_ms)
    now_ms = 0.0
    for _ in range(dice.randint(1, 60)):
        now_ms += dice.choice([0.0, 1.0, 250.0, 999.0, 1000.0, 1001.0, 4000.0, 12_000.0])
        if dice.random() < 0.7:
            amount = dice.randint(1, 1000)
            rate.record(amount, now_ms)
            plain.events.append((now_ms, amount))
        assert rate.per_second(now_ms) == pytest.approx(plain.per_second(now_ms))


@given(
    st.lists(st.tuples(st.floats(0, 3000), st.integers(1, 5000)), min_size=1, max_size=60),
    st.integers(50, 2000),
)
def test_a_client_that_waits_stays_within_its_limit(
    sends: list[tuple[float, int]], limit: int
) -> None:
    """Over any time it uses at most the limit, the first burst and one amount more."""
    rate = QuotaRate(11, SECOND)
    now_ms, used, largest = 0.0, 0, 0
    for pause_ms, amount in sends:
        now_ms += pause_ms
        rate.record(amount, now_ms)
        used += amount
        largest = max(largest, amount)
        now_ms += rate.throttle_ms(limit, now_ms)
        # What is older than the samples is forgotten with its excess: one amount each time.
        forgotten = now_ms / SPAN_MS
        assert used <= limit * (now_ms + SPAN_MS) / SECOND + largest * (forgotten + 1)


def test_a_bucket_begins_full_lends_and_fills_again() -> None:
    bucket = TokenBucket(11.0, 2.0, 1000.0)
    assert bucket.tokens(2.0, 1000.0) == 22.0
    bucket.take(20, 2.0, 1000.0)
    assert bucket.throttle_ms(2.0, 1000.0) == 0
    bucket.take(5, 2.0, 1000.0)
    assert bucket.tokens(2.0, 1000.0) == -3.0
    assert bucket.throttle_ms(2.0, 1000.0) == 1500
    assert bucket.throttle_ms(2.0, 2000.0) == 500
    assert bucket.tokens(2.0, 2500.0) == 0.0
    assert bucket.throttle_ms(2.0, 2750.0) == 0, "half a token is none lent"
    assert bucket.tokens(2.0, 1e9) == 22.0
    assert bucket.tokens(1.0, 1e9) == 11.0, "another limit, another burst"


def test_milliseconds_are_rounded_as_java_rounds() -> None:
    assert [whole_ms(each) for each in (0.0, 0.49, 0.5, 1.5, 2.5, 1e300)] == [
        *(0, 0, 1, 2, 3),
        MAX_THROTTLE_MS,
    ]
