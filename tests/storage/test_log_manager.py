"""LogManager: loading, creating, deleting, checkpoints, regular work, failures, shutdown."""

from __future__ import annotations

import asyncio
import errno

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.runtime.restarts import FIRST_PAUSE_MS
from moldau.storage.append import RecordBatches
from moldau.storage.checkpoints import (
    read_clean_shutdown_marker,
    read_offset_checkpoint,
    read_partition_metadata,
)
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig, LogManagerSettings
from moldau.storage.log_manager import InconsistentTopicId, LogManager, describe_log_dirs
from tests.kit.manual_clock import ManualClock
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem
from tests.storage.storage_fixtures import (
    START_MS,
    batch,
    format_directory,
    make_manager,
    topic_id,
    tp,
)

CUT_CHECKPOINTS = ("recovery-point-offset", "cleaner-offset")
SMALL = LogConfig(
    segment_bytes=1000, segment_index_bytes=96, index_interval_bytes=150, retention_ms=-1
)


class Node:
    """A filesystem, a clock, and managers started on them one after the other."""

    def __init__(self, *paths: str, config: LogConfig = SMALL, **settings: int) -> None:
        self.clock = ManualClock(START_MS)
        self.filesystem = SimulatedFilesystem(now_ms=self.clock.now_ms)
        self.paths = paths or ("/data",)
        self.config = config
        self.settings = LogManagerSettings(**settings)
        self.failed: list[object] = []
        for path in self.paths:
            format_directory(self.filesystem, path)

    async def start(self) -> LogManager:
        manager = make_manager(
            self.filesystem,
            self.clock,
            self.paths,
            config=self.config,
            settings=self.settings,
            on_directory_offline=self.failed.append,
        )
        self.report = await manager.start()
        return manager

    async def start_again(self, manager: LogManager) -> LogManager:
        await manager.shutdown(1)
        return await self.start()

    async def kill(self, manager: LogManager) -> None:
        """The process is gone: only what is in the page cache stays."""
        await manager.jobs.stop()
        root = self.filesystem.image().after_kill()
        self.filesystem = SimulatedFilesystem(root, now_ms=self.clock.now_ms)

    async def advance(self, elapsed_ms: int) -> None:
        self.clock.advance(elapsed_ms)
        await settle()

    def offsets(self, name: str, path: str = "/data") -> dict[TopicPartition, int]:
        return read_offset_checkpoint(self.filesystem, f"{path}/{name}")

    def stopped_under(self, path: str = "/data") -> int | None:
        """The broker epoch of the clean-shutdown marker."""
        marker = read_clean_shutdown_marker(self.filesystem, path)
        return None if marker is None else marker.broker_epoch

    def names(self, path: str = "/data") -> list[str]:
        return self.filesystem.listdir(path)


def exceptions_of_this_loop() -> list[BaseException]:
    """What the fault table would be given."""
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: told.append(context["exception"])
    )
    return told


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def fill(log: Log, count: int = 10) -> None:
    for _ in range(count):
        assert (
            log.append_as_leader(RecordBatches.read(batch(2)), leader_epoch=0).error
            is ErrorCode.NONE
        )
    log.update_high_watermark(log.log_end_offset)


async def test_a_start_says_how_far_it_is_only_when_it_is_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    manager = await node.start()
    for name in ("a-0", "b-0"):
        manager.get_or_create(tp(name), topic_id(1))
    with caplog.at_level("INFO", "moldau.storage"):
        manager = await node.start_again(manager)
    assert node.report.loaded_count == 2
    assert "loaded 2 partitions" in caplog.text
    assert "loading partitions" not in caplog.text
    await manager.shutdown(1)


async def test_restart_after_clean_shutdown_brings_everything_back() -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    log.update_high_watermark(13)
    await manager.shutdown(7)
    assert node.stopped_under() == 7
    assert (node.filesystem.open_files, node.filesystem.open_maps) == (0, 0)
    assert node.filesystem.locks == set()
    manager = await node.start()
    assert node.report.previous_broker_epoch == 7
    assert ".kafka_cleanshutdown" not in node.names()
    found = manager.get(tp("a-0"))
    assert found is not None
    assert (found.log_end_offset, found.high_watermark) == (20, 13)
    assert found.recovery_point == 20
    assert found.topic_id == topic_id(1)


