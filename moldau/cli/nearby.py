"""What offline tools say about a directory that is not the one they are for.

Must not read a file: each tool says what it looks for. Invariant: what is proposed would do; the
search ends after MOST_DIRECTORIES, however big the disk is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from moldau.cli.output import fail
from moldau.text import nearest_names

MOST_DIRECTORIES: Final = 1_000
MOST_PROPOSED: Final = 3
#: How far up and down.
LEVELS: Final = 2

Fits = Callable[[str], bool]
"""Whether a directory is what a tool is for; an OSError is no."""


@contextmanager
def directory_errors(path: str, fits: Fits) -> Iterator[None]:
    """A directory that a tool cannot use is one line, and status 1; it names one near by that fits:
    one or two levels below or above, or with nearly the same name.
    """
    try:
        yield
    except OSError as error:
        is_path = str(error.filename).rstrip("/") == path.rstrip("/")
        is_place = isinstance(error, FileNotFoundError | NotADirectoryError)
        hint = nearby(path, fits) if is_path and is_place else ""
        fail(f"{path}: {error.strerror or error}{hint}")


def nearby(path: str, fits: Fits) -> str:
    """The end of a complaint about a path: which directories near by fit, if any."""
    level = _starts(path)
    for _ in range(LEVELS + 1):
        if found := [each for each in level if each != path and _fits(each, fits)]:
            return _proposed(found)
        level = list(islice((each for above in level for each in _below(above)), MOST_DIRECTORIES))
    if os.path.isdir(path):
        around = os.path.abspath(path)
        for _ in range(LEVELS):
            around = os.path.dirname(around)
            if _fits(around, fits):
                return _proposed([around if os.path.isabs(path) else os.path.relpath(around)])
    return ""


def _starts(path: str) -> list[str]:
    """Where to search: there, or where a file is, or where nearly the same name is."""
    if os.path.isdir(path):
        return [path]
    parent, name = os.path.split(path.rstrip("/"))
    if os.path.exists(path):
        return [parent or "."]
    beside = {os.path.basename(each): each for each in _below(parent or ".")}
    return [beside[each] for each in nearest_names(name, beside, most=MOST_PROPOSED)]


def _below(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            found = islice((each.name for each in entries if each.is_dir()), MOST_DIRECTORIES)
            return [os.path.join(path, name) for name in sorted(found)]
    except OSError:
        return []


def _fits(path: str, fits: Fits) -> bool:
    try:
        return fits(path)
    except OSError:
        return False


def _proposed(found: list[str]) -> str:
    more = len(found) - MOST_PROPOSED
    names = [*map(os.path.normpath, found[:MOST_PROPOSED])] + ([f"{more} more"] if more > 0 else [])
    *first, last = names
    return f"; did you mean {', '.join(first)} or {last}?" if first else f"; did you mean {last}?"
