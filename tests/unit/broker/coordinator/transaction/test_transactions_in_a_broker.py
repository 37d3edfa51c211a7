"""Whole transactions in one broker: both coordinators, partitions, group offsets, readers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from moldau.protocol.messages.p25_add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.messages.p28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.server.authorizer import Authorizer
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.transaction.scripted_coordinator import script
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, FakeRequest
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce

ID = "mine"
GROUP = "readers"


class Forbidding(Authorizer):
    """Allows all but what a test names."""

    def __init__(self) -> None:
        self.forbidden: set[tuple[Operation, ResourceType, str]] = set()

    def authorize(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
    ) -> bool:
        del principal, host
        return (operation, resource_type, resource_name) not in self.forbidden


@pytest.fixture
def authorizer() -> Forbidding:
    return Forbidding()


@pytest.fixture
async def path(tmp_path: Path, authorizer: Forbidding) -> AsyncIterator[DataPath]:
    async with DataPath(tmp_path, authorizer=authorizer) as data_path:
        data_path.replay(FeatureLevelRecord(name="transaction.version", feature_level=2))
        data_path.create_topic("__transaction_state", cleanup_policy="compact")
        data_path.create_topic("__consumer_offsets", cleanup_policy="compact")
        data_path.create_topic("in")
        data_path.create_topic("out", 2)
        yield data_path


class Client:
    """A transactional producer; `version` says by which protocol it goes."""

    def __init__(self, path: DataPath, version: int) -> None:
        self.path = path
        self.version = version
        self.producer_id = self.producer_epoch = -1
        self.sequences: dict[int, int] = {}

    @property
    def is_old(self) -> bool:
        return self.version < 2

    async def ask(self, message: Any, api_version: int) -> Any:
        return await self.path.ask(message, api_version)

    async def init(self) -> None:
        request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=60_000)

        async def is_done() -> bool:
            answer = await self.ask(request, 5)
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
            error = ErrorCode.of(answer.error_code)
            assert error is ErrorCode.NONE or error.retriable
            return error is ErrorCode.NONE

        await until_async(is_done, what="a producer id", deadline_s=20)
        self.sequences.clear()

    async def add(self, *indexes: int) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="out", partitions=list(indexes))],
        )
        answer = await self.ask(request, 3)
        (topic,) = answer.results_by_topic_v3_and_below
        return ErrorCode.of(topic.results_by_partition[0].partition_error_code)

    def records(self, value: bytes, index: int = 0) -> bytearray:
        sequence = self.sequences.get(index, 0)
        self.sequences[index] = sequence + 1
        return batch(
            value=value,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    async def send(self, value: bytes, index: int = 0) -> ErrorCode:
        api_version = 10 if self.is_old else 12
        request = produce(
            {("out", index): self.records(value, index)},
            api_version=api_version,
            transactional_id=ID,
        )
        return ErrorCode.of(only(await self.ask(request, api_version)).error_code)

    async def add_offsets(self) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=ID,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=GROUP,
        )
        return ErrorCode.of((await self.ask(request, 3)).error_code)

    def offsets(self, offset: int, *topics: tuple[str, int], **changes: Any) -> Any:
        request = TxnOffsetCommitRequest(
            transactional_id=ID,
            group_id=GROUP,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset
                        )
                    ],
                )
                for name, index in topics or [("in", 0)]
            ],
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return request

    async def commit_offset(self, offset: int, api_version: int | None = None) -> ErrorCode:
        version = api_version if api_version is not None else (3 if self.is_old else 5)
        answer = await self.ask(self.offsets(offset), version)
        (topic,) = answer.topics
        return ErrorCode.of(topic.partitions[0].error_code)

    async def end(self, is_commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=ID,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=is_commit,
        )
        answer = await self.ask(request, 4 if self.is_old else 5)
        assert answer.error_code == ErrorCode.NONE
        if not self.is_old:
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        log = self.path.log("out")
        offsets = self.path.log("__consumer_offsets")
        for each in (log, self.path.log("out", 1), offsets):
            await until_async(lambda each=each: each.last_stable_offset == each.log_end_offset)


@pytest.fixture(params=[1, 2], ids=["classic", "own epochs"])
async def client(path: DataPath, request: pytest.FixtureRequest) -> Client:
    client = Client(path, request.param)
    await client.init()
    return client


def committed(path: DataPath, index: int = 0, offset: int = 0) -> list[bytes | None]:
    """What a reader of committed data keeps of one fetch."""
    answer = path.send(fetch({("out", index): offset}, isolation_level=1), 12).response
    partition = only(answer)
    assert partition.error_code == ErrorCode.NONE
    first_offsets = [each.first_offset for each in partition.aborted_transactions]
    assert first_offsets == sorted(first_offsets)
    aborted = {each.producer_id for each in partition.aborted_transactions}
    values = [value for value in fetched_values(partition) if value and len(value) > 6]
    return [] if aborted else values


async def group_offset(path: DataPath) -> int:
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=GROUP,
                topics=[OffsetFetchRequestTopics(name="in", partition_indexes=[0])],
            )
        ],
        require_stable=True,
    )
    (group,) = (await path.ask(request, 8)).groups
    assert group.error_code == ErrorCode.NONE
    (partition,) = group.topics[0].partitions
    if partition.error_code:
        assert partition.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        return -2
    return int(partition.committed_offset)


async def test_consume_transform_produce(path: DataPath, client: Client) -> None:
    """Records and the group's offset become visible together, or not at all."""
    for number, is_commit in enumerate([True, False, True]):
        value = b"transaction %d" % number
        if client.is_old:
            assert await client.add(0, 1) is ErrorCode.NONE
            assert await client.add_offsets() is ErrorCode.NONE
        before = path.log("out").log_end_offset
        assert await client.send(value) is ErrorCode.NONE
        assert await client.send(value, 1) is ErrorCode.NONE
        assert await client.send(value) is ErrorCode.NONE
        assert await client.commit_offset(10 * number + 10) is ErrorCode.NONE
        assert committed(path, offset=before) == []
        assert await group_offset(path) == -2, "nobody knows yet"
        await client.end(is_commit)
        assert committed(path, offset=before) == [value, value] * is_commit
        assert await group_offset(path) == (30 if number == 2 else 10)
    assert [each for each in committed(path, 1, 4)] == [b"transaction 2"]


