"""Offsets in Redis, against a Redis made of Python."""

from __future__ import annotations

import sys
from typing import Any

import fakeredis
import pytest

import moldau.spark_connector.results as results_package
from moldau.client import TopicPartition
from moldau.spark_connector.results import (
    RedisOffsets,
    RedisResults,
    ResultsBehind,
    ResultsError,
)

QUERY = "0a09e9d0-e7e6-4233-8962-b3c68b976e1b"
ZERO, ONE = TopicPartition("in", 0), TopicPartition("in", 1)


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def offsets(request: pytest.FixtureRequest) -> RedisOffsets:
    client = fakeredis.FakeRedis(decode_responses=request.param)
    return RedisOffsets("redis://nowhere", "sums", client=client)


def rows(first: int, end: int, partition: int = 0) -> list[dict[str, Any]]:
    return [
        {"topic": "in", "partition": partition, "offset": n, "amount": 1} for n in range(first, end)
    ]


def add(pipe: Any, row: dict[str, Any]) -> None:
    pipe.incrby("total", row["amount"])


def total(offsets: RedisOffsets) -> int:
    found: Any = offsets.client.get("total")
    return int(found or 0)


@pytest.mark.promise("redis-behind")
def test_offsets_go_forward_only(offsets: RedisOffsets):
    offsets.advance({ZERO: 5, ONE: 2})
    offsets.advance({ZERO: 3, ONE: 4})
    assert offsets.load() == {ZERO: 5, ONE: 4}
    assert offsets.starting_offsets({"in": 3}) == '{"in": {"0": 5, "1": 4, "2": -2}}'


@pytest.mark.promise("results-redis")
def test_results_and_offsets_change_together_and_once(offsets: RedisOffsets):
    results = RedisResults(offsets, add)
    assert results.write_batch(rows(0, 5) + rows(0, 2, 1), 0, QUERY) == 7
    assert results.write_batch(rows(0, 5) + rows(0, 2, 1), 0, QUERY) == 0
    assert results.write_batch(rows(3, 8), 0, "another query") == 3
    assert total(offsets) == 10
    assert offsets.load() == {ZERO: 8, ONE: 2}


@pytest.mark.promise("results-redis")
def test_a_row_that_cannot_be_written_leaves_nothing(offsets: RedisOffsets):
    def refuse(pipe: Any, row: dict[str, Any]) -> None:
        add(pipe, row)
        if row["offset"] == 3:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        RedisResults(offsets, refuse).write_batch(rows(0, 5), 0, QUERY)
    assert total(offsets) == 0
    assert offsets.load() == {}


@pytest.mark.promise("results-redis")
def test_who_is_overtaken_looks_again(offsets: RedisOffsets):
    """Another driver commits the same batch between our look and our EXEC."""
    other = RedisResults(RedisOffsets("", "sums", client=offsets.client), add)
    turns = iter([True])

    def overtaken(pipe: Any, row: dict[str, Any]) -> None:
        if next(turns, False):
            other.write_batch(rows(0, 5), 0, QUERY)
        add(pipe, row)

    assert RedisResults(offsets, overtaken).write_batch(rows(0, 5), 0, QUERY) == 0
    assert total(offsets) == 5


def test_who_is_always_overtaken_gives_up(offsets: RedisOffsets):
    def meddling(_pipe: Any, _stored: Any) -> None:
        offsets.client.hincrby(offsets.key, "in:9", 1)
        _pipe.incr("total")

    with pytest.raises(ResultsError, match="changed by others 10 times in a row"):
        offsets.change(meddling)
    assert total(offsets) == 0


@pytest.mark.promise("redis-behind")
def test_a_redis_that_has_forgotten_is_refused(offsets: RedisOffsets):
    results = RedisResults(offsets, add)
    results.write_batch(rows(0, 5), 0, QUERY)
    with pytest.raises(
        ResultsBehind, match="has batches up to 0 of this query, and Spark goes on with 2"
    ):
        results.write_batch(rows(9, 12), 2, QUERY)
    with pytest.raises(ResultsBehind, match="has none of this query, and Spark goes on with 1"):
        results.write_batch(rows(9, 12), 1, "another query")
    assert total(offsets) == 5
    assert results.write_batch(rows(5, 6), 1, QUERY) == 1


def test_without_its_library_a_helper_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(results_package, "RedisOffsets")  # or it is that of an earlier import
    monkeypatch.delitem(sys.modules, "moldau.spark_connector.results.redis_offsets")
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs redis: pip install 'moldau\[results\]'"):
        _ = results_package.RedisOffsets
