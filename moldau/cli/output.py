"""What commands print: tables for people, JSON for programs, one line for errors, and progress.

Owns the console and, while a view runs, the terminal: no command writes past it. Must not ask a
cluster. Invariants: what others have chosen (names, records, words of a broker) reaches a terminal
without what it would act on, and is no line of its own; results
go to stdout, everything else to stderr; an error is one line; progress is written, and rich
imported for it, only when stderr is a terminal; away from a terminal a live view writes a line only
when something changed; when a rate line's block ends, the line ends too.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, NoReturn, TextIO
from unicodedata import east_asian_width

from moldau.text import one_line, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

INTERRUPTED: Final = 130
"""The exit code of a command that Ctrl-C ended."""
STEPS: Final = 500
"""A bar that moves more often than this only costs time."""
INTERVAL_S: Final = 0.25
YES: Final = ("y", "yes")
NO: Final = ("", "n", "no")
CLEAR_TO_END: Final = "\x1b[K"
#: The key of a line that is about all rows.
SUMMARY: Final = ""
GAP: Final = "  "
#: A cell with so many is a sentence.
FEWEST_SPACES: Final = 3
#: More of them are worse to read than lines that are too long.
MOST_PARAGRAPHS: Final = 10
LEAST_WIDTH: Final = 20
#: So far apart clocks of a cluster may be.
CLOCK_SKEW_S: Final = 60
#: Name, seconds, and the age from which on the next one is taken.
AGE_UNITS: Final = (
    *(("s", 1, 120.0), ("min", 60, 7_200.0), ("h", 3_600, 172_800.0)),
    ("days", 86_400, math.inf),
)
_NUMBER: Final = re.compile(r"-?[\d,.]*")
#: All that is not printable ASCII, a tab or a line feed.
_ACTING: Final = re.compile(rb"[^\t\n -~]")
_LINE: Final = re.compile(r"[^\n\t]+")


def say(line: str = "") -> None:
    """Print one line to stdout."""
    print(one_line(line))


def warn(message: object, *, stream: TextIO | None = None) -> None:
    """Print one line of the command's own to stderr, or to that stream."""
    line = one_line(" ".join(str(message).split()))
    print(f"moldau: {line}", file=stream or sys.stderr, flush=True)


def fail(message: str, *, status: int = 1) -> NoReturn:
    """Print one line to stderr and exit: 1 failed, 2 wrong usage."""
    warn(message)
    sys.exit(status)


def complain(outcomes: Iterable[object]) -> None:
    """Print a line for each thing that failed (an error, or text) while others did not, and one for
    what failed alike; exit with 1 if one did.
    """
    errors = (each for each in outcomes if isinstance(each, str | Exception))
    lines = dict.fromkeys(" ".join(str(error).split()) for error in errors)
    for line in lines:
        warn(line)
    if lines:
        sys.exit(1)


def print_exception(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """What the interpreter does with an exception that has no handler: a fault of the command."""
    from traceback import format_exception

    for line in "".join(format_exception(error)).rstrip().split("\n"):
        print(one_line(line), file=sys.stderr)


def error_console() -> Console:
    """Stderr for a view of others, which take what prints only and without markup to it."""
    from rich.console import Console

    return Console(stderr=True)


def can_ask() -> bool:
    """Whether a person can answer: where questions are shown, and where words come from, are a
    terminal.
    """
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask for yes or no on the terminal; a line without a word, and Ctrl-D, are no."""
    line = one_line(" ".join(question.split()))
    while True:
        print(f"moldau: {line} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            print(file=sys.stderr)
        word = answer.strip().lower()
        if word in YES or word in NO:
            return word in YES


class OneLine(logging.Formatter):
    """A line of a log as the command's own."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(f"moldau: {record.getMessage()}")


def print_own(text: str, *, to_stderr: bool = False) -> None:
    """Print text of several lines that is the command's own, as its help is."""
    print(text, file=sys.stderr if to_stderr else sys.stdout)


@contextmanager
def file_errors(path: str | os.PathLike[str], *, status: int = 1) -> Iterator[None]:
    """A file that cannot be used is one line."""
    try:
        yield
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", status=status)


@contextmanager
def refusing(*kinds: type[Exception], of: object = "", status: int = 2) -> Iterator[None]:
    """An error of these kinds is one line, behind what it is about, and that exit status. One that
    begins with that already, as with the path of a file, is left as it is.
    """
    try:
        yield
    except kinds as error:
        text = str(error)
        fail(f"{of}: {text}" if of and not text.startswith(f"{of}: ") else text, status=status)


def print_json(document: object, *, is_row: bool = False) -> None:
    """One JSON document on stdout, indented unless it is a row of many."""
    import orjson

    options = orjson.OPT_NON_STR_KEYS | (0 if is_row else orjson.OPT_INDENT_2)
    try:
        data = orjson.dumps(document, default=str, option=options)
    except orjson.JSONEncodeError:  # names of files may have lone surrogates
        data = json.dumps(document, default=str, indent=None if is_row else 2).encode()
    sys.stdout.buffer.write(safe_bytes(data, as_json=True) + b"\n")
    if not is_row:
        sys.stdout.flush()


def safe_bytes(data: bytes, *, as_json: bool = False) -> bytes:
    """Lines of text without what a terminal acts on, but for line feeds and tabs.

    Args:
        as_json: whether they are JSON, which then means the same.
    """
    if not _ACTING.search(data):
        return data
    escape = printable_json if as_json else one_line
    text = data.decode(errors="backslashreplace")
    return _LINE.sub(lambda found: escape(found[0]), text).encode()


def byte_output() -> BinaryIO:
    """The standard output for what is wanted to the byte: records, and files made of them. What
    goes to a terminal goes through `safe_bytes` first.
    """
    return sys.stdout.buffer


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[object]], *, title: str | None = None
) -> None:
    """A plain table on stdout; it fits a terminal, and is as wide as its content elsewhere."""
    from shutil import get_terminal_size

    width = get_terminal_size().columns if sys.stdout.isatty() else None
    if title:
        say(title)
    for line in (*table_lines(columns, rows, width), ""):
        say(line)


