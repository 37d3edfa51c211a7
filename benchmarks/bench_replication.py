"""Produce with acks=all to topics of three replicas on three brokers, beside Apache Kafka.

A controller and three brokers of each, the same settings, all on this machine: what is compared is
how much CPU a replicated record costs. Rounds take turns; before them comes a long load that is not
counted, and one turn of each kind, so that Java has compiled what it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.clusters import ClusterProcesses, clusters, in_changing_order
from benchmarks.figures import Effort, Report, Spread, Table, at_least
from benchmarks.replicated_load import send, send_by_confluent
from benchmarks.senders import SendersOutcome

LIMIT: Final = 1.0
LARGE_BYTES: Final = 256 * 1024
SMALL_BYTES: Final = 16 * 1024
SEVERAL: Final = 6
"""Partitions: two for each broker to lead."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load of the lean producer."""

    name: str
    partition_count: int
    batch_bytes: int
    request_count: int


CASES: Final = (
    Case("batches of 256 KB, 1 partition", 1, LARGE_BYTES, 1_000),
    Case("batches of 256 KB, 6 partitions", SEVERAL, LARGE_BYTES, 1_000),
    Case("batches of 16 KB, 1 partition", 1, SMALL_BYTES, 6_000),
    Case("batches of 16 KB, 6 partitions", SEVERAL, SMALL_BYTES, 6_000),
)
WARM_UP_REQUESTS: Final = 20_000
"""Before anything is counted; Java has then compiled most of what it runs."""

CONFLUENT_RECORDS: Final = 100_000
Outcome = TypeVar("Outcome")


def run(effort: Effort) -> Report:
    """Every load, by turns."""
    report = Report("Produce with replication factor 3, acks=all, three brokers on one machine")
    with clusters(effort) as sides:
        for cluster in sides:
            send(
                cluster,
                partition_count=SEVERAL,
                batch_bytes=SMALL_BYTES,
                request_count=effort.count(WARM_UP_REQUESTS, least=12),
            )
        for case in CASES:
            _run_case(report, effort, sides, case)
        for partition_count in (1, SEVERAL):
            _run_confluent(report, effort, sides, partition_count)
    if len(sides) == 1:
        report.notes.append(WITHOUT_KAFKA)
    return report


def _run_case(
    report: Report, effort: Effort, sides: Sequence[ClusterProcesses], case: Case
) -> None:
    count = effort.count(case.request_count, least=12)

    def turn(cluster: ClusterProcesses) -> SendersOutcome:
        return send(
            cluster,
            partition_count=case.partition_count,
            batch_bytes=case.batch_bytes,
            request_count=count,
        )

    found = _by_turns(effort, sides, turn)
    table = Table(
        (
            "cluster",
            "MB/s",
            "ratio to Apache Kafka",
            "CPU µs per request, all brokers",
            "brokers busy, cores",
            "sender busy",
        ),
        f"{case.name[0].upper()}{case.name[1:]}, minimum / median / maximum:",
    )
    speeds = {name: _speeds(outcomes) for name, outcomes in found.items()}
    ratio = _ratio(report, case.name, speeds)
    for name, outcomes in found.items():
        cpu = Spread.of([each.server_microseconds_per_request for each in outcomes])
        busy = Spread.of([sum(e.server_cpu_seconds.values()) / e.seconds for e in outcomes])
        sender = Spread.of([each.sender_cpu_seconds / each.seconds for each in outcomes])
        table.add(
            name,
            speeds[name].text(1),
            ratio if name == sides[0].name else "",
            cpu.text(0),
            busy.text(),
            sender.text(),
        )
    report.tables.append(table)


def _run_confluent(
    report: Report, effort: Effort, sides: Sequence[ClusterProcesses], partition_count: int
) -> None:
    name = f"confluent-kafka, {partition_count} partition{'s' if partition_count > 1 else ''}"
    count = effort.count(CONFLUENT_RECORDS, least=200)
    found = _by_turns(
        effort,
        sides,
        lambda cluster: send_by_confluent(
            cluster, partition_count=partition_count, record_count=count
        ),
    )
    speeds = {side: Spread.of(values) for side, values in found.items()}
    ratio = _ratio(report, name, speeds)
    table = Table(
        ("cluster", "MB/s", "ratio to Apache Kafka"),
        f"{name}, its own batches, idempotent, minimum / median / maximum:",
    )
    for side, speed in speeds.items():
        table.add(side, speed.text(1), ratio if side == sides[0].name else "")
    report.tables.append(table)


def _by_turns(
    effort: Effort,
    sides: Sequence[ClusterProcesses],
    turn: Callable[[ClusterProcesses], Outcome],
) -> dict[str, list[Outcome]]:
    for cluster in sides:
        turn(cluster)
    found: dict[str, list[Outcome]] = {cluster.name: [] for cluster in sides}
    for number in range(effort.rounds):
        for cluster in in_changing_order(sides, number):
            found[cluster.name].append(turn(cluster))
    return found


def _speeds(outcomes: list[SendersOutcome]) -> Spread:
    return Spread.of([outcome.megabytes_per_second for outcome in outcomes])


def _ratio(report: Report, name: str, speeds: dict[str, Spread]) -> str:
    """Our speed in Kafka's, also as a target; empty without Kafka."""
    if len(speeds) == 1:
        return ""
    ours, theirs = speeds.values()
    ratio = ours.per(theirs)
    report.targets.append(
        at_least(f"replication factor 3, {name}: ≥ Apache Kafka's MB/s", ratio, LIMIT)
    )
    return ratio.text()
