"""From a record to its place in a batch: partitioning, holding back, room.

Owns the per-record path, the records that are held until the metadata has their partition, and the
callers that wait for room (`max.block.ms`). Must not send, or ask for metadata itself. Invariants:
records of one partition are appended in the order of the calls; a call that raises has appended
nothing; held records leave in the order in which they came, into batches or with an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from moldau.client.errors import (
    BufferFull,
    InvalidTopic,
    KafkaError,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from moldau.client.producer.core.accumulator import NEVER, Accumulator, Room
from moldau.client.producer.core.batch import Outcome
from moldau.client.producer.core.queues import PartitionQueue, TopicQueues
from moldau.client.producer.delivery import Delivery
from moldau.client.producer.partitioners import Partitioner, TopicPartitions
from moldau.client.producer.record_checks import check_bytes, check_topic, unfit
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    RecordHeaders,
    murmur2_partition,
    record_size_bound,
)
from moldau.runtime.clock import Clock
from moldau.runtime.signal import Signal

GRACE_MS: Final = 1_000.0
"""How much longer than `max.block.ms` held records wait: the metadata's error comes first."""

HELD_OVERHEAD_BYTES = BATCH_HEADER_SIZE + 64
"""What a held record takes besides its encoded size: a batch's header, in case it is alone in one,
and its objects."""


Record: TypeAlias = tuple[str, bytes | None, bytes | None, RecordHeaders, int | None, int]
"""Topic, value, key, headers, partition, timestamp_ms: the arguments of `append`."""


class HeldRecord(NamedTuple):
    """One record that waits for its partition."""

    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    reserved_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class HeldRecords(Outcome):
    """Held records of one topic, which fail at `expires_ms`; deliveries follow them into their
    batches.
    """

    expires_ms: float
    records: list[HeldRecord] = field(default_factory=list)

    @property
    def reserved_bytes(self) -> int:
        return sum(record.reserved_bytes for record in self.records)


