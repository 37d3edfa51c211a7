"""Rows sorted by topic and partition: as sending them one by one would."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.arrow.from_arrow import ArrowRows, read_rows
from moldau.client.arrow.grouping import ANY_PARTITION, Rows, rows_by_partition, rows_by_topic
from moldau.client.errors import SerializationError
from moldau.protocol.records import murmur2_partition

from .tables import layouts, rows, table_of


def numbers_of(found: Rows) -> list[int]:
    if found.numbers is None:
        return list(range(found.start, found.stop))
    return list(array("i", bytes(found.numbers)))[found.start : found.stop]


def whole(found: list[dict[str, Any]], layout: str = "binary") -> ArrowRows:
    table = table_of(found, layout, layout)
    [batch] = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    return read_rows(batch, 0)


def place_of(row: dict[str, Any], partition_count: int) -> int:
    if row["partition"] is not None:
        return row["partition"]
    if row["key"] is None:
        return ANY_PARTITION
    return murmur2_partition(row["key"].encode(), partition_count)


@given(found=rows, layout=layouts, counts=st.lists(st.integers(5, 9), min_size=3, max_size=3))
def test_every_row_goes_where_it_would_go_alone(found, layout, counts) -> None:
    read = whole(found, layout)
    partition_counts = dict(zip("abc", counts, strict=True))
    seen: dict[tuple[str, int], list[int]] = {}
    for topic, chosen in rows_by_topic(read, None):
        for partition, group in rows_by_partition(read, chosen, partition_counts[topic]):
            assert (topic, partition) not in seen
            seen[topic, partition] = numbers_of(group)
    expected: dict[tuple[str, int], list[int]] = {}
    for number, row in enumerate(found):
        place = place_of(row, partition_counts[row["topic"]])
        expected.setdefault((row["topic"], place), []).append(number)
    assert seen == expected


@given(found=rows)
def test_a_partitioner_sees_every_row_without_a_partition(found) -> None:
    read = whole(found)
    asked = []

    def partitioner(key: bytes | None, value: bytes | None) -> int:
        asked.append((key, value))
        return len(asked) % 5

    [(_, chosen)] = rows_by_topic(read, "t")
    groups = rows_by_partition(read, chosen, 5, partitioner=partitioner)
    assert sorted(number for _, group in groups for number in numbers_of(group)) == list(
        range(len(found))
    )
    if any(row["partition"] is None for row in found):
        assert len(asked) == len(found)
        places = dict((n, p) for p, group in groups for n in numbers_of(group))
        for number, row in enumerate(found):
            assert places[number] == (
                (number + 1) % 5 if row["partition"] is None else row["partition"]
            )


def test_keys_can_be_ignored() -> None:
    read = read_rows(pa.record_batch({"key": ["a", "b"], "value": ["c", "d"]}), 0)
    [(_, chosen)] = rows_by_topic(read, "t")
    assert rows_by_partition(read, chosen, 7, ignore_keys=True) == [(ANY_PARTITION, chosen)]


def test_a_single_partition_keeps_rows_with_and_without_keys_in_their_order() -> None:
    read = read_rows(pa.record_batch({"key": ["a", None, "b"], "value": ["c", "d", "e"]}), 0)
    [(_, chosen)] = rows_by_topic(read, "t")
    assert rows_by_partition(read, chosen, 1) == [(0, chosen)]
    assert len(rows_by_partition(read, chosen, 2)) > 1
    assert rows_by_partition(read, Rows(None, 0, 0), 1) == []


def test_a_topic_for_all_goes_before_the_column() -> None:
    read = read_rows(pa.record_batch({"topic": ["a", "b"], "value": ["c", "d"]}), 0)
    assert rows_by_topic(read, "t") == [("t", Rows(None, 0, 2))]
    found = {topic: numbers_of(chosen) for topic, chosen in rows_by_topic(read, None)}
    assert found == {"a": [0], "b": [1]}
    encoded = pa.record_batch(
        {"topic": pa.array(["b", "a", "b"]).dictionary_encode(), "value": ["c"] * 3}
    )
    found = {
        topic: numbers_of(chosen) for topic, chosen in rows_by_topic(read_rows(encoded, 0), None)
    }
    assert found == {"b": [0, 2], "a": [1]}


@pytest.mark.parametrize(
    "topics",
    [None, pa.array(["a", None]), pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None]))],
)
def test_rows_without_a_topic_are_refused(topics) -> None:
    columns = {"value": ["c", "d"]} | ({} if topics is None else {"topic": topics})
    with pytest.raises(SerializationError, match="topic"):
        rows_by_topic(read_rows(pa.record_batch(columns), 0), None)


def test_partitions_that_cannot_be() -> None:
    read = read_rows(pa.record_batch({"partition": [0, 3], "value": ["c", "d"]}), 0)
    chosen = rows_by_topic(read, "t")[0][1]
    with pytest.raises(LookupError) as caught:
        rows_by_partition(read, chosen, 3)
    assert caught.value.args == (3,)
    read = read_rows(pa.record_batch({"partition": [0, -1], "value": ["c", "d"]}), 0)
    with pytest.raises(SerializationError, match="-1"):
        rows_by_partition(read, chosen, 3)
