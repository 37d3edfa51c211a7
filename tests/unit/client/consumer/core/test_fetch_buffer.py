"""The fetch buffer: every partition gets its turn, nothing is lost, the count of bytes is right."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.consumer.core.faults import CorruptRecords
from moldau.client.consumer.core.fetch_buffer import FetchBuffer
from moldau.client.consumer.core.partition_records import (
    Chunk,
    FetchedFrame,
    PartitionRecords,
    ReadOptions,
)
from moldau.client.consumer.core.partition_state import EARLIEST
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.errors import TopicAuthorizationFailed, error_for
from moldau.client.records import TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import take_columns
from tests.unit.client.consumer.model_log import ModelLog

NAMES = [TopicPartition("t", index) for index in range(3)]


class Buffered:
    """Three partitions with logs, and what was handed out of each."""

    def __init__(self, *, limit_bytes: int = 1 << 20) -> None:
        self.buffer = FetchBuffer(limit_bytes)
        self.subscription: SubscriptionState[object] = SubscriptionState(
            EARLIEST, lambda name: PartitionRecords(name, ReadOptions(), self.buffer.memory)
        )
        self.subscription.assign(NAMES)
        self.logs = [ModelLog() for _ in NAMES]
        self.states = [self.subscription.state_of(name) for name in NAMES]
        self.seen: list[list[int]] = [[] for _ in NAMES]
        for state in self.states:
            state.seek(0)

    def fetch(self, *indexes: int, max_bytes: int = 1 << 16) -> None:
        """One response with these partitions in it."""
        parts = []
        for index in indexes:
            data = self.logs[index].fetch(self.states[index].records.fetch_offset, max_bytes)
            if len(data.records):
                parts.append((index, data.records))
        frame = FetchedFrame(sum(len(data) for _, data in parts))
        for index, data in parts:
            self.buffer.add(self.states[index], Chunk(data, frame))

    def take(self, count: int) -> list[int]:
        """Which partitions were served."""
        taken = self.buffer.take(count)
        assert sum(map(len, taken.values())) <= count
        for name, records in taken.items():
            assert records
            self.seen[name.partition] += [record.offset for record in records]
        return [name.partition for name in taken]

    def run(self, count: int, advance: int) -> None:
        """As `async for` does, stopping after some."""
        started = self.buffer.start_run(count)
        if started is not None:
            for record in islice(started, advance):
                self.seen[record.partition].append(record.offset)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.integers(1, 8)),
        st.tuples(st.just("fetch"), st.lists(st.integers(0, 2), unique=True), st.integers(1, 500)),
        st.tuples(st.just("take"), st.integers(1, 15), st.just(0)),
        st.tuples(st.just("run"), st.integers(1, 15), st.integers(1, 15)),
        st.tuples(st.just("columns"), st.integers(1, 15), st.just(0)),
        st.tuples(st.just("pause"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("resume"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("leader"), st.integers(0, 2), st.just(0)),
    ),
    max_size=50,
)


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_every_record_once_and_in_order_of_its_partition(
    events: list[tuple[str, object, int]],
) -> None:
    it = Buffered()
    for event in events:
        match event:
            case ("write", int(index), count):
                it.logs[index].append(count)
            case ("fetch", list(indexes), max_bytes):
                it.fetch(*indexes, max_bytes=max_bytes)
            case ("take", int(count), _):
                it.take(count)
            case ("run", int(count), advance):
                it.run(count, advance)
            case ("columns", int(count), _):
                columns_of(it, count)
            case ("pause", int(index), _):
                it.states[index].paused = True
                it.states[index].records.own_bytes()
            case ("resume", int(index), _):
                it.states[index].paused = False
                it.buffer.line_up(it.states[index])
            case ("leader", int(index), _):
                it.states[index].forget_buffered()
        assert it.buffer.memory.pinned_bytes >= 0
    for state in it.states:
        state.paused = False
        it.buffer.line_up(state)
    for _ in range(1_000):
        it.fetch(0, 1, 2)
        if not it.take(7):
            break
    for log, seen in zip(it.logs, it.seen, strict=True):
        assert seen == [record.offset for record in log.all_records]
    assert it.buffer.memory.pinned_bytes == 0


def columns_of(it: Buffered, count: int) -> None:
    opened = it.buffer.open_batches(count, 1 << 16)
    if not opened:
        return
    cursors = [batch.cursor for _, batches in opened for batch in batches]
    owners = [state for state, batches in opened for _ in batches]
    with it.buffer.taking(opened):
        counts, columns = take_columns(cursors, count)
    row = 0
    for state, some in zip(owners, counts, strict=True):
        offsets = columns.offsets[row : row + some]
        it.seen[state.topic_partition.partition] += list(offsets)
        row += some


@pytest.mark.parametrize("as_columns", [False, True])
def test_a_partition_that_always_has_more_does_not_keep_others_from_their_turn(
    as_columns: bool,
) -> None:
    it = Buffered()
    for log in it.logs:
        log.append(5)
    it.fetch(0, 1, 2)
    for _ in range(4):
        it.logs[0].append(5)
        it.fetch(0)
        columns_of(it, 5) if as_columns else it.take(5)
    assert it.seen[1] == it.seen[2] == list(range(5))


def test_a_paused_partition_keeps_what_it_has_and_the_others_go_on() -> None:
    it = Buffered()
    for log in it.logs:
        log.append(3)
    it.fetch(0, 1, 2)
    it.states[0].paused = True
    assert set(it.take(100)) == {1, 2}
    assert not it.buffer.has_records
    assert not it.states[0].records.is_empty
    it.states[0].paused = False
    it.buffer.line_up(it.states[0])
    assert it.take(100) == [0]


def test_a_fault_comes_when_it_is_its_turn_and_nothing_else_is_lost() -> None:
    it = Buffered()
    it.logs[0].append(3)
    it.logs[1].append(3)
    batch = bytearray(it.logs[0].batches[0])
    batch[-1] ^= 1
    it.logs[0].batches[0] = bytes(batch)
    it.fetch(1, 0)
    assert it.take(100) == [1]
    with pytest.raises(CorruptRecords):
        it.take(100)
    # Fetched again, as the wire may have been to blame.
    assert it.states[0].records.is_empty
    batch[-1] ^= 1
    it.logs[0].batches[0] = bytes(batch)
    it.fetch(0)
    assert it.take(100) == [0]


def test_a_fault_in_place_of_columns_gives_way_to_the_next_partition() -> None:
    it = Buffered()
    it.logs[1].append(3)

    def fault() -> None:
        raise error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, "fetch")

    it.buffer.add(it.states[0], Chunk(memoryview(b""), FetchedFrame(0), fault=fault))
    it.fetch(1)
    with pytest.raises(TopicAuthorizationFailed):
        it.buffer.open_batches(10, 1 << 16)
    columns_of(it, 10)
    assert it.seen[1] == [0, 1, 2]


def test_a_brokers_refusal_waits_behind_the_records_before_it() -> None:
    it = Buffered()
    it.logs[0].append(3)
    it.fetch(0)

    def fault() -> None:
        raise error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, "fetch")

    it.buffer.add(it.states[0], Chunk(memoryview(b""), FetchedFrame(0), fault=fault))
    assert it.take(2) == [0]
    assert it.take(2) == [0]
    with pytest.raises(TopicAuthorizationFailed):
        it.take(2)
    assert not it.buffer.has_records


def test_a_reset_in_place_of_records_ends_quietly() -> None:
    it = Buffered()
    it.logs[1].append(1)
    state = it.states[0]
    chunk = Chunk(memoryview(b""), FetchedFrame(0), fault=lambda: state.request_reset(EARLIEST))
    it.buffer.add(state, chunk)
    it.fetch(1)
    assert it.take(10) == [1]
    assert not state.has_position


def test_a_response_counts_until_its_last_partition_has_been_read() -> None:
    it = Buffered(limit_bytes=100)
    it.logs[0].append(4, size=100)
    it.logs[1].append(4, size=100)
    it.fetch(0, 1)
    size = it.buffer.memory.pinned_bytes
    assert it.buffer.is_full
    it.take(4)
    assert it.buffer.memory.pinned_bytes == size
    it.take(4)
    assert it.buffer.memory.pinned_bytes == 0
    assert not it.buffer.is_full


def test_columns_that_could_not_be_made_are_not_lost() -> None:
    it = Buffered()
    it.logs[0].append(4)
    it.fetch(0)
    it.take(1)
    opened = it.buffer.open_batches(3, 1 << 16)
    cursors = [batch.cursor for _, batches in opened for batch in batches]

    def fail() -> None:
        with it.buffer.taking(opened):
            take_columns(cursors, 2)
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    it.take(100)
    assert it.seen[0] == [0, 1, 2, 3]
