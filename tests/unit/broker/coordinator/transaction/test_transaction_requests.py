"""The transaction APIs through the router, on real logs: versions, permissions, bad input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import re2

from moldau.broker.coordinator.expression_matcher import REST_PER_COMPILATION
from moldau.broker.coordinator.key_partitions import partition_for
from moldau.metadata.features import TRANSACTION_VERSION
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.p25_add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.messages.p65_describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest
from moldau.protocol.metadata_records import FeatureLevelRecord
from moldau.server.authorizer import Authorizer
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.harness import create_internal_topic
from tests.unit.broker.harness import DataPath

TIMEOUT_MS = 60_000


class Denying(Authorizer):
    """Allows all but what was put into `denied`."""

    def __init__(self) -> None:
        self.denied: set[tuple[Operation, ResourceType]] = set()
        self.denied_names: set[str] = set()

    def authorize(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        return (operation, kind) not in self.denied and name not in self.denied_names


class Broker:
    """Requests of transactional clients to one broker."""

    def __init__(self, path: DataPath, authorizer: Denying) -> None:
        self.path = path
        self.authorizer = authorizer

    async def init(self, transactional_id: str = "t", version: int = 5, **fields: Any) -> Any:
        fields.setdefault("transaction_timeout_ms", TIMEOUT_MS)
        request = InitProducerIdRequest(transactional_id=transactional_id, **fields)
        return await self.path.ask(request, version)

    async def add(
        self,
        producer_id: int,
        producer_epoch: int,
        topics: dict[str, list[int]],
        version: int = 3,
        transactional_id: str = "t",
    ) -> dict[tuple[str, int], ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )
        response = await self.path.ask(request, version)
        return by_partition(response.results_by_topic_v3_and_below)

    async def add_many(self, *transactions: AddPartitionsToTxnTransaction, version: int = 5) -> Any:
        request = AddPartitionsToTxnRequest(transactions=list(transactions))
        return await self.path.ask(request, version)

    async def end(
        self, producer_id: int, producer_epoch: int, *, committed: bool = True, version: int = 5
    ) -> Any:
        request = EndTxnRequest(
            transactional_id="t",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=committed,
        )
        return await self.path.ask(request, version)

    async def describe(self, *transactional_ids: str) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
        response = await self.path.ask(request, 0)
        return response.transaction_states

    async def list(self, version: int = 2, **filters: Any) -> Any:
        return await self.path.ask(ListTransactionsRequest(**filters), version)

    async def until_status(self, status: str) -> None:
        state = self.path.services.coordinators.transactions

        def has_it() -> bool:
            ((_, machine),) = state.runtime.states()
            return machine.transactions["t"].status.words == status

        await until_async(has_it)


def by_partition(topics: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.name, result.partition_index): ErrorCode.of(result.partition_error_code)
        for topic in topics
        for result in topic.results_by_partition
    }


def to_add(
    transactional_id: str,
    producer: Any,
    topics: dict[str, list[int]],
    *,
    verify_only: bool = False,
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        verify_only=verify_only,
        topics=[
            AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in topics.items()
        ],
    )


async def serve(path: DataPath, *, with_groups: bool = True) -> None:
    """The coordinators' topics exist and are loaded."""
    path.replay(FeatureLevelRecord(name=TRANSACTION_VERSION, feature_level=2))
    create_internal_topic(path, TRANSACTION_STATE)
    if with_groups:
        create_internal_topic(path, CONSUMER_OFFSETS)
    path.create_topic("outputs", 3)
    runtime = path.services.coordinators.transactions.runtime
    await until_async(lambda: runtime.coordinator_epoch(0) >= 0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    authorizer = Denying()
    async with DataPath(tmp_path, authorizer=authorizer) as path:
        await serve(path)
        yield Broker(path, authorizer)


# -- a transaction's life --------------------------------------------------------------------------


async def test_a_transaction_from_its_producer_to_its_markers(broker: Broker) -> None:
    producer = await broker.init()
    assert (producer.error_code, producer.producer_epoch) == (ErrorCode.NONE, 0)
    topics = {"outputs": [0, 2]}
    assert set((await broker.add(producer.producer_id, 0, topics)).values()) == {ErrorCode.NONE}
    assert broker.path.log("outputs", 0).log_end_offset == 0
    ended = await broker.end(producer.producer_id, 0)
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (
        ErrorCode.NONE,
        producer.producer_id,
        1,
    )
    await broker.until_status("CompleteCommit")
    assert [broker.path.log("outputs", index).log_end_offset for index in range(3)] == [1, 0, 1]


async def test_offsets_of_a_group_are_part_of_the_transaction(broker: Broker) -> None:
    producer = await broker.init()
    request = AddOffsetsToTxnRequest(
        transactional_id="t", producer_id=producer.producer_id, producer_epoch=0, group_id="g"
    )
    assert (await broker.path.ask(request, 4)).error_code == ErrorCode.NONE
    (state,) = await broker.describe("t")
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [
        (CONSUMER_OFFSETS.topic, [0])
    ]


async def test_offsets_are_part_of_a_transaction_before_there_is_a_group(tmp_path: Path) -> None:
    """Clients ask for the group's coordinator, which creates its topic, only after this answer."""
    async with DataPath(tmp_path, offsets_topic_num_partitions=7) as path:
        await serve(path, with_groups=False)
        broker = Broker(path, Denying())
        producer_id = (await broker.init()).producer_id
        request = AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=producer_id, producer_epoch=0, group_id="my-group"
        )
        assert (await path.ask(request, 4)).error_code == ErrorCode.NONE
        (state,) = await broker.describe("t")
        assert [(topic.topic, topic.partitions) for topic in state.topics] == [
            (CONSUMER_OFFSETS.topic, [partition_for("my-group", 7)])
        ]
        assert (await broker.end(producer_id, 0)).error_code == ErrorCode.NONE
        await broker.until_status("CompleteCommit")


