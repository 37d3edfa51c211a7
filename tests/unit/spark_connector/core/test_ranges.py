"""Ranges cut into tasks: whole, without overlap, as many and as small as asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.ranges import MAX_INPUT_PARTITIONS, OffsetRange, split
from moldau.spark_connector.errors import InvalidOption

RANGES = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 300)), min_size=0, max_size=8
).map(
    lambda bounds: [
        OffsetRange(TopicPartition("t", number), start, start + size)
        for number, (start, size) in enumerate(bounds)
    ]
)


def covered(ranges):
    return [
        (each.topic_partition, offset)
        for each in ranges
        for offset in range(each.start_offset, each.end_offset)
    ]


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 400))
def test_every_offset_is_read_once_in_order(ranges, min_partitions, max_records):
    pieces = split(ranges, min_partitions=min_partitions, max_records=max_records)
    assert covered(pieces) == covered(ranges)
    assert all(each.size > 0 for each in pieces)


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 400))
def test_there_are_as_many_tasks_as_wanted_and_none_is_too_large(
    ranges, min_partitions, max_records
):
    pieces = split(ranges, min_partitions=min_partitions, max_records=max_records)
    total = sum(each.size for each in ranges)
    assert len(pieces) >= min(min_partitions or 0, total)
    if max_records is not None:
        assert max((each.size for each in pieces), default=0) <= max_records


@given(RANGES, st.integers(1, 40))
def test_no_more_tasks_than_wanted_where_there_are_fewer_partitions(ranges, min_partitions):
    pieces = split(ranges, min_partitions=min_partitions)
    assert len(pieces) <= max(min_partitions, sum(1 for each in ranges if each.size))


@given(RANGES.filter(lambda ranges: any(each.size for each in ranges)), st.integers(1, 40))
def test_the_largest_task_could_not_be_smaller(ranges, min_partitions):
    pieces = split(ranges, min_partitions=min_partitions)
    largest = max(each.size for each in pieces)
    with_smaller_ones = sum(-(-each.size // (largest - 1)) for each in ranges) if largest > 1 else 0
    assert largest == 1 or with_smaller_ones > len(pieces)


def test_without_options_each_partition_is_one_task():
    ranges = [OffsetRange(TopicPartition(topic, 0), 3, 9) for topic in "ba"]
    assert split(ranges) == sorted(ranges)


def test_a_skewed_partition_is_cut_and_the_small_ones_are_not():
    big = OffsetRange(TopicPartition("t", 0), 0, 1000)
    small = OffsetRange(TopicPartition("t", 1), 0, 10)
    pieces = split([big, small], min_partitions=5)
    assert [each.size for each in pieces] == [250, 250, 250, 250, 10]


def test_too_many_tasks_are_refused_by_the_options_name():
    large = [OffsetRange(TopicPartition("t", 0), 0, 10 * MAX_INPUT_PARTITIONS)]
    with pytest.raises(InvalidOption, match="maxRecordsPerPartition=1 would make 1000000 tasks"):
        split(large, max_records=1)
    assert len(split(large, max_records=10)) == MAX_INPUT_PARTITIONS
    many = MAX_INPUT_PARTITIONS + 1
    with pytest.raises(InvalidOption, match=f"minPartitions={many} would make {many} tasks"):
        split(large, min_partitions=many)
    with pytest.raises(InvalidOption, match="minPartitions=200000 would make 200000 tasks"):
        split(large, min_partitions=200_000, max_records=100)
    assert len(split(large, min_partitions=MAX_INPUT_PARTITIONS)) == MAX_INPUT_PARTITIONS


def test_of_equal_pieces_those_of_the_first_partition_are_cut():
    ranges = [OffsetRange(TopicPartition("t", number), 0, 8) for number in (2, 0, 1)]
    pieces = split(ranges, min_partitions=5)
    assert [(each.topic_partition.partition, each.size) for each in pieces] == [
        *((0, 4), (0, 4), (1, 4), (1, 4), (2, 8))
    ]


def test_the_size_of_a_range_is_never_negative():
    assert OffsetRange(TopicPartition("t", 0), 5, 9).size == 4
    assert OffsetRange(TopicPartition("t", 0), 9, 5).size == 0
    assert split([OffsetRange(TopicPartition("t", 0), 9, 5)], min_partitions=3) == []
