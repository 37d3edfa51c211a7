"""The portal between blocking clients and the one thread and event loop behind all of them.

Owns the thread (started when the first blocking client is made, ended at the interpreter's exit
after the clients that are still open were closed) and the way of calls, results, errors,
interruptions and listeners between it and other threads. Must not know what the clients do.
Invariants: everything a blocking client does to its asyncio client happens on this loop; calls made
by one thread start there in the order in which that thread made them; the user's functions
(listeners, callbacks of commits) run in the thread that made the call, while it waits; a result
that no caller gets is taken back.

A fork leaves the child with a copy of everything but the thread, in whatever state the loop was.
The child touches nothing of it, least of all its sockets, which the parent goes on using: clients
made there get their own thread.

CPython looks for signals when a function begins and behind the calls of functions that are not
Python's own. Ctrl-C there drops what such a call returned. Therefore:
  1. what the loop sends stays in a deque until it has been handled; a wake-up may be lost
  2. what must not be lost is kept in a `Kept`, and nothing is called between looking at it there
     and the end of the method that the user called
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from moldau.client.errors import ClientClosed, InvalidState, KafkaError
from moldau.runtime.event_loop import new_event_loop
from moldau.runtime.loop_thread import LoopThread

Result = TypeVar("Result")
Answer = TypeVar("Answer", covariant=True)
Work: TypeAlias = Callable[..., Awaitable[Result]]
"""A coroutine function that runs on the loop."""

EXIT_TIMEOUT_S: Final = 5.0
"""How long closing all open clients may take at the interpreter's exit."""

LOOK_S: Final = 0.5
"""A signal that comes just before a thread begins to wait does not wake it: it looks this often."""

_ENDED: Final = None
"""What the loop sends when the work has ended; everything else is an errand to run."""


class Closable(Protocol):
    """An asyncio client, as far as the portal knows it; it closes within a bounded time."""

    async def close(self) -> None: ...


class ThreadPortal:
    """A `LoopThread` that blocking callers wait for. States: running → ended, or forked.

    Attributes:
        forked: this process is the child of one that made it.
        ended: the interpreter ends, and what was open has been closed.
    """

    def __init__(self) -> None:
        self.forked: bool = False
        self.ended: bool = False
        self._clients: dict[Closable, asyncio.Future[None] | None] = {}  # and their closing
        self._thread = LoopThread("moldau-client-sync", new_event_loop)
        self._thread.start()
        self._loop = self._thread.loop
        self._thread_ident = self._thread.ident

    def call(
        self,
        work: Work[Result],
        /,
        *arguments: object,
        callers: Callers | None = None,
        **keywords: object,
    ) -> Result:
        """Run a coroutine function on the loop, with the other arguments; block until it has ended.
        `callers` may give the thread errands while it waits. Raises: ClientClosed when the loop has
        ended; InvalidState on the loop's own thread, or in the child of a fork.

        An interruption (Ctrl-C) of the waiting thread cancels the coroutine and waits until it has
        ended, before KeyboardInterrupt goes on.
        """
        self.check()
        self.check_may_block()
        return Call(work, arguments, keywords, callers).run(self.post)

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Run a function on the loop soon, without waiting for it. Raises: as `call`"""
        self.check()
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # closed between the check and the call
            raise ClientClosed("the interpreter is ending: the client has been closed") from None

    def check(self) -> None:
        """Raise what `call` raises when the loop cannot serve this process."""
        if self.forked:
            raise InvalidState(
                "this client was made before a fork and belongs to the parent process: make a new "
                "one in this process"
            )
        if self.ended:
            raise ClientClosed("the interpreter is ending: the client has been closed")

    def check_may_block(self) -> None:
        """Refuse to block the loop's own thread: it would wait for itself. Raises: InvalidState"""
        if threading.get_ident() == self._thread_ident:
            raise InvalidState(
                "a blocking call inside a callback of the background thread would wait for itself: "
                "use send_nowait there, or hand the work to a thread of your own"
            )

    def adopt(self, client: Closable) -> None:
        """Close this client at the exit, unless it is closed before. On the loop."""
        self._clients[client] = None

    def closing(self, client: Closable, ended: asyncio.Future[None]) -> None:
        """The client is being closed; the exit waits for that. On the loop."""
        self._clients[client] = ended
        ended.add_done_callback(lambda _: self.release(client))

    def release(self, client: Closable) -> None:
        """The client is closed. On the loop."""
        self._clients.pop(client, None)

    def finalizer(self, owner: object, client: Closable) -> weakref.finalize[[Closable], object]:
        """Closes `client` in the background when `owner` is collected without being closed."""
        finalizer = weakref.finalize(owner, self._abandon, client)
        finalizer.atexit = False  # `stop` does that
        return finalizer

    def stop(self) -> None:
        """Close what is open and end the thread, at the interpreter's exit. Idempotent."""
        if self.forked or self.ended:
            return
        self.ended = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin_end)
        self._thread.join(2 * EXIT_TIMEOUT_S)

    def _abandon(self, client: Closable) -> None:
        if self.forked or self.ended:
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
        self._loop.stop()


