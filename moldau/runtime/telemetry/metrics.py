"""A lean metrics registry under Kafka's JMX names.

Owns: counters, gauges, histograms and meters, by name and labels.
Must not: lock, start threads, format an exposition, or allocate on the hot path (`Counter.value +=
n` is the idea). Invariant: one name has one kind; a name never has more than `MAX_SERIES_PER_NAME`
label sets: further ones share a single overflow series, so that topics and client ids cannot
fill the memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

MAX_SERIES_PER_NAME: Final = 10_000
"""Label sets one metric name may have."""

OVERFLOW_LABEL: Final = "other"
"""The value every label of the shared overflow series has."""

DEFAULT_BUCKETS_MS: Final = (
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0,
    2500.0, 5000.0, 10_000.0, 30_000.0,
)  # fmt: skip
"""Upper bounds of a histogram of milliseconds."""

METER_TICK_MS: Final = 5000.0
"""Meters fold their counts into the rate this often, as the well-known exponential meters do."""

LabelValues: TypeAlias = tuple[tuple[str, str], ...]


class Counter:
    """A count that only grows. Hot code adds to `value` directly."""

    __slots__ = ("value",)
    kind: Final = "counter"

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount


class Gauge:
    """A value of this moment: a function is asked for it when it is collected."""

    __slots__ = ("function",)
    kind: Final = "gauge"

    def __init__(self, function: Callable[[], float]) -> None:
        self.function = function

    @property
    def value(self) -> float:
        return self.function()


class Histogram:
    """Counts of observations by bucket."""

    __slots__ = ("bounds", "count", "counts", "total")
    kind: Final = "histogram"

    def __init__(self, bounds: tuple[float, ...] = DEFAULT_BUCKETS_MS) -> None:
        """`bounds` are the buckets' inclusive upper ends, ascending; a last bucket is unbounded."""
        assert list(bounds) == sorted(set(bounds)), "bucket bounds ascend"
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value


class Meter:
    """Events: a total, and the rate per second of the last minute, fading exponentially."""

    __slots__ = ("_folded", "_last_tick_ms", "_now_ms", "_rate", "count")
    kind: Final = "meter"

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self.count = 0
        self._now_ms = monotonic_ms
        self._last_tick_ms = monotonic_ms()
        self._folded = 0
        self._rate: float | None = None

    def mark(self, amount: int = 1) -> None:
        """Count events. Hot code may add to `count` directly."""
        self.count += amount

    def rate(self) -> float:
        """Events per second, averaged over the last minute with fading weight."""
        self._fold()
        return self._rate or 0.0

    @property
    def value(self) -> int:
        return self.count

    def _fold(self) -> None:
        elapsed = self._now_ms() - self._last_tick_ms
        if elapsed < METER_TICK_MS:
            return
        self._last_tick_ms += elapsed
        recent = (self.count - self._folded) * 1000.0 / elapsed
        self._folded = self.count
        if self._rate is None:
            self._rate = recent
        else:
            self._rate += (1.0 - math.exp(-elapsed / 60_000.0)) * (recent - self._rate)


Instrument: TypeAlias = Counter | Gauge | Histogram | Meter
InstrumentT = TypeVar("InstrumentT", Counter, Gauge, Histogram, Meter)


class Metric(NamedTuple):
    """One series as the exporter sees it. `name` is `kafka.server:type=…,name=…`."""

    name: str
    labels: LabelValues
    instrument: Instrument


class _Family:
    __slots__ = ("factory", "kind", "series")

    def __init__(self, kind: str, factory: Callable[[], Instrument]) -> None:
        self.kind = kind
        self.factory = factory
        self.series: dict[LabelValues, Instrument] = {}


class Registry:
    """All metrics of one process. Ask once and keep the instrument; asking is not for hot paths."""

    __slots__ = ("_families", "_monotonic_ms")

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        """`monotonic_ms` is the clock's, for the meters."""
        self._families: dict[str, _Family] = {}
        self._monotonic_ms = monotonic_ms

    def counter(self, name: str, **labels: str) -> Counter:
        return self._get(Counter, name, Counter, labels)

    def gauge(self, name: str, function: Callable[[], float], **labels: str) -> Gauge:
        """The gauge of that name and labels; the function replaces an earlier one."""
        gauge = self._get(Gauge, name, lambda: Gauge(function), labels)
        gauge.function = function
        return gauge

    def histogram(
        self, name: str, *, bounds: tuple[float, ...] = DEFAULT_BUCKETS_MS, **labels: str
    ) -> Histogram:
        """The histogram of that name and labels; the first caller's bounds hold for the name."""
        return self._get(Histogram, name, lambda: Histogram(bounds), labels)

    def meter(self, name: str, **labels: str) -> Meter:
        return self._get(Meter, name, lambda: Meter(self._monotonic_ms), labels)

    def remove(self, name: str, **labels: str) -> None:
        """Forget one series, when its topic, client or partition is gone."""
        family = self._families.get(name)
        if family is not None:
            family.series.pop(_key(labels), None)

    def series(self, name: str) -> list[Instrument]:
        """The instruments of a name, whatever their labels."""
        family = self._families.get(name)
        return [] if family is None else [*family.series.values()]

    def collect(self) -> Iterator[Metric]:
        """Every series, grouped by name. Another thread may make metrics while this runs."""
        for name, family in sorted(self._families.items()):
            for labels, instrument in list(family.series.items()):
                yield Metric(name, labels, instrument)

    def _get(
        self,
        kind: type[InstrumentT],
        name: str,
        factory: Callable[[], InstrumentT],
        labels: Mapping[str, str],
    ) -> InstrumentT:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(kind.kind, factory)
        assert family.kind == kind.kind, f"{name} is a {family.kind}, not a {kind.kind}"
        key = _key(labels)
        instrument = family.series.get(key)
        if instrument is None:
            if len(family.series) >= MAX_SERIES_PER_NAME:
                key = _key(dict.fromkeys(labels, OVERFLOW_LABEL))
                instrument = family.series.get(key)
            if instrument is None:
                instrument = family.series[key] = family.factory()
        assert isinstance(instrument, kind)
        return instrument


def _key(labels: Mapping[str, str]) -> LabelValues:
    return tuple(sorted(labels.items()))
