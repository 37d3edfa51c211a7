"""What commands print: tables for people, JSON for programs, one line for errors.

Owns the console. Invariant: results go to stdout, everything else to stderr; an error is one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


def fail(message: str, *, status: int = 1) -> NoReturn:
    """Print one line to stderr and exit: 1 failed, 2 wrong usage."""
    line = " ".join(str(message).split())
    print(f"moldau: {line}", file=sys.stderr)
    sys.exit(status)


def complain(errors: Iterable[object]) -> None:
    """Print one line for each thing that failed while others did not, and exit with status 1 if
    there was one.
    """
    lines = [" ".join(str(error).split()) for error in errors]
    for line in lines:
        print(f"moldau: {line}", file=sys.stderr)
    if lines:
        sys.exit(1)


def reader_is_gone() -> NoReturn:
    """Whoever read our output has seen enough (`| head`): end without a complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
    sys.exit(0)


def print_json(document: Any, *, one_line: bool = False) -> None:
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
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    console.print(table)


def size_text(byte_count: int) -> str:
    """Bytes as people read them."""
    value = float(byte_count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")
