"""What one flush syncs, in which order, and what each kind of failure promises."""

from __future__ import annotations

import errno

import pytest

from moldau.storage.leader_epoch_cache import LeaderEpochCache
from moldau.storage.log_segments import FlushJob
from moldau.storage.segment import LogSegment, OpenSegments
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

NAME = f"{0:020d}"


class Bench:
    """A directory with a log, an index and new leader epochs; one file of the job is not there."""

    def __init__(self) -> None:
        self.disk = SimulatedFilesystem()
        for suffix in (".log", ".index"):
            self.disk.put(f"/d/{NAME}{suffix}", b"x")
        cache = LeaderEpochCache(self.disk, "/d")
        cache.assign(3, 0)
        self.job = FlushJob(self.disk, "/d", 7, cache, 2)
        segment = LogSegment(self.disk, OpenSegments(), "/d", 0, 1, 0)
        self.job.add(segment)
        segment.close_descriptors()
        assert self.job.paths == [f"/d/{NAME}.index", f"/d/{NAME}.timeindex"], "one is not there"

    def run(self, *faults: Fault) -> list[str]:
        """The operations, in order."""
        self.disk.faults += faults
        self.disk.operations.clear()
        self.job.run()
        self.disk.faults.clear()
        assert (self.disk.open_files, self.job.files) == (0, [])
        return [
            f"{each.name} {each.path.removeprefix('/d/')}"
            for each in self.disk.operations
            if "sync" in each.name
        ]


def test_names_are_synced_behind_what_they_name() -> None:
    bench = Bench()
    synced = bench.run()
    assert (bench.job.failure, bench.job.no_room) == (None, None)
    assert synced[:2] == [f"fdatasync {NAME}.log", f"fsync {NAME}.index"]
    assert synced[-1].startswith("fsync_directory")
    assert bench.disk.exists("/d/leader-epoch-checkpoint")


def test_without_room_for_the_leader_epochs_nothing_is_promised_and_nothing_has_failed() -> None:
    bench = Bench()
    synced = bench.run(Fault("rename", "leader-epoch-checkpoint", errno.ENOSPC))
    assert bench.job.failure is None
    assert bench.job.no_room is not None
    assert not any(each.startswith("fsync_directory") for each in synced)


@pytest.mark.parametrize(
    ("error_number", "is_failure"), [(errno.EIO, True), (errno.EMFILE, False), (errno.ENOSPC, True)]
)
def test_a_file_that_cannot_be_synced(error_number: int, is_failure: bool) -> None:
    bench = Bench()
    bench.run(Fault("fsync", f"{NAME}.index", error_number))
    assert (bench.job.failure is not None) is is_failure
    assert (bench.job.no_room is not None) is not is_failure
