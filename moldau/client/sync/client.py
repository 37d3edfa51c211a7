"""What all blocking clients have: an asyncio client on the background loop, and its end.

Owns the making and closing of that client. Must not add anything to it.
Invariant: the asyncio client is touched by the loop's thread only; a client that its owner forgot
is closed when it is collected, or at the interpreter's exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from moldau.client.errors import ClientClosed
from moldau.client.sync.background_loop import background_loop
from moldau.client.sync.calls import Callers, run_now

Result = TypeVar("Result")


class BlockingClient:
    """Base of the blocking clients; usable from any number of threads, as `with` or with `close`.

    Calls block their thread and nothing else. Ctrl-C ends a call and leaves the client usable. In
    the child of a fork a client raises KafkaError: make a new one there.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._closed = False
        self._loop = background_loop()
        self._inner: Any = self._loop.call(self._made, make)
        self._finalizer = self._loop.finalizer(self, self._inner)

    async def _made(self, make: Callable[[], Any]) -> Any:
        inner = make()
        self._loop.adopt(inner)
        return inner

    def _call(
        self,
        work: Callable[..., Coroutine[Any, Any, Result]],
        /,
        *arguments: Any,
        callers: Callers | None = None,
        **keywords: Any,
    ) -> Result:
        if self._closed:
            raise ClientClosed("the client has been closed")
        result: Result = self._loop.call(work, *arguments, callers=callers, **keywords)
        return result

    def _call_now(
        self, function: Callable[..., Result], /, *arguments: Any, **keywords: Any
    ) -> Result:
        """Call a plain method of the asyncio client on the loop."""
        result: Result = self._call(run_now, function, arguments, keywords)
        return result

    def _close(
        self,
        work: Callable[..., Coroutine[Any, Any, None]],
        /,
        *arguments: Any,
        callers: Callers | None = None,
    ) -> None:
        """Close once. Interrupted, the thread goes on and the rest is done in the background."""
        if self._closed:
            return
        self._loop.check()
        self._closed = True
        if self._finalizer.detach() is None:
            return
        self._loop.call(self._ended, work, arguments, callers=callers)

    async def _ended(
        self,
        work: Callable[..., Coroutine[Any, Any, None]],
        arguments: tuple[Any, ...],
    ) -> None:
        closing = asyncio.ensure_future(work(*arguments))
        closing.add_done_callback(_look_at_error)
        self._loop.closing(self._inner, closing)
        await asyncio.shield(closing)

    def close(self) -> None:
        """End the client; twice is fine."""
        self._close(self._inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _look_at_error(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled():
        closing.exception()  # whoever still waits is told; if nobody does, nobody can be
