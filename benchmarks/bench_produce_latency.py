"""Latency of single produce requests at a steady pace, replication factor 3, acks=all.

One record of 1 KB per request, 1,000 requests a second in an open loop, latency from the moment
each was due. Spread over so many connections that none has to wait for its own answer before, as
Apache Kafka handles one request of a connection at a time. Rounds take turns with Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.clusters import ClusterProcesses, clusters, in_changing_order
from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.nodes import HOST
from benchmarks.pacer import PERCENTILES, Lane, PaceOrder, PaceOutcome
from benchmarks.processes import run_load
from benchmarks.replicated_load import RECORD_BYTES, TOPIC, replicated_topic, send

REQUESTS_PER_SECOND: Final = 1_000
CONNECTION_COUNT: Final = 20
WARM_UP_REQUESTS: Final = 20_000
"""Before anything is counted, as fast as it goes, in batches of one record."""

WARM_UP_S: Final = 8
ROUND_WARM_UP_S: Final = 3
ROUND_S: Final = 10
SEVERAL: Final = 6
LIMIT: Final = 1.0


@dataclass(slots=True)
class _Measured:
    """One cluster's rounds."""

    outcomes: list[PaceOutcome] = field(default_factory=list)

    def latency(self, percentile: str) -> Spread:
        """Milliseconds of every round."""
        return Spread.of([outcome.latency_ms[percentile] for outcome in self.outcomes])

    def lateness(self) -> Spread:
        """The pacer's own, at the 99th percentile."""
        return Spread.of([outcome.lateness_ms["p99"] for outcome in self.outcomes])


def run(effort: Effort) -> Report:
    """One partition, then several with leaders on every broker."""
    report = Report("Latency of a produce at 1,000/s, replication factor 3, acks=all")
    with clusters(effort) as sides:
        for cluster in sides:
            send(
                cluster,
                partition_count=SEVERAL,
                batch_bytes=1,
                request_count=effort.count(WARM_UP_REQUESTS, least=12),
            )
            _keep_pace(effort, cluster, SEVERAL, warm_up_s=0, timed_s=WARM_UP_S)
        for partition_count in (1, SEVERAL):
            measured = {cluster.name: _Measured() for cluster in sides}
            for number in range(effort.rounds):
                for cluster in in_changing_order(sides, number):
                    measured[cluster.name].outcomes.append(
                        _keep_pace(
                            effort,
                            cluster,
                            partition_count,
                            warm_up_s=ROUND_WARM_UP_S,
                            timed_s=ROUND_S,
                        )
                    )
            _tell(report, partition_count, measured)
    if len(sides) == 1:
        report.notes.append(WITHOUT_KAFKA)
    return report


def _keep_pace(
    effort: Effort, cluster: ClusterProcesses, partition_count: int, *, warm_up_s: int, timed_s: int
) -> PaceOutcome:
    with replicated_topic(cluster, partition_count) as turn, cluster.connect() as wire:
        led = [(index, broker_id) for broker_id, each in turn.leaders.items() for index in each]
        led.sort()
        lanes = []
        for number in range(CONNECTION_COUNT):
            index, broker_id = led[number % len(led)]
            lanes.append(Lane(cluster.port(broker_id), index, *wire.producer_id()))
        order = PaceOrder(
            host=HOST,
            lanes=lanes,
            topic=TOPIC,
            record_bytes=RECORD_BYTES,
            requests_per_second=REQUESTS_PER_SECOND,
            warm_up_count=effort.count(warm_up_s * REQUESTS_PER_SECOND, least=1),
            request_count=effort.count(timed_s * REQUESTS_PER_SECOND, least=100),
        )
        return run_load("pacer", order, PaceOutcome)


def _tell(report: Report, partition_count: int, measured: dict[str, _Measured]) -> None:
    name = f"{partition_count} partition{'s' if partition_count > 1 else ''}"
    table = Table(
        ("cluster, ms", *PERCENTILES, "pacer late, p99"),
        f"{name[0].upper()}{name[1:]}, minimum / median / maximum over the rounds:",
    )
    for side, found in measured.items():
        latencies = [found.latency(percentile).text() for percentile in PERCENTILES]
        table.add(side, *latencies, found.lateness().text())
    if len(measured) > 1:
        ours, theirs = measured.values()
        ratios = {each: ours.latency(each).per(theirs.latency(each)) for each in PERCENTILES}
        table.add("ratio", *(ratio.text() for ratio in ratios.values()), "")
        report.targets.append(
            at_most(
                f"replication factor 3, 1,000 produces/s, {name}: p99 ≤ Apache Kafka's",
                ratios["p99"],
                LIMIT,
            )
        )
    report.tables.append(table)
