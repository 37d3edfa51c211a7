"""The quorum core's events, one after the other, and the effects of each, in order.

Owns: both queues and the task that empties them. Must not: know what events or effects mean.
Invariant: no event reaches the core before every effect of the events before it has been carried
out; after the first failure nothing is carried out any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from moldau.raft.core.effects import Effect

MAX_QUEUED_EVENTS: Final = 1_000
"""Requests of peers wait for a place when so many events are queued. What the log tells itself
(answers, timers, flushes) is bounded by what it has asked for."""

Event = Callable[[], Sequence[Effect]]


class EventQueue:
    """Give events by `post`; `carry_out` does one effect, `failed` hears of an exception of it."""

    def __init__(
        self,
        carry_out: Callable[[Effect], Awaitable[None]],
        after_event: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._carry_out = carry_out
        self._after_event = after_event
        self._failed = failed
        self._events: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_stopped = False

    def start(self) -> None:
        """Begin to take events."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metadata-quorum")

    def post(self, event: Event) -> None:
        """Queue an event; it is dropped when the queue has stopped."""
        if self.is_stopped:
            return
        self._events.append(event)
        self._idle.clear()
        self._wake.set()
        if len(self._events) >= MAX_QUEUED_EVENTS:
            self._room.clear()

    def add_effects(self, effects: Sequence[Effect]) -> None:
        """Carry out further effects after those that are due: an event that could not wait."""
        if effects and not self.is_stopped:
            self._effects.extend(effects)
            self._idle.clear()
            self._wake.set()

    async def has_room(self) -> None:
        """Wait until fewer than MAX_QUEUED_EVENTS events are queued.

        Whoever goes on without another await before its `post` keeps to that limit.
        """
        while not self._room.is_set():  # those who were woken before may have taken the place
            await self._room.wait()

    async def is_idle(self) -> None:
        """Wait until every event and effect is done with (or the queue has stopped)."""
        await self._idle.wait()

    def stop(self) -> None:
        """Take no event and carry out no effect any more; the one under way is finished."""
        self.is_stopped = True
        self._events.clear()
        self._effects.clear()
        self._wake.set()
        self._room.set()

    async def closed(self) -> None:
        """After `stop`: wait for the effect under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while not self.is_stopped:
                if self._effects:
                    await self._carry_out(self._effects.popleft())
                elif self._events:
                    event = self._events.popleft()
                    if len(self._events) < MAX_QUEUED_EVENTS:
                        self._room.set()
                    self._effects.extend(event())
                    self._after_event()
                else:
                    self._idle.set()
                    self._wake.clear()
                    await self._wake.wait()
        except (asyncio.CancelledError, GeneratorExit):
            raise  # the loop ends
        except BaseException as error:
            self.stop()
            self._failed(error)
            raise
        finally:
            self._idle.set()