async def test_brokers_add_and_verify_many_transactions_at_once(broker: Broker) -> None:
    one, two = await broker.init("one"), await broker.init("two")
    response = await broker.add_many(
        to_add("one", one, {"outputs": [0, 1]}),
        to_add("two", two, {"outputs": [0]}, verify_only=True),
        to_add("three", two, {"outputs": [0]}),
        to_add("one", one, {"missing": [0], "outputs": [2]}),
    )
    assert response.error_code == ErrorCode.NONE
    assert [result.transactional_id for result in response.results_by_transaction] == [
        "one",
        "two",
        "three",
        "one",
    ]
    results = [by_partition(each.topic_results) for each in response.results_by_transaction]
    assert results[0] == {("outputs", 0): ErrorCode.NONE, ("outputs", 1): ErrorCode.NONE}
    assert results[1] == {("outputs", 0): ErrorCode.TRANSACTION_ABORTABLE}
    assert results[2] == {("outputs", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert results[3] == {
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("outputs", 2): ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
    assert (await broker.add_many()).results_by_transaction == []


async def test_a_prepared_transaction_is_ended_by_another_process(tmp_path: Path) -> None:
    """KIP-939: the process that wrote it is gone, an outside coordinator has decided."""
    options = {"transaction_two_phase_commit_enable": True}
    async with DataPath(tmp_path, authorizer=Denying(), **options) as path:
        await serve(path)
        broker = Broker(path, path.authorizer)
        crashed = await broker.init(version=6, enable2_pc=True, transaction_timeout_ms=0)
        await broker.add(crashed.producer_id, crashed.producer_epoch, {"outputs": [1]})
        kept = await broker.init(version=6, enable2_pc=True, keep_prepared_txn=True)
        assert (kept.producer_id, kept.producer_epoch) == (crashed.producer_id, 1)
        assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == (
            crashed.producer_id,
            0,
        )
        refused = await broker.end(crashed.producer_id, 0)
        assert refused.error_code == ErrorCode.PRODUCER_FENCED
        ended = await broker.end(kept.producer_id, kept.producer_epoch)
        assert (ended.error_code, ended.producer_epoch) == (ErrorCode.NONE, 2)
        await broker.until_status("CompleteCommit")
        assert path.log("outputs", 1).log_end_offset == 1


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2, 5, 6])
@pytest.mark.parametrize("timeout_ms", [900_001, 0, -1])
async def test_a_timeout_over_the_maximum(broker: Broker, version: int, timeout_ms: int) -> None:
    answer = await broker.init(version=version, transaction_timeout_ms=timeout_ms)
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, ErrorCode.PRODUCER_FENCED),
        (4, ErrorCode.PRODUCER_FENCED),
        (5, ErrorCode.PRODUCER_FENCED),
    ],
)
async def test_an_end_by_the_wrong_epoch(broker: Broker, version: int, error: ErrorCode) -> None:
    producer = await broker.init()
    await broker.add(producer.producer_id, 0, {"outputs": [0]})
    for epoch in (-1, 1, 32_767):
        answer = await broker.end(producer.producer_id, epoch, version=version)
        assert answer.error_code == error
    assert (await broker.end(producer.producer_id, 0, version=version)).error_code == 0


