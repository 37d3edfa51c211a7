"""`moldau groups` and `moldau transactions` against answers written down here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as offsets
from moldau.protocol.messages import p08_offset_commit as commit
from moldau.protocol.messages import p09_offset_fetch as fetch
from moldau.protocol.messages import p47_offset_delete as offset_delete
from moldau.protocol.messages import p61_describe_producers as producers
from moldau.protocol.messages import p69_consumer_group_describe as consumer
from moldau.protocol.messages import p75_describe_topic_partitions as topics
from moldau.protocol.messages.p15_describe_groups import DescribedGroup, DescribeGroupsResponse
from moldau.protocol.messages.p16_list_groups import ListedGroup, ListGroupsResponse
from moldau.protocol.messages.p22_init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from moldau.protocol.messages.p27_write_txn_markers import WriteTxnMarkersRequest
from moldau.protocol.messages.p42_delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from moldau.protocol.messages.p65_describe_transactions import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from moldau.protocol.messages.p66_list_transactions import (
    ListTransactionsResponse,
)
from moldau.protocol.messages.p66_list_transactions import (
    TransactionState as ListedTransaction,
)
from moldau.protocol.schema import Message
from tests.kit.commands import Ended
from tests.kit.terminals import run_at_terminal
from tests.unit.cli.test_cluster_commands import moldau, ok
from tests.unit.client.admin.test_transactions import written
from tests.unit.client.cluster.test_coordinators import coordinators
from tests.unit.client.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.real

COMMITTED = {0: 20, 1: 30}
EARLIEST, LATEST = 10, 90


def answer_offsets(request: Any) -> Message:
    by_time = {-1: LATEST, -2: EARLIEST}
    return offsets.ListOffsetsResponse(
        topics=[
            offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    offsets.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, offset=by_time.get(each.timestamp, -1)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def answer_fetch(request: Any) -> Message:
    entries = [
        fetch.OffsetFetchResponsePartitions(partition_index=index, committed_offset=offset)
        for index, offset in COMMITTED.items()
    ]
    known = [fetch.OffsetFetchResponseTopics(name="t", partitions=entries)]
    return fetch.OffsetFetchResponse(
        groups=[
            fetch.OffsetFetchResponseGroup(
                group_id=each.group_id, topics=known if each.group_id != "new" else []
            )
            for each in request.groups
        ]
    )


def answer_commit(request: Any) -> Message:
    return commit.OffsetCommitResponse(
        topics=[
            commit.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    commit.OffsetCommitResponsePartition(partition_index=each.partition_index)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def answer_describe(request: Any) -> Message:
    """ "busy" has a member, "idle" none, nothing else exists."""
    states = {"busy": "Stable", "idle": "Empty"}
    groups = []
    for group_id in request.group_ids:
        group = consumer.DescribedGroup(group_id=group_id, group_state=states.get(group_id, ""))
        if group_id not in states:
            group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        if group_id == "busy":
            assigned = consumer.Assignment(
                topic_partitions=[consumer.TopicPartitions(topic_name="t", partitions=[0])]
            )
            group.members = [
                consumer.Member(
                    member_id="m", client_id="app", client_host="/h", assignment=assigned
                )
            ]
        groups.append(group)
    return consumer.ConsumerGroupDescribeResponse(groups=groups)


def answer_topics(_: Any) -> Message:
    return topics.DescribeTopicPartitionsResponse(
        topics=[
            topics.DescribeTopicPartitionsResponseTopic(
                name="t",
                partitions=[
                    topics.DescribeTopicPartitionsResponsePartition(
                        partition_index=index, leader_id=7
                    )
                    for index in (0, 1)
                ],
            )
        ]
    )


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.topics = {"t": 2}
        for key, answer in (
            (ApiKey.FIND_COORDINATOR, coordinators(lambda _: scripted)),
            (ApiKey.CONSUMER_GROUP_DESCRIBE, answer_describe),
            (
                ApiKey.DESCRIBE_GROUPS,
                lambda request: DescribeGroupsResponse(
                    groups=[
                        DescribedGroup(group_id=each, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
                        for each in request.groups
                    ]
                ),
            ),
            (ApiKey.OFFSET_FETCH, answer_fetch),
            (ApiKey.OFFSET_COMMIT, answer_commit),
            (ApiKey.LIST_OFFSETS, answer_offsets),
            (ApiKey.DESCRIBE_TOPIC_PARTITIONS, answer_topics),
        ):
            scripted.script(key, answer)
        yield scripted


def refused(done: Ended, status: int, said: str) -> None:
    assert (done.status, done.output) == (status, "")
    assert said in done.errors


async def test_describe_prints_what_it_can(broker: ScriptedBroker):
    """One group that is not there hides nothing of the other."""
    done = await moldau(broker, "groups", "describe", "busy", "nobody", "--json")
    assert done.status == 1
    assert "GROUP_ID_NOT_FOUND" in done.errors
    [group] = json.loads(done.output)
    assert (group["group_id"], group["state"], group["lag"]) == ("busy", "Stable", 130)
    assert [(each["lag"], each["member_id"]) for each in group["offsets"]] == [
        (70, "m"),
        (60, None),
    ]
    shown = (await ok(broker, "groups", "describe", "idle")).splitlines()
    assert "idle: consumer, Empty, no active members" in shown[0]
    [row] = [line.split() for line in shown if line.split()[:2] == ["t", "1"]]
    assert row == ["t", "1", "30", "90", "60"]


async def test_a_reset_is_shown_first_and_done_if_asked(broker: ScriptedBroker):
    reset = ("groups", "reset-offsets", "idle", "--topic", "t:1", "--to-earliest")
    shown = await ok(broker, *reset)
    assert "--execute does it" in shown
    assert not broker.requests_of(commit.OffsetCommitRequest)
    document = json.loads(await ok(broker, *reset, "--execute", "--json"))
    assert document["executed"] is True
    [row] = document["offsets"]
    assert (row["partition"], row["current_offset"], row["new_offset"]) == (1, 30, 10)
    [request] = broker.requests_of(commit.OffsetCommitRequest)
    assert isinstance(request, commit.OffsetCommitRequest)
    [topic] = request.topics
    assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(1, 10)]


async def test_an_export_is_what_from_file_takes(broker: ScriptedBroker, tmp_path: Path):
    path = tmp_path / "offsets.csv"
    path.write_text(
        await ok(
            broker, "groups", "reset-offsets", "idle", "--all-topics", "--to-current", "--export"
        )
    )
    assert path.read_text() == "t,0,20\nt,1,30\n"
    document = json.loads(
        await ok(broker, "groups", "reset-offsets", "new", "--from-file", path, "--json")
    )
    assert [row["new_offset"] for row in document["offsets"]] == [20, 30]


async def test_a_group_with_members_is_left_alone(broker: ScriptedBroker):
    """The other group's offsets move all the same."""
    done = await moldau(
        broker,
        *("groups", "reset-offsets", "busy", "idle", "--all-topics", "--shift-by", 5),
        *("--execute", "--json"),
    )
    assert done.status == 1
    assert "busy: offsets can only be moved while no member is in the group" in done.errors
    assert {row["group_id"] for row in json.loads(done.output)["offsets"]} == {"idle"}
    [request] = broker.requests_of(commit.OffsetCommitRequest)
    assert request.group_id == "idle"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("groups", "reset-offsets", "g", "--all-topics"), "where to?"),
        (
            ("groups", "reset-offsets", "g", "--all-topics", "--to-earliest", "--to-offset", 3),
            "--to-earliest and --to-offset exclude each other",
        ),
        (
            ("groups", "reset-offsets", "g", "--all-topics", "--to-latest", "--by-duration", "P1D"),
            "--to-latest and --by-duration exclude each other",
        ),
        (("groups", "reset-offsets", "g", "--to-latest"), "give --topic or --all-topics"),
        (
            ("groups", "reset-offsets", "g", "--all-topics", "--by-duration", "1 day"),
            "PnDTnHnMnS",
        ),
        (("transactions", "abort", "t:0", "--producer-id", 5), "give --start-offset, or"),
        (
            ("transactions", "abort", "__consumer_offsets:0", "--start-offset", 5, "--yes"),
            "__consumer_offsets is an internal topic",
        ),
    ],
)
async def test_wrong_usage(broker: ScriptedBroker, arguments: tuple[object, ...], said: str):
    refused(await moldau(broker, *arguments), 2, said)
    assert not broker.requests, "nobody was asked"


