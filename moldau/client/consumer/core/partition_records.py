"""What was fetched of one partition, in order, from bytes to records.

Owns the chunks that came in responses, the batches that are being read, and the consumer's
position. Leaves out what a consumer must not see: control batches, records of aborted transactions
(read_committed, KIP-98), records before the position. Must not decide which partition is served
(`fetch_buffer` does), nor fetch. Invariants: `position` is the offset after the last record handed
out (or after invisible batches behind it), `fetch_offset` the one after the last batch held; a
fault is raised only when every record before it has been handed out, and again until the buffer is
cleared; a chunk's bytes stay valid as long as any part of it is referenced, and its whole response
counts until its last chunk is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from moldau.client.consumer.core.faults import CorruptRecords, RecordDeserializationError
from moldau.client.errors import KafkaError
from moldau.client.records import ConsumerRecord
from moldau.client.serialization import DeserializerLike, deserialize_function
from moldau.protocol.records import (
    BatchHeader,
    ControlRecordType,
    InvalidBatch,
    InvalidBatchReason,
    RecordCursor,
    RecordMaker,
    decode_control_key,
    decode_records,
    iter_batches,
    read_batch_header,
    verify_crc,
)
from moldau.protocol.records.batch import append_time_ms, records_section
from moldau.protocol.types import Buffer, TopicPartition

_UNKNOWN_EPOCH: Final = -1
_MAX_OFFSET: Final = 2**63 - 1

Deserialize: TypeAlias = Callable[[ConsumerRecord], None]
"""Replaces key and value of a record by what they mean. Raises RecordDeserializationError, and has
changed nothing then."""


def deserialize_with(
    key_deserializer: DeserializerLike | None, value_deserializer: DeserializerLike | None
) -> Deserialize | None:
    """What applies these to a record; None without either. Null stays None."""
    key_of = deserialize_function(key_deserializer)
    value_of = deserialize_function(value_deserializer)
    if key_of is None and value_of is None:
        return None

    def deserialize(record: ConsumerRecord) -> None:
        part = "key"
        try:
            key = record.key
            if key_of is not None and key is not None:
                key = key_of(record.topic, key)
            part = "value"
            if value_of is not None and record.value is not None:
                record.value = value_of(record.topic, record.value)
            record.key = key
        except Exception as error:
            raise RecordDeserializationError(record, part, error) from error

    return deserialize


class ReadOptions(NamedTuple):
    """What is the same for all partitions of a consumer; without `deserialize` keys and values stay
    bytes.
    """

    check_crcs: bool = True
    read_committed: bool = False
    deserialize: Deserialize | None = None


@dataclass(slots=True, eq=False)
class FetchedFrame:
    """The bytes of one response, which stay in memory as long as one of its chunks is held."""

    size_bytes: int
    chunk_count: int = 0


class Chunk:
    """One partition's part of one response: whole batches, or a fault in their place.

    Attributes:
        data: the batches; `at` is where the next one to open begins, `size_bytes` their first size.
        headers: those of the batches from there on, as far as they could be read.
        aborted: (first offset, producer id) of the aborted transactions in it, by first offset.
        fault: raises, or clears the partition's records; called when all before it was read.
    """

    __slots__ = ("aborted", "at", "data", "fault", "frame", "headers", "size_bytes")

    def __init__(
        self,
        data: memoryview,
        frame: FetchedFrame,
        aborted: deque[tuple[int, int]] | None = None,
        fault: Callable[[], None] | None = None,
    ) -> None:
        self.data: memoryview = data
        self.size_bytes: int = len(data)
        self.frame: FetchedFrame = frame
        self.aborted: deque[tuple[int, int]] | None = aborted
        self.fault: Callable[[], None] | None = fault
        self.headers: deque[BatchHeader] = deque()
        self.at: int = 0

    def cut_to_whole_batches(self) -> int | None:
        """Leave out an incomplete batch at the end. Returns the first offset behind the rest, None
        without a batch whose header can be read. Bytes that cannot be a batch stay: reading them
        says what is wrong.
        """
        end = 0
        header = None
        try:
            for position, header in iter_batches(self.data):
                self.headers.append(header)
                end = position + header.size_bytes
        except InvalidBatch as error:
            if error.reason is not InvalidBatchReason.TRUNCATED:
                end = len(self.data)
        if end < len(self.data):
            self.data = self.data[:end]
        return None if header is None or not self.headers else self.headers[-1].next_offset


class FrameMemory:
    """How many bytes of responses one consumer keeps in memory: `pinned_bytes` counts every
    response whole of which a chunk is held.
    """

    __slots__ = ("pinned_bytes",)

    def __init__(self) -> None:
        self.pinned_bytes: int = 0

    def hold(self, chunk: Chunk) -> None:
        """Count the chunk's whole response until every chunk of it is released."""
        if not chunk.frame.chunk_count:
            self.pinned_bytes += chunk.frame.size_bytes
        chunk.frame.chunk_count += 1

    def release(self, chunk: Chunk) -> None:
        chunk.frame.chunk_count -= 1
        if not chunk.frame.chunk_count:
            self.pinned_bytes -= chunk.frame.size_bytes


