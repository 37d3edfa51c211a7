"""A client floods a coordinator's partition with commits: the groups of others stay whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from moldau.broker.coordinator.coordinators import ReplicaPartition
from moldau.broker.coordinator.ports import RuntimeSettings
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import OffsetCommitRequest
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.p69_consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.metadata_records import FeatureLevelRecord
from tests.unit.broker.coordinator.group.data_path import (
    SYNCED_PROTOCOL,
    commit_request,
    errors,
    join,
    running_broker,
    stable,
)
from tests.unit.broker.harness import DataPath, FakeConnection

MAX_WAITING_COUNT = 4
CONSUMER_SESSION_MS = 45_000
TICK_MS = 1_000


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DataPath]:
    settings = RuntimeSettings()._replace(max_waiting_count=MAX_WAITING_COUNT)
    monkeypatch.setattr(RuntimeSettings, "for_groups", lambda values: settings)
    async with running_broker(tmp_path) as data_path:
        data_path.replay(FeatureLevelRecord(name="group.version", feature_level=1))
        yield data_path


def neighbour_of(broker: DataPath, group_id: str) -> str:
    """A group of the same partition."""
    partition_of = broker.services.coordinators.groups.partition_of
    names = (f"flood-{number}" for number in range(1_000))
    return next(name for name in names if partition_of(name) == partition_of(group_id))


def flood(broker: DataPath, group_id: str) -> None:
    """Commit, each time over its own connection, until the line is full."""
    connection = broker.connection
    for _ in range(2 * MAX_WAITING_COUNT):
        broker.connection = FakeConnection()
        request: OffsetCommitRequest = commit_request({("events", 0): 1}, group_id=group_id)
        sent = broker.send(request, 9)
        if sent.is_answered:
            assert errors(sent.response) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
            break
    else:
        raise AssertionError("the line is not full")
    broker.connection = connection


def nothing_is_committed() -> Any:
    return patch.object(ReplicaPartition, "high_watermark", property(lambda self: 0))


async def test_a_classic_member_keeps_its_place_while_the_line_is_full(broker: DataPath) -> None:
    member = await stable(broker)
    beat = HeartbeatRequest(group_id="team", generation_id=1, member_id=member.member_id)
    flooding = neighbour_of(broker, "team")
    with nothing_is_committed():
        for _ in range(20):
            flood(broker, flooding)
            assert (await broker.ask(beat, 4)).error_code == ErrorCode.NONE
            broker.clock.advance(TICK_MS)
    assert (await broker.ask(beat, 4)).error_code == ErrorCode.NONE


async def test_a_consumer_member_keeps_its_place_while_the_line_is_full(broker: DataPath) -> None:
    beat = ConsumerGroupHeartbeatRequest(
        group_id="team",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["events"],
        topic_partitions=[],
    )
    joined = await broker.ask(beat, 1)
    assert joined.error_code == ErrorCode.NONE
    beat = ConsumerGroupHeartbeatRequest(
        group_id="team", member_id="m", member_epoch=joined.member_epoch
    )
    flooding = neighbour_of(broker, "team")
    with nothing_is_committed():
        for tick in range(2 * CONSUMER_SESSION_MS // TICK_MS):
            flood(broker, flooding)
            if tick % 5 == 0:
                broker.send(beat, 1)
            broker.clock.advance(TICK_MS)
    assert (await broker.ask(beat, 1)).error_code == ErrorCode.NONE
    (group,) = (await broker.ask(ConsumerGroupDescribeRequest(group_ids=["team"]), 1)).groups
    assert [member.member_id for member in group.members] == ["m"]


async def test_members_join_and_sync_while_the_line_is_full(broker: DataPath) -> None:
    await broker.ask(commit_request({("events", 0): 1}), 9)
    with nothing_is_committed():
        flood(broker, neighbour_of(broker, "team"))
        member = await join(broker)
        flood(broker, neighbour_of(broker, "team"))
        sync = SyncGroupRequest(
            group_id="team",
            generation_id=member.generation_id,
            member_id=member.member_id,
            **SYNCED_PROTOCOL,
        )
        waiting = broker.send(sync, 5)
        assert not waiting.is_answered
    broker.clock.advance(TICK_MS)
    answer = await broker.ask(sync, 5)
    assert answer.error_code == ErrorCode.NONE


async def test_what_waits_for_its_commit_is_held(broker: DataPath) -> None:
    member = await stable(broker)
    beat = HeartbeatRequest(group_id="team", generation_id=1, member_id=member.member_id)
    with nothing_is_committed():
        request = commit_request(
            {("events", 0): 1}, generation_id_or_member_epoch=1, member_id=member.member_id
        )
        commit = broker.send(request, 9)
        assert (await broker.ask(beat, 4)).error_code == ErrorCode.NONE
    assert broker.connection.held == [commit]
    assert commit.is_body_released