async def test_marker_goes_before_anything_else_is_written() -> None:
    node = Node()
    await (await node.start()).shutdown(7)
    before = node.filesystem.operation_count
    await node.start()
    operations = node.filesystem.operations[before:]
    assert str(operations[0]) == "unlink /data/.kafka_cleanshutdown"


async def test_offline_partition_leaves_its_neighbours_alone() -> None:
    """Damage below the recovery point: KAFKA_STORAGE_ERROR for it, the rest is served."""
    node = Node()
    manager = await node.start()
    for name in ("a-0", "b-0", "c-0"):
        fill(manager.get_or_create(tp(name), topic_id(ord(name[0]))))
        await manager.jobs.flush(manager.get(tp(name)))  # type: ignore[arg-type]
    manager.jobs.recovery_points.soon()
    await settle()
    await node.kill(manager)
    path = next(
        each for each in reversed(node.filesystem.files()) if "/b-0/" in each and ".log" in each
    )
    data = bytearray(node.filesystem.files()[path])
    data[70] ^= 1
    node.filesystem.put(path, bytes(data))
    manager = await node.start()
    assert manager.get(tp("b-0")) is None
    reason = manager.offline_reason(tp("b-0"))
    assert reason is not None
    assert path in reason
    with pytest.raises(LogOffline, match="b-0"):
        manager.get_or_create(tp("b-0"), topic_id(ord("b")))
    assert manager.get(tp("a-0")) is not None
    fill(manager.get(tp("c-0")), 1)  # type: ignore[arg-type]
    await manager.shutdown(1)
    # Not clean, so that the next start looks at the damage again; its offsets are kept for that.
    assert read_clean_shutdown_marker(node.filesystem, "/data") is None
    assert node.offsets("recovery-point-offset-checkpoint")[tp("b-0")] == 20
    manager = await node.start()
    assert list(manager.table.offline) == [tp("b-0")]
    assert manager.delete(tp("b-0"))
    manager.get_or_create(tp("b-0"), topic_id(77))


async def test_new_partitions_go_to_the_directory_with_the_fewest() -> None:
    node = Node("/one", "/two", "/three")
    manager = await node.start()
    for number in range(7):
        manager.get_or_create(TopicPartition("t", number), topic_id(1))
    counts = [len(each.logs) for each in describe_log_dirs(manager)]
    assert counts == [3, 2, 2]


async def test_a_new_partition_goes_to_the_directory_that_is_given() -> None:
    node = Node("/one", "/two")
    manager = await node.start()
    one, two = manager.directories.all
    assert manager.directories.with_id(two.directory_id) is two
    assert manager.directories.with_id(topic_id(99)) is None
    for name in ("a-0", "b-0", "c-0"):
        assert manager.get_or_create(tp(name), topic_id(1), None, two).directory == f"/two/{name}"
    # One that is here already stays where it is.
    assert manager.get_or_create(tp("a-0"), topic_id(1), None, one).directory == "/two/a-0"
    assert not manager.directories.has_failed
    manager.directories.fail(two, "the test says so")
    assert manager.directories.has_failed
    with pytest.raises(LogOffline, match=r"d-0.*the test says so"):
        manager.get_or_create(tp("d-0"), topic_id(2), None, two)
    assert manager.directory_of(tp("d-0")) is None


async def test_listeners_hear_of_logs_that_go_offline() -> None:
    node = Node("/one", "/two")
    manager = await node.start()
    told: list[Log] = []
    manager.on_log_offline = told.append
    alone = manager.get_or_create(tp("a-0"), topic_id(1), None, manager.directories.all[0])
    together = [
        manager.get_or_create(tp(name), topic_id(2), None, manager.directories.all[1])
        for name in ("b-0", "c-0")
    ]
    alone.take_offline("the test says so")
    assert told == [alone]
    manager.directories.fail(manager.directories.all[1], "the test says so")
    assert told == [alone, *together]
    await manager.shutdown(1)
    assert len(told) == 3


async def test_damage_found_after_a_clean_shutdown_makes_it_unclean() -> None:
    """The controller has to know that this broker may lack what it acknowledged (KIP-966)."""
    node = Node()
    manager = await node.start()
    for name in ("a-0", "b-0"):
        fill(manager.get_or_create(tp(name), topic_id(1)))
    await manager.shutdown(7)
    assert node.stopped_under() == 7
    node.filesystem.put("/data/a-0/partition.metadata", b"garbage")
    manager = await node.start()
    assert list(manager.table.offline) == [tp("a-0")]
    assert node.report.previous_broker_epoch == -1