@pytest.mark.parametrize("version", [0, 4, 5])
async def test_illegal_transitions(broker: Broker, version: int) -> None:
    producer_id = (await broker.init()).producer_id
    invalid = ErrorCode.INVALID_TXN_STATE
    assert (await broker.end(producer_id, 0, version=version)).error_code == invalid
    await broker.add(producer_id, 0, {"outputs": [0]})
    await broker.end(producer_id, 0, version=version)
    await broker.until_status("CompleteCommit")
    # Whatever was committed cannot be aborted any more:
    aborted = await broker.end(producer_id, 0, committed=False, version=version)
    assert aborted.error_code == invalid


async def test_a_producer_id_of_another_producer_is_refused(broker: Broker) -> None:
    producer_id = (await broker.init()).producer_id
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await broker.end(producer_id + 1, 0)).error_code == mapping
    assert await broker.add(producer_id + 1, 0, {"outputs": [0]}) == {("outputs", 0): mapping}


@pytest.mark.parametrize(
    ("version", "error"),
    [(0, ErrorCode.INVALID_PRODUCER_EPOCH), (1, ErrorCode.INVALID_PRODUCER_EPOCH)]
    + [(version, ErrorCode.PRODUCER_FENCED) for version in (2, 3)],
)
async def test_partitions_and_offsets_of_a_fenced_producer(
    broker: Broker, version: int, error: ErrorCode
) -> None:
    producer_id = (await broker.init()).producer_id
    await broker.init()
    assert await broker.add(producer_id, 0, {"outputs": [0]}, version) == {("outputs", 0): error}
    request = AddOffsetsToTxnRequest(
        transactional_id="t", producer_id=producer_id, producer_epoch=0, group_id="g"
    )
    assert (await broker.path.ask(request, version)).error_code == error


@pytest.mark.parametrize(
    ("version", "error"),
    [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)],
)
async def test_a_fenced_producer_that_comes_back(
    broker: Broker, version: int, error: ErrorCode
) -> None:
    producer_id = (await broker.init()).producer_id
    await broker.init()
    answer = await broker.init(version=version, producer_id=producer_id, producer_epoch=0)
    assert answer.error_code == error


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(5, -1), (-1, 5)])
async def test_half_of_a_producer(broker: Broker, producer_id: int, producer_epoch: int) -> None:
    answer = await broker.init(producer_id=producer_id, producer_epoch=producer_epoch)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_the_empty_transactional_id(broker: Broker) -> None:
    assert (await broker.init("")).error_code == ErrorCode.INVALID_REQUEST
    (state,) = await broker.describe("")
    assert state.error_code == ErrorCode.INVALID_REQUEST


