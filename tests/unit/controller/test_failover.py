"""Three controllers and a broker's node over loopback: who leads changes, requests get through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.broker.lifecycle.broker_lifecycle import BrokerLifecycle, BrokerState
from moldau.broker.lifecycle.controller_channel import NetworkControllerChannel
from moldau.metadata.features import SUPPORTED_FEATURES
from moldau.metadata.image import MetadataImage
from moldau.node.quorum_link import LeaderRelay
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from moldau.protocol.schema import Message
from tests.unit.controller.quorum_cluster import BROKER, CLIENT, CONTROLLERS, Cluster
from tests.unit.metadata.builders import CLUSTER_ID, directory_id

pytestmark = pytest.mark.real


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, broker_session_timeout_ms="1500")
    await made.start()
    yield made
    await made.stop()


def broker_lifecycle(cluster: Cluster, channel: Any = None) -> BrokerLifecycle:
    return BrokerLifecycle(
        channel or cluster.channel,
        BrokerRegistrationRequest(
            broker_id=BROKER,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(int=BROKER),
            listeners=[Listener(name="PLAINTEXT", host="b", port=9092)],
            features=[
                Feature(
                    name=name,
                    min_supported_version=levels.minimum_level,
                    max_supported_version=levels.maximum_level,
                )
                for name, levels in SUPPORTED_FEATURES.items()
            ],
            rack=None,
            log_dirs=[directory_id(BROKER)],
            previous_broker_epoch=-1,
        ),
        heartbeat_interval_ms=200,
        registration_timeout_ms=60_000,
        confirmed_for_ms=1_000,
        catch_up=lambda: asyncio.sleep(0),
        metadata_offset=lambda: cluster.metadata.image.provenance.last_contained_offset,
        offline_log_directories=list,
    )


async def test_requests_get_through_while_the_active_controller_changes(cluster: Cluster) -> None:
    lifecycle = broker_lifecycle(cluster)
    lifecycle.move_to(BrokerState.STARTING)
    await lifecycle.register()
    lifecycle.start_heartbeats()
    await asyncio.wait_for(lifecycle.wait_unfenced(), 30)
    assert await cluster.create("before") is ErrorCode.NONE

    def all_registered(image: MetadataImage) -> bool:
        return set(image.cluster.controllers) == set(CONTROLLERS)

    await cluster.metadata.until(all_registered)
    first = cluster.active
    stopping = asyncio.ensure_future(cluster.nodes[first].stop())
    during = [asyncio.ensure_future(cluster.create(f"during-{n}")) for n in range(5)]
    outcomes = set(await asyncio.wait_for(asyncio.gather(*during), 60))
    # A repeated request may meet what its lost first try has created.
    assert outcomes <= {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
    await stopping
    assert cluster.active != first
    names = {"before", *(f"during-{n}" for n in range(5))}
    await cluster.metadata.until(lambda image: set(image.topics.topics_by_name) == names)
    broker = cluster.metadata.image.cluster.brokers[BROKER]
    assert broker.broker_epoch == lifecycle.broker_epoch, "the registration outlives its controller"
    # Asked before the start: the node may have registered by the time its start is over.
    incarnation = cluster.metadata.image.cluster.controllers[first].incarnation_id
    await cluster.start_node(first)
    await cluster.metadata.until(
        lambda image: image.cluster.controllers[first].incarnation_id != incarnation
    )
    assert await cluster.create("after") is ErrorCode.NONE
    await lifecycle.stop()


async def test_a_broker_that_stood_still_is_fenced_and_comes_back(cluster: Cluster) -> None:
    """SIGSTOP for longer than its session: same registration, same epoch, in again by itself."""
    may_send = asyncio.Event()
    may_send.set()

    class Stoppable:
        async def send(self, request: Message, principal: str, *, timeout_ms: int = 0) -> Any:
            await may_send.wait()
            return await cluster.channel.send(request, principal, timeout_ms=timeout_ms)

    lifecycle = broker_lifecycle(cluster, Stoppable())
    lifecycle.move_to(BrokerState.STARTING)
    await lifecycle.register()
    lifecycle.start_heartbeats()
    await asyncio.wait_for(lifecycle.wait_unfenced(), 30)

    def fenced(wanted: bool) -> Callable[[MetadataImage], bool]:
        return lambda image: image.cluster.brokers[BROKER].fenced is wanted

    await cluster.metadata.until(fenced(False))
    may_send.clear()
    await cluster.metadata.until(fenced(True))
    may_send.set()
    await cluster.metadata.until(fenced(False))
    broker = cluster.metadata.image.cluster.brokers[BROKER]
    assert broker.broker_epoch == lifecycle.broker_epoch
    lifecycle.move_to(BrokerState.RECOVERY)
    lifecycle.move_to(BrokerState.RUNNING)
    assert await lifecycle.begin_controlled_shutdown(30_000), "it leads nothing and may go at once"
    await cluster.metadata.until(fenced(True))
    await lifecycle.stop()


async def test_a_quorum_with_configured_voters_is_upgraded(cluster: Cluster) -> None:
    """kraft.version 1 by UpdateFeatures: from then on the voters are in the log (KIP-853)."""
    update = FeatureUpdateKey(feature="kraft.version", max_version_level=1)
    async with asyncio.timeout(30):
        while True:
            response, _ = await cluster.channel.forward(
                UpdateFeaturesRequest(feature_updates=[update]), "User:alice", CLIENT
            )
            if "have not told this leader" not in (response.error_message or ""):
                break
            # The voters have yet to report themselves to the leader of this epoch.
            await cluster.create("makes-the-voters-fetch")
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        while cluster.nodes[BROKER].kraft_version != 1:
            await cluster.create("makes-the-observer-fetch")


async def test_a_standbys_own_process_asks_the_others(cluster: Cluster) -> None:
    """The router of a combined node whose controller is not the active one."""
    assert await cluster.channel.forward(UpdateFeaturesRequest(), "User:a", CLIENT)
    standby = next(each for each in CONTROLLERS if each != cluster.active)
    node = cluster.nodes[standby]
    relay = LeaderRelay(asyncio.get_running_loop())
    router = NetworkControllerChannel(relay.leader, own=node.own_controller)
    relay.on_change = router.leader_changed
    await node.watch_leader(relay.publish)
    response, _ = await router.forward(UpdateFeaturesRequest(), "User:a", CLIENT)
    assert response.error_code == ErrorCode.NONE
    await router.close()
