"""Spark's JSON of offsets, both ways, and what is refused of it."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import (
    from_json,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
    parse_topic_ids,
    to_json,
    topic_ids_of,
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


IDS = st.dictionaries(st.sampled_from(["a", "b.c", "d-1", "Ω"]), st.uuids())


@given(OFFSETS, IDS)
@pytest.mark.promise("stream-topic-ids")
def test_ids_survive_beside_the_offsets_and_are_topics_without_partitions_to_others(offsets, ids):
    value = json.loads(json.dumps(to_json(offsets, ids)))
    assert from_json(value) == offsets
    topics = {partition.topic for partition in offsets}
    known = {name: each for name, each in ids.items() if name in topics and each.int}
    assert topic_ids_of(value) == known
    added = {name: each for name, each in value.items() if name not in to_json(offsets)}
    assert len(added) == len(known)
    assert all(each == {} for each in added.values())


def test_ids_are_kafkas_text():
    ids = {"topic": UUID("a6f4d1a1-3b0e-4c0e-8f3d-0123456789ab")}
    text = json.dumps(to_json({TopicPartition("topic", 0): 23}, ids))
    assert text == '{"topic": {"0": 23}, "topic:pvTRoTsOTA6PPQEjRWeJqw": {}}'
    assert parse_offsets(text) == {TopicPartition("topic", 0): 23}
    assert parse_topic_ids(text) == ids
    assert topic_ids_of({}) == topic_ids_of(None) == parse_topic_ids('{"t":{"0":1}}') == {}


def test_partitions_stand_in_the_order_of_their_numbers():
    offsets = {TopicPartition("t", number): 1 for number in (10, 9, 2)}
    assert list(to_json(offsets)["t"]) == ["2", "9", "10"]


@pytest.mark.promise("stream-checkpoint-of-spark")
def test_it_is_what_sparks_own_source_writes():
    assert json.dumps(to_json({TopicPartition("topic", 0): 23})) == '{"topic": {"0": 23}}'
    assert from_json(json.loads('{"topic":{"0":23}}')) == {TopicPartition("topic", 0): 23}


def test_the_largest_numbers_are_whole_ones_of_their_size():
    text = '{"t":{"2147483647":9223372036854775807}}'
    assert parse_offsets(text) == {TopicPartition("t", 2**31 - 1): 2**63 - 1}
    assert parse_partitions('{"t":[2147483647,0]}')[-1] == TopicPartition("t", 2**31 - 1)
    with pytest.raises(ValueError, match="9223372036854775808; a whole number"):
        parse_offsets('{"t":{"0":9223372036854775808}}')
    with pytest.raises(ValueError, match="2147483648 is not a partition's number"):
        parse_partitions('{"t":[2147483648]}')


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
        {"t": {"0": 1}, "t:short": {}},
        {"t": {"0": 1}, "t:pvTRoTsOTA6PPQEjRWeJqw": {"0": 1}},
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
