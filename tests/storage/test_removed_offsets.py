"""What the checkpoint files say of partitions that are no more."""

from __future__ import annotations

from uuid import UUID

from moldau.storage.log_directory import LogDirectory
from moldau.storage.log_table import LogTable, OfflinePartition
from tests.storage.storage_fixtures import topic_id, tp
from tests.storage.test_log_manager import Node, fill, settle

FILES = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


async def test_the_offsets_of_a_deleted_partition_leave_every_file() -> None:
    node = Node()
    manager = await node.start()
    for name in ("a-0", "b-0"):
        log = manager.get_or_create(tp(name), topic_id(1))
        fill(log)
        log.update_high_watermark(20)
        log.delete_records(3)
        log.first_dirty_offset = 7
        await manager.jobs.flush(log)
        assert await manager.jobs.checkpoint_first_dirty(log)
    jobs = manager.jobs
    for job in (jobs.recovery_points, jobs.log_start_offsets, jobs.high_watermarks):
        job.soon()
    await settle()
    for file in FILES:
        assert node.offsets(file).keys() == {tp("a-0"), tp("b-0")}, file
    manager.delete(tp("a-0"))
    jobs.recovery_points.soon()
    await settle()
    for file in FILES:
        assert node.offsets(file).keys() == {tp("b-0")}, file
    await manager.shutdown(1)


def test_only_the_directory_a_partition_was_removed_from_forgets_it() -> None:
    first, second = (LogDirectory(path, "cluster", 1, UUID(int=1)) for path in ("/1", "/2"))
    table = LogTable()
    table.put_offline(tp("a-0"), OfflinePartition(second, "damaged"))
    table.remove(tp("a-0"))
    table.offsets_forgotten(first, [tp("a-0")])
    assert table.removed_from(second) == [tp("a-0")]
    table.offsets_forgotten(second, [tp("a-0")])
    assert table.removed_from(second) == []
