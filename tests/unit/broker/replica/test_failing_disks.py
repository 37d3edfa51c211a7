"""The data path on the simulated filesystem: full disks, failing writes, failing flushes."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import ControlRecordType
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem
from tests.storage.test_log_producers import end, send
from tests.unit.broker.harness import DataPath
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce


@pytest.fixture
async def broker() -> AsyncIterator[DataPath]:
    async with DataPath("/data", filesystem=SimulatedFilesystem()) as data_path:
        data_path.create_topic("t", 2)
        yield data_path


async def put(broker: DataPath, index: int = 0, *, acks: int = -1) -> Any:
    return only(await broker.ask(produce({("t", index): batch(2)}, acks=acks), 12))


async def test_in_memory(broker: DataPath) -> None:
    assert (await put(broker)).base_offset == 0
    assert (await put(broker)).base_offset == 2
    found = only(await broker.ask(fetch({("t", 0): 0}), 12))
    assert fetched_values(found) == [b"value"] * 4


async def test_a_full_disk_refuses_and_recovers(broker: DataPath) -> None:
    await put(broker)
    filesystem = broker.filesystem
    filesystem.faults.append(Fault("append", "t-0", errno.ENOSPC))
    refused = await put(broker)
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert refused.error_message
    assert (await put(broker, 1)).error_code == 0
    filesystem.faults.clear()
    assert (await put(broker)).base_offset == 2, "nothing was lost and nothing written twice"
    assert broker.partition("t").core.high_watermark == 4


async def test_a_failing_disk_takes_the_partition_offline_and_answers_waiting_requests(
    broker: DataPath,
) -> None:
    await put(broker)
    waiting = broker.send(fetch({("t", 0): 2}, max_wait_ms=500), 12)
    broker.filesystem.faults.append(Fault("append", "t-0", errno.EIO))
    assert (await put(broker)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert only(waiting.response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.filesystem.faults.clear()
    assert (await put(broker)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_failing_flush_is_not_acknowledged(broker: DataPath) -> None:
    broker.configure("t", "flush.messages", "1")
    assert (await put(broker)).error_code == 0
    broker.filesystem.faults.append(Fault("fdatasync", "t-0", errno.EIO))
    assert (await put(broker, acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_damaged_transaction_index_ends_its_partition_only(broker: DataPath) -> None:
    await put(broker)
    await put(broker, 1)
    segment = broker.log("t").segments.active
    broker.filesystem.put(segment.transaction_index.path, b"\x7f" * 35)
    segment.transaction_index._entries = None
    read = fetch({("t", 0): 0, ("t", 1): 0}, isolation_level=1)
    damaged, good = (await broker.ask(read, 12)).responses[0].partitions
    assert damaged.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not damaged.records
    assert fetched_values(good) == [b"value"] * 2


async def one_lost_index(broker: DataPath) -> tuple[str, bytes]:
    """A transaction is aborted, its index is lost, and nothing speaks for what is left; returns the
    file and what it held.
    """
    log = broker.log("t")
    for sequence in (0, 1):
        send(log, sequence, transactional=True)
    end(log, ControlRecordType.ABORT)
    log.roll()
    log.flush()
    broker.partition("t").core.local_log_grew(log.log_end_offset, 1)
    log.update_high_watermark(log.log_end_offset)
    index = log.segments[0].transaction_index
    held = broker.filesystem.read_bytes(index.path)
    broker.filesystem.unlink(index.path)
    index._entries = None
    index.distrust(log.log_end_offset)
    log.segments.has_unproved = True
    return index.path, held


async def test_a_lost_transaction_index_is_rebuilt_before_committed_data_is_read(
    broker: DataPath,
) -> None:
    path, held = await one_lost_index(broker)
    read = fetch({("t", 0): 0}, isolation_level=1, max_wait_ms=9_999)
    found = only(await broker.ask(read, 12))
    assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions] == [
        (7, 0)
    ]
    assert len(found.records) > 0
    assert broker.filesystem.read_bytes(path) == held
    assert broker.log("t").segments.seals.entries.keys() == {0}


async def test_a_read_of_all_data_does_not_wait_for_a_lost_transaction_index(
    broker: DataPath,
) -> None:
    path, _ = await one_lost_index(broker)
    found = only(await broker.ask(fetch({("t", 0): 0}, isolation_level=0), 12))
    assert len(fetched_values(found)) > 0
    assert not broker.filesystem.exists(path)


async def test_damage_that_is_found_instead_of_a_marker_ends_its_partition(
    broker: DataPath,
) -> None:
    await one_lost_index(broker)
    segment = broker.log("t").segments[0]
    data = bytearray(broker.filesystem.read_bytes(segment.path))
    data[-1] ^= 1
    broker.filesystem.put(segment.path, bytes(data))
    segment.close_descriptors()
    read = fetch({("t", 0): 0}, isolation_level=1, max_wait_ms=9_999)
    assert only(await broker.ask(read, 12)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
