"""The child process of log compaction: reads jobs from its input, writes events to its output.

Owns: the process: one job after the other, the disk budget's pauses, the end when its parent is
gone.
Must not: outlive its parent, or write anything but `.cleaned` files and events.
Invariant: one line of output per event, none after the input's end.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from typing import BinaryIO

from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.cleaner.cleaning import clean
from moldau.storage.cleaner.job import CleaningFailed, CleaningJob, decode_job, encode_event
from moldau.storage.cleaner.offset_map import SEED_BYTES

NICENESS = 5
"""Cleaning makes room and can wait; who serves clients comes first."""

MAX_PAUSE_SECONDS = 0.3
"""Pauses come in pieces, so that a burst of work is spread evenly."""


class DiskBudget:
    """Pauses that keep reads and writes below so many bytes per second on average."""

    def __init__(self, max_bytes_per_second: float) -> None:
        self._max_bytes_per_second = max_bytes_per_second
        self._started = time.monotonic()
        self._bytes = 0

    def pause(self, size_bytes: int) -> None:
        """So many bytes were read or written."""
        self._bytes += size_bytes
        due = self._started + self._bytes / self._max_bytes_per_second
        while (left := due - time.monotonic()) > 0.001:
            time.sleep(min(left, MAX_PAUSE_SECONDS))


def carry_out(job: CleaningJob, filesystem: OsFilesystem, output: BinaryIO) -> None:
    """Do one job and tell of it."""
    budget = DiskBudget(job.max_bytes_per_second)
    try:
        for event in clean(filesystem, job, seed=os.urandom(SEED_BYTES), pause=budget.pause):
            _tell(output, encode_event(event))
    except CleaningFailed as failure:
        _tell(output, encode_event(failure))
    except MemoryError:
        _tell(output, encode_event(CleaningFailed("out of memory", is_out_of_room=True)))


def _tell(output: BinaryIO, line: bytes) -> None:
    try:
        output.write(line)
        output.flush()
    except BrokenPipeError:
        # The parent was killed, and the reader of jobs has not got as far as noticing it.
        os._exit(0)


def _read_jobs(source: BinaryIO, jobs: queue.SimpleQueue[bytes]) -> None:
    """Runs in a thread of its own: the parent's end must be noticed in the middle of a job."""
    for line in source:
        jobs.put(line)
    os._exit(0)


def main() -> None:
    """Serve until the input ends."""
    with contextlib.suppress(OSError):  # Some sandboxes forbid it: then it is as urgent as others.
        os.nice(NICENESS)
    # Its own descriptor for the events: what anybody prints must not get in between.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_jobs, args=(sys.stdin.buffer, jobs), daemon=True)
    reader.start()
    filesystem = OsFilesystem(thread_count=1)
    while True:
        carry_out(decode_job(jobs.get()), filesystem, output)
