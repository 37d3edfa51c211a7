"""AlterPartition: which ISRs a leader may set, and what a new ISR brings about."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.metadata.image import LOST_DIRECTORY
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.p56_alter_partition import (
    AlterPartitionRequest,
    PartitionData,
    TopicData,
)
from moldau.protocol.messages.p73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
)
from moldau.protocol.messages.p73_assign_replicas_to_dirs import PartitionData as DirectoryPartition
from moldau.protocol.messages.p73_assign_replicas_to_dirs import TopicData as DirectoryTopic
from tests.unit.metadata.builders import CoreDriver


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    for broker_id in (1, 2, 3):
        driver.join(broker_id)
    driver.topic("t", [1, 2, 3], min_insync_replicas="2")
    return driver


def test_a_leader_shrinks_and_grows_its_isr(driver: CoreDriver) -> None:
    answer = driver.alter_partition([1, 2])
    assert (answer.error_code, answer.isr, answer.leader_id) == (0, [1, 2], 1)
    assert (answer.leader_epoch, answer.partition_epoch) == (0, 1)
    assert (driver.partition().isr, driver.partition().elr) == ((1, 2), ())
    answer = driver.alter_partition([1])
    assert (driver.partition().isr, driver.partition().elr) == ((1,), (2,))
    answer = driver.alter_partition([1, 2, 3])
    assert (answer.error_code, answer.partition_epoch) == (0, 3)
    assert (driver.partition().isr, driver.partition().elr) == ((1, 2, 3), ())
    assert driver.partition().leader_epoch == 0, "the leader stayed"


def test_the_same_isr_again_voids_older_copies_of_other_proposals(driver: CoreDriver) -> None:
    driver.alter_partition([1, 2])
    answer = driver.alter_partition([1, 2])
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1, 2], 2)
    [record] = driver.appended
    assert record.isr == [1, 2]
    assert (driver.partition().isr, driver.partition().partition_epoch) == ((1, 2), 2)
    assert driver.partition().leader_epoch == 0, "the leader stayed"
    late = driver.alter_partition([1, 2, 3], partition_epoch=1)
    assert late.error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_version_2_names_members_without_epochs(driver: CoreDriver) -> None:
    answer = driver.alter_partition([], new_isr_with_epochs=[], new_isr=[1, 3])
    assert (answer.error_code, answer.isr) == (0, [1, 3])


@pytest.mark.parametrize(
    ("isr", "changes", "error"),
    [
        ([1, 2], {"topic_id": UUID(int=5)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ([1, 2], {"partition_index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1, 2], {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"partition_epoch": 2}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ([1, 2], {"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ([1, 1], {}, ErrorCode.INVALID_REQUEST),
        ([1, 4], {}, ErrorCode.INVALID_REQUEST),
        ([2, 3], {}, ErrorCode.INVALID_REQUEST),
        ([], {}, ErrorCode.INVALID_REQUEST),
        ([1], {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"leader_recovery_state": 9}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"epochs": {2: 1}}, ErrorCode.INELIGIBLE_REPLICA),
        ([1, 2], {"epochs": {1: 1}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_isrs_that_are_refused(
    driver: CoreDriver, isr: list[int], changes: dict[str, Any], error: ErrorCode
) -> None:
    driver.alter_partition([1, 2])
    before = driver.image
    answer = driver.alter_partition(isr, **changes)
    assert ErrorCode.of(answer.error_code) is error
    assert (answer.leader_id, answer.isr) == (0, [])
    assert driver.image is before


def test_fenced_stopping_and_unknown_brokers_are_ineligible(driver: CoreDriver) -> None:
    driver.topic("other", [2, 3], [3, 2])
    driver.beat(2, want_fence=True)
    assert driver.alter_partition([1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    driver.beat(2)
    driver.beat(3, want_shut_down=True)
    assert driver.image.cluster.brokers[3].in_controlled_shutdown
    assert driver.alter_partition([1, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert driver.alter_partition([1, 2]).error_code == ErrorCode.NONE
    from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest

    driver.ask(UnregisterBrokerRequest(broker_id=3))
    assert driver.alter_partition([1, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA


def assign(driver: CoreDriver, broker_id: int, directory_id: UUID) -> None:
    """The broker says where its replica of the partition lies."""
    topic_id = driver.image.topics.topics_by_name["t"].topic_id
    topics = [DirectoryTopic(topic_id=topic_id, partitions=[DirectoryPartition(partition_index=0)])]
    response = driver.ask(
        AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=driver.broker_epoch(broker_id),
            directories=[DirectoryData(id=directory_id, topics=topics)],
        )
    )
    assert response.directories[0].topics[0].partitions[0].error_code == 0


def test_a_replica_whose_log_is_lost_is_ineligible(driver: CoreDriver) -> None:
    (directory_id,) = driver.image.cluster.brokers[3].directories
    for place, error in (
        (LOST_DIRECTORY, ErrorCode.INELIGIBLE_REPLICA),
        (directory_id, ErrorCode.NONE),
    ):
        assign(driver, 3, place)
        assert driver.partition().isr == (1, 2)
        assert driver.alter_partition([1, 2, 3]).error_code == error


@pytest.mark.parametrize("isr", [[1, 2, 3], [1, 2]])
def test_a_lost_log_begins_a_leader_epoch(driver: CoreDriver, isr: list[int]) -> None:
    """The broker begins the log again, and what its leader proposed before it knew must not let the
    replica in, also not by a late copy.
    """
    (directory_id,) = driver.image.cluster.brokers[3].directories
    driver.alter_partition(isr)
    before = driver.partition()
    assign(driver, 3, LOST_DIRECTORY)
    after = driver.partition()
    assert (after.leader, after.isr) == (before.leader, (1, 2))
    assert after.leader_epoch == before.leader_epoch + 1
    assign(driver, 3, LOST_DIRECTORY)
    assign(driver, 3, directory_id)
    assert driver.partition().leader_epoch == after.leader_epoch
    late = driver.alter_partition(
        [1, 2, 3], leader_epoch=before.leader_epoch, partition_epoch=before.partition_epoch
    )
    assert late.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_replica_whose_log_is_lost_is_no_eligible_leader(driver: CoreDriver) -> None:
    """Its broker begins it again: chosen to lead, it would cut what was committed everywhere."""
    (directory_id,) = driver.image.cluster.brokers[2].directories
    driver.alter_partition([1, 2])
    driver.alter_partition([1])
    assert driver.partition().elr == (2,)
    assign(driver, 2, LOST_DIRECTORY)
    assert (driver.partition().isr, driver.partition().elr) == ((1,), ())
    driver.alter_partition([1, 3])
    assign(driver, 3, LOST_DIRECTORY)
    assert (driver.partition().isr, driver.partition().elr) == ((1,), ())
    assign(driver, 2, directory_id)
    driver.beat(1, want_fence=True)
    assert (driver.partition().leader, driver.partition().elr) == (-1, (1,))


def test_an_unknown_or_replaced_sender_is_refused_as_a_whole(driver: CoreDriver) -> None:
    epoch = driver.broker_epoch(1)
    for broker_id, broker_epoch in ((1, epoch - 1), (1, epoch + 1), (9, epoch)):
        answer = driver.alter_partition([1, 2], broker_id=broker_id, broker_epoch=broker_epoch)
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
        assert answer.topics == []
    assert not driver.appended


@pytest.mark.parametrize("broker_id", [1, 9])
def test_a_request_without_topics_is_no_error_from_any_sender(
    driver: CoreDriver, broker_id: int
) -> None:
    request = AlterPartitionRequest(broker_id=broker_id, broker_epoch=-5, topics=[])
    answer = driver.ask(request)
    assert (answer.error_code, answer.topics) == (0, [])


def test_a_recovering_leader_is_alone_until_it_says_that_it_has_recovered() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    driver.topic("t", [1, 2], unclean_leader_election_enable="true")
    driver.beat(2, want_fence=True)
    driver.beat(1, want_fence=True)
    driver.beat(2)
    assert driver.partition().leader == 2
    assert (driver.partition().isr, driver.partition().leader_recovery_state) == ((2,), 1)
    driver.beat(1)
    refused = driver.alter_partition([2, 1], leader_recovery_state=1)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert driver.alter_partition([2], leader_recovery_state=1).error_code == 0
    assert driver.partition().leader_recovery_state == 1
    recovered = driver.alter_partition([2], leader_recovery_state=0)
    assert (recovered.error_code, recovered.leader_recovery_state) == (0, 0)
    assert driver.partition().leader_recovery_state == 0
    assert driver.alter_partition([2, 1]).error_code == 0
    back = driver.alter_partition([2], leader_recovery_state=1)
    assert back.error_code == ErrorCode.INVALID_REQUEST


def reassign(driver: CoreDriver, replicas: list[int]) -> None:
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name="t", partitions=[ReassignablePartition(partition_index=0, replicas=replicas)]
            )
        ]
    )
    assert driver.ask(request).responses[0].partitions[0].error_code == 0


def test_an_isr_completes_a_reassignment_that_takes_the_leader_away() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2, 3):
        driver.join(broker_id)
    driver.topic("t", [1])
    reassign(driver, [2, 3])
    assert driver.partition().replicas == (2, 3, 1)
    first = driver.alter_partition([1, 2])
    assert (first.error_code, first.isr) == (0, [1, 2])
    assert driver.partition().is_reassigning
    last = driver.alter_partition([1, 2, 3])
    assert last.error_code == ErrorCode.NEW_LEADER_ELECTED
    after = driver.partition()
    assert (after.replicas, after.isr, after.leader) == ((2, 3), (2, 3), 2)
    assert (after.leader_epoch, after.is_reassigning) == (1, False)


def test_an_isr_completes_a_reassignment_that_only_adds() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    driver.topic("t", [1])
    reassign(driver, [1, 2])
    answer = driver.alter_partition([1, 2])
    assert (answer.error_code, answer.isr, answer.leader_epoch) == (0, [1, 2], 0)
    assert not driver.partition().is_reassigning


def test_partitions_of_one_request_stand_alone_and_each_counts_once(driver: CoreDriver) -> None:
    topic_id = driver.topic("two", [1, 2], [1, 2])

    def data(index: int, partition_epoch: int) -> PartitionData:
        return PartitionData(partition_index=index, new_isr=[1], partition_epoch=partition_epoch)

    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=driver.broker_epoch(1),
        topics=[
            TopicData(topic_id=UUID(int=9), partitions=[data(0, 0), data(1, 0)]),
            TopicData(topic_id=topic_id, partitions=[data(0, 5), data(1, 0), data(1, 0)]),
        ],
    )
    unknown, known = driver.ask(request).topics
    assert [each.error_code for each in unknown.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
    assert [each.error_code for each in known.partitions] == [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert [driver.partition("two", index).isr for index in (0, 1)] == [(1, 2), (1,)]
