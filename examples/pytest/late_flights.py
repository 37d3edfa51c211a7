"""Copies the flights that are late from one topic to another, with confluent-kafka.

python late_flights.py localhost:9092 flights late-flights
"""

from __future__ import annotations

import json
import sys
from typing import Self

from confluent_kafka import Consumer, KafkaException, Producer

LATE_MIN = 15


class LateFlights:
    """Reads as the group `late-flights`. A flight whose copy was not acknowledged is read again."""

    def __init__(self, servers: str, source: str, target: str) -> None:
        self._target = target
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "late-flights",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        self._consumer.subscribe([source])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def step(self, timeout_s: float = 1.0) -> bool:
        """Take the next flight; whether one came in time."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return False
        if message.error():
            raise KafkaException(message.error())
        if json.loads(message.value())["delay_min"] >= LATE_MIN:
            failures: list[object] = []
            self._producer.produce(
                self._target,
                message.value(),
                key=message.key(),
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            self._producer.flush()
            if failures:
                raise KafkaException(failures[0])
        self._consumer.commit(message, asynchronous=False)
        return True


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit("usage: late_flights.py SERVERS SOURCE TARGET")
    with LateFlights(*sys.argv[1:]) as program:
        while True:
            program.step()


if __name__ == "__main__":
    main()
