"""One partition's records: the same whatever fetch sizes, batch boundaries and interruptions."""

from __future__ import annotations

from collections import deque
from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.consumer.core.faults import CorruptRecords, RecordDeserializationError
from moldau.client.consumer.core.partition_records import (
    Chunk,
    FetchedFrame,
    FrameMemory,
    PartitionRecords,
    ReadOptions,
)
from moldau.client.records import ConsumerRecord, TopicPartition
from moldau.protocol.records import Codec, Record, read_batch_header, take_columns
from tests.unit.client.consumer.model_log import ModelLog

PARTITION = TopicPartition("t", 3)

BATCHES = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.integers(1, 9),
            st.sampled_from((0, 0, 2)),
            st.sampled_from((Codec.NONE, Codec.LZ4, Codec.GZIP)),
            st.sampled_from((-1, -1, 7, 8)),
        ),
        st.tuples(st.just("end"), st.sampled_from((7, 8)), st.booleans()),
    ),
    min_size=1,
    max_size=12,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.integers(1, 900)),
        st.tuples(st.just("take"), st.integers(1, 12)),
        st.tuples(st.just("run"), st.integers(1, 12), st.integers(0, 12)),
        st.tuples(st.just("columns"), st.integers(1, 12)),
        st.tuples(st.just("clear"), st.just(0)),
        st.tuples(st.just("own"), st.just(0)),
    ),
    max_size=40,
)


def written(batches: list[tuple[object, ...]]) -> ModelLog:
    log = ModelLog()
    for step in batches:
        if step[0] == "append":
            _, count, gaps, codec, producer_id = step
            log.append(count, gaps=gaps, codec=codec, producer_id=producer_id, epoch=2)  # type: ignore[arg-type]
        else:
            log.end(step[1], commit=step[2])  # type: ignore[arg-type]
    return log


