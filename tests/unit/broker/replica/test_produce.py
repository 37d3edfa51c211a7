"""Produce: what is appended, what is answered when (acks=all), every error a producer can get."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.replica import deferred_appends
from moldau.broker.replica import partition as partition_module
from moldau.broker.replica.partition import ProduceWait
from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.records import Codec, iter_batches
from moldau.server.authorizer import Authorizer
from tests.kit.waiting import until_async
from tests.unit.broker.harness import OTHER_BROKER_ID, DataPath, FakeConnection
from tests.unit.broker.messages import NOW_MS, batch, fetch, fetched_values, only, produce

ALL_VERSIONS = range(3, 14)


async def ask(broker: DataPath, records: Any, *, api_version: int = 12, **options: Any) -> Any:
    """Produce to t-0; the one partition of the response."""
    request = produce({("t", 0): records}, api_version=api_version, **options)
    return only(await broker.ask(request, api_version))


@pytest.mark.parametrize("api_version", ALL_VERSIONS)
@pytest.mark.parametrize("acks", [-1, 1])
async def test_every_version_appends(broker: DataPath, api_version: int, acks: int) -> None:
    broker.create_topic("t")
    first = await ask(broker, batch(3), api_version=api_version, acks=acks)
    second = await ask(broker, batch(2), api_version=api_version, acks=acks)
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (second.error_code, second.base_offset, second.log_append_time_ms) == (0, 3, -1)
    assert second.log_start_offset == (0 if api_version >= 5 else -1)
    assert broker.log("t").log_end_offset == broker.log("t").high_watermark == 5


async def test_several_topics_and_partitions(broker: DataPath) -> None:
    broker.create_topic("t", 2)
    broker.create_topic("u")
    response = await broker.ask(
        produce({("t", 1): batch(2), ("u", 0): batch(1), ("t", 0): batch(3)}), 12
    )
    offsets = {
        (topic.name, each.index): (each.error_code, each.base_offset)
        for topic in response.responses
        for each in topic.partition_responses
    }
    assert offsets == {("t", 1): (0, 0), ("t", 0): (0, 0), ("u", 0): (0, 0)}
    assert broker.log("t", 0).log_end_offset == 3
    assert broker.log("t", 1).log_end_offset == 2


async def test_acks_0_is_not_answered(broker: DataPath) -> None:
    broker.create_topic("t")
    request = broker.send(produce({("t", 0): batch()}, acks=0), 12)
    assert request.response is None
    assert not broker.connection.is_closed
    assert broker.log("t").log_end_offset == 1


async def test_acks_0_with_an_error_closes_the_connection(broker: DataPath) -> None:
    request = broker.send(produce({("missing", 0): batch()}, acks=0), 12)
    assert request.response is None
    assert broker.connection.is_closed


@pytest.mark.parametrize("api_version", [12, 13])
@pytest.mark.parametrize("internal", ["__consumer_offsets", "__transaction_state"])
async def test_only_coordinators_write_to_internal_topics(
    broker: DataPath, internal: str, api_version: int
) -> None:
    broker.create_topic(internal)
    broker.create_topic("t")

    async def produced() -> list[int]:
        request = produce({(internal, 0): batch(), ("t", 0): batch()}, api_version=api_version)
        response = await broker.ask(request, api_version)
        return [topic.partition_responses[0].error_code for topic in response.responses]

    assert await produced() == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]
    assert broker.log(internal).log_end_offset == 0
    broker.client_id = "__admin_client"
    assert await produced() == [ErrorCode.NONE, ErrorCode.NONE]


@pytest.mark.parametrize("acks", [2, -2, 127])
async def test_invalid_required_acks(broker: DataPath, acks: int) -> None:
    broker.create_topic("t")
    result = await ask(broker, batch(), acks=acks)
    assert result.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert result.base_offset == -1
    assert broker.log("t").log_end_offset == 0


async def test_unknown_topic_or_partition(broker: DataPath) -> None:
    broker.create_topic("t")
    response = await broker.ask(produce({("t", 9): batch(), ("u", 0): batch()}), 12)
    codes = [each.error_code for topic in response.responses for each in topic.partition_responses]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


async def test_unknown_topic_id(broker: DataPath) -> None:
    topic = TopicProduceData(
        topic_id=uuid.UUID(int=99),
        partition_data=[PartitionProduceData(index=0, records=batch())],
    )
    response = await broker.ask(ProduceRequest(acks=-1, timeout_ms=100, topic_data=[topic]), 13)
    assert only(response).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert response.responses[0].topic_id == uuid.UUID(int=99)


@pytest.mark.parametrize("api_version", [9, 10, 12, 13])
async def test_not_leader_names_the_leader(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t", leader=OTHER_BROKER_ID, replicas=(2,), leader_epoch=4)
    broker.create_topic("u", leader=OTHER_BROKER_ID, replicas=(1, 2), leader_epoch=5)
    request = produce({("t", 0): batch(), ("u", 0): batch()}, api_version=api_version)
    response = await broker.ask(request, api_version)
    for topic, leader_epoch in zip(response.responses, (4, 5), strict=True):
        (partition,) = topic.partition_responses
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        expected = (OTHER_BROKER_ID, leader_epoch) if api_version >= 10 else (-1, -1)
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (
            expected
        )
    if api_version >= 10:
        (endpoint,) = response.node_endpoints
        assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, "host-2", 9092)
    else:
        assert response.node_endpoints == []


async def test_not_enough_replicas(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1,), min_insync_replicas="2")
    result = await ask(broker, batch())
    assert result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert broker.log("t").log_end_offset == 0
    assert (await ask(broker, batch(), acks=1)).error_code == 0


async def test_more_min_insync_replicas_than_replicas_count_as_all(broker: DataPath) -> None:
    broker.create_topic("t", min_insync_replicas="3")
    assert (await ask(broker, batch())).error_code == 0


def garbled(change: Any) -> bytearray:
    data = batch(2)
    change(data)
    return data


def _set(index: int, value: int) -> Any:
    def change(data: bytearray) -> None:
        data[index] = value

    return change


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch(2)[:40], ErrorCode.INVALID_RECORD),
        (garbled(_set(16, 1)), ErrorCode.INVALID_RECORD),
        (garbled(_set(16, 3)), ErrorCode.CORRUPT_MESSAGE),
        (batch(1) + batch(1), ErrorCode.INVALID_RECORD),
        (batch(2)[:-1], ErrorCode.INVALID_RECORD),
        (garbled(_set(8, 0xFF)), ErrorCode.CORRUPT_MESSAGE),
        (garbled(_set(17, 0)), ErrorCode.CORRUPT_MESSAGE),
        (garbled(_set(-1, 0x7F)), ErrorCode.CORRUPT_MESSAGE),
        (batch(is_control=True), ErrorCode.INVALID_RECORD),
        (
            batch(is_transactional=True, producer_id=5, producer_epoch=0, base_sequence=0),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ],
)
async def test_records_that_are_refused(broker: DataPath, records: Any, error: ErrorCode) -> None:
    broker.create_topic("t")
    result = await ask(broker, records)
    assert ErrorCode.of(result.error_code) is error
    assert result.error_message or error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert result.base_offset == -1
    assert broker.log("t").log_end_offset == 0
    assert (await ask(broker, batch())).error_code == 0, "others are served on"


async def test_a_bad_partition_disturbs_no_other(broker: DataPath) -> None:
    broker.create_topic("t", 3)
    response = await broker.ask(
        produce({("t", 0): batch(), ("t", 1): batch(1)[:-1], ("t", 2): batch()}), 12
    )
    (topic,) = response.responses
    assert [each.error_code for each in topic.partition_responses] == [
        0,
        ErrorCode.INVALID_RECORD,
        0,
    ]


@pytest.mark.parametrize("api_version", [3, 6, 7])
async def test_zstd_needs_version_7(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t")
    result = await ask(broker, batch(5, codec=Codec.ZSTD), api_version=api_version)
    expected = ErrorCode.NONE if api_version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert result.error_code == expected


async def test_message_too_large(broker: DataPath) -> None:
    broker.create_topic("t", max_message_bytes="200")
    result = await ask(broker, batch(1, value=b"x" * 300))
    assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
    broker.configure("t", "max.message.bytes", "1000")
    assert (await ask(broker, batch(1, value=b"x" * 300))).error_code == 0


async def test_a_transactional_id_alone_makes_no_transaction(broker: DataPath) -> None:
    broker.create_topic("t")
    result = await ask(broker, batch(), transactional_id="mine")
    assert result.error_code == ErrorCode.NONE


async def test_log_append_time(broker: DataPath) -> None:
    broker.create_topic("t", message_timestamp_type="LogAppendTime")
    broker.clock.advance(5_000)
    result = await ask(broker, batch(2))
    assert result.log_append_time_ms == broker.clock.now_ms() == NOW_MS + 5_000


async def test_who_may_lead_no_more_misses_no_sequence(broker: DataPath) -> None:
    """The sequences in between may be in its successor's log: librdkafka ends the producer on
    OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    broker.create_topic("t")

    async def send(base_sequence: int) -> int:
        sent = batch(1, producer_id=9, producer_epoch=0, base_sequence=base_sequence)
        error_code: int = (await ask(broker, sent)).error_code
        return error_code

    assert await send(0) == ErrorCode.NONE
    broker.is_confirmed = False
    assert await send(7) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await send(1) == ErrorCode.NONE
    broker.is_confirmed = True
    assert await send(7) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_idempotence(broker: DataPath) -> None:
    broker.create_topic("t")

    def sent(base_sequence: int, producer_epoch: int = 0) -> bytearray:
        return batch(2, producer_id=9, producer_epoch=producer_epoch, base_sequence=base_sequence)

    assert (await ask(broker, sent(0))).base_offset == 0
    assert (await ask(broker, sent(2))).base_offset == 2
    again = await ask(broker, sent(0))
    assert (again.error_code, again.base_offset) == (0, 0), "a duplicate gets its first offset"
    assert broker.log("t").log_end_offset == 4
    gap = await ask(broker, sent(8))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await ask(broker, sent(0, producer_epoch=1))).base_offset == 4
    old = await ask(broker, sent(4, producer_epoch=0))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