async def test_topic_ids_are_kept_and_compared() -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), ZERO_UUID)
    assert manager.get_or_create(tp("a-0"), topic_id(4)) is log
    assert read_partition_metadata(node.filesystem, "/data/a-0") == topic_id(4)
    assert manager.get_or_create(tp("a-0"), ZERO_UUID) is log
    with pytest.raises(InconsistentTopicId, match="a-0 on disk has topic id"):
        manager.get_or_create(tp("a-0"), topic_id(5))
    assert manager.mark_stray(tp("a-0"))
    assert manager.get_or_create(tp("a-0"), topic_id(5)).topic_id == topic_id(5)
    await node.advance(10 * 60_000)
    assert [name for name in node.names() if name.endswith("-stray")] != []


async def test_deleted_partition_is_renamed_then_removed() -> None:
    node = Node()
    manager = await node.start()
    long_name = TopicPartition("t" * 249, 3)
    fill(manager.get_or_create(long_name, topic_id(1)))
    assert manager.delete(long_name)
    assert not manager.delete(long_name)
    (renamed,) = [name for name in node.names() if name.endswith("-delete")]
    assert len(renamed) == 255
    assert "-3." in renamed
    await node.advance(59_000)
    assert renamed in node.names()
    await node.advance(2_000)
    assert renamed not in node.names()


async def test_half_deleted_directories_are_removed_after_a_restart() -> None:
    node = Node()
    manager = await node.start()
    manager.get_or_create(tp("a-0"), topic_id(1))
    manager.delete(tp("a-0"))
    await node.kill(manager)
    await node.start()
    assert any(name.endswith("-delete") for name in node.names())
    await node.advance(31_000)
    assert not any(name.endswith("-delete") for name in node.names())


async def test_recreated_partition_meets_no_offsets_of_the_old_one() -> None:
    """The old one's recovery point or start offset would make the new one look damaged."""
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    await manager.jobs.flush(log)
    log.delete_records(19)
    for job in (manager.jobs.recovery_points, manager.jobs.log_start_offsets):
        job.soon()
    await settle()
    assert node.offsets("log-start-offset-checkpoint") == {tp("a-0"): 19}
    manager.delete(tp("a-0"))
    fill(manager.get_or_create(tp("a-0"), topic_id(2)), 2)
    await node.kill(manager)
    manager = await node.start()
    log = manager.get(tp("a-0"))  # type: ignore[assignment]
    assert (log.log_start_offset, log.log_end_offset) == (0, 4)


async def test_partition_in_two_directories_is_served_from_neither() -> None:
    node = Node("/one", "/two")
    manager = await node.start()
    fill(manager.get_or_create(tp("a-0"), topic_id(1)))
    await manager.shutdown(1)
    for path, data in node.filesystem.files().items():
        if path.startswith("/one/a-0/"):
            node.filesystem.put(path.replace("/one/", "/two/"), data)
    manager = await node.start()
    assert "/one and /two" in (manager.offline_reason(tp("a-0")) or "")
    assert manager.found.twins == {tp("a-0")}
    assert manager.delete(tp("a-0"))
    assert not manager.found.twins


async def test_checkpoints_are_written_when_due_and_only_if_changed() -> None:
    node = Node(high_watermark_checkpoint_interval_ms=5_000)
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    await node.advance(5_000)
    assert node.offsets("replication-offset-checkpoint") == {tp("a-0"): 20}
    before = node.filesystem.operation_count
    await node.advance(5_000)
    assert node.filesystem.operation_count == before
    await manager.jobs.flush(log)
    await node.advance(60_000)
    assert node.offsets("recovery-point-offset-checkpoint") == {tp("a-0"): 20}


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    ],
)
async def test_each_checkpoint_is_written_in_its_own_interval(name: str) -> None:
    intervals = {
        "recovery-point-offset-checkpoint": "recovery_point_checkpoint_interval_ms",
        "log-start-offset-checkpoint": "log_start_offset_checkpoint_interval_ms",
        "replication-offset-checkpoint": "high_watermark_checkpoint_interval_ms",
    }
    hour_ms = 3_600_000
    node = Node(**{interval: hour_ms for interval in intervals.values()} | {intervals[name]: 700})
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    await manager.jobs.flush(log)
    log.delete_records(3)
    written = {each for each in node.names() if each in intervals}
    await node.advance(699)
    assert {each for each in node.names() if each in intervals} == written
    await node.advance(1)
    assert node.offsets(name)[tp("a-0")] == {"log-start-offset-checkpoint": 3}.get(name, 20)
    others = {each for each in node.names() if each in intervals and each != name}
    assert all(tp("a-0") not in node.offsets(each) for each in others)
    await manager.shutdown(1)


