"""WriteTxnMarkers: who may end a transaction in a partition, and when it counts as ended."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.access_control import Operation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.protocol.messages.p61_describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from moldau.server.authorizer import Authorizer
from tests.unit.broker.coordinator.transaction.scripted_coordinator import script
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, FakeRequest
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce

PRODUCER = 71
COMMIT, ABORT = True, False
OLD, OWN_EPOCH = 1, 2
"""Versions of the request; the second one is used with an epoch for each transaction."""


@pytest.fixture
async def path(broker: DataPath) -> DataPath:
    broker.create_topic("topic", 3)
    script(broker)
    return broker


def marker(
    *,
    producer_epoch: int = 0,
    is_commit: bool = COMMIT,
    coordinator_epoch: int = 3,
    transaction_version: int = 0,
    producer_id: int = PRODUCER,
    **topics: list[int],
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=is_commit,
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
    )


def write(path: DataPath, *markers: WritableTxnMarker, api_version: int = 2) -> FakeRequest:
    return path.send(WriteTxnMarkersRequest(markers=list(markers)), api_version)


def told(request: FakeRequest) -> dict[tuple[int, str, int], ErrorCode]:
    assert request.is_answered
    return {
        (result.producer_id, topic.name, partition.partition_index): ErrorCode.of(
            partition.error_code
        )
        for result in request.response.markers
        for topic in result.topics
        for partition in topic.partitions
    }


def end(path: DataPath, **fields: Any) -> ErrorCode:
    (error,) = told(write(path, marker(topic=[0], **fields))).values()
    return error


def begin(
    path: DataPath,
    *,
    producer_epoch: int = 0,
    sequence: int = 0,
    topic: str = "topic",
    producer_id: int = PRODUCER,
    acks: int = -1,
    value: bytes = b"value",
) -> None:
    records = batch(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
        value=value,
    )
    request = path.send(produce({(topic, 0): records}, transactional_id="mine", acks=acks), 12)
    if acks != -1:
        assert only(request.response).error_code == ErrorCode.NONE


def committed(path: DataPath, topic: str = "topic") -> list[bytes | None]:
    """What a reader of committed data is given, aborted records left out as clients do."""
    response = path.send(fetch({(topic, 0): 0}, isolation_level=1), 12).response
    partition = only(response)
    assert partition.error_code == ErrorCode.NONE
    assert not partition.aborted_transactions
    return [value for value in fetched_values(partition) if value is not None and len(value) > 6]


@pytest.mark.parametrize("api_version", [OLD, OWN_EPOCH])
async def test_a_marker_ends_the_transaction(path: DataPath, api_version: int) -> None:
    begin(path)
    log = path.log("topic")
    assert (log.last_stable_offset, log.high_watermark) == (0, 1)
    answer = told(write(path, marker(topic=[0]), api_version=api_version))
    assert answer == {(PRODUCER, "topic", 0): ErrorCode.NONE}
    assert (log.last_stable_offset, log.high_watermark, log.log_end_offset) == (2, 2, 2)


async def test_several_markers_and_partitions_in_one_request(path: DataPath) -> None:
    path.create_topic("away", leader=OTHER_BROKER_ID, replicas=(BROKER_ID, OTHER_BROKER_ID))
    begin(path)
    request = write(
        path,
        marker(topic=[0, 2, 7], nowhere=[0], away=[0]),
        marker(producer_id=72, is_commit=ABORT, topic=[1]),
        marker(producer_id=-1, topic=[1]),
        marker(producer_id=73, producer_epoch=-1, topic=[1]),
    )
    assert told(request) == {
        (PRODUCER, "topic", 0): ErrorCode.NONE,
        (PRODUCER, "topic", 2): ErrorCode.NONE,
        (PRODUCER, "topic", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (PRODUCER, "nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (PRODUCER, "away", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        (72, "topic", 1): ErrorCode.NONE,
        (-1, "topic", 1): ErrorCode.INVALID_REQUEST,
        (73, "topic", 1): ErrorCode.INVALID_REQUEST,
    }
    assert path.log("topic", 2).log_end_offset == 1, "a marker without data is written, too"
    assert told(write(path)) == {}


async def test_two_markers_of_one_producer_are_one_entry_of_the_answer(path: DataPath) -> None:
    request = write(path, marker(topic=[0]), marker(topic=[1]))
    (result,) = request.response.markers
    assert [each.partitions[0].partition_index for each in result.topics] == [0, 1]


async def test_older_coordinators_are_fenced(path: DataPath) -> None:
    begin(path)
    assert end(path, coordinator_epoch=3) is ErrorCode.NONE
    begin(path, sequence=1)
    assert end(path, coordinator_epoch=2) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert path.log("topic").last_stable_offset == 2
    assert end(path, coordinator_epoch=3, is_commit=ABORT) is ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_marker_of_an_older_epoch_is_refused(path: DataPath, version: int) -> None:
    begin(path, producer_epoch=5)
    assert (
        end(path, producer_epoch=4, transaction_version=version) is ErrorCode.INVALID_PRODUCER_EPOCH
    )


async def test_with_an_epoch_for_each_transaction_a_late_marker_ends_nothing(
    path: DataPath,
) -> None:
    begin(path, producer_epoch=5)
    assert end(path, producer_epoch=6, transaction_version=2) is ErrorCode.NONE
    begin(path, producer_epoch=6)
    assert end(path, producer_epoch=6, transaction_version=2) is ErrorCode.INVALID_PRODUCER_EPOCH, (
        "the marker of the transaction before, once more"
    )
    assert path.log("topic").last_stable_offset == 2
    assert end(path, producer_epoch=7, transaction_version=2) is ErrorCode.NONE


async def test_without_it_a_late_marker_ends_the_next_transaction(path: DataPath) -> None:
    """What transaction version 2 is for: nothing here distinguishes the two."""
    begin(path)
    assert end(path) is ErrorCode.NONE
    begin(path, sequence=1)
    assert end(path) is ErrorCode.NONE
    assert path.log("topic").last_stable_offset == 4


async def test_a_marker_may_come_again_while_nothing_is_open(path: DataPath) -> None:
    begin(path, producer_epoch=5)
    for _ in range(3):
        assert end(path, producer_epoch=6, transaction_version=2) is ErrorCode.NONE
    assert path.log("topic").last_stable_offset == path.log("topic").log_end_offset


async def test_the_last_epoch_has_none_after_it(path: DataPath) -> None:
    last = 2**15 - 1
    begin(path, producer_epoch=last)
    assert end(path, producer_epoch=last, transaction_version=2) is ErrorCode.NONE
    assert path.log("topic").last_stable_offset == 2


async def test_a_marker_counts_when_it_is_committed(path: DataPath) -> None:
    path.create_topic("pair", replicas=(BROKER_ID, OTHER_BROKER_ID))
    begin(path, topic="pair", acks=1)
    request = write(path, marker(pair=[0]))
    assert not request.is_answered
    path.follower_has("pair", OTHER_BROKER_ID, 1)
    assert not request.is_answered
    assert path.log("pair").last_stable_offset == 0
    path.follower_has("pair", OTHER_BROKER_ID, 2)
    assert told(request) == {(PRODUCER, "pair", 0): ErrorCode.NONE}
    assert path.log("pair").last_stable_offset == 2


async def test_a_marker_needs_enough_replicas(path: DataPath) -> None:
    path.create_topic(
        "pair", replicas=(BROKER_ID, OTHER_BROKER_ID), isr=(BROKER_ID,), min_insync_replicas="2"
    )
    begin(path, topic="pair", acks=1)
    assert told(write(path, marker(pair=[0]))) == {
        (PRODUCER, "pair", 0): ErrorCode.NOT_ENOUGH_REPLICAS
    }
    assert path.log("pair").log_end_offset == 1


async def test_a_marker_that_is_not_committed_in_time_is_late(path: DataPath) -> None:
    path.create_topic("pair", replicas=(BROKER_ID, OTHER_BROKER_ID))
    request = write(path, marker(pair=[0], topic=[0]))
    path.clock.advance(30_001)
    assert told(request) == {
        (PRODUCER, "pair", 0): ErrorCode.REQUEST_TIMED_OUT,
        (PRODUCER, "topic", 0): ErrorCode.NONE,
    }
    path.follower_has("pair", OTHER_BROKER_ID, 1)
    assert not path.partition("pair").produce_waits


async def test_leadership_that_goes_before_the_commit_is_answered_with_an_error(
    path: DataPath,
) -> None:
    path.create_topic("pair", replicas=(BROKER_ID, OTHER_BROKER_ID))
    request = write(path, marker(pair=[0]))
    path.change_partition("pair", leader=OTHER_BROKER_ID)
    assert told(request) == {(PRODUCER, "pair", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_group_offsets_without_their_coordinator(path: DataPath) -> None:
    path.create_topic(
        "__consumer_offsets", leader=OTHER_BROKER_ID, replicas=(BROKER_ID, OTHER_BROKER_ID)
    )
    assert told(write(path, marker(__consumer_offsets=[0, 1]))) == {
        (PRODUCER, "__consumer_offsets", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        (PRODUCER, "__consumer_offsets", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_a_compacted_topic_takes_markers(path: DataPath) -> None:
    path.create_topic("compacted", cleanup_policy="compact")
    begin(path, topic="compacted")
    assert told(write(path, marker(compacted=[0]))) == {(PRODUCER, "compacted", 0): ErrorCode.NONE}


class Forbidding(Authorizer):
    """Allows all but some operations."""

    def __init__(self, *forbidden: Operation) -> None:
        self.forbidden = forbidden

    def authorize(self, principal: str, host: str, operation: Operation, *resource: Any) -> bool:
        del principal, host, resource
        return operation not in self.forbidden


@pytest.mark.parametrize(
    ("forbidden", "error"),
    [
        ((Operation.ALTER, Operation.CLUSTER_ACTION), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ((Operation.ALTER,), ErrorCode.NONE),
        ((Operation.CLUSTER_ACTION,), ErrorCode.NONE),
    ],
)
async def test_who_may_write_markers(
    tmp_path: Any, forbidden: tuple[Operation, ...], error: ErrorCode
) -> None:
    async with DataPath(tmp_path, authorizer=Forbidding(*forbidden)) as path:
        path.create_topic("topic")
        assert told(write(path, marker(topic=[0]))) == {(PRODUCER, "topic", 0): error}
        assert path.log("topic").log_end_offset == (error is ErrorCode.NONE)


# -- hanging transactions (KIP-664) --------------------------------------------------------------


def producers(path: DataPath) -> Any:
    request = DescribeProducersRequest(topics=[TopicRequest(name="topic", partition_indexes=[0])])
    (topic,) = path.send(request, 0).response.topics
    (partition,) = topic.partitions
    assert partition.error_code == ErrorCode.NONE
    return partition.active_producers


def gauge(path: DataPath, name: str) -> float:
    (found,) = [
        metric.instrument.value
        for metric in path.registry.collect()
        if metric.name == f"kafka.server:type=ReplicaManager,name={name}"
    ]
    return float(found)


async def test_an_administrator_finds_and_aborts_a_hanging_transaction(path: DataPath) -> None:
    late = "PartitionsWithLateTransactionsCount"
    begin(path, producer_epoch=4, value=b"is given up")
    begin(path, producer_epoch=9, producer_id=99, value=b"goes on well")
    path.clock.advance(900_000 + 5 * 60_000)
    assert gauge(path, late) == 0
    path.clock.advance(1)
    assert gauge(path, late) == 1
    hanging, other = producers(path)
    assert (hanging.producer_id, hanging.producer_epoch) == (PRODUCER, 4)
    assert (hanging.current_txn_start_offset, hanging.last_sequence) == (0, 0)
    assert hanging.coordinator_epoch == -1, "no marker has come yet"
    assert other.current_txn_start_offset == 1
    # What `kafka-transactions abort --start-offset 0` sends.
    error = end(
        path,
        producer_epoch=hanging.producer_epoch,
        coordinator_epoch=hanging.coordinator_epoch,
        is_commit=ABORT,
    )
    assert error is ErrorCode.NONE
    assert path.log("topic").last_stable_offset == 1
    assert producers(path)[0].current_txn_start_offset == -1
    assert gauge(path, late) == 1, "the other one is late, too"


async def test_describe_producers_knows_where_it_may_look(path: DataPath) -> None:
    path.create_topic("away", leader=OTHER_BROKER_ID, replicas=(OTHER_BROKER_ID,))
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name="away", partition_indexes=[0]),
            TopicRequest(name="topic", partition_indexes=[9]),
        ]
    )
    away, topic = path.send(request, 0).response.topics
    assert away.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
