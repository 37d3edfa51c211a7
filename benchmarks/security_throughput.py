"""Part of `bench_security`: produce and fetch over TLS, by turns with Kafka's and our PLAINTEXT.

Owns the rounds: a fresh topic, filled and read by every side in each. Invariant: all sides get the
same requests over as many connections from the same loads; the lists have a figure of every round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from benchmarks.figures import Effort, Report, Spread, Table, at_least
from benchmarks.nodes import HOST, BrokerNode, warm_page_cache
from benchmarks.processes import run_load
from benchmarks.reader import ReadOrder, ReadOutcome
from benchmarks.readers import ReadersOrder
from benchmarks.secured import KeyStore
from benchmarks.sender import SendOrder
from benchmarks.senders import SendersOrder, SendersOutcome
from benchmarks.wire import ProduceFrame

CONNECTION_COUNTS: Final = (1, 20)
RECORD_BYTES: Final = 1024
BATCH_BYTES: Final = 256 * 1024
FETCH_BYTES: Final = 2**20
TURN_BYTES: Final = 500 * 10**6
IN_FLIGHT_COUNT: Final = 5
WARM_UP_TURNS: Final = 3
TOPIC: Final = "secured"
LIMIT: Final = 1.5


class Side(NamedTuple):
    """A node, and by which of its listeners clients come."""

    name: str
    node: BrokerNode
    port: int
    trust_path: str


class Amount(Protocol):
    """What senders and readers measure alike."""

    seconds: float

    @property
    def megabytes_per_second(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one turn."""

    rate: float
    server_seconds_per_gigabyte: float
    server_share: float
    load_share: float

    @classmethod
    def of(cls, found: Amount, server_seconds: float, load_seconds: float) -> Figures:
        """Of what a load measured."""
        gigabytes = found.megabytes_per_second * found.seconds / 1e3
        return cls(
            found.megabytes_per_second,
            server_seconds / gigabytes,
            server_seconds / found.seconds,
            load_seconds / found.seconds,
        )


_Rounds = dict[tuple[str, int], dict[str, list[Figures]]]
"""By what is done, over how many connections, and by side, the figures of every round."""


def throughput(
    effort: Effort, report: Report, nodes: Sequence[BrokerNode], store: KeyStore
) -> None:
    """Produce and fetch, over few and many connections."""
    ours = nodes[0]
    sides = [Side(f"{each.name}, TLS", each, each.tls_port, store.trust_path) for each in nodes]
    sides.append(Side(f"{ours.name}, PLAINTEXT", ours, ours.port, ""))
    rounds: _Rounds = defaultdict(lambda: defaultdict(list))
    for number in range(-WARM_UP_TURNS if effort.scale >= 1 else -1, effort.rounds):
        for count in CONNECTION_COUNTS:
            for side in sides[::-1] if number % 2 else sides:
                produced, fetched = _turn(effort, side, count)
                if number >= 0:
                    rounds["produce", count][side.name].append(produced)
                    rounds["fetch", count][side.name].append(fetched)
    for (what, count), found in rounds.items():
        _tell(report, what, count, found)


def _tell(report: Report, what: str, count: int, found: Mapping[str, list[Figures]]) -> None:
    over = f"over {count} connection{'s' if count > 1 else ''}"
    table = Table(
        ("side", "MB/s", "ratio to Moldau's TLS", "CPU s per GB", "server busy", "load busy"),
        f"{what.capitalize()} {over}, minimum / median / maximum:",
    )
    rates = {name: Spread.of([each.rate for each in turns]) for name, turns in found.items()}
    ours, *others = rates
    for name, turns in found.items():
        shares = [
            Spread.of(values).text()
            for values in (
                [each.server_seconds_per_gigabyte for each in turns],
                [each.server_share for each in turns],
                [each.load_share for each in turns],
            )
        ]
        ratio = "" if name == ours else rates[name].per(rates[ours]).text()
        table.add(name, rates[name].text(0), ratio, *shares)
    report.tables.append(table)
    if len(others) > 1:
        asked = f"TLS, {what} {over}: ≥ {LIMIT:g} × Apache Kafka's MB/s"
        report.targets.append(at_least(asked, rates[ours].per(rates[others[0]]), LIMIT))


def _turn(effort: Effort, side: Side, count: int) -> tuple[Figures, Figures]:
    """Produce to a topic of as many partitions as connections, and read its first one."""
    node = side.node
    request_count = effort.count(TURN_BYTES // BATCH_BYTES // count, least=2)
    with node.connect() as wire:
        wire.create_topic(TOPIC, count)
        ids = [wire.producer_id() for _ in range(count)]
        warm_page_cache(node.directory, count * request_count * BATCH_BYTES)
        senders = [
            SendOrder(
                host=HOST,
                port=side.port,
                server_pid=node.pid,
                topic=TOPIC,
                record_bytes=RECORD_BYTES,
                batch_bytes=BATCH_BYTES,
                warm_up_count=1,
                request_count=request_count,
                in_flight_count=IN_FLIGHT_COUNT,
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=(index,),
                trust_path=side.trust_path,
            )
            for index, (producer_id, epoch) in enumerate(ids)
        ]
        pids = {side.name: node.pid}
        sent = run_load("senders", SendersOrder(senders, pids), SendersOutcome)
        frame = ProduceFrame(TOPIC, record_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES)
        readers = [
            ReadOrder(
                host=HOST,
                port=side.port,
                server_pid=node.pid,
                topic=TOPIC,
                fetch_bytes=FETCH_BYTES,
                batch_bytes=frame.batch_bytes,
                batch_records=frame.record_count,
                batch_count=request_count,
                trust_path=side.trust_path,
                partition=index,
            )
            for index in range(count)
        ]
        order = ReadersOrder(readers, node.pid)
        read = run_load("readers", order, ReadOutcome)
        node.delete_topic(wire, TOPIC)
    return (
        Figures.of(sent, sum(sent.server_cpu_seconds.values()), sent.sender_cpu_seconds),
        Figures.of(
            read, read.server_user_seconds + read.server_system_seconds, read.reader_cpu_seconds
        ),
    )