async def test_producers_are_forgotten_and_logs_rest_in_their_intervals() -> None:
    node = Node(
        producer_expiration_ms=1_000,
        producer_expiration_check_interval_ms=5_000,
        idle_check_interval_ms=7_000,
    )
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    log.append_as_leader(
        RecordBatches.read(batch(1, producer_id=7, producer_epoch=0, base_sequence=0)),
        leader_epoch=0,
    )
    await node.advance(4_999)
    assert list(log.producer_state.producers) == [7]
    await node.advance(1)
    assert not log.producer_state.producers
    manager.update_producer_expiration(9_000)
    assert log.producer_state.expiration_ms == 9_000
    other = manager.get_or_create(tp("b-0"), topic_id(2))
    assert other.producer_state.expiration_ms == 9_000
    await node.advance(2_000)
    assert log.segments.active.is_active, "there was an append since the last look"
    await node.advance(7_000)
    assert not log.segments.active.is_active
    await manager.shutdown(1)


async def test_a_log_is_flushed_as_soon_as_its_time_is_up() -> None:
    node = Node(
        config=LogConfig(flush_ms=1_000, segment_index_bytes=96), flush_check_interval_ms=100
    )
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    log.last_flush_ms = node.clock.monotonic_ms()
    fill(log)
    for _ in range(9):
        await node.advance(100)
        assert log.recovery_point == 0
    await node.advance(100)
    assert log.recovery_point == 20
    await manager.shutdown(1)


async def test_the_topic_id_of_a_name_is_known_online_and_offline() -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    assert manager.topic_id_of(tp("a-0")) == topic_id(1)
    assert manager.topic_id_of(tp("b-0")) == ZERO_UUID
    log.take_offline("burnt")
    assert manager.topic_id_of(tp("a-0")) == topic_id(1)
    await manager.shutdown(1)


async def test_a_partition_whose_directory_is_gone_can_be_deleted() -> None:
    node = Node()
    manager = await node.start()
    manager.get_or_create(tp("a-0"), topic_id(1))
    node.filesystem.rmtree("/data/a-0")
    assert manager.delete(tp("a-0"))
    assert manager.get(tp("a-0")) is None
    assert not manager.delete(tp("a-0"))
    await manager.shutdown(1)


async def test_flush_by_time() -> None:
    config = LogConfig(flush_ms=1_000, segment_index_bytes=96)
    node = Node(config=config, flush_check_interval_ms=500)
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    await node.advance(500)
    assert log.recovery_point == 0
    await node.advance(1_000)
    assert log.recovery_point == 20


async def test_flush_by_time_does_not_wait_for_a_wall_clock_that_was_set_back() -> None:
    config = LogConfig(flush_ms=1_000, segment_index_bytes=96)
    node = Node(config=config, flush_check_interval_ms=500)
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    node.clock.set_wall_clock(node.clock.now_ms() - 3_600_000)
    await node.advance(500)
    await node.advance(1_000)
    assert log.recovery_point == 20


async def test_flush_waits_off_the_loop_and_is_shared() -> None:
    """While the disk is slow, appends go on; all who ask until then share one more flush."""
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    await settle()
    gate = node.filesystem.offload_gate = asyncio.Event()
    fill(log, 1)
    first = asyncio.ensure_future(manager.jobs.flush(log))
    await settle()
    before = node.filesystem.operation_count
    fill(log, 2)
    others = [asyncio.ensure_future(manager.jobs.flush(log)) for _ in range(5)]
    await settle()
    assert not first.done()
    gate.set()
    assert await asyncio.gather(first, *others) == [True] * 6
    assert log.recovery_point == 6
    syncs = [each.name for each in node.filesystem.operations[before:]].count("fdatasync")
    assert syncs == 2


