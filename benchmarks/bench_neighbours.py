"""What an ill-behaved client costs its neighbours: the latency of another client meanwhile.

One node, one producer with acks=all that sends a batch of 1 KB every 5 ms, alone and beside a
client, in a process of its own, that does one of these twenty times a second: joins groups with
the most expensive regular expressions that are allowed, or with those that are refused, for 300
topics with long names; lists transactions by such a pattern. Alone and beside take turns.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.machine import ROOT
from benchmarks.nodes import (
    HOST,
    BrokerNode,
    MoldauNode,
    pin_load,
    temporary_directory,
)
from benchmarks.wire import ProduceFrame, Wire
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

TOPIC_COUNT: Final = 300
LONG_NAME: Final = "topic-" + "abc" * 75
TRANSACTIONAL_ID_COUNT: Final = 200
EXPENSIVE: Final = "((.?){0,20}){0,20}|x{%d}"
"""As much as the limits allow; the number makes it another one each time."""
REFUSED: Final = "((.?){0,30}){0,30}" * 3 + "{%d}"
SAMPLE_COUNT: Final = 1500
PAUSE_S: Final = 0.005
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
    wire.ask(ListTransactionsRequest(transactional_id_pattern=EXPENSIVE % number), 2)


ATTACKS: Final[dict[str, Callable[[Wire, int], None]]] = {
    "harmless requests, for comparison": lambda wire, _: wire.ask(ApiVersionsRequest(), 0),
    "joins with expensive expressions": lambda wire, n: _join(wire, EXPENSIVE % (n % 1000), n),
    "joins with refused expressions": lambda wire, n: _join(wire, REFUSED % (n % 1000), n),
    "the same refused expression again": lambda wire, n: _join(wire, REFUSED % 1, n),
    "lists of transactions by pattern": lambda wire, n: _list(wire, n % 1000),
}


def run(effort: Effort) -> Report:
    """Alone and beside each attack, in turns."""
    count = effort.count(SAMPLE_COUNT, least=50)
    report = Report("Neighbours of an ill-behaved client")
    table = Table(
        ("another client", "p50 ms", "p99 ms", "longest ms", "p99, x undisturbed"),
        "Produce with acks=all, minimum / median / maximum over the rounds:",
    )
    with temporary_directory() as directory, MoldauNode(directory, SETTINGS) as node:
        _prepare(node)
        with Wire(HOST, node.port) as wire:
            _latencies(wire, count)
            for attack in ATTACKS:
                alone, beside = [], []
                for _ in range(effort.rounds):
                    alone.append(_latencies(wire, count))
                    with _attacker(attack, node.port):
                        beside.append(_latencies(wire, count))
                _add(report, table, attack, alone, beside)
    report.tables.append(table)
    return report


SETTINGS: Final = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.consumer.max.size": "1000",
}


def _add(
    report: Report,
    table: Table,
    attack: str,
    alone: list[list[float]],
    beside: list[list[float]],
) -> None:
    ratio = Spread.of([_p99(there) / _p99(here) for here, there in zip(alone, beside, strict=True)])
    for name, rounds, cell in (
        (f"alone ({attack})", alone, "1.00"),
        (attack, beside, ratio.text(DIGITS)),
    ):
        table.add(
            name,
            Spread.of([sorted(each)[len(each) // 2] for each in rounds]).text(DIGITS),
            Spread.of([_p99(each) for each in rounds]).text(DIGITS),
            Spread.of([max(each) for each in rounds]).text(DIGITS),
            cell,
        )
    asked = f"p99 beside {attack} ≤ {LIMIT:g} x undisturbed"
    report.targets.append(at_most(asked, ratio, LIMIT))


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def _latencies(wire: Wire, count: int) -> list[float]:
    """Milliseconds of each of `count` produce requests."""
    frame = ProduceFrame("neighbour", record_bytes=1000, batch_bytes=1000)
    found = []
    for number in range(count):
        frame.advance(number)
        begun = time.perf_counter()
        wire.socket.sendall(frame.frame)
        size = int.from_bytes(wire._receive(4))
        wire._receive(size)
        found.append((time.perf_counter() - begun) * 1000)
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
def _attacker(attack: str, port: int) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_neighbours", attack, str(port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=pin_load,
    )
    try:
        assert process.stdout is not None, "a pipe"
        assert process.stdout.readline() == b"attacking\n", "the attacker did not begin"
        yield
        assert process.poll() is None, "the attacker ended"
    finally:
        process.kill()
        process.communicate()


def attack(name: str, port: int) -> None:
    """Go on until the process is ended."""
    number = time.time_ns() // 1_000_000 % 1_000_000 * 1000
    with Wire(HOST, port) as wire:
        ATTACKS[name](wire, number)
        print("attacking", flush=True)
        while True:
            time.sleep(ATTACK_PAUSE_S)
            number += 1
            ATTACKS[name](wire, number)


if __name__ == "__main__":
    attack(sys.argv[1], int(sys.argv[2]))
