"""Lag of groups in `/metrics`: values, what is left out, and how few requests leaders get."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.coordinator.other_brokers import OtherBrokers
from moldau.metadata.image import MetadataImage
from moldau.node.http import lags
from moldau.node.http.lags import Committed, GroupLags, Offsets
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as p02
from moldau.protocol.messages.p42_delete_groups import DeleteGroupsRequest
from moldau.protocol.metadata_records import RegisterBrokerRecord, UnregisterBrokerRecord
from moldau.protocol.metadata_records.nodes import Endpoint
from moldau.runtime.connection import ConnectionLost
from tests.unit.broker.coordinator.group.data_path import (
    commit_request,
    errors,
    running_broker,
    stable,
)
from tests.unit.broker.harness import OTHER_BROKER_ID, DataPath
from tests.unit.broker.messages import batch, produce
from tests.unit.node.http.site import served
from tests.virtual.machine import pass_time

LAG = "kafka_consumergroup_lag"
CURRENT = "kafka_consumergroup_current_offset"
CURRENT_SUM = "kafka_consumergroup_current_offset_sum"
SUM = "kafka_consumergroup_lag_sum"
MEMBERS = "kafka_consumergroup_members"
LEFT_OUT = "kafka_consumergroup_lag_left_out"
UNKNOWN = "kafka_consumergroup_lag_unknown"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    """With topic `events`, of which partition 0 has five records."""
    options = {"moldau_group_lag_enable": True, "moldau_group_lag_max_partitions": 100}
    async with running_broker(tmp_path, **options) as data_path:
        await data_path.ask(produce({("events", 0): batch(5)}), 12)
        yield data_path


async def commit(broker: DataPath, group_id: str, **offsets: int) -> None:
    """Commit offsets of topics' partitions, as `events_1=7`."""
    wanted = {}
    for name, offset in offsets.items():
        topic, _, index = name.rpartition("_")
        wanted[topic, int(index)] = offset
    answer = await broker.ask(commit_request(wanted, group_id=group_id), 9)
    assert set(errors(answer)) == {ErrorCode.NONE}


def values(text: bytes) -> dict[str, int]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}


