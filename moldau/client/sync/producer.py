"""The blocking producer: `moldau.client.Producer` for threads, scripts and notebooks.

Owns what has to be done in the sending thread (serializers, checks, waiting for room) and the end
of transactions whose block was interrupted. Must not send. Invariants: records of one thread keep
their order; what a thread does after sending (flush, commit, close) comes after its records; queue
and producer together stay within `buffer.memory`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, Unpack

from moldau.client.config.keywords import ProducerSettings
from moldau.client.config.producer import ProducerConfig
from moldau.client.errors import BufferFull, ClientClosed, KafkaError, TransactionAborted
from moldau.client.producer.delivery import OnDelivery
from moldau.client.producer.partitioners import Partitioner
from moldau.client.producer.producer import Producer as AsyncProducer
from moldau.client.producer.record_checks import HeadersLike, check_partition, check_timestamp
from moldau.client.producer.transactions import OffsetsSource, TransactionContext
from moldau.client.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)
from moldau.client.serialization import Key, SerializerLike, Value
from moldau.client.sync.client import BlockingClient, face_of, quick_face_of
from moldau.client.sync.handover import RECORD_OVERHEAD_BYTES, Delivery, Handover, Record, size_of
from moldau.client.sync.portal import LOOK_S, Callers, Work

Result = TypeVar("Result")

HANDOVER_SHARE: Final = 8
MAX_HANDOVER_BYTES: Final = 1_048_576


class Producer(BlockingClient[AsyncProducer[Key, Value]], Generic[Key, Value]):
    """Writes records, from any number of threads; use as `with Producer("localhost:9092") as …`.

    Arguments, calls and errors are those of `moldau.client.Producer`; here they block. `send` waits
    for the acknowledgement; `send_nowait` does not, and is what many records are sent with.
    Serializers run in the sending thread; partitioners and `on_delivery` in the background thread,
    where they must be quick and must not make blocking calls.

    Up to 1 MiB of `buffer.memory` (at most an eighth) is for records on their way there.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "",
        *,
        config: ProducerConfig | Mapping[str, object] | None = None,
        key_serializer: SerializerLike[Key] | None = None,
        value_serializer: SerializerLike[Value] | None = None,
        partitioner: str | Partitioner | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        resolved = ProducerConfig.resolve(bootstrap_servers, config, settings)
        handover_bytes = min(MAX_HANDOVER_BYTES, resolved.buffer_memory // HANDOVER_SHARE)
        rest = {"buffer_memory": resolved.buffer_memory - handover_bytes}
        self._has_serializers = not (key_serializer is None and value_serializer is None)

        def make() -> AsyncProducer:
            producer = AsyncProducer(
                config=ProducerConfig.resolve((), resolved, rest),
                key_serializer=key_serializer,
                value_serializer=value_serializer,
                partitioner=partitioner,
            )
            self._handover = Handover(
                self._portal,
                producer,
                limit_bytes=max(1, handover_bytes),
                max_block_ms=resolved.max_block_ms,
                delivery_timeout_ms=resolved.delivery_timeout_ms,
            )
            return producer

        self._undoing: set[asyncio.Future[None]] = set()
        super().__init__(make)

    def _call(
        self, work: Work[Result], /, *arguments: object, callers: Callers | None = None
    ) -> Result:
        async def after_records() -> Result:
            await self._handover.emptied()
            while self._undoing:
                await asyncio.wait(self._undoing)
            return await work(*arguments)

        return super()._call(after_records, callers=callers)

    def _undo_left(self, block: _Block) -> None:
        """Abort the transaction of a block that was left without its end. From any thread."""
        if block.is_open:
            with contextlib.suppress(KafkaError):  # the loop has ended, or belongs to a parent
                self._portal.post(self._undo, block)

    def _undo(self, block: _Block) -> None:
        """Abort the block's transaction; later calls wait for that. On the loop."""
        undoing = asyncio.ensure_future(block.undo())
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)

    @property
    def _is_special(self) -> bool:
        """Whether records cannot be handed over as they are."""
        return self._closed or self._has_serializers or self._portal.forked

    # -- sending --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Value | None = None,
        *,
        key: Key | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is acknowledged, as `moldau.client.Producer.send`. Many
        records are sent faster with `send_nowait` and `flush`.
        """
        self._portal.check_may_block()
        acknowledged = _Acknowledgement()
        record = self._record(topic, value, key, headers, partition, timestamp_ms, acknowledged)
        size_bytes = size_of(record)
        while True:
            try:
                delivery = self._handover.put(record, size_bytes)
                break
            except BufferFull:
                self.wait_for_room()
        try:
            return acknowledged.wait()
        except (KeyboardInterrupt, SystemExit):
            self._handover.withdraw(delivery)
            raise

    def send_nowait(
        self,
        topic: str,
        value: Value | None = None,
        *,
        key: Key | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Send one record without waiting, as `moldau.client.Producer.send_nowait`.

        What only the background thread can find out (a partition that does not exist, a transaction
        that cannot go on) is the delivery's error, and `on_delivery`'s.

        Args:
            on_delivery: called in the background thread with the metadata or the error.

        Raises:
            BufferFull: there is no room now; `wait_for_room` waits for some.
            SerializationError: key, value or headers cannot be made bytes.
            ClientClosed: the producer has been closed.
        """
        data: Any = value
        key_data: Any = key
        if (
            type(data) is bytes
            and (key_data is None or type(key_data) is bytes)
            and not (headers or self._is_special)
            and partition is None
            and timestamp_ms is None
        ):
            size_bytes = RECORD_OVERHEAD_BYTES + len(data)
            if key_data is not None:
                size_bytes += len(key_data)
            now_ms = time.time_ns() // 1_000_000
            return self._handover.put(
                (topic, data, key_data, (), None, now_ms, on_delivery), size_bytes
            )
        record = self._record(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        return self._handover.put(record, size_of(record))

    def wait_for_room(self) -> None:
        """Return when there is room; at once if there is now. The calling thread's next
        `send_nowait` has room then, whatever other threads send in between.

        Raises:
            BufferFull: not within `max.block.ms`.
        """
        if not self._handover.has_room or self._closed or self._portal.forked:
            super()._call(self._handover.room)
        self._handover.grant()

    def _record(
        self,
        topic: str,
        value: object,
        key: object,
        headers: HeadersLike,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Record:
        if self._closed:
            raise ClientClosed("the producer has been closed")
        if self._portal.forked:
            self._portal.check()
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        else:
            check_timestamp(timestamp_ms)
        if partition is not None:
            check_partition(partition)
        if (
            (value is None or type(value) is bytes)
            and (key is None or type(key) is bytes)
            and not (headers or self._has_serializers)
        ):
            return (topic, value, key, (), partition, timestamp_ms, on_delivery)
        data, key_data, pairs = self._inner._prepared(topic, value, key, headers)
        # Copies: the caller may change its buffers while they wait.
        return (
            topic,
            None if data is None else bytes(data),
            None if key_data is None else bytes(key_data),
            tuple((name, None if part is None else bytes(part)) for name, part in pairs),
            partition,
            timestamp_ms,
            on_delivery,
        )

    send_arrow: Final = face_of(AsyncProducer.send_arrow)
    flush: Final = face_of(AsyncProducer.flush)
    partitions_for: Final = face_of(AsyncProducer.partitions_for)

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """A transaction around a block, as `moldau.client.Producer.transaction`: `with
        producer.transaction(): …`. Also aborted when the block is interrupted.
        """
        return Transaction(self)

    init_transactions: Final = face_of(AsyncProducer.init_transactions)
    begin_transaction: Final = quick_face_of(AsyncProducer.begin_transaction)
    commit_transaction: Final = face_of(AsyncProducer.commit_transaction)

    def abort_transaction(self) -> None:
        """Abort everything sent since `begin_transaction`, as
        `moldau.client.Producer.abort_transaction`.
        """
        super()._call(self._abort)

    async def _abort(self) -> None:
        self._drop_records()
        await self._inner.abort_transaction()

    def _drop_records(self) -> None:
        self._handover.fail_all(
            TransactionAborted("the transaction was aborted before this record was sent")
        )

    def send_offsets(
        self,
        offsets: OffsetsSource | Mapping[TopicPartition, OffsetAndMetadata | int],
        group: ConsumerGroupMetadata | str | None = None,
    ) -> None:
        """Commit a consumer's positions as part of the open transaction, as
        `moldau.client.Producer.send_offsets`; the consumer is a blocking one.
        """
        if not isinstance(offsets, Mapping) and group is None:
            group = offsets.group_metadata()
            offsets = offsets.positions()
        self._call(self._inner.send_offsets, offsets, group)

    prepare_transaction: Final = face_of(AsyncProducer.prepare_transaction)
    hand_over_transaction: Final = face_of(AsyncProducer.hand_over_transaction)
    complete_transaction: Final = face_of(AsyncProducer.complete_transaction)

    # -- the end --------------------------------------------------------------------------------

    def close(self, timeout_ms: float | None = None) -> None:
        """Send what is left and close, as `moldau.client.Producer.close`. Idempotent; after an
        interruption closing goes on in the background.
        """
        self._close(self._sent_and_closed, timeout_ms)

    async def _sent_and_closed(self, timeout_ms: float | None) -> None:
        limit_s = None if timeout_ms is None else timeout_ms / 1000
        began = asyncio.get_running_loop().time()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._inner._unless_hopeless(self._handover.emptied())
            if timeout_ms is not None:
                spent_s = asyncio.get_running_loop().time() - began
                timeout_ms = max(0.0, timeout_ms - spent_s * 1000)
            await self._inner.close(timeout_ms)
        finally:
            self._handover.fail_all(
                ClientClosed("the producer was closed before this record was sent")
            )


class Transaction:
    """`with producer.transaction():` see `Producer.transaction`.

    Ctrl-C may end `__exit__` before its first step, or come between `__enter__` and the block: then
    the transaction is aborted when this object is collected.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._block = _Block(producer._inner, producer._drop_records)
        weakref.finalize(self, producer._undo_left, self._block).atexit = False

    def __enter__(self) -> None:
        try:
            self._producer._call(self._block.begin)
        except BaseException:  # Ctrl-C; it may have begun
            self._producer._undo_left(self._block)
            raise

    def __exit__(self, kind: object, value: BaseException | None, _: object) -> None:
        if kind is None:
            self._producer._call(self._block.end, None)
        elif not self._producer._portal.ended:  # which closed the producer, and aborted it so
            BlockingClient._call(self._producer, self._block.end, value)


class _Block:
    """A transaction's block, on the loop."""

    def __init__(self, producer: AsyncProducer, drop_records: Callable[[], None]) -> None:
        self._producer = producer
        self._drop_records = drop_records
        self._context: TransactionContext | None = None

    @property
    def is_open(self) -> bool:
        """Whether the block has begun and has not ended. From any thread."""
        return self._context is not None

    async def begin(self) -> None:
        context = self._producer.transaction()
        await context.__aenter__()
        self._context = context

    async def end(self, value: BaseException | None) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        if value is not None:
            self._drop_records()
        await context.__aexit__(None if value is None else type(value), value, None)

    async def undo(self) -> None:
        """Abort, unless the application has ended the transaction and begun another."""
        if self._context is not None and self._context.is_latest:
            await self.end(TransactionAborted("the transaction's block was interrupted"))


class _Acknowledgement:
    """Lets a thread wait for one record; the loop calls it with the outcome."""

    __slots__ = ("_error", "_lock", "_metadata")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._metadata: RecordMetadata | None = None
        self._error: Exception | None = None

    def __call__(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self._metadata = metadata
        self._error = error
        self._lock.release()

    def wait(self) -> RecordMetadata:
        """Block until the record is acknowledged. Raises: the record's error"""
        while not self._lock.acquire(timeout=LOOK_S):  # a signal just before would not wake it
            continue
        if self._error is not None:
            raise self._error
        assert self._metadata is not None
        return self._metadata
