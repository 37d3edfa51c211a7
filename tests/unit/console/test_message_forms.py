"""Keys, values and records as the console shows them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from moldau.client import ConsumerRecord, TimestampType
from moldau.console.own.message_forms import columns_of, form_of, record_form
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.coordinator_records.classic_groups import OffsetCommitKey, OffsetCommitValue

AUTO = ("auto", "auto")


def message(
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    topic: str = "t",
) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord(topic, 0, 7, 1_000, TimestampType.CREATE_TIME, key, value, headers, 3)


@pytest.mark.parametrize(
    ("data", "how", "encoding", "text"),
    [
        (b"plain", "auto", "utf-8", "plain"),
        (b'{"a": 1.00}', "auto", "json", '{"a": 1.00}'),
        (b" [1]", "auto", "json", " [1]"),
        (b'{"a": ', "auto", "utf-8", '{"a": '),
        (b"[INFO] begun", "auto", "utf-8", "[INFO] begun"),
        (b"7", "auto", "utf-8", "7"),
        (b"7", "json", "json", "7"),
        (b"seven", "json", "utf-8", "seven"),
        (b"\xff\x00", "auto", "base64", "/wA="),
        (b"\xff\x00", "json", "base64", "/wA="),
        (b"a\xff", "text", "utf-8", "a\N{REPLACEMENT CHARACTER}"),
        (b'{"a": 1}', "text", "utf-8", '{"a": 1}'),
        (b"abc", "hex", "base64", "YWJj"),
        (b"", "auto", "utf-8", ""),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes, how: str, encoding: str, text: str) -> None:
    assert form_of(data, how, 1_000) == {
        "encoding": encoding,
        "text": text,
        "size_bytes": len(data),
        "is_truncated": False,
    }


@pytest.mark.parametrize("how", ["auto", "text", "hex", "json"])
def test_long_bytes_are_cut_and_say_so(how: str) -> None:
    form = form_of(b'["' + b"x" * 98 + b'"]', how, 12)
    assert form is not None
    assert (form["size_bytes"], form["is_truncated"]) == (102, True)
    assert form["text"] == ("WyJ4eHh4eHh4eHh4" if how == "hex" else '["xxxxxxxxxx')
    assert form["encoding"] == ("base64" if how == "hex" else "utf-8")


@pytest.mark.parametrize("how", ["auto", "text", "hex", "json"])
def test_null_stays_null(how: str) -> None:
    assert form_of(None, how, 12) is None


def test_record_has_all_that_kafka_knows_of_it() -> None:
    form = record_form(message(b"k", b"<b>", (("h", None), ("h", b"\xff"))), AUTO, 100)
    assert form == {
        "partition": 0,
        "offset": 7,
        "timestamp_ms": 1_000,
        "timestamp_type": "create",
        "key": {"encoding": "utf-8", "text": "k", "size_bytes": 1, "is_truncated": False},
        "value": {"encoding": "utf-8", "text": "<b>", "size_bytes": 3, "is_truncated": False},
        "headers": [
            {"name": "h", "value": None},
            {
                "name": "h",
                "value": {
                    "encoding": "base64",
                    "text": "/w==",
                    "size_bytes": 1,
                    "is_truncated": False,
                },
            },
        ],
        "header_count": 2,
        "key_size": 1,
        "value_size": 3,
        "leader_epoch": 3,
        "is_control": False,
    }


def test_many_headers_are_counted_and_only_some_are_shown() -> None:
    found = message(None, None, tuple((f"h{number}", b"") for number in range(5)))
    form = record_form(found, AUTO, 100, most_headers=2)
    assert [each["name"] for each in form["headers"]] == ["h0", "h1"]
    assert form["header_count"] == 5
    assert len(record_form(found, AUTO, 100, most_headers=None)["headers"]) == 5


def commit_record() -> ConsumerRecord[bytes, bytes]:
    key = CONSUMER_OFFSETS.encode_key(OffsetCommitKey(group="g", topic="t", partition=3))
    value = CONSUMER_OFFSETS.encode_value(OffsetCommitValue(offset=7, metadata="<m>"), 3)
    return message(key, value, topic="__consumer_offsets")


def test_coordinators_records_are_readable() -> None:
    found = commit_record()
    form = record_form(found, AUTO, 1_000)
    assert form["key"]["encoding"] == form["value"]["encoding"] == "record"
    assert orjson.loads(form["key"]["text"]) == {
        "keyType": "OffsetCommitKey",
        "keyData": {"group": "g", "topic": "t", "partition": 3},
    }
    assert orjson.loads(form["value"]["text"])["data"]["offset"] == 7
    assert form["value"]["size_bytes"] == len(found.value or b"")


def test_coordinators_records_are_shown_as_bytes_where_that_is_asked_for() -> None:
    form = record_form(commit_record(), ("auto", "hex"), 1_000)
    assert (form["key"]["encoding"], form["value"]["encoding"]) == ("record", "base64")


def test_unknown_records_of_coordinators_are_bytes() -> None:
    found = message(b"\x7f\xff", b"x", topic="__consumer_offsets")
    form = record_form(found, AUTO, 1_000)
    assert (form["key"]["encoding"], form["value"]["encoding"]) == ("base64", "utf-8")


def shown(*values: Any) -> list[dict[str, Any]]:
    return [record_form(message(None, orjson.dumps(value)), AUTO, 10_000) for value in values]


def test_columns_are_paths_as_filters_write_them() -> None:
    forms = shown({"id": 1, "user": {"name": "a", "a.b": 2}, "list": [{"x": 1}], "none": {}})
    assert columns_of(forms) == ["id", "user.name", 'user["a.b"]', "list", "none"]
    assert columns_of(shown({'q"': 1}, {"ä": {"b": 1}})) == ['["q\\""]', '["ä"].b']


def test_columns_are_bounded() -> None:
    assert len(columns_of(shown({f"c{number}": 1 for number in range(300)}))) == 200
    deep: Any = 1
    for _ in range(50):
        deep = {"d": deep}
    assert columns_of(shown(deep)) == ["d.d.d.d"]


def test_values_that_are_no_objects_have_no_columns() -> None:
    assert columns_of([record_form(message(None, each), AUTO, 5) for each in (None, b"x")]) == []
    assert columns_of([record_form(message(None, b'{"long": 1}'), AUTO, 5)]) == []
    assert columns_of(shown([1, 2])) == []
