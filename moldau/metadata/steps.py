"""Work that may be cut in slices: a generator that yields after each small part.

Owns the type, and the way to do such work at once. Invariant: whoever cuts it in slices sees to it
that nothing else changes what it works on.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Work in steps; what it returns is its result."""


def at_once(steps: Steps[T]) -> T:
    """Do all of the work now."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
