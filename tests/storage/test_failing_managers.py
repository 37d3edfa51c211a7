"""A node with two log directories on which one operation of a disk fails, each of them once.

Whatever the operation is: the node stops in order, nothing escapes into its loop, no descriptor and
no lock stays, and the next start serves every record that was acknowledged.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.storage.append import RecordBatches
from moldau.storage.checkpoints import PARTITION_METADATA
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log_manager import LogManager
from tests.storage.storage_fixtures import batch, topic_id, tp
from tests.storage.test_failing_operations import OneFailure
from tests.storage.test_log_manager import Node, exceptions_of_this_loop, settle

IDENTITY = topic_id(1)
KEPT, DELETED = tp("kept-0"), tp("deleted-0")


class Life:
    """The life of a node from its start to its stop. Which record of which partition was
    acknowledged, and in which directory, is what the metadata know at the next start.
    """

    def __init__(self, fails_at: int = -1, error_number: int = 0) -> None:
        self.node = Node("/one", "/two")
        self.filesystem = OneFailure(fails_at, error_number)
        self.filesystem.root = self.node.filesystem.root
        self.filesystem.now_ms = self.node.clock.now_ms
        self.node.filesystem = self.filesystem
        self.ends: dict[TopicPartition, int] = {}
        self.places: dict[TopicPartition, tuple[UUID, UUID]] = {}

    async def run(self) -> None:
        manager = await self.node.start()
        for topic_partition in (DELETED, KEPT):
            with suppress(LogOffline, DiskFull):
                self._write(manager, topic_partition)
        with suppress(LogOffline):
            manager.delete(DELETED)
        self.ends.pop(DELETED, None)
        self.places.pop(DELETED, None)
        manager.jobs.recovery_points.soon()
        await settle()
        await self.node.advance(60_000)
        await manager.shutdown(5)

    def _write(self, manager: LogManager, topic_partition: TopicPartition) -> None:
        log = manager.get_or_create(topic_partition, IDENTITY)
        directory = manager.directory_of(topic_partition)
        assert directory is not None
        self.places[topic_partition] = IDENTITY, directory.directory_id
        for _ in range(3):
            result = log.append_as_leader(RecordBatches.read(batch(2)), leader_epoch=0)
            if result.error is ErrorCode.NONE:
                self.ends[topic_partition] = log.log_end_offset
            log.update_high_watermark(log.log_end_offset)

    async def check_next_start(self, where: str) -> None:
        filesystem = self.filesystem
        assert (filesystem.open_files, filesystem.open_maps) == (0, 0), where
        assert not filesystem.locks, where
        filesystem.fails_at = -1
        manager = await self.node.start()
        await manager.found.settle(self.places.get)
        for topic_partition, end in self.ends.items():
            log = manager.get(topic_partition)
            if log is None and self._is_half_made_elsewhere(manager, topic_partition):
                continue
            assert log is not None, (where, manager.offline_reason(topic_partition))
            assert log.log_end_offset >= end, where
        assert manager.get(DELETED) is None, where
        await manager.shutdown(6)

    def _is_half_made_elsewhere(self, manager: LogManager, topic_partition: TopicPartition) -> bool:
        """Whether the directory that failed has the beginning of a copy that says not even of which
        topic it is: the start leaves that to an operator.
        """
        (other,) = (
            each
            for each in manager.directories.all
            if each.directory_id != self.places[topic_partition][1]
        )
        copy = other.join(str(topic_partition))
        return (
            topic_partition in manager.found.twins
            and self.filesystem.exists(copy)
            and not self.filesystem.exists(f"{copy}/{PARTITION_METADATA}")
        )


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
async def test_any_operation_of_a_node_may_fail(error_number: int) -> None:
    told = exceptions_of_this_loop()
    undisturbed = Life()
    await undisturbed.run()
    operation_count = undisturbed.filesystem.seen
    await undisturbed.check_next_start("none")
    assert undisturbed.ends == {KEPT: 6}
    for fails_at in range(operation_count):
        life = Life(fails_at, error_number)
        await life.run()
        await life.check_next_start(f"operation {fails_at}")
        assert not told, fails_at
