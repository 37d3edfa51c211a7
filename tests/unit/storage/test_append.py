"""The limits of an append, each from both sides: what fits in a segment, what follows what."""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import BatchHeader, encode_batch
from moldau.storage.append import (
    MAX_ROOMLESS_PRODUCERS,
    ROOMLESS_MS,
    AppendOrigin,
    RecordBatches,
    RoomlessProducers,
    assign_offsets,
    check_batches,
    check_fetched,
    has_holes,
    pieces,
)
from moldau.storage.faults import AppendRejected
from moldau.storage.log_config import LogConfig
from moldau.storage.segment import MAX_RELATIVE_OFFSET
from tests.storage.log_fixtures import START_MS, batch_of, records


def batches_at(*offsets: tuple[int, int]) -> RecordBatches:
    """Batches of the given first and last offsets: headers alone, 100 bytes each."""
    headers = [
        (
            100 * number,
            BatchHeader(base_offset=first, last_offset_delta=last - first, batch_length=88),
        )
        for number, (first, last) in enumerate(offsets)
    ]
    return RecordBatches(bytearray(100 * len(headers)), headers)


def split(batches: RecordBatches, segment_bytes: int) -> list[list[tuple[int, int]]]:
    """Each piece's batches: position in the piece, and base offset."""
    found = []
    for piece in pieces(batches, segment_bytes):
        assert len(piece.data) == sum(header.size_bytes for _, header in piece.headers)
        found.append([(position, header.base_offset) for position, header in piece.headers])
    return found


def fetched(*offsets_and_epochs: tuple[int, int]) -> bytearray:
    """Batches of two records each, as a leader keeps them."""
    found = bytearray()
    for base_offset, epoch in offsets_and_epochs:
        found += encode_batch(
            records(["a", "b"]), base_offset=base_offset, partition_leader_epoch=epoch
        )
    return found


def follow(
    data: bytearray,
    *,
    leader_epoch: int = 5,
    next_offset: int = 10,
    last_leader_epoch: int = 3,
    may_begin_below: bool = False,
) -> list[int]:
    """The base offsets of what a follower takes."""
    found = check_fetched(
        data,
        LogConfig(),
        START_MS,
        leader_epoch,
        next_offset,
        last_leader_epoch,
        may_begin_below=may_begin_below,
    )
    assert len(found.data) == sum(header.size_bytes for _, header in found.headers)
    return [header.base_offset for _, header in found.headers]


def test_a_segment_takes_exactly_its_size() -> None:
    three = batches_at((0, 0), (1, 1), (2, 2))
    assert split(three, 300) == [[(0, 0), (100, 1), (200, 2)]]
    assert split(three, 299) == [[(0, 0), (100, 1)], [(0, 2)]]
    assert split(three, 200) == [[(0, 0), (100, 1)], [(0, 2)]]
    assert split(three, 199) == [[(0, 0)], [(0, 1)], [(0, 2)]]
    assert split(three, 1) == [[(0, 0)], [(0, 1)], [(0, 2)]], "a larger batch gets its own"


def test_a_segment_takes_offsets_as_far_as_it_can_number_them() -> None:
    far = 7 + MAX_RELATIVE_OFFSET
    assert split(batches_at((7, 7), (far - 1, far)), 1000) == [[(0, 7), (100, far - 1)]]
    assert split(batches_at((7, 7), (far, far + 1)), 1000) == [[(0, 7)], [(0, far)]]
    again = far + MAX_RELATIVE_OFFSET
    assert split(batches_at((7, 7), (far + 1, far + 1), (again, again + 1)), 1000) == [
        [(0, 7)],
        [(0, far + 1), (100, again)],
    ]
    one_more = batches_at((7, 7), (far + 1, far + 1), (again, again + 2))
    assert split(one_more, 1000) == [[(0, 7)], [(0, far + 1)], [(0, again)]]


def test_records_may_fill_a_segment_and_not_a_byte_more() -> None:
    sent = batch_of("x" * 50)
    batches = RecordBatches.read(sent)
    for origin in AppendOrigin:
        check_batches(batches, LogConfig(segment_bytes=len(sent)), origin, START_MS)
    smaller = LogConfig(segment_bytes=len(sent) - 1)
    check_batches(batches, smaller, AppendOrigin.REPLICATION, START_MS)
    for origin in set(AppendOrigin) - {AppendOrigin.REPLICATION}:
        with pytest.raises(AppendRejected) as caught:
            check_batches(batches, smaller, origin, START_MS)
        assert caught.value.error is ErrorCode.RECORD_LIST_TOO_LARGE


