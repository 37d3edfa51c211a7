"""Idempotent producers and consumers of unmodified confluent-kafka that work while brokers suffer.

Owns their threads and the ledger of what was sent. Must not: retry anything itself, or look into a
broker; what librdkafka does by its own defaults is what is tested. Invariant: a record is
acknowledged in the ledger only after its delivery report said so, without an error.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.kit.servers import connecting
from tests.system.processes import watermarks
from tests.system.replication.checker import ReadRecord, SentLedger, value_of

TICK_S: Final = 0.02
POLL_S: Final = 0.2
READ_COUNT: Final = 500
#: Longer than any fault: giving up is a result, not a way to get along.
MESSAGE_TIMEOUT_MS: Final = 300_000
#: What a producer may have on its way; a full queue makes the load wait.
QUEUE_RECORD_LIMIT: Final = 5_000

#: A consumer that gets one of these has lost what it had read.
BROKEN_PROMISES: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)

#: How often a reader of replicas may be thrown back, before it counts as a broken promise.
MOST_THROWN_BACK: Final = 1_000
#: How long closing a consumer may take; everything has been read by then. librdkafka 2.16 has been
#: seen to wait for its own threads for ever.
CLOSE_S: Final = 30.0


class Runner(Protocol):
    """Calls a function where the cluster can be reached (a network namespace's thread)."""

    def __call__(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """The function's own result."""


def here(function: Callable[..., Any], /, *arguments: Any) -> Any:
    """The Runner for a cluster on this machine's own network."""
    return function(*arguments)


class LoadProducer:
    """One producer with keys of its own, at a steady rate.

    Args:
        run: where its sockets belong.
        keys: already announced to the ledger.
        rate: records per second.
    """

    def __init__(
        self,
        run: Runner,
        bootstrap: str,
        topic: str,
        ledger: SentLedger,
        keys: list[bytes],
        rate: float,
        dice: random.Random,
    ) -> None:
        self.complaints: list[str] = []
        self.longest_stall_s = 0.0
        self._run_in = run
        self._topic = topic
        self._ledger = ledger
        self._keys = keys
        self._rate = rate
        self._random = dice
        self._stop = threading.Event()
        self._left_count = 0
        self._flush_deadline_s = 0.0
        self._config = {
            **connecting(bootstrap),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": MESSAGE_TIMEOUT_MS,
            "queue.buffering.max.messages": QUEUE_RECORD_LIMIT,
            "error_cb": self._complain,
            "log_level": 0,
        }
        self._thread = threading.Thread(target=run, args=(self._work,), name="load-producer")
        self._thread.start()

    def finish(self, deadline_s: float) -> int:
        """Send no more, wait for what is on its way; how many records were never answered."""
        self._flush_deadline_s = deadline_s
        self._stop.set()
        self._thread.join()
        return self._left_count

    def _work(self) -> None:
        producer = Producer(self._config)
        try:
            self._send_steadily(producer)
            self._left_count = producer.flush(self._flush_deadline_s)
        except KafkaException as error:  # a fatal one: it takes nothing any more
            self.complaints.append(f"producer: {error}")
            self._left_count = len(producer)

    def _send_steadily(self, producer: Producer) -> None:
        owed = 0.0
        before = time.monotonic()
        while not self._stop.wait(TICK_S):
            now = time.monotonic()
            owed = min(owed + (now - before) * self._rate, self._rate)
            before = now
            while owed >= 1.0 and self._send(producer):
                owed -= 1.0
            producer.poll(0)

    def _send(self, producer: Producer) -> bool:
        if len(producer) >= QUEUE_RECORD_LIMIT - 1:
            return False
        key = self._random.choice(self._keys)
        sequence = self._ledger.hand(key)
        producer.produce(
            self._topic,
            value_of(key, sequence),
            key,
            partition=self._ledger.partitions[key],
            on_delivery=partial(self._delivered, key, sequence, time.monotonic()),
        )
        return True

    def _delivered(
        self, key: bytes, sequence: int, handed_s: float, error: Any, message: Any
    ) -> None:
        if error is not None:
            self._ledger.refuse(key, sequence, error.name())
            return
        self.longest_stall_s = max(self.longest_stall_s, time.monotonic() - handed_s)
        self._ledger.acknowledge(key, sequence, message.partition(), message.offset())

    def _complain(self, error: Any) -> None:
        if error.fatal():
            self.complaints.append(f"producer: {error}")


class LoadReader:
    """A consumer with assigned partitions that reads on from offset 0, whichever broker leads.

    Args:
        run: where its sockets belong.
        rack: `client.rack`, to read from the nearest replica; None from the leader.
    """

    def __init__(
        self, run: Runner, bootstrap: str, topic: str, partition_count: int, rack: str | None = None
    ) -> None:
        self.records: list[ReadRecord] = []
        self.complaints: list[str] = []
        self.errors: Counter[str] = Counter()
        self.positions = dict.fromkeys(range(partition_count), 0)
        self._config = {**consumer_config(bootstrap), **({"client.rack": rack} if rack else {})}
        self._thrown_back_count = 0
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=run, args=(self._work,), name="load-reader")
        self._thread.start()

    def has_read(self, ends: dict[int, int]) -> bool:
        """Whether it has got to these offsets; False for ever when it broke off."""
        return all(self.positions[each] >= end_offset for each, end_offset in ends.items())

    def finish(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        consumer = Consumer(self._config)
        try:
            consumer.assign([TopicPartition(self._topic, each, 0) for each in self.positions])
            while not self._stop.is_set():
                for message in consumer.consume(READ_COUNT, POLL_S):
                    if self._goes_back(consumer, message):
                        break  # what came behind it comes again
                    self._take(message)
        finally:
            closing = threading.Thread(target=consumer.close, daemon=True)
            closing.start()
            closing.join(CLOSE_S)
            if closing.is_alive():
                self.errors["librdkafka does not close"] += 1

    def _goes_back(self, consumer: Consumer, message: Any) -> bool:
        """A reader of replicas that a follower has thrown back reads on where it was.

        A follower that begins again answers "out of range", and the client has to ask the leader
        then. librdkafka 2.16 does not when it could not reach that follower for a second: it then
        believes that it fetches from the leader ("not migrating away from preferred replica").
        """
        error = message.error()
        if error is None or error.code() != KafkaError._AUTO_OFFSET_RESET:
            return False
        if "client.rack" not in self._config or self._thrown_back_count >= MOST_THROWN_BACK:
            return False
        self._thrown_back_count += 1
        self.errors["thrown back by a follower"] += 1
        consumer.assign([TopicPartition(self._topic, *each) for each in self.positions.items()])
        return True

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            partition, offset = message.partition(), message.offset()
            record = ReadRecord(partition, offset, message.key() or b"", message.value() or b"")
            self.records.append(record)
            self.positions[partition] = max(self.positions[partition], offset + 1)
        elif error.code() in BROKEN_PROMISES:
            self.complaints.append(f"consumer: partition {message.partition()}: {error}")
        else:
            self.errors[error.name()] += 1


class Load:
    """Use as a context: producers and readers of one topic, from its first record on."""

    def __init__(
        self,
        run: Runner,
        bootstrap: str,
        topic: str,
        *,
        partition_count: int,
        producer_count: int,
        keys_per_producer: int,
        rate: float,
        reader_racks: tuple[str | None, ...] = (None,),
        seed: int = 0,
    ) -> None:
        self.ledger = SentLedger()
        self._run = run
        self._bootstrap = bootstrap
        self._topic = topic
        self._partition_count = partition_count
        self._rate = rate / producer_count
        self._seed = seed
        self._reader_racks = reader_racks
        self._key_sets = [
            [b"p%d-k%d" % (producer, key) for key in range(keys_per_producer)]
            for producer in range(producer_count)
        ]
        keys = [key for key_set in self._key_sets for key in key_set]
        for number, key in enumerate(keys):
            self.ledger.add_key(key, number % partition_count)
        self.producers: list[LoadProducer] = []
        self.readers: list[LoadReader] = []

    def __enter__(self) -> Self:
        self.readers = [
            LoadReader(self._run, self._bootstrap, self._topic, self._partition_count, rack)
            for rack in self._reader_racks
        ]
        self.producers = [
            LoadProducer(
                *(self._run, self._bootstrap, self._topic, self.ledger, keys, self._rate),
                random.Random(f"{self._seed}-load-{number}"),
            )
            for number, keys in enumerate(self._key_sets)
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.finish_producers(0.0)
        for reader in self.readers:
            reader.finish()

    def finish_producers(self, deadline_s: float) -> int:
        """Stop sending; how many records were never answered."""
        return sum(producer.finish(deadline_s) for producer in self.producers)

    @property
    def longest_stall_s(self) -> float:
        """The longest time between handing a record over and its acknowledgement."""
        return max((producer.longest_stall_s for producer in self.producers), default=0.0)

    @property
    def complaints(self) -> list[str]:
        """The errors that no client may ever get in these circumstances."""
        told = [text for producer in self.producers for text in producer.complaints]
        return told + [text for reader in self.readers for text in reader.complaints]


def consumer_config(bootstrap: str) -> dict[str, Any]:
    """A consumer that trusts no broker: CRCs are checked, an offset that is gone is an error."""
    return {
        **connecting(bootstrap),
        "group.id": "unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": 100,
        "log_level": 0,
    }


def end_offsets(bootstrap: str, topic: str, partition_count: int) -> dict[int, int]:
    """Each partition's high watermark, as its leader says."""
    consumer = Consumer(consumer_config(bootstrap))
    try:
        return {
            number: watermarks(consumer, TopicPartition(topic, number))[1]
            for number in range(partition_count)
        }
    finally:
        consumer.close()


def read_to(
    bootstrap: str, topic: str, ends: dict[int, int], deadline_s: float
) -> list[ReadRecord]:
    """Everything below these offsets. Raises TimeoutError."""
    reader = LoadReader(here, bootstrap, topic, len(ends))
    end = time.monotonic() + deadline_s
    try:
        while not reader.has_read(ends):
            if time.monotonic() >= end or reader.complaints:
                raise TimeoutError(f"read to {reader.positions} of {ends}: {reader.complaints}")
            threading.Event().wait(TICK_S)
    finally:
        reader.finish()
    return [record for record in reader.records if record.offset < ends[record.partition]]
