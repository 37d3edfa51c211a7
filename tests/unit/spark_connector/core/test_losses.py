"""What is missing of what was to be read, and what is left."""

from __future__ import annotations

import uuid

import pytest

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector.core.ranges import (
    Loss,
    Missing,
    OffsetRange,
    clamped,
    cut,
    gone,
    readable,
    replaced,
)

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
OTHER = TopicPartition("u", 0)


def test_partitions_that_are_gone():
    assert gone({P0: 3, P1: 4}, {P0}) == [Loss(P1, Missing.GONE, 4)]


def test_topics_with_another_id():
    before, after = uuid.uuid4(), uuid.uuid4()
    start = {P0: 3, OTHER: 1}
    assert replaced(start, {"t": before, "u": before}, {"t": after, "u": before}) == [
        Loss(P0, Missing.REPLACED, 3)
    ]
    assert replaced(start, {}, {"t": after, "u": after}) == []
    assert replaced(start, {"t": before, "u": before}, {"t": ZERO_UUID}) == []


def test_logs_that_were_cut():
    assert cut({P0: 3, P1: 4}, {P0: 2, P1: 4}) == [Loss(P0, Missing.CUT, 3, 2)]


def test_ranges_within_the_log_are_read_whole_without_loss():
    ranges, losses = readable({P0: 3, P1: 4}, {P0: 9, P1: 4}, {P0: 0})
    assert ranges == [OffsetRange(P0, 3, 9)]
    assert losses == []


def test_records_older_than_the_log():
    ranges, losses = readable({P0: 3}, {P0: 9}, {P0: 5})
    assert ranges == [OffsetRange(P0, 5, 9)]
    assert losses == [Loss(P0, Missing.AGED_OUT, 3, 5)]
    ranges, losses = readable({P0: 3}, {P0: 9}, {P0: 20})
    assert ranges == []
    assert losses == [Loss(P0, Missing.AGED_OUT, 3, 20)]


def test_nothing_to_read_is_nothing_lost():
    assert readable({P0: 9}, {P0: 9}, {P0: 20}) == ([], [])
    assert readable({P0: 9}, {P0: 9}, {}) == ([], [])
    assert readable({}, {P0: 0}, {}) == ([], [])


def test_new_partitions_are_read_from_zero():
    ranges, losses = readable({}, {P0: 9, P1: 9}, {P0: 0, P1: 2})
    assert ranges == [OffsetRange(P0, 0, 9), OffsetRange(P1, 2, 9)]
    assert losses == [Loss(P1, Missing.BEGINS_LATE, 0, 2)]


def test_partitions_that_went_before_they_were_read():
    assert readable({P0: 3}, {P0: 9}, {}) == ([], [Loss(P0, Missing.GONE, 3)])


def test_an_end_before_the_start():
    assert readable({P0: 9}, {P0: 3}, {P0: 0}) == ([], [Loss(P0, Missing.CUT, 9, 3)])
    assert readable({P0: 9}, {P0: 3}, {P0: 0}, is_first=True) == ([], [])


def test_offsets_of_the_user_are_moved_into_the_log():
    wanted = {P0: 1, P1: 50, P2: 7, OTHER: 4}
    beginnings, ends = {P0: 5, P1: 0, P2: 0, OTHER: 4}, {P0: 9, P1: 20, P2: 7, OTHER: 8}
    found, losses = clamped(wanted, beginnings, ends)
    assert found == {P0: 5, P1: 20, P2: 7, OTHER: 4}
    assert losses == [Loss(P0, Missing.AGED_OUT, 1, 5), Loss(P1, Missing.BEYOND_END, 50, 20)]


def test_offsets_of_the_user_in_a_former_topic_begin_where_the_log_does():
    found, losses = clamped({P0: 7, P1: 7}, {P0: 5, P1: 5}, {P0: 9, P1: 9}, {P0})
    assert found == {P0: 5, P1: 7}
    assert losses == [Loss(P0, Missing.REPLACED, 7)]


@pytest.mark.promise("loss-names")
def test_the_words_name_partition_wanted_and_available():
    assert str(Loss(P0, Missing.AGED_OUT, 3, 5)).startswith(
        "t-0: offset 3 was to be read, but the log begins at 5; "
    )
    assert "the log ends at 2" in str(Loss(P0, Missing.CUT, 3, 2))
    assert str(Loss(P0, Missing.GONE, 3)) == (
        "t-0: offset 3 was to be read; the topic or partition does not exist any more"
    )
