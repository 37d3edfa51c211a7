"""What has outlived young and middle collections, and becomes a cycle only then."""

from __future__ import annotations

import gc
import weakref
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.runtime import garbage_collector
from moldau.runtime.garbage_collector import (
    GC_THRESHOLDS,
    GROWTH_COUNT,
    LOADING_THRESHOLDS,
    LONG_LIVED_CHECK_S,
    LongLived,
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


def settled() -> LongLived:
    """All that lives is exempt, as after a node's start."""
    freeze_garbage_collector()
    gc.set_threshold(*GC_THRESHOLDS)
    return LongLived()


def test_cycles_of_what_was_long_lived_are_collected_once_they_are_many() -> None:
    long_lived = settled()
    few = old_cycles(GROWTH_COUNT // 2)
    long_lived.check()
    assert few() is not None, "too few for a collection"
    old_cycles(GROWTH_COUNT // 2 + 1_000)
    gc.collect(1)
    long_lived.check()
    assert few() is None


def test_what_lives_is_not_walked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    long_lived = settled()
    living = [Link() for _ in range(GROWTH_COUNT + 1_000)]
    gc.collect(1)
    long_lived.check()
    collections = gc.get_stats()[2]["collections"]
    long_lived.check()
    assert gc.get_stats()[2]["collections"] == collections
    assert living


def test_what_is_too_much_for_one_collection_is_exempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collector, "MAX_LONG_LIVED_COUNT", GROWTH_COUNT)
    long_lived = settled()
    frozen_count, collections = gc.get_freeze_count(), gc.get_stats()[2]["collections"]
    living = [Link() for _ in range(GROWTH_COUNT + 1_000)]
    gc.collect(1)
    long_lived.check()
    assert gc.get_freeze_count() >= frozen_count + len(living)
    assert gc.get_stats()[2]["collections"] == collections
    later = old_cycles(GROWTH_COUNT - 1_000)
    old_cycles(GROWTH_COUNT - 19_000)
    long_lived.check()
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

    def step(self) -> float:
        delay_s, callback = self.due.pop()
        callback()
        return delay_s


def test_it_looks_every_minute_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    loop, long_lived = Loop(), LongLived()
    monkeypatch.setattr(long_lived, "check", lambda: looks.append("look"))
    long_lived.stop()
    long_lived.start(cast(AbstractEventLoop, loop))
    assert not looks
    assert [loop.step(), loop.step()] == [LONG_LIVED_CHECK_S] * 2
    assert looks == ["look", "look"]
    long_lived.stop()
    assert loop.due == []