async def test_deleted_groups_are_printed_beside_the_others(broker: ScriptedBroker):
    results = [
        DeletableGroupResult(group_id="idle"),
        DeletableGroupResult(group_id="busy", error_code=ErrorCode.NON_EMPTY_GROUP),
    ]
    broker.script(ApiKey.DELETE_GROUPS, lambda _: DeleteGroupsResponse(results=results))
    done = await moldau(broker, "groups", "delete", "idle", "busy", "--yes")
    assert (done.status, done.output) == (1, "deleted idle\n")
    assert "busy: NON_EMPTY_GROUP" in done.errors


async def typed(broker: ScriptedBroker, words: str, *arguments: object) -> Ended:
    """The same command at a terminal."""
    environ = {"MOLDAU_BOOTSTRAP_SERVER": broker.address}
    return await asyncio.to_thread(run_at_terminal, *arguments, typed=words, environ=environ)


def list_groups(_: Any) -> Message:
    return ListGroupsResponse(groups=[ListedGroup(group_id=each) for each in ("idle", "busy")])


async def test_groups_are_deleted_after_a_yes(broker: ScriptedBroker):
    results = [DeletableGroupResult(group_id="idle")]
    broker.script(ApiKey.DELETE_GROUPS, lambda _: DeleteGroupsResponse(results=results))
    refused(
        await moldau(broker, "groups", "delete", "idle"),
        2,
        "this would delete group idle (2 committed offsets); give --yes",
    )
    no = await typed(broker, "n\n", "groups", "delete", "idle")
    assert (no.status, no.output) == (1, "")
    assert not broker.requests_of(DeleteGroupsRequest)
    done = await typed(broker, "y\n", "groups", "delete", "idle")
    assert (done.status, done.output) == (0, "deleted idle\n")
    assert "delete group idle (2 committed offsets)? [y/N]" in done.errors


