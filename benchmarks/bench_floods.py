"""Commits of one client while another floods the same coordinator with commits.

One node of each kind. A client commits one offset after the other, at a steady pace; then the same
with a second client beside it that commits without a pause and without waiting for answers, over
one connection. Both are parts of a round, so that a ratio is taken within seconds.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.flooder import FloodOrder
from benchmarks.machine import ROOT
from benchmarks.nodes import HOST, BrokerNode, pin_load
from benchmarks.produce_load import brokers
from benchmarks.wire import COMMIT_VERSION, RETRY_PAUSE_S, Wire, commit_request
from moldau.broker.coordinator.key_partitions import partition_for
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest

CALM: Final = "calm"
FLOODING: Final = next(
    name
    for name in map("flooding-{}".format, range(10_000))
    if partition_for(name, 50) == partition_for(CALM, 50)
)
"""A group of the same partition, of the default number of them."""
COMMITS: Final = 2_000
WARM_UP_COMMITS: Final = 500
PACE_S: Final = 0.002
TOPIC: Final = "events"
FIND_VERSION: Final = 2
LIMIT: Final = 1.2
PERCENTILES: Final = {"p50": 0.5, "p99": 0.99}

_Latencies = defaultdict[tuple[str, bool, str], list[float]]


def run(effort: Effort) -> Report:
    """Rounds by turns."""
    report = Report("Commits of one client while another floods the coordinator")
    found: _Latencies = defaultdict(list)
    with brokers(effort) as (ours, theirs):
        sides = [ours] if theirs is None else [ours, theirs]
        for node in sides:
            _prepare(effort, node)
        for number in range(effort.rounds):
            for node in sides if number % 2 == 0 else sides[::-1]:
                _take(found, node, effort, is_flooded=False)
                with _flooded(node):
                    _take(found, node, effort, is_flooded=True)
    table = Table(
        ("node", "percentile", "undisturbed ms", "flooded ms", "ratio"),
        "Minimum / median / maximum over the rounds:",
    )
    for node in sides:
        for name in PERCENTILES:
            calm = Spread.of(found[node.name, False, name])
            flooded = Spread.of(found[node.name, True, name])
            ratio = flooded.per(calm)
            table.add(node.name, name, calm.text(), flooded.text(), ratio.text())
            if node is ours and name == "p99":
                asked = f"p99 of commits beside a flood ≤ {LIMIT} x undisturbed"
                report.targets.append(at_most(asked, ratio, LIMIT))
    report.tables.append(table)
    if theirs is None:
        report.notes.append(WITHOUT_KAFKA)
    return report


def _prepare(effort: Effort, node: BrokerNode) -> None:
    with node.connect() as wire:
        wire.create_topic(TOPIC)
        asked = FindCoordinatorRequest(key=CALM, key_type=0)
        while wire.ask(asked, FIND_VERSION).error_code:
            time.sleep(RETRY_PAUSE_S)
        while _commit(wire):
            time.sleep(RETRY_PAUSE_S)
        for _ in range(effort.count(WARM_UP_COMMITS)):
            _commit(wire)


def _commit(wire: Wire) -> int:
    """The error of one commit."""
    response = wire.ask(commit_request(CALM, TOPIC), COMMIT_VERSION)
    return int(response.topics[0].partitions[0].error_code)


def _take(found: _Latencies, node: BrokerNode, effort: Effort, *, is_flooded: bool) -> None:
    """One client's commits, each when it is due, or at once if that has passed."""
    latencies = []
    with node.connect() as wire:
        due = time.monotonic()
        for _ in range(effort.count(COMMITS, least=20)):
            due = max(due + PACE_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            begin = time.monotonic()
            error = _commit(wire)
            assert not error, f"{node.name}: error {error}"
            latencies.append((time.monotonic() - begin) * 1_000)
    latencies.sort()
    for name, share in PERCENTILES.items():
        found[node.name, is_flooded, name].append(latencies[int(share * (len(latencies) - 1))])


@contextlib.contextmanager
def _flooded(node: BrokerNode) -> Iterator[None]:
    order = FloodOrder(HOST, node.port, FLOODING, TOPIC)
    flooder = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.flooder", json.dumps(asdict(order))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=pin_load,
    )
    try:
        assert flooder.stdout is not None
        assert flooder.stdout.readline() == b"flooding\n"
        yield
    finally:
        flooder.kill()
        flooder.communicate()
