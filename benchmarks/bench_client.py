"""The client beside confluent-kafka, aiokafka and kafka-python: throughput, CPU, memory.

All talk to one Moldau node, each in its own process, by turns in changing order. Produced is
to one partition; consumed is one partition that confluent-kafka has written with its defaults,
from its start. Ratios are taken within a round. Memory: a client sends far more than it may keep
through a proxy that lets only so many bytes a second pass, and one reads a topic slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.client_load import LoadOrder, LoadOutcome
from benchmarks.client_memory import measure_memory
from benchmarks.figures import Effort, Report, Spread, Table, at_least, at_most
from benchmarks.nodes import HOST, BrokerNode, MoldauNode, temporary_directory
from benchmarks.processes import run_load
from benchmarks.wire import Wire

SIZES: Final = (100, 1024)
TRIAL_SCALE: Final = 0.01
"""Below it the run only shows that everything works: one size will do."""
DEADLINE_S: Final = 600
PEERS_FACTOR: Final = 2.0
ARROW_CPU_PART: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A way to produce or consume, and its amount of data per turn, in MB of values."""

    name: str
    full_mb: int


PRODUCE: Final = (
    Entry("moldau send_nowait", 60),
    Entry("moldau await send", 10),
    Entry("moldau send_arrow", 200),
    Entry("confluent-kafka produce", 100),
    Entry("aiokafka send", 20),
    Entry("aiokafka await send", 5),
    Entry("kafka-python send", 10),
    Entry("bytes alone: send", 200),
)
CONSUME: Final = (
    Entry("moldau getmany", 100),
    Entry("moldau async for", 100),
    Entry("moldau poll_arrow", 200),
    Entry("confluent-kafka consume", 100),
    Entry("aiokafka getmany", 30),
    Entry("aiokafka async for", 30),
    Entry("kafka-python poll", 20),
    Entry("bytes alone: receive", 200),
)
ARROW: Final = {"produce": "moldau send_arrow", "consume": "moldau poll_arrow"}
CONFLUENT: Final = {
    "produce": "confluent-kafka produce",
    "consume": "confluent-kafka consume",
}
#: What an application does record by record, against the peers' way to do the same.
PER_RECORD: Final = {
    "produce": (
        ("moldau send_nowait", "aiokafka send"),
        ("moldau send_nowait", "kafka-python send"),
    ),
    "consume": (
        ("moldau getmany", "aiokafka getmany"),
        ("moldau getmany", "kafka-python poll"),
        ("moldau async for", "aiokafka async for"),
    ),
}


@dataclass(slots=True)
class Figures:
    """Of one way at one record size, over the rounds."""

    rates: list[float]
    cpu: list[float]

    def add(self, order: LoadOrder, outcome: LoadOutcome) -> None:
        """One turn: thousand records per second, CPU seconds per million records."""
        self.rates.append(order.record_count / outcome.seconds / 1e3)
        self.cpu.append(outcome.cpu_seconds / order.record_count * 1e6)


def run(effort: Effort) -> Report:
    """Every way, at every size, by turns; then memory."""
    report = Report("The client beside other Python clients")
    with temporary_directory() as directory, MoldauNode(directory) as node:
        for size in SIZES if effort.scale >= TRIAL_SCALE else SIZES[:1]:
            found = {
                "produce": _produce(node, effort, size),
                "consume": _consume(node, effort, size),
            }
            for what, figures in found.items():
                report.tables.append(_table(what, size, figures))
                _add_targets(report, what, size, figures)
    measure_memory(report, effort)
    report.notes.append(
        "`await send` is one record per task, 1,000 tasks; it is there for information. All "
        "clients are idempotent with acks=all and linger 5 ms; batches of 16 KB, those of "
        'confluent-kafka of 1 MB. "Bytes alone" is no client: ready batches of 16 KB go out, what '
        "comes in is not looked at, over one blocking socket; no lower bound, for comparison."
    )
    return report


