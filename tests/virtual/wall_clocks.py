"""The wall clocks of a simulated cluster's machines: they differ by seconds, and jump.

Owns: by how much each machine's wall clock is off, and how far apart the clocks of a run may be.
Must not: touch monotonic time, which is the loop's on every machine.
Invariant: only `jump` changes an offset; a restart of the machine's process does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

HOUR_MS: Final = 3_600_000


@dataclass(slots=True)
class WallClock:
    """One machine's wall clock: `offset_ms` ahead of true time, behind it when negative."""

    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClockSettings:
    """How wrong wall clocks are: at the beginning, and by one jump; milliseconds either way. A jump
    of an hour is exactly that, and is taken back sooner or later.
    """

    apart_ms: int
    jump_ms: int

    @classmethod
    def of_seed(cls, random: Random) -> ClockSettings:
        """Nearly right in one run, off by seconds or an hour in another."""
        return cls(
            apart_ms=random.choice((200, 2_000, 10_000)),
            jump_ms=random.choice((1_000, 5_000, 20_000, HOUR_MS)),
        )


class WallClocks:
    """All machines' wall clocks; each is off by what the seed says for it."""

    def __init__(self, random: Random, settings: ClockSettings | None = None) -> None:
        self._random = random
        self.settings = settings or ClockSettings.of_seed(random)
        self._clocks: dict[str, WallClock] = {}
        self.has_been_ahead = False
        """Whether a clock has jumped an hour ahead."""

    def of(self, host: str) -> WallClock:
        """That machine's; made when it is first asked for."""
        known = self._clocks.get(host)
        if known is None:
            apart_ms = self.settings.apart_ms
            known = WallClock(self._random.randint(-apart_ms, apart_ms))
            self._clocks[host] = known
        return known

    def jump(self) -> str:
        """One machine's wall clock jumps, ahead or back; which, and by how much."""
        wrong = self._wrong()
        if wrong and self._random.random() < 0.5:
            return self._set_right(self._random.choice(wrong))
        host = self._random.choice(sorted(self._clocks))
        jump_ms = self.settings.jump_ms
        if jump_ms < HOUR_MS:
            return self.move(host, self._random.randint(-jump_ms, jump_ms))
        return self.move(host, self._random.choice((-HOUR_MS, HOUR_MS)))

    def set_right(self) -> list[str]:
        """Every clock that is off by an hour is set right; which, and by how much."""
        return [self._set_right(host) for host in self._wrong()]

    def is_wrong(self, host: str) -> bool:
        """Whether that machine's clock is off by an hour."""
        return abs(self.of(host).offset_ms) > HOUR_MS // 2

    def _wrong(self) -> list[str]:
        return [host for host in sorted(self._clocks) if self.is_wrong(host)]

    def _set_right(self, host: str) -> str:
        return self.move(host, -self._clocks[host].offset_ms)

    def move(self, host: str, jump_ms: int) -> str:
        """A machine's wall clock jumps so far; what happened, for the trace."""
        clock = self.of(host)
        clock.offset_ms += jump_ms
        self.has_been_ahead |= jump_ms >= HOUR_MS
        return f"{host} by {jump_ms} ms, now off by {clock.offset_ms} ms"
