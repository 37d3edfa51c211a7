"""DeleteRecords, OffsetForLeaderEpoch, DescribeProducers and InitProducerId."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.p61_describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from moldau.server.authorizer import Authorizer
from tests.kit.waiting import until_async
from tests.unit.broker.harness import OTHER_BROKER_ID, DataPath
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce


class Refusing(Authorizer):
    """Allows everything but some operations."""

    def __init__(self, *refused: Operation) -> None:
        self.refused = refused

    def authorize(self, principal: str, host: str, operation: Operation, *rest: Any) -> bool:
        return operation not in self.refused

    def authorize_by_resource_type(
        self, principal: str, host: str, operation: Operation, *rest: Any
    ) -> bool:
        return operation not in self.refused


async def fill(broker: DataPath, count: int, topic: str = "t") -> None:
    for n in range(count):
        await broker.ask(produce({(topic, 0): batch(1, value=b"%d" % n)}), 12)


# -- DeleteRecords --------------------------------------------------------------------------------


async def delete(
    broker: DataPath, offset: int, *, topic: str = "t", index: int = 0, api_version: int = 2
) -> tuple[ErrorCode, int]:
    partition = DeleteRecordsPartition(partition_index=index, offset=offset)
    asked = DeleteRecordsTopic(name=topic, partitions=[partition])
    response = await broker.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=100), api_version)
    (result,) = response.topics[0].partitions
    return ErrorCode.of(result.error_code), result.low_watermark


@pytest.mark.parametrize("api_version", [0, 1, 2])
async def test_delete_records(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t")
    await fill(broker, 5)
    assert await delete(broker, 3, api_version=api_version) == (ErrorCode.NONE, 3)
    assert await delete(broker, 1, api_version=api_version) == (ErrorCode.NONE, 3)
    gone = only(await broker.ask(fetch({("t", 0): 2}), 12))
    assert gone.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    rest = only(await broker.ask(fetch({("t", 0): 3}), 12))
    assert (fetched_values(rest), rest.log_start_offset) == ([b"3", b"4"], 3)
    assert await delete(broker, -1, api_version=api_version) == (ErrorCode.NONE, 5)


async def test_delete_records_survives_a_restart(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t")
        await fill(broker, 5)
        await delete(broker, 3)
    async with DataPath(tmp_path) as broker:
        broker.create_topic("t")
        assert broker.log("t").log_start_offset == 3
        assert broker.partition("t").core.high_watermark == 5


async def test_delete_records_errors(broker: DataPath) -> None:
    broker.create_topic("t")
    broker.create_topic("other", leader=OTHER_BROKER_ID, replicas=(1, 2))
    broker.create_topic("broken")
    broker.log("broken").take_offline("the test says so")
    broker.create_topic("__consumer_offsets")
    await fill(broker, 2)
    for offset in (3, -2, 2**62):
        assert await delete(broker, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    for topic, error in (
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("other", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("broken", ErrorCode.KAFKA_STORAGE_ERROR),
        ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ):
        assert await delete(broker, 0, topic=topic) == (error, -1)
    assert broker.log("t").log_start_offset == 0


async def test_delete_records_only_where_the_policy_deletes(broker: DataPath) -> None:
    broker.create_topic("t")
    log = broker.log("t")
    log.config = type(log.config)(cleanup_policy=("compact",))
    assert await delete(broker, 0) == (ErrorCode.POLICY_VIOLATION, -1)


async def test_delete_records_not_allowed(tmp_path: Path) -> None:
    async with DataPath(tmp_path, authorizer=Refusing(Operation.DELETE)) as broker:
        broker.create_topic("t")
        assert await delete(broker, 0) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)


# -- OffsetForLeaderEpoch -------------------------------------------------------------------------


async def end_of(
    broker: DataPath,
    leader_epoch: int,
    *,
    topic: str = "t",
    current_leader_epoch: int = -1,
    api_version: int = 4,
) -> tuple[ErrorCode, int, int]:
    partition = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current_leader_epoch, leader_epoch=leader_epoch
    )
    asked = OffsetForLeaderTopic(topic=topic, partitions=[partition])
    request = OffsetForLeaderEpochRequest(topics=[asked])
    (result,) = (await broker.ask(request, api_version)).topics[0].partitions
    return ErrorCode.of(result.error_code), result.leader_epoch, result.end_offset


@pytest.mark.parametrize("api_version", [2, 3, 4])
async def test_offset_for_leader_epoch(broker: DataPath, api_version: int) -> None:
    broker.create_topic("t", leader_epoch=1)
    await fill(broker, 3)
    for _ in range(3):
        broker.change_partition("t", leader=1)
    await fill(broker, 2)
    ends = {
        epoch: await end_of(broker, epoch, api_version=api_version) for epoch in (0, 1, 2, 4, 5)
    }
    assert ends == {
        0: (ErrorCode.NONE, 0, 0),
        1: (ErrorCode.NONE, 1, 3),
        2: (ErrorCode.NONE, 1, 3),
        4: (ErrorCode.NONE, 4, 5),
        5: (ErrorCode.NONE, -1, -1),
    }


async def test_offset_for_leader_epoch_errors(broker: DataPath) -> None:
    broker.create_topic("t", leader_epoch=2)
    broker.create_topic("other", leader=OTHER_BROKER_ID, replicas=(1, 2))
    missing, other = (
        await end_of(broker, 2, topic="missing"),
        await end_of(broker, 0, topic="other"),
    )
    assert missing == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert other == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    old = await end_of(broker, 2, current_leader_epoch=1)
    new = await end_of(broker, 2, current_leader_epoch=3)
    assert (old[0], new[0]) == (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)


async def test_offset_for_leader_epoch_not_allowed(tmp_path: Path) -> None:
    refusing = Refusing(Operation.DESCRIBE, Operation.CLUSTER_ACTION)
    async with DataPath(tmp_path, authorizer=refusing) as broker:
        broker.create_topic("t")
        assert (await end_of(broker, 0))[0] is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        refusing.refused = (Operation.DESCRIBE,)
        assert (await end_of(broker, 0))[0] is ErrorCode.NONE, "other brokers may ask"


# -- DescribeProducers ----------------------------------------------------------------------------


async def test_describe_producers(broker: DataPath) -> None:
    broker.create_topic("t")
    for producer_id, producer_epoch in ((5, 0), (6, 3)):
        records = batch(4, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=0)
        await broker.ask(produce({("t", 0): records}), 12)
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 1])])
    known, unknown = (await broker.ask(request, 0)).topics[0].partitions
    described = [
        (each.producer_id, each.producer_epoch, each.last_sequence, each.last_timestamp,
         each.coordinator_epoch, each.current_txn_start_offset)
        for each in known.active_producers
    ]  # fmt: skip
    now_ms = broker.clock.now_ms()
    assert described == [(5, 0, 3, now_ms, -1, -1), (6, 3, 3, now_ms, -1, -1)]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unknown.error_message


async def test_describe_producers_errors(tmp_path: Path) -> None:
    async with DataPath(tmp_path, authorizer=Refusing(Operation.READ)) as broker:
        broker.create_topic("t")
        request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
        (result,) = (await broker.ask(request, 0)).topics[0].partitions
        assert result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_describe_producers_is_answered_by_every_replica(broker: DataPath) -> None:
    broker.create_topic("t", leader=OTHER_BROKER_ID, replicas=(1, 2))
    broker.create_topic("away", leader=OTHER_BROKER_ID, replicas=(2,))
    for name, error in (("t", ErrorCode.NONE), ("away", ErrorCode.NOT_LEADER_OR_FOLLOWER)):
        topics = [TopicRequest(name=name, partition_indexes=[0])]
        (result,) = (
            (await broker.ask(DescribeProducersRequest(topics=topics), 0)).topics[0].partitions
        )
        assert result.error_code == error, name


# -- InitProducerId -------------------------------------------------------------------------------


@pytest.mark.parametrize("api_version", range(6))
async def test_every_idempotent_producer_gets_its_own_id(
    broker: DataPath, api_version: int
) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    responses = [await broker.ask(request, api_version) for _ in range(12)]
    assert [each.producer_id for each in responses] == list(range(1000, 1012))
    assert {(each.error_code, each.producer_epoch) for each in responses} == {(0, 0)}


async def test_a_named_id_is_ignored_without_a_transactional_id(broker: DataPath) -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=77, producer_epoch=4)
    response = await broker.ask(request, 5)
    assert (response.producer_id, response.producer_epoch) == (1000, 0)


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(7, -1), (-1, 3)])
async def test_an_id_without_an_epoch_makes_no_sense(
    broker: DataPath, producer_id: int, producer_epoch: int
) -> None:
    request = InitProducerIdRequest(
        transactional_id=None, producer_id=producer_id, producer_epoch=producer_epoch
    )
    assert (await broker.ask(request, 4)).error_code == ErrorCode.INVALID_REQUEST


async def test_many_ask_at_once(broker: DataPath) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    responses = await asyncio.gather(*[broker.ask(request, 5) for _ in range(40)])
    assert sorted(each.producer_id for each in responses) == list(range(1000, 1040))


async def test_the_next_block_is_fetched_before_it_is_needed(broker: DataPath) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    for _ in range(5):
        await broker.ask(request, 5)
    await until_async(lambda: broker.allocator.next_start == 1010)
    broker.allocator.is_available = False
    assert (await broker.ask(request, 5)).producer_id == 1005


async def test_no_controller_no_ids(broker: DataPath) -> None:
    broker.allocator.is_available = False
    request = InitProducerIdRequest(transactional_id=None)
    response = await broker.ask(request, 5)
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (response.producer_id, response.producer_epoch) == (-1, -1)
    assert ErrorCode.of(response.error_code).retriable
    broker.allocator.is_available = True
    assert (await broker.ask(request, 5)).producer_id == 1000


@pytest.mark.parametrize(
    ("transactional_id", "error"),
    [("mine", ErrorCode.NOT_COORDINATOR), ("", ErrorCode.INVALID_REQUEST)],
)
async def test_transactional_ids(broker: DataPath, transactional_id: str, error: ErrorCode) -> None:
    request = InitProducerIdRequest(transactional_id=transactional_id)
    assert (await broker.ask(request, 5)).error_code == error


async def test_init_producer_id_not_allowed(tmp_path: Path) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    refusing = Refusing(Operation.IDEMPOTENT_WRITE, Operation.WRITE)
    async with DataPath(tmp_path, authorizer=refusing) as broker:
        response = await broker.ask(request, 5)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        named = InitProducerIdRequest(transactional_id="mine")
        response = await broker.ask(named, 5)
        assert response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        refusing.refused = (Operation.IDEMPOTENT_WRITE,)
        assert (await broker.ask(request, 5)).error_code == 0, "writing to some topic is enough"


async def test_requests_for_ids_wait_without_a_task_each(broker: DataPath) -> None:
    broker.allocator.gate = asyncio.Event()
    request = InitProducerIdRequest(transactional_id=None)
    waiting = [broker.send(request, 5) for _ in range(300)]
    assert len(broker.background) <= 1
    assert broker.connection.held == waiting, "a connection has few of them"
    broker.allocator.gate.set()
    await until_async(lambda: all(each.is_answered for each in waiting))
    assert len({each.response.producer_id for each in waiting}) == 300


async def test_requests_for_ids_leave_with_their_connection(broker: DataPath) -> None:
    broker.allocator.gate = asyncio.Event()
    request = InitProducerIdRequest(transactional_id=None)
    waiting = [broker.send(request, 5) for _ in range(3)]
    broker.connection.close("the client has gone")
    assert [each.response for each in waiting] == [None] * 3
    assert broker.producer_ids.waiting_count == 0
    broker.allocator.gate.set()
