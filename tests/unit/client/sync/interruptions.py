"""Ctrl-C at a chosen place of the calling thread.

Owns where CPython looks for signals. Must not know what is interrupted. Invariant: no place is left
out below the functions that are named.
"""

from __future__ import annotations

import contextlib
import dis
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import moldau

PRODUCT = str(Path(moldau.__file__).parent)
PLACES: dict[CodeType, frozenset[int]] = {}


def interruptible(code: CodeType) -> frozenset[int]:
    """Where CPython looks for signals: at the beginning of a function, and behind each call."""
    if code not in PLACES:
        instructions = list(dis.get_instructions(code))
        PLACES[code] = frozenset(
            after.offset
            for each, after in pairwise(instructions)
            if each.opname.startswith("CALL") or each.opname == "RESUME"
        )
    return PLACES[code]


@contextlib.contextmanager
def interrupted_at(place: int, roots: tuple[str, ...]) -> Iterator[list[str]]:
    """Ctrl-C at the n-th such place in functions of these names, of the product."""
    passed: list[str] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            code = frame.f_code
            if code.co_name not in roots or not code.co_filename.startswith(PRODUCT):
                return None
            frame.f_trace_opcodes = True
        elif event == "opcode" and frame.f_lasti in interruptible(frame.f_code):
            passed.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            if len(passed) == place:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield passed
    finally:
        sys.settrace(before)
