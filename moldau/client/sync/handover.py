"""The way of records from many threads to the asyncio producer: a queue and one wake-up.

Owns the queue, its bound in bytes, and `Delivery`, the blocking producer's promise of an
acknowledgement. Must not block: threads wait in the portal. Invariants: records of one thread reach
the producer in the order in which it handed them over; at most `limit_bytes` and one record lie
here; each delivery is settled exactly once, by the producer or here.

A thread appends under a lock and wakes the loop unless it has been woken since it last looked.
The loop takes everything there is at once. When the producer has no room the rest stays until it
has, and the threads' own room runs out behind it: that is the back-pressure.

The lock is held for a few assignments and the wake-up, never while anything waits or calls the
user. Ctrl-C may end `put` between any two of its steps, so no step relies on the next one:
  1. a record is put before it is counted; what is counted is counted again when the loop takes it
  2. the loop is woken before it is said to be awake; one wake-up too many does no harm
  3. a call that comes after records takes what lies here itself, woken or not
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from moldau.client.errors import BufferFull, DeliveryTimeout, KafkaError
from moldau.client.producer.delivery import Delivery as AsyncDelivery
from moldau.client.producer.delivery import OnDelivery, tell
from moldau.client.records import RecordHeaders, RecordMetadata

if TYPE_CHECKING:
    from moldau.client.producer.producer import Producer as AsyncProducer
    from moldau.client.sync.portal import ThreadPortal

RECORD_OVERHEAD_BYTES: Final = 64
"""Counted for a record besides its key, value and headers."""

RETRY_S: Final = 0.005

Record: TypeAlias = tuple[
    str, bytes | None, bytes | None, RecordHeaders, int | None, int, OnDelivery | None
]
"""Topic, value, key, headers, partition, timestamp_ms, on_delivery."""


class Delivery:
    """What will become of one record: its place in the log, or an error.

    Every method may be called from any thread, any number of times.
    """

    __slots__ = ("_handover", "_state")

    def __init__(self, handover: Handover, record: Record) -> None:
        self._handover = handover
        self._state: Record | AsyncDelivery | Exception = record

    @property
    def size_bytes(self) -> int:
        """What it counts while it lies in the handover."""
        state = self._state
        record = state.record if isinstance(state, _Withdrawn) else state
        assert isinstance(record, tuple)
        return size_of(record)

    def done(self) -> bool:
        """Whether the outcome is known."""
        state = self._state
        if isinstance(state, tuple):
            return False
        return isinstance(state, Exception) or state.done()

    def result(self) -> RecordMetadata:
        """Wait for the acknowledgement, at most the record's `delivery.timeout.ms`.

        Raises:
            KafkaError: the record was not delivered, or it is unknown whether it was.
        """
        if not self.done():
            self._handover.wait(self)
        state = self._settled_state()
        if isinstance(state, Exception):
            raise state
        return state.result()

    def exception(self) -> Exception | None:
        """Wait for the outcome; the error, or None when the record was acknowledged."""
        if not self.done():
            self._handover.wait(self)
        state = self._settled_state()
        return state if isinstance(state, Exception) else state.exception()

    def _settled_state(self) -> AsyncDelivery | Exception:
        state = self._state
        assert not isinstance(state, tuple)
        return state


class Handover:
    """Records between the threads that send and the loop that owns the producer."""

    def __init__(
        self,
        portal: ThreadPortal,
        producer: AsyncProducer,
        *,
        limit_bytes: int,
        max_block_ms: float,
        delivery_timeout_ms: float,
    ) -> None:
        self._portal = portal
        self._producer = producer
        self._limit_bytes = limit_bytes
        self._max_block_s = max_block_ms / 1000
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._lock = threading.Lock()
        # Shared, under the lock.
        self._records: list[Delivery] = []
        self._put_bytes = 0
        self._is_awake = False
        self._granted = threading.local()
        # The loop's own; others read how many bytes these are.
        self._stalled: deque[Delivery] = deque()
        self._taken_bytes = 0
        self._stall: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return self._put_bytes + self._taken_bytes < self._limit_bytes

    def put(self, record: Record, size_bytes: int) -> Delivery:
        """Take a record. From any thread. Raises: BufferFull when there is no room, and `grant` was
        not called before; `room` waits for some.
        """
        delivery = Delivery(self, record)
        with self._lock:
            held_bytes = self._put_bytes + self._taken_bytes
            if held_bytes >= self._limit_bytes and not self._use_grant():
                raise BufferFull(
                    "there is no room for another record now: wait_for_room() waits until there "
                    "is, send() does so by itself"
                )
            self._records.append(delivery)
            self._put_bytes += size_bytes
            if not self._is_awake:
                self._portal.post(self._take)
                self._is_awake = True
        return delivery

    def grant(self) -> None:
        """Take this thread's next record even if other threads have filled the room by then."""
        self._granted.to_me = True

    def _use_grant(self) -> bool:
        granted: bool = getattr(self._granted, "to_me", False)
        self._granted.to_me = False
        return granted

    def withdraw(self, delivery: Delivery) -> None:
        """Do not send this record, if it still lies here. From any thread."""
        with self._lock:
            record = delivery._state
            if isinstance(record, tuple):
                delivery._state = _Withdrawn(record)

    def wait(self, delivery: Delivery) -> None:
        self._portal.call(self._settled, delivery)

    async def room(self) -> None:
        """Return when there is room. On the loop. Raises: BufferFull: not within max.block.ms"""
        try:
            async with asyncio.timeout(self._max_block_s):
                while not self.has_room:
                    await self._moved.wait()
        except TimeoutError:
            raise BufferFull(
                f"there was no room for another record within {self._max_block_s * 1000:g} ms "
                "(max.block.ms): the brokers take less than is sent"
            ) from None

    async def emptied(self) -> None:
        """Return when the producer has all that was put before this call began. On the loop.

        So what the calling thread does next comes after these records, also when the wake-up for
        them (perhaps another thread's) is still to come.
        """
        self._take()
        for delivery in reversed(self._stalled):
            if type(delivery._state) is tuple:  # not withdrawn: the last of those
                await self._passed_on(delivery)
                return

    def fail_all(self, error: KafkaError) -> None:
        """Settle what still lies here with an error: the producer is gone. On the loop."""
        self._take()
        self._fail_stalled(error)

    def _take(self) -> None:
        with self._lock:
            records, self._records = self._records, []
            self._taken_bytes += self._put_bytes
            self._put_bytes = 0
            self._is_awake = self._stall is not None
        if self._stall is None:
            self._append([*self._stalled, *records])
        else:
            self._stalled.extend(records)

    def _append(self, records: Sequence[Delivery]) -> None:
        """Give the producer as many as it has room for; the rest waits for more."""
        producer = self._producer
        append = producer._appender.append
        count = 0
        try:
            producer._check()  # once: nothing can happen in between
        except Exception as error:  # noqa: BLE001 - the sender's
            self._stalled = deque(records)
            self._fail_stalled(error)
            return
        for delivery in records:
            state = delivery._state
            if type(state) is tuple:
                topic, value, key, headers, partition, timestamp_ms, on_delivery = state
                try:
                    placed = append(topic, value, key, headers, partition, timestamp_ms)
                except Exception as error:  # noqa: BLE001 - the sender's; the others go on
                    self._fail(delivery, error)
                    producer._appender.refused(error)
                else:
                    if placed is None:
                        break
                    delivery._state = placed
                    if on_delivery is not None:
                        placed.call_when_done(on_delivery)
            count += 1
        self._stalled = deque(records[count:] if count < len(records) else ())
        self._room_changed()
        if self._stalled and self._stall is None:
            self._is_awake = True  # until the stall is over, the loop needs no wake-up
            self._stall = asyncio.get_running_loop().create_task(self._wait_out())

    async def _wait_out(self) -> None:
        """Wait until the producer has taken all that is stalled, or nothing for
        delivery.timeout.ms.
        """
        time = asyncio.get_running_loop().time
        try:
            deadline = time() + self._delivery_timeout_s
            while self._stalled:
                waiting_count = len(self._stalled)
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._next_room()
                        self._append(list(self._stalled))
                        if len(self._stalled) < waiting_count:
                            deadline = time() + self._delivery_timeout_s
                        else:  # there is room, but too little for this record
                            await asyncio.sleep(RETRY_S)
                except TimeoutError:
                    error = DeliveryTimeout(
                        "the producer had no room within delivery.timeout.ms: the brokers take "
                        "less than is sent, or cannot be reached"
                    )
                    self._fail_stalled(error)
                    self._producer._appender.refused(error)
        finally:
            self._stall = None
        self._take()

    async def _next_room(self) -> None:
        while True:
            try:
                await self._producer.wait_for_room()
            except BufferFull:  # max.block.ms is over; the deadline here is another
                continue
            except KafkaError as error:
                self._fail_stalled(error)
            return

    def _fail_stalled(self, error: Exception) -> None:
        while self._stalled:
            delivery = self._stalled.popleft()
            if type(delivery._state) is tuple:  # not withdrawn
                self._fail(delivery, error)
        self._room_changed()

    def _fail(self, delivery: Delivery, error: Exception) -> None:
        record = delivery._state
        assert isinstance(record, tuple)
        on_delivery = record[-1]
        delivery._state = error
        if on_delivery is not None:
            tell(on_delivery, None, error)

    def _room_changed(self) -> None:
        """Count what still lies here, and wake the calls that wait for room or for a record."""
        self._taken_bytes = sum(each.size_bytes for each in self._stalled)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _passed_on(self, delivery: Delivery) -> None:
        while type(delivery._state) is tuple:
            await self._moved.wait()

    async def _settled(self, delivery: Delivery) -> None:
        await self._passed_on(delivery)
        state = delivery._settled_state()
        if not isinstance(state, Exception):
            with contextlib.suppress(Exception):  # it is raised where the result is asked for
                await state


class _Withdrawn(KafkaError):
    """The outcome of a record whose sender has withdrawn it."""

    def __init__(self, record: Record) -> None:
        super().__init__("the call that sent this record was interrupted before it was sent")
        self.record = record


def size_of(record: Record) -> int:
    """What a record counts while it lies here."""
    _, value, key, headers, _, _, _ = record
    size_bytes = RECORD_OVERHEAD_BYTES
    if value is not None:
        size_bytes += len(value)
    if key is not None:
        size_bytes += len(key)
    for name, data in headers:
        size_bytes += len(name) + RECORD_OVERHEAD_BYTES + (0 if data is None else len(data))
    return size_bytes
