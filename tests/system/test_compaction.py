"""Compaction on real processes: updates under kill -9, then what a client reads (issue 5, line 6).

The same at full size, with its figures: `make bench BENCH=compaction`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.compaction_load import (
    MemoryWatch,
    Updates,
    children_of,
    send_under_kills,
    wait_until_clean,
)
from moldau.testing import Cluster
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

MEGABYTE = 1024 * 1024
SEGMENT_BYTES = MEGABYTE
TOPIC_CONFIG = {
    "segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "500",
}


def test_updates_under_kills(tmp_path: Path) -> None:
    config = {"log.cleaner.backoff.ms": "100", "log.cleaner.dedupe.buffer.size": str(8 * MEGABYTE)}
    with Cluster(config=config, directory=tmp_path) as cluster:
        updates = Updates(cluster, 500, seed=3, value_bytes=150, codec="lz4")
        updates.create_topic(**TOPIC_CONFIG)
        with MemoryWatch(lambda: cluster.node().pid) as memory:
            send_under_kills(updates, cluster, 60_000, 2, tombstone_share=0.02)
            written = updates.count
            updates.fill(0, 8 * SEGMENT_BYTES)
            wait_until_clean(updates, written, deadline_s=60)
            remains = updates.read_back()
        assert (remains.wrong_count, remains.moved_count) == (0, 0)
        assert remains.repeated_count == 0
        assert remains.record_count < 20_000
        assert 0 < memory.child_bytes < 100 * MEGABYTE
        assert memory.broker_bytes < 200 * MEGABYTE
        # Nothing comes back with a restart, clean or not.
        cluster.stop()
        cluster.restart()
        again = updates.read_back()
        assert (again.wrong_count, again.moved_count, again.repeated_count) == (0, 0, 0)
        assert again.record_count <= remains.record_count
        # Deleted keys are gone, their tombstones in time, though no producer writes any more.
        updates.delete(range(1, 200))
        end = updates.count
        updates.fill(0, 8 * SEGMENT_BYTES)
        wait_until_clean(updates, end, deadline_s=60)
        until(lambda: updates.read_back().tombstone_count == 0, deadline_s=60, what="no tombstones")
        remains = updates.read_back()
        assert (remains.wrong_count, remains.moved_count, remains.repeated_count) == (0, 0, 0)


def test_a_killed_cleaner_is_started_again_and_ends_with_its_broker(tmp_path: Path) -> None:
    """Slowed down by its disk budget, so that there is time to kill it."""
    config = {"log.cleaner.backoff.ms": "100", "log.cleaner.io.max.bytes.per.second": "300000"}
    with Cluster(config=config, directory=tmp_path) as cluster:
        updates = Updates(cluster, 50, seed=4, value_bytes=150)
        updates.create_topic(**TOPIC_CONFIG)
        updates.send(20_000)
        updates.flush()
        pid = cluster.node().pid
        [child] = until(lambda: children_of(pid), what="a cleaner's process")
        signal_process(child)

        def another() -> list[int]:
            found = [each for each in children_of(pid) if each != child]
            if not found:
                # The first may have been through when it was killed: there is something to do.
                updates.send(500)
                updates.flush()
            return found

        [second] = until(another, what="another process")
        cluster.kill()
        until(lambda: not Path(f"/proc/{second}").exists(), what="the end of the orphan")
        cluster.restart()
        cluster.kill()
        cluster.restart()
        remains = updates.read_back()
        assert (remains.wrong_count, remains.moved_count) == (0, 0)


def signal_process(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