def test_the_time_zero_is_a_time() -> None:
    config = LogConfig(message_timestamp_before_max_ms=500)
    batches = RecordBatches.read(batch_of("a", timestamp_ms=0))
    check_batches(batches, config, AppendOrigin.CLIENT, 500)
    with pytest.raises(AppendRejected) as caught:
        check_batches(batches, config, AppendOrigin.CLIENT, 501)
    assert caught.value.error is ErrorCode.INVALID_TIMESTAMP
    for origin in set(AppendOrigin) - {AppendOrigin.CLIENT}:
        check_batches(batches, config, origin, 501)
    without = RecordBatches.read(batch_of("a", timestamp_ms=-1))
    check_batches(without, config, AppendOrigin.CLIENT, 501)


def test_holes_are_seen_between_batches_and_before_the_first() -> None:
    assert not has_holes(3, batches_at((3, 4), (5, 5)))
    assert has_holes(2, batches_at((3, 4), (5, 5)))
    assert has_holes(3, batches_at((3, 4), (6, 6)))
    assert not has_holes(4, batches_at((3, 4), (5, 5))), "the first may begin below"


def test_an_append_numbers_as_many_records_as_a_segment_can() -> None:
    half = 2**30
    batches = batches_at((0, half - 1), (0, half - 1))
    assign_offsets(batches, 70, 4)
    assert [header.base_offset for _, header in batches.headers] == [70, 70 + half]
    assert {header.partition_leader_epoch for _, header in batches.headers} == {4}
    with pytest.raises(AppendRejected) as caught:
        assign_offsets(batches_at((0, half - 1), (0, half)), 70, 4)
    assert caught.value.error is ErrorCode.INVALID_RECORD


def test_a_follower_takes_the_epochs_up_to_that_of_its_leader() -> None:
    assert follow(fetched((10, 3), (12, 5))) == [10, 12]
    assert follow(fetched((10, 3), (12, 5), (14, 6), (16, 6))) == [10, 12]
    assert follow(fetched((10, 6))) == []


def test_a_follower_takes_no_epoch_below_the_one_before() -> None:
    assert follow(fetched((10, 3), (12, 3), (14, 4))) == [10, 12, 14]
    for data in (fetched((10, 2)), fetched((10, 4), (12, 3))):
        with pytest.raises(AppendRejected, match="leader epoch") as caught:
            follow(data)
        assert caught.value.error is ErrorCode.CORRUPT_MESSAGE


def test_a_follower_takes_nothing_below_its_end_but_a_first_batch_that_reaches_it() -> None:
    assert follow(fetched((11, 3))) == [11], "a hole"
    refused = [
        (fetched((9, 3)), False),
        (fetched((8, 3)), True),
        (fetched((9, 3), (10, 3)), True),
        (fetched((10, 3), (11, 3)), False),
    ]
    for data, may_begin_below in refused:
        with pytest.raises(AppendRejected, match="is next") as caught:
            follow(data, may_begin_below=may_begin_below)
        assert caught.value.error is ErrorCode.CORRUPT_MESSAGE
    assert follow(fetched((9, 3), (11, 3)), may_begin_below=True) == [9, 11]


def of_producer(producer_id: int) -> RecordBatches:
    return RecordBatches(bytearray(), [(0, BatchHeader(producer_id=producer_id))])


def test_a_producer_without_room_is_remembered_for_a_time() -> None:
    producers = RoomlessProducers()
    producers.note(of_producer(0), 50)
    producers.note(of_producer(-1), 50)
    assert list(producers) == [0], "a batch without a producer is not remembered"
    assert producers.has_recent(0, 50 + ROOMLESS_MS - 1)
    assert not producers.has_recent(0, 50 + ROOMLESS_MS)
    assert not producers.has_recent(1, 50)
    producers.forget(of_producer(1))
    producers.forget(of_producer(0))
    assert not producers


def test_the_producers_without_room_that_are_remembered_are_the_latest() -> None:
    producers = RoomlessProducers()
    for producer_id in range(MAX_ROOMLESS_PRODUCERS):
        producers.note(of_producer(producer_id), producer_id)
    assert len(producers) == MAX_ROOMLESS_PRODUCERS
    producers.note(of_producer(0), 5000)
    producers.note(of_producer(MAX_ROOMLESS_PRODUCERS), 5001)
    assert len(producers) == MAX_ROOMLESS_PRODUCERS
    assert next(iter(producers)) == 2, "the first was noted again"
    assert producers.has_recent(0, 5001)
