"""Groups of both protocols and their offsets, as coordinators describe them."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.client import (
    Admin,
    BrokerError,
    CommittedOffset,
    GroupDescription,
    KafkaError,
    TopicPartition,
)
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import consumer_protocol as assigned
from moldau.protocol.messages import p08_offset_commit as commit
from moldau.protocol.messages import p09_offset_fetch as fetch
from moldau.protocol.messages import p15_describe_groups as classic
from moldau.protocol.messages import p16_list_groups as listing
from moldau.protocol.messages import p47_offset_delete as delete
from moldau.protocol.messages import p69_consumer_group_describe as consumer
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.p03_metadata import MetadataResponseBroker
from moldau.protocol.schema import Message
from tests.unit.client.cluster.test_coordinators import coordinators
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.script(ApiKey.FIND_COORDINATOR, coordinators(lambda _: scripted))
        scripted.script(ApiKey.CONSUMER_GROUP_DESCRIBE, no_consumer_groups)
        yield scripted


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address, retry_backoff_ms=1, default_api_timeout_ms=5_000) as client:
        yield client


def no_consumer_groups(request: Any) -> Message:
    return consumer.ConsumerGroupDescribeResponse(
        groups=[
            consumer.DescribedGroup(group_id=each, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
            for each in request.group_ids
        ]
    )


def embedded(message: Message, version: int) -> bytes:
    data = b"".join(message.encode(min(version, message.MAX_VERSION)))  # type: ignore[arg-type]
    return struct.pack(">h", version) + data


def classic_group(**values: Any) -> Any:
    group = classic.DescribedGroup(
        group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="range"
    )
    for name, value in values.items():
        setattr(group, name, value)
    return lambda _: classic.DescribeGroupsResponse(groups=[group])


async def described(admin: Admin) -> GroupDescription:
    group = (await admin.describe_groups(["g"]))["g"]
    assert isinstance(group, GroupDescription)
    return group


async def test_a_group_of_the_new_protocol(admin: Admin, broker: ScriptedBroker):
    def assignment(*indexes: int) -> consumer.Assignment:
        topics = [consumer.TopicPartitions(topic_name="t", partitions=list(indexes))]
        return consumer.Assignment(topic_partitions=topics)

    member = consumer.Member(
        member_id="m",
        instance_id="static",
        rack_id="r",
        member_epoch=4,
        client_id="app",
        client_host="/10.0.0.1",
        subscribed_topic_names=["t"],
        subscribed_topic_regex="t.*",
        assignment=assignment(1),
        target_assignment=assignment(1, 2),
        member_type=1,
    )
    group = consumer.DescribedGroup(
        group_id="g",
        group_state="Reconciling",
        group_epoch=5,
        assignment_epoch=4,
        assignor_name="uniform",
        members=[member],
    )
    broker.script(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda _: consumer.ConsumerGroupDescribeResponse(groups=[group]),
    )
    found = await described(admin)
    assert (found.group_type, found.state, found.assignor) == ("consumer", "Reconciling", "uniform")
    assert (found.group_epoch, found.assignment_epoch) == (5, 4)
    assert found.coordinator.node_id == NODE_ID
    [only] = found.members
    assert (only.assignment, only.target) == ({ONE}, {ONE, TWO})
    assert (only.group_instance_id, only.member_epoch, only.member_type) == (
        "static",
        4,
        "consumer",
    )
    assert (only.subscribed_topics, only.subscribed_regex, only.rack_id) == (("t",), "t.*", "r")
    assert not broker.requests_of(classic.DescribeGroupsRequest), "it was found"


async def test_a_group_of_the_classic_protocol(admin: Admin, broker: ScriptedBroker):
    assignment = assigned.ConsumerProtocolAssignment(
        assigned_partitions=[assigned.TopicPartition(topic="t", partitions=[1, 2])]
    )
    member = classic.DescribedGroupMember(
        member_id="m",
        group_instance_id="static",
        client_id="app",
        client_host="/10.0.0.1",
        # A later version than we know begins like the latest that we do.
        member_metadata=embedded(ConsumerProtocolSubscription(topics=["t", "u"]), 9),
        member_assignment=embedded(assignment, 1),
    )
    broker.script(ApiKey.DESCRIBE_GROUPS, classic_group(members=[member]))
    found = await described(admin)
    assert (found.group_type, found.state, found.assignor) == ("classic", "Stable", "range")
    assert (found.group_epoch, found.assignment_epoch) == (None, None)
    [only] = found.members
    assert (only.assignment, only.target, only.member_epoch) == ({ONE, TWO}, None, None)
    assert only.subscribed_topics == ("t", "u")


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1", b"\0\0\xff\xff\xff\xff", b"\xff\xff\0\0"])
async def test_members_may_leave_any_bytes(admin: Admin, broker: ScriptedBroker, data: bytes):
    member = classic.DescribedGroupMember(
        member_id="m", member_metadata=data, member_assignment=data
    )
    broker.script(ApiKey.DESCRIBE_GROUPS, classic_group(members=[member]))
    [only] = (await described(admin)).members
    assert (only.assignment, only.subscribed_topics) == (frozenset(), ())


async def test_a_group_of_something_else_has_no_partitions(admin: Admin, broker: ScriptedBroker):
    """Kafka Connect's members, say: their bytes mean other things."""
    assignment = assigned.ConsumerProtocolAssignment(
        assigned_partitions=[assigned.TopicPartition(topic="t", partitions=[1])]
    )
    member = classic.DescribedGroupMember(member_id="m", member_assignment=embedded(assignment, 1))
    broker.script(ApiKey.DESCRIBE_GROUPS, classic_group(protocol_type="connect", members=[member]))
    [only] = (await described(admin)).members
    assert only.assignment == frozenset()


