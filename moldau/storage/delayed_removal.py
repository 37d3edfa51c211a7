"""DelayedRemoval: files and directories that were renamed away and may go after a while.

Owns: the queue of paths with their deadlines, and removing them off the loop, few at a time.
Must not: rename; nobody else may still want what is queued.
Invariant: what is not removed before the process ends is found by its name at the next start.
"""

from __future__ import annotations

import heapq
import logging
from math import ceil

from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.log_directory import describe
from moldau.storage.manager_settings import NEVER_MS
from moldau.storage.periodic import PeriodicJob

MAX_REMOVALS_PER_CALL = 64
"""Paths removed in one visit to a disk thread, so that others get their turn."""

logger = logging.getLogger("moldau.storage")


class DelayedRemoval:
    """A heap of (deadline, path); one timer for the earliest."""

    __slots__ = ("_clock", "_filesystem", "_heap", "_job", "_sequence")

    def __init__(self, filesystem: Filesystem, clock: Clock) -> None:
        self._filesystem = filesystem
        self._clock = clock
        self._heap: list[tuple[float, int, str]] = []
        self._sequence = 0
        self._job = PeriodicJob("removal", clock, self._next_ms, self._run)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, delay_ms: float, paths: list[str]) -> None:
        """Remove the files and directories at `paths` in `delay_ms`."""
        deadline_ms = self._clock.monotonic_ms() + delay_ms
        for path in paths:
            self._sequence += 1
            heapq.heappush(self._heap, (deadline_ms, self._sequence, path))
        if paths and not self._job.is_running:
            self._job.start()

    async def stop(self) -> None:
        """Remove nothing more; what is under way is finished first."""
        await self._job.stop()

    def _next_ms(self) -> int:
        if not self._heap:
            return NEVER_MS
        return max(0, ceil(self._heap[0][0] - self._clock.monotonic_ms()))

    async def _run(self) -> None:
        heap = self._heap
        while True:
            now_ms = self._clock.monotonic_ms()
            due: list[str] = []
            while heap and heap[0][0] <= now_ms and len(due) < MAX_REMOVALS_PER_CALL:
                due.append(heapq.heappop(heap)[2])
            if not due:
                return
            await self._filesystem.offload(_remove_all, self._filesystem, due)


def _remove_all(filesystem: Filesystem, paths: list[str]) -> None:
    for path in paths:
        try:
            if filesystem.is_directory(path):
                filesystem.rmtree(path)
                logger.info("removed %s", path)
            else:
                filesystem.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s could not be removed: %s", path, describe(error))
