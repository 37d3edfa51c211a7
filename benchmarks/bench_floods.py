"""Commits of one client while another floods the same coordinator with commits.

One node of each kind. A client commits one offset after the other, at a steady pace, in three
states: undisturbed; beside a second client that commits without a pause and without waiting for
answers, over one connection; and, as a control, beside two processes that talk to no broker. One
takes as much processor time as the second client did, woken up as often. The other has, of the
node's cores, what the second client made the node use, but only where the node leaves them idle:
on a virtual machine a busy core is held up more often than an idle one, whatever it is busy with.
A round has all three, so that a ratio is taken within seconds. The clients and the first process
share a core, our node and the second have the other. Every figure is taken twice: of all commits,
and of those soon after whose begin the machine held up no core (`benchmarks.stalls`).
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import astuple
from typing import Any, Final, NamedTuple

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.burner import BurnOrder
from benchmarks.figures import (
    Effort,
    Report,
    Spread,
    Table,
    at_most,
    ratio_of_all,
)
from benchmarks.flooder import FloodCost, FloodOrder
from benchmarks.nodes import HOST, BrokerNode, wait_until_quiet
from benchmarks.processes import on_load_core, outcome_of, running
from benchmarks.produce_load import brokers
from benchmarks.stalls import Span, selections, timed, touched, watched
from benchmarks.wire import COMMIT_VERSION, Wire, commit_request, until_accepted
from moldau.broker.coordinator.key_partitions import partition_for
from moldau.cli.bench.figures import taken
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest

CALM: Final = "calm"
FLOODING: Final = next(
    name
    for name in map("flooding-{}".format, range(10_000))
    if partition_for(name, 50) == partition_for(CALM, 50)
)
"""A group of the same partition, of the default number of them."""
COMMITS: Final = 2_000
TURNS: Final = 8
WARM_UP_COMMITS: Final = 500
PACE_S: Final = 0.002
TOPIC: Final = "events"
FIND_VERSION: Final = 2
LIMIT: Final = 1.2
LEAST_SHARE: Final = 0.01
"""Of a core, for the control."""
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0}

UNDISTURBED: Final = "undisturbed"
CONTROL: Final = "control"
FLOODED: Final = "flooded"
STATES: Final = (UNDISTURBED, CONTROL, FLOODED)


class _Round(NamedTuple):
    """The commits by state, what the flooder did at the same time, and the seconds of
    processor time that the node took for it, per second.
    """

    commits: dict[str, list[Span]]
    flooder: FloodCost
    node_cpu_seconds: float


def run(effort: Effort) -> Report:
    """Rounds by turns."""
    report = Report("Commits of one client while another floods the coordinator")
    found: dict[str, list[_Round]] = defaultdict(list)
    with brokers(effort) as (ours, theirs), watched() as stalls:
        sides = [ours] if theirs is None else [ours, theirs]
        with on_load_core():
            for node in sides:
                _prepare(effort, node)
            for number in range(effort.rounds):
                for node in sides if number % 2 == 0 else sides[::-1]:
                    found[node.name].append(_round(node, effort))
    table = Table(
        (
            *("node", "commits", "percentile", "undisturbed ms", "control ms", "flooded ms"),
            *("control / undisturbed", "flooded / undisturbed", "flooded / control"),
        ),
        "Minimum / median / maximum over the rounds; the ratios are of all rounds together, with "
        "one left out in turn:",
    )
    for node in sides:
        for kind, selected in selections(stalls).items():
            latencies = [
                [selected(each.commits[state]) for each in found[node.name]] for state in STATES
            ]
            p99 = _add_rows(table, node.name, kind, latencies)
            if node is ours:
                asked = f"p99 of commits beside a flood ({kind}) ≤ {LIMIT} x"
                report.targets.append(at_most(f"{asked} undisturbed", p99[1], LIMIT))
                report.targets.append(at_most(f"{asked} the control's", p99[2], LIMIT))
    report.tables.append(table)
    for node in sides:
        rounds = found[node.name]
        report.notes.append(
            f"{node.name}: {_flooders([each.flooder for each in rounds])} The node took "
            f"{Spread.of([each.node_cpu_seconds * 100 for each in rounds]).text(0)} % of "
            f"a core for it."
        )
        commits = {
            state: [one for each in rounds for one in each.commits[state]] for state in STATES
        }
        report.notes.append(f"{node.name}: {touched(stalls, commits, 'commits')}")
    if theirs is None:
        report.notes.append(WITHOUT_KAFKA)
    return report


def _add_rows(
    table: Table, node_name: str, kind: str, latencies: list[list[list[float]]]
) -> tuple[Spread, ...]:
    """A row for each percentile of the three states' rounds; returns the last one's ratios: of the
    control and of the flooded to undisturbed, of the flooded to the control.
    """
    undisturbed, control, flooded = latencies
    ratios: tuple[Spread, ...] = ()
    for name, percent in PERCENTILES.items():
        rounds = [Spread.of_percentile(state, percent) for state in latencies]
        ratios = (
            ratio_of_all(control, undisturbed, percent),
            ratio_of_all(flooded, undisturbed, percent),
            ratio_of_all(flooded, control, percent),
        )
        table.add(node_name, kind, name, *(cell.text() for cell in (*rounds, *ratios)))
    return ratios


def _flooders(costs: list[FloodCost]) -> str:
    """What the flooder did, for a note."""
    commits = Spread.of([cost.answers for cost in costs])
    share = Spread.of([cost.cpu_seconds * 100 for cost in costs])
    wake_ups = Spread.of([cost.wake_ups for cost in costs])
    return (
        f"the flooder had {commits.text(0)} commits answered per second, took {share.text(0)} % of "
        f"a core and woke up {wake_ups.text(0)} times a second."
    )


def _round(node: BrokerNode, effort: Effort) -> _Round:
    """The states by turns, several times: what else the machine does hits all of them."""
    count = max(1, effort.count(COMMITS) // TURNS)
    commits: dict[str, list[Span]] = defaultdict(list)
    costs: list[FloodCost] = []
    shares: list[float] = []
    for _ in range(TURNS):
        with taken(node.pid) as undisturbed:
            commits[UNDISTURBED] += _commits(node, count)
        with running("flooder", FloodOrder(HOST, node.port, FLOODING, TOPIC)) as flooder:
            with taken(node.pid) as flooded:
                commits[FLOODED] += _commits(node, count)
            flooder.process.terminate()
            costs.append(FloodCost(**outcome_of(flooder.process)))
        wait_until_quiet(node)
        shares.append(max(LEAST_SHARE, flooded.share(node.pid) - undisturbed.share(node.pid)))
        client = BurnOrder(costs[-1].cpu_seconds, costs[-1].wake_ups)
        its_node = BurnOrder(shares[-1], costs[-1].wake_ups, sorted(node.cores), is_idle=True)
        with running("burner", client), running("burner", its_node):
            commits[CONTROL] += _commits(node, count)
    return _Round(
        commits,
        FloodCost(*(statistics.mean(values) for values in zip(*map(astuple, costs), strict=True))),
        statistics.mean(shares),
    )


def _prepare(effort: Effort, node: BrokerNode) -> None:
    with node.connect() as wire:
        wire.create_topic(TOPIC)
        asked = FindCoordinatorRequest(key=CALM, key_type=0)
        until_accepted(lambda: wire.ask(asked, FIND_VERSION))
        until_accepted(lambda: _commit(wire))
        for _ in range(effort.count(WARM_UP_COMMITS)):
            _commit(wire)


def _commit(wire: Wire) -> Any:
    """The answer to one commit."""
    return wire.ask(commit_request(CALM, TOPIC), COMMIT_VERSION).topics[0].partitions[0]


def _commits(node: BrokerNode, count: int) -> list[Span]:
    """One client's commits, each when it is due, or at once if that has passed."""
    found = []

    def commit() -> None:
        error = _commit(wire).error_code
        assert not error, f"{node.name}: error {error}"

    with node.connect() as wire:
        due = time.monotonic()
        for _ in range(count):
            due = max(due + PACE_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            found.append(timed(commit))
    return found
