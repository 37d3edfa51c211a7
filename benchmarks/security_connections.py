"""Part of `bench_security`: handshakes, what connections with TLS hold, and what they leave.

Owns the clients of one core that come and go, and those that stay. Invariant: every connection has
asked once and was answered, so that its node has what it needs for it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.figures import Effort, Report, Spread, Table, at_least
from benchmarks.handshaker import HandshakeOrder, HandshakeOutcome
from benchmarks.machine import resident_bytes
from benchmarks.nodes import (
    HOST,
    BrokerNode,
    wait_until_quiet,
)
from benchmarks.processes import run_load
from benchmarks.secured import KeyStore, secured_nodes
from benchmarks.wire import FetchFrame, Wire
from moldau.cli.bench.figures import payload
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest

CLIENT_COUNT: Final = 8
HANDSHAKE_COUNT: Final = 250
"""Of each client and turn."""

KINDS: Final = {"full": False, "resumed": True}
CONNECTION_COUNT: Final = 1_000
TOPIC: Final = "held"
FETCH_BYTES: Final = 2**20
CHURN_VARIABLE: Final = "MOLDAU_BENCH_CHURN_S"
CHURN_S: Final = 20.0
CHURN_LOOKS: Final = 8
LIMIT: Final = 1.0


def handshakes(
    effort: Effort, report: Report, nodes: Sequence[BrokerNode], store: KeyStore
) -> None:
    """By turns."""
    rounds: dict[tuple[str, str], list[HandshakeOutcome]] = defaultdict(list)
    for number in range(-1, effort.rounds):
        for kind, is_resumed in KINDS.items():
            for node in nodes[::-1] if number % 2 else nodes:
                count = effort.count(HANDSHAKE_COUNT, least=3)
                found = _shake(node, store, handshake_count=count, is_resumed=is_resumed)
                if number >= 0:
                    rounds[kind, node.name].append(found)
    table = Table(
        ("node", "asked for", "per second", "resumed", "server's CPU ms", "clients' core busy"),
        f"Handshakes, {CLIENT_COUNT} clients at once, minimum / median / maximum:",
    )
    for kind in KINDS:
        rates = []
        for node in nodes:
            found_all = rounds[kind, node.name]
            rate = Spread.of([each.per_second for each in found_all])
            cost = Spread.of([each.server_milliseconds for each in found_all])
            busy = Spread.of([each.client_share for each in found_all])
            resumed = Spread.of([each.resumed_share for each in found_all])
            cells = (rate.text(0), resumed.text(), cost.text(), busy.text())
            table.add(node.name, kind, *cells)
            rates.append(rate)
        if len(rates) > 1:
            asked = f"TLS handshakes, {kind}: ≥ Apache Kafka's per second"
            report.targets.append(at_least(asked, rates[0].per(rates[1]), LIMIT))
    report.tables.append(table)


def _shake(
    node: BrokerNode,
    store: KeyStore,
    *,
    handshake_count: int = 0,
    seconds: float = 0.0,
    is_resumed: bool = False,
) -> HandshakeOutcome:
    order = HandshakeOrder(
        host=HOST,
        port=node.tls_port,
        server_pid=node.pid,
        trust_path=store.trust_path,
        client_count=CLIENT_COUNT,
        handshake_count=handshake_count,
        seconds=seconds,
        is_resumed=is_resumed,
    )
    return run_load("handshaker", order, HandshakeOutcome)


class _Held(NamedTuple):
    """Resident bytes of a node: with nothing; with connections of PLAINTEXT, and without them; with
    as many of TLS, when each has fetched, and when they have gone; with as many again, and when
    those have gone.
    """

    before: int
    plain: int
    between: int
    tls: int
    fetched: int
    after: int
    again: int
    at_last: int


def memory(effort: Effort, report: Report, directory: Path, store: KeyStore) -> None:
    """Of connections that stay; fresh nodes every round."""
    count = effort.count(CONNECTION_COUNT, least=10)
    held: dict[str, list[_Held]] = defaultdict(list)
    for number in range(effort.rounds):
        home = directory / f"memory-{number}"
        home.mkdir()
        with secured_nodes(effort, home, store) as nodes:
            for node in nodes:
                held[node.name].append(_hold(node, store, count))
    _tell_held(report, count, held)


def churn(effort: Effort, report: Report, directory: Path, store: KeyStore) -> None:
    """Of connections that come and go; fresh nodes every round."""
    seconds = float(os.environ.get(CHURN_VARIABLE, CHURN_S * min(effort.scale, 1.0)))
    churned: dict[str, list[tuple[float, list[int]]]] = defaultdict(list)
    for number in range(effort.rounds):
        home = directory / f"churn-{number}"
        home.mkdir()
        with secured_nodes(effort, home, store) as nodes:
            for node in nodes:
                churned[node.name].append(_churn(node, store, seconds))
    _tell_churned(report, seconds, churned)


def _tell_held(report: Report, count: int, held: dict[str, list[_Held]]) -> None:
    table = Table(
        (
            "node",
            "TLS, after one request",
            "and a fetch of 1 MiB",
            "left when closed",
            "more with as many again",
            "left of those",
            "PLAINTEXT, after one request",
        ),
        f"Resident memory, KB for each of {count:,} connections, minimum / median / maximum:",
    )
    for name, rounds in held.items():
        columns = (
            [each.tls - each.between for each in rounds],
            [each.fetched - each.between for each in rounds],
            [each.after - each.between for each in rounds],
            [each.again - each.after for each in rounds],
            [each.at_last - each.after for each in rounds],
            [each.plain - each.before for each in rounds],
        )
        spreads = (Spread.of([each / count / 1e3 for each in values]) for values in columns)
        table.add(name, *(spread.text(1) for spread in spreads))
    report.tables.append(table)


def _tell_churned(
    report: Report, seconds: float, churned: dict[str, list[tuple[float, list[int]]]]
) -> None:
    table = Table(
        (
            "node",
            "connections/s",
            "MB after an eighth",
            "MB at the end",
            "more, MB",
            "MB after each eighth, medians",
        ),
        f"Connections that come, ask once and go for {seconds:g} s, resident memory, minimum / "
        "median / maximum:",
    )
    for name, rounds in churned.items():
        early = [looks[0] / 1e6 for _, looks in rounds]
        late = [looks[-1] / 1e6 for _, looks in rounds]
        more = [b - a for a, b in zip(early, late, strict=True)]
        spreads = (Spread.of(values).text(1) for values in (early, late, more))
        course = " ".join(
            f"{Spread.of(each).median / 1e6:.1f}"
            for each in zip(*(looks for _, looks in rounds), strict=True)
        )
        table.add(name, Spread.of([rate for rate, _ in rounds]).text(0), *spreads, course)
    report.tables.append(table)


def _hold(node: BrokerNode, store: KeyStore, count: int) -> _Held:
    with node.connect() as wire:
        wire.create_topic(TOPIC)
        wire.produce_one_each(TOPIC, (0,), payload(FETCH_BYTES - 1_024))
    before = _settled(node)
    plain, _ = _with_connections(node, node.port, "", count)
    between = _settled(node)
    tls, fetched = _with_connections(node, node.tls_port, store.trust_path, count)
    after = _settled(node)
    _, again = _with_connections(node, node.tls_port, store.trust_path, count)
    return _Held(before, plain, between, tls, fetched, after, again, _settled(node))


def _with_connections(node: BrokerNode, port: int, trust_path: str, count: int) -> tuple[int, int]:
    """Resident bytes when each has asked once, and when each has fetched over TLS."""
    fetch = FetchFrame(TOPIC, max_bytes=FETCH_BYTES)
    fetch.ask_for(0, 0)
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(HOST, port, trust_path=trust_path)) for _ in range(count)]
        for wire in wires:
            wire.ask(ApiVersionsRequest(), 0)
        asked = _settled(node)
        for wire in wires if trust_path else ():
            answer = wire.exchange(fetch.frame)
            assert len(answer) > FETCH_BYTES // 2, "an answer without the record"
        return asked, _settled(node)


def _settled(node: BrokerNode) -> int:
    wait_until_quiet(node)
    return resident_bytes(node.pid)


def _churn(node: BrokerNode, store: KeyStore, seconds: float) -> tuple[float, list[int]]:
    """Connections a second, and resident bytes after each piece of the time."""
    looks, rates = [], []
    for _ in range(CHURN_LOOKS):
        rates.append(_shake(node, store, seconds=max(seconds / CHURN_LOOKS, 0.02)).per_second)
        looks.append(_settled(node))
    return sum(rates) / len(rates), looks
