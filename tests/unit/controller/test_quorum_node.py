"""A controller node on its own thread: requests in, committed metadata out, restarts."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.broker.lifecycle.controller_channel import ForwardedClient, NetworkControllerChannel
from moldau.metadata.features import advertised_features, feature_records, initial_feature_levels
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance, TransactionFilter
from moldau.metadata.log import CommittedBatch, LoadedSnapshot
from moldau.node import quorum_node as quorum_node_module
from moldau.node.quorum_link import LeaderRelay
from moldau.node.quorum_node import MetadataRelay, QuorumNode
from moldau.node.settings import controller_endpoints
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.error_responses import error_response
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p55_describe_quorum as quorum
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.p62_broker_registration import BrokerRegistrationRequest, Feature
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.registry import request_class, response_class
from moldau.protocol.schema import Message
from moldau.raft import MetadataLogError, Subscription, VoterDescription, VoterSet, write_bootstrap
from moldau.runtime import loop_thread
from moldau.runtime.connection import Connection
from moldau.runtime.filesystem import OsFilesystem
from moldau.runtime.leader_link import LeaderAddress
from moldau.runtime.loop_thread import LoopBusy, LoopThread
from moldau.runtime.network import AsyncioNetwork
from moldau.server.apis import CONTROLLER_APIS
from moldau.server.authorizer import Authorizer
from moldau.server.request import Sender
from tests.kit.counting import Newcomers
from tests.kit.waiting import until_async
from tests.unit.controller.harness import Deny
from tests.unit.metadata.builders import CLUSTER_ID, golden, node_config, registration

pytestmark = pytest.mark.real

DIRECTORY_ID = UUID(int=0x5F9D)
LISTENERS = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"


class Consumer:
    """Builds the image as a broker does."""

    def __init__(self) -> None:
        self.image = MetadataImage.EMPTY
        self.snapshot_count = 0
        self._transactions = TransactionFilter()
        self._changed = asyncio.Event()

    def on_snapshot(self, snapshot: LoadedSnapshot) -> None:
        self.snapshot_count += 1
        delta = MetadataDelta(MetadataImage.EMPTY)
        for record in snapshot.records:
            delta.replay(record)
        self.image = delta.apply(Provenance(snapshot.end_offset - 1, snapshot.leader_epoch))
        self._changed.set()

    def on_commit(self, batch: CommittedBatch) -> None:
        assert batch.base_offset == self.image.provenance.last_contained_offset + 1
        delta = MetadataDelta(self.image)
        for record in self._transactions.feed(batch.records):
            delta.replay(record)
        self.image = delta.apply(Provenance(batch.last_offset, batch.leader_epoch))
        self._changed.set()

    async def until(
        self, condition: Callable[[MetadataImage], bool], *, deadline_s: float = 20
    ) -> None:
        async with asyncio.timeout(deadline_s):
            while not condition(self.image):
                self._changed.clear()
                await self._changed.wait()


def make_node(directory: Path, **overrides: str) -> QuorumNode:
    config = node_config(log_dirs=str(directory), listeners=LISTENERS, **overrides)
    return QuorumNode(
        config, cluster_id=CLUSTER_ID, directory_id=DIRECTORY_ID, on_fatal=pytest.fail
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    filesystem = OsFilesystem(1)
    endpoints = controller_endpoints(node_config())
    voters = VoterSet((VoterDescription(1, DIRECTORY_ID, endpoints),), 1)
    write_bootstrap(
        filesystem,
        str(tmp_path),
        feature_records(initial_feature_levels()),
        voters,
        now_ms=5,
    )
    filesystem.close()
    return tmp_path


async def ask(node: QuorumNode, request: Message) -> Any:
    """The controller's response, by the way that the node's own broker takes."""
    own = node.own_controller
    assert own is not None
    return await own.thread.run(own.answer(Sender("User:a", Authorizer()), request))


async def join(node: QuorumNode, number: int = 1) -> int:
    response = await ask(node, registration(1, incarnation_id=UUID(int=number)))
    assert response.error_code == 0
    beat = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=response.broker_epoch,
        current_metadata_offset=response.broker_epoch,
    )
    assert (await ask(node, beat)).is_fenced is False
    return int(response.broker_epoch)


def topic(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    )


async def test_requests_in_metadata_out_and_again_after_a_restart(directory: Path) -> None:
    node = make_node(directory)
    await node.start()
    consumer = Consumer()
    await node.subscribe(consumer)
    await join(node)
    responses = await asyncio.gather(*(ask(node, topic(f"t{i}")) for i in range(50)))
    assert {response.topics[0].error_code for response in responses} == {0}
    assert len(consumer.image.topics.topics_by_name) == 50, "seen before the answers"
    await consumer.until(lambda image: 1 in image.cluster.controllers)
    registered = consumer.image.cluster.controllers[1].listeners["CONTROLLER"]
    assert registered.port == node.port("CONTROLLER") > 0
    digest = consumer.image.topics
    await node.stop()
    with pytest.raises(LoopBusy):
        await ask(node, topic("late"))
    node = make_node(directory)
    await node.start()
    again = Consumer()
    await node.subscribe(again)
    await again.until(lambda image: len(image.topics.topics_by_name) == 50)
    assert set(again.image.topics.topics_by_id) == set(digest.topics_by_id)
    await join(node, 2)
    await node.stop()


async def _has_files(directory: Path, pattern: str, count: int) -> bool:
    found = await asyncio.to_thread(lambda: list(directory.glob(pattern)))
    return len(found) >= count


async def test_a_restart_from_snapshots(directory: Path) -> None:
    limits = {"metadata.log.max.record.bytes.between.snapshots": "2000"}
    node = make_node(directory, **limits)
    await node.start()
    await join(node)
    log_directory = directory / "__cluster_metadata-0"

    async def more(prefix: str, checkpoints: int) -> None:
        """Topics; and wait, one snapshot at a time is written, for so many of them."""
        for index in range(20):
            await ask(node, topic(f"{prefix}{index}"))
        await until_async(
            lambda: _has_files(log_directory, "*.checkpoint", checkpoints), what="snapshots"
        )

    await more("a", 2)
    await more("b", 3)
    await node.stop()
    node = make_node(directory, **limits)
    await node.start()
    consumer = Consumer()
    await node.subscribe(consumer)
    await consumer.until(lambda image: len(image.topics.topics_by_name) == 40)
    assert consumer.snapshot_count == 1
    await node.stop()


async def test_the_metadata_log_that_apache_kafka_wrote(tmp_path: Path) -> None:
    log_directory = tmp_path / "__cluster_metadata-0"
    log_directory.mkdir()
    for name in (
        "00000000000000000000.log",
        "00000000000000000000-0000000000.checkpoint",
        "00000000000000000047-0000000001.checkpoint",
    ):
        (log_directory / name).write_bytes(golden(name))
    (log_directory / "quorum-state").write_text(
        '{"leaderId":1,"leaderEpoch":2,"votedId":-1,'
        '"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    config = node_config(log_dirs=str(tmp_path), listeners=LISTENERS)
    directory_id = UUID("02ca66af-7372-4228-927c-c940a80b58d0")
    node = QuorumNode(
        config, cluster_id=CLUSTER_ID, directory_id=directory_id, on_fatal=pytest.fail
    )
    await node.start()
    consumer = Consumer()
    await node.subscribe(consumer)
    await consumer.until(lambda image: "late" in image.topics.topics_by_name)
    # A clean restart: the broker names the epoch that Kafka gave it, and leads everything again.
    old = consumer.image.cluster.brokers[1]
    features = [
        Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest, _default) in advertised_features(
            consumer.image.features.finalized_levels
        ).items()
    ]
    response = await ask(
        node,
        registration(
            1,
            log_dirs=[directory_id],
            previous_broker_epoch=old.broker_epoch,
            features=features,
        ),
    )
    assert response.error_code == 0
    await ask(
        node,
        BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=response.broker_epoch,
            current_metadata_offset=response.broker_epoch,
        ),
    )
    orders = consumer.image.topics.topics_by_name["orders"]
    assert {partition.leader for partition in orders.partitions.values()} == {1}
    assert {partition.leader_recovery_state for partition in orders.partitions.values()} == {0}
    await node.stop()


async def test_describe_quorum(directory: Path) -> None:
    node = make_node(directory)
    await node.start()
    request = quorum.DescribeQuorumRequest(
        topics=[
            quorum.TopicData(
                topic_name="__cluster_metadata",
                partitions=[quorum.PartitionData(partition_index=0)],
            )
        ]
    )
    consumer = Consumer()
    await node.subscribe(consumer)
    await consumer.until(lambda image: 1 in image.cluster.controllers)  # the last of the start
    response = await ask(node, request)
    (good,) = response.topics[0].partitions
    assert (good.leader_id, good.leader_epoch, good.error_code) == (1, 1, 0)
    assert good.high_watermark == good.current_voters[0].log_end_offset > 0
    assert good.current_voters[0].replica_directory_id == DIRECTORY_ID
    assert response.nodes[0].listeners[0].port == node.port("CONTROLLER")
    response.to_bytes(2)
    await node.stop()


async def test_in_process_too_a_clients_permissions_count(directory: Path) -> None:
    node = make_node(directory)
    node.authorizer = Deny((Operation.ALTER, ResourceType.CLUSTER))
    await node.start()
    request = UnregisterBrokerRequest(broker_id=99)
    address = LeaderAddress(1, "127.0.0.1", node.port("CONTROLLER"))
    channel = NetworkControllerChannel(lambda: address, own=node.own_controller)
    client = ForwardedClient("10.1.2.3", "client")
    refused = await channel.forward(request, "User:alice", client)
    assert refused.response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    own = await channel.send(request, "User:broker")
    assert own.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    await channel.close()
    await node.stop()


async def test_the_leader_is_reported_from_the_quorums_thread(directory: Path) -> None:
    node = make_node(directory)
    await node.start()
    relay = LeaderRelay(asyncio.get_running_loop())
    changed = asyncio.Event()
    relay.on_change = changed.set
    await node.watch_leader(relay.publish)
    await asyncio.wait_for(changed.wait(), 10)
    leader = relay.leader()
    assert leader is not None
    assert leader.node_id == 1
    assert node.is_active_controller
    assert node.kraft_version == 1
    connection = await Connection.connect(
        AsyncioNetwork(), "127.0.0.1", node.port("CONTROLLER"), client_id="tests"
    )

    async def is_described() -> bool:
        described = await connection.send(DescribeClusterRequest(endpoint_type=2))
        return bool(described.controller_id == 1)

    # Active is who has appended the first records; they are committed in a moment.
    await until_async(is_described, what="the active controller knows of itself")
    connection.close()
    await node.stop()


async def test_an_observer_follows_its_controllers_and_has_none_itself(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A broker's node: metadata and leadership come by the network, requests are not taken."""
    controller = make_node(directory)
    await controller.start()
    await ask(controller, registration(1))
    config = node_config(
        process_roles="broker",
        node_id="7",
        listeners="PLAINTEXT://127.0.0.1:0",
        log_dirs=str(tmp_path_factory.mktemp("observer")),
        controller_quorum_bootstrap_servers=f"127.0.0.1:{controller.port('CONTROLLER')}",
    )
    observer = QuorumNode(
        config, cluster_id=CLUSTER_ID, directory_id=UUID(int=7), on_fatal=pytest.fail
    )
    await observer.start()
    consumer = Consumer()
    await observer.subscribe(consumer)
    await consumer.until(lambda image: 1 in image.cluster.brokers)
    assert observer.own_controller is None
    await observer.stop()
    await controller.stop()


