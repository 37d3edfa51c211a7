"""How far a long command is: a bar on stderr, for people only.

Owns the bar. Invariant: nothing is written, and rich is not even imported, unless stderr is a
terminal; results on stdout are never mixed with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

STEPS: Final = 500
"""A bar that moves more often than this only costs time."""


class ProgressBar:
    """Goes from 0 to `total`, in bytes or in things."""

    def __init__(self, progress: Progress | None, task: TaskID | None, total: int) -> None:
        self._progress = progress
        self._task = task
        self._step = max(1, total // STEPS)
        self._shown = 0
        self.done = 0

    def advance(self, amount: int) -> None:
        """So much more is done."""
        self.move_to(self.done + amount)

    def move_to(self, done: int) -> None:
        """So much is done altogether."""
        self.done = done
        if self._progress is not None and abs(done - self._shown) >= self._step:
            assert self._task is not None
            self._progress.update(self._task, completed=done)
            self._shown = done


@contextmanager
def progress_bar(what: str, total: int, *, in_bytes: bool = False) -> Iterator[ProgressBar]:
    """A bar while the block runs; it disappears at the end, also when the block raises."""
    if not sys.stderr.isatty():
        yield ProgressBar(None, None, total)
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
        yield ProgressBar(progress, progress.add_task(what, total=total), total)
