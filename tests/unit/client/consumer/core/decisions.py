"""Choices of a walk, out of bytes: given by hypothesis, which shrinks them, or by a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")


class Decisions:
    """Chooses until the bytes are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __iter__(self) -> Iterator[int]:
        while self._at < len(self._data):
            yield self.number(256)

    def number(self, below: int) -> int:
        """A number from 0 on; 0 when the bytes are used up."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1] % below

    def one_of(self, things: Sequence[Thing]) -> Thing:
        """One of them."""
        return things[self.number(len(things))]
