"""Requests of groups that are refused: wrong broker, no permission, and input that makes no sense.

Kafka's error code for each, recorded from a broker, and no other client is disturbed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.metadata.features import GROUP_VERSION
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequestPartition,
)
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.messages.p15_describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.p16_list_groups import ListGroupsRequest
from moldau.protocol.messages.p42_delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.p47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.server.authorizer import Authorizer
from tests.unit.broker.coordinator.group.data_path import (
    SYNCED_PROTOCOL,
    Refusing,
    commit_request,
    errors,
    join,
    join_request,
    loaded,
    running_broker,
    stable,
    ticked,
)
from tests.unit.broker.coordinator.harness import create_internal_topic
from tests.unit.broker.harness import (
    OTHER_BROKER_ID,
    DataPath,
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with running_broker(tmp_path) as data_path:
        yield data_path


# -- where, and whether --------------------------------------------------------------------------


def one_of_each() -> list[tuple[Any, int]]:
    identity = MemberIdentity(member_id="m", group_instance_id=None)
    asked = OffsetFetchRequestTopics(name="events", partition_indexes=[0])
    deleted = OffsetDeleteRequestTopic(
        name="events", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
    )
    return [
        (commit_request({("events", 0): 1}), 9),
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="team", topics=[asked])]), 9),
        (join_request(), 9),
        (HeartbeatRequest(group_id="team", member_id="m"), 4),
        (LeaveGroupRequest(group_id="team", members=[identity]), 5),
        (SyncGroupRequest(group_id="team", member_id="m", **SYNCED_PROTOCOL), 5),
        (DescribeGroupsRequest(groups=["team"]), 6),
        (DeleteGroupsRequest(groups_names=["team"]), 2),
        (OffsetDeleteRequest(group_id="team", topics=[deleted]), 0),
    ]


def the_error(answer: Any) -> ErrorCode:
    """The error of an answer, wherever this API has it."""
    if getattr(answer, "error_code", 0):
        return ErrorCode.of(answer.error_code)
    for name in ("groups", "results", "members", "topics", "partitions"):
        for part in getattr(answer, name, []):
            error = the_error(part)
            if error is not ErrorCode.NONE:
                return error
    return ErrorCode.NONE


async def test_without_the_topic_there_is_no_coordinator(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as broker:
        broker.create_topic("events")
        for request, version in one_of_each():
            answer = await broker.ask(request, version)
            assert the_error(answer) is ErrorCode.NOT_COORDINATOR, type(request)
        # What is wrong in any group is said by any broker.
        broker.replay(FeatureLevelRecord(name=GROUP_VERSION, feature_level=1))
        heartbeat = ConsumerGroupHeartbeatRequest(group_id="team", member_id="m", member_epoch=-3)
        assert the_error(await broker.ask(heartbeat, 1)) is ErrorCode.INVALID_REQUEST
        answer = await broker.ask(OffsetDeleteRequest(group_id="", topics=[]), 0)
        assert the_error(answer) is ErrorCode.INVALID_GROUP_ID


async def test_another_broker_coordinates(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as broker:
        broker.create_topic("events")
        broker.create_topic(
            "__consumer_offsets", 1, leader=OTHER_BROKER_ID, replicas=(OTHER_BROKER_ID,)
        )
        for request, version in one_of_each():
            answer = await broker.ask(request, version)
            assert the_error(answer) is ErrorCode.NOT_COORDINATOR, type(request)


async def test_without_the_topic_there_are_no_groups(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as broker:
        answer = await broker.ask(ListGroupsRequest(), 5)
        assert (answer.error_code, answer.groups) == (ErrorCode.NONE, [])


@pytest.mark.parametrize(
    ("operation", "refused"),
    [
        (Operation.READ, [0, 2, 3, 4, 5]),
        (Operation.DESCRIBE, [1, 6]),
        (Operation.DELETE, [7, 8]),
    ],
)
async def test_groups_one_may_not_touch(
    tmp_path: Path, operation: Operation, refused: list[int]
) -> None:
    refusing = Refusing(operation, ResourceType.GROUP)
    async with running_broker(tmp_path, authorizer=refusing) as broker:
        for number in refused:
            request, version = one_of_each()[number]
            answer = await broker.ask(request, version)
            assert the_error(answer) is ErrorCode.GROUP_AUTHORIZATION_FAILED, type(request)


async def test_topics_one_may_not_touch(tmp_path: Path) -> None:
    refusing = Refusing(Operation.READ, ResourceType.TOPIC, "events")
    async with running_broker(tmp_path, authorizer=refusing) as broker:
        broker.create_topic("other")
        answer = await broker.ask(commit_request({("events", 0): 1, ("other", 0): 2}), 9)
        assert errors(answer) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE]
        request = OffsetDeleteRequest(
            group_id="team",
            topics=[
                OffsetDeleteRequestTopic(
                    name="events", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
                )
            ],
        )
        assert errors(await broker.ask(request, 0)) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_topics_one_may_not_see(tmp_path: Path) -> None:
    refusing = Refusing(Operation.DESCRIBE, ResourceType.TOPIC, "events")
    async with running_broker(tmp_path, authorizer=refusing) as broker:
        broker.create_topic("other")
        await broker.ask(commit_request({("events", 0): 1, ("other", 0): 2}), 9)
        everything = OffsetFetchRequestGroup(group_id="team", topics=None)
        answer = await broker.ask(OffsetFetchRequest(groups=[everything]), 9)
        assert [topic.name for topic in answer.groups[0].topics] == ["other"]
        asked = [
            OffsetFetchRequestTopics(name=name, partition_indexes=[0])
            for name in ("events", "other")
        ]
        group = OffsetFetchRequestGroup(group_id="team", topics=asked)
        answer = await broker.ask(OffsetFetchRequest(groups=[group]), 9)
        told = {topic.name: topic.partitions[0].error_code for topic in answer.groups[0].topics}
        assert told == {
            "events": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "other": ErrorCode.NONE,
        }


async def test_groups_one_may_not_see_are_not_listed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        for group_id in ("one", "two"):
            await broker.ask(commit_request({("events", 0): 1}, group_id=group_id), 9)

        class OnlyOne(Authorizer):
            def authorize(
                self, principal: str, host: str, operation: Operation, kind: Any, name: str
            ) -> bool:
                return name == "one"

        broker.router._authorizer = OnlyOne()
        answer = await broker.ask(ListGroupsRequest(), 5)
        assert [group.group_id for group in answer.groups] == ["one"]


async def test_a_group_error_before_there_was_a_place_for_it(tmp_path: Path) -> None:
    refusing = Refusing(Operation.DESCRIBE, ResourceType.GROUP)
    async with running_broker(tmp_path, authorizer=refusing) as broker:
        topics = [OffsetFetchRequestTopic(name="events", partition_indexes=[0])]
        request = OffsetFetchRequest(group_id="team", topics=topics)
        assert errors(await broker.ask(request, 1)) == [ErrorCode.GROUP_AUTHORIZATION_FAILED]
        answer = await broker.ask(request, 2)
        assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_groups_and_offsets_are_loaded_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        member = await stable(broker)
        request = commit_request(
            {("events", 0): 5}, generation_id_or_member_epoch=1, member_id=member.member_id
        )
        await broker.ask(request, 9)
    async with running_broker(tmp_path) as broker:
        (group,) = (await broker.ask(DescribeGroupsRequest(groups=["team"]), 6)).groups
        assert group.group_state == "Stable"
        assert group.members[0].member_id == member.member_id
        assert group.members[0].member_assignment == b"share"
        beat = HeartbeatRequest(group_id="team", generation_id=1, member_id=member.member_id)
        assert (await broker.ask(beat, 4)).error_code == ErrorCode.NONE
        everything = OffsetFetchRequestGroup(group_id="team", topics=None)
        found = await broker.ask(OffsetFetchRequest(groups=[everything]), 9)
        assert found.groups[0].topics[0].partitions[0].committed_offset == 5


async def test_while_it_loads_heartbeats_are_fine_and_the_rest_has_to_wait(
    tmp_path: Path,
) -> None:
    async with DataPath(tmp_path) as broker:
        broker.create_topic("events")
        create_internal_topic(broker, CONSUMER_OFFSETS, 1)
        # Loading takes at least a turn of the loop, in which these come.
        answered = [broker.send(request, version) for request, version in one_of_each()]
        listed = broker.send(ListGroupsRequest(), 5)
        assert all(request.is_answered for request in answered)
        told = [the_error(request.response) for request in answered]
        assert told.count(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) == len(told) - 1
        assert told[3] is ErrorCode.NONE
        assert listed.response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await loaded(broker, 1)


# -- bad input -----------------------------------------------------------------------------------


async def test_a_stale_generation(broker: DataPath) -> None:
    member = await stable(broker)
    stale: dict[str, Any] = {"group_id": "team", "generation_id": 0, "member_id": member.member_id}
    for request, version in (
        (HeartbeatRequest(**stale), 4),
        (SyncGroupRequest(**stale, **SYNCED_PROTOCOL), 5),
        (
            commit_request(
                {("events", 0): 1},
                generation_id_or_member_epoch=0,
                member_id=member.member_id,
            ),
            9,
        ),
    ):
        assert the_error(await broker.ask(request, version)) is ErrorCode.ILLEGAL_GENERATION
    assert await is_undisturbed(broker, member)


async def test_an_unknown_member(broker: DataPath) -> None:
    member = await stable(broker)
    unknown: dict[str, Any] = {"group_id": "team", "member_id": "nobody"}
    nobody = MemberIdentity(member_id="nobody", group_instance_id=None)
    for request, version in (
        (join_request(member_id="nobody"), 9),
        (HeartbeatRequest(generation_id=1, **unknown), 4),
        (SyncGroupRequest(generation_id=1, **unknown, **SYNCED_PROTOCOL), 5),
        (LeaveGroupRequest(group_id="team", members=[nobody]), 5),
        (
            commit_request({("events", 0): 1}, generation_id_or_member_epoch=1, member_id="nobody"),
            9,
        ),
        (commit_request({("events", 0): 1}), 9),
    ):
        assert the_error(await broker.ask(request, version)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await is_undisturbed(broker, member)


async def test_a_fenced_instance(broker: DataPath) -> None:
    first = await stable(broker, group_instance_id="i-1")
    second = await join(broker, group_instance_id="i-1")
    assert second.error_code == ErrorCode.NONE
    fenced: dict[str, Any] = {
        "group_id": "team",
        "generation_id": 1,
        "member_id": first.member_id,
        "group_instance_id": "i-1",
    }
    identity = MemberIdentity(member_id=first.member_id, group_instance_id="i-1")
    for request, version in (
        (join_request(member_id=first.member_id, group_instance_id="i-1"), 9),
        (HeartbeatRequest(**fenced), 4),
        (SyncGroupRequest(**fenced, **SYNCED_PROTOCOL), 5),
        (LeaveGroupRequest(group_id="team", members=[identity]), 5),
        (
            commit_request(
                {("events", 0): 1},
                generation_id_or_member_epoch=1,
                member_id=first.member_id,
                group_instance_id="i-1",
            ),
            9,
        ),
    ):
        assert the_error(await broker.ask(request, version)) is ErrorCode.FENCED_INSTANCE_ID
    assert await is_undisturbed(broker, second, group_instance_id="i-1")


async def test_steps_out_of_turn(broker: DataPath) -> None:
    member = await stable(broker)
    waiting = broker.send(join_request(), 3)
    mine: dict[str, Any] = {
        "group_id": "team",
        "generation_id": 1,
        "member_id": member.member_id,
    }
    for request in (HeartbeatRequest(**mine), SyncGroupRequest(**mine)):
        assert the_error(await broker.ask(request, 4)) is ErrorCode.REBALANCE_IN_PROGRESS
    await ticked(broker, lambda: waiting.is_answered)
    too_early = commit_request(
        {("events", 0): 1},
        generation_id_or_member_epoch=waiting.response.generation_id,
        member_id=waiting.response.member_id,
    )
    assert the_error(await broker.ask(too_early, 9)) is ErrorCode.REBALANCE_IN_PROGRESS
    delete = DeleteGroupsRequest(groups_names=["team"])
    assert the_error(await broker.ask(delete, 2)) is ErrorCode.NON_EMPTY_GROUP


async def test_oversized_metadata(broker: DataPath) -> None:
    request = commit_request({("events", 0): 1, ("events", 1): 2})
    request.topics[0].partitions[0].committed_metadata = "x" * 4097
    request.topics[1].partitions[0].committed_metadata = "x" * 4096
    answer = await broker.ask(request, 9)
    assert errors(answer) == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]


async def test_a_commit_that_fits_into_no_batch(broker: DataPath) -> None:
    request = commit_request({("events", 0): 1})
    request.topics[0].partitions = [
        OffsetCommitRequestPartition(partition_index=0, committed_metadata="x" * 4096)
        for _ in range(300)
    ]
    answer = await broker.ask(request, 9)
    assert set(errors(answer)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}


async def test_an_assignment_that_fits_into_no_batch(broker: DataPath) -> None:
    member = await join(broker)
    request = SyncGroupRequest(
        group_id="team",
        generation_id=1,
        member_id=member.member_id,
        **SYNCED_PROTOCOL,
        assignments=[
            SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"x" * 2_000_000)
        ],
    )
    assert the_error(await broker.ask(request, 5)) is ErrorCode.UNKNOWN_SERVER_ERROR
    await broker.ask(commit_request({("events", 0): 1}, group_id="other"), 9)


async def test_offsets_of_unknown_topics(broker: DataPath) -> None:
    answer = await broker.ask(commit_request({("missing", 0): 1, ("events", 2): 1}), 9)
    assert errors(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    answer = await broker.ask(commit_request({("missing", 0): 1}), 10)
    assert errors(answer) == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_a_generation_of_no_group(broker: DataPath) -> None:
    request = commit_request(
        {("events", 0): 1}, generation_id_or_member_epoch=3, member_id="m", group_id="none"
    )
    assert the_error(await broker.ask(request, 8)) is ErrorCode.ILLEGAL_GENERATION
    assert the_error(await broker.ask(request, 9)) is ErrorCode.GROUP_ID_NOT_FOUND


async def test_sessions_and_protocols_that_are_not_allowed(broker: DataPath) -> None:
    for changes, error in (
        ({"session_timeout_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": -1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ):
        answer = await broker.ask(join_request(**changes), 9)
        assert the_error(answer) is error, changes
    assert (await broker.ask(ListGroupsRequest(), 5)).groups == []


async def is_undisturbed(broker: DataPath, member: Any, **changes: Any) -> bool:
    beat = HeartbeatRequest(group_id="team", generation_id=1, member_id=member.member_id, **changes)
    return the_error(await broker.ask(beat, 4)) is ErrorCode.NONE