async def test_retention_runs_by_itself() -> None:
    node = Node(
        config=LogConfig(
            segment_bytes=1000, segment_index_bytes=96, retention_bytes=1500, retention_ms=-1
        ),
        retention_check_interval_ms=60_000,
        initial_delay_ms=30_000,
    )
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log, 40)
    await node.advance(29_000)
    assert log.log_start_offset == 0
    await node.advance(1_000)
    assert log.log_start_offset > 0
    assert any(name.endswith(".deleted") for name in node.names("/data/a-0"))
    await node.advance(60_000)
    assert not any(name.endswith(".deleted") for name in node.names("/data/a-0"))


async def test_a_job_that_raises_is_reported_begun_again_and_done_for_the_other_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = exceptions_of_this_loop()
    node = Node(retention_check_interval_ms=100_000, initial_delay_ms=0)
    manager = await node.start()
    for number in range(4):
        fill(manager.get_or_create(tp(f"a-{number}"), topic_id(1)))
    looked_at: list[str] = []
    apply_retention = Log.apply_retention
    troubled = "a-1"

    def failing(log: Log, now_ms: int) -> object:
        if log.name == troubled:
            raise KeyError("retention of a-1")
        looked_at.append(log.name)
        return apply_retention(log, now_ms)

    monkeypatch.setattr(Log, "apply_retention", failing)
    await node.advance(100_000)
    assert [str(error) for error in told] == ["'retention of a-1'"]
    looked_at.clear()
    await node.advance(FIRST_PAUSE_MS)
    assert sorted(looked_at) == ["a-0", "a-2", "a-3"], "none waits behind the one that raises"
    assert len(told) == 2
    await node.advance(FIRST_PAUSE_MS)
    assert len(told) == 2, "the second pause is longer"
    troubled = ""
    looked_at.clear()
    await node.advance(FIRST_PAUSE_MS)
    assert sorted(looked_at) == ["a-0", "a-1", "a-2", "a-3"]
    await node.advance(99_999)
    assert len(looked_at) == 4, "then the interval counts again"
    await node.advance(1)
    assert looked_at[4:] == ["a-0", "a-1", "a-2", "a-3"]
    assert len(told) == 2


async def test_a_flush_after_a_roll_that_raises_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = exceptions_of_this_loop()
    node = Node()
    manager = await node.start()
    logs = [manager.get_or_create(tp(f"a-{number}"), topic_id(1)) for number in range(3)]
    start_flush = Log.start_flush

    def failing(log: Log) -> object:
        if log is logs[1]:
            raise KeyError(log.name)
        return start_flush(log)

    monkeypatch.setattr(Log, "start_flush", failing)
    for log in logs:
        fill(log)
        log.roll()
    await settle()
    assert told
    await node.advance(FIRST_PAUSE_MS)
    assert [log.recovery_point for log in logs] == [20, 0, 20]
    monkeypatch.undo()
    await node.advance(60 * FIRST_PAUSE_MS)
    assert [log.recovery_point for log in logs] == [20, 20, 20]


async def test_failed_fsync_takes_the_partition_offline() -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    other = manager.get_or_create(tp("b-0"), topic_id(2))
    await settle()
    fill(log, 1)
    node.filesystem.faults.append(Fault("fdatasync", "/data/a-0/", errno.EIO))
    assert not await manager.jobs.flush(log)
    assert manager.get(tp("a-0")) is None
    assert manager.get(tp("b-0")) is other


async def test_full_disk_refuses_new_partitions_and_keeps_serving() -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    await settle()
    node.filesystem.capacity_bytes = node.filesystem.used_bytes() + 10
    with pytest.raises(DiskFull, match="b-0"):
        manager.get_or_create(tp("b-0"), topic_id(2))
    assert "b-0" not in node.names()
    result = log.append_as_leader(RecordBatches.read(batch()), leader_epoch=0)
    assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
    await node.advance(61_000)
    assert not log.offline
    node.filesystem.capacity_bytes = None
    fill(log, 1)
    manager.get_or_create(tp("b-0"), topic_id(2))


async def test_damaged_checkpoint_files_cost_no_data() -> None:
    node = Node()
    manager = await node.start()
    fill(manager.get_or_create(tp("a-0"), topic_id(1)))
    await manager.shutdown(1)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        node.filesystem.put(f"/data/{name}", b"0\n7\ngarbage\n")
    manager = await node.start()
    assert manager.get(tp("a-0")).log_end_offset == 20  # type: ignore[union-attr]


