"""Work in steps: a generator that yields after each, so that whoever drives it may let others in
between, and returns what came out. `runtime.slices` drives it on a loop.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """Take all steps now: for what is known to be small."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
