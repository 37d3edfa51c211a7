"""Brokers at the controller: registration, heartbeats, fencing, shutdown, and what it does to
leaders.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.metadata.image import LOST_DIRECTORY, PartitionRegistration
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.messages.p73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from moldau.protocol.metadata_records import ProducerIdsRecord
from tests.unit.metadata.builders import CoreDriver, directory_id, registration

SESSION_MS = 9_000


def make_topic(driver: CoreDriver, *assignments: list[int]) -> None:
    wanted = CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(assignments)
        ],
    )
    response = driver.ask(CreateTopicsRequest(topics=[wanted]))
    assert response.topics[0].error_code == 0, response


def partition(driver: CoreDriver, index: int = 0) -> PartitionRegistration:
    return driver.image.topics.topics_by_name["t"].partitions[index]


def test_a_broker_registers_fenced_and_is_let_in_when_it_has_caught_up() -> None:
    driver = CoreDriver()
    offset_before = driver.log_end_offset
    response = driver.ask(registration(1, rack="r1"))
    assert response.error_code == 0
    assert response.broker_epoch == offset_before
    broker = driver.image.cluster.brokers[1]
    assert (broker.fenced, broker.rack, broker.broker_epoch) == (True, "r1", offset_before)
    behind = driver.beat(1, current_metadata_offset=offset_before - 1)
    assert (behind.is_fenced, behind.is_caught_up) == (True, False)
    caught_up = driver.beat(1)
    assert (caught_up.is_fenced, caught_up.is_caught_up) == (False, True)
    assert not driver.image.cluster.brokers[1].fenced
    assert driver.beat(1).is_fenced is False
    assert not driver.appended, "an ordinary heartbeat writes nothing"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"broker_id": -1}, ErrorCode.INVALID_REGISTRATION),
        ({"incarnation_id": UUID(int=0)}, ErrorCode.INVALID_REGISTRATION),
        ({"listeners": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [UUID(int=1)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [directory_id(2), directory_id(2)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [directory_id(1)]}, ErrorCode.INVALID_REGISTRATION),
        ({"features": []}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_registrations_that_are_refused(changes: dict[str, Any], error: ErrorCode) -> None:
    driver = CoreDriver()
    driver.join(1)
    response = driver.ask(registration(2, **changes))
    assert (response.error_code, response.broker_epoch) == (error, -1)
    assert not driver.appended


def test_a_second_process_with_a_live_brokers_id_is_refused_until_its_session_ends() -> None:
    driver = CoreDriver()
    first_epoch = driver.join(1)
    other = registration(1, incarnation_id=UUID(int=0x77))
    assert driver.ask(other).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    driver.now_ms += SESSION_MS - 1
    assert driver.ask(other).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    driver.now_ms += 1
    response = driver.ask(other)
    assert response.error_code == 0
    assert response.broker_epoch > first_epoch
    stale = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=first_epoch, current_metadata_offset=10**6
    )
    assert driver.ask(stale).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_registration_is_heard_of_as_a_heartbeat_is() -> None:
    """Else two processes with one broker id could take the registration from each other."""
    driver = CoreDriver()
    assert driver.ask(registration(1)).error_code == 0
    other = registration(1, incarnation_id=UUID(int=0x77))
    assert driver.ask(other).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    driver.now_ms += SESSION_MS
    assert driver.ask(other).error_code == 0


def test_the_broker_in_the_controllers_own_process_may_register_at_once() -> None:
    driver = CoreDriver(node_id=1)
    driver.join(1)
    response = driver.ask(registration(1, incarnation_id=UUID(int=0x77)))
    assert response.error_code == 0
    assert driver.image.cluster.brokers[1].fenced


def test_the_same_incarnation_keeps_its_epoch() -> None:
    driver = CoreDriver()
    broker_epoch = driver.join(1)
    response = driver.ask(registration(1, rack="moved"))
    assert response.broker_epoch == broker_epoch
    broker = driver.image.cluster.brokers[1]
    assert (broker.rack, broker.fenced) == ("moved", False)


@pytest.mark.parametrize(
    ("release", "version"), [("3.3-IV3", 1), ("3.4-IV0", 2), ("3.6-IV2", 2), ("3.7-IV2", 3)]
)
def test_what_a_registration_says_counts_where_records_can_hold_it(
    release: str, version: int
) -> None:
    driver = CoreDriver(release=release)
    request = registration(1, is_migrating_zk_broker=True)
    assert driver.ask(request).error_code == 0
    broker = driver.image.cluster.brokers[1]
    assert broker.is_migrating_zk_broker is (version >= 2)
    assert tuple(broker.directories) == (tuple(request.log_dirs) if version >= 3 else ())


def test_an_unknown_broker_and_a_stale_epoch() -> None:
    driver = CoreDriver()
    request = BrokerHeartbeatRequest(broker_id=5, broker_epoch=1)
    assert driver.ask(request).error_code == ErrorCode.STALE_BROKER_EPOCH
    driver.join(5)
    assert driver.ask(request).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_silent_broker_is_fenced_and_its_partitions_move() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    make_topic(driver, [1, 2], [2, 1])
    driver.now_ms += SESSION_MS - 1
    driver.beat(2)
    assert driver.core.fence_expired(driver.now_ms) == []
    heartbeats = driver.core.cluster_control.heartbeats
    assert heartbeats.next_expiry_ms(driver.image) == SESSION_MS
    driver.now_ms += 1
    driver.append(driver.core.fence_expired(driver.now_ms))
    assert driver.image.cluster.brokers[1].fenced
    for index in (0, 1):
        assert partition(driver, index).leader == 2
        assert partition(driver, index).isr == (2,)
    assert partition(driver, 0).leader_epoch == 1
    assert partition(driver, 1).leader_epoch == 0
    assert driver.core.fence_expired(driver.now_ms) == []
    # It comes back: it is let in again, and catches up before it is in any ISR.
    assert driver.beat(1).is_fenced is False
    assert partition(driver, 0).isr == (2,)


def test_a_lone_replica_that_stops_stays_eligible_and_leads_again() -> None:
    driver = CoreDriver()
    driver.join(1)
    make_topic(driver, [1])
    first = driver.beat(1, want_shut_down=True)
    assert (first.should_shut_down, first.is_fenced) == (False, False)
    state = partition(driver)
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (1,), (1,))
    assert driver.image.cluster.brokers[1].in_controlled_shutdown
    second = driver.beat(1, want_shut_down=True)
    assert (second.should_shut_down, second.is_fenced) == (True, True)
    assert driver.image.cluster.brokers[1].fenced
    # A clean restart names the epoch it stopped with.
    epoch = driver.image.cluster.brokers[1].broker_epoch
    driver.join(1, incarnation_id=UUID(int=0x77), previous_broker_epoch=epoch)
    state = partition(driver)
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (1, (1,), (), ())
    assert (state.leader_epoch, state.leader_recovery_state) == (2, 0)


def test_after_an_unclean_stop_the_last_known_leader_leads_as_recovering() -> None:
    driver = CoreDriver(node_id=1)
    driver.join(1)
    make_topic(driver, [1])
    response = driver.ask(registration(1, incarnation_id=UUID(int=0x77)))
    state = partition(driver)
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (), (1,))
    assert response.error_code == 0
    driver.beat(1)
    state = partition(driver)
    assert (state.leader, state.isr, state.leader_recovery_state) == (1, (1,), 1)


def test_an_uncleanly_stopped_replica_is_no_leader_while_another_is_in_sync() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    make_topic(driver, [1, 2])
    driver.now_ms += SESSION_MS
    driver.beat(2)
    driver.ask(registration(1, incarnation_id=UUID(int=0x77)))
    state = partition(driver)
    assert (state.leader, state.isr, state.elr) == (2, (2,), ())
    driver.beat(1)
    assert partition(driver).leader == 2


def test_without_eligible_leaders_the_last_member_stays_in_the_isr() -> None:
    driver = CoreDriver()
    driver.join(1)
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(
                feature="eligible.leader.replicas.version", max_version_level=0, upgrade_type=2
            )
        ]
    )
    assert driver.ask(request).error_code == 0
    make_topic(driver, [1])
    driver.beat(1, want_fence=True)
    state = partition(driver)
    assert (state.leader, state.isr, state.elr) == (-1, (1,), ())
    driver.beat(1)
    assert partition(driver).leader == 1


def test_controlled_shutdown_waits_until_the_others_know() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    make_topic(driver, [1, 2])
    known = driver.log_end_offset - 1
    driver.beat(2, current_metadata_offset=known)
    assert driver.beat(1, want_shut_down=True).should_shut_down is False
    assert partition(driver).leader == 2
    assert driver.beat(1, want_shut_down=True).should_shut_down is False
    driver.beat(2, current_metadata_offset=driver.log_end_offset - 1)
    assert driver.beat(1, want_shut_down=True).should_shut_down is True
    assert driver.image.cluster.brokers[1].fenced


def test_a_broker_that_leads_nothing_may_stop_at_once() -> None:
    driver = CoreDriver()
    driver.join(1)
    response = driver.beat(1, want_shut_down=True)
    assert (response.should_shut_down, response.is_fenced) == (True, True)
    assert driver.beat(1, want_shut_down=True).should_shut_down is True


@pytest.mark.parametrize("heartbeats", [1, 2], ids=["answered", "answer lost"])
def test_the_next_start_after_leave_to_stop_registers_at_once(heartbeats: int) -> None:
    driver = CoreDriver()
    driver.join(1)
    for _ in range(heartbeats):
        assert driver.beat(1, want_shut_down=True).should_shut_down is True
    other = registration(1, incarnation_id=UUID(int=0x77))
    assert driver.ask(other).error_code == 0
    # The next incarnation has its own session.
    third = registration(1, incarnation_id=UUID(int=0x78))
    assert driver.ask(third).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_failed_directory_takes_its_replicas_out() -> None:
    driver = CoreDriver()
    directories = [directory_id(1, 0), directory_id(1, 1)]
    epoch = driver.join(1, log_dirs=directories)
    driver.join(2)
    make_topic(driver, [1, 2], [1, 2])
    topic_id = driver.image.topics.topics_by_name["t"].topic_id
    assert partition(driver).directory(1) == UUID(int=1), "the broker has to choose"
    assign = AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=epoch,
        directories=[
            DirectoryData(
                id=directory,
                topics=[
                    TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=index)])
                ],
            )
            for index, directory in enumerate(directories)
        ],
    )
    response = driver.ask(assign)
    assert response.error_code == 0
    assert [partition(driver, index).directory(1) for index in (0, 1)] == directories
    driver.beat(1, offline_log_dirs=[directories[1]])
    assert partition(driver, 0).leader == 1
    assert (partition(driver, 1).leader, partition(driver, 1).isr) == (2, (2,))
    assert driver.image.cluster.brokers[1].directories == (directories[0],)
    driver.beat(1, offline_log_dirs=[directories[1]])
    assert not driver.appended


@pytest.mark.parametrize(
    ("release", "directories", "cordoned"),
    [
        ("3.6", (), None),
        ("3.7", (directory_id(1, 0),), None),
        ("4.0", (directory_id(1, 0),), None),
        ("4.3", (directory_id(1, 0),), (directory_id(1, 0),)),
    ],
)
def test_what_a_heartbeat_says_of_directories_counts_where_records_can_hold_it(
    release: str, directories: tuple[UUID, ...], cordoned: tuple[UUID, ...] | None
) -> None:
    driver = CoreDriver(release=release)
    driver.join(1, log_dirs=[directory_id(1, 0), directory_id(1, 1)])
    driver.beat(1, offline_log_dirs=[directory_id(1, 1)])
    driver.beat(1, cordoned_log_dirs=[directory_id(1, 0)])
    broker = driver.image.cluster.brokers[1]
    assert broker.directories == directories
    assert broker.cordoned_directories == cordoned


def test_a_broker_whose_last_directory_fails_keeps_its_registration() -> None:
    driver = CoreDriver()
    driver.join(0)
    driver.beat(0, offline_log_dirs=[directory_id(0)])
    assert not driver.appended
    assert driver.image.cluster.brokers[0].directories == (directory_id(0),)


def test_directory_assignments_that_are_refused() -> None:
    driver = CoreDriver()
    epoch = driver.join(1)
    driver.join(2)
    make_topic(driver, [1])
    topic_id = driver.image.topics.topics_by_name["t"].topic_id

    def assign(broker_id: int, broker_epoch: int, directory: UUID, topic: UUID, index: int) -> Any:
        return driver.ask(
            AssignReplicasToDirsRequest(
                broker_id=broker_id,
                broker_epoch=broker_epoch,
                directories=[
                    DirectoryData(
                        id=directory,
                        topics=[
                            TopicData(
                                topic_id=topic, partitions=[PartitionData(partition_index=index)]
                            )
                        ],
                    )
                ],
            )
        )

    own = directory_id(1)
    assert assign(1, epoch + 1, own, topic_id, 0).error_code == ErrorCode.STALE_BROKER_EPOCH
    for broker_id, directory, topic, index, error in [
        (1, own, UUID(int=5), 0, ErrorCode.UNKNOWN_TOPIC_ID),
        (1, own, topic_id, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, directory_id(2), topic_id, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]:
        broker = driver.core.state.broker(broker_id)
        assert broker is not None
        response = assign(broker_id, broker.broker_epoch, directory, topic, index)
        answer = response.directories[0].topics[0].partitions[0]
        assert (answer.partition_index, answer.error_code) == (index, error)
    assert not driver.appended


def test_a_fenced_broker_does_not_take_over_from_a_lost_directory() -> None:
    driver = CoreDriver()
    epoch = driver.join(1)
    driver.join(2)
    driver.topic("t", [1, 2], min_insync_replicas="2")
    driver.beat(2, want_fence=True)
    assert (partition(driver).isr, partition(driver).elr) == ((1,), (2,))
    topic_id = driver.image.topics.topics_by_name["t"].topic_id
    data = TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=0)])
    directories = [DirectoryData(id=LOST_DIRECTORY, topics=[data])]
    driver.ask(
        AssignReplicasToDirsRequest(broker_id=1, broker_epoch=epoch, directories=directories)
    )
    assert partition(driver).leader == -1
    driver.beat(2)
    assert partition(driver).leader == 2


def test_a_replica_assigned_to_a_directory_its_broker_has_not_is_out_of_the_isr() -> None:
    driver = CoreDriver()
    epoch = driver.join(1)
    driver.join(2)
    make_topic(driver, [1, 2])
    topic_id = driver.image.topics.topics_by_name["t"].topic_id
    data = TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=0)])
    directories = [DirectoryData(id=LOST_DIRECTORY, topics=[data])]
    response = driver.ask(
        AssignReplicasToDirsRequest(broker_id=1, broker_epoch=epoch, directories=directories)
    )
    assert response.directories[0].topics[0].partitions[0].error_code == 0
    assert (partition(driver).leader, partition(driver).isr) == (2, (2,))
    assert partition(driver).directory(1) == LOST_DIRECTORY
    # The other one goes too: no broker takes over from a lost directory, and it stays so.
    driver.beat(2, want_fence=True)
    assert partition(driver).leader == -1
    driver.beat(1)
    assert partition(driver).leader == -1
    driver.beat(2)
    assert partition(driver).leader == 2


def test_cordoned_directories_get_no_new_replicas() -> None:
    driver = CoreDriver()
    driver.join(1)
    driver.join(2)
    driver.beat(1, cordoned_log_dirs=[directory_id(1)])
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="t", num_partitions=4, replication_factor=1)]
    )
    assert driver.ask(request).topics[0].error_code == 0
    assert {partition(driver, index).leader for index in range(4)} == {2}


def test_a_broker_is_unregistered() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    make_topic(driver, [1, 2])
    assert driver.ask(UnregisterBrokerRequest(broker_id=1)).error_code == 0
    assert list(driver.image.cluster.brokers) == [2]
    assert partition(driver).leader == 2
    assert partition(driver).replicas == (1, 2)
    response = driver.ask(UnregisterBrokerRequest(broker_id=1))
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(("left", "error"), [(1_000, 0), (999, ErrorCode.UNKNOWN_SERVER_ERROR)])
def test_producer_ids_end_before_they_overflow(left: int, error: int) -> None:
    driver = CoreDriver()
    epoch = driver.join(1)
    used = 2**63 - 1 - left
    driver.append([(ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=used), 0)])
    response = driver.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
    assert response.error_code == error
    assert driver.image.producer_ids.next_producer_id == (used if error else 2**63 - 1)


def test_producer_ids_come_in_blocks() -> None:
    driver = CoreDriver()
    epoch = driver.join(1)
    blocks = [
        driver.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)) for _ in range(3)
    ]
    assert [block.producer_id_start for block in blocks] == [0, 1000, 2000]
    assert {block.producer_id_len for block in blocks} == {1000}
    stale = driver.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch - 1))
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
    unknown = driver.ask(AllocateProducerIdsRequest(broker_id=9, broker_epoch=epoch))
    assert unknown.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert driver.image.producer_ids.next_producer_id == 3000
