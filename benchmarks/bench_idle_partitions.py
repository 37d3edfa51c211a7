"""What 10,000 idle partitions cost: the CPU of a broker that follows them, and of their leader.

Replication factor 2, every partition led by the first broker and followed by the second, one record
in each. CPU of both processes over the same time before the partitions exist and when they are
idle, meaning that the figure has stopped falling. Where a process may have fewer
descriptors than so many logs need, there are fewer partitions, and a limit lower in proportion.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Final

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.clusters import ClusterProcesses, KafkaCluster, MoldauCluster
from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.machine import resident_bytes
from benchmarks.nodes import kafka_jars, temporary_directory
from moldau.cli.bench.figures import taken

PARTITION_COUNT: Final = 10_000
PARTITIONS_PER_TOPIC: Final = 1_000
DESCRIPTORS_PER_PARTITION: Final = 3
"""Of ours: a log and two mapped indexes."""

OTHER_DESCRIPTORS: Final = 1_000
LEADER_ID: Final = 1
FOLLOWER_ID: Final = 2
WINDOW_S: Final = 12
LEAST_WINDOW_S: Final = 1
SETTLE_S: Final = 2.0
SETTLE_ROUNDS: Final = 30
SETTLED_BELOW: Final = 0.005
"""Two looks in a row that differ by less than this share of a core: nothing is left to do."""

LIMIT_PERCENT: Final = 2.0


def run(effort: Effort) -> Report:
    """Windows of both kinds, on one cluster after the other."""
    full = min(PARTITION_COUNT, _most_partitions())
    report = Report(f"{full:,} idle partitions, replication factor 2")
    if full < PARTITION_COUNT:
        report.notes.append(
            f"{full:,} instead of {PARTITION_COUNT:,} partitions: no process may have more "
            f"descriptors here than {resource.getrlimit(resource.RLIMIT_NOFILE)[1]:,}."
        )
    table = Table(
        ("broker", "CPU without them", "CPU with them", "more", "resident MB"),
        "CPU in percent of a core, minimum / median / maximum:",
    )
    kinds: list[type[ClusterProcesses]] = [MoldauCluster]
    if effort.with_kafka and kafka_jars() is not None:
        kinds.append(KafkaCluster)
    else:
        report.notes.append(WITHOUT_KAFKA)
    for kind in kinds:
        with temporary_directory() as directory:
            more = _measure(effort, kind, directory, table, effort.count(full, least=10))
        if kind is MoldauCluster:
            report.targets.append(
                at_most(
                    f"{full:,} idle partitions: a follower's CPU rises by ≤ "
                    f"{LIMIT_PERCENT * full / PARTITION_COUNT:.2f} % of a core",
                    more,
                    LIMIT_PERCENT * full / PARTITION_COUNT,
                )
            )
    report.tables.append(table)
    return report


def _measure(
    effort: Effort, kind: type[ClusterProcesses], directory: Path, table: Table, count: int
) -> Spread:
    """Adds the rows of a cluster; by how much the follower's CPU rose, window by window."""
    window_s = effort.count(WINDOW_S, least=LEAST_WINDOW_S)
    with kind(directory) as cluster:
        pids = {"leader": cluster.pid(LEADER_ID), "follower": cluster.pid(FOLLOWER_ID)}
        _settle(pids["follower"])
        before = _windows(pids, effort.rounds, window_s)
        _create(cluster, count)
        _settle(pids["follower"])
        after = _windows(pids, effort.rounds, window_s)
        for role, pid in pids.items():
            low, high = Spread.of(before[role]), Spread.of(after[role])
            table.add(
                f"{cluster.name}, {role}",
                low.text(),
                high.text(),
                _difference(high, low).text(),
                f"{resident_bytes(pid) / 1e6:,.0f}",
            )
    return _difference(Spread.of(after["follower"]), Spread.of(before["follower"]))


def _most_partitions() -> int:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard_limit == resource.RLIM_INFINITY:
        return PARTITION_COUNT
    return (hard_limit - OTHER_DESCRIPTORS) // DESCRIPTORS_PER_PARTITION


def _difference(more: Spread, less: Spread) -> Spread:
    return Spread(tuple(a - b for a, b in zip(more.values, less.values, strict=True)))


def _windows(pids: dict[str, int], count: int, window_s: float) -> dict[str, list[float]]:
    """Percent of a core that each process took, window by window."""
    found: dict[str, list[float]] = {role: [] for role in pids}
    for _ in range(count):
        with taken(*pids.values()) as cost:
            time.sleep(window_s)
        for role, pid in pids.items():
            found[role].append(cost.share(pid) * 100)
    return found


def _settle(pid: int) -> None:
    """Return when the process takes as little as it did two seconds before."""
    last = _share(pid)
    for _ in range(SETTLE_ROUNDS):
        share = _share(pid)
        if abs(share - last) < SETTLED_BELOW:
            return
        last = share


def _share(pid: int) -> float:
    with taken(pid) as cost:
        time.sleep(SETTLE_S)
    return cost.share(pid)


def _create(cluster: ClusterProcesses, count: int) -> None:
    """Topics of up to a thousand partitions, a record in each, all in sync."""
    with cluster.connect(LEADER_ID) as wire:
        for number, first in enumerate(range(0, count, PARTITIONS_PER_TOPIC)):
            topic = f"idle-{number}"
            partition_count = min(PARTITIONS_PER_TOPIC, count - first)
            wire.create_topic(topic, partition_count, replicas=(LEADER_ID, FOLLOWER_ID))
            cluster.wait_for_replicas(topic, 2)
            wire.produce_one_each(topic, range(partition_count), b"x")
