"""Work that may take long, on the quorum's loop: cut into slices, or done in another thread.

Owns: which way is taken. Must not: know the work. Invariant: what is done in another thread works
on values that nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from moldau.metadata.steps import Steps
from moldau.protocol.schema import Message, Struct
from moldau.runtime.clock import Clock
from moldau.runtime.slices import LoopSlices
from moldau.server.outgoing import Offload
from moldau.server.request import array_names

T = TypeVar("T")

MANY_ELEMENTS: Final = 1_000
"""Making or encoding a message with more parts than this is left to another thread."""


class LongWork:
    """The two ways."""

    __slots__ = ("_clock", "_offload")

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock = clock
        self._offload = offload

    async def in_slices(self, steps: Steps[T]) -> T:
        """Do work that yields after each small part; others of the loop have their turns between
        slices. Work of one slice is done at once.
        """
        slices = LoopSlices(self._clock)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if slices.is_over:
                await slices.next()

    async def on(self, message: Message, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` makes of the arguments, in another thread if the message is large."""
        if has_many_elements(message):
            return await self._offload(function, *arguments)  # type: ignore[no-any-return]
        return function(*arguments)


def has_many_elements(message: Struct) -> bool:
    """Whether its arrays have more than MANY_ELEMENTS elements, those inside of others included."""
    count = 0
    waiting: list[Struct] = [message]
    while waiting:
        struct = waiting.pop()
        for name in array_names(type(struct)):
            elements = getattr(struct, name) or ()
            count += len(elements)
            if count > MANY_ELEMENTS:
                return True
            if elements and isinstance(elements[0], Struct):
                waiting.extend(elements)
    return False