@dataclass(slots=True, eq=False, repr=False)
class Call(Generic[Answer]):
    """Work that one thread waits for. `run` belongs to the thread, `start` to the loop."""

    _work: Work[Answer]
    _arguments: tuple[object, ...]
    _keywords: Mapping[str, object]
    _callers: Callers | None = None
    _inbox: deque[Errand | None] = field(default_factory=deque)
    _bell: SimpleQueue[None] = field(default_factory=SimpleQueue)
    _task: asyncio.Task[None] | None = None
    _begun: bool = False
    _result: Answer = field(init=False)
    _error: BaseException | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        self._begun = True
        if self._callers is not None:
            self._callers.entered(self)
        try:
            self._result = await self._work(*self._arguments, **self._keywords)
        except asyncio.CancelledError:
            self._error = ClientClosed("the client was closed during the call")
        except (KeyboardInterrupt, SystemExit) as error:  # would end the loop for all clients
            self._error = error
        except Exception as error:  # noqa: BLE001 - the caller's, whatever it is
            self._error = error
        finally:
            self._end()

    def run(self, post: Callable[..., object]) -> Answer:
        """Have the work done and wait for it, running its errands in this thread. Raises what the
        work raised, or what interrupted the wait.
        """
        try:
            post(self.start)
            while (errand := self._next()) is not _ENDED:
                errand()
                self._inbox.popleft()
            if self._error is not None:
                raise self._error
            return self._result
        except BaseException as error:
            if error is not self._error:
                self._abandon(post)
            raise
        finally:
            self._error = None  # no cycle of error, traceback and this frame

    def _abandon(self, post: Callable[..., object]) -> None:
        """Cancel the work and wait until it has ended, so that the client can be used again."""
        post(self._cancel)
        while (errand := self._next()) is not _ENDED:
            if self._callers is not None and not errand.begun:
                post(self._callers.put_back, errand)
            self._inbox.popleft()

    def _next(self) -> Errand | None:
        """The first of the inbox, which stays there."""
        while not self._inbox:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=LOOK_S)
        return self._inbox[0]

    def _cancel(self) -> None:
        """Cancel the work; called on the loop."""
        if self._begun and self._task is not None and not self._task.done():
            self._leave()
            self._task.cancel()
        else:
            # A task that is cancelled before its first step runs nothing, not even `_end`.
            if self._task is not None:
                self._task.cancel()
            self._end()

    def _end(self) -> None:
        self._leave()
        self.send(_ENDED)

    def _leave(self) -> None:
        if self._callers is not None:
            self._callers.left(self)

    def send(self, errand: Errand | None) -> None:
        """Have the waiting thread run this. On the loop."""
        self._inbox.append(errand)
        self._bell.put(None)