async def test_partitions_that_there_are_not_refuse_all(broker: Broker) -> None:
    producer = await broker.init()
    errors = await broker.add(producer.producer_id, 0, {"outputs": [0, 3], "missing": [0]})
    assert errors == {
        ("outputs", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("outputs", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    (state,) = await broker.describe("t")
    assert state.transaction_state == "Empty"


async def test_two_phase_commit_that_is_not_enabled(broker: Broker) -> None:
    answer = await broker.init(version=6, enable2_pc=True)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_before_there_is_a_coordinator(tmp_path: Path) -> None:
    async with DataPath(tmp_path) as path:
        broker = Broker(path, Denying())
        path.create_topic("outputs")
        missing = ErrorCode.NOT_COORDINATOR
        assert (await broker.init()).error_code == missing
        assert (await broker.end(1, 0)).error_code == missing
        assert await broker.add(1, 0, {"outputs": [0]}) == {("outputs", 0): missing}
        (state,) = await broker.describe("t")
        assert state.error_code == missing
        listed = await broker.list()
        assert (listed.error_code, listed.transaction_states) == (ErrorCode.NONE, [])


async def test_a_coordinator_elsewhere(broker: Broker) -> None:
    producer = await broker.init()
    broker.path.change_partition(TRANSACTION_STATE.topic, 0, leader=2)
    elsewhere = ErrorCode.NOT_COORDINATOR
    assert (await broker.init()).error_code == elsewhere
    assert (await broker.end(producer.producer_id, 0)).error_code == elsewhere
    (state,) = await broker.describe("t")
    assert state.error_code == elsewhere


# -- permissions -----------------------------------------------------------------------------------


async def test_who_may_not_write_to_the_transactional_id(broker: Broker) -> None:
    producer = await broker.init()
    broker.authorizer.denied.add((Operation.WRITE, ResourceType.TRANSACTIONAL_ID))
    failed = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (await broker.init()).error_code == failed
    assert (await broker.end(producer.producer_id, 0)).error_code == failed
    assert await broker.add(producer.producer_id, 0, {"outputs": [0]}) == {("outputs", 0): failed}
    request = AddOffsetsToTxnRequest(transactional_id="t", producer_id=1, group_id="g")
    assert (await broker.path.ask(request, 4)).error_code == failed


async def test_two_phase_commit_has_its_own_permission(tmp_path: Path) -> None:
    authorizer = Denying()
    authorizer.denied.add((Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID))
    options = {"transaction_two_phase_commit_enable": True}
    async with DataPath(tmp_path, authorizer=authorizer, **options) as path:
        await serve(path)
        broker = Broker(path, authorizer)
        answer = await broker.init(version=6, enable2_pc=True)
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await broker.init(version=6)).error_code == ErrorCode.NONE
        authorizer.denied.clear()
        assert (await broker.init(version=6, enable2_pc=True)).error_code == ErrorCode.NONE


async def test_who_may_not_write_to_a_topic(broker: Broker) -> None:
    producer = await broker.init()
    broker.authorizer.denied.add((Operation.WRITE, ResourceType.TOPIC))
    failed = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    errors = await broker.add(producer.producer_id, 0, {"outputs": [0], "missing": [0]})
    assert set(errors.values()) == {failed}


async def test_clients_do_not_write_to_the_coordinators_topics(broker: Broker) -> None:
    producer = await broker.init()
    errors = await broker.add(producer.producer_id, 0, {CONSUMER_OFFSETS.topic: [0]})
    assert set(errors.values()) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


async def test_who_may_not_read_the_group(broker: Broker) -> None:
    broker.authorizer.denied.add((Operation.READ, ResourceType.GROUP))
    request = AddOffsetsToTxnRequest(transactional_id="t", producer_id=1, group_id="g")
    answer = await broker.path.ask(request, 4)
    assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_only_brokers_speak_for_many(broker: Broker) -> None:
    producer = await broker.init()
    broker.authorizer.denied.add((Operation.CLUSTER_ACTION, ResourceType.CLUSTER))
    response = await broker.add_many(to_add("t", producer, {"outputs": [0]}))
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert response.results_by_transaction == []


# -- describing and listing ------------------------------------------------------------------------


async def test_a_transaction_is_described(broker: Broker) -> None:
    producer = await broker.init()
    await broker.add(producer.producer_id, 0, {"outputs": [2, 0]})
    state, other = await broker.describe("t", "unknown")
    assert other.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert state.error_code == ErrorCode.NONE
    assert (state.transaction_state, state.transaction_timeout_ms) == ("Ongoing", TIMEOUT_MS)
    assert (state.producer_id, state.producer_epoch) == (producer.producer_id, 0)
    assert state.transaction_start_time_ms == broker.path.clock.now_ms()
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [("outputs", [0, 2])]
    broker.authorizer.denied.add((Operation.DESCRIBE, ResourceType.TOPIC))
    (state,) = await broker.describe("t")
    assert state.topics == []
    broker.authorizer.denied.add((Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID))
    (state,) = await broker.describe("t")
    assert state.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (await broker.list()).transaction_states == []
    assert await broker.describe() == []


async def test_transactions_are_listed_by_filters(broker: Broker) -> None:
    ids = [(await broker.init(name)).producer_id for name in ("flights-1", "flights-2", "other")]
    await broker.add(ids[1], 0, {"outputs": [0]}, transactional_id="flights-2")

    async def names(**filters: Any) -> list[str]:
        listed = await broker.list(**filters)
        assert listed.error_code == ErrorCode.NONE
        return sorted(state.transactional_id for state in listed.transaction_states)

    assert await names() == ["flights-1", "flights-2", "other"]
    assert await names(state_filters=["Ongoing"]) == ["flights-2"]
    assert await names(producer_id_filters=[ids[0], ids[2]]) == ["flights-1", "other"]
    assert await names(state_filters=["Ongoing"], producer_id_filters=[ids[0]]) == []
    assert await names(duration_filter=1, state_filters=["Ongoing"]) == []
    broker.path.clock.advance(10)
    assert await names(duration_filter=1, state_filters=["Ongoing"]) == ["flights-2"]
    unknown = await broker.list(state_filters=["Ongoing", "Sleeping", "ongoing"])
    assert unknown.unknown_state_filters == ["Sleeping", "ongoing"]
    assert [state.transactional_id for state in unknown.transaction_states] == ["flights-2"]
    assert await names(state_filters=["Sleeping"]) == []


@pytest.mark.parametrize("pattern", ["flights-(", "((.?){0,30}){0,30}" * 3, "x" * 1025])
async def test_a_pattern_that_is_none_or_beyond_the_limits_is_refused(
    broker: Broker, pattern: str
) -> None:
    await broker.init("flights-1")
    refused = await broker.list(transactional_id_pattern=pattern)
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.transaction_states == []


async def test_who_has_a_costly_pattern_compiled_is_throttled(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_with_re2 = re2.compile

    def slowly(pattern: str, options: Any) -> Any:
        broker.path.clock.stand_still(3.0)
        return compile_with_re2(pattern, options)

    monkeypatch.setattr(re2, "compile", slowly)
    for pattern in ("costly-pattern", "costly-pattern("):
        rest_ms = 3 * REST_PER_COMPILATION
        assert (await broker.list(transactional_id_pattern=pattern)).throttle_time_ms == rest_ms
        assert broker.path.connection.throttled_ms == rest_ms
        assert (await broker.list(transactional_id_pattern=pattern)).throttle_time_ms == 0


async def test_transactions_are_listed_by_pattern_off_the_loop_and_only_those_allowed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = "x" * 240
    names = [f"{start}{ending}" for start in ("flights-1", "flights-22", "flights-3", "other")]
    for name in names:
        await broker.init(name)
    matched, loops = [], set()
    fullmatch = re2._Regexp.fullmatch

    def recorded(self: Any, text: str) -> Any:
        matched.append(text)
        loops.add(asyncio._get_running_loop())
        return fullmatch(self, text)

    monkeypatch.setattr(re2._Regexp, "fullmatch", recorded)
    broker.authorizer.denied_names.add(names[2])
    listed = await broker.list(transactional_id_pattern="flights-.(xx){0,99}(x{0,99}){1,9}")
    assert [state.transactional_id for state in listed.transaction_states] == [names[0]]
    assert sorted(matched) == [names[0], names[1], names[3]]
    assert loops == {None}
