"""What was used over the last samples, and the token bucket, measured as Kafka measures them.

Here is the formula of the throttle time of a rate above its limit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import floor
from typing import Final

MAX_THROTTLE_MS: Final = 2**31 - 1
"""The longest pause that a response can tell of."""


@dataclass(slots=True)
class Sample:
    """What was recorded from one moment to another."""

    start_ms: float
    last_event_ms: float
    amount: float = 0.0


class SampledTotal:
    """The sum of what was recorded in the last samples.

    A sample begins with the first event after the one before is complete, and counts no more when
    its last event is `sample_count` windows old. Only `record` changes anything: another thread may
    read at the same time.
    """

    __slots__ = ("_samples", "sample_count", "window_ms")

    def __init__(self, sample_count: int, window_ms: float) -> None:
        self.sample_count = sample_count
        self.window_ms = window_ms
        self._samples: deque[Sample] = deque(maxlen=sample_count + 1)

    @property
    def span_ms(self) -> float:
        return self.sample_count * self.window_ms

    def record(self, amount: float, now_ms: float) -> None:
        """Add an amount; a negative one takes back what was recorded before."""
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self.window_ms:
            samples.append(Sample(now_ms, now_ms))
        sample = samples[-1]
        sample.amount += amount
        sample.last_event_ms = now_ms

    def total(self, now_ms: float) -> float:
        return sum(sample.amount for sample in self.counted(now_ms))

    def elapsed_ms(self, now_ms: float) -> float:
        """The time since the oldest sample that counts began; 0 when there is none."""
        samples = self.counted(now_ms)
        return now_ms - samples[0].start_ms if samples else 0.0

    def counted(self, now_ms: float) -> list[Sample]:
        """The samples that still count, the oldest first."""
        since_ms = now_ms - self.span_ms
        return [sample for sample in tuple(self._samples) if sample.last_event_ms > since_ms]


class QuotaRate(SampledTotal):
    """Units per second over the samples of a client quota (KIP-13).

    The rate is that of a span of at least all windows but one, of which the missing ones count as
    empty: a client that begins may use what those windows allow at once.
    """

    __slots__ = ()

    def rate_span_ms(self, now_ms: float) -> float:
        """The span that the rate is taken over."""
        elapsed_ms = self.elapsed_ms(now_ms)
        missing = self.sample_count - 1 - floor(elapsed_ms / self.window_ms)
        return max(elapsed_ms + max(missing, 0) * self.window_ms, self.window_ms)

    def per_second(self, now_ms: float) -> float:
        return self.total(now_ms) * 1000.0 / self.rate_span_ms(now_ms)

    def throttle_ms(self, limit: float, now_ms: float) -> int:
        """How long until the rate is within `limit` units per second, if nothing is added and
        nothing forgotten; 0 when it is.
        """
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return whole_ms((rate - limit) / limit * self.rate_span_ms(now_ms))


class TokenBucket:
    """What may still be used at once, and comes back at `limit` tokens per second (KIP-599).

    It holds at most `burst_seconds` × limit tokens, begins full, and may go below zero: what is
    taken with the last token is lent. Invariant: the balance is never above the burst.
    """

    __slots__ = ("_balance", "_burst_seconds")

    def __init__(self, burst_seconds: float, limit: float, now_ms: float) -> None:
        self._burst_seconds = burst_seconds
        self._balance = burst_seconds * limit, now_ms

    def tokens(self, limit: float, now_ms: float) -> float:
        """The balance. Another thread may ask."""
        tokens, at_ms = self._balance
        refilled = tokens + limit * max(now_ms - at_ms, 0.0) / 1000.0
        return min(refilled, self._burst_seconds * limit)

    def take(self, count: float, limit: float, now_ms: float) -> None:
        self._balance = self.tokens(limit, now_ms) - count, now_ms

    def throttle_ms(self, limit: float, now_ms: float) -> int:
        """How long until what is lent has come back; 0 when nothing is."""
        tokens = self.tokens(limit, now_ms)
        return whole_ms(-tokens / limit * 1000.0) if tokens < 0 else 0


def whole_ms(milliseconds: float) -> int:
    """Rounded half up as Java does, and within what a response can tell."""
    return floor(min(milliseconds, float(MAX_THROTTLE_MS)) + 0.5)
