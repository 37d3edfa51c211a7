"""One blocking call: work on the background loop, a thread that waits for it.

Owns the way of a result, an error, an interruption and of listeners from one to the other.
Must not know any client.
Invariant: what the user's functions (listeners, callbacks of commits) do, they do in the thread
that made the call, while it waits; and a result that no caller gets goes to `give_back`.

A result and Ctrl-C may cross:
  1. the loop ends the work and sends the result
  2. the signal raises KeyboardInterrupt in the thread before it has taken the result
  3. the thread posts `_cancel`; on the loop it finds the work done and gives the result back
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from functools import wraps
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar

from moldau.client.errors import ClientClosed, InvalidState

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
GiveBack: TypeAlias = Callable[[Result], object]
Post: TypeAlias = Callable[[Callable[..., object]], object]
Wanted: TypeAlias = Callable[[], object]

_current: ContextVar[Call[Any] | None] = ContextVar("moldau_blocking_call", default=None)

LOOK_S: Final = 0.5
"""A signal that comes just before a thread begins to wait does not wake it: it looks this often."""

_ENDED: Final = None
"""What the loop sends when the work has ended; everything else is a function to run."""


class Call(Generic[Result]):
    """Work that one thread waits for. `run` belongs to the thread, `start` to the loop."""

    __slots__ = (
        "_arguments",
        "_error",
        "_give_back",
        "_interrupted",
        "_is_over",
        "_keywords",
        "_messages",
        "_result",
        "_task",
        "_work",
    )

    def __init__(
        self,
        work: Callable[..., Coroutine[Any, Any, Result]],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        give_back: GiveBack[Result] | None,
    ) -> None:
        self._work = work
        self._arguments = arguments
        self._keywords = keywords
        self._give_back = give_back
        self._messages: SimpleQueue[Wanted | None] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._interrupted = False
        self._is_over = False
        self._result: list[Result] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin the work. On the loop, in a context of its own, as callbacks have."""
        _current.set(self)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            self._result.append(await self._work(*self._arguments, **self._keywords))
        except asyncio.CancelledError:
            self._error = ClientClosed("the client was closed during the call")
        except (KeyboardInterrupt, SystemExit) as error:  # would end the loop for everybody
            self._error = error
        except Exception as error:  # noqa: BLE001 - the caller's, whatever it is
            self._error = error
        finally:
            if self._interrupted:
                self._return_result()
            self._is_over = True
            self._messages.put(_ENDED)

    def _return_result(self) -> None:
        if self._result and self._give_back is not None:
            self._give_back(self._result.pop())

    def run(self, post: Post) -> Result:
        """Have the work done and wait for it; run meanwhile what it wants run in this thread.

        Raises:
            BaseException: what the work raised, or what interrupted the wait.
        """
        try:
            post(self.start)
            while (wanted := self._next_message()) is not _ENDED:
                wanted()
            if self._error is not None:
                raise self._error
            return self._result[0]
        except BaseException as error:
            if error is not self._error:
                self._abandon(post)
            raise
        finally:
            self._error = None  # no cycle of error, traceback and this frame

    def _abandon(self, post: Post) -> None:
        """Cancel the work and wait until it has ended, so that the client can be used again."""
        post(self._cancel)
        while (wanted := self._next_message()) is not _ENDED:
            refuse = getattr(wanted, "refuse", None)
            if refuse is not None:
                refuse(post)

    def _next_message(self) -> Wanted | None:
        while True:
            with contextlib.suppress(Empty):
                return self._messages.get(timeout=LOOK_S)

    def _cancel(self) -> None:
        """On the loop."""
        self._interrupted = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            return
        self._return_result()
        self._messages.put(_ENDED)

    def send(self, wanted: Wanted) -> None:
        """Have the waiting thread run this. On the loop. Raises: InvalidState: nobody waits"""
        if self._interrupted or self._is_over:
            raise InvalidState("the call was interrupted: its listeners are not called any more")
        self._messages.put(wanted)


class _Errand:
    """A function that the loop wants run in the waiting thread, and its future there."""

    __slots__ = ("_function", "_future", "_loop")

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[object] = self._loop.create_future()

    def __call__(self) -> None:
        """In the waiting thread."""
        try:
            result = self._function()
        except Exception as error:  # noqa: BLE001 - belongs to whoever gave the errand
            self._loop.call_soon_threadsafe(self._settle, None, error)
        except BaseException:
            self._loop.call_soon_threadsafe(self._future.cancel)
            raise
        else:
            self._loop.call_soon_threadsafe(self._settle, result, None)

    def refuse(self, post: Post) -> None:
        """The thread has been interrupted and runs nothing more."""
        post(self._future.cancel)

    def _settle(self, result: object, error: Exception | None) -> None:
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def __await__(self) -> Any:
        return self._future.__await__()


async def run_in_caller(function: Callable[..., object], *arguments: object) -> object:
    """Run a function in the thread whose call this is part of; its result or its exception.

    Where no thread waits (work of the client's own), it runs here.
    """
    call = _current.get()
    if call is None:
        result = function(*arguments)
    else:
        errand = _Errand(lambda: function(*arguments))
        call.send(errand)
        result = await errand
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"{function!r} is async: listeners of a blocking client are functions")
    return result


def tell_caller(function: Callable[..., object], *arguments: object) -> None:
    """Run a function in the thread whose call this is part of, before the call returns."""
    call = _current.get()
    if call is None:
        function(*arguments)
    else:
        call.send(lambda: function(*arguments))


def face_of(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[[Callable[..., object]], Callable[Concatenate[Any, Parameters], Result]]:
    """Make a method of a blocking client out of the coroutine method it stands for.

    Parameters, defaults, types and documentation are those of `method`, so that the faces cannot
    differ. The decorated function's body is never run.
    """

    def decorate(
        declared: Callable[..., object],
    ) -> Callable[Concatenate[Any, Parameters], Result]:
        name = method.__name__
        assert declared.__name__ == name, f"{declared.__qualname__} is the face of {name}"

        @wraps(method)
        def blocking(self: Any, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            result: Result = self._call(getattr(self._inner, name), *args, **kwargs)
            return result

        blocking.__qualname__ = declared.__qualname__
        blocking.__module__ = declared.__module__
        return blocking

    return decorate


def quick_face_of(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[[Callable[..., object]], Callable[Concatenate[Any, Parameters], Result]]:
    """As `face_of`, for a plain method: it runs on the loop, where its client's state is."""

    def decorate(
        declared: Callable[..., object],
    ) -> Callable[Concatenate[Any, Parameters], Result]:
        name = method.__name__
        assert declared.__name__ == name, f"{declared.__qualname__} is the face of {name}"

        @wraps(method)
        def blocking(self: Any, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            result: Result = self._call_now(getattr(self._inner, name), *args, **kwargs)
            return result

        blocking.__qualname__ = declared.__qualname__
        blocking.__module__ = declared.__module__
        return blocking

    return decorate


async def run_now(
    function: Callable[..., Result], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Result:
    """Call a plain function, as work for the loop."""
    return function(*arguments, **keywords)
