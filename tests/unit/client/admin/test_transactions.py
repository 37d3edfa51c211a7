"""Transactions and the producers of partitions, as brokers tell of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.client import (
    AbortTransaction,
    Admin,
    BrokerError,
    InvalidRequest,
    KafkaError,
    NoBrokerAvailable,
    PartitionOffset,
    ProducerIdAndEpoch,
    ProducerState,
    RequestTimeout,
    TopicPartition,
    TransactionDescription,
    UnknownTopicOrPartition,
)
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as offsets
from moldau.protocol.messages import p22_init_producer_id as init
from moldau.protocol.messages import p27_write_txn_markers as markers
from moldau.protocol.messages import p61_describe_producers as producers
from moldau.protocol.messages import p65_describe_transactions as describe
from moldau.protocol.messages import p66_list_transactions as listing
from tests.unit.client.cluster.test_coordinators import coordinators
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
NOWHERE = TopicPartition("gone", 0)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.topics = {"t": 2}
        scripted.script(ApiKey.FIND_COORDINATOR, coordinators(lambda _: scripted))
        yield scripted


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address, retry_backoff_ms=1, default_api_timeout_ms=5_000) as client:
        yield client


async def test_listed_transactions(admin: Admin, broker: ScriptedBroker):
    states = [
        listing.TransactionState(
            transactional_id=name, producer_id=number, transaction_state="Ongoing"
        )
        for name, number in (("b", 2), ("a", 1))
    ]
    broker.script(
        ApiKey.LIST_TRANSACTIONS,
        lambda _: listing.ListTransactionsResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ),
        lambda _: listing.ListTransactionsResponse(transaction_states=states),
    )
    found = await admin.list_transactions(
        states=["Ongoing"], producer_ids=[1, 2], longer_than_ms=9, transactional_id_pattern="."
    )
    assert [(each.transactional_id, each.producer_id) for each in found] == [("a", 1), ("b", 2)]
    assert {each.coordinator_id for each in found} == {NODE_ID}
    request = broker.requests_of(listing.ListTransactionsRequest)[-1]
    assert isinstance(request, listing.ListTransactionsRequest)
    assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [1, 2])
    assert (request.duration_filter, request.transactional_id_pattern) == (9, ".")


async def test_a_state_that_no_transaction_has(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.LIST_TRANSACTIONS,
        lambda _: listing.ListTransactionsResponse(unknown_state_filters=["Sleeping"]),
    )
    with pytest.raises(InvalidRequest, match="Sleeping"):
        await admin.list_transactions(states=["Sleeping"])


async def test_described_transactions(admin: Admin, broker: ScriptedBroker):
    idle = describe.TransactionState(
        transactional_id="idle", transaction_state="Empty", transaction_start_time_ms=-1
    )
    open_one = describe.TransactionState(
        transactional_id="open",
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=123,
        producer_id=5,
        producer_epoch=2,
        topics=[describe.TopicData(topic="t", partitions=[0, 1])],
    )
    unknown = describe.TransactionState(
        transactional_id="no", error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    )
    broker.script(
        ApiKey.DESCRIBE_TRANSACTIONS,
        lambda _: describe.DescribeTransactionsResponse(
            transaction_states=[idle, open_one, unknown]
        ),
    )
    found = await admin.describe_transactions(["open", "idle", "no"])
    assert list(found) == ["open", "idle", "no"]
    ongoing, empty, problem = found.values()
    assert isinstance(ongoing, TransactionDescription)
    assert isinstance(empty, TransactionDescription)
    assert (ongoing.partitions, ongoing.start_time_ms) == ({ZERO, ONE}, 123)
    assert (ongoing.producer_id, ongoing.producer_epoch) == (5, 2)
    assert (empty.partitions, empty.start_time_ms) == (frozenset(), None)
    assert isinstance(problem, BrokerError)
    assert problem.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def told(*entries: producers.PartitionResponse) -> Any:
    topics = [producers.TopicResponse(name="t", partitions=list(entries))]
    return lambda _: producers.DescribeProducersResponse(topics=topics)


async def test_producers_of_many_partitions(admin: Admin, broker: ScriptedBroker):
    moved = producers.PartitionResponse(
        partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    state = producers.ProducerState(
        producer_id=5, producer_epoch=2, last_sequence=9, last_timestamp=77, coordinator_epoch=1
    )
    state.current_txn_start_offset = 40
    here = producers.PartitionResponse(partition_index=0, active_producers=[state])
    refused = producers.PartitionResponse(
        partition_index=1, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message="no"
    )
    broker.script(ApiKey.DESCRIBE_PRODUCERS, told(here, moved), told(refused))
    found = await admin.describe_partition_producers([ZERO, ONE, NOWHERE])
    assert found[ZERO] == [ProducerState(5, 2, 9, 77, 1, 40)]
    assert isinstance(found[ONE], KafkaError)
    assert isinstance(found[NOWHERE], UnknownTopicOrPartition)
    first, second = broker.requests_of(producers.DescribeProducersRequest)
    assert first.topics[0].partition_indexes == [0, 1]  # type: ignore[attr-defined]
    assert second.topics[0].partition_indexes == [1], "only what moved"  # type: ignore[attr-defined]


async def test_producers_at_a_replica(admin: Admin, broker: ScriptedBroker):
    broker.script(ApiKey.DESCRIBE_PRODUCERS, told(producers.PartitionResponse(partition_index=0)))
    found = await admin.describe_partition_producers([ZERO], broker_id=NODE_ID)
    assert found == {ZERO: []}
    found = await admin.describe_partition_producers([ZERO], broker_id=99, timeout_ms=30)
    # On a busy machine the time may be up while metadata is asked for once more.
    assert isinstance(found[ZERO], NoBrokerAvailable | RequestTimeout)
    assert "broker 99" in str(found[ZERO])


async def test_offsets_of_partitions_one_by_one(admin: Admin, broker: ScriptedBroker):
    entries = [
        offsets.ListOffsetsPartitionResponse(partition_index=0, offset=12, leader_epoch=3),
        offsets.ListOffsetsPartitionResponse(
            partition_index=1, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        ),
    ]
    topic = offsets.ListOffsetsTopicResponse(name="t", partitions=entries)
    broker.script(ApiKey.LIST_OFFSETS, lambda _: offsets.ListOffsetsResponse(topics=[topic]))
    found = await admin.list_partition_offsets({ZERO: -1, ONE: -1, NOWHERE: -1})
    assert found[ZERO] == PartitionOffset(12, -1, 3)
    assert isinstance(found[ONE], KafkaError)
    assert isinstance(found[NOWHERE], UnknownTopicOrPartition)


def written(code: ErrorCode) -> Any:
    partition = markers.WritableTxnMarkerPartitionResult(partition_index=0, error_code=code)
    topic = markers.WritableTxnMarkerTopicResult(name="t", partitions=[partition])
    result = markers.WritableTxnMarkerResult(producer_id=5, topics=[topic])
    return lambda _: markers.WriteTxnMarkersResponse(markers=[result])


async def test_an_abort_is_a_marker_at_the_leader(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.WRITE_TXN_MARKERS, written(ErrorCode.NOT_LEADER_OR_FOLLOWER), written(ErrorCode.NONE)
    )
    # A partition that has had no marker of the producer knows no coordinator epoch.
    producer = ProducerState(5, 2, 9, 77, -1, 40)
    await admin.abort_transaction(AbortTransaction.of(ZERO, producer))
    first, second = broker.requests_of(markers.WriteTxnMarkersRequest)
    assert first == second
    [marker] = second.markers  # type: ignore[attr-defined]
    assert (marker.producer_id, marker.producer_epoch) == (5, 2)
    assert (marker.coordinator_epoch, marker.transaction_result) == (0, False)
    assert [(each.name, each.partition_indexes) for each in marker.topics] == [("t", [0])]


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
async def test_an_abort_that_the_partition_refuses(
    admin: Admin, broker: ScriptedBroker, code: ErrorCode
):
    broker.script(ApiKey.WRITE_TXN_MARKERS, written(code))
    with pytest.raises(BrokerError, match=code.name):
        await admin.abort_transaction(AbortTransaction(ZERO, 5, 2, 0))


async def test_an_abort_where_nothing_is(admin: Admin):
    with pytest.raises(UnknownTopicOrPartition):
        await admin.abort_transaction(AbortTransaction(NOWHERE, 5, 2, 0))


async def test_fenced_producers(admin: Admin, broker: ScriptedBroker):
    def answer(request: Any) -> init.InitProducerIdResponse:
        if request.transactional_id == "mine":
            return init.InitProducerIdResponse(
                error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            )
        return init.InitProducerIdResponse(producer_id=8, producer_epoch=3)

    busy = init.InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
    broker.script(ApiKey.INIT_PRODUCER_ID, lambda _: busy, answer)
    outcome = await admin.fence_producers(["a", "mine"])
    assert outcome["a"] == ProducerIdAndEpoch(8, 3)
    assert isinstance(outcome["mine"], KafkaError)
    requests = broker.requests_of(init.InitProducerIdRequest)
    assert {each.producer_id for each in requests} == {-1}  # type: ignore[attr-defined]
    assert [each.transactional_id for each in requests] == ["a", "mine", "a"]  # type: ignore[attr-defined]
