"""The replica manager: partitions follow the metadata, and logs follow the partitions."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.replica.log_opener import MAX_INLINE_OPENS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.metadata_records import ConfigRecord, PartitionRecord
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.faults import DiskFull
from tests.kit.waiting import until_async
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, topic_id_of
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce


async def put(broker: DataPath, topic: str = "t", *, value: bytes = b"v") -> int:
    response = await broker.ask(produce({(topic, 0): batch(1, value=value)}), 12)
    return int(only(response).error_code)


async def test_partitions_come_and_go(broker: DataPath, tmp_path: Path) -> None:
    broker.create_topic("t", 3)
    broker.create_topic("elsewhere", leader=2, replicas=(2,))
    manager = broker.manager
    assert len(list(manager.partitions())) == 3
    assert manager.get("elsewhere", 0) is None
    assert sorted(manager.topic_by_id(topic_id_of("t"))) == [0, 1, 2]
    assert (tmp_path / "t-2").is_dir()
    broker.delete_topic("t")
    assert len(list(manager.partitions())) == 0
    assert manager.topic_by_id(topic_id_of("t")) == {}
    assert not (tmp_path / "t-2").exists()


async def test_added_partitions(broker: DataPath) -> None:
    broker.create_topic("t", 1)
    broker.replay(
        PartitionRecord(
            partition_id=1,
            topic_id=topic_id_of("t"),
            replicas=[BROKER_ID],
            isr=[BROKER_ID],
            leader=BROKER_ID,
        )
    )
    assert len(list(broker.manager.partitions())) == 2
    assert broker.partition("t", 1).is_leader


async def test_a_topic_of_the_same_name_begins_with_an_empty_log(broker: DataPath) -> None:
    broker.create_topic("t")
    await put(broker)
    broker.delete_topic("t")
    broker.create_topic("t", topic_id=uuid.UUID(int=77 << 70))
    assert broker.log("t").log_end_offset == 0
    assert broker.manager.topic_by_id(topic_id_of("t")) == {}


async def test_a_replica_that_is_reassigned_away(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    broker.change_partition("t", replicas=[2], isr=[2], leader=2)
    assert broker.manager.get("t", 0) is None
    assert await put(broker) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_topic_settings_reach_the_log(broker: DataPath) -> None:
    broker.create_topic("t", segment_bytes="1048576", min_insync_replicas="2")
    log, partition = broker.log("t"), broker.partition("t")
    assert (log.config.segment_bytes, partition.min_insync_replicas) == (1048576, 2)
    broker.configure("t", "segment.bytes", "2097152")
    assert log.config.segment_bytes == 2097152
    broker.configure("t", "segment.bytes", None)
    broker.configure("t", "min.insync.replicas", None)
    assert (log.config.segment_bytes, partition.min_insync_replicas) == (1024**3, 1)


@pytest.mark.parametrize("resource_name", ["", str(BROKER_ID)])
async def test_broker_defaults_reach_the_logs(broker: DataPath, resource_name: str) -> None:
    broker.create_topic("t")
    broker.create_topic("u", retention_ms="5000")

    def configure(name: str, value: str | None) -> None:
        broker.replay(
            ConfigRecord(resource_type=4, resource_name=name, name="log.retention.ms", value=value)
        )

    configure(str(OTHER_BROKER_ID), "1111")
    assert broker.log("t").config.retention_ms == 7 * 24 * 3600 * 1000
    configure(resource_name, "123456")
    assert broker.log("t").config.retention_ms == 123456
    assert broker.log("u").config.retention_ms == 5000
    broker.create_topic("v")
    assert broker.log("v").config.retention_ms == 123456


async def test_lowering_min_insync_replicas_commits(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1,), min_insync_replicas="2")
    await broker.ask(produce({("t", 0): batch(3)}, acks=1), 12)
    request = broker.send(fetch({("t", 0): 0}, max_wait_ms=500), 12)
    assert not request.is_answered
    broker.configure("t", "min.insync.replicas", "1")
    assert len(fetched_values(only(request.response))) == 3


async def test_high_watermark_is_found_again(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
        await broker.ask(produce({("t", 0): batch(5)}, acks=1), 12)
        broker.follower_has("t", 2, 3)
        assert broker.log("t").high_watermark == 3, "what the checkpoint holds"
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
        assert broker.partition("t").core.high_watermark == 3


async def test_old_metadata_does_not_touch_a_newer_topic(tmp_path: Path) -> None:
    """Replaying the metadata log from its start passes through topics long gone."""
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t")
        await put(broker)
    async with DataPath(tmp_path) as broker:
        older = uuid.UUID(int=5 << 70)
        broker.create_topic("t", topic_id=older)
        assert broker.partition("t").is_offline
        assert await put(broker) == ErrorCode.KAFKA_STORAGE_ERROR
        from moldau.protocol.metadata_records import RemoveTopicRecord

        broker.replay(RemoveTopicRecord(topic_id=older))
        broker.create_topic("t")
        assert broker.log("t").log_end_offset == 1
        assert await put(broker) == 0


async def test_many_new_partitions_do_not_hold_up_the_loop(broker: DataPath) -> None:
    count = 3 * MAX_INLINE_OPENS
    broker.create_topic("t", count)
    broker.create_topic("late")
    made = [index for index in range(count) if broker.partition("t", index).log is not None]
    assert made == list(range(MAX_INLINE_OPENS))
    not_yet = only(await broker.ask(produce({("t", count - 1): batch()}), 12))
    assert not_yet.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    waiting = broker.send(fetch({("t", count - 1): 0}, max_wait_ms=0), 12)
    assert only(waiting.response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await until_async(lambda: all(each.log is not None for each in broker.manager.partitions()))
    for index in range(count):
        found = only(await broker.ask(produce({("t", index): batch()}), 12))
        assert found.error_code == 0
        assert broker.log("t", index).leader_epoch_cache.latest_epoch == 0


async def test_a_topic_deleted_before_its_logs_are_made(broker: DataPath, tmp_path: Path) -> None:
    count = 3 * MAX_INLINE_OPENS
    broker.create_topic("t", count)
    broker.delete_topic("t")
    await broker.manager.close()
    names = broker.filesystem.listdir(str(tmp_path))
    left = [name for name in names if name.startswith("t-") and not name.endswith("-delete")]
    assert left == []


async def test_a_full_disk_is_tried_again(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DiskFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(broker.log_manager, "get_or_create", full)
        broker.create_topic("t")
        assert await put(broker) == ErrorCode.KAFKA_STORAGE_ERROR
        timer_count = len(broker.timers)
        for _ in range(3):
            broker.change_partition("t", leader=1)
        assert len(broker.timers) == timer_count, "one wait, however often metadata changes"
        broker.clock.advance(31_000)
        assert await put(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    broker.clock.advance(31_000)
    assert await put(broker) == 0


async def test_gauges(broker: DataPath) -> None:
    broker.create_topic("t", 2)
    broker.create_topic("u", replicas=(1, 2), isr=(1,), min_insync_replicas="2")
    broker.create_topic("f", leader=2, replicas=(1, 2))
    broker.log("t", 1).take_offline("the test says so")
    values = {
        metric.name.partition("name=")[2]: metric.instrument.value
        for metric in broker.registry.collect()
        if "ReplicaManager" in metric.name and "PerSec" not in metric.name
    }
    assert values == {
        "PartitionCount": 4,
        "LeaderCount": 3,
        "OfflineReplicaCount": 1,
        "UnderReplicatedPartitions": 1,
        "UnderMinIsrPartitionCount": 1,
        "AtMinIsrPartitionCount": 2,
        "PartitionsWithLateTransactionsCount": 0,
        "ReassigningPartitions": 0,
    }


async def test_a_fault_off_the_loop_is_reported(tmp_path: Path) -> None:
    filesystem = OsFilesystem()
    async with DataPath(tmp_path, filesystem=filesystem) as broker:

        async def fails() -> None:
            raise RuntimeError("the test says so")

        broker.manager.start(fails())
        await broker.manager.close()
        assert [str(fault) for fault in broker.faults] == ["the test says so"]
        broker.faults.clear()
