"""What records look like when they are read, what faults say, and how much is read at a time."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from moldau.client.consumer.core.faults import (
    CorruptRecords,
    NotAssigned,
    PositionOutOfRange,
    RecordDeserializationError,
)
from moldau.client.consumer.core.fetch_buffer import FetchBuffer
from moldau.client.consumer.core.partition_records import (
    Chunk,
    FetchedFrame,
    FrameMemory,
    PartitionRecords,
    ReadOptions,
    deserialize_with,
)
from moldau.client.consumer.core.partition_state import EARLIEST, PartitionState
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.errors import TopicAuthorizationFailed, error_for
from moldau.client.records import ConsumerRecord, TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    Codec,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    TimestampType,
    encode_batch,
    patch_log_append_time,
    take_columns,
    write_header,
)
from moldau.protocol.records.header import CONTROL_BIT, read_batch_header
from tests.unit.client.consumer.model_log import ModelLog

PARTITION = TopicPartition("t", 3)


def records_of(**options: Any) -> PartitionRecords:
    return PartitionRecords(PARTITION, ReadOptions(**options), FrameMemory())


def add(
    records: PartitionRecords, *batches: bytes, aborted: deque[tuple[int, int]] | None = None
) -> Chunk:
    """One response with these batches."""
    data = memoryview(b"".join(batches))
    chunk = Chunk(data, FetchedFrame(len(data)), aborted)
    assert records.append(chunk)
    return chunk


def refusal() -> None:
    raise error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, "fetch")


def refused_chunk() -> Chunk:
    return Chunk(memoryview(b""), FetchedFrame(0), fault=refusal)


def record_of(key: bytes | None, value: bytes | None) -> ConsumerRecord:
    log = ModelLog()
    log.batches.append(bytes(encode_batch([Record(0, 1, key, value, ())], base_offset=0)))
    records = records_of()
    add(records, *log.batches)
    (record,) = records.take(1)
    return record


# -- deserializers -----------------------------------------------------------------------------


@pytest.mark.parametrize("has_value", [False, True])
@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("value", [None, b"v", b""])
@pytest.mark.parametrize("key", [None, b"k", b""])
def test_deserializers_get_what_is_not_null(
    key: bytes | None, value: bytes | None, has_key: bool, has_value: bool
) -> None:
    def marked(data: bytes) -> list[bytes]:
        return [data]

    apply = deserialize_with(marked if has_key else None, marked if has_value else None)
    record = record_of(key, value)
    assert (apply is None) == (not has_key and not has_value)
    if apply is not None:
        apply(record)
    assert record.key == ([key] if has_key and key is not None else key)
    assert record.value == ([value] if has_value and value is not None else value)


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_deserializer_that_fails_leaves_the_record_as_it_was(part: str) -> None:
    def marked(data: bytes) -> list[bytes]:
        return [data]

    def failing(data: bytes) -> object:
        raise ValueError("no such thing")

    apply = deserialize_with(*(failing if each == part else marked for each in ("key", "value")))
    assert apply is not None
    record = record_of(b"k", b"v")
    with pytest.raises(RecordDeserializationError) as info:
        apply(record)
    error = info.value
    assert (record.key, record.value) == (b"k", b"v")
    assert (error.topic_partition, error.offset, error.part) == (PARTITION, 0, part)
    assert error.record is record
    assert isinstance(error.__cause__, ValueError)
    assert f"t-3: the {part} of the record at offset 0 cannot be deserialized" in str(error)
    assert "ValueError: no such thing" in str(error)
    assert "seek to offset 1" in str(error)
    assert not error.retriable


# -- faults ------------------------------------------------------------------------------------


def test_faults_name_what_they_are_about() -> None:
    corrupt = CorruptRecords(PARTITION, 7, 12, "bad")
    assert (corrupt.topic_partition, corrupt.offset, corrupt.next_offset) == (PARTITION, 7, 12)
    assert "t-3: the records at offset 7 cannot be read: bad" in str(corrupt)
    assert "seek to offset 12" in str(corrupt)
    assert corrupt.code is ErrorCode.CORRUPT_MESSAGE
    assert not corrupt.retriable
    lost = PositionOutOfRange({PARTITION: 9})
    assert lost.positions == {PARTITION: 9}
    assert "(t-3: 9)" in str(lost)
    missing = NotAssigned(PARTITION)
    assert missing.topic_partition == PARTITION
    assert not missing.retriable


def test_a_fault_waits_for_the_batches_before_it() -> None:
    log = ModelLog()
    log.append(2)
    log.append(2)
    records = records_of()
    assert (records.has_fault, records.ends_in_fault, records.is_empty) == (False, False, True)
    add(records, *log.batches)
    assert (records.has_fault, records.ends_in_fault, records.is_empty) == (False, False, False)
    assert records.append(refused_chunk())
    assert (records.has_fault, records.ends_in_fault) == (False, True)
    assert len(records.take(3)) == 3
    assert (records.has_fault, records.ends_in_fault) == (False, True)
    assert len(records.take(1)) == 1
    assert (records.has_fault, records.ends_in_fault) == (True, True)
    for _ in range(2):
        with pytest.raises(TopicAuthorizationFailed):
            records.take(1)
    with pytest.raises(TopicAuthorizationFailed):
        records.start_run(1)
    with pytest.raises(TopicAuthorizationFailed):
        records.open_batches(1, 1)
    records.clear()
    assert (records.has_fault, records.ends_in_fault, records.is_empty) == (False, False, True)
    assert (records.position, records.fetch_offset) == (4, 4)


def test_a_fault_that_clears_the_partition_lets_it_go_on() -> None:
    records = records_of()
    assert records.append(Chunk(memoryview(b""), FetchedFrame(0), fault=records.clear))
    assert records.take(5) == []
    assert records.is_empty


@pytest.mark.parametrize(
    ("base_offset", "position", "next_offset"),
    [(4, 4, 7), (4, 6, 7), (4, 7, 8), (4, 50, 51), (2**63 - 4, 3, 2**63 - 1), (2**63 - 3, 3, 4)],
)
def test_a_header_is_believed_only_where_it_leads_on(
    base_offset: int, position: int, next_offset: int
) -> None:
    records = records_of()
    records.restart(position, -1)
    batch = bytearray(encode_batch([Record(4, 1, None, b"v", ())], base_offset=4))
    header = read_batch_header(batch)
    header.base_offset, header.last_offset_delta = base_offset, 2
    write_header(batch, header)
    batch[-1] ^= 1
    add(records, bytes(batch))
    with pytest.raises(CorruptRecords) as info:
        records.take(1)
    assert (info.value.offset, info.value.next_offset) == (position, next_offset)


def unreadable_batch(base_offset: int, count: int = 3, *, good: int = 0) -> bytes:
    """A batch whose checksum is right, and whose records are not from the n-th on."""
    records = [Record(base_offset + each, 1, None, b"v" * 20, ()) for each in range(count)]
    whole = encode_batch(records, base_offset=base_offset)
    size_bytes = (len(whole) - BATCH_HEADER_SIZE) // count
    at = BATCH_HEADER_SIZE + good * size_bytes
    whole[at:] = b"\xff" * (len(whole) - at)
    write_header(whole, read_batch_header(whole))
    return bytes(whole)


@pytest.mark.parametrize("good", [0, 2])
def test_records_that_cannot_be_read_are_raised_behind_the_good_ones(good: int) -> None:
    records = records_of()
    add(records, unreadable_batch(0, good=good))
    if good:
        assert [record.offset for record in records.take(good)] == list(range(good))
        assert records.position == good
    with pytest.raises(CorruptRecords) as info:
        records.take(5)
    assert (info.value.offset, info.value.next_offset) == (good, 3)
    with pytest.raises(CorruptRecords):
        records.start_run(1)


def compacted_tail() -> bytes:
    """A batch of offsets 0 to 9 whose records behind offset 2 have been removed."""
    records = [Record(each, 1, None, b"v", ()) for each in range(3)]
    return bytes(encode_batch(records, base_offset=0, keep_offsets=True, last_offset_delta=9))


@pytest.mark.parametrize("how", ["take", "run", "columns"])
def test_a_batch_without_a_record_behind_the_position_is_passed_over(how: str) -> None:
    log = ModelLog()
    log.append(10)
    log.append(2)
    records = records_of()
    records.restart(5, -1)
    add(records, compacted_tail(), log.batches[1])
    if how == "take":
        seen = [record.offset for record in records.take(5)]
    elif how == "run":
        seen = [record.offset for record in records.start_run(5)]
    else:
        batches = records.open_batches(5, 1 << 20)
        _, columns = take_columns([batch.cursor for batch in batches], 5)
        records.batches_taken()
        seen = list(columns.offsets)
    assert seen == [10, 11]
    assert records.position == 12


# -- what a record has -------------------------------------------------------------------------


def test_records_have_the_epoch_and_the_kind_of_time_of_their_batch() -> None:
    log = ModelLog()
    for epoch in (4, 4, 5, 5):
        log.append(2, epoch=epoch)
    for index in (1, 3):
        batch = bytearray(log.batches[index])
        patch_log_append_time(batch, 0, read_batch_header(batch), 777)
        log.batches[index] = bytes(batch)
    records = records_of()
    add(records, *log.batches)
    seen = [
        (record.offset, record.leader_epoch, record.timestamp_type, record.timestamp_ms == 777)
        for record in records.take(8)
    ]
    kinds = [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME] * 2
    assert seen == [
        (offset, 4 if offset < 4 else 5, kinds[offset // 2], kinds[offset // 2] == 1)
        for offset in range(8)
    ]


def test_the_epoch_before_the_position_survives_batches_without_one() -> None:
    log = ModelLog()
    log.append(1, epoch=-1)
    log.append(1, epoch=6)
    log.append(1, epoch=-1)
    records = records_of()
    records.restart(0, 2)
    add(records, *log.batches)
    epochs = [records.position_epoch]
    for _ in range(3):
        assert len(records.take(1)) == 1
        epochs.append(records.position_epoch)
    assert epochs == [2, 2, 6, 6]
    records.clear()
    assert (records.position, records.position_epoch) == (3, 6)
    records.restart(1, 9)
    assert (records.position, records.fetch_offset, records.position_epoch) == (1, 1, 9)


def test_what_is_cleared_in_the_middle_of_a_run_was_handed_out_up_to_there() -> None:
    log = ModelLog()
    log.append(4, epoch=3)
    records = records_of()
    add(records, *log.batches)
    run = records.start_run(3)
    next(run)
    next(run)
    records.clear()
    assert list(run) == []
    assert (records.position, records.fetch_offset, records.position_epoch) == (2, 2, 3)
    add(records, *log.batches)
    assert [record.offset for record in records.start_run(9)] == [2, 3]


@pytest.mark.parametrize("is_open", [False, True])
def test_what_is_cleared_is_out_of_memory_and_out_of_mind(is_open: bool) -> None:
    log = ModelLog()
    for _ in range(3):
        log.append(2)
    memory = FrameMemory()
    records = PartitionRecords(PARTITION, ReadOptions(), memory)
    add(records, *log.batches)
    assert len(records.take(2)) == 2
    if is_open:
        assert len(records.open_batches(9, 1 << 20)) == 2
    records.restart(0, -1)
    assert (memory.pinned_bytes, records.held_bytes) == (0, 0)
    add(records, *log.batches)
    assert [record.offset for record in records.take(9)] == list(range(6))


def test_a_response_of_markers_alone_is_let_go_of() -> None:
    log = ModelLog()
    log.end(7, commit=True)
    log.end(8, commit=True)
    memory = FrameMemory()
    records = PartitionRecords(PARTITION, ReadOptions(), memory)
    add(records, *log.batches)
    assert records.take(5) == []
    assert (records.position, records.held_bytes, memory.pinned_bytes) == (2, 0, 0)


def test_markers_behind_columns_move_the_position_too() -> None:
    log = ModelLog()
    log.append(2, producer_id=7)
    log.end(7, commit=True)
    records = records_of(read_committed=True)
    add(records, *log.batches)
    batches = records.open_batches(9, 1 << 20)
    take_columns([batch.cursor for batch in batches], 9)
    records.batches_taken()
    assert records.position == 3


def test_a_paused_partition_lets_go_of_its_response() -> None:
    (batch,) = batches_of(3)
    response = bytearray(batch + bytes(10 * len(batch)))
    records = records_of()
    chunk = Chunk(memoryview(response)[: len(batch)], FetchedFrame(len(response)))
    assert records.append(chunk)
    with pytest.raises(BufferError):
        response.clear()
    records.own_bytes()
    response.clear()
    assert len(records.take(9)) == 3


def test_a_run_of_one_record_has_its_epoch() -> None:
    log = ModelLog()
    log.append(1, epoch=3)
    records = records_of()
    add(records, *log.batches)
    run = records.start_run(1)
    assert (records.position, records.position_epoch) == (0, -1)
    next(run)
    assert (records.position, records.position_epoch) == (1, 3)


def test_a_run_goes_on_until_it_is_at_its_end() -> None:
    log = ModelLog()
    log.append(3)
    log.append(2)
    records = records_of()
    add(records, *log.batches)
    run = records.start_run(2)
    assert next(run).offset == 0
    assert records.start_run(2) is run
    records.settle()
    assert next(run).offset == 1, "a run that is not at its end is not settled"
    records.settle()
    assert [record.offset for record in records.start_run(9)] == [2]
    assert [record.offset for record in records.start_run(9)] == [3, 4]
    assert list(records.start_run(9)) == []
    assert records.is_empty


def test_records_of_many_batches_are_taken_at_once() -> None:
    log = ModelLog()
    for _ in range(3):
        log.append(3)
    records = records_of()
    chunk = add(records, *log.batches)
    assert records.held_bytes == chunk.frame.size_bytes
    assert records.take(0) == []
    assert [record.offset for record in records.take(7)] == list(range(7))
    assert records.position == 7
    assert [record.offset for record in records.take(7)] == [7, 8]
    assert records.held_bytes == 0
    assert records.take(1) == []


@pytest.mark.parametrize(
    ("max_records", "max_size", "opened"),
    [(1, 1 << 20, 1), (3, 1 << 20, 1), (4, 1 << 20, 2), (100, 1 << 20, 3), (100, 1, 1)],
)
def test_as_many_batches_are_opened_as_the_records_or_bytes_take(
    max_records: int, max_size: int, opened: int
) -> None:
    log = ModelLog()
    for _ in range(3):
        log.append(3)
    records = records_of()
    add(records, *log.batches)
    assert len(records.open_batches(max_records, max_size)) == opened
    assert len(records.open_batches(max_records, max_size)) == opened, "they are open already"


def test_bytes_of_open_batches_are_counted_to_the_very_limit() -> None:
    log = ModelLog()
    for _ in range(3):
        log.append(3)
    for missing, opened in ((0, 1), (-1, 2)):
        records = records_of()
        add(records, *log.batches)
        (first,) = records.open_batches(1, 1)
        assert len(records.open_batches(100, len(first.section) - missing)) == opened


def test_rows_that_were_not_handed_out_are_taken_again() -> None:
    log = ModelLog()
    for _ in range(2):
        log.append(3)
    records = records_of()
    add(records, *log.batches)
    records.take(1)
    batches = records.open_batches(5, 1 << 20)
    take_columns([batch.cursor for batch in batches], 4)
    records.rewind()
    assert [record.offset for record in records.take(9)] == [1, 2, 3, 4, 5]


def test_a_row_that_cannot_be_read_is_that_of_the_first_batch_with_rows_left() -> None:
    records = records_of()
    log = ModelLog()
    log.append(2)
    add(records, *log.batches, unreadable_batch(2))
    batches = records.open_batches(9, 1 << 20)
    take_columns([batches[0].cursor], 9)
    with pytest.raises(InvalidBatch) as info:
        take_columns([batches[1].cursor], 9)
    error = records.unreadable(info.value)
    assert (error.topic_partition, error.next_offset) == (PARTITION, 5)


def test_the_first_batch_that_cannot_be_read_is_named_though_more_follow() -> None:
    records = records_of()
    log = ModelLog()
    log.append(3)
    log.append(2)
    add(records, unreadable_batch(0), log.batches[1])
    batches = records.open_batches(9, 1 << 20)
    assert len(batches) == 2
    with pytest.raises(InvalidBatch) as info:
        take_columns([batch.cursor for batch in batches], 9)
    assert records.unreadable(info.value).next_offset == 3


def test_bytes_that_cannot_be_decompressed_are_raised() -> None:
    log = ModelLog()
    log.append(3, codec=Codec.LZ4)
    batch = bytearray(log.batches[0])
    batch[BATCH_HEADER_SIZE:] = b"\xff" * (len(batch) - BATCH_HEADER_SIZE)
    write_header(batch, read_batch_header(batch))
    records = records_of()
    add(records, bytes(batch))
    with pytest.raises(CorruptRecords) as info:
        records.take(1)
    assert (info.value.offset, info.value.next_offset) == (0, 3)


def test_bytes_behind_the_last_row_are_the_last_batchs() -> None:
    records = records_of()
    add(records, *batches_of(2))
    (batch,) = records.open_batches(9, 1 << 20)
    take_columns([batch.cursor], 9)
    error = records.unreadable(InvalidBatch(InvalidBatchReason.BAD_LENGTH, "more than it says"))
    assert (error.offset, error.next_offset) == (0, 2)
    assert "more than it says" in str(error)


# -- transactions ------------------------------------------------------------------------------


@pytest.mark.parametrize("read_committed", [False, True])
def test_only_who_reads_committed_leaves_out_what_was_aborted(read_committed: bool) -> None:
    log = ModelLog()
    log.append(1, producer_id=7)
    log.append(1, producer_id=8)
    log.append(1)
    log.end(7, commit=False)
    log.append(1, producer_id=7)
    log.end(8, commit=True)
    log.end(7, commit=True)
    records = records_of(read_committed=read_committed)
    add(records, *log.batches, aborted=deque([(0, 7)]))
    seen = [record.offset for record in records.take(9)]
    assert seen == ([1, 2, 4] if read_committed else [0, 1, 2, 4])
    assert records.position == 7


def test_a_transaction_counts_as_aborted_from_its_first_batch_on() -> None:
    """An earlier batch of its producer belongs to another one, which was committed."""
    log = ModelLog()
    log.append(2, producer_id=7)
    log.end(7, commit=True)
    log.append(2, producer_id=7)
    log.end(7, commit=False)
    records = records_of(read_committed=True)
    add(records, *log.batches, aborted=deque([(3, 7)]))
    assert [record.offset for record in records.take(9)] == [0, 1]


def test_a_marker_without_a_readable_record_is_raised() -> None:
    log = ModelLog()
    log.append(1, producer_id=7)
    log.end(7, commit=False)
    marker = bytearray(log.batches[1])
    marker[BATCH_HEADER_SIZE:] = b"\xff" * (len(marker) - BATCH_HEADER_SIZE)
    header = read_batch_header(marker)
    assert header.attributes & CONTROL_BIT
    write_header(marker, header)
    records = records_of(read_committed=True)
    add(records, log.batches[0], bytes(marker), aborted=deque([(0, 7)]))
    with pytest.raises(CorruptRecords) as info:
        records.take(9)
    assert (info.value.offset, info.value.next_offset) == (1, 2)


# -- several partitions ------------------------------------------------------------------------


class Buffered:
    """Partitions of one consumer, with what a response brought."""

    def __init__(self, count: int, limit_bytes: int = 1 << 20) -> None:
        self.buffer = FetchBuffer(limit_bytes)
        names = [TopicPartition("t", index) for index in range(count)]
        subscription = SubscriptionState(
            EARLIEST, lambda name: PartitionRecords(name, ReadOptions(), self.buffer.memory)
        )
        subscription.assign(names)
        self.states: list[PartitionState] = [subscription.state_of(name) for name in names]
        for state in self.states:
            state.seek(0)

    def bring(self, index: int, *batches: bytes) -> int:
        """A response with these batches of one partition; its size."""
        data = memoryview(b"".join(batches))
        assert self.buffer.add(self.states[index], Chunk(data, FetchedFrame(len(data))))
        return len(data)

    def taken(self, count: int) -> dict[int, list[int]]:
        return {
            name.partition: [record.offset for record in records]
            for name, records in self.buffer.take(count).items()
        }


def batches_of(*counts: int) -> list[bytes]:
    log = ModelLog()
    for count in counts:
        log.append(count)
    return log.batches


def test_a_buffer_is_full_at_its_very_limit() -> None:
    size_bytes = len(batches_of(3)[0])
    for limit_bytes, is_full in ((size_bytes, True), (size_bytes + 1, False)):
        it = Buffered(1, limit_bytes)
        assert not it.buffer.is_full
        it.bring(0, *batches_of(3))
        assert it.buffer.is_full == is_full


def test_partitions_are_served_as_they_came_and_each_to_its_end() -> None:
    it = Buffered(2)
    first, second = batches_of(2, 2)
    it.bring(1, first)
    it.bring(0, first)
    assert it.taken(1) == {1: [0]}
    it.bring(1, second)
    served = [it.taken(1) for _ in range(5)]
    assert served[:3] == [{1: [1]}, {0: [0]}, {0: [1]}], "what came after its turn began waits"
    assert served[3:] == [{1: [2]}, {1: [3]}]
    assert it.taken(9) == {}
    assert not it.buffer.has_records


def test_what_one_partition_has_of_several_turns_is_one_list() -> None:
    it = Buffered(2)
    first, second = batches_of(2, 2)
    it.bring(0, first)
    it.bring(1, first)
    assert it.taken(1) == {0: [0]}
    it.bring(0, second)
    assert it.taken(9) == {0: [1, 2, 3], 1: [0, 1]}


def test_part_of_a_batch_is_not_lined_up() -> None:
    it = Buffered(1)
    data = memoryview(batches_of(2)[0][:-1])
    assert not it.buffer.add(it.states[0], Chunk(data, FetchedFrame(len(data))))
    assert not it.buffer.has_records


def test_what_comes_for_a_paused_partition_is_copied_out_of_its_response() -> None:
    it = Buffered(1)
    it.states[0].paused = True
    data = memoryview(batches_of(2)[0])
    assert it.buffer.add(it.states[0], Chunk(data, FetchedFrame(100 * len(data))))
    assert it.buffer.memory.pinned_bytes == len(data)
    assert not it.buffer.has_records
    it.states[0].paused = False
    assert not it.buffer.has_records, "it is lined up when it is resumed"
    it.buffer.line_up(it.states[0])
    it.buffer.line_up(it.states[0])
    assert it.buffer.has_records
    assert it.taken(9) == {0: [0, 1]}


def test_runs_go_from_partition_to_partition() -> None:
    it = Buffered(2)
    it.bring(0, *batches_of(2))
    it.bring(1, *batches_of(2))
    seen = []
    while (run := it.buffer.start_run(9)) is not None:
        seen += [(record.partition, record.offset) for record in run]
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert it.buffer.start_run(9) is None


def test_a_fault_in_place_of_a_run_is_raised_once_and_the_next_partition_goes_on() -> None:
    it = Buffered(2)
    assert it.buffer.add(it.states[0], refused_chunk())
    it.bring(1, *batches_of(1))
    generation = it.states[0].generation
    with pytest.raises(TopicAuthorizationFailed):
        it.buffer.start_run(9)
    assert it.states[0].generation > generation, "what is in flight is fetched again"
    run = it.buffer.start_run(9)
    assert run is not None
    assert [record.partition for record in run] == [1]
    assert it.buffer.start_run(9) is None


def opened_of(it: Buffered, max_records: int, max_bytes: int = 1 << 20) -> list[tuple[int, int]]:
    """Partitions whose batches were opened, and how many of each."""
    return [
        (state.topic_partition.partition, len(batches))
        for state, batches in it.buffer.open_batches(max_records, max_bytes)
    ]


@pytest.mark.parametrize(
    ("max_records", "max_bytes", "opened"),
    [
        (1, 1 << 20, [(0, 1)]),
        (2, 1 << 20, [(0, 1)]),
        (3, 1 << 20, [(0, 2)]),
        (5, 1 << 20, [(0, 2), (1, 1)]),
        (6, 1 << 20, [(0, 2), (1, 1)]),
        (9, 1 << 20, [(0, 2), (1, 2), (2, 1)]),
        (99, 1, [(0, 1)]),
    ],
)
def test_columns_come_of_as_many_partitions_as_it_takes(
    max_records: int, max_bytes: int, opened: list[tuple[int, int]]
) -> None:
    it = Buffered(3)
    for index in range(3):
        it.bring(index, *batches_of(2, 2))
    assert opened_of(it, max_records, max_bytes) == opened


def test_bytes_of_columns_are_counted_over_partitions() -> None:
    it = Buffered(3)
    for index in range(3):
        it.bring(index, *batches_of(2))
    ((_, (batch,)),) = it.buffer.open_batches(1, 1 << 20)
    size = len(batch.section)
    assert opened_of(it, 99, 2 * size) == [(0, 1), (1, 1)]
    assert opened_of(it, 99, 2 * size + 1) == [(0, 1), (1, 1), (2, 1)]


def test_a_fault_behind_columns_waits_for_them() -> None:
    it = Buffered(2)
    it.bring(0, *batches_of(2))
    assert it.buffer.add(it.states[1], refused_chunk())
    opened = it.buffer.open_batches(9, 1 << 20)
    assert [state for state, _ in opened] == it.states[:1]
    with it.buffer.taking(opened):
        take_columns([batch.cursor for _, batches in opened for batch in batches], 9)
    with pytest.raises(TopicAuthorizationFailed):
        it.buffer.open_batches(9, 1 << 20)
    assert it.buffer.open_batches(9, 1 << 20) == []


def test_a_partition_whose_columns_were_all_taken_waits_behind_the_others() -> None:
    it = Buffered(2)
    for index in range(2):
        it.bring(index, *batches_of(2, 2))
    opened = it.buffer.open_batches(2, 1 << 20)
    with it.buffer.taking(opened):
        take_columns([batch.cursor for _, batches in opened for batch in batches], 1)
    assert opened_of(it, 1) == [(0, 1)], "it is still its turn"
    opened = it.buffer.open_batches(1, 1 << 20)
    with it.buffer.taking(opened):
        take_columns([batch.cursor for _, batches in opened for batch in batches], 1)
    assert opened_of(it, 1) == [(1, 1)]


def test_a_partition_with_nothing_to_show_goes_to_the_end_of_the_line() -> None:
    """Its transactions have ended, and none of their records is left."""
    it = Buffered(2)
    log = ModelLog()
    log.end(7, commit=True)
    log.append(1)
    it.bring(0, log.batches[0])
    it.bring(1, *batches_of(2))
    assert opened_of(it, 1) == [(1, 1)]
    it.bring(0, log.batches[1])
    assert opened_of(it, 1) == [(1, 1)]
    assert opened_of(it, 9) == [(1, 1), (0, 1)]


def test_rows_that_cannot_be_read_are_raised_for_their_partition() -> None:
    it = Buffered(2)
    it.bring(0, unreadable_batch(0))
    it.bring(1, *batches_of(2))
    opened = it.buffer.open_batches(9, 1 << 20)
    assert len(opened) == 2
    with pytest.raises(CorruptRecords) as info, it.buffer.taking(opened):
        take_columns([batch.cursor for _, batches in opened for batch in batches], 9)
    error = info.value
    assert (error.topic_partition.partition, error.offset, error.next_offset) == (0, 0, 3)
    assert it.states[0].records.is_empty
    assert it.taken(9) == {1: [0, 1]}


def test_a_compressed_batch_is_read_as_any_other() -> None:
    log = ModelLog()
    log.append(5, codec=Codec.LZ4)
    records = records_of()
    records.restart(3, -1)
    add(records, *log.batches)
    assert [record.offset for record in records.take(9)] == [3, 4]
