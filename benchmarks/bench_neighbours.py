"""What an ill-behaved client costs its neighbours: the latency of another client at that time.

One node, one producer with acks=all that sends a batch of 1 KB every 3 ms, alone and beside a
client, in its own process, that does one of these twenty times a second: joins groups with
expressions that take as long to match, or to compile, as the limits allow, or with those that take
as long to refuse; lists transactions by an expensive pattern. One that does nothing but ask for API
versions is the control. All of them take turns as in `benchmarks.beside`. The node has a core of
its own; on the other one the producer comes first, and the other client has what is left.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.beside import HARMLESS, Limits, by_turns, produce, requests, tell
from benchmarks.figures import Effort, Report
from benchmarks.nodes import HOST, BrokerNode, MoldauNode, temporary_directory
from benchmarks.processes import first_on_load_core, give_way, running
from benchmarks.stalls import watched
from benchmarks.wire import Wire, until_accepted
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

TOPIC: Final = "neighbour"
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
ATTACK_PAUSE_S: Final = 0.05
LIMIT: Final = 1.2


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


ATTACKS: Final[dict[str, Callable[[Wire, int], None]]] = {
    HARMLESS: lambda wire, _: wire.ask(ApiVersionsRequest(), 0),
    "joins with expressions slow to match": lambda wire, n: _join(wire, SLOW_TO_MATCH % n, n),
    "joins with expressions slow to compile": lambda wire, n: _join(wire, SLOW_TO_COMPILE % n, n),
    "joins with expressions slow to refuse": lambda wire, n: _join(wire, SLOW_TO_REFUSE % n, n),
    "the same refused expression again": lambda wire, n: _join(wire, SLOW_TO_REFUSE % 1, n),
    "lists of transactions by pattern": _list,
}


def run(effort: Effort) -> Report:
    """All by turns."""
    report = Report("Neighbours of an ill-behaved client")
    with (
        temporary_directory() as directory,
        MoldauNode(directory, SETTINGS, is_pinned=True) as node,
        watched() as stalls,
    ):
        _prepare(node)
        with first_on_load_core(), Wire(HOST, node.port) as wire, ExitStack() as stack:
            asks = [produce(wire, TOPIC)]
            requests(asks, effort.count(SAMPLE_COUNT, least=50))
            attackers = {name: stack.enter_context(_attacker(name, node.port)) for name in ATTACKS}
            count = max(10, effort.count(SAMPLE_COUNT) // TURNS)
            rounds = [by_turns(node, asks, count, TURNS, attackers) for _ in range(effort.rounds)]
    tell(report, rounds, stalls, "batches", "Produce with acks=all", Limits(LIMIT, LIMIT))
    return report


SETTINGS: Final = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.consumer.max.size": "1000",
}


def _prepare(node: BrokerNode) -> None:
    with node.connect() as wire:
        topics = [
            CreatableTopic(name=f"{LONG_NAME}-{number}", num_partitions=1, replication_factor=1)
            for number in range(TOPIC_COUNT)
        ]
        wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
        wire.create_topic(TOPIC)
        for key_type in (0, 1):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["group"])
            until_accepted(lambda asked=request: wire.ask(asked, 6).coordinators[0])
        for number in range(TRANSACTIONAL_ID_COUNT):
            transactional_id = f"{LONG_NAME}-{number}"
            init = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=60_000
            )
            until_accepted(lambda asked=init: wire.ask(asked, 5))


@contextmanager
def _attacker(attack: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A client that has begun, and is stopped."""
    with running("bench_neighbours", attack, port, place=give_way) as attacker:
        attacker.process.send_signal(signal.SIGSTOP)
        yield attacker.process


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
