"""Updates of few keys by one producer under kill -9, and the check of what compaction leaves.

Owns the load (every record's value says which it is, so its offset is known), the kills, the look
at the processes' memory, and the reading back. Invariant: what is judged is read by a client from
the beginning, never from memory of what was sent where.
"""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.machine import resident_bytes
from moldau.cli.bench.figures import process_cpu_seconds
from moldau.protocol.types import TopicPartition as Partition
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.checkpoints import CLEANER_CHECKPOINT, read_offset_checkpoint
from moldau.testing import Cluster, wait_until

TOPIC: Final = "compacted"
CHUNK: Final = 10_000
SAMPLE_S: Final = 0.1
DELIVERY_S: Final = 120.0
TOMBSTONE: Final = -1
NOTHING: Final = -2


@dataclass
class MemorySamples:
    """Largest resident memory seen, in bytes, and the children's CPU in seconds."""

    broker_bytes: int = 0
    child_bytes: int = 0
    child_cpu_seconds: dict[int, float] = field(default_factory=dict)

    @property
    def cleaner_cpu_seconds(self) -> float:
        """Of all children there were, each as far as it was seen."""
        return sum(self.child_cpu_seconds.values())


class MemoryWatch:
    """Samples a node's processes in its own thread."""

    def __init__(self, pid: Callable[[], int | None]) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples = MemorySamples()

    def __enter__(self) -> MemorySamples:
        self._thread.start()
        return self.samples

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            pid = self._pid()
            if pid is None:
                continue
            try:
                self._sample(pid)
            except (OSError, ValueError, IndexError, AssertionError):
                continue  # a process that has just ended

    def _sample(self, pid: int) -> None:
        samples = self.samples
        samples.broker_bytes = max(samples.broker_bytes, resident_bytes(pid))
        for child in children_of(pid):
            samples.child_bytes = max(samples.child_bytes, resident_bytes(child))
            samples.child_cpu_seconds[child] = sum(process_cpu_seconds(child))


