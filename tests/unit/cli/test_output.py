"""Tables that fit a terminal without losing a digit, and ages of timestamps."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from moldau.cli.output import (
    Block,
    LiveView,
    OneLine,
    age_text,
    complain,
    fail,
    live_view,
    print_exception,
    print_json,
    print_rows,
    print_table,
    progress_bar,
    refusing,
    safe_bytes,
    say,
    table_lines,
    warn,
)

OFFSETS = (
    *("topic", "partition", "producer id", "producer epoch", "coordinator epoch"),
    *("last sequence", "transaction start offset"),
)
BIG = 9_223_372_036_854_775_807
NOW_MS = 1_800_000_000_000
ACTS = "\x1b]0;x\x07\x9b2J\u202e[red]\r\nforged"
"""What a tenant may call a group."""


def test_a_table_is_aligned_and_leaves_empty_columns_out():
    rows = [("a", 7, None, ""), ("long name", 12_345, "-", None)]
    assert table_lines(("group", "lag", "rack", "note"), rows) == [
        "group        lag",
        "────────────────",
        "a              7",
        "long name  12345",
    ]
    assert table_lines(("group", "lag"), [])[0] == "group  lag", "no rows: the header stays"
    assert table_lines(("group", "lag"), [(None, "-")])[-1].split() == ["-", "-"]


def test_headers_are_folded_so_that_numbers_are_not_cut():
    rows = [("t", 0, 1000, 0, 12, 345, 6789)]
    assert max(map(len, table_lines(OFFSETS, rows))) == 105
    lines = table_lines(OFFSETS, rows, width=80)
    assert lines[:3] == [
        "topic  partition  producer  producer  coordinator      last  transaction",
        "                        id     epoch        epoch  sequence        start",
        "                                                                  offset",
    ]
    assert lines[-1].split() == [str(cell) for cell in rows[0]]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_what_cannot_fit_becomes_paragraphs(width: int):
    rows = [("orders", 0, BIG, 1, 2, BIG, BIG), ("x" * 60, 1, 1, 1, 2, 3, 4)]
    lines = table_lines(OFFSETS, rows, width)
    assert lines[0] == "topic:                    orders"
    assert lines[6] == f"transaction start offset: {BIG}"
    assert lines[7] == ""
    assert lines[8] == "topic:                    " + "x" * 60
    assert len(lines) == 15


def test_sentences_are_folded_between_words_and_names_nowhere():
    text = "what this is for, said in a sentence that is longer than the line"
    lines = table_lines(("key", "what it is for"), [("k" * 30, text)] * 50, width=40)
    assert lines[:2] == ["key:            " + "k" * 30, "what it is for: what this is for, said"]
    folded = " ".join(line[16:] for line in lines[1:4])
    assert folded == text
    assert max(map(len, lines)) == 46, "only the name is longer than the line"


def test_many_rows_of_names_stay_a_table():
    rows = [("n" * 50, "m" * 50, number) for number in range(11)]
    lines = table_lines(("name", "other", "at"), rows, width=80)
    assert len(lines) == 13
    assert lines[-1] == f"{'n' * 50}  {'m' * 50}  10"
    assert len(table_lines(("name", "other", "at"), rows[:10], width=80)) == 39


def test_what_an_error_is_about_is_named_once(capsys: pytest.CaptureFixture[str]):
    for text, line in (("bad", "/a/b: bad"), ("/a/b: bad", "/a/b: bad"), ("/a/bc: bad", None)):
        with pytest.raises(SystemExit), refusing(ValueError, of="/a/b"):
            raise ValueError(text)
        assert capsys.readouterr().err == f"moldau: {line or '/a/b: /a/bc: bad'}\n"


def test_cells_forge_nothing_and_markup_is_text():
    lines = table_lines(("id",), [("a\nb",), ("\x1b[31mred",), ("[bold]x[/]",), ("広い",)])
    assert lines[2:] == [r"a\nb", r"\x1b[31mred", "[bold]x[/]", "広い"]
    assert table_lines(("id", "n"), [("広い", "a"), ("abcd", "b")])[2:] == ["広い  a", "abcd  b"]


@pytest.mark.parametrize(
    ("age_ms", "said"),
    [
        (0, "now"),
        (999, "now"),
        (-59_000, "now"),
        (1_000, "1 s ago"),
        (119_999, "119 s ago"),
        (120_000, "2 min ago"),
        (3_599_000, "59 min ago"),
        (7_200_000, "2 h ago"),
        (172_800_000, "2 days ago"),
        (NOW_MS, "20833 days ago"),
        (-90_000, "in 90 s"),
        (NOW_MS - BIG, "in 106751970333 days"),
    ],
)
def test_ages(age_ms: int, said: str):
    assert age_text(NOW_MS - age_ms, NOW_MS) == said


def test_no_time_has_no_age():
    assert [age_text(each, NOW_MS) for each in (None, -1, "soon")] == [None] * 3


def test_rows_have_ages_in_text_and_timestamps_in_json(capfdbinary: pytest.CaptureFixture[bytes]):
    rows = [{"producer_id": 4, "last_timestamp_ms": 86_400_000}]
    print_rows(("producer", "last record"), rows, as_json=False)
    text = capfdbinary.readouterr().out.decode()
    assert text.splitlines()[-2].endswith(" days ago")
    print_rows(("producer", "last record"), rows, as_json=True)
    assert b'"last_timestamp_ms": 86400000' in capfdbinary.readouterr().out


@pytest.mark.parametrize(("is_terminal", "line_count"), [(True, 7), (False, 3)])
def test_only_a_terminal_has_a_width(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
    line_count: int,
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    print_table(OFFSETS, [("t" * 70, 0, BIG, 1, 2, BIG, BIG)])
    assert len(capsys.readouterr().out.splitlines()) == line_count + 1


# -- what others have chosen --------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _blocks(name: str) -> list[Block]:
    return [Block(name, ("id", name), [(name, name)], {name: name})]


def _progress() -> None:
    with progress_bar(ACTS, 10) as bar:
        bar.advance(10)


def _exception() -> None:
    try:
        raise ValueError(ACTS)
    except ValueError as error:
        print_exception(ValueError, error, None)


def _log() -> None:
    record = logging.LogRecord("moldau.client", logging.WARNING, "", 0, "%s", (ACTS,), None)
    print(OneLine().format(record))


def _live() -> None:
    with live_view() as view:
        view.say(ACTS)
        view.show(_blocks(ACTS))


@pytest.mark.parametrize(
    ("write", "line_count"),
    [
        (lambda: say(ACTS), 1),
        (lambda: warn(ACTS), 1),
        (lambda: complain([ACTS, ACTS]), 1),
        (lambda: fail(ACTS), 1),
        (lambda: print_table((ACTS, "b"), [(ACTS, ACTS)], title=ACTS), 5),
        (lambda: print_rows((ACTS,), [{ACTS: ACTS}], as_json=False), 4),
        (lambda: LiveView(None).show(_blocks(ACTS)), 1),
        (lambda: LiveView(None).say(ACTS), 1),
        (_log, 1),
    ],
    ids=["say", "warn", "complain", "fail", "table", "rows", "live lines", "live note", "log"],
)
def test_text_of_others_is_part_of_one_line(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[], None], line_count: int
):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    with suppress(SystemExit):
        write()
    lines = stream.getvalue().split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert len(lines) == line_count + 1
    assert "[red]" in stream.getvalue()


@pytest.mark.parametrize("write", [_progress, _live, _exception])
def test_text_of_others_in_what_is_drawn_does_nothing(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]
):
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    write()
    text = stream.getvalue()
    assert [acts for acts in ("\x1b]0;", "\x07", "\x9b", "\u202e") if acts in text] == []
    assert "[red]" in text


def test_json_is_printable_and_means_the_same(capfdbinary: pytest.CaptureFixture[bytes]):
    documents = [{ACTS: ["žluť", ACTS, 1.5]}, {"file": "\udc80"}]
    for document in documents:
        print_json(document, is_row=True)
    print_json(documents)
    sys.stdout.flush()
    first, second, whole = capfdbinary.readouterr().out.decode().split("\n", 2)
    assert all(line.isprintable() for line in [first, second, *whole.split("\n")])
    assert "žluť" in first
    assert json.loads(first) == documents[0]
    assert json.loads(second) == documents[1]
    assert json.loads(whole) == documents


def test_records_on_a_terminal_keep_their_lines():
    data = "a\tb\nžluť\n".encode()
    assert safe_bytes(data) == data
    assert safe_bytes(b"\x1b[31m\xff\x00\n\n") == b"\\x1b[31m\\xff\\x00\n\n"
    line = json.dumps({"value": ACTS}, ensure_ascii=False).encode() + b"\n"
    assert json.loads(safe_bytes(line, as_json=True)) == {"value": ACTS}
    assert safe_bytes(line, as_json=True)[:-1].decode().isprintable()
