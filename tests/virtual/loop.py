"""An asyncio event loop on virtual time, shared by all processes of a simulated cluster.

Owns: the order in which callbacks run, virtual time, and which process a callback belongs to.
Must not: touch threads, sockets or the machine's clock.
Invariant: the order of callbacks follows from the calls alone: what is ready runs first in, first
out; timers by time, then by the order in which they were set. Callbacks of a process that was
killed never run again; those of a stopped one (SIGSTOP, a long pause of the collector) run when it
goes on. An exception that was not handled is kept in `failures`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import math
import types
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.storage.simulated_filesystem import SimulatedCrash
from tests.virtual.wall_clocks import WallClock

MAX_STEPS_AT_ONE_INSTANT = 50_000
"""More callbacks than this without virtual time passing are taken for an endless loop."""

TASKS_KEPT = 5_000

WALL_CLOCK_START_MS = 1_700_000_000_000


class Deadlock(AssertionError):
    """Nothing is ready and no timer is set, or time has run out, and a task still waits."""


class EndlessLoop(AssertionError):
    """Callbacks go on scheduling callbacks, and no time passes."""


class UnhandledFailure(AssertionError):
    """An exception reached the loop: in production the node would have been stopped by it."""


class Process:
    """Whom callbacks belong to. States: alive (running or stopped) -> killed."""

    def __init__(self, loop: VirtualLoop, name: str, *, owns_tasks: bool = True) -> None:
        """`owns_tasks`: what runs in it is marked as its own; False for the process of a unit test,
        which is never killed.
        """
        self.name = name
        self.loop = loop
        self.is_alive = True
        self.stopped_until: float | None = None
        self.deferred: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.owner_of_tasks = self if owns_tasks else None
        self.context.run(_PROCESS.set, self.owner_of_tasks)
        self.on_kill: list[Callable[[], object]] = []
        self.fails_with_tasks = True

    def __repr__(self) -> str:
        return f"Process({self.name})"

    def kill(self) -> None:
        """End it between two instructions: nothing of it runs any more (idempotent)."""
        if self.is_alive:
            self.is_alive = False
            self.loop.note(f"{self.name} dies")
            for callback in self.on_kill:
                callback()

    def stop_for(self, duration_ms: float) -> None:
        """SIGSTOP now, SIGCONT after `duration_ms`."""
        until = self.loop.time() + duration_ms / 1000
        if self.is_alive and (self.stopped_until is None or until > self.stopped_until):
            self.stopped_until = until
            self.loop.call_outside(duration_ms, self._go_on, until)

    def _go_on(self, until: float) -> None:
        if self.stopped_until == until:
            self.go_on()

    def go_on(self) -> None:
        """SIGCONT (idempotent)."""
        self.stopped_until = None
        self.loop.run_deferred(self)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as part of this process."""
        task = self.loop.create_task(coroutine, context=self.context)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        """No task waits for what was spawned: its failure is the run's."""
        if not self.is_alive or task.cancelled() or not self.fails_with_tasks:
            return
        exception = task.exception()
        if exception is not None:
            self.loop.fail(f"{self.name}: {_name_of(task)}", exception)


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    """The process whose callback runs now; None for the simulation's own."""
    return _PROCESS.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. `step_count` counts callbacks, `event_count` those that time brought."""

    def __init__(
        self, *, steps_at_one_instant: int = MAX_STEPS_AT_ONE_INSTANT, limit_s: float = math.inf
    ) -> None:
        """`limit_s` is how much virtual time may pass until what still waits is a deadlock."""
        super().__init__()
        self.step_count = 0
        self.event_count = 0
        self.failures: list[str] = []
        self.tasks: list[tuple[Process, asyncio.Task[Any]]] = []
        self.history: deque[str] = deque(maxlen=400)
        self.after_step: Callable[[], None] | None = None
        self._now = 0.0
        self._limit_s = limit_s
        self._steps_allowed = steps_at_one_instant
        self._steps_at_instant = 0
        self._sequence = 0
        self._running: Process | None = None
        self._outside = contextvars.copy_context()
        self._runnable: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self.set_exception_handler(self._on_exception)
        self.set_task_factory(_make_task)

    # -- asyncio's side --------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()
        handle = asyncio.Handle(callback, args, self, context)
        self._runnable.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        self._check_closed()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._put(when, timer)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise AssertionError("no threads in a simulation: file work goes through the Filesystem")

    def _run_once(self) -> None:
        """Run one callback, letting time pass to the next timer when none is ready."""
        if self._runnable:
            handle = self._runnable.popleft()
            self._steps_at_instant += 1
            if self._steps_at_instant > self._steps_allowed:
                raise EndlessLoop(f"at {self._now:.6f} s: {handle}{self._waiting()}")
        elif self._timers:
            when, _sequence, handle = heapq.heappop(self._timers)
            if handle._cancelled:
                return
            if when > self._now:
                self._now = when
                self._steps_at_instant = 0
                if when > self._limit_s:
                    raise Deadlock(f"{self._limit_s} s have passed{self._waiting()}")
            self.event_count += 1
        else:
            raise Deadlock(f"at {self._now:.6f} s nothing is left to happen{self._waiting()}")
        if handle._cancelled:
            return
        process = handle._context.get(_PROCESS)
        if process is not None:
            if not process.is_alive:
                return
            if process.stopped_until is not None:
                process.deferred.append(handle)
                return
        self.step_count += 1
        self._running = process
        handle._run()
        del handle  # an error's traceback may know this frame
        self._running = None
        if self.after_step is not None:
            self.after_step()
        if self.failures:
            raise UnhandledFailure(self.failures[0])

    def run_deferred(self, process: Process) -> None:
        """Make ready what a process could not run while it was stopped."""
        self._runnable.extend(process.deferred)
        process.deferred.clear()

    def _put(self, when: float, handle: asyncio.Handle) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is passed over when its time comes."""

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("there is no selector")

    # -- failures --------------------------------------------------------------------------------

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exception = context.get("exception")
        if isinstance(exception, SimulatedCrash):
            return
        process = self._running
        if process is not None and not process.is_alive:
            return
        who = process.name if process is not None else "the simulation"
        self.fail(f"{who}: {context.get('message')}", exception)

    def fail(self, what: str, exception: BaseException | None = None) -> None:
        """End the run after this step."""
        self.failures.append(f"{what}: {exception!r}")
        if exception is not None:
            self.failures[-1] += _where(exception)

    def note(self, text: str) -> None:
        """A line of the run's history, which a failure shows the end of."""
        self.history.append(f"{self._now * 1000:12.3f} {text}")

    def call_outside(self, delay_ms: float, callback: Callable[..., object], *args: Any) -> None:
        """A timer that belongs to no process, whichever process sets it."""
        self.call_later(delay_ms / 1000, callback, *args, context=self._outside)

    # -- use -------------------------------------------------------------------------------------

    def elapse(self, duration_ms: float) -> asyncio.Future[None]:
        """A future that is done when so much virtual time has passed."""
        future: asyncio.Future[None] = self.create_future()
        self.call_later(max(duration_ms, 0.0) / 1000, _finish, future)
        return future

    def _waiting(self) -> str:
        """What waits, and where."""
        tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
        lines = [f"\n  {_name_of(task)} waits{_await_chain(task.get_coro())}" for task in tasks]
        return "".join(sorted(lines))

    def unheard_failures(self) -> list[str]:
        """Exceptions of live processes' tasks that were not asked for."""
        return [
            f"{process.name}: {_name_of(task)}: {task._exception!r}"  # type: ignore[attr-defined]
            for process, task in self.tasks
            if process.is_alive and task.done() and task._log_traceback  # type: ignore[attr-defined]
        ]

    def dispose(self) -> None:
        """Close everything without running anything more, the dead processes' tasks too.

        What a coroutine begins in its end belongs to this loop, and is closed as well: without a
        running loop `asyncio.gather` makes a real one, which stays open.
        """
        self.after_step = None
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while self.tasks:
                left, self.tasks = self.tasks, []
                for process, task in left:
                    contextvars.copy_context().run(_end, process, task)
        finally:
            asyncio._set_running_loop(running)
        self._runnable.clear()
        self._timers.clear()
        self.close()


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Any,
    context: contextvars.Context | None = None,
    **options: Any,
) -> asyncio.Task[Any]:
    """Tasks of processes are kept to the end: the collector never decides when one is closed."""
    assert isinstance(loop, VirtualLoop)
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context, **options)
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is not None:
        loop.tasks.append((process, task))
        if len(loop.tasks) >= TASKS_KEPT:
            loop.tasks = [each for each in loop.tasks if _is_worth_keeping(each[1])]
    return task