async def test_what_is_no_partition_is_left_alone() -> None:
    node = Node()
    for name in ("lost+found", "a-x", "t-0.abc-stray", "t-01", "__cluster_metadata-0"):
        node.filesystem.put(f"/data/{name}/file", b"x")
    manager = await node.start()
    assert list(manager.logs()) == []
    assert node.report.offline_count == 0
    await manager.shutdown(1)
    assert len([path for path in node.filesystem.files() if path.endswith("/file")]) == 5


async def test_idle_partitions_cost_no_operations() -> None:
    node = Node(high_watermark_checkpoint_interval_ms=5_000)
    manager = await node.start()
    for number in range(200):
        manager.get_or_create(TopicPartition("t", number), topic_id(1))
    await node.advance(60_000)
    before = node.filesystem.operation_count
    await node.advance(10 * 60_000)
    assert node.filesystem.operation_count == before
    await manager.shutdown(1)


async def test_idle_logs_keep_no_files_open() -> None:
    """Neither new ones nor those whose producers went away; a late append finds all in order."""
    node = Node(idle_check_interval_ms=60_000)
    manager = await node.start()
    logs = [manager.get_or_create(TopicPartition("t", n), topic_id(1)) for n in range(20)]
    assert (node.filesystem.open_files, node.filesystem.open_maps) == (0, 0)
    for log in logs[:10]:
        fill(log, 3)
    await node.advance(60_000)
    fill(logs[3], 1)
    assert node.filesystem.open_files == 10
    await node.advance(60_000)
    assert (node.filesystem.open_files, node.filesystem.open_maps) == (1, 2)
    fill(logs[5], 1)
    assert logs[5].log_end_offset == 8
    await manager.shutdown(1)
    assert (node.filesystem.open_files, node.filesystem.open_maps) == (0, 0)
    manager = await node.start()
    assert node.report.offline_count == 0
    assert (node.filesystem.open_files, node.filesystem.open_maps) == (0, 0)


async def test_jobs_stop_at_shutdown() -> None:
    node = Node()
    manager = await node.start()
    manager.get_or_create(tp("a-0"), topic_id(1))
    await manager.shutdown(1)
    await manager.shutdown(1)
    assert node.clock.timer_count == 0
    before = node.filesystem.operation_count
    await node.advance(3_600_000)
    assert node.filesystem.operation_count == before


async def test_a_full_disk_fails_a_flush_and_not_the_partition() -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    node.filesystem.faults.append(
        Fault("append", "leader-epoch-checkpoint", errno.ENOSPC, count=None)
    )
    flushes = [asyncio.ensure_future(manager.jobs.flush(log)) for _ in range(3)]
    assert await asyncio.gather(*flushes) == [False] * 3
    assert manager.get(tp("a-0")) is log
    node.filesystem.faults.clear()
    assert await manager.jobs.flush(log)
    assert log.recovery_point == 20


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ["recovery-point-offset", "cleaner-offset"])
async def test_a_cut_that_finds_no_room_for_its_checkpoint_changes_nothing(
    name: str, *, whole: bool
) -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    assert await manager.jobs.flush(log)
    log.note_first_dirty(15)
    manager.directories.write_recovery_points()
    fault = Fault("rename", f"{name}-checkpoint", errno.ENOSPC, count=2)
    node.filesystem.faults.append(fault)
    cut = log.truncate_fully_and_start_at if whole else log.truncate_to
    for _ in range(2):
        with pytest.raises(DiskFull):
            cut(10)
        assert (log.log_end_offset, log.offline) == (20, False)
    cut(10)
    assert log.log_end_offset == 10
    checkpoints = [node.offsets(f"{each}-checkpoint") for each in CUT_CHECKPOINTS]
    assert max(each[tp("a-0")] for each in checkpoints) <= 10


async def test_a_flush_does_not_vouch_for_a_directory_that_could_not_be_synced() -> None:
    node = Node()
    manager = await node.start()
    fault = Fault("fsync_directory", "/data", errno.EMFILE, count=None)
    node.filesystem.faults.append(fault)
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    fill(log)
    await settle()
    assert not await manager.jobs.flush(log)
    assert log.recovery_point == 0
    assert manager.get(tp("a-0")) is log
    node.filesystem.faults.clear()
    before = node.filesystem.operation_count
    assert await manager.jobs.flush(log)
    synced = [str(each) for each in node.filesystem.operations[before:]]
    assert any(each.startswith("fsync_directory") and each.endswith("/data") for each in synced)