@pytest.mark.parametrize(
    "answer",
    [
        classic_group(error_code=ErrorCode.GROUP_ID_NOT_FOUND, group_state="Dead"),
        classic_group(group_state="Dead"),  # as brokers before version 6 of the call say it
    ],
)
async def test_a_group_that_is_not_there(admin: Admin, broker: ScriptedBroker, answer: Any):
    broker.script(ApiKey.DESCRIBE_GROUPS, answer)
    problem = (await admin.describe_groups(["g"]))["g"]
    assert isinstance(problem, BrokerError)
    assert problem.code is ErrorCode.GROUP_ID_NOT_FOUND


async def test_brokers_without_the_new_protocol(admin: Admin, broker: ScriptedBroker):
    broker.served = {
        ApiKey.API_VERSIONS: (0, 4),
        ApiKey.METADATA: (0, 13),
        ApiKey.FIND_COORDINATOR: (0, 6),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
    }
    broker.script(ApiKey.DESCRIBE_GROUPS, classic_group())
    assert (await described(admin)).group_type == "classic"


async def test_list_groups_wants_every_broker(admin: Admin, broker: ScriptedBroker):
    groups = [
        listing.ListedGroup(group_id="b", group_state="Empty", group_type="consumer"),
        listing.ListedGroup(group_id="a", protocol_type="consumer", group_state="Stable"),
    ]
    broker.script(
        ApiKey.LIST_GROUPS,
        lambda _: listing.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        lambda _: listing.ListGroupsResponse(groups=groups),
    )
    found = await admin.list_groups(states=["Stable"], group_types=["classic"])
    assert [(each.group_id, each.group_type, each.state) for each in found] == [
        ("a", "classic", "Stable"),
        ("b", "consumer", "Empty"),
    ]
    assert {each.coordinator_id for each in found} == {NODE_ID}
    request = broker.requests_of(listing.ListGroupsRequest)[-1]
    assert isinstance(request, listing.ListGroupsRequest)
    assert (request.states_filter, request.types_filter) == (["Stable"], ["classic"])


async def test_groups_of_a_broker_that_goes_away_are_listed_by_another(
    admin: Admin, broker: ScriptedBroker
):
    """What a broker said before it took them over is not the whole."""

    def groups(*names: str) -> Any:
        listed = [listing.ListedGroup(group_id=each, group_type="classic") for each in names]
        return lambda _: listing.ListGroupsResponse(groups=listed)

    async with ScriptedBroker() as leaving:
        both, alone = broker.metadata(), broker.metadata()
        host, _, port = leaving.address.rpartition(":")
        both.brokers.append(MetadataResponseBroker(node_id=8, host=host, port=int(port)))
        broker.script(ApiKey.METADATA, lambda _: both, lambda _: alone)
        broker.script(ApiKey.LIST_GROUPS, groups("a"), groups("a", "b"))
        leaving.script(ApiKey.LIST_GROUPS, lambda _: None)
        assert [each.group_id for each in await admin.list_groups()] == ["a", "b"]


