"""Fetch by a lagging and by a caught-up consumer, beside the bare sendfile loop.

Lagging: a consumer reads a log from its start, one fetch after the other; the limit serves the very
same segment file with sendfile to the same reader. Caught-up: a consumer reads behind a running
producer; the limit receives, writes and sendfiles the new bytes in one loop. Everything is in the
page cache. With strace here, the bytes are also counted by the system call that moved them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks import copied_bytes
from benchmarks.bare import BareOrder
from benchmarks.figures import Effort, Report, Spread, Table, at_least
from benchmarks.nodes import (
    HOST,
    BrokerNode,
    MoldauNode,
    bare_loop,
    temporary_directory,
    warm_page_cache,
)
from benchmarks.processes import outcome_of, run_load, start_load
from benchmarks.produce_load import PRODUCER_ID, RECORD_BYTES, bare_order, brokers
from benchmarks.reader import ReadOrder, ReadOutcome
from benchmarks.sender import SendOrder, SendOutcome
from benchmarks.wire import FetchFrame, ProduceFrame

LIMIT: Final = 0.7
TOPIC: Final = "read"
HEAD_BYTES: Final = 80
LAGGING_BYTES: Final = 800 * 10**6
"""Less than a segment, so that the limit has it in one file."""

CAUGHT_UP_BYTES: Final = 500 * 10**6
BATCH_BYTES: Final = 16 * 1024
CAUGHT_UP_BATCH_BYTES: Final = 256 * 1024
FETCH_SIZES: Final = (("1 MiB", 2**20), ("8 MiB", 8 * 2**20))
"""Consumers' default per partition, and a generous one."""

DEFAULT_FETCH_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Side:
    """One line of a table: who, and what the rounds gave."""

    server: str
    outcomes: list[ReadOutcome]


def run(effort: Effort) -> Report:
    """Lagging for every fetch size, then caught-up, then what strace counts."""
    report = Report("Fetch")
    _lagging(effort, report)
    _caught_up(effort, report)
    if copied_bytes.is_available():
        _count_copies(effort, report)
    else:
        report.notes.append("strace is not here: bytes by system call were not counted.")
    return report


def _sides() -> tuple[Side, Side, Side]:
    return Side("Moldau", []), Side("bare loop", []), Side("Apache Kafka", [])


# -- lagging ------------------------------------------------------------------------------------


def _lagging(effort: Effort, report: Report) -> None:
    with brokers(effort) as (ours, theirs):
        order = _filled(ours, effort)
        kafka_order = _filled(theirs, effort) if theirs is not None else None
        path = ours.data / f"{TOPIC}-0" / f"{0:020}.log"
        for name, fetch_bytes in FETCH_SIZES:
            moldau, bare, kafka = _sides()
            sized = replace(order, fetch_bytes=fetch_bytes)
            _read(sized)
            for _ in range(effort.rounds):
                moldau.outcomes.append(_read(sized))
                bare.outcomes.append(_read_bare(path, sized))
                if kafka_order is not None:
                    kafka.outcomes.append(_read(replace(kafka_order, fetch_bytes=fetch_bytes)))
            title = f"Lagging consumer, {name} per fetch, minimum / median / maximum:"
            ratio = _compare(report, title, (moldau, bare, kafka))
            asked = f"fetch, lagging consumer, {name} per fetch: ≥ 0.7 × the bare loop"
            report.targets.append(at_least(asked, ratio, LIMIT))
        _after_restart(effort, report, ours, order)


