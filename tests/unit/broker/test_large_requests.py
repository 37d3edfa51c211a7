"""Requests with very many parts: others have their turn, and the connection keeps its order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.broker import api
from moldau.broker.api import p01_fetch
from moldau.broker.replica import delayed_fetch
from moldau.broker.replica.partition import FetchPartition
from moldau.metadata.features import GROUP_VERSION
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.messages import (
    p02_list_offsets,
    p08_offset_commit,
    p09_offset_fetch,
    p11_join_group,
    p13_leave_group,
    p15_describe_groups,
    p21_delete_records,
    p23_offset_for_leader_epoch,
    p24_add_partitions_to_txn,
    p27_write_txn_markers,
    p28_txn_offset_commit,
    p32_describe_configs,
    p33_alter_configs,
    p42_delete_groups,
    p44_incremental_alter_configs,
    p47_offset_delete,
    p61_describe_producers,
    p65_describe_transactions,
    p69_consumer_group_describe,
    p75_describe_topic_partitions,
)
from moldau.protocol.messages.p10_find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.protocol.schema import Message
from moldau.runtime import slices
from moldau.runtime.slices import SLICE_MS
from moldau.server.apis import BROKER_APIS
from moldau.server.authorizer import Authorizer
from moldau.server.request import RequestContext
from moldau.server.request_router import Handler, RequestRouter, Route
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.unit.broker.harness import DataPath, FakeConnection, FakeRequest
from tests.unit.broker.messages import batch, fetch, fetched_values, produce
from tests.unit.broker.test_admin_requests import ScriptedController, combined_node_config

COUNT = 30
STEP_MS = 0.75
PARTITION_COUNT = 10
NAMES = [f"name-{number}" for number in range(COUNT)]


class SlowAuthorizer(Authorizer):
    """Refuses each thing by itself, and takes its time: time passes on the test's clock."""

    def __init__(self) -> None:
        self.advance: Any = None

    def authorize(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        if kind is ResourceType.CLUSTER:
            return operation is not Operation.CREATE and operation is not Operation.CLUSTER_ACTION
        if name == "group":
            return True
        self.advance(STEP_MS)
        return False


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    authorizer = SlowAuthorizer()
    async with DataPath(tmp_path, authorizer=authorizer) as data_path:
        authorizer.advance = data_path.clock.advance
        data_path.services.node_config = combined_node_config(tmp_path)
        data_path.services.controller = ScriptedController(None)  # type: ignore[assignment]
        data_path.replay(FeatureLevelRecord(name=GROUP_VERSION, feature_level=1))
        yield data_path


def _requests() -> Iterator[tuple[Message, int]]:
    yield produce({(name, 0): batch() for name in NAMES}), 12
    partition: Any = p02_list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics: Any = [p02_list_offsets.ListOffsetsTopic(name=n, partitions=[partition]) for n in NAMES]
    yield p02_list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics), 7
    partition = p08_offset_commit.OffsetCommitRequestPartition(partition_index=0)
    topics = [
        p08_offset_commit.OffsetCommitRequestTopic(name=n, partitions=[partition]) for n in NAMES
    ]
    yield p08_offset_commit.OffsetCommitRequest(group_id="group", topics=topics), 8
    groups = [p09_offset_fetch.OffsetFetchRequestGroup(group_id=n, topics=None) for n in NAMES]
    yield p09_offset_fetch.OffsetFetchRequest(groups=groups), 8
    yield FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES), 4
    yield p15_describe_groups.DescribeGroupsRequest(groups=NAMES), 5
    partition = p21_delete_records.DeleteRecordsPartition(partition_index=0, offset=-1)
    topics = [p21_delete_records.DeleteRecordsTopic(name=n, partitions=[partition]) for n in NAMES]
    yield p21_delete_records.DeleteRecordsRequest(topics=topics), 2
    partition = p23_offset_for_leader_epoch.OffsetForLeaderPartition(partition=0)
    topics = [
        p23_offset_for_leader_epoch.OffsetForLeaderTopic(topic=n, partitions=[partition])
        for n in NAMES
    ]
    yield p23_offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=topics), 3
    resources: Any = [
        p32_describe_configs.DescribeConfigsResource(resource_type=2, resource_name=n)
        for n in NAMES
    ]
    yield p32_describe_configs.DescribeConfigsRequest(resources=resources), 4
    resources = [
        p33_alter_configs.AlterConfigsResource(resource_type=2, resource_name=n) for n in NAMES
    ]
    yield p33_alter_configs.AlterConfigsRequest(resources=resources), 2
    yield p42_delete_groups.DeleteGroupsRequest(groups_names=NAMES), 2
    resources = [
        p44_incremental_alter_configs.AlterConfigsResource(resource_type=2, resource_name=n)
        for n in NAMES
    ]
    yield p44_incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources), 1
    topics = [p61_describe_producers.TopicRequest(name=n, partition_indexes=[0]) for n in NAMES]
    yield p61_describe_producers.DescribeProducersRequest(topics=topics), 0
    topics = [p75_describe_topic_partitions.TopicRequest(name=n) for n in NAMES]
    yield p75_describe_topic_partitions.DescribeTopicPartitionsRequest(topics=topics), 0
    yield p65_describe_transactions.DescribeTransactionsRequest(transactional_ids=NAMES), 0
    yield p69_consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=NAMES), 0
    yield from _requests_about_offsets_and_transactions()


