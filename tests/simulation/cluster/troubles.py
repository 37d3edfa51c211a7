"""Faults that strike beside a nemesis, by dice of their own: other seeds stay what they were.

Owns: whether a seed has them, and when one comes. Must not: know what strikes. Invariant: nothing
strikes after `end`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from tests.simulation.cluster.base_world import BaseWorld


class Troubles:
    """One kind of them. A subclass says what strikes, and ends what has not ended by itself."""

    pauses_ms: tuple[float, ...]

    def __init__(self, world: BaseWorld, name: str, seeds_share: float) -> None:
        self.world = world
        self.random = Random(f"{name} {world.seed}")
        self.pause_ms = self.random.choice(self.pauses_ms)
        self.is_on = self.random.random() < seeds_share

    def acts(self) -> list[Callable[[], None]]:
        """What `faults` can name, for a nemesis to do when its own dice say so."""
        raise NotImplementedError

    def keep_to(self, faults: Collection[str]) -> None:
        """A run with named faults has no others."""
        self.is_on &= not faults

    def start(self) -> None:
        """Strike from time to time, in a seed that has such troubles."""
        if self.is_on:
            self._later()

    def end(self) -> None:
        """No more of them, and what has begun is over."""
        self.is_on = False

    def strike(self) -> None:
        """One of them begins."""
        raise NotImplementedError

    def _later(self) -> None:
        delay_ms = self.random.expovariate(1 / self.pause_ms)
        self.world.loop.call_outside(delay_ms, self._next)

    def _next(self) -> None:
        if self.is_on:
            self.strike()
            self._later()
