"""What all blocking clients have: an asyncio client behind the portal, its calls, and its end.

Owns the making and closing of that client, and the functions that make blocking methods of its
methods. Must not add anything to it. Invariant: the asyncio client is touched by the portal's
thread only; a client that is not closed is closed when it is collected, or at the interpreter's
exit.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Awaitable, Callable
from functools import partial, update_wrapper
from typing import Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar

from moldau.client.errors import ClientClosed
from moldau.client.sync.portal import Callers, Closable, Work, thread_portal
from moldau.runtime.shared_work import outcome_of

Inner = TypeVar("Inner", bound=Closable, covariant=True)
Owner = TypeVar("Owner")
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class BlockingClient(Generic[Inner]):
    """Base of the blocking clients; usable from any number of threads, as `with` or with `close`.

    Calls block their thread and nothing else. Ctrl-C ends a call and leaves the client usable. In
    the child of a fork a client raises KafkaError: make a new one there.
    """

    _callers: Callers | None = None
    _closed: bool = True  # until there is something to close
    _closing_thread: int | None = None
    """Listeners that run there, while it waits for the end, may still call the client."""

    def __init_subclass__(cls, **keywords: object) -> None:
        """Give the faces of the class its name and module, as those of methods written out. What an
        application wraps or takes over in its own subclass is left alone.
        """
        super().__init_subclass__(**keywords)
        if not cls.__module__.startswith(f"{__package__}."):
            return
        for name, face in vars(cls).items():
            if hasattr(face, "__wrapped__"):
                assert face.__name__ == name, f"{cls.__name__}.{name}: {face.__name__}"
                face.__module__, face.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"

    def __init__(self, make: Callable[[], Inner]) -> None:
        self._portal = thread_portal()

        async def made() -> Inner:
            inner = make()
            self._portal.adopt(inner)
            return inner

        self._inner: Inner = self._portal.call(made)
        self._finalizer = self._portal.finalizer(self, self._inner)
        self._closed = False

    def __repr__(self) -> str:
        return repr(self._inner).replace("moldau.client.", "moldau.client.sync.", 1)

    # At the interpreter's end modules lose their names before the last objects are collected.
    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if not self._closed and not self._portal.forked:
            _warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def _call(
        self, work: Work[Result], /, *arguments: object, callers: Callers | None = None
    ) -> Result:
        if self._closed and self._closing_thread != threading.get_ident():
            raise ClientClosed("the client has been closed")
        return self._portal.call(work, *arguments, callers=callers)

    def _call_now(self, function: Callable[[], Result]) -> Result:
        """Call a plain method of the asyncio client on the loop."""

        async def on_loop() -> Result:
            return function()

        return self._call(on_loop)

    def _close(
        self, work: Work[None], /, *arguments: object, callers: Callers | None = None
    ) -> None:
        """Close once; after an interruption closing goes on in the background. What the
        interpreter's end has closed stays closed.
        """
        if self._closed:
            return
        if self._portal.ended:
            self._closed = True
            return
        self._portal.check()
        self._closed = True
        if self._finalizer.detach() is None:
            return
        self._closing_thread = threading.get_ident()
        try:
            self._portal.call(self._ended, work, arguments, callers=callers)
        finally:
            self._closing_thread = None

    async def _ended(self, work: Work[None], arguments: tuple[object, ...]) -> None:
        closing = asyncio.ensure_future(work(*arguments))
        self._portal.closing(self._inner, closing)
        await outcome_of(closing)

    def close(self) -> None:
        """End the client. Idempotent."""
        self._close(self._inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


Face: TypeAlias = Callable[Concatenate[BlockingClient[Closable], Parameters], Result]
"""A blocking client's method."""


def face_of(
    method: Callable[Concatenate[Owner, Parameters], Awaitable[Result]],
    *,
    runs_errands: bool = False,
) -> Face[Parameters, Result]:
    """Make a method of a blocking client out of the coroutine method of the asyncio client, with
    its parameters, defaults, types and documentation, so that the two clients cannot differ. With
    `runs_errands` the calling thread runs the client's listeners and callbacks while it waits.
    """

    def blocking(
        self: BlockingClient[Closable], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        call: Callable[Parameters, Awaitable[Result]] = getattr(self._inner, method.__name__)
        callers = self._callers if runs_errands else None
        return self._call(partial(call, *args, **kwargs), callers=callers)

    update_wrapper(blocking, method)
    return blocking


def quick_face_of(
    method: Callable[Concatenate[Owner, Parameters], Result],
) -> Face[Parameters, Result]:
    """As `face_of`, for a plain method: it runs on the loop, where its client's state is."""

    def blocking(
        self: BlockingClient[Closable], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        call: Callable[Parameters, Result] = getattr(self._inner, method.__name__)
        return self._call_now(partial(call, *args, **kwargs))

    update_wrapper(blocking, method)
    return blocking
