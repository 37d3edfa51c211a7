"""What the ledger hears of a log whose first process did not live to say whose it is."""

from __future__ import annotations

from random import Random

import pytest

from moldau.storage.checkpoints import PARTITION_METADATA
from tests.simulation.cluster.disk import DiskSettings, NodeDisk
from tests.simulation.replication.taps import taps
from tests.storage.simulated_disk import DirectoryNode
from tests.storage.storage_fixtures import format_directory, make_manager, topic_id, tp
from tests.virtual.loop import Process, VirtualClock, VirtualLoop
from tests.virtual.wall_clocks import ClockSettings, WallClocks


class Recorder:
    """A broker that notes which logs it was given."""

    def __init__(self):
        self.opened_ids = []

    def opened(self, log, found):
        assert not found.batches
        self.opened_ids.append(log.topic_id)

    def high_watermark_set(self, log):
        """A log is loaded with the one that its checkpoint has."""


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.dispose()


def test_a_log_that_gets_its_topic_id_late_is_opened_then(loop):
    process = Process(loop, "broker-1#2")
    clock = VirtualClock(loop, WallClocks(Random(1), ClockSettings(0, 0)).of("broker-1"))
    disk = NodeDisk(process, DirectoryNode(), Random(1), DiskSettings(), clock)
    format_directory(disk, "/data")
    # The process before this one died between the two calls that make a log.
    disk.mkdirs("/data/a-0")
    recorder = disk.owner = Recorder()
    manager = make_manager(disk, clock)

    async def start_and_create():
        await manager.start()
        assert recorder.opened_ids == []
        manager.get_or_create(tp("a-0"), topic_id(1))

    with taps():
        loop.run_until_complete(process.spawn(start_and_create()))
    assert disk.exists(f"/data/a-0/{PARTITION_METADATA}")
    assert recorder.opened_ids == [topic_id(1)]
