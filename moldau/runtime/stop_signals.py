"""SIGTERM and SIGINT, from a process's first line to its last: remembered, delivered, then ignored.

Owns: the handlers of the two signals. Must not: decide what a stop is, or load anything slow: it
has to be in place before that. Invariant: from `install` on a stop signal never ends the process
and never raises, in whatever thread and however often it arrives.

Not the event loop's own handlers: a loop puts the default ones back when it closes, and what comes
then kills the process, at the end of an orderly stop.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
DRAIN_BYTES: Final = 4096


class StopSignals:
    """States: made -> `install` -> (`waking`, while a loop runs) -> `ignore`. Main thread only."""

    def __init__(self) -> None:
        self.is_requested = False
        self._notify: Callable[[], object] | None = None

    def install(self) -> None:
        """Remember a stop signal from now on, instead of ending by it."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    @contextmanager
    def waking(
        self, loop: asyncio.AbstractEventLoop, on_stop: Callable[[], object]
    ) -> Iterator[None]:
        """Inside, every stop signal calls `on_stop` on the loop; one that came before does at once.

        The kernel may hand a signal to any thread, while Python runs its handlers in the main one:
        the wake-up descriptor is what gets that out of its wait for events.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)

        def woken() -> None:
            # Python code on purpose: Python runs its handlers between two lines of it, and under
            # uvloop there might be none.
            ours.recv(DRAIN_BYTES)

        loop.add_reader(ours, woken)
        previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._notify = lambda: loop.call_soon_threadsafe(on_stop)
        if self.is_requested:
            on_stop()
        try:
            yield
        finally:
            self._notify = None
            signal.set_wakeup_fd(previous, warn_on_full_buffer=False)
            loop.remove_reader(ours)
            ours.close()
            theirs.close()

    @staticmethod
    def ignore() -> None:
        """Ignore stop signals from now on, up to the end of the process."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.is_requested = True
        if self._notify is not None:
            self._notify()
