"""What all blocking clients have: an asyncio client behind the portal, its calls, and its end.

Owns the making and closing of that client, and the decorators that make blocking methods of its
methods. Must not add anything to it. Invariant: the asyncio client is touched by the portal's
thread only; a client that is not closed is closed when it is collected, or at the interpreter's
exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from moldau.client.errors import ClientClosed
from moldau.client.sync.portal import Callers, thread_portal

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class BlockingClient:
    """Base of the blocking clients; usable from any number of threads, as `with` or with `close`.

    Calls block their thread and nothing else. Ctrl-C ends a call and leaves the client usable. In
    the child of a fork a client raises KafkaError: make a new one there.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._closed = False
        self._portal = thread_portal()
        self._inner: Any = self._portal.call(self._made, make)
        self._finalizer = self._portal.finalizer(self, self._inner)

    async def _made(self, make: Callable[[], Any]) -> Any:
        inner = make()
        self._portal.adopt(inner)
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
        result: Result = self._portal.call(work, *arguments, callers=callers, **keywords)
        return result

    def _call_now(
        self, function: Callable[..., Result], /, *arguments: Any, **keywords: Any
    ) -> Result:
        """Call a plain method of the asyncio client on the loop."""
        result: Result = self._call(_run, function, arguments, keywords)
        return result

    def _close(
        self,
        work: Callable[..., Coroutine[Any, Any, None]],
        /,
        *arguments: Any,
        callers: Callers | None = None,
    ) -> None:
        """Close once; after an interruption closing goes on in the background."""
        if self._closed:
            return
        self._portal.check()
        self._closed = True
        if self._finalizer.detach() is None:
            return
        self._portal.call(self._ended, work, arguments, callers=callers)

    async def _ended(
        self,
        work: Callable[..., Coroutine[Any, Any, None]],
        arguments: tuple[Any, ...],
    ) -> None:
        closing = asyncio.ensure_future(work(*arguments))
        closing.add_done_callback(_look_at_error)
        self._portal.closing(self._inner, closing)
        await asyncio.shield(closing)

    def close(self) -> None:
        """End the client. Idempotent."""
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
        closing.exception()  # raised to the caller that still waits; else there is none to tell


def face_of(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[[Callable[..., object]], Callable[Concatenate[Any, Parameters], Result]]:
    """Make a method of a blocking client out of the coroutine method of the asyncio client.

    Parameters, defaults, types and documentation are those of `method`, so that the two clients
    cannot differ. The decorated function's body is never run.
    """
    return _face(method, "_call")


def quick_face_of(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[[Callable[..., object]], Callable[Concatenate[Any, Parameters], Result]]:
    """As `face_of`, for a plain method: it runs on the loop, where its client's state is."""
    return _face(method, "_call_now")


def _face(
    method: Callable[Concatenate[Any, Parameters], Any], way: str
) -> Callable[[Callable[..., object]], Callable[Concatenate[Any, Parameters], Any]]:
    def decorate(declared: Callable[..., object]) -> Callable[Concatenate[Any, Parameters], Any]:
        name = method.__name__
        assert declared.__name__ == name, f"{declared.__qualname__} is the face of {name}"

        @wraps(method)
        def blocking(self: Any, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
            return getattr(self, way)(getattr(self._inner, name), *args, **kwargs)

        blocking.__qualname__ = declared.__qualname__
        blocking.__module__ = declared.__module__
        return cast("Callable[Concatenate[Any, Parameters], Any]", blocking)

    return decorate


async def _run(
    function: Callable[..., Result], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Result:
    return function(*arguments, **keywords)