async def test_latest_is_the_last_stable_offset_for_readers_of_committed_data(
    path: DataPath, client: Client
) -> None:
    if client.is_old:
        await client.add(0)
    await client.send(b"a value")

    async def latest(isolation_level: int) -> int:
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[
                ListOffsetsTopic(
                    name="out", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
                )
            ],
        )
        (topic,) = (await path.ask(request, 7)).topics
        return int(topic.partitions[0].offset)

    assert (await latest(0), await latest(1)) == (1, 0)
    await client.end(True)
    assert (await latest(0), await latest(1)) == (2, 2)


async def test_a_fetch_waits_for_the_end_of_the_transaction(path: DataPath, client: Client) -> None:
    if client.is_old:
        await client.add(0)
    await client.send(b"a value")
    waiting = path.send(fetch({("out", 0): 0}, isolation_level=1, max_wait_ms=60_000), 12)
    dirty = path.send(fetch({("out", 0): 0}, isolation_level=0, max_wait_ms=60_000), 12)
    assert dirty.is_answered
    assert only(dirty.response).aborted_transactions is None
    assert not waiting.is_answered
    await client.end(True)
    await until_async(lambda: waiting.is_answered)
    assert only(waiting.response).last_stable_offset == 2


async def test_the_fenced_one_writes_nothing(path: DataPath, client: Client) -> None:
    if client.is_old:
        await client.add(0)
        await client.add_offsets()
    assert await client.send(b"of the first one") is ErrorCode.NONE
    zombie = Client(path, client.version)
    zombie.__dict__.update(client.__dict__, sequences=dict(client.sequences))
    await client.init()
    assert await zombie.send(b"of the fenced one") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await zombie.send(b"elsewhere", 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await zombie.commit_offset(5) in (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    )
    await until_async(lambda: path.log("out").last_stable_offset == path.log("out").log_end_offset)
    assert committed(path) == []
    assert await group_offset(path) == -1


async def test_what_was_not_added_is_refused(path: DataPath, client: Client) -> None:
    """The classic way adds before it writes; the other one adds by writing."""
    if not client.is_old:
        assert await client.send(b"a value") is ErrorCode.NONE
        await client.end(True)
        return
    assert await client.send(b"a value") is ErrorCode.INVALID_TXN_STATE
    assert await client.commit_offset(5) is ErrorCode.INVALID_TXN_STATE
    assert await client.commit_offset(5, 4) is ErrorCode.TRANSACTION_ABORTABLE
    assert path.log("out").log_end_offset == 0
    assert await client.add(0) is ErrorCode.NONE
    client.sequences.clear()
    assert await client.send(b"a value") is ErrorCode.NONE
    request = produce(
        {("out", 1): client.records(b"value", 1)}, api_version=11, transactional_id=ID
    )
    refused = only(await client.ask(request, 11))
    assert refused.error_code == ErrorCode.TRANSACTION_ABORTABLE


# -- TxnOffsetCommit -----------------------------------------------------------------------------


def codes(request: FakeRequest) -> dict[tuple[str, int], ErrorCode]:
    assert request.is_answered
    return {
        (topic.name, partition.partition_index): ErrorCode.of(partition.error_code)
        for topic in request.response.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("api_version", range(6))
async def test_offsets_of_what_does_not_exist(path: DataPath, api_version: int) -> None:
    client = Client(path, 1)
    await client.init()
    await client.add_offsets()
    request = client.offsets(5, ("in", 0), ("nowhere", 0), ("in", 7))
    assert codes(path.send(request, api_version)) == {
        ("in", 0): ErrorCode.NONE,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("in", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    request = client.offsets(5, ("nowhere", 0))
    assert codes(path.send(request, api_version)) == {
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


async def test_a_group_without_a_name(path: DataPath) -> None:
    client = Client(path, 2)
    await client.init()
    request = client.offsets(5, group_id="")
    assert codes(path.send(request, 5)) == {("in", 0): ErrorCode.INVALID_GROUP_ID}


async def test_offsets_of_a_stranger(path: DataPath) -> None:
    client = Client(path, 2)
    await client.init()
    wrong_id = client.offsets(5, producer_id=4711)
    assert codes(path.send(wrong_id, 5)) == {("in", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    old_epoch = client.offsets(5, producer_epoch=client.producer_epoch - 1)
    assert codes(path.send(old_epoch, 5)) == {("in", 0): ErrorCode.INVALID_PRODUCER_EPOCH}


async def test_offsets_at_a_broker_that_does_not_coordinate_the_group(path: DataPath) -> None:
    client = Client(path, 2)
    await client.init()
    path.change_partition("__consumer_offsets", leader=OTHER_BROKER_ID)
    assert codes(path.send(client.offsets(5), 5)) == {("in", 0): ErrorCode.NOT_COORDINATOR}


async def asked_about_offsets(path: DataPath, api_version: int) -> tuple[Client, Any, Any]:
    """Offsets wait until the transaction's coordinator, which the test holds, has answered."""
    client = Client(path, 2)
    await client.init()
    coordinator = script(path)
    coordinator.reply = None
    return client, coordinator, path.send(client.offsets(5), api_version)


@pytest.mark.parametrize("api_version", [3, 5])
@pytest.mark.parametrize("is_back", [False, True], ids=["gone", "back"])
async def test_a_group_that_moves_while_its_transaction_is_asked_about(
    path: DataPath, api_version: int, is_back: bool
) -> None:
    """The transaction is as good as before: an error that is final would cost its producer."""
    _client, coordinator, request = await asked_about_offsets(path, api_version)
    path.change_partition("__consumer_offsets", leader=OTHER_BROKER_ID)
    if is_back:
        path.change_partition("__consumer_offsets", leader=BROKER_ID)
    coordinator.open.pop().answer()
    assert codes(request) == {("in", 0): ErrorCode.NOT_COORDINATOR}
    assert path.log("__consumer_offsets").log_end_offset == 0


@pytest.mark.parametrize("api_version", [3, 5])
async def test_offsets_whose_transaction_ends_while_it_is_asked_about(
    path: DataPath, api_version: int
) -> None:
    client, coordinator, request = await asked_about_offsets(path, api_version)
    marked = path.partition("__consumer_offsets").append_marker(
        client.producer_id, client.producer_epoch, 0, is_commit=False
    )
    assert marked.error is ErrorCode.NONE
    coordinator.open.pop().answer()
    assert codes(request) == {("in", 0): ErrorCode.INVALID_TXN_STATE}
    assert path.log("__consumer_offsets").log_end_offset == 1, "nothing but the marker"


@pytest.mark.parametrize(
    ("api_version", "error"),
    [
        (0, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_a_coordinator_that_does_not_answer(
    path: DataPath, api_version: int, error: ErrorCode
) -> None:
    client = Client(path, 2)
    await client.init()
    path.change_partition("__transaction_state", leader=OTHER_BROKER_ID)
    request = path.send(client.offsets(5), api_version)
    await until_async(lambda: request.is_answered)
    assert codes(request) == {("in", 0): error}


@pytest.mark.parametrize(
    ("forbidden", "error"),
    [
        (
            (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ID),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        ((Operation.READ, ResourceType.GROUP, GROUP), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ((Operation.READ, ResourceType.TOPIC, "in"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_who_may_commit_offsets(
    path: DataPath,
    authorizer: Forbidding,
    forbidden: tuple[Operation, ResourceType, str],
    error: ErrorCode,
) -> None:
    client = Client(path, 2)
    await client.init()
    authorizer.forbidden.add(forbidden)
    assert codes(path.send(client.offsets(5), 5)) == {("in", 0): error}
    assert path.log("__consumer_offsets").log_end_offset == 0


async def test_who_may_produce_in_a_transaction(path: DataPath, authorizer: Forbidding) -> None:
    client = Client(path, 2)
    await client.init()
    authorizer.forbidden.add((Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ID))
    assert await client.send(b"a value") is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_transactional_ids_of_one_principal_leave_room_for_others(tmp_path: Path) -> None:
    """A new id is refused; one that exists goes on, and others have theirs."""
    async with DataPath(tmp_path, moldau_transaction_coordinator_max_bytes=5_000) as path:
        path.replay(FeatureLevelRecord(name="transaction.version", feature_level=2))
        path.create_topic("__transaction_state", cleanup_policy="compact")

        async def made(principal: str, transactional_id: str) -> ErrorCode:
            path.connection.principal = principal
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=60_000
            )
            loading = (
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            )

            async def answered() -> list[ErrorCode]:
                error = ErrorCode.of((await path.ask(request, 5)).error_code)
                return [] if error in loading else [error]

            return (await until_async(answered))[0]

        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        asked = [await made("User:greedy", f"greedy-{n}") for n in range(5)]
        assert asked == [ErrorCode.NONE] * 3 + [unavailable] * 2
        assert await made("User:good", "good") is ErrorCode.NONE
        assert await made("User:greedy", "greedy-0") is ErrorCode.NONE
        memory = path.services.coordinators.transactions.runtime
        assert [len(state._memory._kept) for _, state in memory.states()] == [4]
