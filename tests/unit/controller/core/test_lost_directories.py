"""Replicas in log directories that their broker has no more: what the controller makes of them,
whatever the broker says of its stop.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from tests.unit.metadata.builders import CoreDriver, directory_id, registration

FIRST, SECOND = directory_id(2, 0), directory_id(2, 1)
UNCLEAN = 1
NO_ELR_RELEASE = "3.9"


def assign(driver: CoreDriver, directory: UUID, broker_id: int = 2) -> ErrorCode:
    """Broker 2 says where its replica lies."""
    topic_id = driver.image.topics.topics_by_name["t"].topic_id
    topics = [TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=0)])]
    response = driver.ask(
        AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=driver.broker_epoch(broker_id),
            directories=[DirectoryData(id=directory, topics=topics)],
        )
    )
    return ErrorCode.of(response.directories[0].topics[0].partitions[0].error_code)


def cluster(
    replicas: list[int], *, release: str | None = None, directory: UUID = FIRST, **configs: str
) -> CoreDriver:
    """Broker 1 with one directory, broker 2 with two; its replica of the topic lies in one."""
    driver = CoreDriver(release=release)
    driver.join(1)
    driver.join(2, log_dirs=[FIRST, SECOND])
    driver.topic("t", replicas, **configs)
    assert driver.partition().directory(2) == UNASSIGNED_DIRECTORY
    if directory != UNASSIGNED_DIRECTORY:
        assert assign(driver, directory) is ErrorCode.NONE
    return driver


def restart(driver: CoreDriver, *directories: UUID, unfence: bool = True, **changes: Any) -> None:
    """Broker 2 stops in order and starts again with these directories, and says it was clean."""
    epoch = driver.broker_epoch(2)
    driver.beat(2, want_fence=True)
    driver.now_ms += 9_000
    driver.beat(1)
    fresh = registration(
        2,
        incarnation_id=UUID(int=0x7700 + driver.log_end_offset),
        log_dirs=list(directories),
        **{"previous_broker_epoch": epoch, **changes},
    )
    assert driver.ask(fresh).error_code == ErrorCode.NONE
    if unfence:
        driver.beat(2)


def elect_unclean(driver: CoreDriver) -> ErrorCode:
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    request = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=wanted)
    response = driver.ask(request)
    return ErrorCode.of(response.replica_election_results[0].partition_result[0].error_code)


def stop_1(driver: CoreDriver) -> None:
    driver.beat(1, want_fence=True)


# -- registration ----------------------------------------------------------------------------------


def test_a_clean_start_with_all_directories_keeps_eligibility() -> None:
    driver = cluster([1, 2], min_insync_replicas="2")
    restart(driver, FIRST, SECOND)
    assert driver.partition().elr == (2,)
    stop_1(driver)
    assert driver.partition().leader == 2


def test_a_directory_taken_out_ends_the_eligibility_of_its_replicas() -> None:
    driver = cluster([1, 2], min_insync_replicas="2")
    restart(driver, SECOND)
    assert (driver.partition().isr, driver.partition().elr) == ((1,), ())
    assert assign(driver, SECOND) is ErrorCode.NONE
    stop_1(driver)
    partition = driver.partition()
    assert (partition.leader, partition.elr, partition.directory(2)) == (-1, (1,), SECOND)
    driver.beat(1)
    assert driver.partition().leader == 1


def test_a_start_without_a_registered_directory_is_not_clean() -> None:
    """A replica whose directory was never reported to the controller may have been in that one."""
    driver = cluster([1, 2], min_insync_replicas="2", directory=UNASSIGNED_DIRECTORY)
    restart(driver, SECOND)
    assert driver.partition().elr == ()


def test_a_directory_that_failed_before_it_was_taken_out() -> None:
    """The registration no longer names it when the broker stops; the replica's place does."""
    driver = cluster([1, 2], min_insync_replicas="2")
    driver.beat(2, offline_log_dirs=[FIRST])
    assert driver.image.cluster.brokers[2].directories == (SECOND,)
    assert (driver.partition().isr, driver.partition().elr) == ((1,), (2,))
    restart(driver, SECOND)
    assert driver.partition().elr == ()
    assign(driver, SECOND)
    stop_1(driver)
    assert driver.partition().leader == -1