class Refusing(Authorizer):
    """Allows everything but one operation."""

    def __init__(self, refused: Operation) -> None:
        self.refused = refused

    def authorize(self, principal: str, host: str, operation: Operation, *rest: Any) -> bool:
        return operation is not self.refused


async def test_topic_authorization_failed(tmp_path: Path) -> None:
    async with DataPath(tmp_path, authorizer=Refusing(Operation.WRITE)) as broker:
        broker.create_topic("t")
        assert (await ask(broker, batch())).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_storage_error(broker: DataPath) -> None:
    broker.create_topic("t", 2)
    broker.log("t").take_offline("the test says so")
    response = await broker.ask(produce({("t", 0): batch(), ("t", 1): batch()}), 12)
    (topic,) = response.responses
    codes = [each.error_code for each in topic.partition_responses]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]


# -- acks=all with a follower ---------------------------------------------------------------------


async def test_acks_all_waits_for_the_follower(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    timer_count = len(broker.timers)
    request = broker.send(produce({("t", 0): batch(3)}), 12)
    assert not request.is_answered
    assert request.is_body_released, "a waiting request keeps no bytes"
    broker.follower_has("t", 2, 2)
    assert not request.is_answered
    broker.follower_has("t", 2, 3)
    assert only(request.response).error_code == 0
    assert only(request.response).base_offset == 0
    assert broker.manager.produce_purgatory.size() == 0
    assert len(broker.timers) == timer_count


async def test_request_timed_out(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    request = broker.send(produce({("t", 0): batch(3)}, timeout_ms=500), 12)
    broker.clock.advance(490)
    assert not request.is_answered
    broker.clock.advance(30)
    assert only(request.response).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert broker.partition("t").produce_waits == {}
    assert not any(broker.connection.state.values()), "nothing stays linked to the connection"
    broker.follower_has("t", 2, 3)
    assert broker.manager.produce_purgatory.expired_count == 1


async def test_leadership_lost_while_waiting(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    request = broker.send(produce({("t", 0): batch(3)}), 12)
    broker.change_partition("t", leader=OTHER_BROKER_ID)
    assert only(request.response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_topic_deleted_while_waiting(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    request = broker.send(produce({("t", 0): batch(3)}), 12)
    broker.delete_topic("t")
    assert only(request.response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_not_enough_replicas_after_append(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2, 3), isr=(1, 2, 3), min_insync_replicas="2")
    request = broker.send(produce({("t", 0): batch(3)}), 12)
    partition = broker.partition("t")
    broker.follower_has("t", 2, 3)
    partition.core.followers[3].log_end_offset = 3
    partition.core.high_watermark = 3
    broker.change_partition("t", isr=[1])
    assert only(request.response).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_shrinking_the_isr_commits(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    request = broker.send(produce({("t", 0): batch(3)}, timeout_ms=60_000), 12)
    broker.clock.advance(30_001)
    broker.change_partition("t", isr=[1])
    assert only(request.response).error_code == 0


async def test_a_lost_connection_drops_its_waiting_requests(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    gone, stays = FakeConnection(), FakeConnection()
    dropped = broker.send(produce({("t", 0): batch()}), 12, gone)
    kept = broker.send(produce({("t", 0): batch()}), 12, stays)
    gone.close("the test says so")
    assert dropped.response is None
    assert broker.manager.produce_purgatory.size() == 1
    broker.follower_has("t", 2, 2)
    assert only(kept.response).error_code == 0


async def test_shutdown_answers_who_waits(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    request = broker.send(produce({("t", 0): batch()}), 12)
    await broker.manager.close()
    assert only(request.response).error_code == ErrorCode.REQUEST_TIMED_OUT


# -- off the loop ---------------------------------------------------------------------------------


async def test_recompression_keeps_the_order(broker: DataPath) -> None:
    broker.create_topic("t", compression_type="gzip")
    requests = []
    for number in range(10):
        codec = Codec.GZIP if number % 2 else Codec.NONE
        records = batch(2, value=b"%d" % number, codec=codec)
        requests.append(broker.send(produce({("t", 0): records}), 12))
    await until_async(lambda: all(request.is_answered for request in requests))
    offsets = [only(request.response).base_offset for request in requests]
    assert offsets == list(range(0, 20, 2))
    fetched = only(await broker.ask(fetch({("t", 0): 0}), 12))
    assert fetched_values(fetched) == [b"%d" % (n // 2) for n in range(20)]
    codecs = {header.codec for _, header in iter_batches(bytes(fetched.records))}
    assert codecs == {Codec.GZIP}


async def test_a_batch_that_cannot_be_recompressed(broker: DataPath) -> None:
    broker.create_topic("t", compression_type="lz4")
    result = await ask(broker, garbled(_set(-1, 0x7F)))
    assert result.error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await ask(broker, batch(2))).base_offset == 0


async def test_too_many_appends_wait_for_recompression(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred_appends, "MAX_QUEUED_APPENDS", 2)
    broker.create_topic("t", compression_type="gzip")
    requests = [broker.send(produce({("t", 0): batch()}), 12) for _ in range(3)]
    await until_async(lambda: all(request.is_answered for request in requests))
    codes = [only(request.response).error_code for request in requests]
    assert codes == [0, 0, ErrorCode.REQUEST_TIMED_OUT]


async def test_a_recompressed_batch_waits_for_its_follower(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2), compression_type="gzip")
    request = broker.send(produce({("t", 0): batch(3)}), 12)
    assert not request.is_body_released, "its bytes are still needed"
    await until_async(lambda: broker.log("t").log_end_offset == 3)
    assert request.is_body_released
    assert not request.is_answered
    broker.follower_has("t", 2, 3)
    assert only(request.response).error_code == 0


async def test_flush_messages_flushes_before_the_answer(broker: DataPath) -> None:
    broker.create_topic("t", flush_messages="2")
    assert (await ask(broker, batch(1))).error_code == 0
    assert broker.log("t").recovery_point == 0
    requests = [broker.send(produce({("t", 0): batch(1)}, acks=1), 12) for _ in range(5)]
    assert not any(request.is_answered for request in requests)
    await until_async(lambda: all(request.is_answered for request in requests))
    assert [only(request.response).base_offset for request in requests] == [1, 2, 3, 4, 5]
    assert broker.log("t").recovery_point == 6


async def test_throttle(tmp_path: Path) -> None:
    class Strict:
        limits_requests = False

        def record_produce(self, principal: str, client_id: str | None, size_bytes: int) -> int:
            return 250

    async with DataPath(tmp_path, quotas=Strict()) as broker:
        broker.create_topic("t")
        response = await broker.ask(produce({("t", 0): batch()}), 12)
        assert response.throttle_time_ms == 250
        assert broker.connection.throttled_ms == 250


async def test_topic_stats(broker: DataPath) -> None:
    broker.create_topic("t")
    records = batch(3)
    await ask(broker, records)
    await ask(broker, batch(1)[:-1])
    for stats in (broker.manager.topic_stats.of("t"), broker.manager.topic_stats.all_topics):
        assert stats.messages_in.count == 3
        assert stats.bytes_in.count == len(records)
        assert stats.produce_requests.count == 1
    assert broker.manager.topic_stats.all_topics.failed_produce_requests.count == 1


async def test_a_fault_in_recompression_does_not_block_the_line(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", compression_type="gzip")
    prepare = partition_module.prepare

    def broken(*_: Any) -> bytearray:
        raise ZeroDivisionError("the test says so")

    monkeypatch.setattr(partition_module, "prepare", broken)
    first = broker.send(produce({("t", 0): batch(value=b"a" * 100)}), 12)
    second = broker.send(produce({("t", 0): batch(value=b"b" * 100)}), 12)
    await until_async(lambda: bool(broker.faults))
    monkeypatch.setattr(partition_module, "prepare", prepare)
    await until_async(lambda: first.is_answered and second.is_answered)
    assert only(first.response).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    third = await broker.ask(produce({("t", 0): batch(value=b"c" * 100)}), 12)
    assert only(third).error_code == 0
    broker.faults.clear()


async def test_an_answer_that_ends_another_wait_of_the_partition(broker: DataPath) -> None:
    broker.create_topic("t", replicas=(1, 2), isr=(1, 2))
    partition = broker.partition("t")
    decided: list[int] = []

    class Owner:
        def commit_decided(self, wait: ProduceWait, error: ErrorCode) -> None:
            decided.append(wait.slot)
            partition.produce_waits.pop(second, None)

    first, second, third = (ProduceWait(Owner(), partition, 1, slot) for slot in (1, 2, 3))
    await broker.ask(produce({("t", 0): batch()}, acks=1), 12)
    for wait in (first, second, third):
        assert partition.wait_for_commit(wait) is None
    broker.follower_has("t", 2, 1)
    assert decided == [1, 3]