async def test_an_address_in_use_is_an_error_and_leaves_nothing_running(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = node_config(
            log_dirs=str(directory),
            listeners=f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
        )
        node = QuorumNode(
            config, cluster_id=CLUSTER_ID, directory_id=DIRECTORY_ID, on_fatal=pytest.fail
        )
        new = Newcomers()
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            await node.start()
    assert not new.threads("moldau-quorum")


async def test_a_log_that_cannot_be_used_is_one_clear_line(directory: Path) -> None:
    (directory / "__cluster_metadata-0" / "quorum-state").write_text("{")
    node = make_node(directory)
    with pytest.raises(MetadataLogError, match="quorum-state"):
        await node.start()
    shutil.rmtree(directory / "__cluster_metadata-0")
    os.unlink(directory / "bootstrap.checkpoint")
    node = make_node(directory, **{"controller.quorum.voters": "1@localhost:9093"})
    await node.start()  # an empty directory begins with this release's defaults
    await node.stop()


def test_every_api_has_a_failure_response() -> None:
    for api_key in CONTROLLER_APIS:
        request = request_class(api_key)()
        response = error_response(request, ErrorCode.NOT_CONTROLLER, "why")
        assert type(response) is response_class(api_key)
        response.to_bytes(type(response).MAX_VERSION)
    response = error_response(topic("x"), ErrorCode.NOT_CONTROLLER, "why")
    assert (response.topics[0].name, response.topics[0].error_code) == ("x", 41)
    request = BrokerRegistrationRequest()
    assert error_response(request, ErrorCode.NOT_CONTROLLER, "").error_code == 41


async def test_calls_to_the_thread_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "MAX_CALLS", 2)
    thread = LoopThread("test")
    thread.start()
    release = asyncio.Event()

    async def wait() -> str:
        await release.wait()
        return "done"

    first, second = (asyncio.ensure_future(thread.run(wait())) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(LoopBusy):
        await thread.run(wait())
    first.cancel()
    thread.loop.call_soon_threadsafe(release.set)
    assert await second == "done"
    await thread.stop()
    with pytest.raises(LoopBusy):
        await thread.run(wait())


async def test_a_slow_consumer_pauses_the_log_instead_of_filling_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quorum_node_module, "MAX_RELAYED_BATCHES", 10)
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    class Slow(Consumer):
        def on_commit(self, batch: CommittedBatch) -> None:
            seen.append(batch.base_offset)

    relay = MetadataRelay(Slow(), loop, loop)
    resumed: list[bool] = []
    relay.subscription = Subscription(relay, lambda _subscription: resumed.append(True))
    for offset in range(10):
        assert relay.subscription.state.name == "CATCHING_UP"
        relay.handle_commit(CommittedBatch(offset, offset, 1, 5, 100, ()))
    assert relay.subscription.state.name == "PAUSED"
    async with asyncio.timeout(10):
        while not resumed:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert seen == list(range(10))
    assert relay.subscription.state.name == "CATCHING_UP"
    relay.close()
    relay.handle_commit(CommittedBatch(11, 11, 1, 5, 100, ()))
    await asyncio.sleep(0)
    assert seen == list(range(10))


