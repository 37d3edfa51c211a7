"""A thousand members in one group: how long a rebalance takes, and what it costs the coordinator.

Both protocols, on one node of each kind, one after the other with nothing else running. The load is
`moldau bench groups`: members as Kafka's clients are, each with its own connection, heartbeats
at the default interval. All join at once, all stay, one joins, one leaves.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.figures import Effort, Report, Spread, Table
from benchmarks.machine import resident_bytes
from benchmarks.nodes import (
    BrokerNode,
    KafkaNode,
    MoldauNode,
    kafka_jars,
    run_bench,
    temporary_directory,
)

PROTOCOLS: Final = ("classic", "consumer")
MEMBER_COUNT: Final = 1_000
LEAST_MEMBERS: Final = 3
IDLE_S: Final = 10
CLASSIC_HEARTBEAT_MS: Final = 3_000
HEARTBEAT_MS: Final = 5_000
ASSIGNMENT_MS: Final = 1_000
REBALANCE_DELAY_MS: Final = 3_000
"""Defaults: of consumers, of `group.consumer.heartbeat.interval.ms`,
`group.consumer.assignment.interval.ms` and `group.initial.rebalance.delay.ms`.
"""

LEAST_MS: Final = 100


def run(effort: Effort) -> Report:
    """Every node by itself."""
    members = effort.count(MEMBER_COUNT, least=LEAST_MEMBERS)
    report = Report(f"{members:,} members in one group")
    heartbeat_ms = effort.count(HEARTBEAT_MS, least=LEAST_MS)
    settings = {
        "group.initial.rebalance.delay.ms": str(effort.count(REBALANCE_DELAY_MS, least=1)),
        "group.consumer.heartbeat.interval.ms": str(heartbeat_ms),
        "group.consumer.min.heartbeat.interval.ms": str(heartbeat_ms),
        "group.consumer.assignment.interval.ms": str(effort.count(ASSIGNMENT_MS, least=1)),
    }
    kinds: list[type[BrokerNode]] = [MoldauNode]
    if effort.with_kafka and kafka_jars() is not None:
        kinds.append(KafkaNode)
    else:
        report.notes.append(WITHOUT_KAFKA)
    tables = {
        protocol: Table(
            ("node", "phase", "seconds", "coordinator's CPU seconds", "heartbeats", "resident MB"),
            f"{protocol} protocol, minimum / median / maximum over the rounds:",
        )
        for protocol in PROTOCOLS
    }
    for kind in kinds:
        with temporary_directory() as directory, kind(directory, settings) as node:
            with node.connect():
                pass  # it listens
            for protocol, table in tables.items():
                _measure(effort, node, protocol, members, table)
    report.tables.extend(tables.values())
    report.notes.append(
        f"{members:,} partitions. A rebalance is over when every member knows of it and each "
        "partition has one owner: members hear of it with their next heartbeat, every 3 s in the "
        "classic protocol, every 5 s in that of KIP-848. The first one of a classic group waits "
        f"{settings['group.initial.rebalance.delay.ms']} ms for more members to come."
    )
    return report


def _measure(effort: Effort, node: BrokerNode, protocol: str, members: int, table: Table) -> None:
    phases: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    resident: list[float] = []
    for _ in range(effort.rounds):
        for phase in _turn(effort, node, protocol, members):
            phases[phase["name"]].append(phase)
        resident.append(resident_bytes(node.pid) / 1e6)
    for name, found in phases.items():
        table.add(
            node.name,
            name,
            Spread.of([each["seconds"] for each in found]).text(),
            Spread.of([each["server_cpu_seconds"] for each in found]).text(),
            Spread.of([each["heartbeat_count"] for each in found]).text(0),
            Spread.of(resident).text(0),
        )


def _turn(effort: Effort, node: BrokerNode, protocol: str, members: int) -> list[dict[str, Any]]:
    options = [
        f"--protocol={protocol}",
        f"--members={members}",
        f"--partitions={members}",
        f"--idle-seconds={IDLE_S * effort.scale}",
        f"--heartbeat-ms={effort.count(CLASSIC_HEARTBEAT_MS, least=LEAST_MS)}",
        f"--pid={node.pid}",
    ]
    phases: list[dict[str, Any]] = run_bench(node, "groups", options)["phases"]
    return phases
