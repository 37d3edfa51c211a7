"""Changes that do not fit one batch: steps, what others may do in between, and how they end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from moldau.controller.apis import DECIDERS
from moldau.controller.controller import Controller, SnapshotPolicy
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.metadata.image import PartitionRegistration
from moldau.metadata.steps import at_once
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.p56_alter_partition import (
    AlterPartitionRequest,
    PartitionData,
    TopicData,
)
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.metadata_records import PartitionChangeRecord
from moldau.protocol.schema import Message
from tests.kit.manual_clock import ManualClock
from tests.unit.controller.harness import answers_of
from tests.unit.metadata.builders import CLUSTER_ID, CoreDriver, node_config, registration

from .test_controller import HandLog

PARTITIONS = 10
STEP = 3


class WatchedLog(HandLog):
    """Reports every batch before it takes it."""

    before_append: Callable[[], None] | None = None

    def append(
        self,
        records: Sequence[tuple[Message, int]],
        *,
        leader_epoch: int,
        values: Sequence[bytes] | None = None,
    ) -> tuple[ErrorCode, int]:
        if self.before_append is not None:
            self.before_append()
        return super().append(records, leader_epoch=leader_epoch, values=values)


class Bench:
    """A controller on a hand-driven log, with three brokers and steps of three partitions."""

    def __init__(self) -> None:
        settings = ControllerSettings(node_config(**{"node.id": "100"}), CLUSTER_ID)
        settings = settings._replace(max_changes_per_step=STEP)
        self.core = ControllerCore(settings, random.Random(3))
        self.log, self.clock = WatchedLog(), ManualClock()
        self.controller = Controller(
            self.core,
            self.log,
            self.clock,
            node_id=1,
            bootstrap_records=feature_records(initial_feature_levels()),
            snapshot_policy=SnapshotPolicy(max_bytes=10**9, interval_ms=0),
        )
        self.controller.start()
        self.controller.handle_leader_change(1, 1)
        self.asked: list[asyncio.Future[Message]] = []
        for broker_id in (1, 2, 3):
            self.submit(registration(broker_id))
            self.beat(broker_id)
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=[1, 2])
            for index in range(PARTITIONS)
        ]
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        self.submit(CreateTopicsRequest(topics=[topic]))
        self.log.commit()
        self.asked.clear()

    def submit(self, request: Message, timeout_ms: float = 60_000) -> None:
        self.asked.append(
            self.controller.ask(request, DECIDERS[ApiKey(request.API_KEY)], timeout_ms=timeout_ms)
        )

    @property
    def answers(self) -> list[Any]:
        return answers_of(self.asked)

    def beat(self, broker_id: int, **changes: Any) -> None:
        broker = self.core.state.broker(broker_id)
        assert broker is not None
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=broker.broker_epoch,
            current_metadata_offset=self.log.end_offset,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        self.submit(request)

    @property
    def partitions(self) -> list[PartitionRegistration]:
        topic = self.core.state.image.topics.topics_by_name["t"]
        return [topic.partitions[index] for index in range(PARTITIONS)]

    def led_by(self, broker_id: int) -> int:
        return sum(partition.leader == broker_id for partition in self.partitions)

    def is_fenced(self, broker_id: int) -> bool:
        broker = self.core.state.broker(broker_id)
        assert broker is not None
        return broker.fenced

    def sizes_since(self, batch_count: int) -> list[int]:
        return [len(batch.records) for batch in self.log.appended[batch_count:]]


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_fencing_comes_in_batches_and_the_fence_with_the_last(bench: Bench) -> None:
    before = len(bench.log.appended)
    seen: list[tuple[int, bool]] = []
    bench.log.before_append = lambda: seen.append((bench.led_by(1), bench.is_fenced(1)))
    bench.beat(1, want_fence=True)
    assert seen == [(PARTITIONS, False)], "the loop gives way after the first step"
    bench.log.commit()
    assert bench.answers == [], "the answer waits for the last step"
    bench.clock.advance(0)
    assert seen == [(10, False), (7, False), (4, False), (1, False)]
    assert bench.sizes_since(before) == [3, 3, 3, 2]
    assert (bench.led_by(1), bench.led_by(2), bench.is_fenced(1)) == (0, PARTITIONS, True)
    assert bench.answers == []
    bench.log.commit()
    assert [answer.is_fenced for answer in bench.answers] == [True]
    assert bench.core.state.leaving == {}


async def test_in_between_others_are_served_and_the_leaving_broker_gets_nothing_back(
    bench: Bench,
) -> None:
    bench.beat(1, want_fence=True)
    partition = bench.partitions[0]
    assert partition.leader == 2
    request = AlterPartitionRequest(
        broker_id=2,
        broker_epoch=bench.core.state.broker(2).broker_epoch,  # type: ignore[union-attr]
        topics=[
            TopicData(
                topic_id=bench.core.state.image.topics.topics_by_name["t"].topic_id,
                partitions=[
                    PartitionData(
                        partition_index=0,
                        leader_epoch=partition.leader_epoch,
                        partition_epoch=partition.partition_epoch,
                        new_isr=[2, 1],
                    )
                ],
            )
        ],
    )
    bench.submit(request)
    topic = CreatableTopic(name="new", num_partitions=4, replication_factor=3)
    bench.submit(CreateTopicsRequest(topics=[topic]))
    bench.log.commit()
    refused, created = bench.answers
    assert refused.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    assert created.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert bench.led_by(1) == 7
    bench.clock.advance(0)
    assert bench.led_by(1) == 0


async def test_a_deposed_controller_drops_the_rest_and_the_next_one_begins_again(
    bench: Bench,
) -> None:
    bench.beat(1, want_fence=True)
    bench.log.commit()
    bench.controller.handle_leader_change(7, 2)
    assert bench.answers == [ErrorCode.NOT_CONTROLLER]
    batches = len(bench.log.appended)
    bench.clock.advance(1_000)
    assert len(bench.log.appended) == batches, "no step comes after the end"
    assert bench.controller.waiting_count == 0
    # What was written is consistent: fewer partitions led by 1, and 1 is a live broker.
    assert (bench.led_by(1), bench.led_by(2), bench.is_fenced(1)) == (7, 3, False)
    bench.log.epoch = 3
    bench.controller.handle_leader_change(1, 3)
    bench.beat(1, want_fence=True)
    bench.clock.advance(0)
    bench.log.commit()
    assert (bench.led_by(1), bench.is_fenced(1)) == (0, True)


async def test_a_log_that_refuses_a_step_ends_the_steps_and_the_broker_stays(bench: Bench) -> None:
    bench.submit(UnregisterBrokerRequest(broker_id=1))
    bench.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    bench.clock.advance(0)
    assert bench.answers == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert bench.core.state.leaving == {}
    bench.log.refusal = ErrorCode.NONE
    bench.clock.advance(1)
    assert bench.core.state.is_active(1)
    assert bench.led_by(1) == 7


async def test_one_who_gave_up_waiting_does_not_stop_the_steps(bench: Bench) -> None:
    broker = bench.core.state.broker(1)
    assert broker is not None
    request = BrokerHeartbeatRequest(broker_id=1, broker_epoch=broker.broker_epoch, want_fence=True)
    bench.submit(request, timeout_ms=0)
    bench.clock.advance(0)
    assert bench.answers == [ErrorCode.REQUEST_TIMED_OUT]
    bench.clock.advance(0)
    assert bench.is_fenced(1)
    bench.log.commit()
    assert len(bench.answers) == 1, "answered once"


async def test_a_silent_broker_is_fenced_in_batches(bench: Bench) -> None:
    before = len(bench.log.appended)
    for _ in range(5):
        bench.clock.advance(2_000)
        bench.beat(2)
        bench.beat(3)
    bench.clock.advance(100)
    assert bench.is_fenced(1)
    assert bench.led_by(2) == PARTITIONS
    assert bench.sizes_since(before) == [3, 3, 3, 2]


def silence_broker_3(bench: Bench, topic: str) -> None:
    """It alone has the six partitions of the topic, and its session is over."""
    bench.submit(
        CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=index, broker_ids=[3])
                        for index in range(6)
                    ],
                )
            ]
        )
    )
    for _ in range(4):
        bench.clock.advance(2_200)
        bench.beat(1)
        bench.beat(2)
    bench.clock.advance(200)


def leaders(bench: Bench, topic: str) -> set[int]:
    partitions = bench.core.state.image.topics.topics_by_name[topic].partitions
    return {partition.leader for partition in partitions.values()}


async def test_a_broker_heard_of_again_half_way_stays_and_leads_what_has_no_leader(
    bench: Bench,
) -> None:
    silence_broker_3(bench, "lone")
    assert leaders(bench, "lone") == {3, -1}, "half way"
    bench.beat(3)
    bench.clock.advance(100)
    assert leaders(bench, "lone") == {3}
    assert not bench.is_fenced(3)


async def test_a_broker_that_is_back_leads_all_that_has_no_leader_in_batches(bench: Bench) -> None:
    silence_broker_3(bench, "lone")
    bench.clock.advance(100)
    assert bench.is_fenced(3)
    assert leaders(bench, "lone") == {-1}
    before = len(bench.log.appended)
    bench.beat(3)
    assert leaders(bench, "lone") == {3, -1}
    bench.clock.advance(100)
    assert leaders(bench, "lone") == {3}
    assert bench.sizes_since(before) == [1 + STEP, STEP]


async def test_a_new_incarnation_registers_with_the_last_step(bench: Bench) -> None:
    bench.clock.advance(8_000)
    bench.beat(2)
    bench.beat(3)
    bench.clock.advance(900)
    # Not fenced yet, but in its last moments: the new process waits for the session to end.
    fresh = registration(1, incarnation_id=UUID(int=0x99))
    bench.asked.clear()
    bench.clock.advance(100)
    before = len(bench.log.appended)
    bench.submit(fresh)
    epochs = []
    for _ in range(8):
        broker = bench.core.state.broker(1)
        assert broker is not None
        epochs.append(broker.incarnation_id)
        bench.clock.advance(0)
    bench.log.commit()
    (answer,) = bench.answers
    assert answer.error_code == 0
    assert epochs[0] != UUID(int=0x99) == epochs[-1]
    last = bench.log.appended[-1]
    assert answer.broker_epoch <= last.last_offset
    assert bench.led_by(1) == 0
    assert all(1 not in (*each.isr, *each.elr) for each in bench.partitions)
    assert max(bench.sizes_since(before)) <= STEP + 1


async def test_electing_everywhere_answers_for_all_steps(bench: Bench) -> None:
    bench.beat(1, want_fence=True)
    bench.clock.advance(0)
    bench.beat(1)
    topic_id = bench.core.state.image.topics.topics_by_name["t"].topic_id
    records: list[tuple[Message, int]] = [
        (PartitionChangeRecord(partition_id=index, topic_id=topic_id, isr=[2, 1]), 2)
        for index in range(PARTITIONS)
    ]
    at_once(bench.controller._append(records))
    bench.log.commit()
    bench.asked.clear()
    bench.submit(ElectLeadersRequest(topic_partitions=None))
    bench.clock.advance(0)
    bench.log.commit()
    (answer,) = bench.answers
    (topic,) = answer.replica_election_results
    assert sorted(each.partition_id for each in topic.partition_result) == list(range(PARTITIONS))
    assert bench.led_by(1) == PARTITIONS
    await bench.controller.close()
    assert bench.clock.timer_count == 0


async def test_a_leaders_many_reports_come_in_batches_with_one_answer(bench: Bench) -> None:
    before = len(bench.log.appended)
    topic_id = bench.core.state.image.topics.topics_by_name["t"].topic_id
    broker = bench.core.state.broker(1)
    assert broker is not None
    reports = [PartitionData(partition_index=index, new_isr=[1]) for index in range(PARTITIONS)]
    reports[4].leader_epoch = 9
    bench.submit(
        AlterPartitionRequest(
            broker_id=1,
            broker_epoch=broker.broker_epoch,
            topics=[TopicData(topic_id=topic_id, partitions=reports)],
        )
    )
    bench.clock.advance(0)
    assert bench.sizes_since(before) == [3, 2, 3, 1]
    bench.log.commit()
    (answer,) = bench.answers
    (topic,) = answer.topics
    codes = [each.error_code for each in topic.partitions]
    assert codes == [ErrorCode.NOT_CONTROLLER if index == 4 else 0 for index in range(PARTITIONS)]
    assert [each.isr for each in bench.partitions] == [
        (1, 2) if index == 4 else (1,) for index in range(PARTITIONS)
    ]


def test_too_many_configuration_changes_for_one_batch_are_refused() -> None:
    driver = CoreDriver()
    driver.join(1)
    resources = [
        AlterConfigsResource(
            resource_type=32,
            resource_name=f"group{number}",
            configs=[
                AlterableConfig(name=key, config_operation=0, value=value)
                for key, value in (
                    ("consumer.session.timeout.ms", "45000"),
                    ("consumer.heartbeat.interval.ms", "5000"),
                )
            ],
        )
        for number in range(5_001)
    ]
    response = driver.ask(IncrementalAlterConfigsRequest(resources=resources))
    assert {each.error_code for each in response.responses} == {ErrorCode.POLICY_VIOLATION}
    assert not driver.appended
    response = driver.ask(IncrementalAlterConfigsRequest(resources=resources[:5_000]))
    assert {each.error_code for each in response.responses} == {ErrorCode.NONE}
    assert len(driver.appended) == 10_000


async def test_leaders_are_balanced_by_the_clock_and_only_while_this_node_leads(
    bench: Bench,
) -> None:
    bench.beat(1, want_fence=True)
    bench.clock.advance(0)
    bench.beat(1)
    topic_id = bench.core.state.image.topics.topics_by_name["t"].topic_id
    records: list[tuple[Message, int]] = [
        (PartitionChangeRecord(partition_id=index, topic_id=topic_id, isr=[2, 1]), 2)
        for index in range(PARTITIONS)
    ]
    at_once(bench.controller._append(records))
    bench.log.commit()

    def pass_five_minutes() -> None:
        for _ in range(60):
            bench.clock.advance(5_000)
            for broker_id in (1, 2, 3):
                bench.beat(broker_id)

    bench.controller.handle_leader_change(7, 2)
    batches = len(bench.log.appended)
    pass_five_minutes()
    assert len(bench.log.appended) == batches
    bench.log.epoch = 3
    bench.controller.handle_leader_change(1, 3)
    assert bench.led_by(2) == PARTITIONS
    pass_five_minutes()
    assert bench.led_by(1) == PARTITIONS
