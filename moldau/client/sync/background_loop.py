"""The one thread and event loop behind all blocking clients of a process.

Owns the thread: started when the first blocking client is made, ended at the interpreter's exit
after the clients that are still open were closed, forgotten in the child of a fork (which gets a
thread of its own for clients made there). Must not know what the clients do.
Invariant: whatever a blocking client does to its asyncio client happens on this loop; and calls
made by one thread start there in the order in which that thread made them.

A fork leaves the child with a copy of everything but the thread, in whatever state the loop was:
nothing of it is touched there again, least of all its sockets, which the parent goes on using.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from moldau.client.errors import ClientClosed, InvalidState, KafkaError
from moldau.client.sync.calls import Call, Callers

Result = TypeVar("Result")

EXIT_TIMEOUT_S: Final = 5.0
"""How long the clients that nobody closed may take at the interpreter's exit, all together."""


class Closable(Protocol):
    """An asyncio client, as far as this module knows it."""

    async def close(self) -> None:
        """End it, bounded in time."""


class BackgroundLoop:
    """An event loop in a thread of its own, and the ways to it from other threads."""

    def __init__(self) -> None:
        self.forked: bool = False
        self._ended = False
        self._clients: dict[Closable, asyncio.Future[None] | None] = {}  # and their closing
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._run, name="moldau-client-sync", daemon=True)
        self._thread.start()

    def call(
        self,
        work: Callable[..., Coroutine[Any, Any, Result]],
        /,
        *arguments: Any,
        callers: Callers | None = None,
        **keywords: Any,
    ) -> Result:
        """Run a coroutine function on the loop; block until it has ended.

        An interruption (Ctrl-C) of the waiting thread cancels the coroutine and waits until it has
        ended, before KeyboardInterrupt goes on.

        Args:
            work: called on the loop with the other arguments.
            callers: the thread may be given errands through these while it waits.

        Raises:
            ClientClosed: the loop has ended.
            InvalidState: called on the loop's own thread, or in the child of a fork.
        """
        self.check()
        self.check_may_block()
        return Call(work, arguments, keywords, callers).run(self.post)

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run a function on the loop soon, without waiting for it. Raises: as `call`"""
        self.check()
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # closed between the check and the call
            raise ClientClosed("the interpreter is ending: the client has been closed") from None

    def check(self) -> None:
        """Whether the loop can serve this thread. Raises: as `call`"""
        if self.forked:
            raise InvalidState(
                "this client was made before a fork and belongs to the parent process: make a new "
                "one in this process"
            )
        if self._ended:
            raise ClientClosed("the interpreter is ending: the client has been closed")

    def check_may_block(self) -> None:
        """Refuse to block the loop's own thread: it would wait for itself. Raises: InvalidState"""
        if threading.get_ident() == self._thread.ident:
            raise InvalidState(
                "a blocking call inside a callback of the background thread would wait for itself: "
                "use send_nowait there, or hand the work to a thread of your own"
            )

    def adopt(self, client: Closable) -> None:
        """Close this client at the exit, unless `release` comes first. On the loop."""
        self._clients[client] = None

    def closing(self, client: Closable, ended: asyncio.Future[None]) -> None:
        """It is being closed already; the exit waits for that. On the loop."""
        self._clients[client] = ended
        ended.add_done_callback(lambda _: self.release(client))

    def release(self, client: Closable) -> None:
        """Nobody has to close this client any more. On the loop."""
        self._clients.pop(client, None)

    def finalizer(self, owner: object, client: Closable) -> weakref.finalize[[Closable], object]:
        """Closes `client` in the background when `owner` is garbage that nobody closed."""
        finalizer = weakref.finalize(owner, self._abandon, client)
        finalizer.atexit = False  # `stop` does that
        return finalizer

    def stop(self) -> None:
        """Close what is open, end the thread; twice is fine. At the interpreter's exit."""
        if self.forked or self._ended:
            return
        self._ended = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin_end)
        self._thread.join(2 * EXIT_TIMEOUT_S)

    def _abandon(self, client: Closable) -> None:
        if self.forked or self._ended:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._close_in_background, client)

    def _close_in_background(self, client: Closable) -> None:
        if client in self._clients:
            self.closing(client, self._begin_close(client))

    def _begin_close(self, client: Closable) -> asyncio.Future[None]:
        closing = self._clients[client]
        if closing is None:
            closing = self._clients[client] = self._loop.create_task(_close_quietly(client))
        return closing

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    def _begin_end(self) -> None:
        self._end_task = self._loop.create_task(self._end())

    async def _end(self) -> None:
        closing = [self._begin_close(each) for each in self._clients]
        if closing:
            await asyncio.wait(closing, timeout=EXIT_TIMEOUT_S)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=EXIT_TIMEOUT_S / 2)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()


async def _close_quietly(client: Closable) -> None:
    # Nobody is there who could be told; what was acknowledged is safe, what was not never was.
    with contextlib.suppress(KafkaError, OSError, asyncio.CancelledError):
        await client.close()


_shared: BackgroundLoop | None = None
_making = threading.Lock()
_left_behind: list[BackgroundLoop] = []
"""Loops of a parent process: kept, because collecting one would disturb the parent's sockets."""


def background_loop() -> BackgroundLoop:
    """The process's background loop, started when this is the first call."""
    global _shared
    with _making:
        if _shared is None or _shared._ended:
            _shared = BackgroundLoop()
        return _shared


def _stop_at_exit() -> None:
    if _shared is not None:
        _shared.stop()


def _forget_after_fork() -> None:
    global _shared, _making
    _making = threading.Lock()
    if _shared is not None:
        _shared.forked = True
        _left_behind.append(_shared)
        _shared = None


atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
