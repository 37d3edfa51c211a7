"""One client floods a coordinator that cannot commit; the members of others keep their places."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.runtime.connection import Connection
from moldau.testing import Cluster
from tests.interop.raw.probe import connected, topic_metadata
from tests.kit.waiting import until_async

pytestmark = pytest.mark.system

SESSION_MS = 4_000
COMMIT_TIMEOUT_MS = 2 * SESSION_MS + 1_000
CONFIG = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "2",
    "offsets.commit.timeout.ms": str(COMMIT_TIMEOUT_MS),
    # A follower that is paused stays in sync: nothing is committed.
    "broker.session.timeout.ms": "120000",
    "replica.lag.time.max.ms": "120000",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}
PARTITIONS = 240
METADATA = "m" * 4_000
"""So that a commit is nearly as large as a batch may be."""
FLOODING_CONNECTIONS = 3
IN_FLIGHT = 64
"""The requests of each in flight: together more than the coordinator lets wait."""


class Flood:
    """One client that commits as fast as it can, without waiting for answers."""

    def __init__(self) -> None:
        self.answers: Counter[ErrorCode] = Counter()
        offsets = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=1, committed_metadata=METADATA
            )
            for index in range(PARTITIONS)
        ]
        self._request = OffsetCommitRequest(
            group_id="flood",
            topics=[OffsetCommitRequestTopic(name="events", partitions=offsets)],
        )

    async def commit(self, connection: Connection) -> None:
        while True:
            response: Any = await connection.send(self._request, api_version=8)
            self.answers[ErrorCode.of(response.topics[0].partitions[0].error_code)] += 1


async def coordinator_of(connection: Connection) -> tuple[int, str]:
    """The broker that coordinates every group, and its address."""

    async def look() -> tuple[int, str] | None:
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["team"])
        (found,) = (await connection.send(asked, api_version=4)).coordinators
        return None if found.error_code else (found.node_id, f"{found.host}:{found.port}")

    return await until_async(look, what="a coordinator")


async def join(connection: Connection) -> HeartbeatRequest:
    """Become the only member of a classic group; its heartbeat."""
    request = JoinGroupRequest(
        group_id="team",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    request.member_id = (await connection.send(request, api_version=5)).member_id
    joined = await connection.send(request, api_version=5)
    assert joined.error_code == ErrorCode.NONE
    sync = SyncGroupRequest(
        group_id="team",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
    )
    assert (await connection.send(sync, api_version=3)).assignment == b"all"
    return HeartbeatRequest(
        group_id="team", generation_id=joined.generation_id, member_id=joined.member_id
    )


async def join_consumers(connection: Connection) -> ConsumerGroupHeartbeatRequest:
    """The same in a group of KIP-848."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="consumers",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["events"],
        topic_partitions=[],
    )
    joined: Any = await connection.send(request, api_version=1)
    assert joined.error_code == ErrorCode.NONE
    return ConsumerGroupHeartbeatRequest(
        group_id="consumers", member_id="m", member_epoch=joined.member_epoch
    )


async def test_members_of_others_keep_their_places() -> None:
    async with AsyncExitStack() as stack, Cluster(brokers=2, config=CONFIG) as cluster:
        first = await stack.enter_async_context(connected(cluster.bootstrap_server.split(",")[0]))
        topic = CreatableTopic(name="events", num_partitions=PARTITIONS, replication_factor=1)
        await first.send(CreateTopicsRequest(topics=[topic]), api_version=5)
        await topic_metadata(first, "events")
        coordinator_id, address = await coordinator_of(first)
        floods = await stack.enter_async_context(AsyncExitStack())
        classic, consumer, *flooding = [
            await where.enter_async_context(connected(address, max_in_flight=IN_FLIGHT))
            for where in (stack, stack, *[floods] * FLOODING_CONNECTIONS)
        ]
        beat, consumer_beat = await join(classic), await join_consumers(consumer)
        (follower_id,) = set(cluster.broker_ids) - {coordinator_id}
        cluster.pause(follower_id)
        flood = Flood()
        commits = [
            asyncio.create_task(flood.commit(connection))
            for connection in flooding
            for _ in range(IN_FLIGHT)
        ]

        asked: list[asyncio.Future[Any]] = []

        async def has_beaten() -> bool:
            """The classic member is answered at once, the other when what waits is over."""
            assert (await classic.send(beat)).error_code == ErrorCode.NONE
            if all(each.done() for each in asked):
                asked.append(asyncio.ensure_future(consumer.send(consumer_beat)))
            return asked[0].done()

        async def is_refused() -> bool:
            await has_beaten()
            return flood.answers.total() > 0

        await until_async(is_refused, what="the flood is answered")
        assert ErrorCode.NONE not in flood.answers
        for each in commits:
            each.cancel()
        await asyncio.gather(*commits, return_exceptions=True)
        # What the flood has sent and the broker has not read yet goes with its connections.
        await floods.aclose()
        cluster.resume(follower_id)
        await until_async(has_beaten, what="the members are answered")
        # One that was asked with the flood's first commits may have waited as long as they did.
        waited = {each.error_code for each in await asyncio.gather(*asked)}
        assert waited <= {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert (await consumer.send(consumer_beat)).error_code == ErrorCode.NONE
        assert (await classic.send(beat)).error_code == ErrorCode.NONE
