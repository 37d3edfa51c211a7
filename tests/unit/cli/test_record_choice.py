"""Which records `--key`, `--grep` and `--where` want."""

from __future__ import annotations

import os

import pytest

from moldau.cli.record_choice import RecordChoice
from moldau.cli.typed_formats import typed_formats
from moldau.client import ConsumerRecord, TimestampType

BYTES = (None, None)


def record(
    key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None]
) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord("t", 0, 5, 1_000, TimestampType.CREATE_TIME, key, value, headers)


RECORDS = [
    record(b"a", b'{"id": 1}', ("h", b"red")),
    record(b"a", None),
    record(None, b'{"id": 2, "name": "red"}', ("h", None)),
    record(b"red", b"\xffplain"),
]


def wanted(choice: RecordChoice, formats: tuple[str | None, str | None] = BYTES) -> list[int]:
    is_wanted = choice.filter(typed_formats(formats, None, {}))
    assert is_wanted is not None
    return [index for index, each in enumerate(RECORDS) if is_wanted(each)]


def test_without_options_all_are_wanted():
    assert RecordChoice().filter(BYTES) is None


def test_each_option_takes_its_own():
    assert wanted(RecordChoice(key="a")) == [0, 1]
    assert wanted(RecordChoice(key="")) == []
    assert wanted(RecordChoice(grep="red")) == [0, 2, 3]
    assert wanted(RecordChoice(grep=os.fsdecode(b"\xffp"))) == [3]
    assert wanted(RecordChoice(where="value.id > 1")) == [2]
    assert wanted(RecordChoice(where="key == null")) == [2]


def test_all_that_are_given_hold():
    assert wanted(RecordChoice(key="a", grep="red")) == [0]
    assert wanted(RecordChoice(key="a", grep="red", where="value.id == 2")) == []


def test_what_has_a_format_is_looked_for_as_it_is_shown():
    is_wanted = RecordChoice(key="7", where="key > 6 and value contains 'x'").filter(
        typed_formats(("integer", None), None, {})
    )
    assert is_wanted is not None
    assert is_wanted(record((7).to_bytes(4, "big"), b"x"))
    assert not is_wanted(record((8).to_bytes(4, "big"), b"x"))
    assert not is_wanted(record(None, b"x"))


def test_a_wrong_condition_is_three_lines(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        RecordChoice(where="offset >\x1b 3").filter(BYTES)
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        r"moldau: --where: '\x1b' means nothing here: text stands in quotes",
        r"  offset >\x1b 3",
        "          ^",
    ]
