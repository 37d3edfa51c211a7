"""What an ill-behaved client costs its neighbours: the latency of another client at that time.

One node, one producer with acks=all that sends a batch of 1 KB every 3 ms, alone and beside a
client, in its own process, that does one of these twenty times a second: joins groups with
expressions that take as long to match, or to compile, as the limits allow, or with those that take
as long to refuse; lists transactions by an expensive pattern. One that does nothing but ask for API
versions is the control. All of them take turns within a round, and the node is quiet before each.
Every figure is taken twice: of all batches, and of those soon after whose begin the machine held up
no core (`benchmarks.stalls`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.figures import (
    Effort,
    Report,
    Spread,
    Table,
    at_most,
    ratio_of_all,
)
from benchmarks.machine import ROOT
from benchmarks.nodes import (
    HOST,
    BrokerNode,
    MoldauNode,
    pin_load,
    temporary_directory,
    wait_until_quiet,
)
from benchmarks.stalls import Span, selections, touched, watched
from benchmarks.wire import ProduceFrame, Wire
from moldau.cli.bench.figures import percentile
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

TOPIC_COUNT: Final = 60
LONG_NAME: Final = "topic-" + "abc" * 75
TRANSACTIONAL_ID_COUNT: Final = 60
SLOW_TO_MATCH: Final = "((.?){0,15}){0,16}|x%d"
"""3 ms for a long name; the number makes it another one each time."""
SLOW_TO_COMPILE: Final = r"(?i)[^\PL][^\PL]|x%d"
SLOW_TO_REFUSE: Final = r"(?i)\PL\PL\PL\PL|x%d"
SAMPLE_COUNT: Final = 4000
TURNS: Final = 2
"""Six seconds each: a client that rests a second after its first request shall not look like one
that has it compiled all the time.
"""
PAUSE_S: Final = 0.0025
ATTACK_PAUSE_S: Final = 0.05
LIMIT: Final = 1.2
RETRY_S: Final = 60.0
DIGITS: Final = 2


def _join(wire: Wire, expression: str, number: int) -> None:
    wire.ask(
        ConsumerGroupHeartbeatRequest(
            group_id=f"group-{number}",
            member_id=f"member-{number}",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[],
            subscribed_topic_regex=expression,
            topic_partitions=[],
        ),
        1,
    )


def _list(wire: Wire, number: int) -> None:
    wire.ask(ListTransactionsRequest(transactional_id_pattern=SLOW_TO_MATCH % number), 2)


ALONE: Final = "none"
HARMLESS: Final = "harmless requests, the control"
ATTACKS: Final[dict[str, Callable[[Wire, int], None]]] = {
    HARMLESS: lambda wire, _: wire.ask(ApiVersionsRequest(), 0),
    "joins with expressions slow to match": lambda wire, n: _join(wire, SLOW_TO_MATCH % n, n),
    "joins with expressions slow to compile": lambda wire, n: _join(wire, SLOW_TO_COMPILE % n, n),
    "joins with expressions slow to refuse": lambda wire, n: _join(wire, SLOW_TO_REFUSE % n, n),
    "the same refused expression again": lambda wire, n: _join(wire, SLOW_TO_REFUSE % 1, n),
    "lists of transactions by pattern": _list,
}

_Rounds = list[dict[str, list[float]]]
"""Of each round the milliseconds beside each client."""


def run(effort: Effort) -> Report:
    """All by turns."""
    report = Report("Neighbours of an ill-behaved client")
    with (
        temporary_directory() as directory,
        MoldauNode(directory, SETTINGS) as node,
        watched() as stalls,
    ):
        _prepare(node)
        with Wire(HOST, node.port) as wire, ExitStack() as stack:
            batches(wire, effort.count(SAMPLE_COUNT, least=50))
            attackers = {name: stack.enter_context(_attacker(name, node.port)) for name in ATTACKS}
            measured = [_round(effort, node, wire, attackers) for _ in range(effort.rounds)]
    columns = ("another client", "batches", "p50 ms", "p99 ms", "longest ms")
    table = Table(
        (*columns, "p99 / alone", "p99 / control"),
        "Produce with acks=all, minimum / median / maximum over the rounds; the ratios are of all "
        "rounds together, with one left out in turn:",
    )
    for kind, selected in selections(stalls).items():
        rounds = [{name: selected(each[name]) for name in each} for each in measured]
        for name in (ALONE, *ATTACKS):
            per_alone, per_control = (_ratio(rounds, name, to) for to in (ALONE, HARMLESS))
            cells = (_median(rounds, name), _p99(rounds, name), _longest(rounds, name))
            ratios = (per_alone, per_control)
            table.add(name, kind, *(cell.text(DIGITS) for cell in (*cells, *ratios)))
            asked = f"p99 beside {name} ({kind}) ≤ {LIMIT:g} x"
            if name != ALONE:
                report.targets.append(at_most(f"{asked} undisturbed", per_alone, LIMIT))
            if name not in (ALONE, HARMLESS):
                report.targets.append(at_most(f"{asked} the control's", per_control, LIMIT))
    report.tables.append(table)
    spans = {name: [one for each in measured for one in each[name]] for name in (ALONE, *ATTACKS)}
    report.notes.append(touched(stalls, spans, "batches"))
    return report


def _round(
    effort: Effort, node: BrokerNode, wire: Wire, attackers: dict[str, subprocess.Popen[bytes]]
) -> dict[str, list[Span]]:
    count = max(10, effort.count(SAMPLE_COUNT) // TURNS)
    found: dict[str, list[Span]] = defaultdict(list)
    for _ in range(TURNS):
        found[ALONE] += batches(wire, count)
        for name, process in attackers.items():
            process.send_signal(signal.SIGCONT)
            found[name] += batches(wire, count)
            assert process.poll() is None, "the attacker ended"
            process.send_signal(signal.SIGSTOP)
            wait_until_quiet(node)
    return found


def _ratio(rounds: _Rounds, name: str, to: str) -> Spread:
    beside, peers = ([each[state] for each in rounds] for state in (name, to))
    return ratio_of_all(beside, peers, 99)


def _median(rounds: _Rounds, name: str) -> Spread:
    return Spread.of([percentile(sorted(each[name]), 50) for each in rounds])


def _p99(rounds: _Rounds, name: str) -> Spread:
    return Spread.of([percentile(sorted(each[name]), 99) for each in rounds])


def _longest(rounds: _Rounds, name: str) -> Spread:
    return Spread.of([max(each[name]) for each in rounds])


SETTINGS: Final = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.consumer.max.size": "1000",
}


def batches(wire: Wire, count: int) -> list[Span]:
    """Each of `count` produce requests."""
    frame = ProduceFrame("neighbour", record_bytes=1000, batch_bytes=1000)
    found = []
    for number in range(count):
        frame.advance(number)
        begin = time.monotonic()
        wire.socket.sendall(frame.frame)
        wire.receive()
        found.append(Span(begin, time.monotonic()))
        time.sleep(PAUSE_S)
    return found


def _prepare(node: BrokerNode) -> None:
    with node.connect() as wire:
        topics = [
            CreatableTopic(name=f"{LONG_NAME}-{number}", num_partitions=1, replication_factor=1)
            for number in range(TOPIC_COUNT)
        ]
        wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
        wire.create_topic("neighbour")
        for key_type in (0, 1):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["group"])
            _until_answered(lambda asked=request: wire.ask(asked, 6).coordinators[0].error_code)
        for number in range(TRANSACTIONAL_ID_COUNT):
            transactional_id = f"{LONG_NAME}-{number}"
            init = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=60_000
            )
            _until_answered(lambda asked=init: wire.ask(asked, 5).error_code)


def _until_answered(ask: Callable[[], int]) -> None:
    deadline = time.monotonic() + RETRY_S
    while (error := ask()) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    assert not error, f"error {error}"


@contextmanager
def _attacker(attack: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A client that has begun, and is stopped."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_neighbours", attack, str(port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=pin_load,
    )
    try:
        assert process.stdout is not None, "a pipe"
        assert process.stdout.readline() == b"attacking\n", "the attacker did not begin"
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.communicate()


def attack(name: str, port: int) -> None:
    """Go on until the process is ended."""
    number = time.time_ns() // 1_000_000 % 1_000_000 * 1000  # each attacker has groups of its own
    with Wire(HOST, port) as wire:
        ATTACKS[name](wire, number)
        print("attacking", flush=True)
        while True:
            time.sleep(ATTACK_PAUSE_S)
            number += 1
            ATTACKS[name](wire, number)


if __name__ == "__main__":
    attack(sys.argv[1], int(sys.argv[2]))
