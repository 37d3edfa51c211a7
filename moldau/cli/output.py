"""What commands print: tables for people, JSON for programs, one line for errors, and progress.

Owns the console and, while a view runs, the terminal. Must not ask a cluster. Invariants: results
go to stdout, everything else to stderr; an error is one line; progress is written, and rich
imported for it, only when stderr is a terminal; away from a terminal a live view writes a line only
when something changed; when a rate line's block ends, the line ends too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

STEPS: Final = 500
"""A bar that moves more often than this only costs time."""
INTERVAL_S: Final = 0.25
CLEAR_TO_END: Final = "\x1b[K"
#: The key of a line that is about all rows.
SUMMARY: Final = ""


def fail(message: str, *, status: int = 1) -> NoReturn:
    """Print one line to stderr and exit: 1 failed, 2 wrong usage."""
    line = " ".join(str(message).split())
    print(f"moldau: {line}", file=sys.stderr)
    sys.exit(status)


def complain(errors: Iterable[object]) -> None:
    """Print a line for each thing that failed while others did not; exit with 1 if one did."""
    lines = [" ".join(str(error).split()) for error in errors]
    for line in lines:
        print(f"moldau: {line}", file=sys.stderr)
    if lines:
        sys.exit(1)


def reader_is_gone() -> NoReturn:
    """The reader of the output has closed it (`| head`): end without a complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
    sys.exit(0)


@contextmanager
def file_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """A file that cannot be used is one line; a reader of the output that has gone is the end."""
    try:
        yield
    except BrokenPipeError:
        reader_is_gone()
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")


def print_json(document: object, *, one_line: bool = False) -> None:
    """One JSON document on stdout, indented unless it is one of many."""
    import orjson

    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    options |= 0 if one_line else orjson.OPT_INDENT_2
    sys.stdout.buffer.write(orjson.dumps(document, default=str, option=options))
    sys.stdout.flush()


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[object]], *, title: str | None = None
) -> None:
    """A plain table on stdout, as wide as its content when stdout is no terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=not sys.stdout.isatty())
    table = Table(*columns, box=SIMPLE_HEAD, title=title, title_justify="left")
    if not sys.stdout.isatty():
        console.width = 100_000
        for column in table.columns:
            column.no_wrap = True
    _fill(table, rows)
    console.print(table)


def _fill(table: Table, rows: Iterable[Iterable[object]]) -> None:
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))


def print_rows(
    columns: Sequence[str], rows: Sequence[Mapping[str, object]], *, as_json: bool
) -> None:
    if as_json:
        print_json(rows)
    else:
        print_table(columns, (row.values() for row in rows))


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
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        amount,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # both on one terminal: the bar makes way for lines
        redirect_stderr=True,
    ) as progress:
        task = progress.add_task(what, total=total)
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
            f"\r{self._what}: {record_count:,} records, {byte_count / 1e6:,.1f} MB, "
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


@dataclass(frozen=True, slots=True)
class Block:
    """One table. `lines` says the same, one line per row, by what the row is about."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    lines: Mapping[str, str] = field(default_factory=dict)


class LiveView:
    """Shows blocks one after the other in the same place."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._shown: dict[str, str] = {}
        self._note = ""

    def show(self, blocks: Sequence[Block], *, gone: str = "is not there any more") -> None:
        """Replace what is shown; away from a terminal write the lines that are new, and `gone` for
        a row that was there at the last look.
        """
        self._note = ""
        if self._live is not None:
            from rich.console import Group

            drawn = [each for block in blocks for each in _drawn(block)]
            self._live.update(Group(*drawn), refresh=True)
            return
        lines = {key: line for block in blocks for key, line in block.lines.items()}
        stamp = time.strftime("%H:%M:%S")
        for key, line in lines.items():
            if self._shown.get(key) != line:
                print(f"{stamp} {line}")
        for key in sorted(self._shown.keys() - lines.keys() - {SUMMARY}):
            print(f"{stamp} {key} {gone}")
        self._shown = lines
        sys.stdout.flush()

    def say(self, line: str) -> None:
        """Write a line beside the table, for a fault that passes; the same line only once."""
        if line == self._note:
            return
        self._note = line
        print(f"moldau: {' '.join(line.split())}", file=sys.stderr, flush=True)


@contextmanager
def live_view(*, plain: bool = False) -> Iterator[LiveView]:
    """A view on stdout, of lines if `plain`; at the end the last state stays on the terminal."""
    if plain or not sys.stdout.isatty():
        yield LiveView(None)
        return
    from rich.live import Live

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        yield LiveView(live)


def _drawn(block: Block) -> Iterator[Text | Table]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    yield Text(block.title)
    if not block.columns:
        return
    table = Table(*block.columns, box=SIMPLE_HEAD)
    _fill(table, block.rows)
    yield table
