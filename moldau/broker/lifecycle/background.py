"""Work of a broker that takes longer than a call.

Owns the running tasks, so that their failures are reported and a stop waits for them. Invariant: a
failure is reported exactly once; nothing runs after `close`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

logger = logging.getLogger("moldau.broker.lifecycle.background")

MAX_TASKS: Final = 100_000
"""More at once is a fault: every caller of `start` has a limit of its own, far below."""


class Background:
    """Runs coroutines on the data loop.

    Args:
        on_fault: told of an unexpected exception.
    """

    __slots__ = ("_is_closed", "_on_fault", "_tasks")

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        """Run work that ends by itself, or that its owner ends before `close`."""
        if self._is_closed:
            work.close()
            return
        assert len(self._tasks) < MAX_TASKS, f"{MAX_TASKS} tasks run already"
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

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