def _table(what: str, size: int, figures: dict[str, Figures]) -> Table:
    table = Table(
        (
            "client",
            "thousand records/s",
            "client CPU s per million records",
            "CPU, × confluent-kafka",
        ),
        f"{what.capitalize()}, values of {size} bytes, minimum / median / maximum:",
    )
    peer = Spread.of(figures[CONFLUENT[what]].cpu)
    for name, each in figures.items():
        cpu = Spread.of(each.cpu)
        table.add(name, Spread.of(each.rates).text(0), cpu.text(2), cpu.per(peer).text(2))
    return table


def _add_targets(report: Report, what: str, size: int, figures: dict[str, Figures]) -> None:
    for ours, theirs in PER_RECORD[what]:
        ratio = Spread.of(figures[ours].rates).per(Spread.of(figures[theirs].rates))
        report.targets.append(
            at_least(f"{what}, {size} B: {ours} ≥ 2 × {theirs}", ratio, PEERS_FACTOR)
        )
    arrow, peer = figures[ARROW[what]], figures[CONFLUENT[what]]
    report.targets.append(
        at_most(
            f"{what}, {size} B: CPU of {ARROW[what]} ≤ 1/3 of confluent-kafka's",
            Spread.of(arrow.cpu).per(Spread.of(peer.cpu)),
            ARROW_CPU_PART,
        )
    )
    report.targets.append(
        at_least(
            f"{what}, {size} B: throughput of {ARROW[what]} ≥ confluent-kafka's",
            Spread.of(arrow.rates).per(Spread.of(peer.rates)),
            1.0,
        )
    )


def _produce(node: BrokerNode, effort: Effort, size: int) -> dict[str, Figures]:
    figures = {entry.name: Figures([], []) for entry in PRODUCE}
    for number in range(effort.rounds):
        for entry in _turns(PRODUCE, number):
            with node.connect() as wire:
                topic = f"produce-{size}"
                wire.create_topic(topic)
                order = _order(entry, node, topic, effort, size)
                figures[entry.name].add(order, _turn(order))
                node.delete_topic(wire, topic)
    return figures


def _consume(node: BrokerNode, effort: Effort, size: int) -> dict[str, Figures]:
    figures = {entry.name: Figures([], []) for entry in CONSUME}
    topic = f"consume-{size}"
    with node.connect() as wire:
        wire.create_topic(topic)
        _fill(node, wire, topic, effort, size)
        for number in range(effort.rounds):
            for entry in _turns(CONSUME, number):
                order = _order(entry, node, topic, effort, size)
                figures[entry.name].add(order, _turn(order))
        node.delete_topic(wire, topic)
    return figures


def _fill(node: BrokerNode, _wire: Wire, topic: str, effort: Effort, size: int) -> None:
    """As many records as the one who reads most, written by confluent-kafka."""
    most = max(CONSUME, key=lambda entry: entry.full_mb)
    order = _order(most, node, topic, effort, size)
    fill = LoadOrder(
        "confluent-kafka produce",
        order.bootstrap,
        topic,
        order.record_count,
        size,
        # Some readers take whole polls: more than they need has come.
        order.warm_up_count + order.record_count // 10,
    )
    _turn(fill)


def _turns(entries: tuple[Entry, ...], number: int) -> tuple[Entry, ...]:
    """Another one begins in every round."""
    at = number % len(entries)
    return entries[at:] + entries[:at]


def _order(entry: Entry, node: BrokerNode, topic: str, effort: Effort, size: int) -> LoadOrder:
    count = effort.count(entry.full_mb * 1_000_000 // size, 2_000)
    return LoadOrder(entry.name, f"{HOST}:{node.port}", topic, count, size, max(count // 10, 1_000))


def _turn(order: LoadOrder) -> LoadOutcome:
    """One load in a separate process."""
    return run_load("client_load", order, LoadOutcome, place=None, deadline_s=DEADLINE_S)
