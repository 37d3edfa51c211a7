"""Counts are right in a process in which earlier tests left garbage with finalizers."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.counting import Newcomers, calls_of, collector_at_rest, descriptors


class Left:
    """Part of a cycle; its finalizer calls functions, and closes a file."""

    ended = 0

    def __init__(self, path: Path) -> None:
        self.itself = self
        self.descriptor = os.open(path, os.O_CREAT | os.O_RDONLY)

    def __del__(self) -> None:
        for _ in range(50):
            self.note()
        os.close(self.descriptor)

    @staticmethod
    def note() -> None:
        Left.ended += 1


@pytest.fixture(autouse=True)
def garbage(tmp_path: Path) -> Iterator[None]:
    """As an earlier test leaves it; the collector is as eager as it can be."""
    thresholds = gc.get_threshold()
    gc.disable()
    for number in range(20):
        Left(tmp_path / str(number))
    gc.set_threshold(1, 1, 1)
    gc.enable()
    yield
    gc.set_threshold(*thresholds)


def work() -> list[list[int]]:
    return [list(range(3)) for _ in range(40)]


def test_only_calls_of_the_work_are_counted() -> None:
    with_garbage = calls_of(work)
    assert Left.ended >= 1
    assert with_garbage == calls_of(work)
    assert sys.getprofile() is None
    assert gc.isenabled()


def test_the_collector_rests() -> None:
    with collector_at_rest():
        assert not gc.isenabled()
        ended = Left.ended
        work()
        assert Left.ended == ended
    assert gc.isenabled()


def test_descriptors_that_others_close_do_not_hide_new_ones(tmp_path: Path) -> None:
    with collector_at_rest():
        pass
    closed_by_others = os.open(tmp_path / "others", os.O_CREAT | os.O_RDONLY)
    before = descriptors()
    os.close(closed_by_others)
    assert not descriptors() - before
    own = os.open(tmp_path / "own", os.O_CREAT | os.O_RDONLY)
    assert own == closed_by_others
    [(number, _, _)] = descriptors() - before
    assert number == own
    os.close(own)


def test_threads_and_objects_of_others_are_not_new() -> None:
    class Kind:
        """Something that is counted."""

    gate = threading.Event()
    others = Kind()
    threads = [threading.Thread(target=gate.wait, name=f"counted {each}") for each in range(2)]
    threads[0].start()
    new = Newcomers(Kind)
    assert not new.objects()
    assert not new.threads("counted")
    del others
    own = Kind()
    threads[1].start()
    assert new.objects() == [own]
    assert new.threads("counted") == [threads[1]]
    gate.set()
    for each in threads:
        each.join()