@dataclass(slots=True, eq=False, repr=False)
class Kept(Generic[Result]):
    """Holds what a call takes out of its client, until the user has it.

        kept = Kept(take, take_back, call)
        try:
            call(kept.run, ...)
            return kept.result
        except BaseException:
            kept.give_back()
            raise

    Written out in the method that the user calls: a helper would be one more place at which a
    signal drops what was returned.

    Args:
        take: the call's work.
        take_back: called on the loop with a result that the user did not get.
        call: `ThreadPortal.call`.
    """

    _take: Work[Result]
    _take_back: Callable[[Result], object]
    _call: Callable[..., object]
    _is_refused: bool = False
    result: Result = field(init=False)

    async def run(self, *arguments: object) -> None:
        """Take the result. On the loop."""
        self.result = await self._take(*arguments)
        if self._is_refused:
            self._take_back(self.result)

    def give_back(self) -> None:
        """The user does not get the result: take it back, now or when it comes."""
        with contextlib.suppress(KafkaError):  # the loop has ended, or belongs to another process
            self._call(self._refuse)

    async def _refuse(self) -> None:
        self._is_refused = True
        if hasattr(self, "result"):
            self._take_back(self.result)


class Errand:
    """A function that the loop wants run in a waiting thread, and its future there."""

    __slots__ = ("_function", "_future", "_loop", "begun")

    def __init__(self, function: Callable[[], object]) -> None:
        self.begun: bool = False
        self._function = function
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[object] = self._loop.create_future()

    def __call__(self) -> None:
        self.begun = True
        try:
            result = self._function()
        except Exception as error:  # noqa: BLE001 - raised where the errand came from
            self._loop.call_soon_threadsafe(self._settle, None, error)
        except BaseException as error:
            told = InvalidState(f"a listener was interrupted by {type(error).__name__}")
            self._loop.call_soon_threadsafe(self._settle, None, told)
            raise
        else:
            self._loop.call_soon_threadsafe(self._settle, result, None)

    def _settle(self, result: object, error: Exception | None) -> None:
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def __await__(self) -> Generator[object, None, object]:
        return self._future.__await__()


class Callers:
    """The calls whose threads run errands, and the errands that wait for such a call. On the loop.

    What an interrupted call did not run, the next one runs.
    """

    def __init__(self) -> None:
        self._calls: list[Call[object]] = []
        self._errands: deque[Errand] = deque()

    def entered(self, call: Call[object]) -> None:
        """This call begins to wait; it gets the errands that are left."""
        self._calls.append(call)
        while self._errands:
            call.send(self._errands.popleft())

    def left(self, call: Call[object]) -> None:
        if call in self._calls:
            self._calls.remove(call)

    def put_back(self, errand: Errand) -> None:
        """Give the errand to the latest call, or to the next one."""
        if self._calls:
            self._calls[-1].send(errand)
        else:
            self._errands.append(errand)

    async def run(self, function: Callable[..., object], *arguments: object) -> object:
        """Run a function in the thread of the latest call, or of the next one; its result. Raises
        what it raised; TypeError for an async function.
        """
        errand = Errand(lambda: function(*arguments))
        self.put_back(errand)
        result = await errand
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"{function!r} is async: listeners of a blocking client are functions")
        return result


async def _close_quietly(client: Closable) -> None:
    # There is no caller to raise to; records that were acknowledged are safe all the same.
    with contextlib.suppress(KafkaError, OSError, asyncio.CancelledError):
        await client.close()


_shared: ThreadPortal | None = None
_making = threading.Lock()
_left_behind: list[ThreadPortal] = []
"""Portals of a parent process: collecting one would disturb the parent's sockets."""


def thread_portal() -> ThreadPortal:
    """The process's portal, started by the first call."""
    global _shared
    with _making:
        if _shared is None or _shared.ended:
            _shared = ThreadPortal()
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
