"""Consumers and producers of confluent-kafka as tests of groups and transactions set them up.

Must not hide what the library does: no retries, no fix-ups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.kit.waiting import until

WAIT_S: Final = 60.0
POLL_S: Final = 0.05


def consumer_config(bootstrap: str, group: str, **config: Any) -> dict[str, Any]:
    """What every consumer here has; a classic member hears of rebalances with its heartbeats."""
    if config.get("group.protocol") != "consumer":
        config = {"heartbeat.interval.ms": 200, **config}
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
        # By default three refreshes: a member whose refresh takes longer would forget its topics.
        "metadata.max.age.ms": 60_000,
        "log_level": 0,
        **config,
    }


@contextmanager
def consuming(bootstrap: str, group: str, **config: Any) -> Iterator[Consumer]:
    """A consumer that leaves its group in the end."""
    consumer = Consumer(consumer_config(bootstrap, group, **config))
    try:
        yield consumer
    finally:
        consumer.close()


def owned(consumer: Consumer) -> set[tuple[str, int]]:
    """What a consumer has at the moment."""
    return {(each.topic, each.partition) for each in consumer.assignment()}


class Reading:
    """Several consumers polled in turn by one thread, and what they have read."""

    def __init__(self, *consumers: Consumer) -> None:
        self.consumers = list(consumers)
        self.messages: list[Message] = []
        self.errors: list[KafkaError] = []

    @property
    def values(self) -> list[bytes]:
        """Sorted, because partitions come in any order."""
        return sorted(message.value() or b"" for message in self.messages)

    def poll(self) -> None:
        """Each consumer once."""
        for consumer in self.consumers:
            for message in consumer.consume(500, POLL_S):
                error = message.error()
                if error is None:
                    self.messages.append(message)
                else:
                    self.errors.append(error)

    def until(self, is_reached: Callable[[], bool], *, what: str) -> None:
        """Poll until a condition holds."""

        def polled() -> bool:
            self.poll()
            return is_reached()

        until(polled, what=what, deadline_s=WAIT_S)

    def until_shared(self, topic: str, counts: Iterable[int]) -> list[set[tuple[str, int]]]:
        """Poll until the consumers own so many partitions each, all different; returns them."""
        wanted = sorted(counts)

        def is_shared() -> bool:
            shares = [owned(consumer) for consumer in self.consumers]
            everything = set().union(*shares)
            return (
                sorted(len(share) for share in shares) == wanted
                and len(everything) == sum(wanted)
                and {name for name, _ in everything} == {topic}
            )

        self.until(is_shared, what=f"{wanted} partitions of {topic} each")
        return [owned(consumer) for consumer in self.consumers]

    def until_read(self, count: int) -> None:
        """Poll until so many records have been read in all."""
        self.until(lambda: len(self.messages) >= count, what=f"{count} records")


def write_numbers(bootstrap: str, topic: str, numbers: Iterable[int], partitions: int) -> None:
    """One record each, its value the number, spread evenly over the partitions."""
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in numbers:
        producer.produce(
            topic,
            b"%06d" % number,
            partition=number % partitions,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def numbers(count: int, start: int = 0) -> list[bytes]:
    """The values `write_numbers` writes."""
    return [b"%06d" % number for number in range(start, start + count)]


def positions(consumer: Consumer) -> list[TopicPartition]:
    """The next offset of each partition a consumer has read from, ready to be committed."""
    return [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
