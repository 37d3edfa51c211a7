"""A task of the source: one range of offsets as Arrow batches, by a consumer that is kept.

Owns the loop from a lent consumer to Spark's rows, what it means when records do not come, and the
consumers that a worker's process keeps from task to task, since connecting takes longer than
reading: one per configuration, at most `MAX_KEPT`, closed when they have not been used for
`IDLE_S`, and when anything went wrong in a task. Must not decide which offsets are read (`planners`
does). Invariants: every visible record of the range comes exactly once, in order, and none outside
of it; the task ends when its position reaches the end, whether or not there are records up to it
(markers, aborted and compacted ones have offsets too); nothing waits longer than
`kafkaConsumer.pollTimeoutMs` without getting on; a consumer is lent to one task at a time, and a
kept one is paused and fetches nothing.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from moldau.client import (
    ConsumerConfig,
    KafkaError,
    LogTruncated,
    NoBrokerAvailable,
    NoOffsetForPartition,
    OffsetAndMetadata,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownTopicOrPartition,
)
from moldau.client.sync import Consumer
from moldau.protocol.types import ZERO_UUID, TopicPartition, uuid_to_base64
from moldau.spark_connector.core.ranges import Loss, Missing, OffsetRange
from moldau.spark_connector.errors import ReadStalled
from moldau.spark_connector.failures import cluster_errors, report
from moldau.spark_connector.source.options import TOPIC_ID_COLUMN, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS: Final = 10_000
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""About how large one Arrow batch may be that goes to Spark's Java side."""

LOOK_MS: Final = 1_000
"""How long nothing may come before the cluster is asked whether there is anything to wait for."""

COLUMNS_WITHOUT_HEADERS: Final = 7
MAX_KEPT: Final = 4
IDLE_S: Final = 60.0
CLOSE_TIMEOUT_MS: Final = 1_000

Key: TypeAlias = tuple[tuple[str, str], ...]


