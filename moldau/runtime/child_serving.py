"""The inside of a ChildProcess: reads lines from its input, writes lines to its output.

Owns: the end when the parent is gone. Must not: know what the lines say. Invariant: what a line of
input leads to is written before the next one is taken; nothing is written after the input's end.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable
from typing import BinaryIO, NoReturn


def serve(carry_out: Callable[[bytes], Iterable[bytes]]) -> NoReturn:
    """Write each line that `carry_out` yields for a line of input at once, until the input ends."""
    # Its own descriptor for the lines: what else is printed must not get in between.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True)
    reader.start()
    while True:
        for line in carry_out(lines.get()):
            write(output, line)


def write(output: BinaryIO, line: bytes) -> None:
    """Write one line, or end with the parent."""
    try:
        output.write(line)
        output.flush()
    except BrokenPipeError:
        # The parent was killed, and the reader has not got as far as noticing it.
        os._exit(0)


def _read(source: BinaryIO, lines: queue.SimpleQueue[bytes]) -> None:
    """Runs in its own thread: the parent's end must be noticed in the middle of the work."""
    for line in source:
        lines.put(line)
    os._exit(0)
