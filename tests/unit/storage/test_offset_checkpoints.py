"""A checkpoint file that several threads write: the newest offsets stay, whichever thread comes
last.
"""

from __future__ import annotations

import errno

import pytest

from moldau.protocol.types import TopicPartition
from moldau.storage.checkpoints import OffsetCheckpoint, read_offset_checkpoint
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

A = TopicPartition("a", 0)
PATH = "/data/offsets"


class Bench:
    def __init__(self, contents: dict[TopicPartition, int] | None = None) -> None:
        self.disk = SimulatedFilesystem()
        self.disk.mkdirs("/data")
        self.checkpoint = OffsetCheckpoint(self.disk, PATH)
        if contents is not None:
            self.checkpoint.loaded(contents)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        return read_offset_checkpoint(self.disk, PATH)

    def put(self, offset: int) -> None:
        write = self.checkpoint.prepare({A: offset})
        assert write is not None
        write()


def test_what_the_file_holds_is_not_written_again() -> None:
    bench = Bench()
    bench.put(1)
    assert bench.offsets == {A: 1}
    assert bench.checkpoint.prepare({A: 1}) is None
    bench.put(2)
    assert bench.offsets == {A: 2}
    assert Bench({A: 5}).checkpoint.prepare({A: 5}) is None
    read = Bench()
    read.checkpoint.loaded({A: 6})
    assert read.checkpoint.prepare({A: 6}) is None
    assert read.checkpoint.prepare({A: 7}) is not None


def test_a_write_that_comes_late_does_not_replace_a_newer_one() -> None:
    bench = Bench()
    first, second = bench.checkpoint.prepare({A: 1}), bench.checkpoint.prepare({A: 2})
    assert first is not None
    assert second is not None
    second()
    first()
    assert bench.offsets == {A: 2}
    bench.put(3)
    assert bench.offsets == {A: 3}


def test_offsets_that_could_not_be_written_are_written_the_next_time() -> None:
    bench = Bench()
    bench.put(1)
    write = bench.checkpoint.prepare({A: 2})
    assert write is not None
    bench.disk.faults.append(Fault("rename", "offsets", errno.EIO))
    with pytest.raises(OSError, match="error"):
        write()
    bench.disk.faults.clear()
    bench.put(2)
    assert bench.offsets == {A: 2}


def test_a_write_here_and_now_does_not_trust_one_under_way() -> None:
    bench = Bench()
    under_way = bench.checkpoint.prepare({A: 1})
    assert under_way is not None
    bench.checkpoint.write({A: 1})
    assert bench.offsets == {A: 1}
    before = bench.disk.operation_count
    under_way()
    bench.checkpoint.write({A: 1})
    assert bench.disk.operation_count == before
    bench.checkpoint.write({A: 2})
    assert bench.offsets == {A: 2}
