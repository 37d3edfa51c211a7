"""A thread with its own event loop, and calls into it from other loops.

Owns: the thread's life and the count of calls under way. Must not: know what runs there. Invariant:
nothing crosses without a bound: at most MAX_CALLS calls are under way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final, TypeVar, TypeVarTuple

from moldau.runtime.shared_work import outcome_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_CALLS: Final = 2_000


class LoopBusy(Exception):
    """MAX_CALLS calls are under way, or the thread is not running."""


@dataclass(eq=False, repr=False)
class LoopThread:
    """States: made -> `start` -> running -> `stop` -> ended."""

    _name: str
    _loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _calls: int = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's loop, once started."""
        assert self._loop is not None, "started"
        return self._loop

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    @property
    def ident(self) -> int | None:
        """The thread's `threading.get_ident()`, once started."""
        return None if self._thread is None else self._thread.ident

    def start(self) -> None:
        """Start the thread; its loop takes calls at once."""
        assert self._thread is None, "a thread starts once"
        loop = self._loop = self._loop_factory()
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name=self._name, daemon=True
        )
        self._thread.start()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def run(self, coroutine: Coroutine[object, None, T]) -> T:
        """Run a coroutine on the thread and wait for its result on the caller's loop.

        The coroutine always runs to its end, even when the caller is cancelled.

        Raises:
            LoopBusy: too many calls, or not running.
        """
        loop = self._loop
        if loop is None or loop.is_closed() or self._calls >= MAX_CALLS:
            coroutine.close()
            raise LoopBusy(f"{self._calls} calls are under way at {self._name}")
        self._calls += 1
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(self._finished)
        return await outcome_of(wrapped)

    def _finished(self, _future: asyncio.Future[T]) -> None:
        self._calls -= 1

    async def stop(self) -> None:
        """End the loop and wait for the thread; what was to be closed there is closed before."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of a thread whose work stops its loop; for callers without a loop."""
        assert self._thread is not None, "started"
        self._thread.join(timeout_s)


async def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[object, None, T]) -> T:
    """Run a coroutine on the loop of any thread, and bring its result to the caller's."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


async def call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[[*Ts], T], *arguments: *Ts
) -> T:
    """Run a short function on another thread's loop, and bring its result to the caller's."""

    async def call() -> T:
        return function(*arguments)

    return await run_on(loop, call())
