"""One blocking call: work on the background loop, a thread that waits for it.

Owns the way of a result, an error, an interruption and of listeners from one to the other.
Must not know any client.
Invariant: what the user's functions (listeners, callbacks of commits) do, they do in the thread
that made the call, while it waits; and a result that no caller gets is taken back.

CPython looks for signals when a function begins and behind the calls of functions that are not
Python's own. Ctrl-C there drops what such a call returned. Therefore:
  1. what the loop sends lies in a deque until it has been looked after; a wake-up may be lost
  2. what must not be lost is kept in a `Kept`, and nothing is called between looking at it there
     and the end of the method that the user called
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import wraps
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar, cast

from moldau.client.errors import ClientClosed, InvalidState, KafkaError

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
Post: TypeAlias = Callable[..., object]

LOOK_S: Final = 0.5
"""A signal that comes just before a thread begins to wait does not wake it: it looks this often."""

_ENDED: Final = None
"""What the loop sends when the work has ended; everything else is an errand to run."""


class Call(Generic[Result]):
    """Work that one thread waits for. `run` belongs to the thread, `start` to the loop."""

    __slots__ = (
        "_arguments",
        "_begun",
        "_bell",
        "_callers",
        "_error",
        "_inbox",
        "_keywords",
        "_result",
        "_task",
        "_work",
    )

    _result: Result

    def __init__(
        self,
        work: Callable[..., Coroutine[Any, Any, Result]],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        callers: Callers | None = None,
    ) -> None:
        self._callers = callers
        self._work = work
        self._arguments = arguments
        self._keywords = keywords
        self._inbox: deque[Errand | None] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin the work. On the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        self._begun = True
        if self._callers is not None:
            self._callers.entered(self)
        try:
            self._result = await self._work(*self._arguments, **self._keywords)
        except asyncio.CancelledError:
            self._error = ClientClosed("the client was closed during the call")
        except (KeyboardInterrupt, SystemExit) as error:  # would end the loop for everybody
            self._error = error
        except Exception as error:  # noqa: BLE001 - the caller's, whatever it is
            self._error = error
        finally:
            self._end()

    def run(self, post: Post) -> Result:
        """Have the work done and wait for it; run meanwhile what it wants run in this thread.

        Raises:
            BaseException: what the work raised, or what interrupted the wait.
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

    def _abandon(self, post: Post) -> None:
        """Cancel the work and wait until it has ended, so that the client can be used again."""
        post(self._cancel)
        while (errand := self._next()) is not _ENDED:
            if self._callers is not None and not errand.begun:
                post(self._callers.put_back, errand)
            self._inbox.popleft()

    def _next(self) -> Errand | None:
        """What lies first in the inbox, and stays there."""
        while not self._inbox:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=LOOK_S)
        return self._inbox[0]

    def _cancel(self) -> None:
        """On the loop."""
        if self._begun and self._task is not None and not self._task.done():
            self._leave()
            self._task.cancel()
        else:
            # Cancelled before its first step a task runs nothing at all: it would not tell us.
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


class Kept(Generic[Result]):
    """What a call takes out of its client, until the user has it.

        kept = Kept(take, take_back, call)
        try:
            call(kept.run, ...)
            return kept.result
        except BaseException:
            kept.give_back()
            raise

    Written out in the method that the user calls: behind a helper there would be one more place at
    which a signal drops what it returned.

    Args:
        take: the call's work.
        take_back: called on the loop with a result that the user did not get.
        call: `BackgroundLoop.call`.
    """

    __slots__ = ("_call", "_is_refused", "_take", "_take_back", "result")

    result: Result

    def __init__(
        self,
        take: Callable[..., Coroutine[Any, Any, Result]],
        take_back: Callable[[Result], object],
        call: Callable[..., object],
    ) -> None:
        self._call = call
        self._take = take
        self._take_back = take_back
        self._is_refused = False

    async def run(self, *arguments: Any) -> None:
        """On the loop."""
        self.result = await self._take(*arguments)
        if self._is_refused:
            self._take_back(self.result)

    def give_back(self) -> None:
        """The user does not get it: it is taken back, now or when it comes."""
        with contextlib.suppress(KafkaError):  # the loop has ended, or is another process's
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
        """In the waiting thread."""
        self.begun = True
        try:
            result = self._function()
        except Exception as error:  # noqa: BLE001 - belongs to whoever gave the errand
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
    """The calls whose threads may be given errands, and the errands that wait for one.

    On the loop. What an interrupted call did not run any more, the next one does.
    """

    def __init__(self) -> None:
        self._calls: list[Call[Any]] = []
        self._errands: deque[Errand] = deque()

    def entered(self, call: Call[Any]) -> None:
        """This call waits now."""
        self._calls.append(call)
        while self._errands:
            call.send(self._errands.popleft())

    def left(self, call: Call[Any]) -> None:
        """This call runs nothing any more."""
        if call in self._calls:
            self._calls.remove(call)

    def put_back(self, errand: Errand) -> None:
        """An errand that was given to a call which has been interrupted."""
        if self._calls:
            self._calls[-1].send(errand)
        else:
            self._errands.append(errand)

    async def run(self, function: Callable[..., object], *arguments: object) -> object:
        """Run a function in the thread of the latest call, or of the next one; its result.

        Raises:
            TypeError: it is an async function.
            Exception: what it raised.
        """
        errand = Errand(lambda: function(*arguments))
        self.put_back(errand)
        result = await errand
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"{function!r} is async: listeners of a blocking client are functions")
        return result


def face_of(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[[Callable[..., object]], Callable[Concatenate[Any, Parameters], Result]]:
    """Make a method of a blocking client out of the coroutine method it stands for.

    Parameters, defaults, types and documentation are those of `method`, so that the faces cannot
    differ. The decorated function's body is never run.
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
    """A method that has `method` of the inner client called by the outer one's method `way`."""

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


async def run_now(
    function: Callable[..., Result], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Result:
    """Call a plain function, as work for the loop."""
    return function(*arguments, **keywords)
