"""Answered means visible: the next request to the broker that answered sees the change.

Whole nodes in this process over loopback. The way of committed metadata into the broker is held
back while a change is under way, so that nothing here depends on which of two messages is quicker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moldau.broker.api import forwarding
from moldau.broker.lifecycle import controller_channel, metadata_loader
from moldau.broker.lifecycle.controller_channel import ControllerAnswer
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.config import NodeConfig
from moldau.local.layout import ClusterLayout, PortHolder
from moldau.metadata.image import MetadataImage
from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.node import quorum_link
from moldau.node.node import Node
from moldau.protocol.error_responses import error_codes
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.protocol.messages.p33_alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.p43_elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.p46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.schema import Message
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork
from tests.kit.waiting import until_async
from tests.unit.metadata.builders import registration

pytestmark = pytest.mark.real

HOST = "127.0.0.1"
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SAFE_DOWNGRADE = 2
DEAD_BROKER = 9


class Gate:
    """What lies between the quorum and the brokers' loaders; closed, it keeps what comes."""

    def __init__(self) -> None:
        self.is_open = True
        self._kept: deque[Callable[[], None]] = deque()

    def pass_on(self, delivery: Callable[[], None]) -> None:
        if self.is_open:
            delivery()
        else:
            self._kept.append(delivery)

    def close(self) -> None:
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        while self._kept:
            self._kept.popleft()()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The gate of every broker of this test."""
    gate = Gate()

    class GatedFeed(quorum_link.LoaderFeed):
        def on_snapshot(self, snapshot: LoadedSnapshot) -> None:
            gate.pass_on(lambda: super(GatedFeed, self).on_snapshot(snapshot))

        def on_commit(self, batch: CommittedBatch) -> None:
            gate.pass_on(lambda: super(GatedFeed, self).on_commit(batch))

    monkeypatch.setattr(quorum_link, "LoaderFeed", GatedFeed)
    return gate


@pytest.fixture
def opened_by_waiters(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that waits for metadata that have not come yet makes them come."""
    wait_until = MetadataLoader.wait_until

    async def opening(loader: MetadataLoader, condition: Callable[[MetadataImage], bool]) -> None:
        if not condition(loader.image):
            asyncio.get_running_loop().call_soon(gate.open)
        await wait_until(loader, condition)

    monkeypatch.setattr(MetadataLoader, "wait_until", opening)


class Running(NamedTuple):
    nodes: dict[int, Node]
    client: Connection

    async def ask(self, request: Message) -> Any:
        return await self.client.send(request)


@contextlib.asynccontextmanager
async def running(home: Path, gate: Gate, *, combined: bool) -> AsyncIterator[Running]:
    """A cluster in this process, and a client of broker 1. Its end opens the gate."""
    ports = PortHolder(HOST)
    layout = ClusterLayout.plan(
        home,
        controllers=1,
        brokers=1 if combined else 2,
        combined=combined,
        host=HOST,
        broker_port=lambda: ports.take()[0],
        controller_port=lambda: ports.take()[0],
    )
    layout.write_configs()
    layout.format()
    nodes = {
        spec.node_id: Node(NodeConfig.load(str(spec.config_path)), on_fatal=pytest.fail)
        for spec in layout.nodes
    }
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(ports.close)
        for node in reversed(nodes.values()):
            stack.push_async_callback(node.stop)
        await asyncio.gather(*(node.start() for node in nodes.values()))
        broker_port = layout.nodes[0].broker_port
        assert broker_port is not None
        client = await Connection.connect(AsyncioNetwork(), HOST, broker_port, client_id="tests")
        stack.callback(client.close)
        stack.callback(gate.open)
        yield Running(nodes, client)


# -- changes, and the question that shows each ---------------------------------------------------


class Change(NamedTuple):
    name: str
    request: Message
    question: Message
    is_seen: Callable[[Any], bool]


def create(name: str, *replicas: int) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    if replicas:
        topic.num_partitions = topic.replication_factor = -1
        topic.assignments = [
            CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
        ]
    return CreateTopicsRequest(topics=[topic], timeout_ms=30_000)


def about(name: str, *, create: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=create
    )


def partition_of(response: Any) -> Any:
    return response.topics[0].partitions[0]


def config_of(resource_type: int, name: str, key: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=[key]
    )
    return DescribeConfigsRequest(resources=[resource])


def has_value(value: str) -> Callable[[Any], bool]:
    return lambda response: response.results[0].configs[0].value == value


