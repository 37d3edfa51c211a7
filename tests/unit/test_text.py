"""Text of others: one line, nothing that a terminal acts on, not too long."""

from __future__ import annotations

import json
import sys

from moldau.text import (
    MAX_MESSAGE_CHARACTERS,
    MAX_NAME_CHARACTERS,
    did_you_mean,
    nearest_names,
    one_line,
    printable_json,
    quoted,
    short_message,
    short_name,
)

EVERY = [chr(number) for number in range(sys.maxunicode + 1)]
"""Every character of Unicode, surrogates too: names of files have those."""


def test_no_character_that_acts_is_left_and_what_prints_stays() -> None:
    whole = "".join(EVERY)
    for text in (one_line(whole), quoted(whole)):
        assert text.isprintable()
    acting = "\0\x07\b\t\n\r\x1b\x7f\x85\x9b\xad\u200b\u2028\u202a\u202e\u2066\u2069\ufeff\udc80"
    assert not any(each.isprintable() for each in acting)
    assert one_line("\x1b[31m\x9b\u202e\n") == r"\x1b[31m\x9b\u202e\n"
    assert one_line("Žluťoučký kůň 東京 🌍 [red]") == "Žluťoučký kůň 東京 🌍 [red]"


def test_json_means_the_same_when_it_is_printable() -> None:
    document = json.dumps(EVERY, ensure_ascii=False)
    assert printable_json(document).isprintable()
    assert json.loads(printable_json(document)) == json.loads(document)
    assert json.loads(quoted("a b\x1b")) == "a b\x1b"
    assert quoted("orders-1") == "orders-1"


def test_long_texts_are_cut() -> None:
    name, message = "n" * MAX_NAME_CHARACTERS, "m" * MAX_MESSAGE_CHARACTERS
    assert short_name(name) == name
    assert short_name(f"{name}n") == f"{name}… ({MAX_NAME_CHARACTERS + 1} characters)"
    assert short_message(message) == message
    assert short_message(f"{message}m") == f"{message}…"


def test_the_nearest_names_are_found_whatever_their_case() -> None:
    known = ["minPartitions", "maxRecords", "log.segment.bytes"]
    assert nearest_names("MINPARTITION", known) == ["minPartitions"]
    assert nearest_names("LOG_SEGMNT_BYTES", known, likeness=0.8) == ["log.segment.bytes"]
    assert nearest_names("zzz", known) == []
    assert nearest_names("topi", ["topics", "topic", "planes"], most=2) == ["topic", "topics"]
    assert nearest_names("a" * 100_000, ["a" * MAX_NAME_CHARACTERS]) == ["a" * MAX_NAME_CHARACTERS]


def test_a_complaint_about_an_unknown_name_asks_for_the_nearest() -> None:
    assert did_you_mean("valeu", ["key", "value"], "; known are all") == "; did you mean value?"
    assert did_you_mean("zzz", ["key", "value"], "; known are all") == "; known are all"
    assert did_you_mean("ab1", ["ab2", "ab3"], most=3) == "; did you mean ab3 or ab2?"
