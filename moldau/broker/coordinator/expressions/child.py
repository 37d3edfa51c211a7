"""The child process that tries names: a slice is a line of input, what came of it one of output.

Owns: how urgent the process is, and how long a slice lasts. Must not: refuse expressions, which the
broker has compiled. Invariant: a slice ends after the match under way when its time is over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from moldau.broker.coordinator.expressions.core.expressions import compile_expression
from moldau.broker.coordinator.expressions.process_worker import decode_question, encode_answer
from moldau.broker.coordinator.expressions.slices import take_slice
from moldau.runtime.child_serving import serve
from moldau.runtime.clock import SystemClock

NICENESS: Final = 10
"""A look-up can wait, but not for ever on a busy machine, as it would with the lowest priority."""

SLICE_MS: Final = 10.0
"""Look-ups take turns so often."""


def answer(line: bytes) -> Iterator[bytes]:
    """Take one slice."""
    expression, names = decode_question(line)
    pattern = compile_expression(expression)
    yield encode_answer(take_slice(pattern, names, SystemClock().monotonic_ms, SLICE_MS))


def main() -> None:
    """Serve until the input ends."""
    with contextlib.suppress(OSError):  # Some sandboxes forbid it: then it is as urgent as others.
        os.nice(NICENESS)
    serve(answer)
