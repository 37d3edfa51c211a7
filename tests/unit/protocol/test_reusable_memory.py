"""Buffers are used again when no reader can see them any more, and never before."""

from __future__ import annotations

import random

import pytest

from moldau.protocol.reusable_memory import SMALLEST_BYTES, STEP_BYTES, ReusableMemory, is_unseen


def test_a_buffer_comes_back_when_its_last_view_is_gone() -> None:
    memory = ReusableMemory(4 * STEP_BYTES)
    first = memory.take(STEP_BYTES)
    assert first is not None
    views = [memoryview(first), memoryview(first)[5:9]]
    assert memory.take(STEP_BYTES) is not first
    views.pop()
    assert not is_unseen(first)
    views.clear()
    assert is_unseen(first)
    assert any(memory.take(STEP_BYTES) is first for _ in range(3))


@pytest.mark.parametrize("size", [0, SMALLEST_BYTES - 1, 5 * STEP_BYTES])
def test_what_is_small_or_over_the_limit_is_not_worth_it(size) -> None:
    assert ReusableMemory(4 * STEP_BYTES).take(size) is None


def test_what_can_be_read_is_never_handed_out_again() -> None:
    source = random.Random(5)
    memory = ReusableMemory(6 * STEP_BYTES)
    held: list[tuple[memoryview, int]] = []
    for number in range(500):
        buffer = memory.take(source.randrange(SMALLEST_BYTES, 3 * STEP_BYTES))
        assert buffer is not None
        view = memoryview(buffer)
        assert all(view.obj is not other.obj for other, _ in held)
        view[0] = view[-1] = number % 256
        held.append((view, number % 256))
        while len(held) > source.randrange(1, 9):
            held.pop(source.randrange(len(held)))
        assert all(other[0] == other[-1] == mark for other, mark in held)


def test_a_buffer_is_not_much_larger_than_what_is_asked_for() -> None:
    memory = ReusableMemory(8 * STEP_BYTES)
    large = memory.take(4 * STEP_BYTES)
    assert large is not None
    assert memory.take(STEP_BYTES) is not large
    assert memory.take(3 * STEP_BYTES) is large
