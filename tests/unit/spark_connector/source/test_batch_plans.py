"""A batch's plan, with a scripted cluster."""

from __future__ import annotations

import json

import pytest

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import to_json
from moldau.spark_connector.core.ranges import Condition, Narrowing, OffsetRange, Operator
from moldau.spark_connector.errors import DataLoss, OffsetsNotFound, TopicsNotFound
from moldau.spark_connector.source.planners import plan_batch
from tests.unit.spark_connector.source.scripted_source import Log, ScriptedSource, source_options

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def source():
    return ScriptedSource(t=[Log(5, 50, {1_000: 20, 2_000: 30}), Log(0, 10, {1_000: 4, 2_000: 2})])


def plan(source, narrowing=None, **given):
    return plan_batch(source_options(**given), source, narrowing or Narrowing())[0]


def test_everything_by_default(source):
    assert plan(source) == [OffsetRange(P0, 5, 50), OffsetRange(P1, 0, 10)]


def test_named_offsets(source):
    given = {
        "startingOffsets": '{"t":{"0":7,"1":-2}}',
        "endingOffsets": '{"t":{"0":9,"1":-1}}',
    }
    assert plan(source, **given) == [OffsetRange(P0, 7, 9), OffsetRange(P1, 0, 10)]


def test_times(source):
    assert plan(source, startingTimestamp="1000") == [
        OffsetRange(P0, 20, 50),
        OffsetRange(P1, 4, 10),
    ]
    # Where no record is that young, an end is the log's.
    assert plan(source, endingTimestamp="3000") == plan(source)


def test_a_start_behind_its_end_says_which_options_led_there(source):
    with pytest.raises(
        OffsetsNotFound,
        match="t-1: startingTimestamp leads to offset 4, which is behind 2, where endingTimestamp",
    ):
        plan(source, startingTimestamp="1000", endingTimestamp="2000")


def test_no_record_young_enough_to_start_at(source):
    with pytest.raises(OffsetsNotFound, match="t-0 has no record at or after 3000"):
        plan(source, startingTimestamp="3000")
    given = {"startingTimestamp": "3000", "startingOffsetsByTimestampStrategy": "latest"}
    assert plan(source, **given) == []


@pytest.mark.promise("loss-users-offset")
def test_offsets_outside_of_the_log(source, caplog):
    given = {"startingOffsets": '{"t":{"0":2,"1":0}}', "endingOffsets": '{"t":{"0":90,"1":-1}}'}
    with pytest.raises(DataLoss, match="t-0: offset 2 was to be read, but the log begins at 5"):
        plan(source, **given)
    assert plan(source, failOnDataLoss="false", **given) == plan(source)
    assert "the log begins at 5" in caplog.text
    assert "the log ends at 50; no record has that offset yet" in caplog.text


@pytest.mark.promise("stream-named-offsets")
def test_offsets_of_a_topic_that_was_created_again(source, caplog):
    """They say which topic they are in: they come from a checkpoint, or a results store."""
    former_ids = dict(source.ids)
    source.create("t", Log(5, 50), Log(0, 10))
    start = {"startingOffsets": json.dumps(to_json({P0: 7, P1: 3}, former_ids))}
    end = {"endingOffsets": json.dumps(to_json({P0: 9, P1: 4}, former_ids))}
    with pytest.raises(DataLoss, match=r"t-0: offset 7 .*was deleted and created again.*; t-1: of"):
        plan(source, **start)
    assert plan(source, failOnDataLoss="false", **start) == plan(source)
    assert caplog.text.count("going on without") == 1
    with pytest.raises(DataLoss, match=r"t-0: offset 9 .*was deleted and created again"):
        plan(source, **end)
    assert plan(source, failOnDataLoss="false", **start, **end) == []
    same = {"startingOffsets": json.dumps(to_json({P0: 7, P1: 3}, source.ids))}
    assert plan(source, **same) == [OffsetRange(P0, 7, 50), OffsetRange(P1, 3, 10)]


def test_what_does_not_exist(source):
    source.named = ("t", "u", "v")
    with pytest.raises(TopicsNotFound, match="there is no u, v: create it first"):
        plan(source)


def test_conditions_and_tasks(source):
    narrowing = Narrowing()
    narrowing.narrow(Condition("offset", Operator.LESS, (8,)))
    assert plan(source, narrowing) == [OffsetRange(P0, 5, 8), OffsetRange(P1, 0, 8)]
    assert plan(source, narrowing, minPartitions="3") == [
        OffsetRange(P0, 5, 8),
        OffsetRange(P1, 0, 4),
        OffsetRange(P1, 4, 8),
    ]


def test_times_of_conditions_are_looked_up_where_they_matter(source):
    narrowing = Narrowing(partitions=frozenset({0}), first_timestamp_ms=2_000)
    assert plan(source, narrowing) == [OffsetRange(P0, 30, 50)]
    # No record is that young.
    assert plan(source, Narrowing(first_timestamp_ms=3_000)) == []
