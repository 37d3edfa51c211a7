"""Committed transactions of 1, 10 and 100 partitions, on one node of each kind.

Eight producers, each committing one transaction after the other: a record of 100 bytes on every
partition, then the commit. The load is `moldau bench transactions`, in its own process. Rounds
take turns with Kafka's; both nodes have the same settings and run throughout.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.figures import Effort, Report, Spread, Table
from benchmarks.nodes import BrokerNode, run_bench
from benchmarks.produce_load import brokers
from moldau.cli.bench.figures import taken

PARTITION_COUNTS: Final = (1, 10, 100)
PRODUCER_COUNT: Final = 8
ROUND_S: Final = 10
WARM_UP_S: Final = 5
LEAST_S: Final = 0.2
DIGITS: Final = 1


@dataclass(frozen=True, slots=True)
class _Round:
    """One turn of one node; CPU in milliseconds of the server."""

    figures: dict[str, Any]
    server_cpu_ms: float

    def per_commit(self) -> float:
        """Milliseconds of the server's CPU."""
        return self.server_cpu_ms / max(1, self.figures["commits"])


def run(effort: Effort) -> Report:
    """All sizes, in turns."""
    report = Report("Transactions: commits per second")
    rounds: defaultdict[tuple[str, int], list[_Round]] = defaultdict(list)
    with brokers(effort) as (ours, theirs):
        sides = [ours] if theirs is None else [ours, theirs]
        for number in range(effort.rounds):
            for node in sides if number % 2 == 0 else reversed(sides):
                for count in PARTITION_COUNTS:
                    rounds[node.name, count].append(_turn(effort, node, count))
        names = [node.name for node in sides]
    for count in PARTITION_COUNTS:
        _tell(report, count, {name: rounds[name, count] for name in names})
    report.notes.append(
        f"{PRODUCER_COUNT} producers at a time, transaction version 2 (an epoch per transaction). "
        "Latency is from a transaction's first request to the answer to its commit, and includes "
        "waiting for the markers of the same producer's transaction before."
    )
    if len(names) == 1:
        report.notes.append(WITHOUT_KAFKA)
    return report


def _turn(effort: Effort, node: BrokerNode, partition_count: int) -> _Round:
    warm_up_s = max(LEAST_S, WARM_UP_S * effort.scale)
    options = [
        f"--partitions={partition_count}",
        f"--producers={PRODUCER_COUNT}",
        f"--seconds={max(LEAST_S, ROUND_S * effort.scale)}",
        f"--warm-up-seconds={warm_up_s}",
        "--transaction-version=2",
    ]
    with taken(node.pid) as cost:
        [figures] = run_bench(node, "transactions", options)["figures"]
    cpu_ms = cost.cpu_seconds(node.pid) * 1000
    # Warming up costs as much a second as what counts.
    counted = figures["seconds"] / (figures["seconds"] + warm_up_s)
    return _Round(figures, cpu_ms * counted)


def _tell(report: Report, partition_count: int, measured: dict[str, list[_Round]]) -> None:
    table = Table(
        (
            *("node", "commits/s", "p50 ms", "p95 ms", "p99 ms", "commit p50 ms"),
            *("server's CPU ms per commit", "load busy %"),
        ),
        f"{partition_count} partition{'s' if partition_count > 1 else ''} per transaction, "
        "minimum / median / maximum over the rounds:",
    )
    spreads = {}
    for name, rounds in measured.items():
        columns = spreads[name] = [
            *(
                Spread.of([each.figures[key] for each in rounds])
                for key in (
                    *("commits_per_second", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms"),
                    "commit_p50_ms",
                )
            ),
            Spread.of([each.per_commit() for each in rounds]),
        ]
        busy = Spread.of([each.figures["client_cpu_percent"] for each in rounds])
        table.add(name, *(each.text(DIGITS) for each in columns), busy.text(0))
    if len(spreads) > 1:
        ours, theirs = spreads.values()
        ratios = [mine.per(other) for mine, other in zip(ours, theirs, strict=True)]
        table.add("ratio", *(ratio.text() for ratio in ratios), "")
    report.tables.append(table)
