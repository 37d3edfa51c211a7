"""What a console has seen of groups' lags while it ran: for each person, so that none sees what
another may see.

Nothing is asked for to fill it: points come with what people look at. Invariants: bounded in groups
and in points; no credential is kept, nor anything that it could be found from.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from moldau.console.people import Person

STEP_S: Final = 10
"""The last lag within a step is kept."""
MAX_POINTS: Final = 360
MAX_GROUPS: Final = 500
"""Where there are more, those are forgotten that were not looked at for longest."""

Point = tuple[int, int]


@dataclass(eq=False)
class LagHistories:
    """Lags by person and group: (time in ms since 1970, records behind).

    Args:
        now_s: the time of day, in seconds since 1970.
    """

    now_s: Callable[[], float] = time.time
    _histories: OrderedDict[bytes, deque[Point]] = field(default_factory=OrderedDict)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def add(self, person: Person, group_id: str, lag: int) -> None:
        """A lag that was just seen."""
        name = self._name(person, group_id)
        points = self._histories.setdefault(name, deque(maxlen=MAX_POINTS))
        self._histories.move_to_end(name)
        if len(self._histories) > MAX_GROUPS:
            self._histories.popitem(last=False)
        now_ms = int(self.now_s() * 1000)
        if points and points[-1][0] // (STEP_S * 1000) == now_ms // (STEP_S * 1000):
            points.pop()
        points.append((now_ms, lag))

    def of(self, person: Person, group_id: str) -> list[Point]:
        """What the person has seen of a group, the oldest first."""
        return [*self._histories.get(self._name(person, group_id), ())]

    def _name(self, person: Person, group_id: str) -> bytes:
        made = hashlib.blake2b(key=self._key, digest_size=32)
        for text in (person.kind, person.name, person.secret, group_id):
            encoded = text.encode("utf-8", "surrogateescape")
            made.update(len(encoded).to_bytes(8, "big") + encoded)
        return made.digest()
