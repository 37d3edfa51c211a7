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

    def rows(self) -> list[tuple[str, str, Sequence[float], str]]:
        """Name in JSON, what it is, the values, and what is asked of their median ("" nothing)."""
        rows: list[tuple[str, str, Sequence[float], str]] = []
        if self.creation is not None:
            made, seconds = self.creation, self.creation.seconds
            rows += [
                ("topics_per_second", "created topics/s", [made.topic_count / seconds], ""),
                (
                    "partitions_per_second",
                    "created partitions/s",
                    [made.partition_count / seconds],
                    "",
                ),
            ]
        for (role, source), loads in self.loads.items():
            what = f"{role}: image from the {source}"
            name = f"{role}_load_from_{source}"
            megabytes = [each.peak_bytes / 1e6 for each in loads]
            rows += [
                (f"{name}_s", f"{what}, s", [each.seconds for each in loads], "<= 10"),
                (f"{name}_cpu_s", f"{what}, CPU s", [each.cpu_seconds for each in loads], ""),
                (f"{name}_peak_mb", f"{what}, peak resident MB", megabytes, "<= 800"),
            ]
        restarts = self.restarts
        rows += [
            (
                "broker_ready_s",
                "broker started on its log: /readyz, s",
                [each.ready_seconds for each in restarts],
                "<= 10",
            ),
            (
                "broker_ready_cpu_s",
                "of that CPU s",
                [each.cpu_seconds for each in restarts],
                "",
            ),
            (
                "broker_ready_peak_mb",
                "its peak resident MB",
                [each.peak_bytes / 1e6 for each in restarts],
                "<= 800",
            ),
            (
                "change_answered_ms",
                "one topic created: answered, ms",
                [each.answered_ms for each in self.changes],
                "",
            ),
            (
                "change_seen_after_sent_ms",
                "on every broker after it was sent, ms",
                [each.seen_after_sent_ms for each in self.changes],
                "",
            ),
            (
                "change_seen_after_answer_ms",
                "on every broker after it was answered, ms",
                [each.seen_after_answer_ms for each in self.changes],
                "<= 50",
            ),
            (
                "failover_s",
                "active controller killed: next topic created, s",
                self.failovers_s,
                "<= 2",
            ),
            (
                "node_peak_mb",
                "most that a node of the cluster had resident, MB",
                [each / 1e6 for each in self.node_peak_bytes.values()],
                "",
            ),
        ]
        return [row for row in rows if row[2]]

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
            "figures": {
                name: {
                    **spread(values),
                    **({"asked": asked, "met": is_met(values, asked)} if asked else {}),
                }
                for name, _, values, asked in self.rows()
            },
        }

    def table(self) -> Iterator[tuple[str, ...]]:
        """Rows of: what, how often, minimum, median, 95th percentile, maximum, asked, met."""
        for _, what, values, asked in self.rows():
            numbers = spread(values)
            met = ("yes" if is_met(values, asked) else "no") if asked else ""
            yield (what, *(f"{number:,}" for number in numbers.values()), asked, met)


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


def is_met(values: Sequence[float], asked: str) -> bool:
    """Whether the median is what is asked for (`<= LIMIT`)."""
    return statistics.median(values) <= float(asked.removeprefix("<= "))
