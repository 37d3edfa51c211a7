"""What has outlived young and middle collections, and becomes a cycle only then."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.runtime import garbage_collector
from moldau.runtime.garbage_collector import (
    CHECK_S,
    GC_THRESHOLDS,
    GROWTH_COUNT,
    LOADING_THRESHOLDS,
    MemoryKeeper,
    collect_young_only,
    freeze_garbage_collector,
)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Link:
    """One of a chain, or of a circle."""

    next: Link | None = None


def old_cycles(count: int) -> weakref.ref[Link]:
    """So many links that have become cycles when they were old; one of them."""
    links = [Link() for _ in range(count)]
    gc.collect(1)  # what it leaves is long-lived
    for each in links:
        each.next = each
    return weakref.ref(links[0])


def settled() -> MemoryKeeper:
    """All that lives is exempt, as after a node's start."""
    freeze_garbage_collector()
    gc.set_threshold(*GC_THRESHOLDS)
    return MemoryKeeper()


def test_cycles_of_what_was_keeper_are_collected_once_they_are_many() -> None:
    keeper = settled()
    few = old_cycles(GROWTH_COUNT // 2)
    keeper.collect()
    assert few() is not None, "too few for a collection"
    old_cycles(GROWTH_COUNT // 2 + 1_000)
    gc.collect(1)
    keeper.collect()
    assert few() is None


def test_what_lives_is_not_walked_again_and_again() -> None:
    keeper = settled()
    living = [Link() for _ in range(GROWTH_COUNT + 1_000)]
    gc.collect(1)
    keeper.collect()
    collections = gc.get_stats()[2]["collections"]
    keeper.collect()
    assert gc.get_stats()[2]["collections"] == collections
    assert living


def test_what_is_too_much_for_one_collection_is_exempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collector, "MAX_LONG_LIVED_COUNT", GROWTH_COUNT)
    keeper = settled()
    frozen_count, collections = gc.get_freeze_count(), gc.get_stats()[2]["collections"]
    living = [Link() for _ in range(GROWTH_COUNT + 1_000)]
    gc.collect(1)
    keeper.collect()
    assert gc.get_freeze_count() >= frozen_count + len(living)
    assert gc.get_stats()[2]["collections"] == collections
    later = old_cycles(GROWTH_COUNT - 1_000)
    old_cycles(GROWTH_COUNT - 19_000)
    keeper.collect()
    assert later() is not None, "as many as last time would be"


def test_modules_are_loaded_with_young_collections_only() -> None:
    collect_young_only()
    assert gc.get_threshold() == LOADING_THRESHOLDS


class Loop:
    """Notes what is to be called, and when."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> TimerHandle:
        due = (delay_s, partial(callback, *args))
        self.due.append(due)
        return cast(TimerHandle, SimpleNamespace(cancel=lambda: self.due.remove(due)))

    def run_in_executor(self, executor: None, function: Callable[[], None]) -> None:
        function()

    def step(self) -> float:
        delay_s, callback = self.due.pop()
        callback()
        return delay_s


def test_it_looks_every_minute_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    loop, keeper = Loop(), MemoryKeeper()
    monkeypatch.setattr(keeper, "collect", lambda: looks.append("look"))
    monkeypatch.setattr(keeper, "has_grown", lambda: len(looks) == 2)
    monkeypatch.setattr(keeper, "give_back", lambda: looks.append("give back"))
    keeper.stop()
    keeper.start(cast(AbstractEventLoop, loop))
    assert not looks
    assert [loop.step(), loop.step()] == [CHECK_S] * 2
    assert looks == ["look", "look", "give back"]
    keeper.stop()
    assert loop.due == []


FREED = """
from moldau.runtime.garbage_collector import GROWTH_BYTES, MemoryKeeper, resident_bytes
keeper = MemoryKeeper()
seen = [keeper.has_grown()]
large, kept = [], []
for _ in range(3 * GROWTH_BYTES // 70_000):
    large.append(bytearray(70_000))
    kept.append(bytearray(700))
before_bytes = resident_bytes()
seen.append(keeper.has_grown())
large.clear()
keeper.give_back()
print(*seen, keeper.has_grown(), before_bytes - resident_bytes() > 2 * GROWTH_BYTES)
"""


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_free_memory_between_pieces_in_use_goes_back() -> None:
    """Another process tries it: this one has free memory from earlier tests."""
    command = [sys.executable, "-c", FREED]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "True", "False", "True"]
