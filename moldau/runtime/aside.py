"""Calls that may block for long, beside the event loop and with a time limit.

Owns the threads that such calls run in: daemons, so that a call into a library that never returns
keeps neither the process nor its end waiting. Invariant: at most `limit` calls of one object run,
those included whose callers have given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

DEFAULT_LIMIT: Final = 8


class Aside:
    """Runs functions beside one event loop.

    Args:
        timeout_ms: how long a caller waits, for a place and for the function.
    """

    def __init__(self, name: str, timeout_ms: float, limit: int = DEFAULT_LIMIT) -> None:
        self._name = name
        self._timeout_ms = timeout_ms
        self._places = asyncio.Semaphore(limit)

    async def __call__(self, function: Callable[..., T], /, *args: Any) -> T:
        """Raises what the function raises, and TimeoutError."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        async with asyncio.timeout(self._timeout_ms / 1000):
            await self._places.acquire()
            try:
                self._start(loop, done, function, args)
            except BaseException:
                self._places.release()
                raise
            return await done

    def _start(
        self,
        loop: asyncio.AbstractEventLoop,
        done: asyncio.Future[T],
        function: Callable[..., T],
        args: tuple[Any, ...],
    ) -> None:
        def run() -> None:
            try:
                result = function(*args)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                self._tell(loop, done, done.set_exception, error)
            else:
                self._tell(loop, done, done.set_result, result)

        threading.Thread(target=run, name=self._name, daemon=True).start()

    def _tell(
        self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], settle: Any, outcome: object
    ) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its callers with it
            loop.call_soon_threadsafe(self._ended, done, settle, outcome)

    def _ended(
        self, done: asyncio.Future[T], settle: Callable[[object], None], outcome: object
    ) -> None:
        self._places.release()
        if not done.done():
            settle(outcome)
