"""`python -m demo.transactions_app BOOTSTRAP NAME`: consume, transform, produce, exactly once.

The application of `make demo-transactions`, as a user would write it with confluent-kafka: takes
up to 1,000 records from `flights`, produces two records for each, and commits them together with
the group's offsets in one transaction. Killed at any point, it goes on where its last committed
transaction ended. Ends with status 0 on SIGTERM, and with 1 when its producer was fenced or has
failed for good, or when librdkafka does not return from a call, which the stacks on stderr show;
the stage starts it again. Prints a line per committed transaction.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from demo.enrichment import INPUT, Enrichment

GROUP: Final = "enrichment"
CALL_S: Final = 10.0
STUCK_S: Final = 3 * CALL_S
"""A call that has not returned by then never will: librdkafka's issues 5456 and 5511."""
DEADLINE_S: Final = 120.0
POLL_S: Final = 0.5


class MustAbort(Exception):
    """This transaction cannot be committed; the next one may."""


class Application:
    """One process of the group."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._limit: int = options.records
        self._enrichment = Enrichment()
        self._is_over = False
        self._has_lost_partitions = False
        self._producer = Producer(
            {
                "bootstrap.servers": options.bootstrap,
                "transactional.id": f"{GROUP}-{options.name}",
                "transaction.timeout.ms": 30_000,
                "linger.ms": 5,
                "compression.type": "lz4",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        config: dict[str, Any] = {
            "bootstrap.servers": options.bootstrap,
            "group.id": GROUP,
            "group.protocol": options.protocol,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        if options.protocol == "classic":
            # Restarted under the same name it is the same member: no other member is disturbed.
            config["group.instance.id"] = options.name
            config["session.timeout.ms"] = 10_000
        self._consumer = Consumer(config)

    def stop(self) -> None:
        """End after the transaction that is under way."""
        self._is_over = True

    def run(self) -> None:
        """Until asked to stop. Raises: KafkaException when the producer is done for."""
        _again(partial(self._producer.init_transactions, CALL_S))
        self._consumer.subscribe([INPUT], on_revoke=self._revoked, on_lost=self._revoked)
        try:
            while not self._is_over:
                messages = self._take()
                if messages:
                    self._transact(messages)
        finally:
            self._consumer.close()

    def _revoked(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._has_lost_partitions = True

    def _take(self) -> list[Any]:
        """As many records as one transaction may have; fewer when there are no more now."""
        self._has_lost_partitions = False
        messages: list[Any] = []
        while len(messages) < self._limit and not self._is_over:
            found = self._consumer.consume(self._limit - len(messages), POLL_S)
            messages += [each for each in found if each.error() is None]
            if not found:
                break
        return messages

    def _transact(self, messages: list[Any]) -> None:
        producer = self._producer
        producer.begin_transaction()
        try:
            if self._has_lost_partitions:
                raise MustAbort
            for message in messages:
                for topic, key, value in self._enrichment.make(message.value()):
                    self._produce(topic, key, value)
            offsets = {each.partition(): each.offset() + 1 for each in messages}
            _again(
                partial(
                    producer.send_offsets_to_transaction,
                    [TopicPartition(INPUT, number, offset) for number, offset in offsets.items()],
                    self._consumer.consumer_group_metadata(),
                    CALL_S,
                )
            )
            _again(partial(producer.commit_transaction, CALL_S))
        except MustAbort:
            _again(partial(producer.abort_transaction, CALL_S))
            self._rewind(messages)
        else:
            print(f"committed {len(messages)}", flush=True)

    def _produce(self, topic: str, key: bytes, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                # Something before it has failed; the abort says whether that is for good.
                raise MustAbort from error

    def _rewind(self, messages: list[Any]) -> None:
        """Take the same records again, where they are still this member's."""
        firsts: dict[int, int] = {}
        for message in messages:
            firsts.setdefault(message.partition(), message.offset())
        for number, offset in firsts.items():
            # It fails where another member has the partition now, from the committed offset on.
            with contextlib.suppress(KafkaException):
                self._consumer.seek(TopicPartition(INPUT, number, offset))


def _again(call: Callable[[], Any]) -> None:
    """Repeat a call of the producer while that may help. One that does not return ends the process
    with status 1.

    Raises: MustAbort; KafkaException when the producer can do nothing any more.
    """
    end = time.monotonic() + DEADLINE_S
    while True:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        try:
            call()
            return
        except KafkaException as caught:
            error = caught.args[0]
            if error.txn_requires_abort():
                raise MustAbort from caught
            if not error.retriable() or time.monotonic() >= end:
                raise
        finally:
            faulthandler.cancel_dump_traceback_later()


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Enriches flights, exactly once.")
    parser.add_argument("bootstrap")
    parser.add_argument("name")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--records", type=int, default=1_000, help="per transaction, at most")
    application = Application(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: application.stop())
    try:
        application.run()
    except (KafkaException, MustAbort) as error:
        print(f"demo.transactions_app: {error!r}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
