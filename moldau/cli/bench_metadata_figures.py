"""The figures of `moldau bench metadata`: what was measured, what is asked, and how both are shown.

Owns names, units and limits. Must not: measure or print. Invariant: a figure without a value is
left out, and a limit is compared with the median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.cli.bench_metadata_cluster import ChangeSample, CreationFigures
from moldau.cli.bench_metadata_load import LoadFigures

CONTROLLER_COUNT: Final = 3
BROKER_COUNT: Final = 3

# The metadata row of the design's performance table.
LOAD_S: Final = 10.0
PEAK_MB: Final = 800.0
CHANGE_MS: Final = 50.0
FAILOVER_S: Final = 2.0

NOTE: Final = (
    "the partitions are on a phantom broker that only the controllers know: all of their metadata, "
    "none of their logs"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPlan:
    """How much is measured."""

    partition_count: int = 100_000
    partitions_per_topic: int = 10
    sample_count: int = 50
    kill_count: int = 5
    restart_count: int = 3
    load_count: int = 3


@dataclass(frozen=True, slots=True)
class RestartFigures:
    """One start of a broker that was stopped, until /readyz says yes."""

    ready_seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: its name in JSON, what it is, and the most that its median may be."""

    name: str
    what: str
    values: Sequence[float]
    limit: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether it is as good as asked for; what nobody asked for is."""
        return self.limit is None or statistics.median(self.values) <= self.limit

    def document(self) -> dict[str, Any]:
        """As JSON shows it."""
        asked = {} if self.limit is None else {"at_most": self.limit, "met": self.is_met}
        return {**spread(self.values), **asked}


@dataclass(slots=True)
class MetadataFigures:
    """Everything that was measured. `loads` by role and source."""

    plan: MetadataPlan
    creation: CreationFigures | None = None
    changes: list[ChangeSample] = field(default_factory=list)
    restarts: list[RestartFigures] = field(default_factory=list)
    failovers_s: list[float] = field(default_factory=list)
    loads: dict[tuple[str, str], list[LoadFigures]] = field(default_factory=dict)
    node_peak_bytes: dict[int, int] = field(default_factory=dict)
    load_averages: list[float] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Every figure that has a value."""
        rows = [*self._creation_rows(), *self._load_rows(), *self._cluster_rows()]
        return [row for row in rows if row.values]

    def _creation_rows(self) -> Iterator[Row]:
        made = self.creation
        if made is None:
            return
        for what, count in (("topics", made.topic_count), ("partitions", made.partition_count)):
            yield Row(f"{what}_per_second", f"created {what}/s", [count / made.seconds])

    def _load_rows(self) -> Iterator[Row]:
        for (role, source), loads in self.loads.items():
            name, what = f"{role}_load_from_{source}", f"{role}: image from the {source}"
            peaks = [each.peak_bytes / 1e6 for each in loads]
            yield Row(f"{name}_s", f"{what}, s", [each.seconds for each in loads], LOAD_S)
            yield Row(f"{name}_cpu_s", f"{what}, CPU s", [each.cpu_seconds for each in loads])
            yield Row(f"{name}_peak_mb", f"{what}, peak resident MB", peaks, PEAK_MB)

    def _cluster_rows(self) -> Iterator[Row]:
        ready = [each.ready_seconds for each in self.restarts]
        yield Row("broker_ready_s", "broker started on its log: /readyz, s", ready, LOAD_S)
        cpu = [each.cpu_seconds for each in self.restarts]
        yield Row("broker_ready_cpu_s", "of that CPU s", cpu)
        peaks = [each.peak_bytes / 1e6 for each in self.restarts if each.peak_bytes]
        yield Row("broker_ready_peak_mb", "its peak resident MB", peaks, PEAK_MB)
        for name, what, limit in (
            ("answered", "one topic created: answered, ms", None),
            ("seen_after_sent", "on every broker after it was sent, ms", CHANGE_MS),
            ("seen_after_answer", "on every broker after it was answered, ms", CHANGE_MS),
        ):
            values = [getattr(each, f"{name}_ms") for each in self.changes]
            yield Row(f"change_{name}_ms", what, values, limit)
        what = "active controller killed: next topic created, s"
        yield Row("failover_s", what, self.failovers_s, FAILOVER_S)
        peaks = [each / 1e6 for each in self.node_peak_bytes.values()]
        yield Row("node_peak_mb", "most that a node of the cluster had resident, MB", peaks)

    def document(self) -> dict[str, Any]:
        """As JSON shows it; MB are 10^6 bytes."""
        made = self.creation
        return {
            "note": NOTE,
            "partitions": 0 if made is None else made.partition_count,
            "topics": 0 if made is None else made.topic_count,
            "controllers": CONTROLLER_COUNT,
            "brokers": BROKER_COUNT,
            "load_average_1m": [round(each, 2) for each in self.load_averages],
            "figures": {row.name: row.document() for row in self.rows()},
        }

    def table(self) -> Iterator[tuple[str, ...]]:
        """Rows of: what, how often, minimum, median, 95th percentile, maximum, asked, met."""
        for row in self.rows():
            numbers = (f"{number:,}" for number in spread(row.values).values())
            asked = "" if row.limit is None else f"<= {row.limit:g}"
            met = "" if row.limit is None else "yes" if row.is_met else "no"
            yield (row.what, *numbers, asked, met)


COLUMNS: Final = ("figure", "count", "minimum", "median", "p95", "maximum", "asked", "met")


def spread(values: Sequence[float]) -> dict[str, float]:
    """How the values lie."""
    ordered = sorted(values)
    digits = 3 if ordered[-1] < 100 else 1
    return {
        "count": len(ordered),
        "minimum": round(ordered[0], digits),
        "median": round(statistics.median(ordered), digits),
        "p95": round(ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)], digits),
        "maximum": round(ordered[-1], digits),
    }
