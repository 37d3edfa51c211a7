"""Memory of an idle combined node with 100 partitions, beside Apache Kafka's.

Resident memory as the kernel counts it (VmRSS), libraries and mapped index files included, after
the node has loaded what it loads once it serves. Then once more after one record in each partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.machine import anonymous_bytes, resident_bytes
from benchmarks.nodes import BrokerNode, KafkaNode, MoldauNode, kafka_jars, temporary_directory

PARTITION_COUNT: Final = 100
LIMIT_MB: Final = 90.0
SETTLE_S: Final = 1.0
SETTLE_ROUNDS: Final = 10
TOPIC: Final = "idle"


def run(effort: Effort) -> Report:
    """A fresh node every round."""
    report = Report(f"Memory of an idle combined node with {PARTITION_COUNT} partitions")
    table = Table(("what, MB (10^6 bytes)", "minimum / median / maximum"))
    measured = [_measure(MoldauNode) for _ in range(effort.rounds)]
    idle = Spread.of([each[0] for each in measured])
    table.add("Moldau, resident", idle.text(1))
    table.add("of that anonymous", Spread.of([each[1] for each in measured]).text(1))
    table.add("after one record in every partition", Spread.of([e[2] for e in measured]).text(1))
    with_http = [_measure(_with_http) for _ in range(effort.rounds)]
    table.add(
        "Moldau with its HTTP listener on, idle", Spread.of([e[0] for e in with_http]).text(1)
    )
    if effort.with_kafka and kafka_jars() is not None:
        peers = [_measure(KafkaNode) for _ in range(effort.rounds)]
        table.add(
            "Apache Kafka, resident (1 GB of heap allowed, as its script does)",
            Spread.of([each[0] for each in peers]).text(1),
        )
    report.tables.append(table)
    report.targets.append(at_most("idle with 100 partitions ≤ 90 MB", idle, LIMIT_MB, digits=1))
    return report


def _with_http(directory: Path) -> BrokerNode:
    return MoldauNode(directory, {"moldau.http.listener": "127.0.0.1:0"})


def _measure(kind: Callable[[Path], BrokerNode]) -> tuple[float, float, float]:
    """Resident and anonymous MB when idle, and resident MB when every partition has a record."""
    with temporary_directory() as directory, kind(directory) as node, node.connect() as wire:
        wire.create_topic(TOPIC, PARTITION_COUNT)
        idle = _settled_bytes(node.pid)
        anonymous = anonymous_bytes(node.pid)
        wire.produce_one_each(TOPIC, range(PARTITION_COUNT), b"x" * 100)
        return idle / 1e6, anonymous / 1e6, _settled_bytes(node.pid) / 1e6


def _settled_bytes(pid: int) -> int:
    """Resident memory once it has stopped moving by more than half a percent a second."""
    before = resident_bytes(pid)
    for _ in range(SETTLE_ROUNDS):
        time.sleep(SETTLE_S)
        now = resident_bytes(pid)
        if abs(now - before) < before / 200:
            break
        before = now
    return now
