"""The garbage collector's settings: rare collections that never walk what start-up made, and a
bound for what they, and the C library, leave lying.
"""

from __future__ import annotations

import gc
from resource import getpagesize
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

GC_THRESHOLDS: Final = (10_000, 0, 10_000)
"""Allocations until a young collection, young ones until a middle one, and so on (measured). Every
second collection is a middle one and walks what is left of 20,000 allocations: of a million, as one
request can lead to, it would hold the loop for 100 ms. Commits and fetches of offsets, 1 MB each,
had middle collections of up to 36 ms with 60,000 and 14 with 20,000, all collections together 876
and 629 ms.
"""

LOADING_THRESHOLDS: Final = (1_000, 1_000_000, 1_000_000)
"""Young collections only. Middle and old ones walk code that stays, a tenth of a node's start;
without any, garbage lies between what stays, and a node that fills these holes later needs 2 % more
CPU for a Produce request of 16 KB (measured)."""


def collect_young_only() -> None:
    """Collect no more than young objects while modules are being loaded."""
    gc.set_threshold(*LOADING_THRESHOLDS)


def pause_garbage_collector() -> None:
    """No collections while something big is being loaded; `freeze_garbage_collector` ends this."""
    gc.disable()


MAX_LONG_LIVED_COUNT: Final = 300_000
"""A collection of so many objects holds the interpreter for 30 to 50 ms."""
GROWTH_COUNT: Final = 20_000
GROWTH_BYTES: Final = 64 * 1024 * 1024
CHECK_S: Final = 60.0


class MemoryKeeper:
    """Looks after what would stay for ever, from time to time.

    Cycles that have outlived young and middle collections before they ended, as those of
    connections, are never looked at again by the collector itself. Where there is much more than
    after the last look, all is collected. What is too much for one collection is exempt from all
    later ones: it serves, as a big image does, or is about to go.

    Memory that is free again between pieces in use stays with the C library. It goes back to the
    system while the process is much larger than it began.
    """

    def __init__(self) -> None:
        self._count = 0
        self._begun_bytes = resident_bytes()
        self._timer: TimerHandle | None = None

    def start(self, loop: AbstractEventLoop) -> None:
        """Look once a minute, from the next one on."""
        self._timer = loop.call_later(CHECK_S, self._on_timer, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self, loop: AbstractEventLoop) -> None:
        self.start(loop)
        self.collect()
        if self.has_grown():
            loop.run_in_executor(None, self.give_back)

    def has_grown(self) -> bool:
        """Whether memory may be worth giving back."""
        return resident_bytes() > self._begun_bytes + GROWTH_BYTES

    def give_back(self) -> None:
        """Have the C library give free memory back, where it has a call for that (glibc). 250 MB
        take 40 ms: not on a loop.
        """
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    def collect(self) -> None:
        """Collect, if there is reason to."""
        count = _long_lived_count()
        if count > MAX_LONG_LIVED_COUNT:
            gc.freeze()
            self._count = 0
        elif count > self._count + GROWTH_COUNT:
            gc.collect()
            self._count = _long_lived_count()


def resident_bytes() -> int:
    """What of this process is in memory; 0 where the system does not say (other than Linux)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * getpagesize()
    except OSError:
        return 0


def _long_lived_count() -> int:
    return len(gc.get_objects(generation=2))


def freeze_garbage_collector() -> None:
    """Collect once, exempt all that lives now from later collections, collect rarely then."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
