"""Which lines a test runs, of those of interest: functions without any cost one look."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Line = tuple[str, int]
"""Absolute path of a file, number of a line."""


class LineTracer:
    """While `tracing`, the lines of interest that are run are put into `seen`."""

    def __init__(self, lines: set[Line]) -> None:
        self.seen: set[Line] = set()
        self._lines = lines
        self._paths = {path for path, _ in lines}
        self._interesting: dict[CodeType, bool] = {}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """In all threads that begin here, this one included."""
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, _argument: Any) -> Any:
        code = frame.f_code
        interesting = self._interesting.get(code)
        if interesting is None:
            path = code.co_filename
            interesting = path in self._paths and any(
                (path, line) in self._lines for _start, _end, line in code.co_lines()
            )
            self._interesting[code] = interesting
        return self._line if interesting else None

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            if place in self._lines:
                self.seen.add(place)
        return self._line