class Reader:
    """Reads a model log through `PartitionRecords`, noting every record it is handed."""

    def __init__(self, log: ModelLog, committed: bool) -> None:
        self.log = log
        self.committed = committed
        self.memory = FrameMemory()
        self.records = PartitionRecords(
            PARTITION, ReadOptions(read_committed=committed), self.memory
        )
        self.seen: list[tuple[object, ...]] = []

    def fetch(self, max_bytes: int) -> bool:
        data = self.log.fetch(self.records.fetch_offset, max_bytes, committed=self.committed)
        if not len(data.records):
            return False
        aborted = deque(
            sorted(
                (each.first_offset, each.producer_id) for each in data.aborted_transactions or ()
            )
        )
        frame = FetchedFrame(len(data.records) + 10)
        assert self.records.append(Chunk(data.records, frame, aborted))
        return True

    def note(self, record: ConsumerRecord | Record) -> None:
        self.seen.append(
            (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        )

    def step(self, step: tuple[object, ...]) -> None:
        match step:
            case ("fetch", int(max_bytes)):
                self.fetch(max_bytes)
            case ("take", int(count)):
                taken = self.records.take(count)
                assert len(taken) <= count
                for record in taken:
                    assert (record.topic_partition, record.leader_epoch) == (PARTITION, 2)
                    self.note(record)
            case ("run", int(count), int(advance)):
                run = self.records.start_run(count)
                for _ in range(advance):
                    for record in run:
                        self.note(record)
                        assert self.records.position == record.offset + 1
                        break
            case ("columns", int(count)):
                opened = self.records.open_batches(count, 1 << 20)
                if opened:
                    _, columns = take_columns([batch.cursor for batch in opened], count)
                    self.records.batches_taken()
                    by_offset = {each.offset: each for each in self.log.all_records}
                    for row in range(columns.row_count):
                        self.note(by_offset[columns.offsets[row]])
            case ("clear", _):
                self.records.clear()
            case ("own", _):
                self.records.own_bytes()

    def finish(self) -> None:
        while self.fetch(400) or not self.records.is_empty:
            self.step(("take", 5))


@given(BATCHES, STEPS, st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_record_once_and_in_order(
    batches: list[tuple[object, ...]], steps: list[tuple[object, ...]], committed: bool
) -> None:
    log = written(batches)
    reader = Reader(log, committed)
    for step in steps:
        reader.step(step)
        assert reader.records.position <= reader.records.fetch_offset
    reader.finish()
    assert reader.seen == [astuple(each) for each in log.expected(committed)]
    assert reader.records.position == (log.last_stable_offset if committed else log.next_offset)
    assert reader.memory.pinned_bytes == 0
    assert reader.records.held_bytes == 0


@given(BATCHES, st.integers(0, 60), st.integers(1, 900))
@settings(max_examples=60, deadline=None)
def test_reading_from_any_offset(
    batches: list[tuple[object, ...]], offset: int, max_bytes: int
) -> None:
    log = written(batches)
    offset = min(offset, log.next_offset)
    reader = Reader(log, committed=False)
    reader.records.restart(offset, -1)
    while reader.fetch(max_bytes) or not reader.records.is_empty:
        reader.step(("take", 100))
    assert reader.seen == [astuple(each) for each in log.all_records if each.offset >= offset]


def test_markers_behind_the_last_record_move_the_position() -> None:
    log = ModelLog()
    log.append(2, producer_id=7)
    log.end(7, commit=True)
    reader = Reader(log, committed=True)
    reader.fetch(10_000)
    assert len(reader.records.take(2)) == 2
    assert reader.records.position == 3


def test_the_epoch_is_that_of_the_last_record_handed_out() -> None:
    log = ModelLog()
    log.append(2, epoch=4)
    log.append(2, epoch=5)
    reader = Reader(log, committed=False)
    reader.fetch(10_000)
    run = reader.records.start_run(2)
    assert reader.records.position_epoch == -1
    next(run)
    assert (reader.records.position, reader.records.position_epoch) == (1, 4)
    next(run)
    run = reader.records.start_run(2)
    assert (reader.records.position, reader.records.position_epoch) == (2, 4)
    next(run)
    assert (reader.records.position, reader.records.position_epoch) == (3, 5)


def test_an_iterator_ends_when_the_records_are_taken_otherwise() -> None:
    log = ModelLog()
    log.append(6)
    reader = Reader(log, committed=False)
    reader.fetch(10_000)
    run = reader.records.start_run(6)
    assert next(run).offset == 0
    assert [record.offset for record in reader.records.take(2)] == [1, 2]
    assert list(run) == []
    assert [record.offset for record in reader.records.take(9)] == [3, 4, 5]


def corrupted(log: ModelLog, index: int) -> None:
    batch = bytearray(log.batches[index])
    batch[-1] ^= 1
    log.batches[index] = bytes(batch)


def test_a_corrupt_batch_is_raised_when_what_came_before_has_been_read() -> None:
    log = ModelLog()
    for _ in range(3):
        log.append(3)
    corrupted(log, 1)
    reader = Reader(log, committed=False)
    reader.fetch(10_000)
    assert [record.offset for record in reader.records.take(100)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(
            CorruptRecords, match=r"t-3: the records at offset 3 .*seek to offset 6"
        ):
            reader.records.take(100)
    with pytest.raises(CorruptRecords) as info:
        reader.records.start_run(1)
    error = info.value
    assert (error.topic_partition, error.offset, error.next_offset) == (PARTITION, 3, 6)
    assert not error.retriable
    reader.records.restart(error.next_offset, -1)
    reader.fetch(10_000)
    assert [record.offset for record in reader.records.take(100)] == [6, 7, 8]


def test_columns_come_before_the_corrupt_batch_behind_them() -> None:
    log = ModelLog()
    for _ in range(3):
        log.append(3)
    corrupted(log, 1)
    reader = Reader(log, committed=False)
    reader.fetch(10_000)
    (batch,) = reader.records.open_batches(100, 1 << 16)
    assert batch.header.base_offset == 0
    take_columns([batch.cursor], 100)
    reader.records.batches_taken()
    with pytest.raises(CorruptRecords, match="the records at offset 3"):
        reader.records.open_batches(100, 1 << 16)


def test_checksums_are_not_looked_at_when_they_are_switched_off() -> None:
    log = ModelLog()
    log.append(3)
    batch = bytearray(log.batches[0])
    batch[17] ^= 1  # the checksum itself
    reader = Reader(log, committed=False)
    reader.records = PartitionRecords(PARTITION, ReadOptions(check_crcs=False), reader.memory)
    reader.records.append(Chunk(memoryview(bytes(batch)), FetchedFrame(1)))
    assert len(reader.records.take(5)) == 3


@pytest.mark.parametrize("tail", [b"\x00" * 200, b"\xff" * 61])
def test_bytes_that_are_no_batch_are_raised_with_their_offset(tail: bytes) -> None:
    log = ModelLog()
    log.append(2)
    reader = Reader(log, committed=False)
    assert reader.records.append(Chunk(memoryview(log.batches[0] + tail), FetchedFrame(1)))
    assert len(reader.records.take(5)) == 2
    with pytest.raises(CorruptRecords, match="at offset 2") as info:
        reader.records.take(5)
    assert info.value.next_offset == 3


def test_part_of_one_batch_is_nothing_yet() -> None:
    log = ModelLog()
    log.append(2)
    reader = Reader(log, committed=False)
    size = read_batch_header(log.batches[0]).size_bytes
    for cut in (1, 12, 61, size - 1):
        chunk = Chunk(memoryview(log.batches[0][:cut]), FetchedFrame(1))
        assert not reader.records.append(chunk)
    assert reader.memory.pinned_bytes == 0


def test_a_deserializer_that_fails_stops_at_its_record() -> None:
    log = ModelLog()
    log.append(4)

    def deserialize(record: ConsumerRecord) -> None:
        if record.offset == 2:
            raise RecordDeserializationError(record, "value", ValueError("no"))
        record.value = record.offset

    reader = Reader(log, committed=False)
    options = ReadOptions(deserialize=deserialize)
    reader.records = PartitionRecords(PARTITION, options, reader.memory)
    reader.fetch(10_000)
    assert [record.value for record in reader.records.take(10)] == [0, 1]
    assert reader.records.position == 2
    with pytest.raises(RecordDeserializationError, match="value of the record at offset 2") as info:
        reader.records.take(10)
    assert info.value.record.value == b"v" * 5
    reader.records.restart(3, -1)
    reader.fetch(10_000)
    assert [record.value for record in reader.records.take(10)] == [3]


def test_a_response_that_is_mostly_the_partitions_own_is_not_copied() -> None:
    log = ModelLog()
    log.append(3)
    data = log.fetch(0, 1 << 20).records
    for factor, expected in ((2.0, 2.0), (2.5, 1.0)):
        reader = Reader(log, committed=False)
        reader.records.append(Chunk(data, FetchedFrame(int(factor * len(data)))))
        reader.records.own_bytes()
        assert reader.memory.pinned_bytes == expected * len(data)


def test_a_paused_partition_does_not_keep_its_neighbours_bytes() -> None:
    log = ModelLog()
    log.append(3)
    reader = Reader(log, committed=False)
    data = log.fetch(0, 1 << 20).records
    reader.records.append(Chunk(data, FetchedFrame(1_000_000)))
    assert reader.memory.pinned_bytes == 1_000_000
    reader.records.own_bytes()
    assert reader.memory.pinned_bytes == len(data)
    assert len(reader.records.take(9)) == 3
    assert reader.memory.pinned_bytes == 0
