"""Records in and out of text and JSON lines, without a cluster."""

from __future__ import annotations

import io
import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.consume import FormatOptions, ReadOptions, pattern_of
from moldau.cli.record_formats import (
    PLACEHOLDERS,
    Formatter,
    InputProblem,
    InputRecord,
    JsonFormat,
    TextFormat,
    json_formatter,
    lines,
    template_formatter,
    text_formatter,
    unescaped,
    whole,
)
from moldau.client.records import ConsumerRecord, TimestampType

LIMIT = 1_000
data = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)


class Pieces:
    """A stream that hands out its bytes in pieces of any size."""

    def __init__(self, content: bytes, seed: int = 1) -> None:
        self._content = io.BytesIO(content)
        self._random = random.Random(seed)

    def read1(self, size: int, /) -> bytes:
        return self._content.read(self._random.randint(1, 7))


def consumed(
    value: bytes | None,
    key: bytes | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    timestamp_ms: int = 1_234,
) -> ConsumerRecord:
    return ConsumerRecord("t", 2, 7, timestamp_ms, TimestampType.CREATE_TIME, key, value, headers)


def split(content: bytes, delimiter: bytes | None = b"\n", limit: int = LIMIT) -> list[bytes]:
    return list(lines(Pieces(content), delimiter, limit))


@pytest.mark.parametrize(
    ("content", "delimiter", "expected"),
    [
        (b"", b"\n", []),
        (b"one\ntwo\n", b"\n", [b"one", b"two"]),
        (b"one\ntwo", b"\n", [b"one", b"two"]),
        (b"\n\nx", b"\n", [b"", b"", b"x"]),
        (b"one\r\ntwo\r\n", None, [b"one", b"two"]),
        (b"one\ntwo\r", None, [b"one", b"two"]),
        (b"one\r\r\n\n", None, [b"one\r", b""]),
        (b"one\r\ntwo\r", b"\n", [b"one\r", b"two\r"]),
        (b"one\r\0two\0", b"\0", [b"one\r", b"two"]),
        (b"one--two--three", b"--", [b"one", b"two", b"three"]),
        (b"one---two", b"--", [b"one", b"-two"]),
    ],
)
def test_input_is_split_at_delimiters(
    content: bytes, delimiter: bytes | None, expected: list[bytes]
):
    assert split(content, delimiter) == expected


@given(st.lists(st.binary(max_size=9).filter(lambda each: b"ab" not in each + b"a"), max_size=8))
def test_pieces_do_not_depend_on_how_they_are_read(parts: list[bytes]):
    content = b"".join(part + b"ab" for part in parts)
    assert split(content, b"ab") == content.split(b"ab")[:-1]


def test_a_piece_may_be_as_long_as_the_limit_and_no_longer():
    assert split(b"x" * LIMIT + b"\n") == [b"x" * LIMIT]
    with pytest.raises(InputProblem, match=r"longer than 1000 bytes.*max\.request\.size"):
        split(b"x" * (LIMIT + 1))
    with pytest.raises(InputProblem, match="longer than"):
        split(b"x" * (LIMIT + 1) + b"\n")


def test_a_whole_file_is_one_piece_up_to_the_limit():
    assert whole(Pieces(b"a\nb\0"), 4) == b"a\nb\0"
    with pytest.raises(InputProblem, match="longer than 4 bytes"):
        whole(Pieces(b"a\nb\0c"), 4)