def test_a_new_directory_costs_nothing() -> None:
    driver = cluster([1, 2], min_insync_replicas="2")
    restart(driver, FIRST, SECOND, directory_id(2, 2))
    assert driver.partition().elr == (2,)


def test_a_broker_that_registered_no_directories_is_believed() -> None:
    """Nothing was known of directories before metadata.version 3.7."""
    driver = CoreDriver(release="3.6")
    for broker_id in (1, 2):
        driver.join(broker_id)
    driver.topic("t", [1, 2])
    stop_1(driver)
    driver.beat(2, want_fence=True)
    assert driver.partition().isr == (2,)
    restart(driver, SECOND)
    assert (driver.partition().leader, driver.partition().isr) == (2, (2,))


def test_the_same_incarnation_that_names_a_directory_no_more() -> None:
    driver = cluster([2, 1], min_insync_replicas="2")
    assert driver.partition().leader == 2
    driver.ask(registration(2, log_dirs=[SECOND]))
    partition = driver.partition()
    assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
    assert driver.image.cluster.brokers[2].directories == (SECOND,)
    assert not driver.image.cluster.brokers[2].fenced


def test_the_same_incarnation_keeps_what_lies_in_the_directories_that_it_still_names() -> None:
    driver = cluster([2, 1], directory=SECOND, min_insync_replicas="2")
    before = driver.partition()
    driver.ask(registration(2, log_dirs=[SECOND]))
    assert driver.partition() == before
    assert (before.leader, before.isr) == (2, (2, 1))


def test_the_same_incarnation_that_has_many_replicas_in_such_a_directory() -> None:
    driver = CoreDriver()
    driver.join(1)
    driver.join(2, log_dirs=[FIRST])
    driver.topic("t", *([[2, 1]] * 7), min_insync_replicas="2")
    driver.ask(registration(2, log_dirs=[SECOND]))
    for index in range(7):
        partition = driver.partition(index=index)
        assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())


# -- the only replica ------------------------------------------------------------------------------


@pytest.mark.parametrize("release", [None, NO_ELR_RELEASE])
def test_the_only_replica_comes_back_with_its_directory(release: str | None) -> None:
    driver = cluster([2], release=release)
    restart(driver, SECOND)
    assert driver.partition().leader == -1
    assert elect_unclean(driver) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    restart(driver, FIRST, SECOND)
    assert driver.partition().leader == 2


@pytest.mark.parametrize("release", [None, NO_ELR_RELEASE])
def test_the_only_replica_that_moves_out_of_a_lost_directory_leads_only_on_request(
    release: str | None,
) -> None:
    driver = cluster([2], release=release)
    restart(driver, SECOND)
    assert assign(driver, SECOND) is ErrorCode.NONE
    partition = driver.partition()
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), ())
    assert partition.last_known_elr == ()
    restart(driver, SECOND)
    driver.run_tasks()
    assert driver.partition().leader == -1
    assert elect_unclean(driver) is ErrorCode.NONE
    partition = driver.partition()
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (2, (2,), 1)


@pytest.mark.parametrize("release", [None, NO_ELR_RELEASE])
def test_the_last_in_sync_replica_that_moves_out_of_a_lost_directory(release: str | None) -> None:
    driver = cluster([1, 2], release=release)
    stop_1(driver)
    assert driver.partition().isr == (2,)
    restart(driver, SECOND)
    assert driver.partition().leader == -1
    assert assign(driver, SECOND) is ErrorCode.NONE
    assert (driver.partition().leader, driver.partition().isr) == (-1, ())
    driver.beat(1)
    assert driver.partition().leader == -1, "broker 2 may have committed alone"


