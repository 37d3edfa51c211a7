"""Whose requests are handled at once, and whose wait for a turn.

Owns the line of what waits: connections with requests that the handler has not had, and coroutines
that work on requests. Must not: know either. Invariants: parties (principals, and addresses of
clients without one) take turns, and so does what waits of each; while more than one party sends,
one that has used up its credit waits in the line, however many connections it has.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeVar

from moldau.runtime.clock import Clock
from moldau.server.memory_shares import Holder, Share

T = TypeVar("T")

AT_ONCE_MS: Final = 0.25
"""How long requests that have just been read are handled. The rest joins the line, of which one
request is handled between two looks at the sockets; nothing more is read from the connection before
the handler has all that it has sent.
"""

SHARED_AT_ONCE_MS: Final = 0.125
"""The same while parties share the loop."""

CREDIT_PART: Final = 0.1
"""While parties share the loop, one is credited with that part of the time: so long its requests
are worked on at once; what it takes beyond that waits for turns.
"""

MAX_CREDIT_MS: Final = 1.0
"""What a party that has been quiet may take before it waits for turns."""

SHARED_MS: Final = 100.0
"""How long the loop counts as shared after requests of another party."""


class Waiting(Protocol):
    """What waits in the line."""

    def take_turn(self) -> None:
        """The turn has come, once."""


class Turns:
    """The turns of one server, on its loop."""

    __slots__ = ("_call_soon", "_clock", "_is_due", "_last", "_line", "_shared_until_ms")

    def __init__(self, clock: Clock, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._clock = clock
        self._call_soon = call_soon
        self._line: OrderedDict[Holder, deque[Waiting]] = OrderedDict()
        self._is_due = False
        self._last: Holder | None = None
        self._shared_until_ms = float("-inf")

    def at_once_ms(self, party: Holder, now_ms: float) -> float:
        """How long requests of a party may be worked on now; 0 if they have to wait for a turn."""
        if party is not self._last:
            if self._last is not None:
                self._shared_until_ms = now_ms + SHARED_MS
            self._last = party
        if now_ms >= self._shared_until_ms:
            return AT_ONCE_MS
        credit_ms = party.credit_ms + (now_ms - party.credited_ms) * CREDIT_PART
        party.credit_ms = min(credit_ms, MAX_CREDIT_MS)
        party.credited_ms = now_ms
        return SHARED_AT_ONCE_MS if party.credit_ms >= SHARED_AT_ONCE_MS else 0.0

    @staticmethod
    def took(party: Holder, elapsed_ms: float) -> None:
        """Requests of a party have been worked on for so long."""
        party.credit_ms = max(party.credit_ms - elapsed_ms, 0.0)

    def wait(self, party: Holder, waiting: Waiting) -> None:
        """Have its turn come after what waits of this party already. There is one turn between two
        looks at the sockets, however many wait: what has come in since then waits for one.
        """
        line = self._line.get(party)
        if line is None:
            line = self._line[party] = deque()
        line.append(waiting)
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._next_turn)

    def _next_turn(self) -> None:
        party, line = self._line.popitem(last=False)
        waiting = line.popleft()
        if line:
            self._line[party] = line
        if self._line:
            self._call_soon(self._next_turn)
        else:
            self._is_due = False
        waiting.take_turn()

    def taken_by(self, share: Share, work: Coroutine[object, None, T]) -> InTurns[T]:
        """The same coroutine, for a task: each step that its party may not take now waits."""
        return InTurns(self, self._clock, share, work)


class InTurns(Coroutine[object, None, T]):
    """Work whose steps wait for turns."""

    __slots__ = (
        "_clock",
        "_end",
        "_has_begun",
        "_share",
        "_turn",
        "_turns",
        "_waits_for",
        "_work",
    )

    def __init__(
        self, turns: Turns, clock: Clock, share: Share, work: Coroutine[object, None, T]
    ) -> None:
        self._turns = turns
        self._clock = clock
        self._share = share
        self._work = work
        self._turn: asyncio.Future[None] | None = None
        self._has_begun = False
        self._waits_for: object = None
        self._end: BaseException | None = None

    def begin(self, task: asyncio.Task[T]) -> None:
        """Take the first step now, not when the loop gets to the task that was just made of this:
        the caller has the turn, outside of any task. The task then learns what came of it.
        """
        loop = task.get_loop()
        asyncio.tasks._enter_task(loop, task)
        self._has_begun = True
        try:
            self._waits_for = self._work.send(None)
        except BaseException as error:  # noqa: BLE001 - the task ends with it
            self._end = error
        finally:
            asyncio.tasks._leave_task(loop, task)

    def send(self, value: None) -> object:
        if self._has_begun:
            self._has_begun = False
            self._raise_end()
            return self._waits_for
        turns, party, begun_ms = self._turns, self._share.party, self._clock.monotonic_ms()
        if self._turn is None and not turns.at_once_ms(party, begun_ms):
            self._turn = asyncio.get_running_loop().create_future()
            turns.wait(party, self)
            return next(self._turn.__await__())
        self._turn = None
        try:
            return self._work.send(value)
        finally:
            turns.took(party, self._clock.monotonic_ms() - begun_ms)

    def throw(self, *error: Any) -> object:
        if self._has_begun:
            self._raise_end()  # it comes too late if the work has ended
        self._turn, self._has_begun = None, False  # what ends the work does not wait
        try:
            return self._work.throw(*error)
        finally:
            del error  # its traceback knows this frame

    def _raise_end(self) -> None:
        """Raise what ended the work in its first step. It is kept no longer: its traceback holds
        `begin`, and so this object and the request.
        """
        end, self._end = self._end, None
        if end is not None:
            try:
                raise end
            finally:
                del end

    def take_turn(self) -> None:
        if self._turn is not None and not self._turn.done():  # it may have been cancelled
            self._turn.set_result(None)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[object, None, T]:
        return self._work.__await__()
