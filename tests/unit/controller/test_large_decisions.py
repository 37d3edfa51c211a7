"""Requests that name much: decided in slices, alone, and whole; and how long a part of them is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.controller.apis import DECIDERS
from moldau.controller.controller import SLICE_MS, Controller, SnapshotPolicy
from moldau.controller.core import feature_control
from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.partition_index import PartitionIndex
from moldau.controller.core.result import Refusal
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p33_alter_configs import AlterConfigsRequest
from moldau.protocol.messages.p33_alter_configs import AlterConfigsResource as LegacyResource
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.p46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.schema import Message
from moldau.text import MAX_MESSAGE_CHARACTERS
from tests.unit.controller.harness import answers_of
from tests.unit.metadata.builders import (
    CLUSTER_ID,
    BusyClock,
    CoreDriver,
    node_config,
    registration,
)

from .test_controller import HandLog

MANY = 400
NAMES = [f"t{index}" for index in range(MANY)]


class Bench:
    """An active controller with one broker, on a hand-driven log and a clock that is busy."""

    def __init__(self) -> None:
        settings = ControllerSettings(node_config(**{"node.id": "100"}), CLUSTER_ID)
        self.core = ControllerCore(settings, random.Random(3))
        self.log, self.clock = HandLog(), BusyClock()
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
        self.submit(registration(1))
        self.beat()
        self.log.commit()
        self.asked.clear()
        self.clock.tick_ms = SLICE_MS / 10

    def submit(self, request: Message, timeout_ms: float = 60_000) -> None:
        self.asked.append(
            self.controller.ask(request, DECIDERS[ApiKey(request.API_KEY)], timeout_ms=timeout_ms)
        )

    @property
    def answers(self) -> list[Any]:
        return answers_of(self.asked)

    def beat(self) -> None:
        broker = self.core.state.broker(1)
        assert broker is not None
        self.submit(
            BrokerHeartbeatRequest(
                broker_id=1,
                broker_epoch=broker.broker_epoch,
                current_metadata_offset=self.log.end_offset,
            )
        )

    def slices(self) -> int:
        """Let the work go on to its end; how many slices it took."""
        count = 0
        while self.clock.turn():
            count += 1
        return count


@pytest.fixture
async def bench() -> Bench:
    return Bench()


def new_topics(names: list[str], partition_count: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=partition_count, replication_factor=1)
            for name in names
        ]
    )


def assert_index_is_right(core: ControllerCore) -> None:
    fresh = PartitionIndex()
    fresh.move({}, core.state.image.topics.topics_by_id)
    assert core.state.index == fresh


async def test_a_large_request_is_one_batch_of_many_slices(bench: Bench) -> None:
    batches = len(bench.log.appended)
    bench.submit(new_topics(NAMES))
    assert len(bench.log.appended) == batches, "the loop has others first"
    assert bench.slices() > MANY / 10
    (batch,) = bench.log.appended[batches:]
    assert len(batch.records) == 2 * MANY
    assert bench.answers == []
    bench.log.commit()
    (response,) = bench.answers
    assert {topic.error_code for topic in response.topics} == {ErrorCode.NONE}
    assert len(bench.core.state.image.topics.topics_by_name) == MANY
    assert_index_is_right(bench.core)
    assert bench.controller.waiting_count == 0


async def test_what_comes_during_a_large_decision_is_decided_on_the_state_that_it_makes(
    bench: Bench,
) -> None:
    bench.submit(new_topics(NAMES))
    bench.submit(new_topics(NAMES[:1]))
    bench.beat()
    bench.submit(DeleteTopicsRequest(topics=[DeleteTopicState(name=NAMES[-1])]))
    assert bench.answers == []
    assert bench.controller.waiting_count == 4
    bench.slices()
    bench.log.commit()
    first, second, heartbeat, deleted = bench.answers
    assert len(first.topics) == MANY
    assert second.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert heartbeat.error_code == ErrorCode.NONE
    assert deleted.responses[0].error_code == ErrorCode.NONE


async def test_a_leader_deposed_in_the_middle_has_decided_nothing(bench: Bench) -> None:
    digest, batches = bench.core.state.image.digest(), len(bench.log.appended)
    bench.submit(new_topics(NAMES))
    bench.submit(new_topics(["other"]))
    bench.clock.turn()
    bench.controller.handle_leader_change(7, 2)
    assert bench.answers == [ErrorCode.NOT_CONTROLLER] * 2
    bench.slices()
    assert len(bench.log.appended) == batches
    assert bench.core.state.image.digest() == digest
    assert bench.controller.waiting_count == 0
    # And when it leads again, it is its old self.
    bench.log.epoch = 3
    bench.controller.handle_leader_change(1, 3)
    bench.clock.tick_ms = 0.0
    bench.submit(new_topics(["other"]))
    bench.log.commit()
    assert bench.answers[-1].topics[0].error_code == ErrorCode.NONE


async def test_the_indexes_of_what_was_appended_follow_whatever_comes(bench: Bench) -> None:
    for event in (
        bench.log.commit,
        lambda: bench.controller.handle_leader_change(7, 2),
    ):
        bench.submit(new_topics([f"x-{bench.log.end_offset}-{name}" for name in NAMES]))
        batches = len(bench.log.appended)
        while len(bench.log.appended) == batches:
            assert bench.clock.turn()
        fresh = PartitionIndex()
        fresh.move({}, bench.core.state.image.topics.topics_by_id)
        assert bench.core.state.index != fresh, "the event comes before the indexes are ready"
        event()
        bench.slices()
        bench.log.commit()
        assert_index_is_right(bench.core)
    assert [type(each).__name__ for each in bench.answers] == ["CreateTopicsResponse", "ErrorCode"]


async def test_a_log_that_refuses_a_large_batch_leaves_the_state_alone(bench: Bench) -> None:
    bench.log.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    image = bench.core.state.image
    bench.submit(new_topics(NAMES))
    bench.slices()
    assert bench.answers == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert bench.core.state.image is image
    assert bench.controller.waiting_count == 0


async def test_a_request_whose_time_is_over_before_its_turn_changes_nothing(bench: Bench) -> None:
    bench.submit(new_topics(NAMES))
    bench.submit(new_topics(["late"]), timeout_ms=1)
    bench.clock.stand_still(2)
    bench.slices()
    bench.log.commit()
    assert bench.answers[1] is ErrorCode.REQUEST_TIMED_OUT
    assert "late" not in bench.core.state.image.topics.topics_by_name
    assert bench.controller.waiting_count == 0


async def test_a_batch_whose_broker_epoch_is_its_offset_is_appended_in_one_go(
    bench: Bench,
) -> None:
    """The quorum may append records of its own whenever the loop gives way."""
    bench.clock.tick_ms = SLICE_MS
    bench.submit(registration(2))
    assert [type(record).__name__ for record in bench.log.appended[-1].records] == [
        "RegisterBrokerRecord"
    ]


# -- how much is one step --------------------------------------------------------------------------


class GrownDriver(CoreDriver):
    """A core that has MANY topics."""

    def __init__(self) -> None:
        super().__init__()
        self.join(1)
        self.ask(new_topics(NAMES))

    def step_count(self, request: Message) -> int:
        handling = self.core.handle(request, DECIDERS[ApiKey(request.API_KEY)], self.asked())
        return sum(1 for _ in handling)


def _large_requests() -> Iterator[Any]:
    """Requests of MANY parts by name, none of which takes long alone."""
    yield "new topics", new_topics([f"new-{name}" for name in NAMES])
    yield "a topic of many partitions", new_topics(["new"], partition_count=MANY)
    assigned = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in range(MANY)
    ]
    topic = CreatableTopic(
        name="new", num_partitions=-1, replication_factor=-1, assignments=assigned
    )
    yield "a topic of many assigned partitions", CreateTopicsRequest(topics=[topic])
    yield "too many topics", new_topics(["a", "b"] * MANY, partition_count=10_000)
    named = [DeleteTopicState(name=name) for name in NAMES]
    yield "deleted topics", DeleteTopicsRequest(topics=named)
    yield "too many deleted topics", DeleteTopicsRequest(topics=named * 26)
    yield (
        "grown topics",
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=2, assignments=None) for name in NAMES]
        ),
    )
    yield (
        "one topic that grows much",
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t1", count=MANY + 1, assignments=None)]
        ),
    )
    placed = [CreatePartitionsAssignment(broker_ids=[1]) for _ in range(MANY)]
    yield (
        "assigned partitions",
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t1", count=MANY + 1, assignments=placed)]
        ),
    )
    change = [AlterableConfig(name="retention.ms", value="5")]
    yield (
        "changed configurations",
        IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(resource_type=2, resource_name=name, configs=change)
                for name in NAMES
            ]
        ),
    )
    yield (
        "replaced configurations",
        AlterConfigsRequest(
            resources=[LegacyResource(resource_type=2, resource_name=name) for name in NAMES]
        ),
    )
    yield from _more_large_requests()


def _more_large_requests() -> Iterator[Any]:
    yield (
        "elections",
        ElectLeadersRequest(
            election_type=0,
            topic_partitions=[TopicPartitions(topic="t1", partitions=list(range(MANY)))],
        ),
    )
    yield (
        "reassignments",
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name="t1",
                    partitions=[
                        ReassignablePartition(partition_index=index, replicas=[1])
                        for index in range(MANY)
                    ],
                )
            ]
        ),
    )
    yield (
        "a list of reassignments",
        ListPartitionReassignmentsRequest(
            topics=[
                ListPartitionReassignmentsTopics(name="t1", partition_indexes=list(range(MANY)))
            ]
        ),
    )

    updates = [FeatureUpdateKey(feature=name) for name in NAMES]
    yield "features", UpdateFeaturesRequest(feature_updates=updates)


LARGE = dict(_large_requests())


@pytest.mark.parametrize("what", LARGE)
def test_each_part_of_a_large_request_is_a_step(what: str) -> None:
    assert GrownDriver().step_count(LARGE[what]) >= MANY


def test_the_first_feature_that_is_refused_ends_the_look_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []

    def update(*arguments: Any) -> Any:
        looks.append(arguments)
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, "no")

    monkeypatch.setattr(feature_control, "_update", update)
    driver = CoreDriver()
    response = driver.ask(
        UpdateFeaturesRequest(
            feature_updates=[
                FeatureUpdateKey(feature=f"{index}" + "x" * 32_000) for index in range(9)
            ]
        )
    )
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert len(looks) == 1
    response.to_bytes(2)


def test_a_refusal_quotes_no_more_than_fits_into_a_response() -> None:
    driver = GrownDriver()
    brokers = list(range(2, 244_000))
    moved = ReassignablePartition(partition_index=0, replicas=brokers)
    twice = ReassignablePartition(partition_index=0, replicas=[1] * 244_000)
    for replicas in (moved, twice):
        response = driver.ask(
            AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic(name="t1", partitions=[replicas])]
            )
        )
        (answer,) = response.responses[0].partitions
        assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "more" in answer.error_message
        response.to_bytes(1)
    grown = driver.ask(
        CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name="t1",
                    count=2,
                    assignments=[CreatePartitionsAssignment(broker_ids=[1] * 244_000)],
                )
            ]
        )
    )
    assert grown.results[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    grown.to_bytes(3)
    assert len(Refusal(ErrorCode.INVALID_CONFIG, "x" * 40_000).message) <= (
        MAX_MESSAGE_CHARACTERS + 1
    )


def test_elements_are_added_to_a_list_and_taken_from_it_in_order() -> None:
    driver = GrownDriver()
    key = "leader.replication.throttled.replicas"

    def change(operation: int, value: str) -> str:
        config = AlterableConfig(name=key, config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=2, resource_name="t1", configs=[config])
        response = driver.ask(IncrementalAlterConfigsRequest(resources=[resource]))
        assert response.responses[0].error_code == ErrorCode.NONE, response
        return driver.core.state.image.configs.get(2, "t1")[key]

    assert change(2, "0:1,1:1") == "0:1,1:1"
    assert change(2, "1:1,2:1,2:1,0:1,3:1") == "0:1,1:1,2:1,2:1,3:1"
    assert change(3, "2:1,0:1,9:9") == "1:1,3:1"