def test_text_with_keys_and_tombstones():
    form = TextFormat(b":", b"NULL")
    assert form.record(b"k:v:w") == InputRecord(b"v:w", b"k")
    assert form.record(b"k:NULL") == InputRecord(None, b"k")
    assert form.record(b"NULL:") == InputRecord(b"", None)
    assert TextFormat().record(b"k:v") == InputRecord(b"k:v")
    with pytest.raises(InputProblem, match="no key separator ':'"):
        form.record(b"no key")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"value": "v"}', InputRecord(b"v")),
        (b'{"value": null, "key": "k"}', InputRecord(None, b"k")),
        (b'{"value": {"a": 1}}', InputRecord(b'{"a":1}')),
        (b'{"value": [1, 2.5]}', InputRecord(b"[1,2.5]")),
        (b'{"value": "\xc3\xa9"}', InputRecord("é".encode())),
        (b'{"value_base64": "AP8="}', InputRecord(b"\x00\xff")),
        (b'{"value": "v", "partition": 3}', InputRecord(b"v", partition=3)),
        (b'{"value": "v", "timestamp": 5}', InputRecord(b"v", timestamp_ms=5)),
        (
            b'{"value": "v", "timestamp": "1970-01-01T00:00:01Z"}',
            InputRecord(b"v", timestamp_ms=1_000),
        ),
        (
            b'{"value": "v", "headers": {"a": "1", "b": null}}',
            InputRecord(b"v", headers=[("a", b"1"), ("b", None)]),
        ),
        (
            b'{"value": "v", "headers": [["a", "1"], {"key": "a", "value_base64": "AA=="}]}',
            InputRecord(b"v", headers=[("a", b"1"), ("a", b"\x00")]),
        ),
        (b'{"value": "v", "topic": "x", "offset": 9}', InputRecord(b"v")),
        (b"  ", None),
    ],
)
def test_json_lines(line: bytes, expected: InputRecord | None):
    assert JsonFormat().record(line) == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", 'no "value"'),
        (b'{"valeu": "v"}', "did you mean value"),
        (b'{"value": "v", "value_base64": "AA=="}', "both"),
        (b'{"value_base64": "A"}', "not base64"),
        (b'{"value_base64": 1}', "must be a string"),
        (b'{"value": "v", "partition": -1}', "from 0 to"),
        (b'{"value": "v", "partition": true}', "from 0 to"),
        (b'{"value": "v", "timestamp": "yesterday"}', "ISO 8601"),
        (b'{"value": "v", "headers": 3}', "headers"),
        (b'{"value": "v", "headers": [{"value": "x"}]}', "headers"),
    ],
)
def test_json_that_is_no_record_says_why(line: bytes, complaint: str):
    with pytest.raises(InputProblem, match=complaint):
        JsonFormat().record(line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("\\t", b"\t"), ("\\n", b"\n"), ("\\r", b"\r"), ("\\0", b"\0"), ("\\\\", b"\\")],
        *[(":", b":"), (" ", b" "), ("\\x1f", b"\x1f"), ("\\xFF", b"\xff"), ("a\\x00b", b"a\0b")],
        ("\\\\n", b"\\n"),
    ],
)
def test_separators_may_be_escaped(text: str, expected: bytes):
    assert unescaped(text, "--delimiter") == expected


def test_separators_beyond_ascii():
    assert unescaped("→", "--delimiter") == "→".encode()


@pytest.mark.parametrize("text", ["", "\\", "\\x1", "\\xg1", "\\q", "a\\é"])
def test_separators_that_are_none(text: str):
    with pytest.raises(InputProblem, match="--delimiter"):
        unescaped(text, "--delimiter")


def text(fields: str) -> Formatter:
    return text_formatter(fields.split(","), b"|", b"\n", b"NULL")


def test_text_output_has_the_fields_asked_for():
    record = consumed(b"v", b"k", (("a", b"1"), ("b", None)))
    assert text("value")(record) == b"v\n"
    assert text("key,value")(record) == b"k|v\n"
    assert text("topic,partition,offset,timestamp,headers")(record) == b"t|2|7|1234|a:1,b:NULL\n"
    assert text("value,key")(consumed(None)) == b"NULL|NULL\n"
    assert text("value")(consumed(None)) == b"NULL\n"


@pytest.mark.parametrize(
    ("output_format", "null_value", "expected"),
    [
        ("text", None, b"null\n"),
        ("text", "", b"\n"),
        ("text", "-", b"-\n"),
        ("%v;", None, b";"),
        ("%v;", "-", b"-;"),
        ("raw", None, b""),
    ],
)
def test_nulls_are_shown_as_the_format_has_them(
    output_format: str, null_value: str | None, expected: bytes
):
    options = FormatOptions(output_format=output_format, null_value=null_value)
    formatter = options.formatter(options.typed({}))
    assert formatter(consumed(None)) == expected


def test_a_percent_sign_in_a_separator_is_itself():
    assert text_formatter(["key", "value"], b"%s", b"%%", b"-")(consumed(b"v", b"k")) == b"k%sv%%"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t %p %o %T\\n", b"t 2 7 1234\n"),
        ("%k=%v", b"\xfek=v\xff\0"),
        ("%s%%%s", b"v\xff\0%v\xff\0"),
        ("%K,%S,%h", b"2,3,a:1,b:"),
        ("%R%v", b"\0\0\0\3v\xff\0"),
        ("\\x25t\\xFF\\0%o", b"%t\xff\0007"),
        ("→%o", "→7".encode()),
        ("100%%", b"100%"),
    ],
)
def test_format_strings(template: str, expected: bytes):
    record = consumed(b"v\xff\0", b"\xfek", (("a", b"1"), ("b", None)))
    assert template_formatter(template, b"")(record) == expected