async def test_an_unknown_group_of_several_deletes_none(broker: ScriptedBroker):
    broker.script(ApiKey.LIST_GROUPS, list_groups)
    refused(
        await moldau(broker, "groups", "delete", "busy", "idel", "--yes"),
        1,
        "nothing was changed: there is no group 'idel'; did you mean idle?",
    )
    assert not broker.requests_of(DeleteGroupsRequest)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("idle", "--topic", "tt", "--yes"), 1, "no offset of idle for 'tt'; did you mean t?"),
        (("idle", "--topic", "t:0,7", "--yes"), 1, "there is no offset of idle for 't-7'"),
        (("new", "--topic", "t", "--yes"), 1, "there is no group 'new'"),
        (("idle", "--topic", "t"), 2, "delete 2 committed offsets of idle: t-0, t-1; give --yes"),
    ],
)
async def test_offsets_that_are_not_deleted(
    broker: ScriptedBroker, arguments: tuple[object, ...], status: int, said: str
):
    broker.script(ApiKey.LIST_GROUPS, list_groups)
    refused(await moldau(broker, "groups", "delete-offsets", *arguments), status, said)
    assert not broker.requests_of(offset_delete.OffsetDeleteRequest)


async def test_offsets_are_deleted_after_a_yes(broker: ScriptedBroker):
    partitions = [offset_delete.OffsetDeleteResponsePartition(partition_index=1)]
    told = [offset_delete.OffsetDeleteResponseTopic(name="t", partitions=partitions)]
    broker.script(ApiKey.OFFSET_DELETE, lambda _: offset_delete.OffsetDeleteResponse(topics=told))
    done = await typed(broker, "yes\n", "groups", "delete-offsets", "idle", "--topic", "t:1")
    assert (done.status, done.output) == (0, "idle has no offset of t-1 any more\n")
    assert "delete 1 committed offset of idle: t-1? [y/N]" in done.errors


def answer_transactions(request: Any) -> Message:
    """ "orders-1" is open on two partitions, nothing else exists."""
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(
                transactional_id=each,
                transaction_state="Ongoing",
                topics=[TopicData(topic="t", partitions=[0, 1])],
            )
            if each == "orders-1"
            else TransactionState(
                transactional_id=each, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            )
            for each in request.transactional_ids
        ]
    )


async def test_termination_names_the_transactions_and_makes_none(broker: ScriptedBroker):
    listed = [ListedTransaction(transactional_id="orders-1")]
    broker.script(ApiKey.DESCRIBE_TRANSACTIONS, answer_transactions)
    broker.script(
        ApiKey.LIST_TRANSACTIONS, lambda _: ListTransactionsResponse(transaction_states=listed)
    )
    broker.script(
        ApiKey.INIT_PRODUCER_ID, lambda _: InitProducerIdResponse(producer_id=5, producer_epoch=3)
    )
    command = ("transactions", "force-terminate")
    refused(
        await moldau(broker, *command, "orders-1", "order-1", "--yes"),
        1,
        "nothing was changed: there is no transactional id 'order-1'; did you mean orders-1?",
    )
    refused(
        await moldau(broker, *command, "orders-1"),
        2,
        "this would fence orders-1 (Ongoing) and abort what is open on 2 partitions; give --yes",
    )
    assert not broker.requests_of(InitProducerIdRequest)
    done = await typed(broker, "y\n", *command, "orders-1")
    assert done.output == "terminated orders-1: its producer is now 5 in epoch 3\n"


async def test_abort_finds_the_producer_by_the_start_offset(broker: ScriptedBroker):
    state = producers.ProducerState(
        producer_id=5, producer_epoch=2, coordinator_epoch=4, current_txn_start_offset=40
    )
    entry = producers.PartitionResponse(partition_index=0, active_producers=[state])
    told = [producers.TopicResponse(name="t", partitions=[entry])]
    broker.script(
        ApiKey.DESCRIBE_PRODUCERS, lambda _: producers.DescribeProducersResponse(topics=told)
    )
    broker.script(ApiKey.WRITE_TXN_MARKERS, written(ErrorCode.NONE))
    refused(
        await moldau(broker, "transactions", "abort", "t:0", "--start-offset", 41),
        1,
        "no open transaction of t-0 begins at offset 41",
    )
    abort = ("transactions", "abort", "t:0", "--start-offset", 40)
    refused(
        await moldau(broker, *abort),
        2,
        "abort the transaction of producer 5 on t-0 from offset 40 on (at most 50 records), ",
    )
    assert not broker.requests_of(WriteTxnMarkersRequest)
    aborted = await ok(broker, *abort, "--yes")
    assert aborted == "aborted the transaction of producer 5 on t-0\n"
    [request] = broker.requests_of(WriteTxnMarkersRequest)
    [marker] = request.markers  # type: ignore[attr-defined]
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (5, 2, 4)
