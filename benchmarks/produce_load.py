"""The produce load that two rows share: one sender, by turns to a node and to the bare loop.

Owns the rounds: a fresh topic (and a fresh file) for every turn, the same frames to each side, the
sides in changing order. Invariant: every side gets the same kind of requests from the same sender.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.bare import BareOrder
from benchmarks.figures import Effort, Spread
from benchmarks.nodes import (
    HOST,
    BrokerNode,
    KafkaNode,
    MoldauNode,
    bare_loop,
    kafka_jars,
    temporary_directory,
    warm_page_cache,
)
from benchmarks.processes import run_load
from benchmarks.sender import SendOrder, SendOutcome
from benchmarks.wire import ProduceFrame

RECORD_BYTES: Final = 1024
IN_FLIGHT_COUNT: Final = 5
"""What Kafka's idempotent producers allow themselves."""

KAFKA_SHARE: Final = 4
"""Kafka takes longer per request: a part of the requests gives it as many seconds."""

TOPIC: Final = "load"
PRODUCER_ID: Final = 1_000
"""For frames whose size alone matters; nodes give real ones."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What every side measured, round by round; Kafka's list may be empty."""

    ours: list[SendOutcome]
    bare: list[SendOutcome]
    kafka: list[SendOutcome]


@contextlib.contextmanager
def brokers(effort: Effort) -> Iterator[tuple[BrokerNode, BrokerNode | None]]:
    """A node of ours, and Kafka's when it is installed, both running throughout."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(temporary_directory())
        (directory / "moldau").mkdir()
        ours = stack.enter_context(MoldauNode(directory / "moldau", is_pinned=True))
        theirs: BrokerNode | None = None
        if effort.with_kafka and kafka_jars() is not None:
            (directory / "kafka").mkdir()
            theirs = stack.enter_context(KafkaNode(directory / "kafka"))
        for node in (ours, theirs):
            if node is not None:
                node.connect().socket.close()
        yield ours, theirs


def compete(effort: Effort, *, batch_bytes: int, request_count: int) -> Contest:
    """`request_count` requests of one batch each, to every side, in every round."""
    contest = Contest([], [], [])
    order = SendOrder(
        host=HOST,
        port=0,
        server_pid=0,
        topic=TOPIC,
        record_bytes=RECORD_BYTES,
        batch_bytes=batch_bytes,
        warm_up_count=max(1, request_count // 10),
        request_count=request_count,
        in_flight_count=IN_FLIGHT_COUNT,
    )
    with brokers(effort) as (ours, theirs), temporary_directory() as directory:
        send_to_node(ours, order)  # warms memory, code and page cache
        slower = replace(order, request_count=max(1, request_count // KAFKA_SHARE))
        for number in range(effort.rounds):
            if number % 2:
                contest.bare.append(send_to_bare_loop(directory / "bare", order))
            contest.ours.append(send_to_node(ours, order))
            if not number % 2:
                contest.bare.append(send_to_bare_loop(directory / "bare", order))
            if theirs is not None:
                contest.kafka.append(send_to_node(theirs, slower))
    return contest


def send_to_node(node: BrokerNode, order: SendOrder) -> SendOutcome:
    """One turn on its own topic, idempotent as clients are by default."""
    with node.connect() as wire:
        wire.create_topic(order.topic)
        producer_id, producer_epoch = wire.producer_id()
        _warm(node.directory, order)
        sending = replace(
            order,
            port=node.port,
            server_pid=node.pid,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        outcome = run_load("sender", sending, SendOutcome)
        node.delete_topic(wire, order.topic)
    return outcome


def send_to_bare_loop(path: Path, order: SendOrder) -> SendOutcome:
    """The same frames to the loop that only receives and writes."""
    _warm(path.parent, order)
    with bare_loop("receive", bare_order(path, order)) as loop:
        sending = replace(
            order,
            port=loop.ports[0],
            server_pid=loop.pid,
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            checks_offsets=False,
        )
        outcome = run_load("sender", sending, SendOutcome)
    path.unlink()
    return outcome


def _warm(directory: Path, order: SendOrder) -> None:
    warm_page_cache(directory, (order.warm_up_count + order.request_count) * order.batch_bytes)


def bare_order(path: Path, order: SendOrder) -> BareOrder:
    """The sizes of the frames that the sender will send."""
    frame = ProduceFrame(
        order.topic,
        record_bytes=order.record_bytes,
        batch_bytes=order.batch_bytes,
        producer_id=PRODUCER_ID,
        producer_epoch=0,
    )
    return BareOrder(
        path=str(path),
        frame_bytes=len(frame.frame),
        answer_bytes=frame.error_at + 40,  # as long as a broker's answer, about
        batch_bytes=frame.batch_bytes,
    )


def megabytes(outcomes: list[SendOutcome]) -> Spread:
    """MB/s of every round."""
    return Spread.of([outcome.megabytes_per_second for outcome in outcomes])


def microseconds(outcomes: list[SendOutcome]) -> Spread:
    """The server's CPU per request of every round."""
    return Spread.of([outcome.server_microseconds_per_request for outcome in outcomes])


def sender_share(outcomes: list[SendOutcome]) -> Spread:
    """How busy the sender was: well below 1, or it was the bottleneck."""
    return Spread.of([outcome.sender_cpu_seconds / outcome.seconds for outcome in outcomes])


def server_share(outcomes: list[SendOutcome]) -> Spread:
    """How busy the server was."""
    return Spread.of(
        [
            (outcome.server_user_seconds + outcome.server_system_seconds) / outcome.seconds
            for outcome in outcomes
        ]
    )
