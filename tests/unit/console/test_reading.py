"""Where a reader begins, what it may take, and how bytes look in JSON."""

from __future__ import annotations

import re

import pytest

from moldau.client import ConsumerRecord, TimestampType, TopicPartition
from moldau.console.problems import Problem
from moldau.console.reading import (
    FROM,
    MAX_OFFSET,
    Budget,
    event_id,
    resumed,
    shown_bytes,
    shown_record,
)

P0, P1 = TopicPartition("flights.v1", 0), TopicPartition("flights.v1", 1)


def record(
    value: bytes | None = b"v", key: bytes | None = b"k", **more: object
) -> ConsumerRecord[bytes, bytes]:
    made = ConsumerRecord("flights.v1", 0, 7, 1_000, TimestampType.CREATE_TIME, key, value)
    for name, each in more.items():
        setattr(made, name, each)
    return made


@pytest.mark.parametrize(
    "text", ["earliest", "latest", "offset:0", "timestamp:1700000000000", "last:50"]
)
def test_places_to_begin(text: str) -> None:
    assert re.search(FROM, text)


@pytest.mark.parametrize(
    "text", ["", "begin", "offset:", "offset:-1", "last:x", "xlatest", "latestx"]
)
def test_no_places_to_begin(text: str) -> None:
    assert not re.search(FROM, text)


def test_an_id_leads_back_to_its_place() -> None:
    positions = {P0: 17, P1: 0}
    text = event_id(positions)
    assert text == '{"flights.v1-0":17,"flights.v1-1":0}'
    assert resumed(text, [P0, P1]) == positions
    assert resumed('{"flights.v1-1": 3}', [P0, P1]) == {P1: 3}
    assert resumed("{}", [P0]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "[]",
        '{"flights.v1-2":1}',
        '{"other-0":1}',
        '{"flights.v1-0":-1}',
        '{"flights.v1-0":"1"}',
        '{"flights.v1-0":true}',
        '{"flights.v1-0":1.5}',
        f'{{"flights.v1-0":{MAX_OFFSET + 1}}}',
    ],
)
def test_an_id_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(Problem) as refused:
        resumed(text, [P0, P1])
    assert refused.value.status == 422


@pytest.mark.parametrize(
    ("records", "size_bytes", "seconds", "stopped_by"),
    [(2, None, None, "records"), (None, 4, None, "bytes"), (None, None, 5.0, "time")],
)
def test_a_budget_ends_and_says_why(
    records: int | None, size_bytes: int | None, seconds: float | None, stopped_by: str
) -> None:
    budget = Budget(records, size_bytes, seconds, began_s=100.0)
    budget.take(record())
    assert not budget.is_spent(104.9)
    assert budget.left_s(104.0, 3.0) == (1.0 if seconds else 3.0)
    budget.take(record())
    assert budget.is_spent(105.0)
    assert budget.report(105.0, is_complete=False) == {
        "records": 2,
        "bytes": 4,
        "seconds": 5.0,
        "is_complete": False,
        "stopped_by": stopped_by,
    }


def test_no_budget_has_no_end() -> None:
    budget = Budget(None, None, None, began_s=0.0)
    for _ in range(1_000):
        budget.take(record())
    assert not budget.is_spent(1e9)


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"", "utf-8", ""),
        ("<script>ü\n".encode(), "utf-8", "<script>ü\n"),
        (b"\x00\x01", "utf-8", "\x00\x01"),
        (b"\xff\x00", "base64", "/wA="),
        (b"ab\xc3", "base64", "YWLD"),
    ],
)
def test_bytes_are_text_where_they_can_be(data: bytes, encoding: str, text: str) -> None:
    assert shown_bytes(data, 1_000) == {
        "encoding": encoding,
        "text": text,
        "size_bytes": len(data),
        "is_truncated": False,
    }


def test_long_values_are_cut() -> None:
    assert shown_bytes(None, 3) is None
    cut = shown_bytes(b"abcdef", 3)
    assert cut == {"encoding": "utf-8", "text": "abc", "size_bytes": 6, "is_truncated": True}
    within_a_letter = shown_bytes("aüü".encode(), 4)
    assert within_a_letter is not None
    assert (within_a_letter["encoding"], within_a_letter["text"]) == ("utf-8", "aü")
    broken = shown_bytes(b"\xff" + b"a" * 10, 4)
    assert broken is not None
    assert broken["encoding"] == "base64"
    assert shown_bytes(b"abc", 0) == {
        "encoding": "utf-8",
        "text": "",
        "size_bytes": 3,
        "is_truncated": True,
    }


def test_a_record_in_json() -> None:
    shown = shown_record(record(None, None, headers=(("h", None), ("i", b"x"))), 100)
    assert shown["key"] is shown["value"] is None
    assert shown["key_size"] is shown["value_size"] is None
    assert shown["headers"][0] == {"name": "h", "value": None}
    assert shown["headers"][1]["value"]["text"] == "x"
    assert (shown["partition"], shown["offset"], shown["timestamp_ms"]) == (0, 7, 1_000)
    assert shown["timestamp_type"] == "create"
    appended = record(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_ms=-1)
    shown = shown_record(appended, 100)
    assert (shown["timestamp_type"], shown["timestamp_ms"]) == ("append", None)
