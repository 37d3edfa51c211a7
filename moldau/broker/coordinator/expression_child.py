"""The child process that tries names: a slice is a line of input, its result a line of output.

It refuses no expression: the broker has compiled it before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import orjson

from moldau.broker.coordinator.core.expressions import compile_expression
from moldau.broker.coordinator.expression_matcher import take_slice
from moldau.runtime.child_serving import serve
from moldau.runtime.clock import SystemClock

NICENESS: Final = 10
"""Not the lowest priority, with which a look-up might wait for ever on a busy machine."""

SLICE_MS: Final = 10.0
"""How often look-ups take turns."""


def answer(line: bytes) -> Iterator[bytes]:
    expression, names = orjson.loads(line)
    pattern = compile_expression(expression)
    tried = take_slice(pattern, names, SystemClock(), SLICE_MS)
    yield orjson.dumps(tried, option=orjson.OPT_APPEND_NEWLINE)


def main() -> None:
    with contextlib.suppress(OSError):  # Some sandboxes forbid it: then it is as urgent as others.
        os.nice(NICENESS)
    serve(answer)