class KeptConsumers:
    """The consumers of one process: `make` connects one, which may lie unused for `idle_s`."""

    def __init__(
        self, make: Callable[[Mapping[str, str]], Consumer], idle_s: float = IDLE_S
    ) -> None:
        self._make = make
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Consumer] = OrderedDict()
        self._timer: threading.Timer | None = None
        self._process_id = os.getpid()

    @property
    def kept_count(self) -> int:
        return len(self._kept)

    @contextmanager
    def lend(self, settings: Mapping[str, str]) -> Iterator[Consumer]:
        """A consumer with these settings, for one task; a new one where none is kept.

        What it is assigned to and where it stands is whatever its last task left.
        """
        key = tuple(sorted(settings.items()))
        consumer = self._take(key) or self._make(settings)
        try:
            yield consumer
        except GeneratorExit:  # the task's rows are not wanted any more: nothing is wrong with it
            self._give_back(key, consumer)
            raise
        except BaseException:
            _close(consumer)
            raise
        self._give_back(key, consumer)

    def close_all(self) -> None:
        with self._lock:
            consumers = list(self._kept.values())
            self._kept.clear()
            self._restart_timer()
        for consumer in consumers:
            _close(consumer)

    def _take(self, key: Key) -> Consumer | None:
        with self._lock:
            if self._process_id != os.getpid():
                # After a fork: these are the parent's, and so are their sockets.
                self._process_id = os.getpid()
                self._kept = OrderedDict()
                self._timer = None
            consumer = self._kept.pop(key, None)
            self._restart_timer()
            return consumer

    def _give_back(self, key: Key, consumer: Consumer) -> None:
        surplus: list[Consumer] = []
        with self._lock:
            before = self._kept.pop(key, None)
            if before is not None:  # two tasks at once had one each
                surplus.append(before)
            self._kept[key] = consumer
            while len(self._kept) > MAX_KEPT:
                surplus.append(self._kept.popitem(last=False)[1])
            self._restart_timer()
        for each in surplus:
            _close(each)

    def _restart_timer(self) -> None:
        """Count the time from now on, as long as anything is kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._kept:
            self._timer = threading.Timer(self._idle_s, self.close_all)
            self._timer.daemon = True
            self._timer.start()


def _close(consumer: Consumer) -> None:
    # It holds nothing that is still needed: no group, no commits.
    with suppress(KafkaError, OSError):
        consumer.close(CLOSE_TIMEOUT_MS)


def point_to(
    consumer: Consumer, partition: TopicPartition, start_offset: int, topic_id: UUID
) -> None:
    """Have a lent consumer read this partition from there on.

    What it has fetched ahead in its last task is dropped, even if it stands there: the topic may
    have been deleted and created again since, and these would be records of the old one.

    Args:
        topic_id: of the topic that is to be read, whatever topic the consumer knows by its name;
            ZERO_UUID for the one that there is.
    """
    if consumer.assignment() != {partition}:
        consumer.assign([partition])
    known_id = None if topic_id == ZERO_UUID else topic_id
    consumer.seek(partition, OffsetAndMetadata(start_offset, topic_id=known_id))
    consumer.resume(partition)


kept_consumers: Final = KeptConsumers(
    lambda settings: Consumer(config=ConsumerConfig.from_properties(settings))
)
"""The consumers of this process."""


def consumer_settings(options: SourceOptions) -> dict[str, str]:
    """The settings of a task's consumer: the user's, and what the source needs.

    It never commits, never resets a position by itself and never creates a topic.
    """
    settings = {"allow.auto.create.topics": "false", **options.kafka}
    settings["enable.auto.commit"] = "false"
    settings["auto.offset.reset"] = "none"
    return settings


def read_range(
    options: SourceOptions,
    wanted: OffsetRange,
    topic_id: UUID,
    consumers: KeptConsumers = kept_consumers,
) -> Iterator[pa.RecordBatch]:
    """The records of a range, in batches whose schema is `schema_for`'s.

    Args:
        topic_id: of the topic that the range is of, no other of its name is read; ZERO_UUID for
            the one that there is.

    Raises:
        DataLoss: records of the range do not exist any more, and `failOnDataLoss` is true.
        ReadStalled: nothing came within `kafkaConsumer.pollTimeoutMs`.
        SparkConnectorError: what the cluster refuses.
    """
    with (
        cluster_errors(f"reading {wanted}"),
        consumers.lend(consumer_settings(options)) as consumer,
    ):
        reading = _Reading(options, consumer, wanted, topic_id)
        try:
            for batch in reading.batches():
                if not options.include_headers:
                    batch = batch.select(batch.schema.names[:COLUMNS_WITHOUT_HEADERS])
                if options.include_topic_id:
                    batch = with_topic_id(batch, reading.topic_id)
                yield from pieces(batch)
        finally:
            with suppress(KafkaError):  # after an error it is closed instead
                consumer.pause(wanted.topic_partition)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about `MAX_BATCH_BYTES`, without copying."""
    rows = batch.num_rows
    step = max(1, rows * MAX_BATCH_BYTES // max(batch.nbytes, 1))
    for first in range(0, rows, step):
        yield batch.slice(first, step)


def with_topic_id(batch: pa.RecordBatch, topic_id: UUID) -> pa.RecordBatch:
    """The batch with the column `topicId`; null where brokers have no ids."""
    import pyarrow as pa

    text = None if topic_id == ZERO_UUID else uuid_to_base64(topic_id)
    column = pa.repeat(pa.scalar(text, pa.string()), batch.num_rows)
    return batch.append_column(pa.field(TOPIC_ID_COLUMN, pa.string()), column)


class _Reading:
    """One range on its way. `position` only grows."""

    def __init__(
        self, options: SourceOptions, consumer: Consumer, wanted: OffsetRange, topic_id: UUID
    ) -> None:
        self._options = options
        self._consumer = consumer
        self._wanted = wanted
        self._topic_id = topic_id
        self._partition = wanted.topic_partition
        self._position = wanted.start_offset
        self._end_offset = wanted.end_offset

    @property
    def topic_id(self) -> UUID:
        """The id of the topic that is read: as planned, else as the consumer has found it."""
        if self._topic_id != ZERO_UUID:
            return self._topic_id
        found = self._consumer.positions().get(self._partition)
        return ZERO_UUID if found is None else found.topic_id or ZERO_UUID

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._seek()
        waiting_since_ms = _now_ms()
        while self._position < self._end_offset:
            before = self._position
            batch = self._poll(waiting_since_ms)
            if batch is not None and batch.num_rows:
                yield batch
                self._move(batch.column("offset")[-1].as_py() + 1)
            reached = self._consumer.positions().get(self._partition)
            if reached is not None:
                self._move(reached.offset)
            if self._position > before:
                waiting_since_ms = _now_ms()
            else:
                self._look(_now_ms() - waiting_since_ms)

    def _poll(self, waiting_since_ms: float) -> pa.RecordBatch | None:
        """The next records before the end; None when the log does not begin where it should."""
        left_ms = waiting_since_ms + self._options.poll_timeout_ms - _now_ms()
        try:
            batch = self._consumer.poll_arrow(
                min(MAX_ROWS, self._end_offset - self._position),
                timeout_ms=max(0.0, min(left_ms, LOOK_MS)),
            )
        except (OffsetOutOfRange, LogTruncated):
            self._pass_lost_records()
            return None
        except NoOffsetForPartition:
            # Every task seeks: only another topic of the same name takes that away. What another
            # task has left behind says nothing.
            if self._partition not in self._consumer.positions():
                self._lose(Missing.REPLACED, None, self._end_offset)
            return None
        return self._until_end(batch)

    def _seek(self) -> None:
        point_to(self._consumer, self._partition, self._position, self._topic_id)

    def _until_end(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows, offsets = batch.num_rows, batch.column("offset")
        if not rows or offsets[rows - 1].as_py() < self._end_offset:
            return batch
        # There are fewer records than offsets: the poll went past the end.
        count = bisect_left(range(rows), self._end_offset, key=lambda row: offsets[row].as_py())
        self._position = self._position if count else self._end_offset
        return batch.slice(0, count)

    def _move(self, position: int) -> None:
        self._position = max(self._position, position)

    def _pass_lost_records(self) -> None:
        """Go on where the log still has records, when it does not have the position any more."""
        beginning = self._bound(self._consumer.beginning_offsets)
        if beginning is None:
            self._lose(Missing.GONE, None, self._end_offset)
        elif beginning > self._position:
            self._lose(Missing.AGED_OUT, beginning, min(beginning, self._end_offset))
        else:
            # What stands at these offsets now, if anything, are not the records that were planned.
            end = self._bound(self._consumer.end_offsets)
            self._lose(Missing.CUT, end, self._end_offset)
        if self._position < self._end_offset:
            self._seek()

    def _look(self, waited_ms: float) -> None:
        """Ask the cluster, after a while without records, whether there is anything to wait for."""
        if waited_ms < min(LOOK_MS, self._options.poll_timeout_ms):
            return
        if self._partition not in self._consumer.positions():
            return  # the next poll says why
        try:
            end = self._bound(self._consumer.end_offsets, LOOK_MS)
        except KafkaError as error:
            if not (error.retriable or isinstance(error, (RequestTimeout, NoBrokerAvailable))):
                raise
            end = self._end_offset  # no broker answers, or none knows: wait on
        if end is None:
            self._lose(Missing.GONE, None, self._end_offset)
        elif end < self._end_offset:
            self._lose(Missing.CUT, end, self._end_offset)
        elif waited_ms >= self._options.poll_timeout_ms:
            raise ReadStalled(
                f"reading {self._wanted}: no records came from offset {self._position} on within "
                f"{self._options.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs), though the log "
                f"reaches to {end}: see whether the partition's leader can be reached from the "
                "workers, and serves fetches"
            )

    def _bound(
        self, look_up: Callable[..., Mapping[TopicPartition, int]], timeout_ms: float | None = None
    ) -> int | None:
        """The log's first or last offset; None when there is no log."""
        try:
            return look_up([self._partition], timeout_ms=timeout_ms)[self._partition]
        except UnknownTopicOrPartition:
            return None

    def _lose(self, missing: Missing, available_offset: int | None, go_on_at: int) -> None:
        loss = Loss(self._partition, missing, self._position, available_offset)
        report([loss], fail_on_data_loss=self._options.fail_on_data_loss)
        self._move(go_on_at)


def _now_ms() -> float:
    return time.monotonic() * 1_000