def _after_restart(effort: Effort, report: Report, node: BrokerNode, order: ReadOrder) -> None:
    """Bytes that this process has not written are checked once, before they leave."""
    first = Side("Moldau, first read after a restart", [])
    again = Side("Moldau, second read", [])
    for _ in range(max(1, effort.rounds // 2)):
        node.stop()
        node.launch()
        node.connect().socket.close()
        restarted = replace(order, server_pid=node.pid)
        first.outcomes.append(_read(restarted))
        again.outcomes.append(_read(restarted))
    table = Table(("server", "MB/s", "server CPU s/GB"), "The first read after a restart:")
    for side in (first, again):
        speed = Spread.of([outcome.megabytes_per_second for outcome in side.outcomes])
        cost = Spread.of([outcome.server_seconds_per_gigabyte for outcome in side.outcomes])
        table.add(side.server, speed.text(0), cost.text())
    report.tables.append(table)


def _filled(node: BrokerNode, effort: Effort) -> ReadOrder:
    """Produce the log that is read, and say how to read it."""
    count = effort.count(LAGGING_BYTES // BATCH_BYTES, 40)
    with node.connect() as wire:
        wire.create_topic(TOPIC)
    sending = _send_order(node, BATCH_BYTES, count)
    run_load("sender", sending, SendOutcome)
    return _read_order(node, sending, count + sending.warm_up_count)


def _send_order(node: BrokerNode, batch_bytes: int, count: int) -> SendOrder:
    return SendOrder(
        host=HOST,
        port=node.port,
        server_pid=node.pid,
        topic=TOPIC,
        record_bytes=RECORD_BYTES,
        batch_bytes=batch_bytes,
        warm_up_count=1,
        request_count=count,
        in_flight_count=5,
    )


def _read_order(node: BrokerNode, sending: SendOrder, batch_count: int) -> ReadOrder:
    frame = ProduceFrame(TOPIC, record_bytes=RECORD_BYTES, batch_bytes=sending.batch_bytes)
    return ReadOrder(
        host=HOST,
        port=node.port,
        server_pid=node.pid,
        topic=TOPIC,
        fetch_bytes=DEFAULT_FETCH_BYTES,
        batch_bytes=frame.batch_bytes,
        batch_records=frame.record_count,
        batch_count=batch_count,
    )


def _read(order: ReadOrder) -> ReadOutcome:
    return run_load("reader", order, ReadOutcome)


def _read_bare(path: Path, order: ReadOrder) -> ReadOutcome:
    with bare_loop("sendfile", _bare_fetch_order(str(path), order)) as loop:
        return _read(replace(order, port=loop.ports[0], server_pid=loop.pid))


def _bare_fetch_order(path: str, order: ReadOrder) -> BareOrder:
    return BareOrder(
        path=path,
        request_bytes=len(FetchFrame(TOPIC, max_bytes=order.fetch_bytes).frame),
        head_bytes=HEAD_BYTES,
        batch_bytes=order.batch_bytes,
        fetch_bytes=order.fetch_bytes,
    )


# -- caught up ----------------------------------------------------------------------------------


def _caught_up(effort: Effort, report: Report) -> None:
    count = effort.count(CAUGHT_UP_BYTES // CAUGHT_UP_BATCH_BYTES, 10)
    moldau, bare, kafka = _sides()
    with brokers(effort) as (ours, theirs), temporary_directory() as directory:
        _follow_node(ours, count)
        for number in range(effort.rounds):
            if number % 2:
                bare.outcomes.append(_follow_bare(directory / "bare", ours, count))
            moldau.outcomes.append(_follow_node(ours, count))
            if not number % 2:
                bare.outcomes.append(_follow_bare(directory / "bare", ours, count))
            if theirs is not None:
                kafka.outcomes.append(_follow_node(theirs, max(10, count // 4)))
    title = "Caught-up consumer behind a producer of 256 KB batches, 1 MiB per fetch:"
    ratio = _compare(report, title, (moldau, bare, kafka))
    report.targets.append(
        at_least("fetch, caught-up consumer: ≥ 0.7 × the bare loop", ratio, LIMIT)
    )


def _follow_node(node: BrokerNode, count: int) -> ReadOutcome:
    with node.connect() as wire:
        wire.create_topic(TOPIC)
        sending = _send_order(node, CAUGHT_UP_BATCH_BYTES, count)
        warm_page_cache(node.directory, count * CAUGHT_UP_BATCH_BYTES)
        reader = start_load("reader", _read_order(node, sending, count + 1))
        run_load("sender", sending, SendOutcome)
        outcome = ReadOutcome(**outcome_of(reader))
        node.delete_topic(wire, TOPIC)
    return outcome


def _follow_bare(path: Path, node: BrokerNode, count: int) -> ReadOutcome:
    sending = replace(_send_order(node, CAUGHT_UP_BATCH_BYTES, count), checks_offsets=False)
    reading = _read_order(node, sending, count + 1)
    order = _bare_fetch_order(str(path), reading)
    received = bare_order(path, replace(sending, producer_id=PRODUCER_ID))
    # The reader sees frames as batches: what matters is that as many bytes go to it.
    order = replace(
        order,
        frame_bytes=received.frame_bytes,
        answer_bytes=received.answer_bytes,
        batch_bytes=received.frame_bytes,
    )
    reading = replace(reading, batch_bytes=received.frame_bytes, checks_batches=False)
    warm_page_cache(path.parent, count * CAUGHT_UP_BATCH_BYTES)
    with bare_loop("relay", order) as loop:
        reader = start_load("reader", replace(reading, port=loop.ports[1], server_pid=loop.pid))
        sending = replace(sending, port=loop.ports[0], server_pid=loop.pid)
        run_load("sender", sending, SendOutcome)
        outcome = ReadOutcome(**outcome_of(reader))
    path.unlink()
    return outcome


# -- what they say ------------------------------------------------------------------------------


def _compare(report: Report, title: str, sides: tuple[Side, ...]) -> Spread:
    """Add the table; the ratio of the first side to the second."""
    table = Table(("server", "MB/s", "ratio to the bare loop", "CPU s/GB", "user s/GB"), title)
    speeds = {
        side.server: Spread.of([each.megabytes_per_second for each in side.outcomes])
        for side in sides
        if side.outcomes
    }
    for side in sides:
        if side.outcomes:
            cost = [each.server_seconds_per_gigabyte for each in side.outcomes]
            user = [each.server_user_seconds_per_gigabyte for each in side.outcomes]
            table.add(
                side.server,
                speeds[side.server].text(0),
                speeds[side.server].per(speeds[sides[1].server]).text(),
                Spread.of(cost).text(),
                Spread.of(user).text(),
            )
    report.tables.append(table)
    return speeds[sides[0].server].per(speeds[sides[1].server])


def _count_copies(effort: Effort, report: Report) -> None:
    """Trace one reading of a log and add up the bytes by system call."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(temporary_directory())
        node = stack.enter_context(MoldauNode(directory, is_pinned=True))
        node.connect().socket.close()
        order = _filled(node, effort)
        with copied_bytes.counted(node.pid, directory / "trace") as moved:
            outcome = _read(order)
    table = Table(
        ("system call", "bytes", "share of the record bytes"),
        f"System calls of the node while {outcome.data_bytes:,} bytes of records were fetched "
        f"in {outcome.request_count:,} requests of 1 MiB:",
    )
    for call, byte_count in moved.most_common():
        if byte_count:
            table.add(call, f"{byte_count:,}", f"{byte_count / outcome.data_bytes:.4f}")
    report.tables.append(table)
