"""How often a message may be logged: its first lines in an interval, and a count of the rest.

Owns the counts. Must not write lines, or decide which lines are the same message. Invariants: each
line that is not let through is in exactly one `LeftOut`; memory is bounded, whatever peers cause.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from moldau.runtime.clock import Clock

T = TypeVar("T")

MAX_SENDERS_COUNTED: Final = 100
"""Senders without a line whose missing lines are counted by name; those of all others are one
number.
"""
Names: TypeAlias = tuple[str, ...]
"""Whom a line is about, the most general first: a principal, and its address."""
OTHERS: Final[Names] = ()


class LeftOut(NamedTuple, Generic[T]):
    """Lines that were not written.

    Attributes:
        sample: of the first of them; None for lines of messages that found no room beside others.
        sender: who caused lines that found no room, or `OTHERS`.
    """

    sample: T | None
    sender: Names
    line_count: int


class _Message(Generic[T]):
    """What was written of one message lately, and what was left out since its last count."""

    __slots__ = ("due_ms", "left_out_count", "sample", "sender", "written_ms")

    def __init__(self, sample: T, sender: Names, due_ms: float, max_lines: int) -> None:
        self.sample = sample
        self.sender = sender
        self.due_ms = due_ms
        self.left_out_count = 0
        self.written_ms: deque[float] = deque(maxlen=max_lines)


@dataclass(slots=True, eq=False, repr=False)
class Brake(Generic[T]):
    """Lets lines through, or counts them. Takes no lock.

    A sender may cause another message as long as it has caused fewer than there is room for: the
    first one takes half of the room at most, the next one half of the rest.

    Args:
        max_lines: lines of one message within any span of `interval_ms`.
        max_messages: those known at a time, each for `interval_ms` after its last line; lines of
            further ones are left out.
        senders_share: of `max_messages`, what one sender may cause.
        max_senders: of so many at a time, the first message finds room whatever the others cause;
            half of these places are for first names that have none yet.
    """

    _clock: Clock
    _: KW_ONLY
    max_lines: int
    interval_ms: float
    max_messages: int
    senders_share: InitVar[float] = 1.0
    max_senders: int = 0
    _senders_max: int = field(init=False)
    _messages: dict[Hashable, _Message[T]] = field(default_factory=dict)
    """The messages in the order in which their counts are due."""
    _senders: Counter[Names] = field(default_factory=Counter)  # their messages
    _first_names: Counter[Names] = field(default_factory=Counter)  # their senders
    _crowded_out: Counter[Names] = field(default_factory=Counter)
    _crowded_until_ms: float = 0.0

    def __post_init__(self, senders_share: float) -> None:
        self._senders_max = max(1, int(self.max_messages * senders_share))

    def take(self, message: Hashable, sample: Callable[[], T], sender: Names = OTHERS) -> T | None:
        """A sample of the message if the line may be written; None if it is counted instead.

        Args:
            message: equal for lines that say the same.
            sample: called for the first line of a message that is not known, and for the first one
                that is left out before each count.
            sender: who causes the line.
        """
        now_ms = self._clock.monotonic_ms()
        known = self._messages.get(message)
        if known is None:
            if not self._has_room(sender):
                self._crowd_out(sender)
                return None
            known = _Message(sample(), sender, now_ms + self.interval_ms, self.max_lines)
            self._messages[message] = known
            self._first_names[sender[:1]] += not self._senders[sender]
            self._senders[sender] += 1
        written_ms = known.written_ms
        if len(written_ms) == self.max_lines and written_ms[0] > now_ms - self.interval_ms:
            if not known.left_out_count:
                known.sample = sample()
            known.left_out_count += 1
            return None
        written_ms.append(now_ms)
        return known.sample

    def take_counts(self, *, with_early: bool = False) -> list[LeftOut[T]]:
        """What was left out, if its count is due, an interval after the one before or after the
        message became known; or all of it.
        """
        now_ms = self._clock.monotonic_ms()
        until_ms = float("inf") if with_early else now_ms
        due = list(itertools.takewhile(lambda e: e[1].due_ms <= until_ms, self._messages.items()))
        counts: list[LeftOut[T]] = []
        for name, message in due:
            del self._messages[name]
            if message.left_out_count:
                counts.append(LeftOut(message.sample, message.sender, message.left_out_count))
            if message.written_ms[-1] > now_ms - self.interval_ms:
                message.left_out_count = 0
                message.due_ms = now_ms + self.interval_ms
                self._messages[name] = message  # the last one in the order
            else:
                self._forget(message.sender)
        if self._crowded_until_ms <= until_ms:
            counts += [LeftOut(None, *each) for each in self._crowded_out.items()]
            self._crowded_out.clear()
        return counts

    def due_ms(self) -> float | None:
        """When the next count may be due, in monotonic milliseconds; None while nothing is known
        of any message.
        """
        due = [each.due_ms for each in itertools.islice(self._messages.values(), 1)]
        if self._crowded_out:
            due.append(self._crowded_until_ms)
        return min(due, default=None)

    def _has_room(self, sender: Names) -> bool:
        own, sender_count = self._senders[sender], len(self._senders)
        if self.max_senders and not own:
            with_first_name = self._first_names[sender[:1]]
            if with_first_name:
                return with_first_name < self.max_senders // 2 - sender_count
            return sender_count < self.max_senders
        # The first messages of senders, which have places of their own, take no room from others.
        free = self.max_messages - len(self._messages) + min(sender_count, self.max_senders)
        return own < self._senders_max and max(0, own - 1) < free

    def _forget(self, sender: Names) -> None:
        for counter, name in ((self._senders, sender), (self._first_names, sender[:1])):
            counter[name] -= 1
            if counter[name]:
                return
            del counter[name]

    def _crowd_out(self, sender: Names) -> None:
        if not self._crowded_out:
            self._crowded_until_ms = self._clock.monotonic_ms() + self.interval_ms
        crowded_out = self._crowded_out
        has_name = sender in self._senders or len(crowded_out) < MAX_SENDERS_COUNTED
        crowded_out[sender if has_name or sender in crowded_out else OTHERS] += 1
