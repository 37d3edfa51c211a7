"""What waits until the log of a coordinator's partition is committed up to some offset.

Owns the line of those who wait, in the order of their offsets, and what their records weigh. Must
not call any of them: the shard does. Invariant: offsets and deadlines never decrease along the
line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moldau.broker.coordinator.core.result import After


class Waiting(NamedTuple):
    """One who waits.

    Attributes:
        required_offset: everything before it has to be committed.
        deadline_ms: by the monotonic clock.
        size_bytes: of the records that wait with it.
        timer_key: the timer whose event waits, None for another event.
    """

    required_offset: int
    deadline_ms: float
    after: After
    size_bytes: int
    timer_key: Hashable


class CommitQueue:
    """The line of one partition."""

    __slots__ = ("_line", "size_bytes")

    def __init__(self) -> None:
        self._line: deque[Waiting] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def first(self) -> Waiting | None:
        """Whose turn is next."""
        return self._line[0] if self._line else None

    def add(self, waiting: Waiting) -> None:
        """Join the end of the line."""
        assert not self._line or self._line[-1].required_offset <= waiting.required_offset
        self._line.append(waiting)
        self.size_bytes += waiting.size_bytes

    def pop_committed(self, high_watermark: int) -> Waiting | None:
        """The first one, if what it waits for is committed."""
        if self._line and self._line[0].required_offset <= high_watermark:
            return self._pop()
        return None

    def pop_overdue(self, now_ms: float) -> Waiting | None:
        """The first one, if its time is up."""
        if self._line and self._line[0].deadline_ms <= now_ms:
            return self._pop()
        return None

    def pop(self) -> Waiting | None:
        """The first one, whatever it waits for."""
        return self._pop() if self._line else None

    def _pop(self) -> Waiting:
        waiting = self._line.popleft()
        self.size_bytes -= waiting.size_bytes
        return waiting
