"""Spark's JSON of offsets, both ways, and what is refused of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import (
    from_json,
    lag_of,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
    to_json,
)
from moldau.spark_connector.errors import InvalidCheckpoint

PARTITIONS = st.builds(
    TopicPartition, st.sampled_from(["a", "b.c", "d-1", "Ω"]), st.integers(0, 2**31 - 1)
)
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1))


@given(OFFSETS)
def test_offsets_survive_the_checkpoint(offsets):
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


@given(OFFSETS, st.randoms())
def test_the_same_offsets_make_the_same_text(offsets, random):
    shuffled = list(offsets.items())
    random.shuffle(shuffled)
    assert json.dumps(to_json(dict(shuffled))) == json.dumps(to_json(offsets))


def test_partitions_stand_in_the_order_of_their_numbers():
    offsets = {TopicPartition("t", number): 1 for number in (10, 9, 2)}
    assert list(to_json(offsets)["t"]) == ["2", "9", "10"]


def test_it_is_what_sparks_own_source_writes():
    assert json.dumps(to_json({TopicPartition("topic", 0): 23})) == '{"topic": {"0": 23}}'
    assert from_json(json.loads('{"topic":{"0":23}}')) == {TopicPartition("topic", 0): 23}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"t": 1},
        {"t": {"x": 1}},
        {"t": {"-1": 1}},
        {"t": {"0": -1}},
        {"t": {"0": 1.5}},
        {"t": {"0": True}},
        {"": {"0": 1}},
        {"t": {"2147483648": 1}},
        {"logOffset": 3},
    ],
)
def test_other_sources_checkpoints_are_refused(value):
    with pytest.raises(InvalidCheckpoint, match="not those of a Kafka source"):
        from_json(value)


def test_partitions_to_assign_are_sorted_and_counted_once():
    assert parse_partitions('{"b":[1,0,1],"a":[3]}') == (
        TopicPartition("a", 3),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    )


@pytest.mark.parametrize(
    "text",
    ["", "t", "[1]", "{}", '{"t":[]}', '{"t":["0"]}', '{"t":[-1]}', '{"t":[true]}', '{"":[0]}'],
)
def test_partitions_that_cannot_be_assigned(text):
    with pytest.raises(ValueError, match=r"topicA|partition's number"):
        parse_partitions(text)


def test_earliest_and_latest_have_numbers():
    assert parse_offsets('{"t":{"0":-2,"1":-1,"2":7}}') == {
        TopicPartition("t", 0): -2,
        TopicPartition("t", 1): -1,
        TopicPartition("t", 2): 7,
    }
    with pytest.raises(ValueError, match="from -2 on"):
        parse_offsets('{"t":{"0":-3}}')


def test_times_are_not_negative():
    assert parse_timestamps('{"t":{"0":1000}}') == {TopicPartition("t", 0): 1000}
    with pytest.raises(ValueError, match="from 0 on"):
        parse_timestamps('{"t":{"0":-1}}')


def test_the_lag_counts_new_partitions_and_nothing_backwards():
    a, b, c = (TopicPartition("t", number) for number in range(3))
    assert lag_of({a: 5, b: 9}, {a: 7, b: 4, c: 3}) == 2 + 0 + 3
