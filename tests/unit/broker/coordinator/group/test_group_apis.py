"""The APIs of groups and offsets, every version of each, through a broker's data path."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pytest

from moldau.broker.coordinator.coordinators import ReplicaPartition
from moldau.protocol.access_control import Operation
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest
from moldau.protocol.messages.p15_describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.p16_list_groups import ListGroupsRequest
from moldau.protocol.messages.p42_delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.p47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.unit.broker.coordinator.group.data_path import (
    SYNCED_PROTOCOL,
    commit_request,
    errors,
    join,
    join_request,
    running_broker,
    stable,
    ticked,
)
from tests.unit.broker.coordinator.group.harness import subscription
from tests.unit.broker.harness import (
    DataPath,
    FakeConnection,
    topic_id_of,
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with running_broker(tmp_path) as data_path:
        yield data_path


# -- the classic protocol ------------------------------------------------------------------------


async def test_join_group_in_every_version(broker: DataPath) -> None:
    for version in range(10):
        group_id = f"team-{version}"
        answer = await join(broker, version, group_id=group_id)
        assert answer.error_code == ErrorCode.NONE
        assert answer.generation_id == 1
        assert answer.leader == answer.member_id
        assert answer.protocol_name == "range"
        assert answer.members[0].metadata == subscription("events")
        refused = await broker.ask(join_request(session_timeout_ms=1), version)
        assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


async def test_sync_group_in_every_version(broker: DataPath) -> None:
    for version in range(6):
        group_id = f"team-{version}"
        await stable(broker, version, group_id=group_id)
        unknown = SyncGroupRequest(group_id=group_id, member_id="x", **SYNCED_PROTOCOL)
        assert (await broker.ask(unknown, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("missing", SYNCED_PROTOCOL)
async def test_sync_group_names_its_protocol_since_version_5(
    broker: DataPath, missing: str
) -> None:
    member = await stable(broker)
    request = SyncGroupRequest(
        group_id="team",
        generation_id=member.generation_id,
        member_id=member.member_id,
        **{**SYNCED_PROTOCOL, missing: None},
    )
    refused = await broker.ask(request, 5)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await broker.ask(request, 4)).error_code == ErrorCode.NONE


async def test_heartbeat_in_every_version(broker: DataPath) -> None:
    for version in range(5):
        group_id = f"team-{version}"
        member = await stable(broker, group_id=group_id)
        beat = HeartbeatRequest(group_id=group_id, generation_id=1, member_id=member.member_id)
        assert (await broker.ask(beat, version)).error_code == ErrorCode.NONE
        beat.generation_id = 2
        assert (await broker.ask(beat, version)).error_code == ErrorCode.ILLEGAL_GENERATION


async def test_leave_group_in_every_version(broker: DataPath) -> None:
    for version in range(6):
        group_id = f"team-{version}"
        member = await stable(broker, group_id=group_id)
        for member_id, error in (
            ("stranger", ErrorCode.UNKNOWN_MEMBER_ID),
            (member.member_id, ErrorCode.NONE),
        ):
            if version < 3:
                request = LeaveGroupRequest(group_id=group_id, member_id=member_id)
                assert (await broker.ask(request, version)).error_code == error
            else:
                identity = MemberIdentity(member_id=member_id, group_instance_id=None)
                request = LeaveGroupRequest(group_id=group_id, members=[identity])
                answer = await broker.ask(request, version)
                assert answer.error_code == ErrorCode.NONE
                assert answer.members[0].error_code == error
        described = await broker.ask(DescribeGroupsRequest(groups=[group_id]), 5)
        assert described.groups[0].group_state == "Empty"


async def test_a_member_that_dies_while_its_join_waits_disturbs_no_other(broker: DataPath) -> None:
    await stable(broker)
    waiting = broker.send(join_request(), 3)
    assert not waiting.is_answered
    assert waiting.is_body_released, "what waits holds no frame"
    broker.connection.close("the client has gone")
    broker.connection = FakeConnection()
    await ticked(broker, lambda: waiting.is_answered)


async def test_client_and_host_are_described(broker: DataPath) -> None:
    await stable(broker)
    (group,) = (await broker.ask(DescribeGroupsRequest(groups=["team"]), 6)).groups
    (member,) = group.members
    assert (member.client_id, member.client_host) == ("tests", "/127.0.0.1")
    assert member.member_metadata == subscription("events")
    assert member.member_assignment == b"share"
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")


# -- offsets -------------------------------------------------------------------------------------


async def test_offset_commit_in_every_version(broker: DataPath) -> None:
    for version in range(2, 11):
        group_id = f"team-{version}"
        member = await stable(broker, group_id=group_id)
        request = commit_request(
            {("events", 0): 5, ("events", 1): 6},
            group_id=group_id,
            generation_id_or_member_epoch=1,
            member_id=member.member_id,
        )
        answer = await broker.ask(request, version)
        assert errors(answer) == [ErrorCode.NONE] * 2
        assert len(answer.topics) == 1, "one entry per topic"
        key = (answer.topics[0].name, answer.topics[0].topic_id)
        assert key == (("", topic_id_of("events")) if version == 10 else ("events", UUID(int=0)))
        request.generation_id_or_member_epoch = 9
        assert errors(await broker.ask(request, version)) == [ErrorCode.ILLEGAL_GENERATION] * 2


async def test_offset_fetch_in_every_version(broker: DataPath) -> None:
    for version in range(1, 11):
        group_id = f"team-{version}"
        await broker.ask(commit_request({("events", 0): 5}, group_id=group_id), 9)
        if version < 8:
            topics = [OffsetFetchRequestTopic(name="events", partition_indexes=[0, 1])]
            answer = await broker.ask(OffsetFetchRequest(group_id=group_id, topics=topics), version)
            found = answer.topics[0].partitions
            assert answer.topics[0].name == "events"
        else:
            asked = OffsetFetchRequestTopics(
                name="events", topic_id=topic_id_of("events"), partition_indexes=[0, 1]
            )
            group = OffsetFetchRequestGroup(group_id=group_id, topics=[asked])
            nobody = OffsetFetchRequestGroup(group_id="nobody", topics=[asked])
            answer = await broker.ask(OffsetFetchRequest(groups=[group, nobody]), version)
            assert [each.group_id for each in answer.groups] == [group_id, "nobody"]
            found = answer.groups[0].topics[0].partitions
            assert answer.groups[1].topics[0].partitions[0].committed_offset == -1
        assert [each.committed_offset for each in found] == [5, -1]
        assert [each.error_code for each in found] == [ErrorCode.NONE] * 2


async def test_all_offsets_are_read_without_topics(broker: DataPath) -> None:
    for version in (2, 7, 8, 10):
        group_id = f"team-{version}"
        await broker.ask(commit_request({("events", 0): 5}, group_id=group_id), 9)
        if version < 8:
            request = OffsetFetchRequest(group_id=group_id, topics=None)
            topics = (await broker.ask(request, version)).topics
        else:
            group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
            topics = (
                (await broker.ask(OffsetFetchRequest(groups=[group]), version)).groups[0].topics
            )
        assert len(topics) == 1
        if version == 10:
            assert topics[0].topic_id == topic_id_of("events")
        else:
            assert topics[0].name == "events"


async def test_topics_that_do_not_exist_do_not_hinder_the_others(broker: DataPath) -> None:
    request = commit_request({("events", 0): 5, ("events", 7): 5, ("missing", 0): 5})
    answer = await broker.ask(request, 9)
    assert {
        (topic.name, each.partition_index): each.error_code
        for topic in answer.topics
        for each in topic.partitions
    } == {
        ("events", 0): ErrorCode.NONE,
        ("events", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    by_id = commit_request({("events", 0): 6, ("missing", 0): 5})
    assert errors(await broker.ask(by_id, 10)) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]
    only_missing = commit_request({("missing", 0): 5})
    assert errors(await broker.ask(only_missing, 9)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_unknown_topic_ids_are_an_error_when_offsets_are_read(broker: DataPath) -> None:
    asked = [
        OffsetFetchRequestTopics(topic_id=topic_id_of(name), partition_indexes=[0])
        for name in ("events", "missing")
    ]
    group = OffsetFetchRequestGroup(group_id="team", topics=asked)
    answer = await broker.ask(OffsetFetchRequest(groups=[group]), 10)
    assert errors(answer.groups[0]) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]


async def test_who_may_be_replaced_reads_only_what_its_followers_still_confirm(
    broker: DataPath,
) -> None:
    """Cut off from the controllers, another may coordinate already: nothing is said before its own
    record is committed.
    """
    await broker.ask(commit_request({("events", 0): 5}), 9)
    asked = OffsetFetchRequestTopics(name="events", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="team", topics=[asked])])
    index = broker.services.coordinators.groups.partition_of("team")
    log = broker.partition(CONSUMER_OFFSETS.topic, index).log
    assert log is not None
    end_offset = log.log_end_offset
    assert (await broker.ask(request, 9)).groups[0].topics[0].partitions[0].committed_offset == 5
    assert log.log_end_offset == end_offset
    broker.is_confirmed = False
    assert (await broker.ask(request, 9)).groups[0].topics[0].partitions[0].committed_offset == 5
    assert log.log_end_offset == end_offset + 1
    with (
        patch.object(ReplicaPartition, "high_watermark", property(lambda self: 0)),
        patch.object(ReplicaPartition, "wake_at"),  # or it is said to have risen, over and over
    ):
        waiting = broker.send(request, 9)
        await ticked(broker, lambda: waiting.is_answered)
    answer = waiting.response.groups[0]
    assert answer.error_code == ErrorCode.NOT_COORDINATOR


async def test_offset_delete(broker: DataPath) -> None:
    await broker.ask(commit_request({("events", 0): 5}), 9)
    request = OffsetDeleteRequest(
        group_id="team",
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in partitions],
            )
            for name, partitions in (("events", [0, 1, 9]), ("missing", [0]))
        ],
    )
    answer = await broker.ask(request, 0)
    assert answer.error_code == ErrorCode.NONE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    told = {
        (topic.name, each.partition_index): each.error_code
        for topic in answer.topics
        for each in topic.partitions
    }
    assert told == {
        ("events", 0): ErrorCode.NONE,
        ("events", 1): ErrorCode.NONE,
        ("events", 9): unknown,
        ("missing", 0): unknown,
    }
    request.group_id = "nobody"
    request.topics = []
    assert (await broker.ask(request, 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_offset_delete_leaves_out_topics_of_which_no_partition_is_named(
    broker: DataPath,
) -> None:
    await broker.ask(commit_request({("events", 0): 5}), 9)
    topics = [OffsetDeleteRequestTopic(name=name, partitions=[]) for name in ("events", "missing")]
    answer = await broker.ask(OffsetDeleteRequest(group_id="team", topics=topics), 0)
    assert [topic.name for topic in answer.topics] == ["missing"]


# -- administration ------------------------------------------------------------------------------


async def test_describe_groups_in_every_version(broker: DataPath) -> None:
    for version in range(7):
        group_id = f"team-{version}"
        await stable(broker, group_id=group_id)
        request = DescribeGroupsRequest(
            groups=[group_id, "nobody"], include_authorized_operations=version >= 3
        )
        team, nobody = (await broker.ask(request, version)).groups
        assert (team.group_id, team.group_state, len(team.members)) == (group_id, "Stable", 1)
        assert (nobody.group_id, nobody.group_state) == ("nobody", "Dead")
        expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        assert nobody.error_code == expected
        if version >= 3:
            wanted = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)
            assert all(team.authorized_operations >> operation & 1 for operation in wanted)


async def test_list_groups_in_every_version(broker: DataPath) -> None:
    await stable(broker)
    await broker.ask(commit_request({("events", 0): 5}, group_id="simple"), 9)
    for version in range(6):
        answer = await broker.ask(ListGroupsRequest(), version)
        assert answer.error_code == ErrorCode.NONE
        listed = {group.group_id: group for group in answer.groups}
        assert set(listed) == {"team", "simple"}
        team, simple = listed["team"], listed["simple"]
        assert (team.protocol_type, simple.protocol_type) == ("consumer", "")
        if version >= 4:
            assert (team.group_state, simple.group_state) == ("Stable", "Empty")
        if version >= 5:
            assert (team.group_type, simple.group_type) == ("classic", "classic")


async def test_listed_groups_are_chosen_by_state_and_type(broker: DataPath) -> None:
    await stable(broker)
    await broker.ask(commit_request({("events", 0): 5}, group_id="simple"), 9)
    for states, types, found in (
        (["stable"], [], {"team"}),
        (["Empty", "Dead"], [], {"simple"}),
        ([], ["CLASSIC"], {"team", "simple"}),
        ([], ["consumer"], set()),
        (["nonsense"], [], set()),
    ):
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        answer = await broker.ask(request, 5)
        assert {group.group_id for group in answer.groups} == found


async def test_delete_groups_in_every_version(broker: DataPath) -> None:
    await stable(broker)
    for version in range(3):
        await broker.ask(commit_request({("events", 0): 5}, group_id="simple"), 9)
        names = ["team", "simple", "nobody", "simple"]
        answer = await broker.ask(DeleteGroupsRequest(groups_names=names), version)
        assert [(each.group_id, each.error_code) for each in answer.results] == [
            ("team", ErrorCode.NON_EMPTY_GROUP),
            ("simple", ErrorCode.NONE),
            ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
        group = OffsetFetchRequestGroup(group_id="simple", topics=None)
        found = await broker.ask(OffsetFetchRequest(groups=[group]), 9)
        assert found.groups[0].topics == []


async def test_nothing_to_ask_is_answered_at_once(broker: DataPath) -> None:
    assert (await broker.ask(DescribeGroupsRequest(groups=[]), 6)).groups == []
    assert (await broker.ask(DeleteGroupsRequest(groups_names=[]), 2)).results == []
    assert (await broker.ask(OffsetFetchRequest(groups=[]), 8)).groups == []
    assert (await broker.ask(commit_request({}), 9)).topics == []