def _requests_about_offsets_and_transactions() -> Iterator[tuple[Message, int]]:
    topics: Any = [
        p24_add_partitions_to_txn.AddPartitionsToTxnTopic(name=n, partitions=[0]) for n in NAMES
    ]
    yield (
        p24_add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="group", v3_and_below_topics=topics
        ),
        3,
    )
    offset: Any = p28_txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0)
    topics = [
        p28_txn_offset_commit.TxnOffsetCommitRequestTopic(name=n, partitions=[offset])
        for n in NAMES
    ]
    yield (
        p28_txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id="group", group_id="group", topics=topics
        ),
        3,
    )
    partition: Any = p47_offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topics = [
        p47_offset_delete.OffsetDeleteRequestTopic(name=n, partitions=[partition]) for n in NAMES
    ]
    yield p47_offset_delete.OffsetDeleteRequest(group_id="group", topics=topics), 0


@pytest.mark.parametrize(
    ("message", "api_version"),
    [pytest.param(*each, id=ApiKey(each[0].API_KEY).name) for each in _requests()],
)
async def test_a_request_with_many_parts_lets_others_have_their_turn(
    broker: DataPath, message: Message, api_version: int
) -> None:
    times = [broker.clock.monotonic_ms()]
    asked = broker.send(message, api_version)

    def sample() -> None:
        """Take a sample in each turn of the loop."""
        times.append(broker.clock.monotonic_ms())
        if not asked.is_answered:
            asyncio.get_running_loop().call_soon(sample)

    sample()
    await until_async(lambda: asked.is_answered and broker.connection.suspended_count == 0)
    times.append(broker.clock.monotonic_ms())
    assert times[-1] - times[0] >= COUNT * STEP_MS
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert max(steps) <= SLICE_MS + 2 * STEP_MS
    assert asked.response is not None


def _requests_of_one_whole() -> Iterator[tuple[Message, int]]:
    """Many parts of one thing that permission is asked for once."""
    indexes = list(range(PARTITION_COUNT))
    offsets: Any = [
        p08_offset_commit.OffsetCommitRequestPartition(partition_index=n) for n in indexes
    ]
    topics: Any = [p08_offset_commit.OffsetCommitRequestTopic(name="t", partitions=offsets)]
    yield p08_offset_commit.OffsetCommitRequest(group_id="group", topics=topics), 8
    unknown = p09_offset_fetch.OffsetFetchRequestTopics(
        topic_id=UUID(int=1), partition_indexes=indexes
    )
    groups = [p09_offset_fetch.OffsetFetchRequestGroup(group_id="group", topics=[unknown])]
    yield p09_offset_fetch.OffsetFetchRequest(groups=groups), 10
    protocols = [
        p11_join_group.JoinGroupRequestProtocol(name=name, metadata=b"\0") for name in NAMES
    ]
    yield p11_join_group.JoinGroupRequest(group_id="group", protocols=protocols), 5
    members = [p13_leave_group.MemberIdentity(member_id=name) for name in NAMES]
    yield p13_leave_group.LeaveGroupRequest(group_id="group", members=members), 5
    topics = [p24_add_partitions_to_txn.AddPartitionsToTxnTopic(name="t", partitions=indexes)]
    yield (
        p24_add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="group", v3_and_below_topics=topics
        ),
        3,
    )
    topics = [p27_write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=indexes)]
    markers = [p27_write_txn_markers.WritableTxnMarker(producer_id=1, topics=topics)]
    yield p27_write_txn_markers.WriteTxnMarkersRequest(markers=markers), 1
    offsets = [
        p28_txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=n) for n in indexes
    ]
    topics = [p28_txn_offset_commit.TxnOffsetCommitRequestTopic(name="t", partitions=offsets)]
    yield (
        p28_txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id="group", group_id="group", topics=topics
        ),
        3,
    )
    offsets = [p47_offset_delete.OffsetDeleteRequestPartition(partition_index=n) for n in indexes]
    topics = [p47_offset_delete.OffsetDeleteRequestTopic(name="t", partitions=offsets)]
    yield p47_offset_delete.OffsetDeleteRequest(group_id="group", topics=topics), 0


