"""Stale commands are refused by epoch, on every path: one test per path.

Epochs: the quorum's (who is the controller), a broker's (which incarnation), a partition's leader
epoch and partition epoch.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p33_alter_configs import AlterConfigsRequest
from moldau.protocol.messages.p37_create_partitions import CreatePartitionsRequest
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.p44_incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from moldau.protocol.messages.p46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from moldau.protocol.messages.p56_alter_partition import AlterPartitionRequest, TopicData
from moldau.protocol.messages.p57_update_features import UpdateFeaturesRequest
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.p67_allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.messages.p70_controller_registration import ControllerRegistrationRequest
from moldau.protocol.messages.p73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from moldau.protocol.schema import Message
from tests.unit.metadata.builders import CoreDriver, registration

from .test_controller import Bench, make_bench, topics

REQUESTS: list[Message] = [
    topics("a"),
    CreatePartitionsRequest(topics=[]),
    IncrementalAlterConfigsRequest(resources=[]),
    AlterConfigsRequest(resources=[]),
    UpdateFeaturesRequest(feature_updates=[]),
    ElectLeadersRequest(topic_partitions=None),
    AlterPartitionReassignmentsRequest(topics=[]),
    ListPartitionReassignmentsRequest(topics=None),
    AlterPartitionRequest(topics=[]),
    registration(1),
    BrokerHeartbeatRequest(),
    UnregisterBrokerRequest(),
    AllocateProducerIdsRequest(),
    ControllerRegistrationRequest(),
    AssignReplicasToDirsRequest(directories=[]),
]


def name_of(request: Message) -> str:
    return type(request).__name__


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    driver.topic("t", [1, 2])
    return driver


# -- the quorum's epoch --------------------------------------------------------------------------


@pytest.mark.parametrize("request_", REQUESTS, ids=name_of)
async def test_controller_epoch_a_controller_that_never_led_refuses(request_: Message) -> None:
    bench = make_bench()
    bench.submit(request_)
    assert bench.answers == [ErrorCode.NOT_CONTROLLER]
    assert not bench.log.appended


@pytest.mark.parametrize("request_", REQUESTS, ids=name_of)
async def test_controller_epoch_a_deposed_controller_refuses(request_: Message) -> None:
    bench = make_bench()
    bench.lead()
    bench.log.commit()
    bench.controller.handle_leader_change(7, 2)
    batches = len(bench.log.appended)
    bench.submit(request_)
    assert bench.answers == [ErrorCode.NOT_CONTROLLER]
    assert len(bench.log.appended) == batches


@pytest.mark.parametrize("request_", REQUESTS, ids=name_of)
async def test_controller_epoch_what_waits_for_its_commit_fails_when_deposed(
    request_: Message,
) -> None:
    bench = make_bench()
    bench.lead()
    bench.submit(request_)
    assert bench.answers == [], "the bootstrap records are not committed"
    bench.controller.handle_leader_change(7, 2)
    assert bench.answers == [ErrorCode.NOT_CONTROLLER]


async def test_controller_epoch_the_log_refuses_an_append_in_an_old_epoch() -> None:
    """1. Another node is elected. 2. This one has not heard of it, and decides a request. 3. The
    append names the epoch in which it decided, and the log refuses.
    """
    bench = make_bench()
    bench.lead()
    bench.log.commit()
    digest = bench.core.state.image.digest()
    bench.log.epoch = 2
    bench.submit(registration(1))
    assert bench.answers == [ErrorCode.NOT_CONTROLLER]
    assert bench.core.state.image.digest() == digest


async def test_controller_epoch_fencing_by_a_deposed_controller_is_not_written() -> None:
    bench = lead_with_a_broker()
    bench.controller.handle_leader_change(7, 2)
    batches = len(bench.log.appended)
    bench.clock.advance(60_000)
    assert len(bench.log.appended) == batches


async def test_controller_epoch_fencing_in_an_old_epoch_is_refused_by_the_log() -> None:
    bench = lead_with_a_broker()
    bench.log.epoch = 2
    batches = len(bench.log.appended)
    bench.clock.advance(60_000)
    assert len(bench.log.appended) == batches
    broker = bench.core.state.broker(1)
    assert broker is not None
    assert not broker.fenced


async def test_controller_epoch_periodic_elections_end_with_the_leadership() -> None:
    bench = lead_with_a_broker()
    bench.controller.handle_leader_change(7, 2)
    assert bench.core.tasks.next_due_ms() is None
    bench.lead(3)
    assert bench.core.tasks.next_due_ms() is not None


def lead_with_a_broker() -> Bench:
    bench = make_bench()
    bench.lead()
    bench.submit(registration(1))
    broker = bench.core.state.broker(1)
    assert broker is not None
    bench.submit(
        BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=broker.broker_epoch, current_metadata_offset=10**6
        )
    )
    bench.log.commit()
    assert not bench.controller.committed_image.cluster.brokers[1].fenced
    return bench


# -- a broker's epoch ----------------------------------------------------------------------------


def stale_request(kind: str, broker_epoch: int) -> Any:
    return {
        "heartbeat": BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=broker_epoch, want_fence=True
        ),
        "shutdown": BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=broker_epoch, want_shut_down=True
        ),
        "alter partition": AlterPartitionRequest(
            broker_id=1, broker_epoch=broker_epoch, topics=[TopicData(partitions=[])]
        ),
        "producer ids": AllocateProducerIdsRequest(broker_id=1, broker_epoch=broker_epoch),
        "directories": AssignReplicasToDirsRequest(
            broker_id=1, broker_epoch=broker_epoch, directories=[]
        ),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["heartbeat", "shutdown", "alter partition", "producer ids", "directories"]
)
def test_broker_epoch_a_replaced_incarnation_is_refused(driver: CoreDriver, kind: str) -> None:
    old = driver.broker_epoch(1)
    driver.now_ms += 9_000
    driver.beat(2)
    fresh = registration(1, incarnation_id=UUID(int=0x99))
    new = driver.ask(fresh).broker_epoch
    assert new > old
    before = driver.image
    assert driver.ask(stale_request(kind, old)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert driver.ask(stale_request(kind, new + 1)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert driver.image is before


def test_broker_epoch_a_member_of_the_isr_is_named_with_its_current_one(
    driver: CoreDriver,
) -> None:
    old = driver.broker_epoch(2)
    driver.now_ms += 9_000
    driver.beat(1)
    driver.join(2, incarnation_id=UUID(int=0x99))
    assert driver.partition().isr == (1,)
    answer = driver.alter_partition([1, 2], epochs={2: old})
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA
    assert driver.alter_partition([1, 2]).error_code == ErrorCode.NONE


def test_broker_epoch_of_a_start_that_names_another_previous_one_counts_as_unclean(
    driver: CoreDriver,
) -> None:
    previous = driver.broker_epoch(2)
    driver.beat(1, want_fence=True)
    driver.beat(2, want_fence=True)
    assert driver.partition().elr == (2,)
    driver.now_ms += 9_000
    request = registration(2, incarnation_id=UUID(int=0x99), previous_broker_epoch=previous - 1)
    assert driver.ask(request).error_code == 0
    assert (driver.partition().isr, driver.partition().elr) == ((), ())


def test_broker_epoch_of_a_start_that_names_the_right_previous_one_counts_as_clean(
    driver: CoreDriver,
) -> None:
    previous = driver.broker_epoch(2)
    driver.beat(1, want_fence=True)
    driver.beat(2, want_fence=True)
    driver.now_ms += 9_000
    driver.join(2, incarnation_id=UUID(int=0x99), previous_broker_epoch=previous)
    assert (driver.partition().leader, driver.partition().leader_recovery_state) == (2, 0)


# -- a partition's epochs ------------------------------------------------------------------------


def test_leader_epoch_a_deposed_leader_cannot_change_the_isr(driver: CoreDriver) -> None:
    old = driver.partition()
    driver.beat(1, want_fence=True)
    driver.beat(1)
    assert driver.partition().leader == 2
    before = driver.image
    answer = driver.alter_partition(
        [1],
        broker_id=1,
        leader_epoch=old.leader_epoch,
        partition_epoch=old.partition_epoch,
    )
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert driver.image is before


def test_leader_epoch_that_is_ahead_means_another_controller(driver: CoreDriver) -> None:
    epoch = driver.partition().leader_epoch
    answer = driver.alter_partition([1], leader_epoch=epoch + 1)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


def test_partition_epoch_a_leader_that_missed_a_change_cannot_change_the_isr(
    driver: CoreDriver,
) -> None:
    old = driver.partition().partition_epoch
    driver.beat(2, want_fence=True)
    driver.beat(2)
    assert driver.partition().isr == (1,)
    answer = driver.alter_partition([1, 2], partition_epoch=old)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert driver.partition().isr == (1,)


def test_partition_epoch_that_is_ahead_means_another_controller(driver: CoreDriver) -> None:
    epoch = driver.partition().partition_epoch
    answer = driver.alter_partition([1], partition_epoch=epoch + 1)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


def test_leader_epochs_and_partition_epochs_grow_with_every_change(driver: CoreDriver) -> None:
    seen = [driver.partition()]
    for change in (
        lambda: driver.alter_partition([1]),
        lambda: driver.alter_partition([1, 2]),
        lambda: driver.beat(1, want_fence=True),
        lambda: driver.beat(1),
        lambda: driver.beat(2, want_fence=True),
        lambda: driver.beat(2),
    ):
        change()
        seen.append(driver.partition())
    assert [each.partition_epoch for each in seen] == [0, 1, 2, 3, 3, 4, 5]
    assert [each.leader_epoch for each in seen] == [0, 0, 0, 1, 1, 2, 3]
    assert [each.leader for each in seen] == [1, 1, 1, 2, 2, -1, 2]
