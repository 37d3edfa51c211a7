"""What conditions mean, what is refused and how, and the limits, with random texts and records."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client import ConsumerRecord, TimestampType
from moldau.record_filter import FilterError, compile_filter
from moldau.record_filter.syntax import (
    COMPARISONS,
    FIELDS,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_STEPS,
    WORDS,
)

Record = ConsumerRecord[bytes, bytes]
ORDER = {
    "user": {"id": 7, "a b": "x", "name": "Žofie"},
    "items": [{"n": 1}, 2, "z", None],
    "ok": True,
    "price": 2.5,
    "none": None,
    "in": 3,
    "big": 2**63,
}
HEADERS = (("h", b"1"), ("h", b"12"), ("json", b'{"a": 1}'), ("null", None), ("bin", b"\xff"))


def record(
    value: bytes | None = json.dumps(ORDER).encode(),
    key: bytes | None = b"K1",
    headers: tuple[tuple[str, bytes | None], ...] = HEADERS,
    timestamp_ms: int = 1_782_864_000_000,  # 2026-07-01
) -> Record:
    kind = TimestampType.CREATE_TIME
    return ConsumerRecord("orders", 1, 5, timestamp_ms, kind, key, value, headers)


@pytest.mark.parametrize(
    "text",
    [
        'topic == "orders"',
        "partition = 1 and offset != 4",
        "offset > 4 && offset >= 5 && offset < 6 && offset <= 5",
        'key == "K1"',
        "key = 'K1'",
        'key startswith "K" and key endswith "1"',
        'not key startswith "X"',
        'key not startswith "X"',
        'key in ["K0", "K1"]',
        "key not in ('K0', null)",
        'value contains "Žofie" or value contains "\\u017dofie" or value contains "\\\\u017dofie"',
        "value.user.id == 7",
        "value.user.id == 7.0",
        'value["user"]["a b"] == "x"',
        'value.user.name > "Zz" and value.user.name == "\\u017dofie"',
        "value.items[0].n == 1 and value.items[1] == 2 and value.items[-2] == 'z'",
        'value.items contains "z" and "z" in value.items and 2 in value.items',
        "null in value.items",
        '"id" in value.user and value.user contains "a b"',
        '"no" not in value.user',
        "value.ok",
        "value.ok == true and value.ok != false",
        "value.price * 2 == 5 and value.price + -1 > 1 and 7 % 4 - 3 == 0 and -offset == 0 - 5",
        "1 + 2 * 3 == 7 and (1 + 2) * 3 == 9 and 8 - 4 - 2 == 2",
        "value.in == 3",
        "value.big == 9223372036854775808",
        "value.none == null and value.missing == null and value.items[9] == null",
        "value.missing.deeper[3].still == null and value.user.id.x == null",
        'headers["h"] == "12" and headers.h == 12 and headers.h > 11',
        "headers.json.a == 1",
        '"h" in headers and headers contains "null" and "q" not in headers',
        "headers.null == null and headers.q == null and headers.bin != null",
        'timestamp == "2026-07-01" and timestamp < "2026-07-01T00:00:00.001Z"',
        'timestamp >= "2026-07-01T02:00:00+02:00" and timestamp == 1782864000000',
        "FALSE or not False AND TRUE",
        "false and false or true",
        "partition in [1] and partition in (0, -1, 1)",
        "1 / 0 == null and offset % 0 == null",
        "1 == 1.0 and 1e3 == 1000 and .5 < 1",
    ],
)
def test_condition_is_true(text: str):
    assert compile_filter(text)(record())
    assert not compile_filter(f"not ({text})")(record())


@pytest.mark.parametrize(
    "text",
    [
        "value.user.id == '7'",
        "value.ok == 1",
        "value.ok == 'true'",
        "1 in [true]",
        "value.user",
        "value.user.id",
        "value.user == value.user",
        "value.items == value.items",
        "value.missing < 3",
        "value.missing >= 3",
        "value.user.id < 'x'",
        "value.ok < value.ok",
        "value.missing + 1 == 1",
        "value.user.name * 2 == 2",
        "offset % 0 > 0",
        "value.missing contains 'x'",
        "value.user.id contains '7'",
        "value.missing in [1, 2]",
        "value.items in ['z']",
        "headers.null > 'a'",
        "key > 5",
        "key in [1, true]",
    ],
)
def test_values_of_two_kinds_are_never_alike(text: str):
    assert not compile_filter(text)(record())


def test_a_tombstone_and_a_missing_key_are_null():
    is_wanted = compile_filter("value == null and key == null and value.x == null")
    assert is_wanted(record(None, None))
    assert not is_wanted(record())
    assert not compile_filter('value contains "" or key < "a" or key >= ""')(record(None, None))


def test_a_record_without_a_time_has_none():
    assert compile_filter("timestamp == null")(record(timestamp_ms=-1))
    assert not compile_filter("timestamp < 5")(record(timestamp_ms=-1))


def test_a_value_that_is_no_json_has_no_parts():
    assert compile_filter("value.x == null and value contains 'no'")(record(b"no {json"))
    deep = b"[" * 5_000 + b"]" * 5_000
    assert compile_filter("value[0] == null")(record(deep))


def test_bytes_that_are_no_text_are_searched_too():
    is_wanted = compile_filter('value startswith "a" and value != headers.bin and value > "a"')
    assert is_wanted(record(b"a\xff\xfe"))
    assert compile_filter("topic != value and value.x != value")(record(b"\xff"))


def test_a_number_in_bytes_is_one_beside_a_number():
    is_wanted = compile_filter("value > 9 and value + 1 == 11 and value in [3, 10]")
    assert is_wanted(record(b"10"))
    assert not is_wanted(record(b"ten"))
    assert not compile_filter("value > 9")(record(b"1" * 50))


def test_a_document_is_decoded_once_and_only_where_it_is_needed():
    decoded: list[bytes] = []

    def decode(data: bytes) -> Any:
        decoded.append(data)
        return {"id": 1}

    text = 'topic == "orders" and (value.id == 2 or value.id == 1) or value.id == 3'
    assert compile_filter(text, decode_value=decode)(record(b"v"))
    assert decoded == [b"v"]
    assert not compile_filter("partition == 9 and value.id == 1", decode_value=decode)(record(b"v"))
    assert decoded == [b"v"]
    assert compile_filter("key.id == 1 and key != null", decode_key=decode)(record())


def test_what_a_decoder_raises_is_raised():
    def decode(data: bytes) -> Any:
        raise RuntimeError(f"no schema for {data!r}")

    with pytest.raises(RuntimeError, match="no schema"):
        compile_filter("value > 5", decode_value=decode)(record())


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "a condition is missing"),
        ("   ", 3, "a condition is missing"),
        ("value.x ==", 10, "expected a field, a number, or text in quotes, not the end"),
        ("value.x == 1 1", 13, "expected and, or, or the end, not 1"),
        ("vlaue.x == 1", 0, "did you mean value?"),
        ("value.x == abc", 11, "text stands in quotes"),
        ("value.user-id == 1", 11, 'value["user-id"]'),
        ("(value.x == 1", 13, "expected ')' (for character 1)"),
        ("value.x == 1)", 12, "not )"),
        ('key == "K', 7, "the quote is not closed"),
        ('key == "\\q"', 8, "escapes are"),
        ('key == "\\ud800"', 7, "surrogates"),
        ("key == \udcff", 7, "no character"),
        ("key @ 1", 4, "'@' means nothing here"),
        ("value.x == 12abc", 13, "a number ends here"),
        (f"offset == {'1' * 41}", 10, "at most 40 digits"),
        ('value.startsWith("x")', 16, "nothing can be called"),
        ("len(value) == 1", 0, "there is no field len"),
        ("value is null", 6, "write == null"),
        ('key like "x%"', 4, "patterns do not exist"),
        ('key matches "(a+)+"', 4, "patterns do not exist"),
        ("value.x not 5", 12, "expected in, contains, startswith, endswith"),
        ("1 < 2 < 3", 6, "write a < b and b < c"),
        ("key", 0, "key is no condition: compare it"),
        ("offset and true", 0, "offset is no condition"),
        ("1", 0, "this is no condition"),
        ('offset == "5"', 7, "numbers stand without quotes"),
        ('offset in ["5"]', 7, "numbers stand without quotes"),
        ('"a" + 1 == 2', 0, "nothing to calculate with"),
        ("offset < null", 7, "< is for numbers and for text"),
        ("offset contains 5", 7, "a number has nothing in it"),
        ("key contains 5", 4, "text has text in it"),
        ('headers == "x"', 8, "headers are many"),
        ("headers[0] == 1", 0, "a header has a name"),
        ("value == [1]", 9, "a list stands behind in"),
        ("value in []", 10, "expected a number, or text in quotes, not ]"),
        ("value[1.5] == 1", 6, "expected a name in quotes, or a whole number"),
        ("value. == 1", 7, "expected a name"),
        ("topic.x == 1", 5, "topic has no parts"),
        ('timestamp > "yesterday"', 12, '"2026-07-01"'),
    ],
)
def test_a_wrong_condition_is_refused_at_its_place(text: str, position: int, message: str):
    with pytest.raises(FilterError) as refused:
        compile_filter(text)
    assert message in refused.value.message
    assert refused.value.position == position
    assert str(refused.value) == f"{refused.value.message} (at character {position + 1})"


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("value.x == @", "value.x == @", 11),
        ('"日本" == @', '"日本" == @', 10),
        ('key == "\x1b" or @', r'key == "\x1b" or @', 17),
        ("true or " * 20 + "@", f"…{('true or ' * 20)[-50:]}@", 51),
    ],
)
def test_a_caret_stands_below_the_place(text: str, line: str, column: int):
    with pytest.raises(FilterError) as refused:
        compile_filter(text)
    assert refused.value.marked() == (line, f"{' ' * column}^")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("true " * MAX_CHARACTERS, f"at most {MAX_CHARACTERS:,}"),
        ("(" * (MAX_DEPTH + 1) + "true" + ")" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} deep"),
        ("not " * (MAX_DEPTH + 1) + "true", f"more than {MAX_DEPTH} deep"),
        ("- " * (MAX_DEPTH + 1) + "offset == 1", f"more than {MAX_DEPTH} deep"),
        ("0" + " + 1" * (MAX_DEPTH + 1) + " == 1", f"more than {MAX_DEPTH} deep"),
        ("value.x == 1 or " * (MAX_STEPS // 4) + "true", f"at most {MAX_STEPS} steps"),
        (f"value{'.x' * MAX_STEPS} == 1", f"at most {MAX_STEPS} steps"),
    ],
)
def test_what_is_too_long_too_deep_or_too_much_is_refused(text: str, message: str):
    with pytest.raises(FilterError) as refused:
        compile_filter(text)
    assert message in refused.value.message


def test_what_is_within_the_limits_works():
    assert compile_filter("(" * MAX_DEPTH + "true" + ")" * MAX_DEPTH)(record())
    assert compile_filter("value.user.id == 1 or " * 100 + "true")(record())
    many = ",".join(map(str, range(800)))
    assert compile_filter(f"offset in [{many}]")(record())


# -- anything at all -------------------------------------------------------------------------------

words = st.sampled_from(
    [
        *(*FIELDS, *WORDS, *COMPARISONS, "&&", "||", "!", "(", ")", "[", "]", ".", ",", "-", "+"),
        *("*", "/", "%", '"x"', '"2026-07-01"', "'é'", "0", "7", "2.5", "1e400", "user", "id"),
        *(".user", ".items", "[0]", "[-1]", '["a b"]', "is", "like", "\\", '"', " ", "@"),
    ]
)
texts = st.one_of(
    st.text(max_size=60),
    st.lists(words, max_size=30).map(" ".join),
    st.lists(words, max_size=30).map("".join),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["x", 7, 2.5]),
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["user", "items", "id", "a b", "x"]), inner, max_size=4),
    ),
    max_leaves=12,
)
raw = st.one_of(st.none(), st.binary(max_size=20), documents.map(lambda d: json.dumps(d).encode()))
records = st.builds(
    record,
    raw,
    raw,
    st.lists(st.tuples(st.sampled_from(["x", "h", "user"]), raw), max_size=3).map(tuple),
    st.integers(-1, 2**63 - 1),
)
paths = st.sampled_from(
    [
        *("value", "value.user", "value.user.id", "value.items", "value.items[0]", "value.x"),
        *("key", "key.id", "headers.x", "headers.h.id", "timestamp", "offset", "partition"),
    ]
)
literals = st.one_of(
    st.sampled_from(["null", "true", "false", '"x"', "7", "2.5", "-1", '"2026-07-01"', '""']),
    st.integers(-(10**39), 10**39).map(str),
    st.text(max_size=5).map(json.dumps),
)
operands = st.recursive(
    paths | literals,
    lambda inner: st.tuples(inner, st.sampled_from("+-*/%"), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=6,
)
comparisons = st.tuples(operands, st.sampled_from([*COMPARISONS, "not in"]), operands).map(" ".join)
choices = st.tuples(paths, st.lists(literals, min_size=1, max_size=4)).map(
    lambda parts: f"{parts[0]} in [{', '.join(parts[1])}]"
)
conditions = st.recursive(
    comparisons | choices,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map(lambda each: f"not ({each})"),
    ),
    max_leaves=6,
)


@given(texts, records)
def test_any_text_is_a_filter_or_refused(text: str, given_record: Record):
    _judge(text, given_record)


@given(conditions, records)
def test_any_condition_is_true_or_false_or_refused(text: str, given_record: Record):
    found = _judge(text, given_record)
    if found is not None:
        assert compile_filter(f"not ({text})")(given_record) is not found
        assert compile_filter(f"({text}) or not ({text})")(given_record)
        assert not compile_filter(f"({text}) and not ({text})")(given_record)


@given(st.tuples(paths, st.lists(literals, min_size=1, max_size=4)), records)
def test_a_list_is_the_same_as_its_values_one_by_one(
    parts: tuple[str, list[str]], given_record: Record
):
    field, values = parts
    one_by_one = " or ".join(f"{field} == {each}" for each in values)
    try:
        is_equal = compile_filter(one_by_one)
    except FilterError:
        return
    if field == "timestamp" and '"2026-07-01"' in values:
        return  # a moment beside == alone
    assert compile_filter(f"{field} in [{', '.join(values)}]")(given_record) == is_equal(
        given_record
    )


@given(operands, operands, records)
def test_order_and_equality_fit_together(one: str, other: str, given_record: Record):
    try:
        less, more, same, at_most = (
            compile_filter(f"{one} {sign} {other}")(given_record) for sign in ("<", ">", "==", "<=")
        )
        assert compile_filter(f"{other} > {one}")(given_record) == less
        assert compile_filter(f"{other} == {one}")(given_record) == same
    except FilterError:
        return
    assert less + more + same <= 1
    assert at_most == less or (at_most and same)


def _judge(text: str, given_record: Record) -> bool | None:
    """The outcome of a filter, whose calls are counted; None when it is refused."""
    refused: FilterError | None = None
    try:
        is_wanted = compile_filter(text)
    except FilterError as error:
        refused = error
    if refused is not None:
        assert 0 <= refused.position <= len(text)
        line, caret = refused.marked()
        assert line.isprintable()
        assert caret.strip() == "^"
        return None
    call_count = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal call_count
        call_count += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = is_wanted(given_record)
    finally:
        sys.setprofile(before)
    assert isinstance(found, bool)
    assert call_count <= 4 * min(len(text), MAX_STEPS) + 4
    return found


def test_calculations_never_end_in_an_error():
    huge = record(json.dumps({"a": 1.7e308, "b": -(2**63), "c": 10**18}).encode())
    for sign in "+-*/%":
        for one in ("value.a", "value.b", "value.c", "1e400", "9" * 40, "0"):
            for other in ("value.a", "value.b", "value.c", "1e400", "9" * 40, "0"):
                text = f"({one} {sign} {other}) * value.c % value.a > 0"
                assert compile_filter(text)(huge) in (True, False)
    assert math.isinf(float("1e400"))
