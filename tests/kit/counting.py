"""Counting in a process that other tests have used: only what the code under test does counts.

Owns what keeps others out. Must not: let the collector run while something is counted, because it
runs the finalizers of what earlier tests left lying. Invariant: what the process had before is
never counted as new, and what goes away of it does not hide what is new.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """What others left is collected now, and nothing more until the end."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def calls_of(work: Callable[[], Any]) -> int:
    """How many functions `work` calls, Python's and others."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with collector_at_rest():
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(before)
    return count


def descriptors() -> set[tuple[int, int, int]]:
    """The open files of this process: number, device, inode."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the one that lists
            status = os.fstat(int(name))
            found.add((int(name), status.st_dev, status.st_ino))
    return found


class Newcomers:
    """Threads and objects that came since this was made. What existed then is kept, so that none
    of the new has its identity.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._threads = set(threading.enumerate())
        self._objects = self._all()
        self._ids = {id(each) for each in self._objects}

    def threads(self, name: str) -> list[threading.Thread]:
        """Those with `name` in theirs."""
        return [
            each
            for each in threading.enumerate()
            if name in each.name and each not in self._threads
        ]

    def objects(self) -> list[object]:
        """Those of the kinds."""
        return [each for each in self._all() if id(each) not in self._ids]

    def _all(self) -> list[object]:
        if not self._kinds:
            return []
        return [each for each in gc.get_objects() if type(each) in self._kinds]
