"""A log directory that fails: what is found dead, and by what is done next."""

from __future__ import annotations

import errno

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.storage.append import RecordBatches
from moldau.storage.checkpoints import read_clean_shutdown_marker
from moldau.storage.faults import LogOffline
from moldau.storage.log_manager import describe_log_dirs
from tests.storage.simulated_filesystem import Fault
from tests.storage.storage_fixtures import batch, topic_id, tp
from tests.storage.test_log_manager import Node, fill, settle


async def test_a_new_partition_is_made_elsewhere_when_the_chosen_directory_has_failed() -> None:
    """Found by tests/simulation/replication, seed 132 with a directory that failed unseen."""
    node = Node("/data-1", "/data-2")
    manager = await node.start()
    node.filesystem.faults.append(Fault("mkdir", "/data-1/", errno.EIO, count=None))
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    assert log.directory == "/data-2/a-0"
    assert node.failed == [manager.directories.at("/data-1")]
    with pytest.raises(LogOffline):
        manager.get_or_create(tp("b-0"), topic_id(2), directory=manager.directories.at("/data-1"))
    node.filesystem.faults.append(Fault("mkdir", "/data-2/", errno.EIO, count=None))
    with pytest.raises(LogOffline, match="no log directory is online"):
        manager.get_or_create(tp("c-0"), topic_id(3))
    await manager.shutdown(1)


@pytest.mark.parametrize("leaves_mount_point", [False, True])
async def test_a_directory_that_is_not_there_any_more_is_not_made_by_a_new_partition(
    leaves_mount_point: bool,
) -> None:
    """A disk that is unmounted must not look like an empty directory."""
    node = Node("/data-1", "/data-2")
    manager = await node.start()
    node.filesystem.rename("/data-1", "/away")
    if leaves_mount_point:
        node.filesystem.mkdirs("/data-1")
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    assert log.directory == "/data-2/a-0"
    assert node.failed == [manager.directories.at("/data-1")]
    assert not node.filesystem.exists("/data-1/a-0")
    await manager.shutdown(1)


async def test_an_idle_directory_that_is_gone_is_found_out_by_its_checkpoint() -> None:
    node = Node("/data-1", "/data-2")
    manager = await node.start()
    fill(manager.get_or_create(tp("a-0"), topic_id(1)))
    manager.jobs.recovery_points.soon()
    await settle()
    node.filesystem.rename("/data-2", "/away")
    manager.jobs.recovery_points.soon()
    await settle()
    assert node.failed == [manager.directories.at("/data-2")]
    await manager.shutdown(1)


async def test_a_dead_directory_that_had_the_name_before_does_not_fail_the_one_chosen_now() -> None:
    node = Node("/data-1", "/data-2")
    manager = await node.start()
    fill(manager.get_or_create(tp("a-0"), topic_id(1)))
    manager.get_or_create(tp("b-0"), topic_id(2))
    assert manager.delete(tp("a-0"))
    manager.get_or_create(tp("c-0"), topic_id(3), directory=manager.directories.at("/data-1"))
    manager.get_or_create(tp("d-0"), topic_id(4), directory=manager.directories.at("/data-1"))
    for operation in ("open", "create"):
        node.filesystem.faults.append(Fault(operation, "/data-1/", errno.EIO, count=None))
    log = manager.get_or_create(tp("a-0"), topic_id(5))
    assert log.directory == "/data-2/a-0"
    assert node.failed == [manager.directories.at("/data-1")]
    await manager.shutdown(1)


async def test_a_log_that_goes_offline_has_its_directory_looked_at_at_once() -> None:
    node = Node("/one", "/two")
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    await settle()
    node.filesystem.faults.append(Fault("create", "/one/", errno.EIO, count=None))
    await settle()
    assert not node.failed
    log.take_offline("of the test")
    await settle()
    assert node.failed == [manager.directories.at("/one")]
    await manager.shutdown(1)


async def test_failing_directory_goes_offline_and_the_other_serves() -> None:
    node = Node("/one", "/two", high_watermark_checkpoint_interval_ms=5_000)
    manager = await node.start()
    first = manager.get_or_create(tp("a-0"), topic_id(1))
    second = manager.get_or_create(tp("b-0"), topic_id(2))
    fill(first)
    await settle()
    node.filesystem.faults.append(Fault("create", "/one/", errno.EIO, count=None))
    await node.advance(5_000)
    assert first.offline
    assert len(node.failed) == 1
    assert "/one" in (manager.offline_reason(tp("a-0")) or "")
    assert (
        first.append_as_leader(RecordBatches.read(batch()), leader_epoch=0).error
        is ErrorCode.KAFKA_STORAGE_ERROR
    )
    fill(second)
    described = {each.directory: each for each in describe_log_dirs(manager)}
    assert described["/one"].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert described["/two"].logs == [second]
    assert manager.get_or_create(tp("c-0"), topic_id(3)).directory == "/two/c-0"
    await manager.shutdown(1)
    assert read_clean_shutdown_marker(node.filesystem, "/one") is None
    assert node.stopped_under("/two") == 1