# -- assignments -----------------------------------------------------------------------------------


def test_a_replica_that_moves_between_registered_directories_stays_in_sync() -> None:
    driver = cluster([2, 1])
    assert assign(driver, SECOND) is ErrorCode.NONE
    partition = driver.partition()
    assert (partition.leader, set(partition.isr)) == (2, {1, 2})


def test_a_directory_that_is_reported_again_changes_nothing() -> None:
    driver = cluster([1, 2])
    before = driver.partition()
    assert assign(driver, FIRST) is ErrorCode.NONE
    assert not driver.appended
    assert driver.partition() == before


def test_a_replica_in_a_directory_that_is_not_registered_stays_eligible() -> None:
    """The directory may be back as it was; then the replica leads again."""
    driver = cluster([2, 1], min_insync_replicas="2")
    other = directory_id(2, 2)
    assert assign(driver, other) is ErrorCode.NONE
    partition = driver.partition()
    assert (partition.leader, partition.isr, partition.elr) == (1, (1,), (2,))
    stop_1(driver)
    assert driver.partition().leader == -1
    driver.ask(registration(2, log_dirs=[FIRST, SECOND, other]))
    driver.run_tasks()
    assert driver.partition().leader == 2


def test_a_fenced_broker_that_reports_a_directory_does_not_lead() -> None:
    driver = cluster([2])
    driver.beat(2, want_fence=True)
    assert assign(driver, SECOND) is ErrorCode.NONE
    assert (driver.partition().leader, driver.partition().directory(2)) == (-1, SECOND)
    driver.beat(2)
    assert driver.partition().leader == 2


@pytest.mark.parametrize(
    ("release", "error"), [("3.7-IV1", ErrorCode.UNSUPPORTED_VERSION), ("3.7-IV2", ErrorCode.NONE)]
)
def test_directories_are_noted_from_the_level_that_has_a_place_for_them(
    release: str, error: ErrorCode
) -> None:
    driver = CoreDriver(release=release)
    driver.join(2, log_dirs=[FIRST, SECOND])
    driver.topic("t", [2])
    topic_id = driver.image.topics.topics_by_name["t"].topic_id
    topics = [TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=0)])]
    for broker_epoch in (driver.broker_epoch(2), driver.broker_epoch(2) - 1):
        request = AssignReplicasToDirsRequest(
            broker_id=2,
            broker_epoch=broker_epoch,
            directories=[DirectoryData(id=SECOND, topics=topics)],
        )
        assert driver.ask(request).error_code == error
        error = ErrorCode.STALE_BROKER_EPOCH
    is_noted = driver.partition().directory(2) == SECOND
    assert is_noted is (release == "3.7-IV2")


def test_a_replica_reported_elsewhere_after_its_directory_failed_is_a_loss() -> None:
    """The broker lives on, and says that the log lies in another directory now."""
    driver = cluster([1, 2], min_insync_replicas="2")
    driver.beat(2, offline_log_dirs=[FIRST])
    assert driver.partition().elr == (2,), "it may be back as it was"
    assert assign(driver, SECOND) is ErrorCode.NONE
    assert (driver.partition().isr, driver.partition().elr) == ((1,), ())


# -- directories that come back --------------------------------------------------------------------


def test_a_replica_that_is_reported_in_a_directory_again_leads_at_once() -> None:
    driver = cluster([2])
    assign(driver, LOST_DIRECTORY)
    assert driver.partition().leader == -1
    assert assign(driver, FIRST) is ErrorCode.NONE
    assert driver.partition().leader == 2


def test_a_directory_that_is_registered_again_brings_back_its_leaders() -> None:
    driver = cluster([2])
    driver.beat(2, offline_log_dirs=[FIRST])
    assert driver.partition().leader == -1
    driver.ask(registration(2, log_dirs=[FIRST, SECOND]))
    driver.run_tasks()
    assert driver.partition().leader == 2
