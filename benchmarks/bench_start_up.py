"""Start to the first acknowledged produce, one combined node on a fresh directory, beside Kafka.

What is included: from just before the process is spawned, through formatting the log directory, the
start, a topic created by request, until one acks=all batch of one record is acknowledged. Both are
asked by the same raw client, which knocks every 2 ms. Kafka formats in its own process; its
figure is given with and without that.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.nodes import BrokerNode, KafkaNode, MoldauNode, kafka_jars, temporary_directory
from benchmarks.wire import (
    CREATE_TOPICS_VERSION,
    CREATED,
    PRODUCE_VERSION,
    Wire,
    create_topic_request,
    single_record,
    until_accepted,
)
from moldau.cli.bench.figures import produce_request

TOPIC: Final = "first"
WITHOUT_KAFKA: Final = "Without Apache Kafka: its jars or Java are not here, or it was left out."
LIMIT_S: Final = 0.6
LIMIT_OF_KAFKA: Final = 0.25


def run(effort: Effort) -> Report:
    """Start both by turns, a fresh directory every time."""
    report = Report("Start to first acknowledged produce")
    with_kafka = effort.with_kafka and kafka_jars() is not None
    _start_once(MoldauNode)  # compiles what has changed, brings files into the page cache
    ours: list[float] = []
    listening: list[float] = []
    theirs: list[float] = []
    formatting: list[float] = []
    for _ in range(effort.rounds):
        _, listen_s, total_s = _start_once(MoldauNode)
        ours.append(total_s)
        listening.append(listen_s)
        if with_kafka:
            format_s, _, total_s = _start_once(KafkaNode)
            theirs.append(total_s)
            formatting.append(format_s)
    imports = [_seconds_of(["-c", "import moldau.node.foreground"]) for _ in range(effort.rounds)]
    table = Table(("what, seconds", "minimum / median / maximum"))
    total = Spread.of(ours)
    table.add("Moldau: spawn to first acknowledged produce", total.text())
    table.add("of that: until the port is open", Spread.of(listening).text())
    table.add("interpreter and imports alone", Spread.of(imports).text())
    report.tables.append(table)
    report.targets.append(at_most("start ≤ 0.6 s", total, LIMIT_S))
    if with_kafka:
        kafka, format_spread = Spread.of(theirs), Spread.of(formatting)
        table.add("Apache Kafka: format and start to first acknowledged produce", kafka.text())
        table.add("of that: formatting", format_spread.text())
        started = Spread(tuple(a - b for a, b in zip(theirs, formatting, strict=True)))
        ratio = total.per(kafka)
        table.add("ratio Moldau / Kafka", ratio.text(3))
        table.add("ratio Moldau / Kafka without its formatting", total.per(started).text(3))
        report.targets.append(
            at_most("start ≤ 1/4 of Apache Kafka's", ratio, LIMIT_OF_KAFKA, digits=3)
        )
    else:
        report.notes.append(WITHOUT_KAFKA)
    return report


def _start_once(kind: Callable[[Path], BrokerNode]) -> tuple[float, float, float]:
    """Seconds of formatting, until the port is open, and until the produce is acknowledged."""
    with temporary_directory() as directory:
        node = kind(directory)
        begin = time.perf_counter()
        node.format()
        formatted = time.perf_counter()
        node.launch()
        try:
            with node.connect() as wire:
                connected = time.perf_counter()
                _create_and_produce(wire)
                done = time.perf_counter()
            node.stop()
        finally:
            node.close()
    return formatted - begin, connected - begin, done - begin


def _create_and_produce(wire: Wire) -> None:
    """As a client does that wants it quickly: repeat until the answer is good."""
    until_accepted(
        lambda: wire.ask(create_topic_request(TOPIC, 1), CREATE_TOPICS_VERSION).topics[0], CREATED
    )
    request = produce_request(TOPIC, {0: single_record(b"value", b"key")})
    until_accepted(lambda: wire.ask(request, PRODUCE_VERSION).responses[0].partition_responses[0])


def _seconds_of(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True)
    return time.perf_counter() - begin