def incrementally(resource_type: int, name: str, key: str, value: str) -> Message:
    config = incremental.AlterableConfig(name=key, config_operation=0, value=value)
    return incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=resource_type, resource_name=name, configs=[config]
            )
        ]
    )


def topic_changes() -> list[Change]:
    """Those that one broker is enough for; `grown`, `set` and `gone` exist before."""
    configs = [AlterableConfig(name="retention.ms", value="60000")]
    return [
        Change(
            "CreateTopics", create("new"), about("new"), lambda got: not got.topics[0].error_code
        ),
        Change(
            "DeleteTopics",
            DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=30_000),
            about("gone"),
            lambda got: bool(got.topics[0].error_code),
        ),
        Change(
            "CreatePartitions",
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name="grown", count=4, assignments=None)],
                timeout_ms=30_000,
            ),
            about("grown"),
            lambda got: len(got.topics[0].partitions) == 4,
        ),
        Change(
            "AlterConfigs",
            AlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=TOPIC_RESOURCE, resource_name="set", configs=configs
                    )
                ]
            ),
            config_of(TOPIC_RESOURCE, "set", "retention.ms"),
            has_value("60000"),
        ),
        Change(
            "IncrementalAlterConfigs of a topic",
            incrementally(TOPIC_RESOURCE, "set", "segment.ms", "70000"),
            config_of(TOPIC_RESOURCE, "set", "segment.ms"),
            has_value("70000"),
        ),
        Change(
            "IncrementalAlterConfigs of a broker",
            incrementally(BROKER_RESOURCE, "1", "log.cleaner.threads", "2"),
            config_of(BROKER_RESOURCE, "1", "log.cleaner.threads"),
            has_value("2"),
        ),
        Change(
            "UpdateFeatures",
            UpdateFeaturesRequest(
                feature_updates=[
                    FeatureUpdateKey(
                        feature="group.version",
                        max_version_level=0,
                        upgrade_type=SAFE_DOWNGRADE,
                    )
                ]
            ),
            ApiVersionsRequest(client_software_name="tests", client_software_version="1"),
            lambda got: all(each.name != "group.version" for each in got.finalized_features),
        ),
    ]


def cluster_changes() -> list[Change]:
    """Those that two brokers and a third, dead one are needed for; `moved` has one replica on
    broker 1, `led` has the replicas 1 and 2, and `turned` the same with broker 1 leading though
    broker 2 is preferred.
    """
    reassignment = ReassignableTopic(
        name="moved", partitions=[ReassignablePartition(partition_index=0, replicas=[2, 1])]
    )
    return [
        Change(
            "AlterPartitionReassignments",
            AlterPartitionReassignmentsRequest(topics=[reassignment]),
            about("moved"),
            lambda got: 2 in partition_of(got).replica_nodes,
        ),
        Change(
            "ElectLeaders",
            ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="turned", partitions=[0])]),
            about("turned"),
            lambda got: partition_of(got).leader_id == 2,
        ),
        Change(
            "UnregisterBroker",
            UnregisterBrokerRequest(broker_id=DEAD_BROKER),
            DescribeClusterRequest(include_fenced_brokers=True),
            lambda got: all(each.broker_id != DEAD_BROKER for each in got.brokers),
        ),
    ]


async def prepare_topics(cluster: Running) -> None:
    for name in ("grown", "set", "gone"):
        await done(cluster, create(name))
        await seen(cluster, about(name), lambda got: partition_of(got).leader_id >= 0)


async def prepare_cluster(cluster: Running) -> None:
    await done(cluster, create("moved", 1))
    await done(cluster, create("turned", 1, 2))
    in_sync = lambda got: sorted(partition_of(got).isr_nodes) == [1, 2]  # noqa: E731
    await seen(cluster, about("turned"), in_sync)
    turn = ReassignableTopic(
        name="turned", partitions=[ReassignablePartition(partition_index=0, replicas=[2, 1])]
    )
    await done(cluster, AlterPartitionReassignmentsRequest(topics=[turn]))
    await seen(cluster, about("turned"), lambda got: partition_of(got).replica_nodes == [2, 1])
    channel = cluster.nodes[1]._channel
    assert channel is not None
    cluster_id = (await cluster.ask(DescribeClusterRequest())).cluster_id
    dead = registration(DEAD_BROKER, cluster_id=cluster_id)
    assert not (await channel.send(dead, "User:ANONYMOUS")).error_code
    await seen(
        cluster,
        DescribeClusterRequest(include_fenced_brokers=True),
        lambda got: any(each.broker_id == DEAD_BROKER for each in got.brokers),
    )