def table_lines(
    columns: Sequence[str], rows: Iterable[Iterable[object]], width: int | None = None
) -> list[str]:
    """The lines of a table, without the columns that say nothing in any row.

    If it is wider than `width`, headers are folded, cells never. If that does not help, each row
    becomes a paragraph; but lines stay too long when there are many rows, and no sentence in them.
    """
    cells = [["-" if cell in (None, "") else one_line(str(cell)) for cell in row] for row in rows]
    columns = [one_line(name) for name in columns]
    told = [index for index in range(len(columns)) if any(row[index] != "-" for row in cells)]
    table = list(zip(columns, *cells, strict=True))
    table = [table[index] for index in told] or table
    widths = [max(map(_columns_of, column)) for column in table]
    gaps = len(GAP) * (len(table) - 1)
    if width is not None and sum(widths) + gaps > width:
        words = [(*name.split(), *column) for name, *column in table]
        widths = [max(map(_columns_of, column)) for column in words]
        has_prose = any(cell.count(" ") >= FEWEST_SPACES for row in cells for cell in row)
        if sum(widths) + gaps > width and (has_prose or len(cells) <= MOST_PARAGRAPHS):
            return _paragraphs(table, width)
    heads = [_folded(name, each) for (name, *_), each in zip(table, widths, strict=True)]
    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    rule = ("─" if is_utf else "-") * (sum(widths) + gaps)
    is_number = [all(map(_NUMBER.fullmatch, column[1:])) for column in table]

    def line(row: Sequence[str]) -> str:
        padded = [
            blanks + cell if right else cell + blanks
            for cell, width, right in zip(row, widths, is_number, strict=True)
            for blanks in [" " * (width - _columns_of(cell))]
        ]
        return GAP.join(padded).rstrip()

    body = zip(*(column[1:] for column in table), strict=True)
    return [*map(line, zip_longest(*heads, fillvalue="")), rule, *map(line, body)]


def _paragraphs(table: Sequence[Sequence[str]], width: int) -> list[str]:
    """Each row as lines of `name: value`, and an empty line between two rows."""
    names, *rows = zip(*table, strict=True)
    indent = max(map(len, names)) + 2
    lines: list[str] = []
    for row in rows:
        for name, cell in zip(names, row, strict=True):
            first, *others = _folded(cell, max(LEAST_WIDTH, width - indent))
            lines.append(f"{name + ':':<{indent}}{first}")
            lines += [" " * indent + other for other in others]
        lines.append("")
    return lines[:-1]


def _folded(text: str, width: int) -> list[str]:
    from textwrap import wrap

    return wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]


