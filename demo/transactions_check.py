"""Compares what read_committed sees of an output topic with what the input must have made.

Owns the verdict on one output. Must not: know what was killed. Invariant: every record is compared
byte for byte with one that is made of the input again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from demo.enrichment import OUTPUTS, Enrichment

READ_COUNT = 2_000
READ_S = 1.0
METADATA_S = 20.0
QUIET_LIMIT = 60
"""So many times nothing may come before a topic counts as unreadable."""


@dataclass(slots=True)
class Output:
    """What is in one output topic."""

    read_count: int = 0
    lost_count: int = 0
    doubled_count: int = 0
    altered_count: int = 0
    reordered_count: int = 0
    aborted_count: int = 0
    numbers: Counter[int] = field(default_factory=Counter)

    def is_exactly_once(self, input_count: int) -> bool:
        """Whether each input record has made exactly one record, in order within its key."""
        wrong = self.lost_count + self.doubled_count + self.altered_count + self.reordered_count
        return wrong == 0 and self.read_count == input_count


def check_output(bootstrap: str, topic: str, records: list[tuple[bytes, bytes]]) -> Output:
    """Read the topic to its end, and compare."""
    enrichment, which = Enrichment(), OUTPUTS.index(topic)
    output = Output()
    last: dict[tuple[bytes, str], int] = {}
    for key, value in read_topic(bootstrap, topic, "read_committed"):
        output.read_count += 1
        made = orjson.loads(value)
        number, carrier = made.get("n", -1), made.get("carrier", "")
        output.numbers[number] += 1
        expected = (
            enrichment.make(records[number][1])[which] if 0 <= number < len(records) else None
        )
        if expected is None or (expected.key, expected.value) != (key, value):
            output.altered_count += 1
        if last.get((key, carrier), -1) > number:
            output.reordered_count += 1
        last[key, carrier] = number
    output.lost_count = len(records) - len(output.numbers.keys() & set(range(len(records))))
    output.doubled_count = sum(count - 1 for count in output.numbers.values())
    everything = sum(1 for _ in read_topic(bootstrap, topic, "read_uncommitted"))
    output.aborted_count = everything - output.read_count
    return output


def read_topic(bootstrap: str, topic: str, isolation_level: str) -> Iterator[tuple[Any, Any]]:
    """Key and value of every record that is visible now."""
    for message in read_messages(bootstrap, topic, isolation_level):
        yield message.key(), message.value()


def read_messages(bootstrap: str, topic: str, isolation_level: str) -> Iterator[Message]:
    """Every record that is visible now, those of each partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        described = consumer.list_topics(topic, METADATA_S).topics[topic]
        waiting = set(described.partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in waiting])
        quiet = 0
        while waiting:
            messages = consumer.consume(READ_COUNT, READ_S)
            quiet = 0 if messages else quiet + 1
            if quiet > QUIET_LIMIT:
                raise TimeoutError(f"{topic}: partitions {sorted(waiting)} cannot be read")
            for message in messages:
                if message.error() is None:
                    yield message
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition())
    finally:
        consumer.close()
