"""From an Arrow table to acknowledged record batches.

Owns one `send_arrow`: it goes through the data slice by slice, encodes one batch at a time when
there is room for it, and collects what the brokers say. Must not keep rows or encoded bytes longer
than the producer's memory does. Invariants: rows of one partition are appended in their order, and
behind every record sent to it before; never more than one encoded batch is outside
`buffer.memory`; when a batch fails nothing more is appended, and the error is raised only when all
others have ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from moldau.client.arrow.delivery import ArrowDelivery, DeliveryLedger
from moldau.client.arrow.from_arrow import ArrowRows, read_rows
from moldau.client.arrow.grouping import (
    ANY_PARTITION,
    RowPartitioner,
    Rows,
    rows_by_partition,
    rows_by_topic,
)
from moldau.client.arrow.slices import ArrowData, slices
from moldau.client.errors import KafkaError, RecordTooLarge, SerializationError
from moldau.client.producer.appender import Appender
from moldau.client.producer.core.accumulator import Accumulator
from moldau.client.producer.core.batch import Outcome, ProducerBatch
from moldau.client.producer.core.queues import TopicQueues
from moldau.client.producer.partitioners import Partitioner, TopicPartitions
from moldau.client.records import TopicPartition
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    ColumnEncoder,
    records_section,
    write_header,
)
from moldau.runtime.clock import Clock

BUFFER_SHARE: Final = 4
"""A batch takes at most this part of `buffer.memory`, so that several can be on their way."""


class TopicSource(Protocol):
    """Where topics become known."""

    async def __call__(self, topic: str, partition_count: int = 1, /) -> TopicQueues:
        """The topic's queues, as soon as it has that many partitions.

        Raises: what `send` raises for a topic or partition that does not come up in time.
        """


class ArrowSender:
    """Sends Arrow data through a producer's accumulator.

    Args:
        topic_source: waits for a topic's metadata.
        partitioner: None for the built-in one; `ignore_keys` as `partitioner.ignore.keys`.
        check: raises when the producer takes nothing (more): closed, fenced, no transaction.
        refused: hears of the error of a row that is too large.
    """

    def __init__(
        self,
        appender: Appender,
        accumulator: Accumulator,
        clock: Clock,
        *,
        topic_source: TopicSource,
        partitioner: Partitioner | None,
        ignore_keys: bool,
        check: Callable[[], None],
        refused: Callable[[KafkaError], object],
    ) -> None:
        self._appender = appender
        self._accumulator = accumulator
        self._clock = clock
        self._topic_source = topic_source
        self._partitioner = partitioner
        self._ignore_keys = ignore_keys
        self._check = check
        self._refused = refused
        settings = accumulator.settings
        share = max(settings.buffer_memory_bytes // BUFFER_SHARE, 1)
        self._batch_bytes = min(settings.max_request_size_bytes, share)

    async def send(
        self, topic: str | None, data: ArrowData, partition: int | None = None
    ) -> ArrowDelivery:
        """Append all rows as there is room, then wait for every acknowledgement.

        Raises: ArrowMissing, SerializationError on data that cannot be sent, and whatever `send`
        raises. Batches that were appended before are delivered all the same; the error is the
        first one.
        """
        self._check()
        if partition is not None and partition < 0:
            raise SerializationError(f"partition {partition}: partitions are numbered from 0")
        sending = _Sending()
        try:
            async for batch in slices(data):
                rows = read_rows(batch, self._clock.now_ms())
                for name, chosen in rows_by_topic(rows, topic):
                    await self._send_topic(sending, name, rows, chosen, partition)
        except KafkaError:
            await sending.settle()
            raise
        await sending.settle()
        sending.raise_failure()
        return sending.ledger.delivery()

    async def _send_topic(
        self, sending: _Sending, name: str, rows: ArrowRows, chosen: Rows, partition: int | None
    ) -> None:
        known = await self._topic_source(name, 1 if partition is None else partition + 1)
        if partition is not None:
            groups = [(partition, chosen)]
        else:
            try:
                groups = self._groups(known, rows, chosen)
            except LookupError as error:
                # It may have been added since the metadata came.
                known = await self._topic_source(name, error.args[0] + 1)
                groups = self._groups(known, rows, chosen)
        for number, group in groups:
            await self._send_group(sending, known, number, rows, group)

    def _groups(self, known: TopicQueues, rows: ArrowRows, chosen: Rows) -> list[tuple[int, Rows]]:
        return rows_by_partition(
            rows,
            chosen,
            len(known.queues),
            ignore_keys=self._ignore_keys,
            partitioner=self._row_partitioner(known),
        )

    def _row_partitioner(self, known: TopicQueues) -> RowPartitioner | None:
        partitioner = self._partitioner
        if partitioner is None:
            return None
        count = len(known.queues)
        available = [queue.partition for queue in known.queues if queue.leader_id >= 0]
        partitions = TopicPartitions(count, available)
        chosen_by = partitioner

        def choose(key: bytes | None, value: bytes | None) -> int:
            partition = chosen_by(known.name, key, value, partitions)
            if not isinstance(partition, int) or not 0 <= partition < count:
                raise ValueError(
                    f"the partitioner chose {partition!r} for topic {known.name}, which has "
                    f"partitions 0 to {count - 1}"
                )
            return partition

        return choose

    async def _send_group(
        self, sending: _Sending, known: TopicQueues, partition: int, rows: ArrowRows, group: Rows
    ) -> None:
        """Rows of one partition (or of any), batch by batch."""
        settings = self._accumulator.settings
        encoder = ColumnEncoder(rows.columns, group.numbers)
        at = group.start
        while at < group.stop:
            await self._wait_for_bytes(self._batch_bytes)
            self._check()
            sending.raise_failure()
            out, header, at = encoder.next_batch(
                at,
                group.stop,
                max_batch_bytes=self._batch_bytes,
                timestamp_ms=self._clock.now_ms(),
                codec=settings.codec,
                compression_level=settings.compression_level,
            )
            if header.record_count == 1:
                self._check_size(out, header)
            while True:
                # Chosen only now: who was waited for may have lost its leader.
                now_ms = self._clock.monotonic_ms()
                queue = (
                    self._accumulator.sticky_queue(known, now_ms)
                    if partition == ANY_PARTITION
                    else known.queues[partition]
                )
                batch = self._accumulator.append_encoded(queue, out, header, now_ms)
                if batch is not None:
                    break
                await self._wait_for_bytes(len(out))
                self._check()
            sending.add(batch)
            self._appender.sender.wake()
            del out, batch
            # The sender shall come to it before the next one is encoded.
            await asyncio.sleep(0)

    def _check_size(self, out: bytearray, header: BatchHeader) -> None:
        """Of a batch with a single row, which may be of any size: as `send` does."""
        size_bytes = len(out)
        if header.is_compressed:
            write_header(out, header)
            size_bytes = BATCH_HEADER_SIZE + len(records_section(out, 0, header))
        settings = self._accumulator.settings
        for limit, name in (
            (settings.max_request_size_bytes, "max.request.size"),
            (settings.buffer_memory_bytes, "buffer.memory"),
        ):
            if size_bytes > limit:
                error = RecordTooLarge(f"a row takes {size_bytes} bytes, {name} allows {limit}")
                self._refused(error)
                raise error

    async def _wait_for_bytes(self, size_bytes: int) -> None:
        settings = self._accumulator.settings
        deadline_ms = self._clock.monotonic_ms() + settings.max_block_ms
        await self._appender.wait_for_bytes(size_bytes, deadline_ms)


class _Sending:
    """One call's batches that have no outcome yet, and what became of the others."""

    def __init__(self) -> None:
        self.ledger = DeliveryLedger()
        self._pending: deque[ProducerBatch] = deque()
        self._failure: Exception | None = None

    def add(self, batch: ProducerBatch) -> None:
        """One more batch is on its way."""
        self._pending.append(batch)
        while self._pending and all(leaf.is_done for leaf in _leaves(self._pending[0])):
            self._enter(self._pending.popleft())

    async def settle(self) -> None:
        """Wait until everything has its outcome."""
        while self._pending:
            batch = self._pending[0]
            while (leaf := _next_open(batch)) is not None:
                await _done(leaf)
            self._enter(self._pending.popleft())

    def raise_failure(self) -> None:
        """Raise what has failed first, if anything has."""
        if self._failure is not None:
            # Other records of the batch share the error: its traceback is nobody's.
            raise self._failure.with_traceback(None)

    def _enter(self, batch: ProducerBatch) -> None:
        for leaf in _leaves(batch):
            if leaf.error is not None:
                self._failure = self._failure or leaf.error
            else:
                partition = TopicPartition(leaf.topic, leaf.partition)
                assert isinstance(leaf, ProducerBatch), "batches are split into batches"
                self.ledger.add(partition, leaf.base_offset, leaf.record_count)


def _leaves(outcome: Outcome) -> Iterator[Outcome]:
    """Where the rows of a batch are now, in their order."""
    if outcome.is_replaced:
        for part in outcome.parts():
            yield from _leaves(part)
    else:
        yield outcome


def _next_open(batch: ProducerBatch) -> Outcome | None:
    return next((leaf for leaf in _leaves(batch) if not leaf.is_done), None)


async def _done(outcome: Outcome) -> None:
    """Until the outcome is set, or that of the first of its parts."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_outcome: Outcome, _index: int) -> None:
        if not future.done():
            future.set_result(None)

    outcome.when_done(0, wake)
    await future
