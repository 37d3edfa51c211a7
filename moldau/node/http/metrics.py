"""Metrics in Prometheus form, under the names that Kafka's dashboards already use.

Owns the mapping from Kafka's JMX names to Prometheus names: `kafka.server:type=BrokerTopicMetrics,
name=MessagesInPerSec` becomes `kafka_server_brokertopicmetrics_messagesin_total`, as Kafka's usual
JMX exporter rules make it. `snapshot` runs on the data loop and only copies numbers; `render` runs
on the HTTP thread. Invariant: two JMX names never share a Prometheus name with different kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.runtime.telemetry.metrics import Counter, Histogram, Meter, Registry

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusMetric

_NOT_ALLOWED: Final = re.compile(r"[^a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Sample:
    """One series, copied: `buckets` is empty unless it is a histogram."""

    name: str
    kind: str
    labels: tuple[tuple[str, str], ...]
    value: float
    total: float = 0.0
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


def prometheus_name(jmx_name: str) -> str:
    """Prometheus' name (without `_total`) of a metric named in JMX style."""
    domain, _, properties = jmx_name.partition(":")
    words = [domain, *(part.partition("=")[2] for part in properties.split(",") if part)]
    words[-1] = words[-1].removesuffix("PerSec")
    return _NOT_ALLOWED.sub("_", "_".join(words).lower())


def snapshot(registry: Registry) -> list[Sample]:
    """Copy every series; short, for the data loop."""
    samples = []
    for name, labels, instrument in registry.collect():
        if isinstance(instrument, Histogram):
            sample = Sample(
                name,
                "histogram",
                labels,
                instrument.count,
                instrument.total,
                instrument.bounds,
                tuple(instrument.counts),
            )
        elif isinstance(instrument, Counter | Meter):
            sample = Sample(name, "counter", labels, instrument.value)
        else:
            sample = Sample(name, "gauge", labels, instrument.value)
        samples.append(sample)
    return samples


class _Copied:
    """What one page shows of the node's own series."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[PrometheusMetric]:
        return _families(self._samples)


def render(samples: Iterable[Sample]) -> bytes:
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    registry.register(_Copied(list(samples)))
    # Memory, processor time, open files and collections, under Prometheus' own names.
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return generate_latest(registry)


def _families(samples: list[Sample]) -> Iterator[PrometheusMetric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    by_name: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        by_name.setdefault((sample.name, sample.kind), []).append(sample)
    for (jmx_name, kind), group in by_name.items():
        name, text = prometheus_name(jmx_name), jmx_name
        # One family may hold a series per topic and one for all: an empty label is an absent one.
        labels = sorted({label for sample in group for label, _ in sample.labels})
        if kind == "histogram":
            histogram = HistogramMetricFamily(name, text, labels=labels)
            for sample in group:
                histogram.add_metric(_values(sample, labels), _buckets(sample), sample.total)
            yield histogram
            continue
        family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
            name, text, labels=labels
        )
        for sample in group:
            family.add_metric(_values(sample, labels), sample.value)
        yield family


def _values(sample: Sample, labels: list[str]) -> list[str]:
    given = dict(sample.labels)
    return [given.get(label, "") for label in labels]


def _buckets(sample: Sample) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus wants them."""
    buckets: list[tuple[str, float]] = []
    seen = 0
    for bound, count in zip((*sample.bounds, float("inf")), sample.counts, strict=True):
        seen += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), seen))
    return buckets
