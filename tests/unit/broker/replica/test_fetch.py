"""Fetch: what is read, when it is answered, and every error a consumer can get."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.replica.delayed_fetch import DelayedFetch
from moldau.broker.replica.partition import Partition
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from moldau.protocol.records import Record, encode_batch
from moldau.server.authorizer import Authorizer
from moldau.storage.append import RecordBatches
from moldau.storage.indexes import AbortedTransaction
from tests.kit.waiting import until_async
from tests.unit.broker.harness import OTHER_BROKER_ID, DataPath, FakeConnection
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce

ALL_VERSIONS = range(4, 19)


async def fill(broker: DataPath, *values: bytes, partition: tuple[str, int] = ("t", 0)) -> None:
    """One batch of one record per value."""
    for value in values:
        response = await broker.ask(produce({partition: batch(1, value=value)}), 12)
        assert only(response).error_code == 0


async def ask(broker: DataPath, asked: Any, *, api_version: int = 12, **fields: Any) -> Any:
    """Fetch from t-0; the one partition of the response."""
    request = fetch({("t", 0): asked}, api_version=api_version, **fields)
    return only(await broker.ask(request, api_version))


@pytest.mark.parametrize("api_version", ALL_VERSIONS)
async def test_every_version_reads(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t")
    await fill(broker, b"a", b"b", b"c")
    found = await ask(broker, 1, api_version=api_version)
    assert found.error_code == 0
    assert fetched_values(found) == [b"b", b"c"]
    assert (found.high_watermark, found.last_stable_offset) == (3, 3)
    assert found.log_start_offset == (0 if api_version >= 5 else -1)
    assert found.preferred_read_replica == -1
    assert found.aborted_transactions is None


@pytest.mark.parametrize("api_version", ALL_VERSIONS)
async def test_empty_records_have_length_0(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t")
    found = await ask(broker, 0, api_version=api_version)
    assert found.records is not None
    assert len(found.records) == 0


async def test_from_the_middle_of_a_batch_the_whole_batch(broker: DataPath) -> None:
    broker.create_topic("t")
    await broker.ask(produce({("t", 0): batch(10)}), 12)
    assert len(fetched_values(await ask(broker, 7))) == 10


async def test_byte_limits(broker: DataPath) -> None:
    broker.create_topic("t", 2)
    size = len(batch(1, value=b"x" * 1000))
    for index in (0, 1):
        await fill(broker, *[b"x" * 1000] * 5, partition=("t", index))

    async def sizes(**fields: Any) -> list[int]:
        request = fetch({("t", 0): 0, ("t", 1): 0}, **fields)
        response = await broker.ask(request, 12)
        return [len(each.records) for each in response.responses[0].partitions]

    assert await sizes() == [5 * size, 5 * size]
    assert await sizes(partition_max_bytes=2 * size) == [2 * size, 2 * size]
    assert await sizes(max_bytes=7 * size) == [5 * size, 2 * size]
    assert await sizes(max_bytes=1) == [size, 0], "the first batch goes out whatever the limit"
    assert await sizes(partition_max_bytes=1) == [size, 0]
    assert await sizes(max_bytes=0, partition_max_bytes=0) == [size, 0]


async def test_fetch_max_bytes_of_the_broker(tmp_path: Path) -> None:
    async with DataPath(tmp_path, fetch_max_bytes=1024) as broker:
        broker.create_topic("t")
        await fill(broker, *[b"x" * 400] * 5)
        assert len(fetched_values(await ask(broker, 0))) == 2


@pytest.mark.parametrize("offset", [-1, 4, 1000])
async def test_offset_out_of_range(broker: DataPath, offset: int) -> None:
    broker.create_topic("t")
    await fill(broker, b"a", b"b", b"c")
    found = await ask(broker, offset, max_wait_ms=10_000)
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (found.high_watermark, found.log_start_offset) == (-1, -1)
    assert len(found.records) == 0


async def test_unknown_topic_or_partition(broker: DataPath) -> None:
    broker.create_topic("t")
    request = fetch({("t", 5): 0, ("u", 0): 0}, max_wait_ms=10_000)
    response = await broker.ask(request, 12)
    codes = [each.error_code for topic in response.responses for each in topic.partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


async def test_unknown_topic_id(broker: DataPath) -> None:
    asked = FetchTopic(topic_id=uuid.UUID(int=9), partitions=[FetchPartition(partition=0)])
    request = FetchRequest(topics=[asked], session_epoch=-1, max_wait_ms=10_000, min_bytes=1)
    response = await broker.ask(request, 13)
    assert only(response).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert response.responses[0].topic_id == uuid.UUID(int=9)


async def test_inconsistent_topic_id(broker: DataPath) -> None:
    broker.create_topic("t")
    broker.log("t").topic_id = uuid.UUID(int=5)
    found = await ask(broker, 0, api_version=13)
    assert found.error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    broker.log("t").topic_id = broker.partition("t").topic_id


@pytest.mark.parametrize("api_version", [10, 11, 12, 16])
async def test_not_leader_names_the_leader(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t", leader=OTHER_BROKER_ID, replicas=(2,), leader_epoch=3)
    response = await broker.ask(fetch({("t", 0): 0}, api_version=api_version), api_version)
    found = only(response)
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader = (found.current_leader.leader_id, found.current_leader.leader_epoch)
    assert leader == ((2, 3) if api_version >= 12 else (-1, -1))
    hosts = [endpoint.host for endpoint in response.node_endpoints]
    assert hosts == (["host-2"] if api_version >= 16 else [])


@pytest.mark.parametrize("api_version", [10, 11])
async def test_a_follower_answers_consumers_from_version_11(
    broker: DataPath, api_version: int
) -> None:
    broker.create_topic("t", leader=OTHER_BROKER_ID, replicas=(1, 2))
    found = await ask(broker, 0, api_version=api_version)
    expected = ErrorCode.NONE if api_version >= 11 else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert found.error_code == expected


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_current_leader_epoch(broker: DataPath, leader_epoch: int, error: ErrorCode) -> None:
    broker.create_topic("t", leader_epoch=5)
    asked = {"fetch_offset": 0, "current_leader_epoch": leader_epoch}
    assert (await ask(broker, asked)).error_code == error


async def test_storage_error(broker: DataPath) -> None:
    broker.create_topic("t")
    broker.log("t").take_offline("the test says so")
    assert (await ask(broker, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_topic_authorization_failed(tmp_path: Path) -> None:
    class Refusing(Authorizer):
        def authorize(self, principal: str, host: str, operation: Operation, *rest: Any) -> bool:
            return operation is not Operation.READ

    async with DataPath(tmp_path, authorizer=Refusing()) as broker:
        broker.create_topic("t")
        broker.create_topic("elsewhere", leader=OTHER_BROKER_ID, replicas=(2,), leader_epoch=3)
        for api_version in (12, 13, 18):
            for partition in (("t", 0), ("t", 1), ("elsewhere", 0), ("elsewhere", 1)):
                request = fetch({partition: 0}, api_version=api_version)
                response = await broker.ask(request, api_version)
                found = only(response)
                assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED, partition
                assert found.current_leader.leader_id == -1
                assert not response.node_endpoints
            missing = fetch({("gone", 0): 0}, api_version=api_version)
            error = only(await broker.ask(missing, api_version)).error_code
            by_id = ErrorCode.UNKNOWN_TOPIC_ID
            by_name = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert error == (by_id if api_version >= 13 else by_name), "as Apache Kafka"


async def test_isolation_level_that_does_not_exist(broker: DataPath) -> None:
    broker.create_topic("t")
    response = await broker.ask(fetch({("t", 0): 0}, isolation_level=2), 12)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    request = broker.send(fetch({("t", 0): 0}, isolation_level=2), 4)
    assert request.response is None
    assert broker.connection.is_closed


# -- isolation and transactions -------------------------------------------------------------------


def transactional(log: Any, records: bytearray) -> None:
    """Append past the handler: transactions have no coordinator yet, their reading is served."""
    result = log.append_as_leader(RecordBatches.read(records), leader_epoch=0)
    assert result.error is ErrorCode.NONE, result.error_message


async def test_read_committed_stops_at_the_last_stable_offset(broker: DataPath) -> None:
    broker.create_topic("t")
    await fill(broker, b"plain")
    log = broker.log("t")
    transactional(
        log,
        batch(2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True),
    )
    partition = broker.partition("t")
    partition.core.local_log_grew(log.log_end_offset, 1)
    log.update_high_watermark(log.log_end_offset)
    committed = await ask(broker, 0, isolation_level=1)
    assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)
    assert fetched_values(committed) == [b"plain"]
    assert committed.aborted_transactions == []
    uncommitted = await ask(broker, 0, isolation_level=0)
    assert len(fetched_values(uncommitted)) == 3
    assert uncommitted.aborted_transactions is None


async def test_aborted_transactions_come_ordered_by_first_offset(broker: DataPath) -> None:
    broker.create_topic("t")
    await fill(broker, b"a", b"b", b"c")
    log = broker.log("t")
    log.segments.active.transaction_index.append(AbortedTransaction(8, 1, 1, 1))
    log.segments.active.transaction_index.append(AbortedTransaction(7, 0, 2, 2))
    found = await ask(broker, 0, isolation_level=1)
    aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions]
    assert aborted == [(7, 0), (8, 1)]


# -- diverging logs -------------------------------------------------------------------------------


async def test_diverging_epoch(broker: DataPath) -> None:
    broker.create_topic("t", leader_epoch=2)
    await fill(broker, b"a", b"b")
    broker.change_partition("t", leader=1)
    await fill(broker, b"c")
    agreeing = {"fetch_offset": 2, "last_fetched_epoch": 2}
    assert fetched_values(await ask(broker, agreeing)) == [b"c"]
    beyond = await ask(broker, {"fetch_offset": 3, "last_fetched_epoch": 2}, max_wait_ms=9_999)
    assert (beyond.error_code, len(beyond.records)) == (0, 0)
    assert (beyond.diverging_epoch.epoch, beyond.diverging_epoch.end_offset) == (2, 2)
    unknown = await ask(broker, {"fetch_offset": 3, "last_fetched_epoch": 9})
    assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_client_past_our_end_gets_the_diverging_epoch(broker: DataPath) -> None:
    """As Apache Kafka 4.3: it has to cut what we do not have, not to look for a new offset."""
    broker.create_topic("t", leader_epoch=2)
    await fill(broker, b"a", b"b")
    beyond = await ask(broker, {"fetch_offset": 5, "last_fetched_epoch": 2})
    assert beyond.error_code == 0
    assert (beyond.diverging_epoch.epoch, beyond.diverging_epoch.end_offset) == (2, 2)
    assert beyond.high_watermark == 2
    without_epoch = await ask(broker, {"fetch_offset": 5})
    assert without_epoch.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_client_below_our_start_is_out_of_range_wherever_the_logs_part(
    broker: DataPath,
) -> None:
    """As Apache Kafka: nothing that it could cut would bring it back into our log."""
    broker.create_topic("t", leader_epoch=2)
    await fill(broker, b"a", b"b")
    broker.change_partition("t", leader=1)
    broker.change_partition("t", leader=1)
    await fill(broker, b"c")
    broker.log("t").delete_records(1)
    foreign = await ask(broker, {"fetch_offset": 1, "last_fetched_epoch": 3})
    assert (foreign.diverging_epoch.epoch, foreign.diverging_epoch.end_offset) == (2, 2)
    below = await ask(broker, {"fetch_offset": 0, "last_fetched_epoch": 3}, max_wait_ms=9_999)
    assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert below.diverging_epoch.end_offset == -1


# -- long poll ------------------------------------------------------------------------------------


async def test_waits_for_data(broker: DataPath) -> None:
    timer_count = len(broker.timers)
    broker.create_topic("t")
    request = broker.send(fetch({("t", 0): 0}, max_wait_ms=500), 12)
    assert not request.is_answered
    assert request.is_body_released, "a waiting fetch keeps no bytes"
    await fill(broker, b"new")
    assert fetched_values(only(request.response)) == [b"new"]
    assert broker.manager.fetch_purgatory.size() == 0
    assert len(broker.timers) == timer_count
    assert broker.partition("t").fetch_watchers == {}


async def test_answers_empty_when_the_time_is_up(broker: DataPath) -> None:
    broker.create_topic("t")
    request = broker.send(fetch({("t", 0): 0}, max_wait_ms=500), 12)
    broker.clock.advance(490)
    assert not request.is_answered
    broker.clock.advance(20)
    assert len(only(request.response).records) == 0
    assert broker.partition("t").fetch_watchers == {}
    assert broker.manager.fetch_purgatory.expired_count == 1


async def test_waits_for_min_bytes_over_partitions(broker: DataPath) -> None:
    broker.create_topic("t", 2)
    size = len(batch(1, value=b"x" * 100))
    request = broker.send(
        fetch({("t", 0): 0, ("t", 1): 0}, max_wait_ms=500, min_bytes=3 * size), 12
    )
    await fill(broker, b"x" * 100, partition=("t", 0))
    await fill(broker, b"x" * 100, partition=("t", 1))
    assert not request.is_answered
    await fill(broker, b"x" * 100, partition=("t", 0))
    partitions = request.response.responses[0].partitions
    assert [len(each.records) for each in partitions] == [2 * size, size]


@pytest.mark.parametrize("min_bytes", [1, 200])
async def test_a_fetch_of_many_partitions_looks_at_those_that_changed(
    broker: DataPath, min_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", 20)
    asked: dict[tuple[str, int], Any] = {("t", n): 0 for n in range(20)}
    request = broker.send(fetch(asked, max_wait_ms=500, min_bytes=min_bytes), 12)
    looked_at = []
    real = DelayedFetch._read

    def counted(self: DelayedFetch, fetched: Any, *rest: Any, **named: Any) -> Any:
        looked_at.append(fetched.partition_index)
        return real(self, fetched, *rest, **named)

    monkeypatch.setattr(DelayedFetch, "_read", counted)
    broker.partition("t", 3).changed()
    broker.manager.complete_ready()
    assert looked_at == [3]
    assert not request.is_answered
    await fill(broker, b"x" * 300, partition=("t", 9))
    sizes = [len(each.records) for each in request.response.responses[0].partitions]
    assert [n for n, size in enumerate(sizes) if size] == [9]


async def test_min_bytes_beyond_max_bytes_is_capped(broker: DataPath) -> None:
    broker.create_topic("t")
    await fill(broker, b"x" * 2000)
    found = await ask(broker, 0, max_wait_ms=10_000, min_bytes=2_000_000, max_bytes=1000)
    assert fetched_values(found) == [b"x" * 2000]


@pytest.mark.parametrize("fields", [{"max_wait_ms": 0}, {"min_bytes": 0, "max_wait_ms": 10_000}])
async def test_a_fetch_that_may_not_wait_is_answered_at_once(
    broker: DataPath, fields: dict[str, int]
) -> None:
    broker.create_topic("t")
    assert broker.send(fetch({("t", 0): 0}, **fields), 12).is_answered


async def test_a_fetch_of_nothing_does_not_wait(broker: DataPath) -> None:
    assert broker.send(fetch({}, max_wait_ms=10_000), 12).is_answered


async def test_wakes_once_for_one_produce_request(broker: DataPath) -> None:
    broker.create_topic("t", 2)
    request = broker.send(fetch({("t", 0): 0, ("t", 1): 0}, max_wait_ms=500), 12)
    await broker.ask(produce({("t", 0): batch(2), ("t", 1): batch(3)}), 12)
    partitions = request.response.responses[0].partitions
    assert [len(fetched_values(each)) for each in partitions] == [2, 3]


async def test_leadership_lost_while_waiting(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1,))
    asked = {"fetch_offset": 0, "current_leader_epoch": 0}
    request = broker.send(fetch({("t", 0): asked}, max_wait_ms=5_000), 12)
    broker.change_partition("t", leader=OTHER_BROKER_ID)
    assert only(request.response).error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_topic_deleted_while_waiting(broker: DataPath) -> None:
    broker.create_topic("t")
    request = broker.send(fetch({("t", 0): 0}, max_wait_ms=5_000), 12)
    broker.delete_topic("t")
    assert only(request.response).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_lost_connection_drops_its_fetches(broker: DataPath) -> None:
    broker.create_topic("t")
    connection = FakeConnection()
    request = broker.send(fetch({("t", 0): 0}, max_wait_ms=5_000), 12, connection)
    connection.close("the test says so")
    assert request.response is None
    assert broker.manager.fetch_purgatory.size() == 0
    assert broker.partition("t").fetch_watchers == {}


async def test_shutdown_answers_who_waits(broker: DataPath) -> None:
    broker.create_topic("t")
    request = broker.send(fetch({("t", 0): 0}, max_wait_ms=5_000), 12)
    await broker.manager.close()
    assert only(request.response).error_code == 0


async def test_a_full_purgatory_answers_at_once(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    monkeypatch.setattr(broker.manager.fetch_purgatory._line, "max_count", 1)
    first = broker.send(fetch({("t", 0): 0}, max_wait_ms=5_000), 12)
    second = broker.send(fetch({("t", 0): 0}, max_wait_ms=5_000), 12)
    assert (first.is_answered, second.is_answered) == (False, True)
    await fill(broker, b"a")
    assert fetched_values(only(first.response)) == [b"a"]


async def test_only_committed_records_are_seen(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    await broker.ask(produce({("t", 0): batch(3)}, acks=1), 12)
    request = broker.send(fetch({("t", 0): 0}, max_wait_ms=5_000), 12)
    assert not request.is_answered
    broker.follower_has("t", 2, 3)
    broker.manager.complete_ready()
    assert len(fetched_values(only(request.response))) == 3


# -- followers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_version", [11, 18])
async def test_a_follower_reads_to_the_end_and_commits(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    waiting = broker.send(produce({("t", 0): batch(3)}), 12)

    def from_follower(offset: int) -> FetchRequest:
        asked: dict[str, int] = {"fetch_offset": offset}
        if api_version >= 12 and offset:
            asked["last_fetched_epoch"] = 0
        request = fetch({("t", 0): asked}, api_version=api_version)
        if api_version >= 15:
            request.replica_state = ReplicaState(replica_id=2)
        else:
            request.replica_id = 2
        return request

    found = only(await broker.ask(from_follower(0), api_version))
    assert len(fetched_values(found)) == 3
    assert found.high_watermark == 0
    assert not waiting.is_answered
    await broker.ask(from_follower(3), api_version)
    assert only(waiting.response).error_code == 0


async def test_a_follower_waits_for_appends_and_wakes_consumers(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    follower = broker.send(fetch({("t", 0): 0}, replica_id=2, max_wait_ms=500), 12)
    consumer = broker.send(fetch({("t", 0): 0}, max_wait_ms=500), 12)
    await broker.ask(produce({("t", 0): batch(2)}, acks=1), 12)
    assert len(fetched_values(only(follower.response))) == 2
    assert not consumer.is_answered, "what is not committed is no news to a consumer"
    broker.send(fetch({("t", 0): 2}, replica_id=2, max_wait_ms=500), 12)
    assert len(fetched_values(only(consumer.response))) == 2


async def test_a_follower_with_nothing_does_not_pass_for_one_that_has_the_beginning(
    broker: DataPath,
) -> None:
    """After an unclean election a log emptied by deletions may begin behind our first record."""
    broker.create_topic("t", replicas=(1, 2), isr=(1,))
    await fill(broker, b"a", b"b", b"c")

    async def fetch_blank(offset: int) -> Any:
        request = fetch({("t", 0): offset}, api_version=18)
        request.replica_state = ReplicaState(replica_id=2)
        return only(await broker.ask(request, 18))

    assert (await fetch_blank(3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    follower = broker.partition("t").core.followers[2]
    assert follower.log_end_offset == -1
    broker.log("t").delete_records(2)
    assert (await fetch_blank(2)).error_code == ErrorCode.NONE
    assert follower.log_end_offset == 2


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (0, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_a_replica_that_is_not_assigned(
    broker: DataPath, leader_epoch: int, error: ErrorCode
) -> None:
    broker.create_topic("t")
    asked = {"fetch_offset": 0, "current_leader_epoch": leader_epoch}
    found = only(await broker.ask(fetch({("t", 0): asked}, replica_id=7), 12))
    assert found.error_code == error


# -- bytes this process has not written -----------------------------------------------------------


async def test_old_bytes_are_checked_before_they_are_served(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t", segment_bytes="1048576")
        await fill(broker, *[b"x" * 300_000] * 5)
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t", segment_bytes="1048576")
        assert len(broker.log("t").segments) > 1
        request = broker.send(fetch({("t", 0): 0}, max_wait_ms=0), 12)
        assert not request.is_answered, "not even a fetch that would not wait gets them unseen"
        await until_async(lambda: request.is_answered)
        assert len(fetched_values(only(request.response))) == 3
        again = broker.send(fetch({("t", 0): 0}, max_wait_ms=0), 12)
        assert again.is_answered, "checked once"


async def test_damaged_bytes_are_never_served(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t", segment_bytes="1048576")
        await fill(broker, *[b"x" * 300_000] * 5)
        path = tmp_path / "t-0" / ("0" * 20 + ".log")
    data = bytearray(path.read_bytes())
    data[310_000] ^= 1
    path.write_bytes(data)
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t", segment_bytes="1048576")
        broker.create_topic("u")
        found = await ask(broker, 0, max_wait_ms=1000)
        assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(found.records) == 0
        await fill(broker, b"fine", partition=("u", 0))


async def test_a_reader_without_bytes_limits_reads_many_batches(broker: DataPath) -> None:
    broker.create_topic("t")
    for number in range(50):
        records = encode_batch([_record(number * 10 + n) for n in range(10)], producer_id=-1)
        await broker.ask(produce({("t", 0): records}), 12)
    values = fetched_values(await ask(broker, 0))
    assert values == [b"%d" % n for n in range(500)]


def _record(number: int) -> Any:
    return Record(number % 10, 1_700_000_000_000, None, b"%d" % number)


async def test_topic_stats(broker: DataPath) -> None:
    broker.create_topic("t")
    await fill(broker, b"a")
    found = await ask(broker, 0)
    await ask(broker, 99)
    stats = broker.manager.topic_stats.of("t")
    assert stats.bytes_out.count == len(found.records)
    assert (stats.fetch_requests.count, stats.failed_fetch_requests.count) == (2, 1)


async def test_a_fetch_that_cannot_be_answered_costs_its_own_connection_only(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for the same records behind it."""
    broker.create_topic("t")
    connections = [FakeConnection() for _ in range(3)]
    waiting = [
        broker.send(fetch({("t", 0): 0}, max_wait_ms=10_000), 12, each) for each in connections
    ]
    broken = waiting[0]

    def respond(message: Any, **_: Any) -> None:
        raise OSError("the test says so")

    monkeypatch.setattr(broken, "respond", respond)
    faults: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: faults.append(context["exception"])
    )
    producer = broker.send(produce({("t", 0): batch()}), 12, FakeConnection())
    await until_async(lambda: all(request.is_answered for request in waiting))
    assert [str(fault) for fault in faults] == ["the test says so"]
    assert broken.connection.is_closed
    assert not producer.connection.is_closed
    for request in waiting[1:]:
        assert fetched_values(only(request.response)) == [b"value"]
        assert not request.connection.is_closed
    assert broker.manager.fetch_purgatory.size() == 0


async def test_a_fetch_that_cannot_be_read_when_its_time_is_up_ends_too(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    request = broker.send(fetch({("t", 0): 0}, max_wait_ms=500), 12)

    def read(*_: Any, **__: Any) -> None:
        raise OSError("the test says so")

    monkeypatch.setattr(Partition, "read", read)
    with pytest.raises(OSError, match="the test says so"):
        broker.clock.advance(600)
    assert request.connection.is_closed
    assert request.is_answered
    assert broker.manager.fetch_purgatory.size() == 0