async def done(cluster: Running, request: Message) -> None:
    response = await cluster.ask(request)
    assert not any(error_codes(response)), response


async def seen(cluster: Running, question: Message, is_seen: Callable[[Any], bool]) -> None:
    async def holds() -> bool:
        response = await cluster.ask(question)
        return not any(error_codes(response)) and is_seen(response)

    await until_async(holds, what=f"{type(question).__name__} with what was prepared")


async def stale_after(cluster: Running, gate: Gate, changes: list[Change]) -> list[str]:
    """The changes whose next request did not see them."""
    stale = []
    for change in changes:
        gate.close()
        await done(cluster, change.request)
        if not change.is_seen(await cluster.ask(change.question)):
            stale.append(change.name)
        gate.open()
    return stale


# -- tests ---------------------------------------------------------------------------------------

Prepare = Callable[[Running], Awaitable[None]]


@pytest.mark.usefixtures("opened_by_waiters")
@pytest.mark.parametrize(
    ("combined", "prepare", "changes"),
    [
        pytest.param(False, prepare_topics, topic_changes, id="topics-over-the-network"),
        pytest.param(False, prepare_cluster, cluster_changes, id="cluster-over-the-network"),
        pytest.param(True, prepare_topics, topic_changes, id="topics-in-process"),
    ],
)
async def test_the_next_request_sees_every_change(
    tmp_path: Path,
    gate: Gate,
    combined: bool,
    prepare: Prepare,
    changes: Callable[[], list[Change]],
) -> None:
    async with running(tmp_path, gate, combined=combined) as cluster:
        await prepare(cluster)
        assert await stale_after(cluster, gate, changes()) == []


@pytest.mark.usefixtures("opened_by_waiters")
async def test_a_controller_that_does_not_say_how_far_it_is_is_asked(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache Kafka's: its Envelopes have no such field."""
    monkeypatch.setattr(
        controller_channel, "ControllerAnswer", lambda response, *_: ControllerAnswer(response)
    )
    async with running(tmp_path, gate, combined=False) as cluster:
        await prepare_topics(cluster)
        assert await stale_after(cluster, gate, topic_changes()) == []


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "asked"])
async def test_metadata_that_do_not_come_fail_no_change(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """The wait is bounded, and the answer is the controller's."""
    if not is_told:
        monkeypatch.setattr(
            controller_channel, "ControllerAnswer", lambda response, *_: ControllerAnswer(response)
        )
    async with running(tmp_path, gate, combined=False) as cluster:
        await prepare_topics(cluster)
        monkeypatch.setattr(forwarding, "VISIBLE_WAIT_MS", 20)
        gate.close()
        for change in topic_changes():
            await done(cluster, change.request)
            assert not change.is_seen(await cluster.ask(change.question)), change.name


async def test_more_waiters_than_are_allowed_fail_no_change(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, gate, combined=False) as cluster:
        await prepare_topics(cluster)
        monkeypatch.setattr(metadata_loader, "MAX_WAITERS", 0)
        gate.close()
        for change in topic_changes():
            await done(cluster, change.request)


async def test_a_client_with_less_time_is_not_kept_longer_than_that(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the request, and a little for the way, holds for the wait as well."""
    async with running(tmp_path, gate, combined=False) as cluster:
        monkeypatch.setattr(forwarding, "VISIBLE_WAIT_MS", 3_600_000)
        monkeypatch.setattr(forwarding, "FORWARD_SLACK_MS", 0)
        gate.close()
        request = create("new")
        request.timeout_ms = 3_000
        await done(cluster, request)


async def test_questions_do_not_wait_for_metadata(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shows an operator why metadata do not come must not itself wait for them."""
    async with running(tmp_path, gate, combined=False) as cluster:
        await prepare_topics(cluster)
        monkeypatch.setattr(forwarding, "VISIBLE_WAIT_MS", 20)
        gate.close()
        await done(cluster, create("new"))
        waits: list[Any] = []

        async def wait_until(_loader: MetadataLoader, condition: Any) -> None:
            waits.append(condition)

        monkeypatch.setattr(MetadataLoader, "wait_until", wait_until)
        topic = TopicData(
            topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)]
        )
        await done(cluster, DescribeQuorumRequest(topics=[topic]))
        await done(cluster, ListPartitionReassignmentsRequest(topics=None))
        assert waits == []