def _columns_of(text: str) -> int:
    """How many columns a terminal takes for it."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def age_text(timestamp_ms: object, now_ms: int | None = None) -> str | None:
    """How long ago that was, as `3 min ago`; None for what is no time."""
    if not isinstance(timestamp_ms, int) or timestamp_ms < 0:
        return None
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    seconds = (now_ms - timestamp_ms) // 1000
    if -CLOCK_SKEW_S < seconds < 1:
        return "now"
    unit, unit_s, _ = next(each for each in AGE_UNITS if abs(seconds) < each[2])
    length = f"{abs(seconds) // unit_s} {unit}"
    return f"{length} ago" if seconds > 0 else f"in {length}"


def print_rows(
    columns: Sequence[str], rows: Sequence[Mapping[str, object]], *, as_json: bool
) -> None:
    """The same rows as JSON or as a table, where a timestamp is an age."""
    if as_json:
        print_json(rows)
        return
    shown = (
        (age_text(cell) if name.endswith("timestamp_ms") else cell for name, cell in row.items())
        for row in rows
    )
    print_table(columns, shown)


def size_text(byte_count: int) -> str:
    value = float(byte_count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


class ProgressBar:
    """Goes from 0 to `total`, in bytes or in things."""

    def __init__(self, draw: Callable[[int], None] | None, total: int) -> None:
        self._draw = draw
        self._step = max(1, total // STEPS)
        self._shown = 0
        self.done = 0

    def advance(self, amount: int) -> None:
        self.move_to(self.done + amount)

    def move_to(self, done: int) -> None:
        self.done = done
        if self._draw is not None and abs(done - self._shown) >= self._step:
            self._draw(done)
            self._shown = done


@contextmanager
def progress_bar(what: str, total: int, *, in_bytes: bool = False) -> Iterator[ProgressBar]:
    """A bar while the block runs; it disappears at the end, also when the block raises."""
    if not sys.stderr.isatty():
        yield ProgressBar(None, total)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        amount,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # both on one terminal: the bar makes way for lines
        redirect_stderr=True,
    ) as progress:
        task = progress.add_task(one_line(what), total=total)
        yield ProgressBar(lambda done: progress.update(task, completed=done), total)


class RateLine:
    """Shows a count, an amount and the rate of the last moments; `update` may be called often."""

    def __init__(self, what: str, *, shown: bool) -> None:
        self._what = what
        self._shown = shown
        self._begin = self._last = time.monotonic()
        self._last_count = 0
        self._written = False

    def update(self, record_count: int, byte_count: int) -> None:
        """Show the totals; the line changes a few times per second."""
        if not self._shown:
            return
        now = time.monotonic()
        if now - self._last >= INTERVAL_S:
            rate = (record_count - self._last_count) / (now - self._last)
            self._write(record_count, byte_count, rate)
            self._last, self._last_count = now, record_count

    def finish(self, record_count: int, byte_count: int) -> None:
        """Show the last totals, with the rate of the whole run, and end the line."""
        if self._shown:
            seconds = max(time.monotonic() - self._begin, 1e-9)
            self._write(record_count, byte_count, record_count / seconds)
            self.end()

    def end(self) -> None:
        if self._written:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._written = False

    def _write(self, record_count: int, byte_count: int, rate: float) -> None:
        sys.stderr.write(
            f"\r{one_line(self._what)}: {record_count:,} records, {byte_count / 1e6:,.1f} MB, "
            f"{rate:,.0f} records/s{CLEAR_TO_END}"
        )
        sys.stderr.flush()
        self._written = True


@contextmanager
def rate_line(what: str, *, beside_terminal: bool) -> Iterator[RateLine]:
    """A line while the block runs; none where records themselves come from or go to a terminal."""
    line = RateLine(what, shown=sys.stderr.isatty() and not beside_terminal)
    try:
        yield line
    finally:
        line.end()


class Block(NamedTuple):
    """One table. `lines` says the same, one line per row, by what the row is about."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    lines: Mapping[str, str] = MappingProxyType({})


class LiveView:
    """Shows blocks one after the other in the same place."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._shown: dict[str, str] = {}
        self._note = ""

    def show(self, blocks: Sequence[Block], *, gone: str = "is not there any more") -> None:
        """Replace what is shown; away from a terminal write the lines that are new, and `gone` for
        a row that the last look showed.
        """
        self._note = ""
        if self._live is not None:
            from rich.text import Text

            width = self._live.console.width
            drawn = [line for block in blocks for line in _drawn(block, width)]
            self._live.update(Text("\n".join(drawn)), refresh=True)
            return
        lines = {key: line for block in blocks for key, line in block.lines.items()}
        stamp = time.strftime("%H:%M:%S")
        for key, line in lines.items():
            if self._shown.get(key) != line:
                say(f"{stamp} {line}")
        for key in sorted(self._shown.keys() - lines.keys() - {SUMMARY}):
            say(f"{stamp} {key} {gone}")
        self._shown = lines
        sys.stdout.flush()

    def say(self, line: str) -> None:
        """Write a line beside the table, for a fault that passes; the same line only once."""
        if line == self._note:
            return
        self._note = line
        warn(line)


@contextmanager
def live_view(*, plain: bool = False) -> Iterator[LiveView]:
    """A view on stdout, of lines if `plain`; at the end the last state stays on the terminal."""
    if plain or not sys.stdout.isatty():
        yield LiveView(None)
        return
    from rich.live import Live

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        yield LiveView(live)


def _drawn(block: Block, width: int) -> Iterator[str]:
    yield one_line(block.title)
    if block.columns:
        yield from table_lines(block.columns, block.rows, width)
    yield ""
