"""From an Arrow table to acknowledged record batches.

Owns what `send_arrow` accepts and one such call: it goes through the data slice by slice (large
batches are cut, runs of small ones put together), encodes one record batch at a time when there is
room for it, and collects what the brokers say. Must not keep rows or encoded bytes longer than the
producer's memory does. Invariants: every row is sent once; rows of one partition are appended in
their order, and behind every record sent to it before; at most about `SLICE_BYTES` of small batches
are gathered; never more than one encoded batch is outside `buffer.memory`; when a batch fails
nothing more is appended, and the error is raised only when all others have ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeAlias, runtime_checkable

from moldau.client.arrow.from_arrow import ArrowRows, read_rows
from moldau.client.arrow.grouping import (
    ANY_PARTITION,
    RowPartitioner,
    Rows,
    rows_by_partition,
    rows_by_topic,
)
from moldau.client.arrow.library import pa
from moldau.client.errors import KafkaError, SerializationError
from moldau.client.producer.appender import Appender, chosen_by, partitions_of
from moldau.client.producer.core.batch import Outcome, ProducerBatch
from moldau.client.producer.core.queues import TopicQueues
from moldau.client.producer.delivery import when_done
from moldau.client.records import TopicPartition
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    ColumnEncoder,
    records_section,
    write_header,
)

BUFFER_SHARE: Final = 4
"""A batch takes at most this part of `buffer.memory`, so that several can be on their way."""

SLICE_BYTES: Final = 16 * 1024 * 1024
"""How much is grouped by partition at once, and read ahead of a stream."""
SMALL_BYTES: Final = 2 * 1024 * 1024
"""Smaller batches are put together: each by itself would make small record batches."""
MAX_SLICE_ROWS: Final = 2**20


@runtime_checkable
class ArrowStream(Protocol):
    """A table, or a stream of batches, of any library that speaks Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """See Arrow's documentation."""


@runtime_checkable
class ArrowArray(Protocol):
    """One record batch of any library that speaks Arrow's PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """See Arrow's documentation."""


ArrowData: TypeAlias = ArrowStream | ArrowArray
"""`pyarrow.Table`, `RecordBatch`, `RecordBatchReader`, a polars or pandas frame, and so on."""

TopicSource: TypeAlias = Callable[[str, int], Awaitable[TopicQueues]]
"""(topic, partition count) → the topic's queues, as soon as it has that many partitions. Raises
what `send` raises for a topic or partition that does not come up in time."""


