"""Output that follows a cluster: a table that is drawn anew on a terminal, lines elsewhere.

Owns the terminal while it runs. Must not ask the cluster itself. Invariant: away from a terminal a
line is written only when something changed, and rich is not imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.live import Live


#: The key of a line that is about all rows.
SUMMARY: Final = ""


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
        """Replace what is shown; away from a terminal write the lines that are new.

        Args:
            gone: what is said of a row that was there at the last look.
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
        """A line beside the table, for a fault that passes: once as long as it is the same."""
        if line == self._note:
            return
        self._note = line
        print(f"moldau: {' '.join(line.split())}", file=sys.stderr, flush=True)


@contextmanager
def live_view(*, plain: bool = False) -> Iterator[LiveView]:
    """A view on stdout; the last state stays on the terminal when the block ends.

    Args:
        plain: lines even on a terminal.
    """
    if plain or not sys.stdout.isatty():
        yield LiveView(None)
        return
    from rich.live import Live

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        yield LiveView(live)


def _drawn(block: Block) -> Iterator[Any]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    yield Text(block.title)
    if not block.columns:
        return
    table = Table(*block.columns, box=SIMPLE_HEAD)
    for row in block.rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    yield table
