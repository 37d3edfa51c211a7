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
    finish_load,
    start_load,
    wait_until_quiet,
)
from benchmarks.secured import KeyStore, secured_nodes
from benchmarks.wire import Wire
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest

CLIENT_COUNT: Final = 8
HANDSHAKE_COUNT: Final = 250
"""Of each client and turn."""

KINDS: Final = {"full": False, "resumed": True}
CONNECTION_COUNT: Final = 1_000
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
    return HandshakeOutcome(**finish_load(start_load("handshaker", order)))


class _Held(NamedTuple):
    """Resident bytes of a node: with nothing, with PLAINTEXT connections, without them, with those
    of TLS, and when they have gone.
    """

    before: int
    plain: int
    between: int
    tls: int
    after: int


def memory(effort: Effort, report: Report, directory: Path, store: KeyStore) -> None:
    """Of connections that stay, then of those that come and go; fresh nodes every round."""
    count = effort.count(CONNECTION_COUNT, least=10)
    seconds = float(os.environ.get(CHURN_VARIABLE, CHURN_S * min(effort.scale, 1.0)))
    held: dict[str, list[_Held]] = defaultdict(list)
    churned: dict[str, list[tuple[float, list[int]]]] = defaultdict(list)
    for number in range(effort.rounds):
        home = directory / f"memory-{number}"
        home.mkdir()
        with secured_nodes(effort, home, store) as nodes:
            for node in nodes:
                held[node.name].append(_hold(node, store, count))
                churned[node.name].append(_churn(node, store, seconds))
    _tell_held(report, count, held)
    _tell_churned(report, seconds, churned)


def _tell_held(report: Report, count: int, held: dict[str, list[_Held]]) -> None:
    table = Table(
        ("node", "KB per connection, TLS", "PLAINTEXT", "KB left of each when they have closed"),
        f"Resident memory of {count:,} connections after one request each, minimum / median / "
        "maximum:",
    )
    for name, rounds in held.items():
        kilobytes = count * 1e3
        columns = (
            [(each.tls - each.between) / kilobytes for each in rounds],
            [(each.plain - each.before) / kilobytes for each in rounds],
            [(each.after - each.between) / kilobytes for each in rounds],
        )
        table.add(name, *(Spread.of(values).text(1) for values in columns))
    report.tables.append(table)


def _tell_churned(
    report: Report, seconds: float, churned: dict[str, list[tuple[float, list[int]]]]
) -> None:
    table = Table(
        ("node", "connections/s", "MB after an eighth", "MB at the end", "more, MB"),
        f"Connections that come, ask once and go for {seconds:g} s, resident memory, minimum / "
        "median / maximum:",
    )
    for name, rounds in churned.items():
        early = [looks[0] / 1e6 for _, looks in rounds]
        late = [looks[-1] / 1e6 for _, looks in rounds]
        more = [b - a for a, b in zip(early, late, strict=True)]
        spreads = (Spread.of(values).text(1) for values in (early, late, more))
        table.add(name, Spread.of([rate for rate, _ in rounds]).text(0), *spreads)
    report.tables.append(table)


def _hold(node: BrokerNode, store: KeyStore, count: int) -> _Held:
    before = _settled(node)
    plain = _with_connections(node, node.port, "", count)
    between = _settled(node)
    tls = _with_connections(node, node.tls_port, store.trust_path, count)
    return _Held(before, plain, between, tls, _settled(node))


def _with_connections(node: BrokerNode, port: int, trust_path: str, count: int) -> int:
    with ExitStack() as stack:
        for _ in range(count):
            wire = stack.enter_context(Wire(HOST, port, trust_path=trust_path))
            wire.ask(ApiVersionsRequest(), 0)
        return _settled(node)


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