async def test_list_groups_that_one_broker_refuses(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.LIST_GROUPS,
        lambda _: listing.ListGroupsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    )
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        await admin.list_groups()


def offsets(*entries: fetch.OffsetFetchResponsePartitions, error: int = 0) -> Any:
    topics = [fetch.OffsetFetchResponseTopics(name="t", partitions=list(entries))]
    group = fetch.OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=error)
    return lambda _: fetch.OffsetFetchResponse(groups=[group])


async def test_committed_offsets(admin: Admin, broker: ScriptedBroker):
    entry = fetch.OffsetFetchResponsePartitions
    unstable = entry(partition_index=1, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    broker.script(
        ApiKey.OFFSET_FETCH,
        offsets(unstable),
        offsets(
            entry(partition_index=1, committed_offset=7, committed_leader_epoch=3, metadata="x"),
            entry(partition_index=2, committed_offset=-1),
        ),
    )
    found = await admin.list_group_offsets(["g"], require_stable=True)
    assert found == {"g": {ONE: CommittedOffset(7, 3, "x")}}
    request = broker.requests_of(fetch.OffsetFetchRequest)[-1]
    assert isinstance(request, fetch.OffsetFetchRequest)
    assert (request.require_stable, request.groups[0].topics) == (True, None)


async def test_offsets_of_a_group_that_may_not_be_read(admin: Admin, broker: ScriptedBroker):
    broker.script(ApiKey.OFFSET_FETCH, offsets(error=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    found = await admin.list_group_offsets(["g"])
    assert isinstance(found["g"], KafkaError)


def committed(*codes: int) -> Any:
    partitions = [
        commit.OffsetCommitResponsePartition(partition_index=index, error_code=code)
        for index, code in enumerate(codes, 1)
    ]
    topics = [commit.OffsetCommitResponseTopic(name="t", partitions=partitions)]
    return lambda _: commit.OffsetCommitResponse(topics=topics)


async def test_altered_offsets(admin: Admin, broker: ScriptedBroker):
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.script(
        ApiKey.OFFSET_COMMIT,
        committed(loading, loading),
        committed(ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    )
    outcome = await admin.alter_group_offsets(
        "g", {TWO: CommittedOffset(9, 1, "m"), ONE: CommittedOffset(5)}
    )
    assert outcome[ONE] is None
    assert "OFFSET_METADATA_TOO_LARGE" in str(outcome[TWO])
    requests = broker.requests_of(commit.OffsetCommitRequest)
    assert len(requests) == 2, "asked again while it loads"
    request = requests[0]
    assert isinstance(request, commit.OffsetCommitRequest)
    assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
    [topic] = request.topics
    assert topic.name == "t", "by name: the group may outlive the topic"
    assert [
        (each.partition_index, each.committed_offset, each.committed_leader_epoch)
        for each in topic.partitions
    ] == [(1, 5, -1), (2, 9, 1)]


async def test_offsets_of_a_group_with_members_stay(admin: Admin, broker: ScriptedBroker):
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    broker.script(ApiKey.OFFSET_COMMIT, committed(unknown, unknown))
    outcome = await admin.alter_group_offsets("g", {ONE: CommittedOffset(5)})
    problem = outcome[ONE]
    assert problem is not None
    assert problem.code is unknown
    assert len(broker.requests_of(commit.OffsetCommitRequest)) == 1


async def test_deleted_offsets(admin: Admin, broker: ScriptedBroker):
    partitions = [
        delete.OffsetDeleteResponsePartition(partition_index=1),
        delete.OffsetDeleteResponsePartition(
            partition_index=2, error_code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        ),
    ]
    topics = [delete.OffsetDeleteResponseTopic(name="t", partitions=partitions)]
    broker.script(ApiKey.OFFSET_DELETE, lambda _: delete.OffsetDeleteResponse(topics=topics))
    outcome = await admin.delete_group_offsets("g", [ONE, TWO])
    assert outcome[ONE] is None
    assert "GROUP_SUBSCRIBED_TO_TOPIC" in str(outcome[TWO])


async def test_deleted_offsets_of_a_group_that_is_not_there(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.OFFSET_DELETE,
        lambda _: delete.OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND),
    )
    outcome = await admin.delete_group_offsets("g", [ONE, TWO])
    assert ["GROUP_ID_NOT_FOUND" in str(each) for each in outcome.values()] == [True, True]
