"""Reassignments: start, change, cancel, list; with whom they end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.p46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.unit.metadata.builders import CoreDriver, directory_id


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    for broker_id in (1, 2, 3, 4):
        driver.join(broker_id)
    driver.topic("t", [1, 2], [2, 1])
    return driver


def reassign(
    driver: CoreDriver, replicas: list[int] | None, name: str = "t", index: int = 0, **options: Any
) -> tuple[int, str | None]:
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=name,
                partitions=[ReassignablePartition(partition_index=index, replicas=replicas)],
            )
        ],
        **options,
    )
    response = driver.ask(request)
    assert (response.error_code, response.responses[0].name) == (0, name)
    (answer,) = response.responses[0].partitions
    return answer.error_code, answer.error_message


def listed(driver: CoreDriver, *names: str) -> dict[tuple[str, int], tuple[list[int], ...]]:
    topics = [
        ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 1, 2, 0])
        for name in names
    ]
    response = driver.ask(ListPartitionReassignmentsRequest(topics=topics if names else None))
    assert response.error_code == 0
    assert not driver.appended
    return {
        (topic.name, each.partition_index): (
            each.replicas,
            each.adding_replicas,
            each.removing_replicas,
        )
        for topic in response.topics
        for each in topic.partitions
    }


def test_replicas_move_when_the_new_ones_are_in_sync(driver: CoreDriver) -> None:
    assert reassign(driver, [3, 4]) == (0, None)
    state = driver.partition()
    assert state.replicas == (3, 4, 1, 2)
    assert (state.adding_replicas, state.removing_replicas) == ((3, 4), (1, 2))
    assert (state.leader, state.leader_epoch, state.isr) == (1, 0, (1, 2))
    assert [state.directory(each) for each in (3, 4)] == [directory_id(3), directory_id(4)]
    assert listed(driver) == {("t", 0): ([3, 4, 1, 2], [3, 4], [1, 2])}
    assert listed(driver, "t", "absent") == listed(driver)
    driver.alter_partition([1, 2, 3])
    assert driver.partition().is_reassigning
    assert driver.alter_partition([1, 2, 3, 4]).error_code == ErrorCode.NEW_LEADER_ELECTED
    state = driver.partition()
    assert (state.replicas, state.isr, state.leader) == ((3, 4), (3, 4), 3)
    assert state.directories == (directory_id(3), directory_id(4))
    assert listed(driver) == {}


def test_an_order_alone_is_taken_over_at_once(driver: CoreDriver) -> None:
    assert reassign(driver, [2, 1]) == (0, None)
    state = driver.partition()
    assert (state.replicas, state.leader, state.is_reassigning) == ((2, 1), 1, False)
    assert reassign(driver, [2, 1]) == (0, None)
    assert not driver.appended


def test_fewer_replicas_at_once_when_those_that_stay_are_in_sync(driver: CoreDriver) -> None:
    assert reassign(driver, [2]) == (0, None)
    state = driver.partition()
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((2,), (2,), 2, 1)


def test_fewer_replicas_wait_for_those_that_stay(driver: CoreDriver) -> None:
    driver.alter_partition([1])
    assert reassign(driver, [2]) == (0, None)
    assert driver.partition().removing_replicas == (1,)
    assert driver.partition().leader == 1
    driver.alter_partition([1, 2])
    assert (driver.partition().replicas, driver.partition().leader) == ((2,), 2)


def test_cancelling_goes_back(driver: CoreDriver) -> None:
    reassign(driver, [3, 4])
    driver.alter_partition([1, 2, 3])
    assert reassign(driver, None) == (0, None)
    state = driver.partition()
    assert (state.replicas, state.isr, state.leader) == ((1, 2), (1, 2), 1)
    assert not state.is_reassigning
    error, message = reassign(driver, None)
    assert error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert message


def test_cancelling_when_only_added_replicas_are_in_sync() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2, 3):
        driver.join(broker_id)
    for name, unclean in (("careful", "false"), ("careless", "true")):
        driver.topic(name, [1], unclean_leader_election_enable=unclean)
        reassign(driver, [2, 3], name)
        driver.alter_partition([1, 2], name)
    driver.beat(1, want_fence=True)
    driver.beat(1)
    assert driver.partition("careful").isr == (2,)
    before = driver.image
    assert reassign(driver, None, "careful")[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert driver.image is before
    assert reassign(driver, None, "careless") == (0, None)
    state = driver.partition("careless")
    assert (state.replicas, state.isr, state.leader) == ((1,), (1,), 1)
    assert state.leader_recovery_state == 1


def left_to_added(driver: CoreDriver, name: str) -> None:
    """A reassignment from 1, 2 to 3, 4 after which only 3 is in sync and 2 is eligible: 1 left
    while enough others were in sync, then 2. Both are fenced."""
    reassign(driver, [3, 4], name)
    driver.alter_partition([1, 2, 3], name)
    for broker_id in (1, 2):
        driver.beat(broker_id, want_fence=True)
    state = driver.partition(name)
    assert (state.isr, state.elr, state.leader) == ((3,), (2,), 3)


@pytest.mark.parametrize("unclean", ["true", "false"])
def test_cancelling_elects_an_eligible_replica(driver: CoreDriver, unclean: str) -> None:
    name = "eligible"
    driver.topic(name, [1, 2], min_insync_replicas="2", unclean_leader_election_enable=unclean)
    left_to_added(driver, name)
    for broker_id in (1, 2):
        driver.beat(broker_id)
    assert reassign(driver, None, name) == (0, None)
    state = driver.partition(name)
    assert (state.replicas, state.isr, state.elr, state.leader) == ((1, 2), (2,), (), 2)
    assert state.leader_recovery_state == 0
    assert not state.is_reassigning


def test_cancelling_while_the_eligible_replica_is_away(driver: CoreDriver) -> None:
    for name, unclean in (("careful", "false"), ("careless", "true")):
        driver.topic(name, [1, 2], min_insync_replicas="2", unclean_leader_election_enable=unclean)
        left_to_added(driver, name)
        driver.beat(1)
        if unclean == "false":
            before = driver.image
            assert reassign(driver, None, name)[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert driver.image is before
            driver.beat(2)
            continue
        assert reassign(driver, None, name) == (0, None)
        state = driver.partition(name)
        assert (state.replicas, state.isr, state.elr, state.leader) == ((1, 2), (1,), (), 1)
        assert state.leader_recovery_state == 1


def test_cancelling_waits_for_an_eligible_replica_when_no_replica_is_live(
    driver: CoreDriver,
) -> None:
    name = "away"
    driver.topic(name, [1, 2], min_insync_replicas="2", unclean_leader_election_enable="true")
    left_to_added(driver, name)
    assert reassign(driver, None, name) == (0, None)
    state = driver.partition(name)
    assert (state.replicas, state.isr, state.elr, state.leader) == ((1, 2), (), (2,), -1)
    driver.beat(2)
    assert (driver.partition(name).isr, driver.partition(name).leader) == ((2,), 2)
    assert driver.partition(name).leader_recovery_state == 0


def test_cancelling_while_no_old_replica_is_live_waits_for_the_first_of_them() -> None:
    """It leads as recovering: records that were committed without it are given up."""
    driver = CoreDriver()
    for broker_id in (1, 2, 3, 4):
        driver.join(broker_id)
    driver.topic("t", [1, 2], unclean_leader_election_enable="true")
    reassign(driver, [3, 4])
    driver.alter_partition([1, 2, 3])
    for broker_id in (1, 2):
        driver.beat(broker_id, want_fence=True)
    assert (driver.partition().isr, driver.partition().elr) == ((3,), ())
    assert reassign(driver, None) == (0, None)
    state = driver.partition()
    assert (state.replicas, state.isr, state.leader) == ((1, 2), (1,), -1)
    assert (state.leader_recovery_state, state.is_reassigning) == (1, False)


def test_cancelling_does_not_drop_the_last_eligible_replica(driver: CoreDriver) -> None:
    """Nothing is in sync, and all that is eligible was added: it may have the only copy."""
    driver.topic("careful", [1], min_insync_replicas="2", unclean_leader_election_enable="false")
    reassign(driver, [3, 4], "careful")
    driver.alter_partition([1, 3], "careful")
    for broker_id in (1, 3):
        driver.beat(broker_id, want_fence=True)
    driver.now_ms += 60_000
    driver.run_tasks()
    driver.join(1, incarnation_id=UUID(int=1))  # unclean: what it had may be lost
    state = driver.partition("careful")
    assert (state.isr, state.elr, state.leader) == ((), (3,), -1)
    before = driver.image
    assert reassign(driver, None, "careful")[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert driver.image is before
    driver.beat(3)
    assert (driver.partition("careful").isr, driver.partition("careful").leader) == ((3,), 3)


def test_another_target_replaces_a_running_reassignment(driver: CoreDriver) -> None:
    reassign(driver, [3, 2])
    assert reassign(driver, [3, 4]) == (0, None)
    state = driver.partition()
    assert (state.adding_replicas, state.removing_replicas) == ((3, 4), (1, 2))
    assert reassign(driver, None) == (0, None)
    assert driver.partition().replicas == (2, 1) or driver.partition().replicas == (1, 2)
    reassign(driver, [3, 4])
    assert reassign(driver, [1, 2]) == (0, None), "back by naming the old ones"
    assert (driver.partition().replicas, driver.partition().is_reassigning) == ((1, 2), False)


@pytest.mark.parametrize(
    ("replicas", "name", "index", "error"),
    [
        ([3], "absent", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([3], "t", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, "absent", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, "t", 0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ([], "t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([3, 3], "t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([3, 9], "t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([-1], "t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_reassignments_that_are_refused(
    driver: CoreDriver, replicas: list[int] | None, name: str, index: int, error: ErrorCode
) -> None:
    before = driver.image
    code, message = reassign(driver, replicas, name, index)
    assert ErrorCode.of(code) is error
    assert message
    assert driver.image is before


def test_the_replication_factor_is_kept_when_asked(driver: CoreDriver) -> None:
    options = {"allow_replication_factor_change": False}
    for replicas in ([1], [1, 2, 3]):
        code, _message = reassign(driver, replicas, **options)
        assert code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(driver, [1, 3], **options) == (0, None)
    assert reassign(driver, [3, 4], **options) == (0, None), "the running one's target counts"
    assert reassign(driver, [3, 4, 1])[0] == 0, "and by default it may change"


def test_directories_move_with_the_replicas_from_the_level_that_has_them() -> None:
    for release, expected in (("3.7-IV1", {1: UUID(int=0), 2: UUID(int=0)}), ("3.7-IV2", None)):
        driver = CoreDriver(release=release)
        for broker_id in (1, 2):
            driver.join(broker_id)
        driver.topic("t", [1])
        assert reassign(driver, [2, 1]) == (0, None)
        state = driver.partition()
        for broker_id in (1, 2):
            wanted = directory_id(broker_id) if expected is None else expected[broker_id]
            assert state.directory(broker_id) == wanted


def test_a_fenced_broker_may_be_a_target_and_is_waited_for(driver: CoreDriver) -> None:
    driver.beat(3, want_fence=True)
    assert reassign(driver, [3, 1]) == (0, None)
    assert driver.partition().is_reassigning
    driver.beat(3)
    driver.alter_partition([1, 2, 3])
    assert (driver.partition().replicas, driver.partition().leader) == ((3, 1), 1)


def test_a_partition_named_twice_and_too_many_partitions(driver: CoreDriver) -> None:
    partitions = [ReassignablePartition(partition_index=0, replicas=each) for each in ([3], [4])]
    topic = ReassignableTopic(name="t", partitions=partitions)
    response = driver.ask(AlterPartitionReassignmentsRequest(topics=[topic]))
    assert [each.error_code for each in response.responses[0].partitions] == [0, 42]
    topic.partitions = partitions * 5_001
    response = driver.ask(AlterPartitionReassignmentsRequest(topics=[topic]))
    assert response.error_code == ErrorCode.POLICY_VIOLATION
    assert not driver.appended
