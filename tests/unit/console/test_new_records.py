"""A record in JSON becomes bytes, or is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moldau.console.problems import Problem
from moldau.console.v3.records import NewRecord, record_of


def made(**given: Any) -> NewRecord:
    return record_of(json.dumps(given).encode())


def test_every_part_of_a_record() -> None:
    found = made(
        partition_id=1,
        headers=[{"name": "h", "value": "SGk="}, {"name": "none", "value": None}, {"name": "no"}],
        key={"type": "BINARY", "data": "AP8="},
        value={"type": "JSON", "data": {"b": [1, "ü"], "a": None}},
        timestamp="2021-02-05T19:14:42Z",
    )
    assert found == NewRecord(
        b"\x00\xff",
        '{"b":[1,"ü"],"a":null}'.encode(),
        (("h", b"Hi"), ("none", None), ("no", None)),
        1,
        1_612_552_482_000,
        "BINARY",
        "JSON",
    )


@pytest.mark.parametrize(
    ("part", "data", "kind"),
    [
        (None, None, None),
        ({"type": "STRING", "data": "ü"}, "ü".encode(), "STRING"),
        ({"type": "STRING", "data": ""}, b"", "STRING"),
        ({"type": "STRING", "data": None}, None, "STRING"),
        ({"type": "BINARY", "data": None}, None, "BINARY"),
        ({"type": "BINARY"}, None, "BINARY"),
        ({"type": "JSON", "data": None}, b"null", "JSON"),
        ({"type": "JSON", "data": 7}, b"7", "JSON"),
        ({"type": "JSON"}, None, "JSON"),
    ],
)
def test_nulls_and_types(part: Any, data: bytes | None, kind: str | None) -> None:
    found = made(value=part)
    assert (found.value, found.value_type) == (data, kind)
    assert (found.key, found.key_type, found.headers) == (None, None, ())


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (None, None),
        (12, 12),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00.123Z", 123),
    ],
)
def test_times(timestamp: Any, expected: int | None) -> None:
    assert made(timestamp=timestamp).timestamp_ms == expected


@pytest.mark.parametrize(
    ("given", "status", "why"),
    [
        ({"key": {"data": "x"}}, 422, "BINARY, JSON or STRING"),
        ({"key": {"type": "AVRO", "data": "x"}}, 422, "one of"),
        ({"key": {"type": "BINARY", "data": "!"}}, 422, "Base64"),
        ({"key": {"type": "BINARY", "data": 1}}, 422, "has to be text"),
        ({"value": {"type": "STRING", "data": {}}}, 422, "has to be text"),
        ({"value": "x"}, 422, "the record.value is string"),
        ({"headers": [{"value": "x"}]}, 422, "lacks name"),
        ({"headers": [{"name": "h", "value": "%"}]}, 422, "Base64"),
        ({"partition_id": -1}, 422, "limits"),
        ({"timestamp": "yesterday"}, 422, "timestamp"),
    ],
)
def test_what_cannot_be_a_record(given: dict[str, Any], status: int, why: str) -> None:
    with pytest.raises(Problem) as refused:
        made(**given)
    assert refused.value.status == status
    assert why in refused.value.detail


def test_what_is_no_json() -> None:
    with pytest.raises(Problem) as refused:
        record_of(b'{"key": }')
    assert refused.value.status == 400