async def test_a_consumer_that_fails_once_hears_of_what_follows(directory: Path) -> None:
    class FailsOnce(Consumer):
        has_failed = False

        def on_commit(self, batch: CommittedBatch) -> None:
            super().on_commit(batch)
            if not self.has_failed:
                self.has_failed = True
                raise ZeroDivisionError("the test says so")

    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
    node = make_node(directory)
    await node.start()
    consumer = FailsOnce()
    await node.subscribe(consumer)
    await join(node)
    await ask(node, topic("later"))
    await consumer.until(lambda image: "later" in image.topics.topics_by_name)
    assert len(faults) == 1
    await node.stop()


async def test_a_start_that_is_called_off_leaves_nothing_running(directory: Path) -> None:
    node, new = make_node(directory), Newcomers()
    starting = asyncio.ensure_future(node.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await node.stop()
    assert not new.threads("moldau-quorum")
    again = make_node(directory)
    await again.start()
    await join(again)
    await again.stop()


async def test_a_node_that_has_ended_answers_no_question_about_its_peers(directory: Path) -> None:
    node = make_node(directory)
    await node.start()
    assert await node.peer_problems() == {}
    await node.stop()
    with pytest.raises(LoopBusy):
        await node.peer_problems()


async def test_faults_on_the_thread_reach_the_node(directory: Path) -> None:
    faults: list[dict[str, Any]] = []
    node = QuorumNode(
        node_config(log_dirs=str(directory)),
        cluster_id=CLUSTER_ID,
        directory_id=DIRECTORY_ID,
        on_fatal=pytest.fail,
        exception_handler=lambda _loop, fault: faults.append(fault),
    )
    await node.start()

    def fail() -> None:
        raise AssertionError("the test says so")

    node._thread.loop.call_soon_threadsafe(fail)
    await join(node)
    await node.stop()
    assert [str(fault["exception"]) for fault in faults] == ["the test says so"]


async def test_a_controller_that_does_not_become_active_is_one_clear_line(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum_node_module, "ACTIVATION_TIMEOUT_S", 0.0)
    node = make_node(directory)
    with pytest.raises(MetadataLogError, match="not active"):
        await node.start()
    await node.stop()