@pytest.mark.parametrize("is_permitted", [True, False])
@pytest.mark.parametrize(
    ("message", "api_version"),
    [pytest.param(*each, id=ApiKey(each[0].API_KEY).name) for each in _requests_of_one_whole()],
)
async def test_there_is_a_step_for_each_part_of_one_whole(
    broker: DataPath, message: Message, api_version: int, is_permitted: bool
) -> None:
    if is_permitted:
        broker.create_topic("t", PARTITION_COUNT)
    request = FakeRequest(FakeConnection(), message.API_KEY, api_version, b"")
    authorizer = Authorizer() if is_permitted else broker.authorizer
    context = RequestContext(request, authorizer)  # type: ignore[arg-type]
    handle = api.load_handler_module(BROKER_APIS[ApiKey(message.API_KEY)]).handle
    copy = type(message).decode(bytearray(message.to_bytes(api_version)), api_version)[0]
    steps = sum(1 for _ in handle(broker.services, context, copy))
    assert steps >= PARTITION_COUNT
    await until_async(lambda: request.is_answered)


# -- fetches -------------------------------------------------------------------------------------


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fetch is large, and every partition its own slice."""
    monkeypatch.setattr(delayed_fetch, "MAX_READ_AT_ONCE", 0)
    monkeypatch.setattr(p01_fetch, "MAX_READ_AT_ONCE", 0)
    monkeypatch.setattr(delayed_fetch, "STEP_COUNT", 1)
    monkeypatch.setattr(slices, "SLICE_MS", -1.0)


@pytest.fixture
async def free(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with DataPath(tmp_path) as data_path:
        yield data_path


def _told(response: Any) -> dict[int, list[bytes]]:
    return {
        each.partition_index: fetched_values(each)
        for topic in response.responses
        for each in topic.partitions
    }


async def test_a_fetch_of_many_partitions_lets_others_have_their_turn(
    free: DataPath, small_steps: None
) -> None:
    free.create_topic("t", PARTITION_COUNT)
    for index in range(PARTITION_COUNT):
        await free.ask(produce({("t", index): batch(1, value=b"%d" % index)}), 12)
    turns = 0
    asked = free.send(
        fetch({("t", index): 0 for index in range(PARTITION_COUNT)}, max_wait_ms=0), 12
    )
    while not asked.is_answered:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 3 * PARTITION_COUNT, "listing, reading, and answering them"
    assert _told(asked.response) == {index: [b"%d" % index] for index in range(PARTITION_COUNT)}


@pytest.mark.parametrize("turn_count", range(1, 10))
async def test_what_changes_while_a_fetch_is_answered_comes_with_the_next(
    free: DataPath, small_steps: None, turn_count: int
) -> None:
    free.create_topic("t", 3)
    listed: Any = {("t", index): 0 for index in range(3)}
    asked = free.send(fetch(listed, session_id=0, session_epoch=0, max_wait_ms=0), 12)
    for _ in range(turn_count):
        await asyncio.sleep(0)
    free.send(produce({("t", 0): batch(1, value=b"new")}), 12, FakeConnection())
    await until_async(lambda: asked.is_answered)
    told = _told(asked.response)
    if told[0] != [b"new"]:
        session_id = asked.response.session_id
        again = fetch({}, session_id=session_id, session_epoch=1, max_wait_ms=0)
        told = _told(await free.ask(again, 12))
    assert told[0] == [b"new"]


async def test_a_fetch_of_many_partitions_waits_for_what_came_while_they_were_read(
    free: DataPath, small_steps: None
) -> None:
    free.create_topic("t", 3)
    asked = free.send(fetch({("t", index): 0 for index in range(3)}, max_wait_ms=1000), 12)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asked.is_answered
    free.send(produce({("t", 0): batch(1, value=b"new")}), 12, FakeConnection())
    await until_async(lambda: asked.is_answered)
    assert _told(asked.response)[0] == [b"new"]


class Counted(list[Any]):
    """How often it has been gone through."""

    count = 0

    def __iter__(self) -> Iterator[Any]:
        self.count += 1
        return super().__iter__()


async def test_the_parts_of_a_request_are_not_searched_for_each_part(broker: DataPath) -> None:
    resources: Any = Counted(
        p33_alter_configs.AlterConfigsResource(resource_type=2, resource_name=name)
        for name in NAMES
    )
    request = p33_alter_configs.AlterConfigsRequest(resources=resources)
    context = RequestContext(
        FakeRequest(FakeConnection(), 33, 2, b""),  # type: ignore[arg-type]
        broker.authorizer,
    )
    module = api.load_handler_module(BROKER_APIS[ApiKey.ALTER_CONFIGS])
    await module.answer(broker.services, context, request)
    assert resources.count < 5


# -- the router ----------------------------------------------------------------------------------


class LargeRequest(FakeRequest):
    """Decoded when the test says so."""

    def __init__(self, connection: FakeConnection, body: bytes) -> None:
        super().__init__(connection, ApiKey.FIND_COORDINATOR, 4, body)
        self.is_large = True
        self.may_decode = asyncio.Event()

    async def decode(self, message_class: Any) -> Any:
        await self.may_decode.wait()
        return message_class.decode(self.body, self.api_version)[0]


def _router(handle: Any) -> tuple[RequestRouter, list[BaseException]]:
    """`handle` is given the clock, and the request's context."""
    faults: list[BaseException] = []
    clock = ManualClock()
    handler = Handler(handle=lambda context, _message: handle(clock, context))
    router = RequestRouter(
        {ApiKey.FIND_COORDINATOR: Route(0, 6, lambda: handler)},
        clock=clock,
        authorizer=Authorizer(),
        on_fault=faults.append,
    )
    return router, faults


