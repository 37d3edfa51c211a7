"""Seals of closed segments: which of them are forgotten, and when the file is written."""

from __future__ import annotations

import pytest

from moldau.storage.checkpoints import SegmentSeal
from moldau.storage.segment_seals import SegmentSeals
from tests.storage.simulated_filesystem import SimulatedFilesystem


def seal(base_offset: int, crc: int = 1) -> SegmentSeal:
    return SegmentSeal(base_offset, 100, crc, 2, 3, 4, 5, 6)


def written(disk: SimulatedFilesystem, *base_offsets: int) -> SegmentSeals:
    seals = SegmentSeals(disk, "/d")
    seals.put([seal(each) for each in base_offsets], base_offsets)
    seals.write()
    assert not seals.is_dirty
    return seals


@pytest.mark.parametrize(
    ("base_offset", "kept"),
    [(0, []), (9, [0]), (10, [0]), (11, [0, 10]), (20, [0, 10]), (21, [0, 10, 20])],
)
def test_seals_of_segments_that_are_made_again_are_forgotten_on_the_disk_too(
    base_offset: int, kept: list[int]
) -> None:
    disk = SimulatedFilesystem()
    disk.mkdirs("/d")
    seals = written(disk, 0, 10, 20)
    seals.forget_from(base_offset)
    assert list(seals.entries) == kept
    assert seals.is_dirty is (len(kept) < 3)
    seals.write()
    again = SegmentSeals(disk, "/d")
    again.load()
    assert list(again.entries) == kept


def test_what_is_not_written_yet_stays_so_when_nothing_is_forgotten() -> None:
    disk = SimulatedFilesystem()
    disk.mkdirs("/d")
    seals = SegmentSeals(disk, "/d")
    seals.put([seal(0)], [0])
    seals.forget_from(10)
    assert seals.is_dirty


def test_a_seal_that_says_the_same_is_no_news() -> None:
    disk = SimulatedFilesystem()
    disk.mkdirs("/d")
    seals = written(disk, 0, 10)
    seals.put([seal(10)], [0, 10])
    assert not seals.is_dirty
    seals.put([seal(10, crc=9)], [10])
    assert seals.is_dirty
    assert seals.entries == {10: seal(10, crc=9)}