def children_of(pid: int) -> list[int]:
    """Processes whose parent it is (not every kernel lists them by parent)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


@dataclass(frozen=True)
class Remains:
    """What a reader from the beginning finds."""

    record_count: int
    moved_count: int
    """Records at another offset than they were written to, or in another order."""
    wrong_count: int
    """Keys whose newest record is not the newest that was written."""
    repeated_count: int
    """Records in the cleaned part that are not the newest of their key there."""
    tombstone_count: int
    """In the cleaned part."""


class Updates:
    """The producer, and what it has written of each key last."""

    def __init__(
        self, cluster: Cluster, key_count: int, *, seed: int, value_bytes: int, codec: str = "none"
    ) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._value_bytes = value_bytes
        self._keys = [b"key-%07d" % number for number in range(key_count)]
        self._numbers = {key: number for number, key in enumerate(self._keys)}
        self.newest = array("q", [NOTHING]) * key_count
        """By key: which record is its newest, or TOMBSTONE."""
        self.count = 0
        self.failures: list[Any] = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_server,
                "enable.idempotence": True,
                "linger.ms": 20,
                "batch.size": 256 * 1024,
                "compression.type": codec,
                "queue.buffering.max.messages": 200_000,
                "message.timeout.ms": int(DELIVERY_S * 1000),
                "reconnect.backoff.max.ms": 200,
                "delivery.report.only.error": True,
                "on_delivery": self._failed,
                "log_level": 0,
            }
        )

    def _failed(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error)

    def create_topic(self, **config: str) -> None:
        """One partition, compacted."""
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap_server})
        config = {"cleanup.policy": "compact", **config}
        topic = NewTopic(TOPIC, 1, 1, config=config)
        admin.create_topics([topic])[TOPIC].result(30)

    def send(self, count: int, *, tombstone_share: float = 0.0) -> None:
        """So many further updates of random keys."""
        choice, produce, newest = self._random.random, self._producer.produce, self.newest
        key_count, width = len(self._keys), self._value_bytes
        for _ in range(count):
            number = int(choice() * key_count)
            is_tombstone = tombstone_share > 0 and choice() < tombstone_share
            value = None if is_tombstone else (b"%d:" % self.count).ljust(width, b".")
            while True:
                try:
                    produce(TOPIC, value, self._keys[number], partition=0)
                    break
                except BufferError:
                    self._producer.poll(0.05)
            newest[number] = TOMBSTONE if is_tombstone else self.count
            self.count += 1
        self._producer.poll(0)

    def delete(self, numbers: Sequence[int]) -> None:
        """A tombstone for each of these keys."""
        for number in numbers:
            self._producer.produce(TOPIC, None, self._keys[number], partition=0)
            self.newest[number] = TOMBSTONE
            self.count += 1
        self._producer.poll(0)

    def fill(self, key_number: int, size_bytes: int) -> None:
        """About so many bytes of updates of one key: older segments become closed ones."""
        for _ in range(size_bytes // 10_000 + 1):
            value = b"%d:" % self.count + self._random.randbytes(10_000)
            self._producer.produce(TOPIC, value, self._keys[key_number], partition=0)
            self.newest[key_number] = self.count
            self.count += 1
        self.flush()

    def flush(self) -> None:
        """Everything is acknowledged on return."""
        assert self._producer.flush(DELIVERY_S) == 0
        assert not self.failures, self.failures[:3]

    def first_dirty_offset(self) -> int:
        """How far compaction says it came."""
        path = self._cluster.data_directory() / CLEANER_CHECKPOINT
        found = read_offset_checkpoint(OsFilesystem(1), str(path))
        return found.get(Partition(TOPIC, 0), 0)

    def log_bytes(self) -> int:
        """Bytes in the partition's log files."""
        directory = self._cluster.data_directory() / f"{TOPIC}-0"
        total = 0
        for path in directory.glob("*.log"):
            with suppress(FileNotFoundError):  # the cleaner has just replaced it
                total += path.stat().st_size
        return total

    def read_back(self) -> Remains:
        """Read everything from the beginning and compare."""
        clean_end = self.first_dirty_offset()
        newest = array("q", [NOTHING]) * len(self._keys)
        last_clean = array("q", [NOTHING]) * len(self._keys)
        record_count = moved = repeated = tombstones = 0
        last_offset = -1
        for key, value, offset in self._records():
            record_count += 1
            number = self._numbers[key]
            written = offset if value is None else int(value[: value.index(b":")])
            moved += written != offset or offset <= last_offset
            last_offset = offset
            newest[number] = TOMBSTONE if value is None else written
            if offset < clean_end:
                tombstones += value is None
                repeated += last_clean[number] != NOTHING
                last_clean[number] = offset
        wrong = sum(
            found != wanted and not (found == NOTHING and wanted == TOMBSTONE)
            for found, wanted in zip(newest, self.newest, strict=True)
        )
        return Remains(record_count, moved, wrong, repeated, tombstones)

    def _records(self) -> Any:
        consumer = Consumer(
            {
                "bootstrap.servers": self._cluster.bootstrap_server,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        try:
            where = TopicPartition(TOPIC, 0, OFFSET_BEGINNING)
            _, high = consumer.get_watermark_offsets(where, timeout=30)
            assert high == self.count, f"the log ends at {high}, {self.count} were written"
            consumer.assign([where])
            deadline = time.monotonic() + DELIVERY_S
            last_offset = -1
            while last_offset < high - 1:
                assert time.monotonic() < deadline, f"reading stopped at {last_offset} of {high}"
                for message in consumer.consume(CHUNK, timeout=0.5):
                    assert message.error() is None, message.error()
                    last_offset = message.offset()
                    yield message.key(), message.value(), last_offset
        finally:
            consumer.close()


def send_under_kills(
    updates: Updates,
    cluster: Cluster,
    count: int,
    kill_count: int,
    *,
    tombstone_share: float,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Send `count` updates; at `kill_count` moments spread over them the node is killed and started
    again, while the producer goes on.
    """
    kill_at = [count * (number + 1) // (kill_count + 1) for number in range(kill_count)]
    start = updates.count
    while updates.count - start < count:
        updates.send(min(CHUNK, count - (updates.count - start)), tombstone_share=tombstone_share)
        if kill_at and updates.count - start >= kill_at[0]:
            kill_at.pop(0)
            cluster.kill()
            cluster.restart()
        on_progress(updates.count - start)
    updates.flush()


def wait_until_clean(updates: Updates, from_offset: int, *, deadline_s: float) -> None:
    """Until compaction has looked at everything below `from_offset`."""
    wait_until(
        lambda: updates.first_dirty_offset() >= from_offset,
        deadline_s=deadline_s,
        what=f"compaction up to {from_offset}",
    )