BODY = FindCoordinatorRequest(coordinator_keys=["a"]).to_bytes(4)


async def test_a_large_body_holds_its_connection_until_its_handler_has_ended() -> None:
    connection = FakeConnection()

    def steps(clock: ManualClock, context: Any) -> Iterator[None]:
        for _ in range(3):
            clock.stand_still(SLICE_MS)
            yield
            assert connection.suspended_count == 1
        context.respond(FindCoordinatorResponse())

    router, faults = _router(steps)
    request = LargeRequest(connection, BODY)
    router(request)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert connection.suspended_count == 1
    request.may_decode.set()
    await router.close()
    assert request.response == FindCoordinatorResponse()
    assert connection.suspended_count == 0
    assert not faults


@pytest.mark.parametrize("error", [ValueError("no"), RemoteProtocolError("no")])
async def test_a_fault_of_a_handler_that_takes_several_turns_closes_its_connection(
    error: Exception,
) -> None:
    def steps(clock: ManualClock, _context: Any) -> Iterator[None]:
        clock.stand_still(SLICE_MS)
        yield
        raise error

    router, faults = _router(steps)
    request = FakeRequest(FakeConnection(), ApiKey.FIND_COORDINATOR, 4, BODY)
    router(request)  # type: ignore[arg-type]
    await router.close()
    assert request.connection.is_closed
    assert request.connection.suspended_count == 0
    assert faults == [error]


async def test_a_large_malformed_body_closes_its_connection() -> None:
    router, faults = _router(None)
    request = LargeRequest(FakeConnection(), BODY[:-1])
    request.may_decode.set()
    router(request)  # type: ignore[arg-type]
    await router.close()
    assert "malformed" in request.connection.close_reason
    assert request.connection.suspended_count == 0
    assert not faults


async def test_a_fetch_of_many_partitions_does_not_keep_the_request_while_it_waits(
    free: DataPath, small_steps: None
) -> None:
    """The partitions that it watches take what the decoded request was charged with."""
    free.create_topic("t", 3)
    request = FakeRequest(FakeConnection(), ApiKey.FETCH, 12, b"")
    message = fetch({("t", index): 0 for index in range(3)}, max_wait_ms=60_000)
    context = RequestContext(request, Authorizer())  # type: ignore[arg-type]
    handle = api.load_handler_module(BROKER_APIS[ApiKey.FETCH]).handle
    for _ in handle(free.services, context, message):
        pass
    assert not request.is_answered
    assert message.topics == []
    free.send(produce({("t", 2): batch(1, value=b"new")}), 12, FakeConnection())
    await until_async(lambda: request.is_answered)


@pytest.mark.parametrize("waits", [False, True])
async def test_the_partitions_of_a_fetch_that_has_ended_need_no_collector(
    free: DataPath, small_steps: None, waits: bool
) -> None:
    free.create_topic("t", 3)
    listed: Any = {("t", index): 0 for index in range(3)}
    gc.collect()
    gc.disable()
    try:
        asked = free.send(fetch(listed, max_wait_ms=60_000 if waits else 0), 12)
        if waits:
            free.send(produce({("t", 1): batch(1, value=b"new")}), 12, FakeConnection())
        await until_async(lambda: asked.is_answered)
        await asyncio.sleep(0)
        left = [each for each in gc.get_objects() if isinstance(each, FetchPartition)]
    finally:
        gc.enable()
    assert left == []