async def on_loop(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


async def series(broker: DataPath, group_lags: GroupLags | None = None) -> dict[str, int]:
    page = group_lags or GroupLags(asyncio.get_running_loop())
    return values(await page.text(broker.services, on_loop))


def of(group: str, index: int | None = None, topic: str = "events") -> str:
    partition = "" if index is None else f',partition="{index}"'
    return f'{{consumergroup="{group}",topic="{topic}"{partition}}}'


async def test_lag_is_the_high_watermark_less_the_committed_offset(broker: DataPath):
    await commit(broker, "team", events_0=2, events_1=0)
    found = await series(broker)
    assert found == {
        LAG + of("team", 0): 3,
        LAG + of("team", 1): 0,
        CURRENT + of("team", 0): 2,
        CURRENT + of("team", 1): 0,
        CURRENT_SUM + of("team"): 2,
        SUM + of("team"): 3,
        MEMBERS + '{consumergroup="team"}': 0,
        LEFT_OUT + '{kind="group"}': 0,
        LEFT_OUT + '{kind="partition"}': 0,
        UNKNOWN: 0,
    }


async def test_the_page_has_the_lag_behind_the_other_metrics(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
):
    await commit(broker, "team", events_0=2)
    async with served(monkeypatch, services=lambda: broker.services) as site:
        body = (await site.ask("/metrics")).body
        assert f"\n{LAG}{of('team', 0)} 3\n".encode() in body
        assert f"\n# TYPE {LAG} gauge\n".encode() in body
        broker.node_values["moldau.group.lag.enable"] = False
        assert b"consumergroup" not in (await site.ask("/metrics")).body


async def test_members_of_a_group_without_offsets_are_counted(broker: DataPath):
    await stable(broker)
    found = await series(broker)
    assert found[MEMBERS + '{consumergroup="team"}'] == 1
    assert SUM + of("team") not in found


async def test_an_offset_beyond_the_end_is_no_negative_lag(broker: DataPath):
    await commit(broker, "team", events_0=9)
    assert (await series(broker))[LAG + of("team", 0)] == 0


async def test_a_deleted_group_has_no_series(broker: DataPath):
    await commit(broker, "team", events_0=2)
    await commit(broker, "other", events_0=2)
    await broker.ask(DeleteGroupsRequest(groups_names=["team"]), 2)
    found = await series(broker)
    assert SUM + of("other") in found
    assert not [name for name in found if "team" in name]


async def test_a_deleted_topic_has_no_series(broker: DataPath):
    broker.create_topic("gone")
    await commit(broker, "team", events_0=2, gone_0=0)
    assert CURRENT + of("team", 0, "gone") in await series(broker)
    broker.delete_topic("gone")
    found = await series(broker)
    assert CURRENT + of("team", 0) in found
    assert not [name for name in found if "gone" in name]


async def test_names_of_groups_are_escaped(broker: DataPath):
    await commit(broker, 'a"b\\c\nd', events_0=2)
    assert (await series(broker))[LAG + of('a\\"b\\\\c\\nd', 0)] == 3


async def test_beyond_the_bound_there_are_sums_alone(
    broker: DataPath, caplog: pytest.LogCaptureFixture
):
    broker.node_values["moldau.group.lag.max.partitions"] = 2
    await commit(broker, "team", events_0=2, events_1=0)
    page = GroupLags(asyncio.get_running_loop())
    with caplog.at_level(logging.WARNING):
        assert LAG + of("team", 0) in await series(broker, page)
        assert caplog.messages == []
        await commit(broker, "other", events_0=1)
        found = await series(broker, page)
        assert found[SUM + of("team")] == 3
        assert found[SUM + of("other")] == 4
        assert found[LEFT_OUT + '{kind="partition"}'] == 3
        assert not [name for name in found if "partition=" in name]
        await series(broker, page)
    [line] = caplog.messages
    assert "3 partitions" in line
    assert "moldau.group.lag.max.partitions" in line


async def test_groups_beyond_the_bound_are_counted(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lags, "MAX_GROUPS", 2)
    for name in ("a", "b", "c", "d"):
        await commit(broker, name, events_0=2, events_1=0)
    found = await series(broker)
    assert len([name for name in found if name.startswith(MEMBERS)]) == 2
    assert len([name for name in found if name.startswith(SUM)]) == 2
    assert found[LEFT_OUT + '{kind="group"}'] == 2


async def test_the_data_loop_has_its_turn_after_each_slice(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
):
    class Over:
        def __init__(self, clock: Any) -> None:
            self.is_over = True

    names = [f"team-{n}" for n in range(20)]
    for name in names:
        await commit(broker, name, events_0=2)
    visits = []

    async def visited(function: Any, *arguments: Any) -> Any:
        found = function(*arguments)
        visits.append(found)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(lags, "LoopSlices", Over)
        page = GroupLags(asyncio.get_running_loop())
        found = values(await page.text(broker.services, visited))
    walked = [each for each in visits if each and isinstance(each[0], Committed)]
    assert [len(each) for each in walked] == [1] * 20
    assert {each[0].group_id for each in walked} == set(names)
    assert len([name for name in found if name.startswith(SUM)]) == 20


async def test_a_coordinator_that_moved_away_has_no_more_groups(broker: DataPath):
    await commit(broker, "team", events_0=2)
    walk = lags.CommittedWalk(broker.coordinators.groups.runtime, broker.clock)
    for index in range(2):
        broker.change_partition("__consumer_offsets", index, leader=OTHER_BROKER_ID, leader_epoch=1)
    assert walk.next_slice() == []
    assert [name for name in await series(broker) if "team" in name] == []


def test_offsets_of_unknown_topics_are_not_kept():
    offsets = Offsets()
    offsets.add([Committed("team", 0, "gone", ((0, 5),))], MetadataImage())
    assert offsets.group_ids == ["team"]
    assert (list(offsets.places), list(offsets.committed)) == ([], [])


class Leader:
    """Another broker, as the link to it shows it."""

    def __init__(self, ends: dict[tuple[str, int], int]) -> None:
        self.ends = ends
        self.asked: list[list[tuple[str, int]]] = []
        self.is_closed = False
        self.is_silent = False

    async def send(self, address: Any, request: Any, *, timeout_ms: float) -> Any:
        if self.is_silent:
            await asyncio.Event().wait()
        if self.is_closed:
            raise ConnectionLost("closed")
        self.asked.append(
            [
                (topic.name, each.partition_index)
                for topic in request.topics
                for each in topic.partitions
            ]
        )
        assert (request.replica_id, request.isolation_level) == (-1, 0)
        return p02.ListOffsetsResponse(
            topics=[
                p02.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        p02.ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            error_code=ErrorCode.NONE
                            if (topic.name, each.partition_index) in self.ends
                            else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                            offset=self.ends.get((topic.name, each.partition_index), -1),
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def leader(broker: DataPath, monkeypatch: pytest.MonkeyPatch) -> Leader:
    """Of the topic `far` with three partitions, of which it says nothing about the last one."""
    made = Leader({("far", 0): 10, ("far", 1): 20})
    monkeypatch.setattr(OtherBrokers, "link", lambda self, client_id: made)
    broker.replay(
        RegisterBrokerRecord(
            broker_id=OTHER_BROKER_ID,
            fenced=False,
            endpoints=[Endpoint(name="PLAINTEXT", host="far", port=1, security_protocol=0)],
        )
    )
    broker.create_topic("far", 3, leader=OTHER_BROKER_ID, replicas=(OTHER_BROKER_ID,))
    return made


async def test_other_leaders_are_asked_once_for_all_groups(broker: DataPath, leader: Leader):
    for name in ("a", "b", "c"):
        await commit(broker, name, far_0=4, far_1=5, far_2=6)
    found = await series(broker)
    assert [sorted(each) for each in leader.asked] == [[("far", 0), ("far", 1), ("far", 2)]]
    for name in ("a", "b", "c"):
        assert found[LAG + of(name, 0, "far")] == 6
        assert found[LAG + of(name, 1, "far")] == 15
        assert LAG + of(name, 2, "far") not in found
        assert found[CURRENT + of(name, 2, "far")] == 6
        assert found[SUM + of(name, topic="far")] == 21
    assert found[UNKNOWN] == 1


async def test_ends_of_other_leaders_are_kept_for_a_while(broker: DataPath, leader: Leader):
    await commit(broker, "a", far_0=4)
    page = GroupLags(asyncio.get_running_loop())
    assert (await series(broker, page))[LAG + of("a", 0, "far")] == 6
    leader.ends["far", 0] = 11
    await commit(broker, "a", far_0=12)
    assert (await series(broker, page))[LAG + of("a", 0, "far")] == 0
    assert len(leader.asked) == 1
    broker.clock.advance(lags.ENDS_KEPT_MS)
    leader.ends["far", 0] = 15
    assert (await series(broker, page))[LAG + of("a", 0, "far")] == 3
    await page.close()
    assert leader.is_closed


async def test_the_connection_to_a_broker_that_has_left_is_closed(broker: DataPath, leader: Leader):
    await commit(broker, "a", far_0=4)
    page = GroupLags(asyncio.get_running_loop())
    await series(broker, page)
    broker.change_partition("far", leader=-1, leader_epoch=1)
    broker.replay(UnregisterBrokerRecord(broker_id=OTHER_BROKER_ID, broker_epoch=-1))
    broker.clock.advance(lags.ENDS_KEPT_MS)
    assert (await series(broker, page))[UNKNOWN] == 1
    assert leader.is_closed


async def test_requests_to_a_leader_are_bounded(
    broker: DataPath, leader: Leader, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lags, "PARTITIONS_PER_REQUEST", 2)
    await commit(broker, "a", far_0=4, far_1=5, far_2=6)
    await series(broker)
    assert [len(each) for each in leader.asked] == [2, 1]


async def test_a_leader_that_is_silent_leaves_its_partitions_unknown(
    broker: DataPath, leader: Leader
):
    await commit(broker, "a", far_0=4, events_0=1)
    leader.is_silent = True
    waiting = asyncio.create_task(series(broker))
    await pass_time(lags.LEADERS_TIMEOUT_MS + 1)
    found = await waiting
    assert found[UNKNOWN] == 1
    assert LAG + of("a", 0, "far") not in found
    assert SUM + of("a", topic="far") not in found
    assert found[CURRENT_SUM + of("a", topic="far")] == 4
    assert found[LAG + of("a", 0)] == 4


async def test_a_lost_connection_leaves_its_partitions_unknown(broker: DataPath, leader: Leader):
    await commit(broker, "a", far_0=4)
    leader.is_closed = True
    assert (await series(broker))[UNKNOWN] == 1


async def test_a_closed_page_asks_no_leader(broker: DataPath, leader: Leader):
    await commit(broker, "a", far_0=4)
    page = GroupLags(asyncio.get_running_loop())
    await page.close()
    assert (await series(broker, page))[UNKNOWN] == 1
    assert leader.asked == []