class OpenBatch:
    """A batch that is being read.

    Attributes:
        section: its records, decompressed, which `cursor` reads one after the other.
        next_offset: the first offset behind it and behind invisible batches that follow.
        closes: the chunks that are not needed once it has been read.
    """

    __slots__ = ("closes", "cursor", "header", "next_offset", "section")

    def __init__(self, header: BatchHeader, data: memoryview, at: int, position: int) -> None:
        """The batch at byte `at` of `data`, from offset `position` on. Raises: InvalidBatch."""
        self.header: BatchHeader = header
        self.section: Buffer = records_section(data, at, header)
        self.next_offset: int = header.next_offset
        self.closes: list[Chunk] = []
        self.rewind(position)

    def rewind(self, position: int) -> None:
        """Read on from the first record at or behind `position`. Raises: InvalidBatch."""
        header = self.header
        self.cursor: RecordCursor = RecordCursor(
            self.section,
            header.record_count,
            header.base_offset,
            header.base_timestamp_ms,
            append_time_ms(header),
        )
        if position > header.base_offset:
            self.cursor.skip_before(position)


@dataclass(slots=True, eq=False, repr=False)
class PartitionRecords:
    """The fetched records of one partition. Every chunk that is held counts in `_memory`."""

    topic_partition: TopicPartition
    _options: ReadOptions
    _memory: FrameMemory
    fetch_offset: int = 0
    held_bytes: int = 0
    _position: int = 0
    _position_epoch: int = _UNKNOWN_EPOCH
    _chunks: deque[Chunk] = field(default_factory=deque)
    _batches: deque[OpenBatch] = field(default_factory=deque)
    _visible: BatchHeader | None = None
    _aborted_producers: set[int] = field(default_factory=set)
    _run: list[ConsumerRecord] = field(default_factory=list)
    _run_iterator: Iterator[ConsumerRecord] | None = None
    _maker: RecordMaker[ConsumerRecord] | None = None
    _maker_for: tuple[int, int] | None = None

    # -- positions ------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        if self._run_iterator is None:
            return self._position
        taken = len(self._run) - self._left_in_run()
        return self._run[taken - 1].offset + 1 if taken else self._position

    @property
    def position_epoch(self) -> int:
        """The leader epoch of the last record handed out; -1 when it is not known."""
        if self._run_iterator is not None and len(self._run) > self._left_in_run():
            return self._run[0].leader_epoch
        return self._position_epoch

    @property
    def has_fault(self) -> bool:
        return bool(self._chunks) and self._chunks[0].fault is not None and not self._batches

    @property
    def ends_in_fault(self) -> bool:
        """Whether nothing can come behind what is held."""
        return bool(self._chunks) and self._chunks[-1].fault is not None

    @property
    def is_empty(self) -> bool:
        return not (self._chunks or self._batches)

    def restart(self, position: int, position_epoch: int) -> None:
        """Forget everything and read on from `position`, whose record before had that epoch."""
        self.clear()
        self._position = self.fetch_offset = position
        self._position_epoch = position_epoch

    def clear(self) -> None:
        """Drop everything that was not handed out; the position stays. An iterator of `start_run`
        ends.
        """
        position, self._position_epoch = self.position, self.position_epoch
        self._position = self.fetch_offset = position
        self._run.clear()
        self._run_iterator = None
        self._visible = None
        self._aborted_producers.clear()
        while self._batches:
            for chunk in self._batches.popleft().closes:
                self._let_go(chunk)
        while self._chunks:
            self._let_go(self._chunks.popleft())

    # -- filling --------------------------------------------------------------------------------

    def append(self, chunk: Chunk) -> bool:
        """Take what came for `fetch_offset`. False when it holds no whole batch and no fault."""
        if chunk.fault is None:
            next_offset = chunk.cut_to_whole_batches()
            if not len(chunk.data):
                return False
            if next_offset is not None:
                self.fetch_offset = max(self.fetch_offset, next_offset)
        self._chunks.append(chunk)
        self.held_bytes += chunk.size_bytes
        self._memory.hold(chunk)
        return True

    def own_bytes(self) -> None:
        """Copy what is held out of responses that are much larger, so that a partition that is not
        read for now does not keep its neighbours' bytes in memory. A batch that is being read stays
        where it is.
        """
        for chunk in self._chunks:
            if chunk.frame.size_bytes > 2 * chunk.size_bytes and not self._batches:
                self._memory.release(chunk)
                chunk.data = memoryview(bytes(chunk.data))
                chunk.frame = FetchedFrame(chunk.size_bytes)
                self._memory.hold(chunk)

    # -- taking ---------------------------------------------------------------------------------

    def take(self, max_records: int) -> list[ConsumerRecord]:
        """At most `max_records`, as far as there are chunks. Raises: CorruptRecords,
        RecordDeserializationError, or a fault's own error, when it comes before any record;
        otherwise those before it are returned.
        """
        taken: list[ConsumerRecord] = []
        if self._run_iterator is not None:
            taken = list(islice(self._run_iterator, max_records))
            self._settle_run()
        while len(taken) < max_records:
            try:
                batch = self._batches[0] if self._batches else self._open_batch()
                if batch is None:
                    break
                records = self._read(batch, max_records - len(taken))
            except KafkaError:
                if taken:
                    break
                raise
            taken = taken + records if taken else records
            self._advance(batch)
        return taken

    def start_run(self, max_records: int) -> Iterator[ConsumerRecord]:
        """At most `max_records` of one batch, empty when nothing is left; advancing the iterator
        hands them out, and the position follows it. Raises as `take`.
        """
        if self._run_iterator is not None:
            if self._left_in_run():
                return self._run_iterator
            self._settle_run()
        while True:
            batch = self._batches[0] if self._batches else self._open_batch()
            if batch is None:
                return iter(())
            records = self._read(batch, max_records)
            if records:
                self._run = records
                self._run_iterator = iter(records)
                return self._run_iterator
            self._advance(batch)

    def settle(self) -> None:
        """End a run that has been handed out: what is behind it can be looked at then."""
        if self._run_iterator is not None and not self._left_in_run():
            self._settle_run()

    def open_batches(self, max_records: int, max_bytes: int) -> list[OpenBatch]:
        """Batches, in order, with that many records or bytes at least, as far as there are. For
        taking rows off their cursors; then `batches_taken`. Raises as `take`.
        """
        self._settle_run()
        count = sum(batch.cursor.remaining for batch in self._batches)
        size = sum(len(batch.section) for batch in self._batches)
        while count < max_records and size < max_bytes:
            try:
                batch = self._open_batch()
            except CorruptRecords:
                if self._batches:
                    break
                raise
            if batch is None:
                break
            count += batch.cursor.remaining
            size += len(batch.section)
        return list(self._batches)

    def batches_taken(self) -> None:
        """Rows were taken off the cursors of `open_batches`: the position follows them."""
        while self._batches:
            batch = self._batches[0]
            self._advance(batch)
            if self._batches and self._batches[0] is batch:
                return

    def rewind(self) -> None:
        """Rows taken off the cursors of `open_batches` were not handed out: take them back."""
        for batch in self._batches:
            batch.rewind(self._position)

    def unreadable(self, error: InvalidBatch) -> CorruptRecords:
        """The error of taking rows off the cursors when none came."""
        for batch in self._batches:
            if batch.cursor.remaining:
                return self._corrupt(batch.header, error)
        return self._corrupt(self._batches[-1].header, error)

    def _read(self, batch: OpenBatch, max_records: int) -> list[ConsumerRecord]:
        header = batch.header
        kind = (header.attributes, header.partition_leader_epoch)
        if self._maker is None or self._maker_for != kind:
            topic, partition = self.topic_partition
            self._maker = RecordMaker(
                ConsumerRecord,
                {
                    "topic": topic,
                    "partition": partition,
                    "timestamp_type": header.timestamp_type,
                    "leader_epoch": header.partition_leader_epoch,
                },
            )
            self._maker_for = kind
        try:
            records: list[ConsumerRecord] = batch.cursor.take(max_records, self._maker)
        except InvalidBatch as error:
            raise self._corrupt(header, error) from error
        if self._options.deserialize is None:
            return records
        return self._deserialized(batch, records)

    def _deserialized(
        self, batch: OpenBatch, records: list[ConsumerRecord]
    ) -> list[ConsumerRecord]:
        deserialize = self._options.deserialize
        assert deserialize is not None
        for index, record in enumerate(records):
            try:
                deserialize(record)
            except RecordDeserializationError:
                batch.rewind(record.offset)
                if not index:
                    raise
                return records[:index]
        return records

    # -- batch by batch -------------------------------------------------------------------------

    def _open_batch(self) -> OpenBatch | None:
        header = self._find_visible()
        if header is None:
            return None
        chunk = self._chunks[0]
        try:
            batch = OpenBatch(header, chunk.data, chunk.at, self._position)
        except InvalidBatch as error:
            raise self._corrupt(header, error) from error
        self._visible = None
        self._batches.append(batch)
        self._pass_over(chunk, header)
        return batch

    def _find_visible(self, *, is_wanted: bool = True) -> BatchHeader | None:
        """The header of the next batch to read, which then lies at `_chunks[0].at`. A fault is
        raised only when what comes next is wanted.
        """
        while self._visible is None and self._chunks:
            chunk = self._chunks[0]
            if chunk.fault is not None:
                if self._batches or not is_wanted:
                    return None
                chunk.fault()
                continue
            header = self._checked_header(chunk)
            if self._is_invisible(chunk, header):
                self._pass_over(chunk, header)
            else:
                self._visible = header
        return self._visible

    def _checked_header(self, chunk: Chunk) -> BatchHeader:
        header = None
        try:
            header = chunk.headers[0] if chunk.headers else read_batch_header(chunk.data, chunk.at)
            if self._options.check_crcs and not verify_crc(chunk.data, chunk.at, header):
                raise InvalidBatch(InvalidBatchReason.BAD_CRC, "the checksum does not match")
        except InvalidBatch as error:
            raise self._corrupt(header, error) from error
        return header

    def _is_invisible(self, chunk: Chunk, header: BatchHeader) -> bool:
        """Whether the consumer must not see the batch; keeps track of aborted transactions."""
        if self._options.read_committed and header.has_producer_id:
            aborted = chunk.aborted
            while aborted and aborted[0][0] <= header.last_offset:
                self._aborted_producers.add(aborted.popleft()[1])
            if header.is_control:
                if self._is_abort(chunk, header):
                    self._aborted_producers.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in self._aborted_producers:
                return True
        return header.is_control or not header.record_count or header.next_offset <= self._position

    def _is_abort(self, chunk: Chunk, header: BatchHeader) -> bool:
        try:
            records = decode_records(chunk.data, chunk.at)
            return bool(records) and (
                decode_control_key(records[0].key).type is ControlRecordType.ABORT
            )
        except InvalidBatch as error:
            raise self._corrupt(header, error) from error

    def _pass_over(self, chunk: Chunk, header: BatchHeader) -> None:
        """The batch at the front of the chunk is opened, or is not going to be."""
        chunk.headers.popleft()
        chunk.at += header.size_bytes
        last = self._batches[-1] if self._batches else None
        if last is not None:
            last.next_offset = max(last.next_offset, header.next_offset)
        else:
            self._move(header.next_offset, header.partition_leader_epoch)
        if chunk.at >= len(chunk.data):
            self._chunks.popleft()
            self._aborted_producers.clear()
            if last is not None:
                last.closes.append(chunk)
            else:
                self._let_go(chunk)

    def _advance(self, batch: OpenBatch) -> None:
        """Records of the first open batch were handed out; let go of what has been read."""
        cursor = batch.cursor
        if not cursor.is_exhausted:
            if cursor.next_offset > self._position:
                self._move(cursor.next_offset, batch.header.partition_leader_epoch)
            return
        self._batches.popleft()
        for chunk in batch.closes:
            self._let_go(chunk)
        self._move(batch.next_offset, batch.header.partition_leader_epoch)
        if not self._batches:
            # Markers behind the last record move the position as well, without another poll.
            try:
                self._find_visible(is_wanted=False)
            except CorruptRecords:
                return

    def _move(self, position: int, epoch: int) -> None:
        if position > self._position:
            self._position = position
            if epoch != _UNKNOWN_EPOCH:
                self._position_epoch = epoch

    def _left_in_run(self) -> int:
        assert self._run_iterator is not None
        left: int = self._run_iterator.__length_hint__()  # type: ignore[attr-defined]
        return left

    def _settle_run(self) -> None:
        """End the run; what it has not handed out goes back to its batch."""
        if self._run_iterator is None:
            return
        batch = self._batches[0]
        left = self._left_in_run()
        position = self.position
        if left:
            batch.rewind(self._run[-left].offset)
        # The iterator that was handed out is at its end then.
        self._run.clear()
        self._run_iterator = None
        self._move(position, batch.header.partition_leader_epoch)
        if not left:
            self._advance(batch)

    def _let_go(self, chunk: Chunk) -> None:
        self.held_bytes -= chunk.size_bytes
        self._memory.release(chunk)

    def _corrupt(self, header: BatchHeader | None, error: InvalidBatch) -> CorruptRecords:
        """The error, with the next offset behind the batch as far as its header can be believed."""
        next_offset = self._position + 1
        if header is not None and self._position < header.next_offset <= _MAX_OFFSET:
            next_offset = header.next_offset
        return CorruptRecords(self.topic_partition, self._position, next_offset, str(error))