def _is_worth_keeping(task: asyncio.Task[Any]) -> bool:
    return not task.done() or bool(task._log_traceback)  # type: ignore[attr-defined]


def _name_of(task: asyncio.Task[Any]) -> str:
    """Not the task's own name: it counts the tasks of the whole Python process."""
    return str(getattr(task.get_coro(), "__qualname__", "a task"))


def _await_chain(waiting: Any) -> str:
    """The places of a coroutine and of what it awaits, the outermost first."""
    places = []
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None:
            places.append(_place(frame.f_code, frame.f_lineno))
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
    return "".join(places)


def _place(code: types.CodeType, line: int) -> str:
    return f"\n    {code.co_filename.rpartition('moldau/')[2]}:{line} {code.co_name}"


def _end(process: Process, task: asyncio.Task[Any]) -> None:
    """Close what a task of the process still does."""
    _PROCESS.set(process)
    if not task.done():
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        _close(task.get_coro())
    elif not task.cancelled():
        task.exception()


def _close(coroutine: Any) -> None:
    """What was never begun does not close the work that it was to wait for. (A task may have one
    of our own making, which holds another.)
    """
    held = []
    is_native = inspect.iscoroutine(coroutine)
    if is_native and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        held = [each for each in coroutine.cr_frame.f_locals.values() if inspect.iscoroutine(each)]
    try:
        coroutine.close()
        for each in held:
            each.close()
    except (Exception, SimulatedCrash):  # noqa: BLE001  what a dead process says is not heard
        return
    except BaseException as error:
        raise AssertionError(f"closing {coroutine}: {error!r}") from error


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _where(exception: BaseException) -> str:
    """The innermost places of a traceback."""
    places = []
    trace = exception.__traceback__
    while trace is not None:
        places.append(_place(trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    return "".join(places[-8:])


class VirtualClock:
    """The Clock port of one process. Its wall clock is its machine's, right without one."""

    def __init__(self, loop: VirtualLoop, wall: WallClock | None = None) -> None:
        self._loop = loop
        self._wall = WallClock() if wall is None else wall

    def now_ms(self) -> int:
        return WALL_CLOCK_START_MS + self._wall.offset_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> float:
        return self._loop.time() * 1000

    def thread_ms(self) -> float:
        return self.monotonic_ms()

    def call_later(
        self, delay_ms: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        return self._loop.call_later(max(delay_ms, 0.0) / 1000, callback, *args)