@dataclass(eq=False, repr=False)
class Appender:
    """Appends records to the accumulator.

    Args:
        partitioner: None for the built-in one.
        _learn: called with the name of an unknown topic and the number of partitions that are
            needed, to request its metadata.
        _used: called with the name of a topic now and then, while it is used.
        refused: called with the error of records that no batch will have, unless their call may
            simply be made again: a transaction is incomplete without them.

    Attributes:
        wake, wake_by: the sender's, set by it.
    """

    accumulator: Accumulator
    clock: Clock
    partitioner: Partitioner | None
    _learn: Callable[[str, int], object]
    _used: Callable[[str], object]
    refused: Callable[[Exception], object]
    wake: Callable[[], None] = field(init=False)
    wake_by: Callable[[float], None] = field(init=False)
    held: dict[str, HeldRecords] = field(default_factory=dict)
    out_of_range: dict[str, HeldRecords] = field(default_factory=dict)
    _room_waiters: deque[_RoomWaiter] = field(default_factory=deque)
    _lets_pass: bool = False

    def __post_init__(self) -> None:
        self.ignore_keys: bool = self.accumulator.config.partitioner_ignore_keys
        self._topics = self.accumulator.topics
        self._chooses_by_key = self.partitioner is None

    # -- one record ------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: RecordHeaders,
        partition: int | None,
        timestamp_ms: int,
    ) -> Delivery | None:
        """Append a record; None when there is no room. Raises: RecordTooLarge; SerializationError
        when key, value or headers are not bytes.
        """
        known = self._topics.get(topic)
        outcome: Outcome | None
        if known is None or (partition is not None and partition >= len(known.queues)):
            held = self.held if known is None else self.out_of_range
            record = (topic, value, key, headers, partition, timestamp_ms)
            outcome, index = self._hold(held, record)
        else:
            if partition is not None:
                queue = known.queues[partition]
            elif self._chooses_by_key:
                if key is None or self.ignore_keys:
                    queue = known.sticky or self.accumulator.sticky_queue(
                        known, self.clock.monotonic_ms()
                    )
                else:
                    queue = known.queues[murmur2_partition(key, len(known.queues))]
            else:
                queue = known.queues[self._custom(known, key, value)]
            try:
                index = queue.appender.append(timestamp_ms, key, value, headers)
            except (TypeError, ValueError, BufferError, OverflowError) as error:
                raise unfit(error, key, value, headers) from error
            if index < 0:
                is_free = self._chooses_by_key and (key is None or self.ignore_keys)
                record_bytes = self._checked_size(key, value, headers)
                placed = self._make_room(
                    known, queue, record_bytes, is_free=is_free and partition is None
                )
                if placed is None:
                    return None
                queue = placed
                index = queue.appender.append(timestamp_ms, key, value, headers)
            outcome = queue.filling
        if outcome is None:
            return None
        return Delivery(
            outcome,
            index,
            timestamp_ms,
            -1 if key is None else len(key),
            -1 if value is None else len(value),
        )

    def _make_room(
        self, known: TopicQueues, queue: PartitionQueue, record_bytes: int, *, is_free: bool
    ) -> PartitionQueue | None:
        """Make room; returns the queue, another one if the choice is free, None without memory."""
        now_ms = self.clock.monotonic_ms()
        while True:
            room = self.accumulator.make_room(queue, record_bytes, now_ms)
            if room is Room.MADE:
                self._used(known.name)
                self.wake_by(now_ms + self.accumulator.config.linger_ms)
                return queue
            self.wake()
            if room is Room.NO_MEMORY:
                return None
            if is_free:
                queue = self.accumulator.sticky_queue(known, now_ms)

    def _checked_size(self, key: bytes | None, value: bytes | None, headers: RecordHeaders) -> int:
        check_bytes(key, value)
        try:
            record_bytes = record_size_bound(key, value, headers)
        except (TypeError, ValueError, AttributeError) as error:
            raise unfit(error, key, value, headers) from error
        self.check_size("the record", record_bytes + BATCH_HEADER_SIZE)
        return record_bytes

    def check_size(self, what: str, size_bytes: int) -> None:
        config = self.accumulator.config
        for limit, name in (
            (config.max_request_size, "max.request.size"),
            (config.buffer_memory, "buffer.memory"),
        ):
            if size_bytes > limit:
                refusal = RecordTooLarge(f"{what} takes {size_bytes} bytes, {name} allows {limit}")
                self.refused(refusal)
                raise refusal

    def check_topic(self, topic: str) -> None:
        try:
            check_topic(topic)
        except InvalidTopic as refusal:
            self.refused(refusal)
            raise

    def _custom(self, known: TopicQueues, key: bytes | None, value: bytes | None) -> int:
        assert self.partitioner is not None
        return chosen_by(self.partitioner, known.name, partitions_of(known), key, value)

    # -- records without a known partition -------------------------------------------------------

    def _hold(self, held: dict[str, HeldRecords], record: Record) -> tuple[HeldRecords | None, int]:
        """Keep a record until its partition is known; without a place when there is no room."""
        topic, value, key, headers, partition, timestamp_ms = record
        if topic not in held:
            self.check_topic(topic)
        self._checked_size(key, value, headers)
        # The caller may change its buffers while the record is held.
        key = None if key is None else bytes(key)
        value = None if value is None else bytes(value)
        size_bytes = held_size_bytes(key, value, headers)
        accumulator = self.accumulator
        if not accumulator.reserve(size_bytes):
            self.wake()
            return None, -1
        group = held.get(topic)
        if group is None:
            group = self._new_group(held, topic, partition)
            self.wake_by(group.expires_ms)
        index = len(group.records)
        group.records.append(
            HeldRecord(partition, timestamp_ms, key, value, tuple(headers), size_bytes)
        )
        return group, index

    def _new_group(
        self, held: dict[str, HeldRecords], topic: str, partition: int | None
    ) -> HeldRecords:
        # The request for the metadata gives up a little earlier, with a better error.
        limit_ms = self.accumulator.config.max_block_ms + GRACE_MS
        group = held[topic] = HeldRecords(topic, -1, self.clock.monotonic_ms() + limit_ms)
        self.accumulator.incomplete[group] = None
        self._learn(topic, 1 if held is self.held else (partition or 0) + 1)
        return group

    def topic_changed(self, topic: str) -> None:
        known = self._topics.get(topic)
        if known is None or not known.queues:
            return
        group = self.held.pop(topic, None)
        if group is not None:
            self._place(known, group)
        late = self.out_of_range.get(topic)
        if late is not None and any(
            record.partition is not None and record.partition < len(known.queues)
            for record in late.records
        ):
            del self.out_of_range[topic]
            self._place(known, late)

    def _place(self, known: TopicQueues, group: HeldRecords) -> None:
        accumulator = self.accumulator
        accumulator.release(group, group.reserved_bytes)
        places: list[tuple[int, Outcome, int]] = []
        for number, record in enumerate(group.records):
            places.append((number, *self._placed(known, record)))
        group.replace(places)
        group.records.clear()
        accumulator.replaced.append(group)
        self.wake()
        error = next((place.error for _, place, _ in places if place.error is not None), None)
        if error is not None:
            self.refused(error)  # last, since it may fail all records

    def _placed(self, known: TopicQueues, record: HeldRecord) -> tuple[Outcome, int]:
        """Append a held record; returns its batch and its index there."""
        accumulator = self.accumulator
        now_ms = self.clock.monotonic_ms()
        partition = record.partition
        try:
            if partition is None and self.partitioner is not None:
                partition = self._custom(known, record.key, record.value)
        except Exception as error:  # noqa: BLE001 - the application's partitioner
            return self._lost(known.name, error), 0
        if partition is not None and partition >= len(known.queues):
            return self._hold_again(known.name, record)
        is_free = False
        if partition is not None:
            queue = known.queues[partition]
        elif record.key is None or self.ignore_keys:
            is_free = True
            queue = accumulator.sticky_queue(known, now_ms)
        else:
            queue = known.queues[murmur2_partition(record.key, len(known.queues))]
        values = (record.timestamp_ms, record.key, record.value, record.headers)
        index = queue.appender.append(*values)
        size_bytes = record_size_bound(record.key, record.value, record.headers)
        while index < 0:
            room = accumulator.make_room(queue, size_bytes, now_ms, forced=True)
            if room is Room.BATCH_CLOSED and is_free:
                queue = accumulator.sticky_queue(known, now_ms)
            index = queue.appender.append(*values)
        assert queue.filling is not None
        return queue.filling, index

    def _hold_again(self, topic: str, record: HeldRecord) -> tuple[Outcome, int]:
        accumulator = self.accumulator
        group = self.out_of_range.get(topic)
        if group is None:
            group = self._new_group(self.out_of_range, topic, record.partition)
        accumulator.free_bytes -= record.reserved_bytes
        group.records.append(record)
        return group, len(group.records) - 1

    def _lost(self, topic: str, error: Exception) -> Outcome:
        outcome = Outcome(topic, -1)
        outcome.finish(error=error)
        self.accumulator.finished.append(outcome)
        return outcome

    def expire_held(self, now_ms: float) -> float:
        """Fail the records that were held for too long; returns when the next ones expire."""
        next_ms = NEVER
        for groups in (self.held, self.out_of_range):
            for topic in list(groups):
                group = groups.get(topic)
                if group is None:
                    continue  # it has failed together with an earlier one's transaction
                if group.expires_ms <= now_ms:
                    partition = group.records[0].partition if groups is self.out_of_range else None
                    self.fail_held(topic, self._unknown(topic, partition), groups)
                else:
                    next_ms = min(next_ms, group.expires_ms)
        return next_ms

    def _unknown(self, topic: str, partition: int | None) -> UnknownTopicOrPartition:
        what = f"topic {topic}" if partition is None else f"partition {partition} of topic {topic}"
        return UnknownTopicOrPartition(
            f"{what} did not come up within max.block.ms={self.accumulator.config.max_block_ms}:"
            " create it, or check the name"
        )

    def fail_held(
        self, topic: str, error: Exception, groups: dict[str, HeldRecords] | None = None
    ) -> None:
        group = (self.held if groups is None else groups).pop(topic, None)
        if group is not None:
            group.finish(error=error)
            self.accumulator.finished.append(group)
            self.accumulator.release(group, group.reserved_bytes)
            group.records.clear()
            self.refused(error)
            self.wake()

    def fail_unknown(self, topic: str, partition_count: int, error: KafkaError) -> None:
        self.fail_held(topic, error)
        if partition_count > 1:
            self.fail_held(topic, error, self.out_of_range)

    def learn_more(self, topic: str) -> None:
        late = self.out_of_range.get(topic)
        if late is not None:
            self._learn(topic, min(record.partition or 0 for record in late.records) + 1)
        elif topic in self.held:
            self._learn(topic, 1)

    def fail_all(self, error: Exception) -> None:
        """Fail all that is in no batch: held records, and the calls that wait for room."""
        self.turn_away(error)
        for groups in (self.held, self.out_of_range):
            for topic in list(groups):
                self.fail_held(topic, error, groups)

    # -- room ------------------------------------------------------------------------------------

    async def wait_for_bytes(self, size_bytes: int, deadline_ms: float) -> None:
        """Wait until `size_bytes` of `buffer.memory` are free; callers are served in their order.
        Raises: BufferFull when they are not by the deadline; the error of `turn_away`.
        """
        accumulator = self.accumulator
        if not self._room_waiters and accumulator.free_bytes >= size_bytes:
            return
        waiter = _RoomWaiter(size_bytes, Signal(self.clock))
        self._room_waiters.append(waiter)
        accumulator.hurries += 1
        self.wake()
        try:
            while waiter.refusal is None:
                if self._room_waiters[0] is waiter and accumulator.free_bytes >= size_bytes:
                    return
                remaining_ms = deadline_ms - self.clock.monotonic_ms()
                if remaining_ms <= 0:
                    raise self.buffer_full(accumulator.config.max_block_ms)
                await waiter.turn.wait(remaining_ms)
            # The callers share the error: without this its traceback would grow.
            raise waiter.refusal.with_traceback(None)
        finally:
            accumulator.hurries -= 1
            self._room_waiters.remove(waiter)
            self.room_changed()

    async def wait_for_record(self, size_bytes: int, deadline_ms: float) -> None:
        """As `wait_for_bytes`, for records that are given up when there is no room in time."""
        try:
            await self.wait_for_bytes(size_bytes, deadline_ms)
        except Exception as error:
            self.refused(error)
            raise

    def turn_away(self, error: Exception) -> None:
        """Fail every call that waits for room now, however much there will be."""
        for waiter in self._room_waiters:
            waiter.refusal = waiter.refusal or error
            waiter.turn.set()

    def let_pass(self) -> None:
        """Let the caller's records pass the other waiting callers until it awaits something, since
        it has waited for its turn.
        """
        self._lets_pass = True
        asyncio.get_running_loop().call_soon(self._end_passing)

    def _end_passing(self) -> None:
        self._lets_pass = False

    @property
    def is_waited_for(self) -> bool:
        """Whether a record would overtake others that wait for room."""
        return bool(self._room_waiters) and not self._lets_pass

    def room_changed(self) -> None:
        """Wake the first waiting caller if there is enough memory for it."""
        waiters = self._room_waiters
        if waiters and self.accumulator.free_bytes >= waiters[0].size_bytes:
            waiters[0].turn.set()

    def buffer_full(self, waited_ms: float | None) -> BufferFull:
        """The error of a record for which there is no room, or none within the time."""
        total = self.accumulator.config.buffer_memory
        waited = "" if waited_ms is None else f" within max.block.ms={waited_ms:.0f}"
        return BufferFull(
            f"no room{waited}: buffer.memory={total} bytes are taken by records that wait for "
            "acknowledgements; send slower, wait_for_room(), or allow more"
        )


def partitions_of(known: TopicQueues) -> TopicPartitions:
    available = [queue.partition for queue in known.queues if queue.leader_id >= 0]
    return TopicPartitions(len(known.queues), available)


def chosen_by(
    partitioner: Partitioner,
    topic: str,
    partitions: TopicPartitions,
    key: bytes | None,
    value: bytes | None,
) -> int:
    """What the application's partitioner chooses. Raises: ValueError when there is no such
    partition.
    """
    partition = partitioner(topic, key, value, partitions)
    if not isinstance(partition, int) or not 0 <= partition < partitions.count:
        raise ValueError(
            f"the partitioner chose {partition!r} for topic {topic}, which has partitions "
            f"0 to {partitions.count - 1}"
        )
    return partition


@dataclass(slots=True, eq=False)
class _RoomWaiter:
    """One caller that waits for so much memory, or has been turned away."""

    size_bytes: int
    turn: Signal
    refusal: Exception | None = None


def held_size_bytes(key: bytes | None, value: bytes | None, headers: RecordHeaders) -> int:
    return record_size_bound(key, value, headers) + HELD_OVERHEAD_BYTES
