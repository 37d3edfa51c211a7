"""The way of records from many threads to the asyncio producer: a queue and one wake-up.

Owns the queue, its bound in bytes, and `Delivery`, the blocking face's promise of an
acknowledgement. Must not block; who waits does so elsewhere.
Invariant: records of one thread reach the producer in the order in which it handed them over; at
most `limit_bytes` and one record lie here; each delivery is settled exactly once, by the producer
or here.

A thread appends under a lock and wakes the loop only when nobody has since the loop last looked.
The loop takes everything there is at once. When the producer has no room the rest stays until it
has, and the threads' own room runs out behind it: that is the back-pressure.

The lock is held for a few assignments only, never while anything waits or calls the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from moldau.client.errors import BufferFull, DeliveryTimeout, KafkaError
from moldau.client.records import RecordMetadata

if TYPE_CHECKING:
    from moldau.client.producer.producer import Producer as AsyncProducer
    from moldau.client.sync.background_loop import BackgroundLoop

RECORD_OVERHEAD_BYTES: Final = 64
"""Counted for a record besides its key, value and headers."""


RETRY_S: Final = 0.005


class Delivery:
    """What will become of one record: its place in the log, or an error.

    Every method may be called from any thread, any number of times.
    """

    __slots__ = ("_handover", "_state")

    def __init__(self, handover: Handover, state: Any) -> None:
        self._handover = handover
        # The record as a tuple, then the producer's own delivery or an exception.
        self._state = state

    def done(self) -> bool:
        """Whether the outcome is known."""
        state = self._state
        if type(state) is tuple:
            return False
        return isinstance(state, Exception) or bool(state.done())

    def result(self) -> RecordMetadata:
        """Wait for the acknowledgement, at most the record's `delivery.timeout.ms`.

        Raises:
            KafkaError: the record was not delivered, or nobody knows whether it was.
        """
        if not self.done():
            self._handover.wait(self)
        return self._outcome()

    def exception(self) -> Exception | None:
        """Wait for the outcome; the error, or None when the record was acknowledged."""
        if not self.done():
            self._handover.wait(self)
        state = self._state
        error: Exception | None = state if isinstance(state, Exception) else state.exception()
        return error

    def _outcome(self) -> RecordMetadata:
        state = self._state
        if isinstance(state, Exception):
            raise state
        metadata: RecordMetadata = state.result()
        return metadata


class Handover:
    """Records between the threads that send and the loop that owns the producer."""

    def __init__(
        self,
        loop: BackgroundLoop,
        producer: AsyncProducer,
        *,
        limit_bytes: int,
        max_block_ms: float,
        delivery_timeout_ms: float,
    ) -> None:
        self._loop = loop
        self._producer = producer
        self._limit_bytes = limit_bytes
        self._max_block_s = max_block_ms / 1000
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._lock = threading.Lock()
        # Shared, under the lock.
        self._records: list[Delivery] = []
        self._held_bytes = 0
        self._is_awake = False
        # The loop's own.
        self._stalled: deque[Delivery] = deque()
        self._stall: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether a record would be taken now."""
        return self._held_bytes < self._limit_bytes

    def put(self, record: tuple[Any, ...], size_bytes: int) -> Delivery:
        """Take a record: what `_append_prepared` takes, and `size_bytes`. From any thread.

        Raises:
            BufferFull: there is no room; `room` waits for some.
        """
        delivery = Delivery(self, record)
        with self._lock:
            if self._held_bytes >= self._limit_bytes:
                raise BufferFull(
                    "there is no room for another record now: wait_for_room() waits until there "
                    "is, send() does so by itself"
                )
            self._held_bytes += size_bytes
            self._records.append(delivery)
            if self._is_awake:
                return delivery
            self._is_awake = True
        self._loop.post(self._take)
        return delivery

    def withdraw(self, delivery: Delivery) -> None:
        """Do not send this record, if it still lies here. From any thread."""
        with self._lock:
            if type(delivery._state) is tuple:
                delivery._state = _Withdrawn(delivery._state[-1])

    def wait(self, delivery: Delivery) -> None:
        """Block until the delivery is done. Raises: KafkaError: this thread must not block"""
        self._loop.call(self._settled, delivery)

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

        What comes after it in the calling thread's order comes after these records, therefore.
        """
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
            self._is_awake = self._stall is not None
        if self._stall is None:
            self._append(deque(records))
        else:
            self._stalled.extend(records)

    def _append(self, records: deque[Delivery]) -> None:
        """Give the producer as many as it has room for; the rest waits for more."""
        append = self._producer._append_prepared
        freed_bytes = 0
        while records:
            delivery = records[0]
            state = delivery._state
            if type(state) is not tuple:
                freed_bytes += state.size_bytes
                records.popleft()
                continue
            size_bytes = state[-1]
            try:
                delivery._state = append(*state[:-1])
            except BufferFull:
                break
            except Exception as error:  # noqa: BLE001 - the sender's; the loop's thread goes on
                self._fail(delivery, error)
            freed_bytes += size_bytes
            records.popleft()
        self._free(freed_bytes)
        if records:
            self._stalled = records
            if self._stall is None:
                self._stall = asyncio.get_running_loop().create_task(self._wait_out())

    async def _wait_out(self) -> None:
        """Until the producer has taken all that is stalled, or for delivery.timeout.ms nothing."""
        time = asyncio.get_running_loop().time
        try:
            deadline = time() + self._delivery_timeout_s
            while self._stalled:
                waiting_count = len(self._stalled)
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._next_room()
                        self._append(self._stalled)
                        if len(self._stalled) < waiting_count:
                            deadline = time() + self._delivery_timeout_s
                        else:  # there is room, but too little for this record
                            await asyncio.sleep(RETRY_S)
                except TimeoutError:
                    self._fail_stalled(
                        DeliveryTimeout(
                            "the producer had no room within delivery.timeout.ms: the brokers "
                            "take less than is sent, or cannot be reached"
                        )
                    )
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

    def _fail_stalled(self, error: KafkaError) -> None:
        freed_bytes = 0
        while self._stalled:
            delivery = self._stalled.popleft()
            state = delivery._state
            if type(state) is tuple:
                freed_bytes += state[-1]
                self._fail(delivery, error)
            else:
                freed_bytes += state.size_bytes
        self._free(freed_bytes)

    def _fail(self, delivery: Delivery, error: Exception) -> None:
        on_delivery = delivery._state[6]
        delivery._state = error
        if on_delivery is not None:
            on_delivery(None, error)

    def _free(self, freed_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= freed_bytes
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _passed_on(self, delivery: Delivery) -> None:
        while type(delivery._state) is tuple:
            await self._moved.wait()

    async def _settled(self, delivery: Delivery) -> None:
        await self._passed_on(delivery)
        if not isinstance(delivery._state, Exception):
            with contextlib.suppress(Exception):  # it is raised where the result is asked for
                await delivery._state


class _Withdrawn(KafkaError):
    """In place of a record that its sender no longer wants sent."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("the call that sent this record was interrupted before it was sent")
        self.size_bytes = size_bytes
