"""A broker's work beside its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from moldau.runtime.clock import Clock
from moldau.runtime.slices import Work, in_slices

logger = logging.getLogger(__name__)


class Background:
    """Runs work that takes longer than a call on the data loop. A failure is reported exactly once;
    nothing runs after `close`.

    Args:
        on_fault: called with an unexpected exception.
    """

    def __init__(self, clock: Clock, on_fault: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Work, name: str | None = None) -> None:
        """Run work that ends by itself, or that its owner ends before `close`. Every caller has its
        own limit: no task for each request (`tests/tidy/bounds.toml` lists them).
        """
        if self._is_closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def go_on(self, steps: Iterator[object]) -> None:
        """Take the steps that an answer still needs, from now on and in slices of the loop."""
        work = in_slices(self._clock, steps)
        if work is not None:
            self.start(work, "a large answer")

    async def close(self) -> None:
        """Start nothing more and wait for what runs."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("work in the background failed", exc_info=error)
            self._on_fault(error)
