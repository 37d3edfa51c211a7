"""The child process of log compaction: jobs are its input, events its output.

Owns: the disk budget's pauses (`log.cleaner.io.max.bytes.per.second`), and what becomes of a job
that fails. Must not: write anything but `.cleaned` files and events. Invariant: one line of output
per event.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from moldau.runtime.child_serving import serve
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.cleaner.cleaning import clean
from moldau.storage.cleaner.job import CleaningFailed, CleaningJob, decode_job, encode_event
from moldau.storage.cleaner.offset_map import SEED_BYTES

NICENESS = 5
"""Cleaning can wait; serving clients comes first."""

MAX_PAUSE_SECONDS = 0.3
"""Pauses come in pieces, so that a burst of work is spread evenly."""


class DiskBudget:
    """Pauses that keep reads and writes below so many bytes per second on average."""

    def __init__(self, max_bytes_per_second: float) -> None:
        self._max_bytes_per_second = max_bytes_per_second
        self._started = time.monotonic()
        self._bytes = 0

    def pause(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        due = self._started + self._bytes / self._max_bytes_per_second
        while (left := due - time.monotonic()) > 0.001:
            time.sleep(min(left, MAX_PAUSE_SECONDS))


def carry_out(job: CleaningJob, filesystem: OsFilesystem) -> Iterator[bytes]:
    """Do one job: its events as lines, the last one says how it ended."""
    budget = DiskBudget(job.max_bytes_per_second)
    try:
        for event in clean(filesystem, job, seed=os.urandom(SEED_BYTES), pause=budget.pause):
            yield encode_event(event)
    except CleaningFailed as failure:
        yield encode_event(failure)
    except MemoryError:
        yield encode_event(CleaningFailed("out of memory", is_out_of_room=True))


def main() -> None:
    with contextlib.suppress(OSError):  # Some sandboxes forbid it: then it is as urgent as others.
        os.nice(NICENESS)
    filesystem = OsFilesystem(thread_count=1)
    serve(lambda line: carry_out(decode_job(line), filesystem))
