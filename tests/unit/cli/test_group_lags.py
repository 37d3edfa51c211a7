"""`moldau groups list --lag` and `seek`, against answers written down."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p08_offset_commit as commit
from moldau.protocol.messages import p09_offset_fetch as fetch
from moldau.protocol.messages import p16_list_groups as listing
from moldau.protocol.messages.p02_list_offsets import ListOffsetsRequest
from moldau.protocol.schema import Message
from tests.unit.cli.test_cluster_commands import moldau, ok
from tests.unit.cli.test_group_commands import (
    answer_commit,
    answer_describe,
    answer_offsets,
    answer_topics,
)
from tests.unit.cli.written_cluster import request_counts
from tests.unit.client.cluster.test_coordinators import coordinators
from tests.unit.client.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.real

#: What groups have committed of topic t, whose partitions end at 90.
COMMITTED: dict[str, dict[int, int]] = {"idle": {0: 20, 1: 30}, "near": {1: 85}, "new": {}}


def answer_fetch(request: Any) -> Message:
    groups = []
    for each in request.groups:
        offsets = [
            fetch.OffsetFetchResponsePartitions(partition_index=index, committed_offset=offset)
            for index, offset in COMMITTED.get(each.group_id, {0: 90}).items()
        ]
        group = fetch.OffsetFetchResponseGroup(group_id=each.group_id)
        if each.group_id == "secret":
            group.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        else:
            group.topics = [fetch.OffsetFetchResponseTopics(name="t", partitions=offsets)]
            group.topics = group.topics if offsets else []
        groups.append(group)
    return fetch.OffsetFetchResponse(groups=groups)


def listed(*names: str) -> Message:
    return listing.ListGroupsResponse(
        groups=[
            listing.ListedGroup(
                group_id=each, protocol_type="consumer", group_state="Empty", group_type="classic"
            )
            for each in names
        ]
    )


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.topics = {"t": 2}
        for key, answer in (
            (ApiKey.FIND_COORDINATOR, coordinators(lambda _: scripted)),
            (ApiKey.LIST_GROUPS, lambda _: listed(*COMMITTED)),
            (ApiKey.CONSUMER_GROUP_DESCRIBE, answer_describe),
            (ApiKey.OFFSET_FETCH, answer_fetch),
            (ApiKey.OFFSET_COMMIT, answer_commit),
            (ApiKey.LIST_OFFSETS, answer_offsets),
            (ApiKey.DESCRIBE_TOPIC_PARTITIONS, answer_topics),
        ):
            scripted.script(key, answer)
        yield scripted


async def test_the_farthest_behind_come_first_with_totals(broker: ScriptedBroker):
    lines = (await ok(broker, "groups", "list", "--lag")).splitlines()
    assert lines[0].split()[-3:] == ["topics", "partitions", "lag"]
    assert [(line.split()[0], *line.split()[-3:]) for line in lines[2:5]] == [
        ("idle", "1", "2", "130"),
        ("near", "1", "1", "5"),
        ("new", "0", "0", "-"),
    ]
    assert lines[-1] == "3 groups, lag 135"
    rows = json.loads(await ok(broker, "groups", "list", "--lag", "--json"))
    assert [row["lag"] for row in rows] == [130, 5, None]
    assert rows[0]["topic_count"] == 1
    assert "lag" not in json.loads(await ok(broker, "groups", "list", "--json"))[0]


async def test_five_hundred_groups_take_as_many_requests_as_one(broker: ScriptedBroker):
    broker.script(ApiKey.LIST_GROUPS, lambda _: listed(*(f"g{each:03}" for each in range(500))))
    rows = json.loads(await ok(broker, "groups", "list", "--lag", "--json"))
    assert {row["lag"] for row in rows} == {0}
    assert request_counts(broker) == {
        "ListGroups": 1,
        "FindCoordinator": 1,
        "OffsetFetch": 1,
        "ListOffsets": 1,
    }


async def test_a_group_that_may_not_be_seen_hides_no_other(broker: ScriptedBroker):
    broker.script(ApiKey.LIST_GROUPS, lambda _: listed("idle", "secret"))
    done = await moldau(broker, "groups", "list", "--lag", "--json")
    assert done.status == 1
    assert [(row["group_id"], row["lag"]) for row in json.loads(done.output)] == [
        ("idle", 130),
        ("secret", None),
    ]
    assert "secret: GROUP_AUTHORIZATION_FAILED" in done.errors


async def sought(broker: ScriptedBroker, *options: object) -> list[tuple[int, int]]:
    """The new offsets by partition."""
    document = json.loads(await ok(broker, "groups", "seek", "idle", *options, "--json"))
    return [(row["partition"], row["new_offset"]) for row in document["offsets"]]


async def test_seek_moves_a_group_at_once(broker: ScriptedBroker):
    assert await sought(broker, "--to", "end", "--dry-run") == [(0, 90), (1, 90)]
    assert broker.requests_of(commit.OffsetCommitRequest) == []
    assert await sought(broker, "--to", "start") == [(0, 10), (1, 10)]
    assert len(broker.requests_of(commit.OffsetCommitRequest)) == 1
    assert await sought(broker, "--to", "latest", "--topic", "t:1") == [(1, 90)]
    shown = await ok(broker, "groups", "seek", "idle", "--to", "start", "--topic", "t:0")
    assert shown.splitlines()[2].split() == ["idle", "t", "0", "20", "10"], "the offset before, too"
    assert shown.endswith("done\n")


async def test_seek_goes_to_a_time(broker: ScriptedBroker):
    await sought(broker, "--to", "2026-07-01T12:00:00Z", "--dry-run")
    await sought(broker, "--to", "1782907200000", "--dry-run")
    times = [
        partition.timestamp
        for request in broker.requests_of(ListOffsetsRequest)
        for partition in request.topics[0].partitions  # type: ignore[attr-defined]
        if partition.timestamp >= 0
    ]
    assert times == [1_782_907_200_000] * 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("idle",), "--to"),
        (("--to", "start"), "give groups or --all-groups"),
        (("idle", "--to", "120"), "--to 120 is no time; to go to an offset there is `reset-"),
        (("idle", "--to", "soon"), "--to 'soon': start, end, 10m or 1h30m (ago;"),
        (("idle", "--to", "start", "--topic", "t:x"), "is not TOPIC or TOPIC:PARTITION"),
    ],
)
async def test_what_seek_does_not_take(
    broker: ScriptedBroker, arguments: tuple[object, ...], said: str
):
    done = await moldau(broker, "groups", "seek", *arguments)
    assert (done.status, done.output) == (2, "")
    assert said in done.errors
    assert broker.requests == []


async def test_seek_leaves_a_group_with_members_alone(broker: ScriptedBroker):
    done = await moldau(broker, "groups", "seek", "busy", "--to", "start")
    assert done.status == 1
    assert "busy: offsets can only be moved while" in done.errors
    assert broker.requests_of(commit.OffsetCommitRequest) == []