@dataclass(slots=True)
class ArrowDelivery:
    """Where the rows of one `send_arrow` are.

    Attributes:
        row_count: rows that were acknowledged: all of them.
        partitions: by partition the ranges (offset of the first row, number of rows), in the order
            of the rows. The offset is -1 where the broker does not say: with acks=0, or when it
            recognised a retry as a duplicate.
    """

    row_count: int = 0
    partitions: Mapping[TopicPartition, tuple[tuple[int, int], ...]] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class ArrowSender:
    """Sends Arrow data through a producer's accumulator.

    Args:
        _topic_source: waits for a topic's metadata.
        _check: raises when the producer takes nothing: closed, fenced, no transaction.
    """

    _appender: Appender
    _topic_source: TopicSource
    _check: Callable[[], None]

    def __post_init__(self) -> None:
        self._accumulator = self._appender.accumulator
        self._clock = self._appender.clock
        config = self._accumulator.config
        share = max(config.buffer_memory // BUFFER_SHARE, 1)
        self._batch_bytes = min(config.max_request_size, share)

    async def send(
        self, topic: str | None, data: ArrowData, partition: int | None = None
    ) -> ArrowDelivery:
        """Append all rows as there is room, then wait for every acknowledgement. Batches that were
        appended before an error are delivered all the same. Raises: the first error; ArrowMissing,
        SerializationError, and whatever `send` raises.
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
        except Exception as error:
            if not sending.is_empty:
                # A part of the data is not to be committed, whatever has stopped the rest.
                self._appender.refused(error)
            if isinstance(error, KafkaError):
                await sending.settle()
            raise
        await sending.settle()
        sending.raise_failure()
        return sending.delivery()

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
            ignore_keys=self._appender.ignore_keys,
            partitioner=self._row_partitioner(known),
        )

    def _row_partitioner(self, known: TopicQueues) -> RowPartitioner | None:
        partitioner = self._appender.partitioner
        if partitioner is None:
            return None
        return partial(chosen_by, partitioner, known.name, partitions_of(known))

    async def _send_group(
        self, sending: _Sending, known: TopicQueues, partition: int, rows: ArrowRows, group: Rows
    ) -> None:
        """Rows of one partition (or of any), batch by batch."""
        config = self._accumulator.config
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
                codec=config.codec,
                compression_level=config.compression_level,
            )
            if header.record_count == 1:
                self._check_size(out, header)
            while True:
                # Chosen after the wait, in which a partition may have lost its leader.
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
            self._appender.wake()
            del out, batch
            # The sender runs before the next batch is encoded.
            await asyncio.sleep(0)

    def _check_size(self, out: bytearray, header: BatchHeader) -> None:
        """Check a batch with a single row as `send` does: it may have any size."""
        size_bytes = len(out)
        if header.is_compressed:
            write_header(out, header)
            size_bytes = BATCH_HEADER_SIZE + len(records_section(out, 0, header))
        self._appender.check_size("a row", size_bytes)

    async def _wait_for_bytes(self, size_bytes: int) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._accumulator.config.max_block_ms
        await self._appender.wait_for_record(size_bytes, deadline_ms)


class _Sending:
    """One call's batches that have no outcome yet, and the ranges of the acknowledged ones: those
    of one partition do not overlap, and those that follow each other are one.
    """

    def __init__(self) -> None:
        self._row_count = 0
        self._ranges: dict[TopicPartition, list[tuple[int, int]]] = {}
        self._pending: deque[ProducerBatch] = deque()
        self._failure: Exception | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no row has been appended."""
        return not (self._pending or self._row_count or self._failure)

    def add(self, batch: ProducerBatch) -> None:
        self._pending.append(batch)
        while self._pending and all(leaf.is_done for leaf in _leaves(self._pending[0])):
            self._enter(self._pending.popleft())

    async def settle(self) -> None:
        while self._pending:
            batch = self._pending[0]
            while open_leaves := [leaf for leaf in _leaves(batch) if not leaf.is_done]:
                await when_done(open_leaves[0], 0)
            self._enter(self._pending.popleft())

    def raise_failure(self) -> None:
        if self._failure is not None:
            # Other records of the batch share the error, so it carries no traceback of one.
            raise self._failure.with_traceback(None)

    def _enter(self, batch: ProducerBatch) -> None:
        for leaf in _leaves(batch):
            if leaf.error is not None:
                self._failure = self._failure or leaf.error
            else:
                partition = TopicPartition(leaf.topic, leaf.partition)
                assert isinstance(leaf, ProducerBatch), "batches are split into batches"
                self._acknowledged(partition, leaf.base_offset, leaf.record_count)

    def _acknowledged(self, partition: TopicPartition, base_offset: int, row_count: int) -> None:
        self._row_count += row_count
        ranges = self._ranges.setdefault(partition, [])
        if ranges:
            last_offset, last_count = ranges[-1]
            follows = base_offset == last_offset + last_count and last_offset >= 0
            if follows or base_offset == last_offset == -1:
                ranges[-1] = (last_offset, last_count + row_count)
                return
        ranges.append((base_offset, row_count))

    def delivery(self) -> ArrowDelivery:
        found = {partition: tuple(ranges) for partition, ranges in self._ranges.items()}
        return ArrowDelivery(self._row_count, found)


def _leaves(outcome: Outcome) -> Iterator[Outcome]:
    """Where the rows of a batch are now, in their order."""
    if outcome.is_replaced:
        for part in outcome.parts():
            yield from _leaves(part)
    else:
        yield outcome


async def slices(data: ArrowData) -> AsyncIterator[pa.RecordBatch]:
    """Record batches of the data, neither large nor needlessly small. A stream is read in a thread,
    as it may wait for its source. Raises: ArrowMissing, SerializationError.
    """
    concat_batches = pa.concat_batches
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = 0
    async for batch in _batches(data):
        size_bytes = batch.nbytes
        if gathered and (size_bytes >= SMALL_BYTES or gathered_bytes >= SLICE_BYTES):
            yield concat_batches(gathered) if len(gathered) > 1 else gathered[0]
            gathered, gathered_bytes = [], 0
        if size_bytes >= SMALL_BYTES:
            for piece in cut(batch, size_bytes):
                yield piece
        elif batch.num_rows:
            gathered.append(batch)
            gathered_bytes += size_bytes
    if gathered:
        yield concat_batches(gathered) if len(gathered) > 1 else gathered[0]


def cut(batch: pa.RecordBatch, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about `SLICE_BYTES` and at most 2^20 rows. Nothing is copied."""
    row_count = batch.num_rows
    piece_count = -(-size_bytes // SLICE_BYTES)
    rows = min(MAX_SLICE_ROWS, max(1, -(-row_count // piece_count)))
    for start in range(0, row_count, rows):
        piece = batch.slice(start, rows)
        # Rows of very different sizes: halves, until it is small enough or a single row.
        if piece.nbytes > 2 * SLICE_BYTES and piece.num_rows > 1:
            yield from cut(piece, piece.nbytes)
        else:
            yield piece


async def _batches(data: ArrowData) -> AsyncIterator[pa.RecordBatch]:
    if isinstance(data, pa.Table):
        for batch in data.to_batches():
            yield batch
    elif isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, ArrowStream):
        is_reader = isinstance(data, pa.RecordBatchReader)
        reader = data if is_reader else pa.RecordBatchReader.from_stream(data)
        while (batch := await asyncio.to_thread(_next_batch, reader)) is not None:
            yield batch
    elif isinstance(data, ArrowArray):
        yield pa.record_batch(data)
    else:
        raise SerializationError(
            f"{type(data).__name__} holds no Arrow data: a pyarrow Table, RecordBatch or "
            "RecordBatchReader is needed, or an object that exports itself as one"
        )


def _next_batch(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    # StopIteration cannot pass through a thread's future.
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
