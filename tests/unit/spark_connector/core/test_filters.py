"""Conditions narrow what is read and never leave out a record that meets them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.ranges import Condition, Narrowing, OffsetRange, Operator

HOLDS = {
    Operator.EQUAL: lambda value, values: value == values[0],
    Operator.IN: lambda value, values: value in values,
    Operator.GREATER: lambda value, values: value > values[0],
    Operator.GREATER_OR_EQUAL: lambda value, values: value >= values[0],
    Operator.LESS: lambda value, values: value < values[0],
    Operator.LESS_OR_EQUAL: lambda value, values: value <= values[0],
    Operator.NOT_NULL: lambda value, values: True,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def conditions(column, values):
    one = st.builds(
        Condition,
        st.just(column),
        st.sampled_from([each for each in Operator if each is not Operator.IN]),
        values.map(lambda value: (value,)),
    )
    several = st.builds(
        Condition,
        st.just(column),
        st.just(Operator.IN),
        st.lists(values, max_size=3).map(tuple),
    )
    return one | several


SMALL = st.integers(-2, 12)
#: Times between and on whole milliseconds, the unit of records.
TIMES = st.integers(-2_000, 12_000).map(lambda number: EPOCH + timedelta(microseconds=number))
CONDITIONS = st.lists(
    conditions("partition", SMALL)
    | conditions("offset", SMALL)
    | conditions("topic", st.sampled_from(["a", "b", "c"]))
    | conditions("timestamp", TIMES),
    max_size=4,
)
#: Two topics of two partitions with ten records each; times of records in no order.
RECORDS = st.lists(st.integers(-1, 11), min_size=40, max_size=40).map(
    lambda times: {
        (topic, partition, offset): times[index * 20 + partition * 10 + offset]
        for index, topic in enumerate("ab")
        for partition in range(2)
        for offset in range(10)
    }
)


def left_of(records, narrowing):
    """What is read, with the answers that a cluster would give."""
    names = sorted({(topic, partition) for topic, partition, _ in records})
    ranges = [OffsetRange(TopicPartition(*name), 0, 10) for name in names]
    ranges = narrowing.apply(ranges)
    first_ms = narrowing.first_timestamp_ms
    if first_ms is not None:
        first = {
            each.topic_partition: next(
                (o for o in range(10) if records[(*each.topic_partition, o)] >= first_ms), None
            )
            for each in ranges
        }
        ranges = narrowing.apply(ranges, first)
    return {
        (*each.topic_partition, offset)
        for each in ranges
        for offset in range(each.start_offset, each.end_offset)
    }


@given(RECORDS, CONDITIONS)
def test_nothing_is_lost_and_what_is_handled_is_exact(records, given_conditions):
    narrowing = Narrowing()
    handled = [narrowing.narrow(condition) for condition in given_conditions]
    left = left_of(records, narrowing)

    def holds(record, condition):
        topic, partition, offset = record
        moment = EPOCH + timedelta(milliseconds=records[record])
        columns = {"topic": topic, "partition": partition, "offset": offset, "timestamp": moment}
        return HOLDS[condition.operator](columns[condition.column], condition.values)

    wanted = {r for r in records if all(holds(r, each) for each in given_conditions)}
    assert wanted <= left
    unhandled = [each for each, done in zip(given_conditions, handled, strict=True) if not done]
    assert {r for r in left if all(holds(r, each) for each in unhandled)} == wanted


@pytest.mark.parametrize(
    "condition",
    [
        Condition("value", Operator.EQUAL, (b"x",)),
        Condition("partition", Operator.EQUAL, ("1",)),
        Condition("offset", Operator.EQUAL, (True,)),
        Condition("partition", Operator.GREATER, (1,)),
        Condition("topic", Operator.LESS, ("b",)),
        Condition("key", Operator.NOT_NULL),
    ],
)
def test_what_says_nothing_is_left_to_spark(condition):
    narrowing = Narrowing()
    assert not narrowing.narrow(condition)
    assert narrowing == Narrowing()


@pytest.mark.parametrize(
    ("operator", "values", "first", "end"),
    [
        (Operator.EQUAL, (5,), 5, 6),
        (Operator.IN, (7, 3), 3, 8),
        (Operator.IN, (4, 4), 4, 5),
        (Operator.GREATER, (5,), 6, None),
        (Operator.GREATER_OR_EQUAL, (5,), 5, None),
        (Operator.LESS, (5,), 0, 5),
        (Operator.LESS_OR_EQUAL, (5,), 0, 6),
        (Operator.LESS, (-3,), 0, 0),
    ],
)
def test_what_each_comparison_leaves_of_the_offsets(operator, values, first, end):
    narrowing = Narrowing()
    assert narrowing.narrow(Condition("offset", operator, values)) == (len(set(values)) == 1)
    assert (narrowing.first_offset, narrowing.end_offset) == (first, end)


def test_no_offset_is_among_none():
    narrowing = Narrowing()
    assert narrowing.narrow(Condition("offset", Operator.IN))
    assert narrowing.end_offset == 0


def test_what_is_left_of_a_range_is_never_empty():
    whole = [OffsetRange(TopicPartition("t", 0), 3, 9)]
    for first, end, left in ((9, None, []), (0, 3, []), (8, 9, [(8, 9)]), (5, 4, [])):
        found = Narrowing(first_offset=first, end_offset=end).apply(whole)
        assert [(each.start_offset, each.end_offset) for each in found] == left
    for first, left in ((9, []), (None, []), (7, [(7, 9)]), (1, [(3, 9)])):
        found = Narrowing().apply(whole, {whole[0].topic_partition: first})
        assert [(each.start_offset, each.end_offset) for each in found] == left


def test_a_wider_condition_gives_no_offset_back():
    narrowing = Narrowing()
    for operator, value in (
        (Operator.GREATER_OR_EQUAL, 5),
        (Operator.GREATER_OR_EQUAL, 3),
        (Operator.GREATER, 2),
        (Operator.LESS, 8),
        (Operator.LESS_OR_EQUAL, 9),
    ):
        assert narrowing.narrow(Condition("offset", operator, (value,)))
    assert (narrowing.first_offset, narrowing.end_offset) == (5, 8)


@pytest.mark.parametrize("column", ["topic", "partition", "offset", "timestamp", "timestampType"])
def test_columns_that_are_never_null_need_no_second_look(column):
    assert Narrowing().narrow(Condition(column, Operator.NOT_NULL)) is True


def test_times_between_milliseconds_begin_at_the_next_one():
    narrowing = Narrowing()
    moment = EPOCH + timedelta(milliseconds=5, microseconds=1)
    narrowing.narrow(Condition("timestamp", Operator.GREATER_OR_EQUAL, (moment,)))
    assert narrowing.first_timestamp_ms == 6
    narrowing.narrow(Condition("timestamp", Operator.GREATER, (EPOCH + timedelta(milliseconds=6),)))
    assert narrowing.first_timestamp_ms == 7


def test_of_several_times_the_first_one_counts():
    narrowing = Narrowing()
    times = tuple(EPOCH + timedelta(milliseconds=each) for each in (8, 3, 5))
    assert not narrowing.narrow(Condition("timestamp", Operator.IN, times))
    assert narrowing.first_timestamp_ms == 3
    assert not narrowing.narrow(Condition("timestamp", Operator.IN))
    assert not narrowing.narrow(Condition("timestamp", Operator.LESS, times[:1]))
    assert not narrowing.narrow(Condition("timestamp", Operator.LESS_OR_EQUAL, times[:1]))
    assert narrowing == Narrowing(first_timestamp_ms=3)


@pytest.mark.parametrize(
    ("operator", "ms", "first_ms"),
    [
        (Operator.GREATER_OR_EQUAL, -1, None),
        (Operator.GREATER_OR_EQUAL, 0, None),
        (Operator.GREATER_OR_EQUAL, 1, 1),
        (Operator.EQUAL, 1, 1),
        (Operator.GREATER, -1, None),
        (Operator.GREATER, 0, 1),
    ],
)
def test_records_without_a_timestamp_are_not_left_out(operator, ms, first_ms):
    """They have -1 in its place, and no look-up finds them."""
    narrowing = Narrowing()
    moment = EPOCH + timedelta(milliseconds=ms)
    assert not narrowing.narrow(Condition("timestamp", operator, (moment,)))
    assert narrowing.first_timestamp_ms == first_ms


def test_times_without_a_zone_are_utc():
    narrowing = Narrowing()
    narrowing.narrow(Condition("timestamp", Operator.GREATER_OR_EQUAL, (datetime(1970, 1, 2),)))
    assert narrowing.first_timestamp_ms == 86_400_000
