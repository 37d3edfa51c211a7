"""ListOffsets: the places that negative numbers stand for, search by time, errors by version."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.records import Record, decode_records, encode_batch
from moldau.server.authorizer import Authorizer
from moldau.storage import timestamp_search
from moldau.storage.append import RecordBatches
from tests.unit.broker.harness import OTHER_BROKER_ID, DataPath
from tests.unit.broker.messages import NOW_MS, batch, only, produce

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


async def ask(
    broker: DataPath,
    timestamp: int,
    *,
    api_version: int = 11,
    topic: str = "t",
    index: int = 0,
    leader_epoch: int = -1,
    **fields: Any,
) -> Any:
    partition = ListOffsetsPartition(
        partition_index=index, timestamp=timestamp, current_leader_epoch=leader_epoch
    )
    fields.setdefault("replica_id", -1)
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=topic, partitions=[partition])], **fields
    )
    response = await broker.ask(request, api_version)
    return response.topics[0].partitions[0]


async def put(broker: DataPath, *timestamps_ms: int, acks: int = -1) -> None:
    """One batch with a record at each time, given relative to NOW_MS."""
    records = [Record(n, NOW_MS + t, None, b"v") for n, t in enumerate(timestamps_ms)]
    response = await broker.ask(produce({("t", 0): encode_batch(records)}, acks=acks), 12)
    assert only(response).error_code == 0


@pytest.mark.parametrize("api_version", range(1, 12))
async def test_every_version(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t", leader_epoch=3)
    await put(broker, 0, 10, 20)
    epoch = 3 if api_version >= 4 else -1
    for timestamp, expected in (
        (LATEST, (-1, 3)),
        (EARLIEST, (-1, 0)),
        (NOW_MS + 5, (NOW_MS + 10, 1)),
    ):
        found = await ask(broker, timestamp, api_version=api_version)
        assert found.error_code == 0
        assert ((found.timestamp, found.offset), found.leader_epoch) == (expected, epoch)


@pytest.mark.parametrize(
    ("timestamp", "first_version"),
    [(MAX_TIMESTAMP, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99), (-(2**63), 99)],
)
async def test_negative_numbers_and_their_versions(
    broker: DataPath, timestamp: int, first_version: int
) -> None:
    broker.create_topic("t")
    for api_version in (1, 6, 7, 8, 9, 10, 11):
        found = await ask(broker, timestamp, api_version=api_version)
        served = api_version >= first_version
        assert found.error_code == (0 if served else ErrorCode.UNSUPPORTED_VERSION)


async def test_search_by_time(broker: DataPath) -> None:
    broker.create_topic("t")
    await put(broker, 0, 100)
    await put(broker, 50, 300)
    await put(broker, 200)

    async def offset_at(milliseconds: int) -> int:
        return int((await ask(broker, NOW_MS + milliseconds)).offset)

    assert [await offset_at(t) for t in (-5, 0, 1, 100, 101, 300)] == [0, 0, 1, 1, 3, 3]
    none = await ask(broker, NOW_MS + 301)
    assert (none.error_code, none.timestamp, none.offset, none.leader_epoch) == (0, -1, -1, -1)
    largest = await ask(broker, MAX_TIMESTAMP)
    assert (largest.timestamp, largest.offset) == (NOW_MS + 300, 3)


async def test_a_search_by_time_reads_off_the_loop(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    await put(broker, 0, 100)
    loops: list[asyncio.AbstractEventLoop | None] = []

    def decode(data: Any) -> list[Record]:
        loops.append(asyncio._get_running_loop())
        return decode_records(data)

    monkeypatch.setattr(timestamp_search, "decode_records", decode)
    assert (await ask(broker, NOW_MS + 1)).offset == 1
    assert (await ask(broker, MAX_TIMESTAMP)).offset == 1
    assert loops == [None, None]


async def test_a_topic_deleted_during_a_search(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    await put(broker, 0, 100)
    loop = asyncio.get_running_loop()

    def decode(data: Any) -> list[Record]:
        asyncio._set_running_loop(loop)  # this is what the loop does beside the search
        broker.delete_topic("t")
        asyncio._set_running_loop(None)
        return decode_records(data)

    monkeypatch.setattr(timestamp_search, "decode_records", decode)
    assert (await ask(broker, NOW_MS + 1)).error_code in (
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


async def test_an_empty_log(broker: DataPath) -> None:
    broker.create_topic("t")
    for timestamp, offset in ((LATEST, 0), (EARLIEST, 0), (MAX_TIMESTAMP, -1), (NOW_MS, -1)):
        found = await ask(broker, timestamp)
        assert (found.error_code, found.offset) == (0, offset)


async def test_isolation_level(broker: DataPath) -> None:
    broker.create_topic("t")
    await put(broker, 0)
    open_transaction = batch(
        2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    log = broker.log("t")
    assert (
        log.append_as_leader(RecordBatches.read(open_transaction), leader_epoch=0).error
        is ErrorCode.NONE
    )
    broker.partition("t").core.local_log_grew(3, 1)
    log.update_high_watermark(3)
    assert (await ask(broker, LATEST, isolation_level=0)).offset == 3
    assert (await ask(broker, LATEST, isolation_level=1)).offset == 1
    assert (await ask(broker, LATEST, isolation_level=1, replica_id=2)).offset == 3
    assert (await ask(broker, LATEST, isolation_level=1, replica_id=-2)).offset == 3
    assert (await ask(broker, NOW_MS + 1, isolation_level=1)).offset == -1
    wrong = await ask(broker, LATEST, isolation_level=5)
    assert wrong.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("api_version", [4, 5, 11])
async def test_a_new_leader_that_cannot_vouch_yet(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    await broker.ask(produce({("t", 0): batch(3)}, acks=1), 12)
    broker.change_partition("t", leader=1)
    assert broker.partition("t").core.leader_epoch_start_offset == 3
    code = ErrorCode.LEADER_NOT_AVAILABLE if api_version < 5 else ErrorCode.OFFSET_NOT_AVAILABLE
    assert (await ask(broker, LATEST, api_version=api_version)).error_code == code
    assert (await ask(broker, NOW_MS, api_version=api_version)).error_code == code
    assert (await ask(broker, LATEST, api_version=api_version, replica_id=-2)).offset == 3
    assert (await ask(broker, EARLIEST, api_version=api_version)).error_code == 0


@pytest.mark.parametrize("api_version", [4, 5, 11])
async def test_a_new_leader_with_an_open_transaction(broker: DataPath, api_version: int) -> None:
    """The open transaction holds the last stable offset back, not what the leader can vouch for:
    that is known by the high watermark (KIP-207)."""
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    await put(broker, 0, acks=1)
    open_transaction = batch(
        2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    assert broker.log("t").append_as_leader(
        RecordBatches.read(open_transaction), leader_epoch=0
    ).error is (ErrorCode.NONE)
    broker.partition("t").core.local_log_grew(3, 1)
    broker.change_partition("t", leader=1)
    assert broker.partition("t").core.leader_epoch_start_offset == 3
    code = ErrorCode.LEADER_NOT_AVAILABLE if api_version < 5 else ErrorCode.OFFSET_NOT_AVAILABLE
    for level in (0, 1):
        found = await ask(broker, LATEST, api_version=api_version, isolation_level=level)
        assert found.error_code == code, "the high watermark is behind the epoch's start"
    broker.follower_has("t", OTHER_BROKER_ID, 3)
    for level, offset in ((0, 3), (1, 1)):
        found = await ask(broker, LATEST, api_version=api_version, isolation_level=level)
        assert (found.error_code, found.offset) == (0, offset)
    found = await ask(broker, NOW_MS, api_version=api_version, isolation_level=1)
    assert (found.error_code, found.offset) == (0, 0)
    found = await ask(broker, NOW_MS + 1, api_version=api_version, isolation_level=1)
    assert (found.error_code, found.offset) == (0, -1), "the first record so late is not stable yet"


async def test_errors(broker: DataPath) -> None:
    broker.create_topic("t", leader_epoch=2)
    broker.create_topic("other", leader=OTHER_BROKER_ID, replicas=(1, 2))
    broker.create_topic("broken")
    broker.log("broken").take_offline("the test says so")
    for expected, found in (
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, await ask(broker, LATEST, topic="missing")),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, await ask(broker, LATEST, index=7)),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, await ask(broker, LATEST, topic="other")),
        (ErrorCode.FENCED_LEADER_EPOCH, await ask(broker, LATEST, leader_epoch=1)),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, await ask(broker, LATEST, leader_epoch=3)),
        (ErrorCode.KAFKA_STORAGE_ERROR, await ask(broker, LATEST, topic="broken")),
        (ErrorCode.NONE, await ask(broker, LATEST, topic="other", replica_id=-2)),
    ):
        assert found.error_code == expected


async def test_a_partition_named_twice(broker: DataPath) -> None:
    broker.create_topic("t", 2)
    asked = [ListOffsetsPartition(partition_index=n, timestamp=LATEST) for n in (0, 1, 0)]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)]
    )
    response = await broker.ask(request, 11)
    codes = [each.error_code for each in response.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]


async def test_topic_authorization_failed(tmp_path: Path) -> None:
    class Refusing(Authorizer):
        def authorize(self, principal: str, host: str, operation: Operation, *rest: Any) -> bool:
            return operation is not Operation.DESCRIBE

    async with DataPath(tmp_path, authorizer=Refusing()) as broker:
        broker.create_topic("t")
        found = await ask(broker, LATEST)
        assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