def test_format_strings_show_nulls_as_asked_and_their_size_as_in_kcat():
    record = consumed(None)
    assert template_formatter("%k|%v|%K|%S", b"")(record) == b"||-1|-1"
    assert template_formatter("%k|%v", b"NULL")(record) == b"NULL|NULL"
    assert template_formatter("%R", b"")(record) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("template", ["%x", "%v %", "%\\n", "%é", "%v\\q", "%v\\"])
def test_format_strings_that_are_none_say_what_there_is(template: str):
    with pytest.raises(InputProblem, match=r"--format") as refused:
        template_formatter(template, b"")
    text = str(refused.value)
    assert all(f"%{sign} " in text for sign in PLACEHOLDERS) or r"\n \t \r \0 \xHH" in text


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("250ms", 250),
        ("10m", HOUR_MS // 6),
        ("-10m", HOUR_MS // 6),
        ("1h30m", HOUR_MS * 3 // 2),
        ("2d", 48 * HOUR_MS),
        ("1w", 7 * 24 * HOUR_MS),
    ],
)
def test_a_span_of_time_means_so_long_ago(text: str, ago_ms: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.5)
    start = ReadOptions(timestamp=text).start()
    assert start.timestamp_ms == 2_000_000_000_500 - ago_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("1500", 1_500), ("1970-01-01T00:00:02Z", 2_000), ("1970-01-01T01:00:00+01:00", 0)],
)
def test_a_time_is_a_date_or_milliseconds(text: str, expected_ms: int):
    assert ReadOptions(timestamp=text).start().timestamp_ms == expected_ms


@pytest.mark.parametrize("text", ["10 m", "m", "1y", "1h30", "yesterday", "٣m", ""])
def test_what_is_no_time_says_what_is(text: str):
    with pytest.raises(InputProblem, match=r"--timestamp.*10m.*ISO 8601.*milliseconds"):
        ReadOptions(timestamp=text).start()


@pytest.mark.parametrize(
    ("names", "regex", "matching"),
    [
        (["^or"], False, {"orders", "or.1"}),
        (["^or", "x"], False, {"orders", "or.1", "x"}),
        (["^or$", "or.1"], False, {"or.1"}),
        (["or.1"], True, {"or.1", "orx1", "for-1"}),
        (["ders$", "^x$"], True, {"orders", "x"}),
        (["(?i:ORD)"], False, {"orders"}),
    ],
)
def test_patterns_are_found_anywhere_in_a_name(names: list[str], regex: bool, matching: set[str]):
    pattern = pattern_of(names, regex)
    assert pattern is not None
    known = ["orders", "or.1", "orx1", "for-1", "x", "xy"]
    if names[0] == "^or":
        known.remove("orx1")
    assert {name for name in known if re.fullmatch(pattern, name)} == matching


def test_names_of_topics_are_no_patterns():
    assert pattern_of(["orders", "or.1"], False) is None
    with pytest.raises(InputProblem, match="no regular expression"):
        pattern_of(["^(x"], False)


def test_json_output_names_everything():
    line = json_formatter()(consumed(b"v", b"\xff", (("h", b"1"),)))
    assert json.loads(line) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1234,
        "timestamp_type": "create",
        "key_base64": "/w==",
        "value": "v",
        "headers": [{"key": "h", "value": "1"}],
    }
    assert json.loads(json_formatter(always_base64=True)(consumed(b"v")))["value_base64"] == "dg=="


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"a":1}', {"a": 1}),
        (b"[1]", [1]),
        (b'{"a": 1}', '{"a": 1}'),  # other bytes would come back
        (b'"x"', '"x"'),
        (b"null", "null"),
        (b"x", "x"),
    ],
)
def test_json_values_appear_as_such_when_they_come_back_the_same(value: bytes, shown: object):
    line = json_formatter(json_values=True)(consumed(value))
    assert json.loads(line)["value"] == shown
    again = JsonFormat().record(line)
    assert again is not None
    assert again.value == value


@given(
    value=data,
    key=data,
    headers=st.lists(st.tuples(st.text(max_size=5), data), max_size=3),
    timestamp_ms=st.integers(0, 2**53),
    always_base64=st.booleans(),
    json_values=st.booleans(),
)
def test_what_consume_writes_produce_reads_as_the_same_record(
    value: bytes | None,
    key: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp_ms: int,
    always_base64: bool,
    json_values: bool,
):
    record = consumed(value, key, tuple(headers), timestamp_ms)
    line = json_formatter(always_base64=always_base64, json_values=json_values)(record)
    again = JsonFormat().record(line)
    assert again is not None
    assert again == InputRecord(value, key, again.headers, 2, timestamp_ms)
    assert list(again.headers) == headers
