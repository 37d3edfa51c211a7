"""Questions to coordinators on other brokers: batched, one request at a time, answered in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.broker.coordinator import other_brokers
from moldau.broker.coordinator.core.result import Producer
from moldau.broker.coordinator.transaction.verification import Support
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from moldau.protocol.types import TopicPartition
from moldau.runtime.leader_link import LeaderAddress
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.transaction.scripted_coordinator import (
    ScriptedCoordinator,
    script,
)
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath

P0, P1, P2 = (TopicPartition("topic", index) for index in range(3))


class FakeLink:
    """The way to the other broker; `answer` ends the request under way."""

    def __init__(self) -> None:
        self.version = 5
        self.addresses: list[LeaderAddress] = []
        self.sent: list[AddPartitionsToTxnRequest] = []
        self.pending: asyncio.Future[Any] | None = None
        self.is_closed = False

    def __call__(self, **options: Any) -> FakeLink:
        del options
        return self

    def best_version(self, api_key: int, request_class: Any) -> int:
        del api_key, request_class
        return self.version

    async def send(self, leader: LeaderAddress, message: Any, *, timeout_ms: float) -> Any:
        del timeout_ms
        self.addresses.append(leader)
        self.sent.append(await message(self))
        self.pending = asyncio.get_running_loop().create_future()
        return await self.pending

    async def close(self) -> None:
        self.is_closed = True
        if self.pending is not None and not self.pending.done():
            self.pending.set_exception(ConnectionError("closed"))

    def answer(self, result: Any = None, **errors: ErrorCode) -> None:
        """The error for every partition, by transactional id; NONE where nothing is said."""
        assert self.pending is not None
        if result is None:
            result = AddPartitionsToTxnResponse(
                results_by_transaction=[
                    AddPartitionsToTxnResult(
                        transactional_id=each.transactional_id,
                        topic_results=[
                            AddPartitionsToTxnTopicResult(
                                name=topic.name,
                                results_by_partition=[
                                    AddPartitionsToTxnPartitionResult(
                                        partition_index=index,
                                        partition_error_code=errors.get(
                                            each.transactional_id, ErrorCode.NONE
                                        ),
                                    )
                                    for index in topic.partitions
                                ],
                            )
                            for topic in each.topics
                        ],
                    )
                    for each in self.sent[-1].transactions
                ]
            )
        if isinstance(result, Exception):
            self.pending.set_exception(result)
        else:
            self.pending.set_result(result)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    link = FakeLink()
    monkeypatch.setattr(other_brokers, "LeaderLink", link)
    return link


@pytest.fixture
async def coordinator(broker: DataPath) -> ScriptedCoordinator:
    coordinator = script(broker)
    coordinator.leader = OTHER_BROKER_ID
    return coordinator


class Asker:
    """Asks, and remembers the answers, in order."""

    def __init__(self, broker: DataPath) -> None:
        self.verifier = broker.services.coordinators.verifier
        self.told: list[tuple[str, dict[TopicPartition, ErrorCode]]] = []

    def ask(
        self,
        name: str,
        *partitions: TopicPartition,
        epoch: int = 0,
        support: Support = Support.ADDS_PARTITIONS,
    ) -> None:
        self.verifier.verify(
            name,
            Producer(7, epoch),
            partitions,
            support,
            lambda told: self.told.append((name, dict(told))),
        )


@pytest.fixture
async def asker(broker: DataPath, coordinator: ScriptedCoordinator) -> Asker:
    del coordinator
    return Asker(broker)


async def test_what_comes_during_a_request_goes_with_the_next_one(
    asker: Asker, link: FakeLink
) -> None:
    asker.ask("a", P0)
    await until_async(lambda: len(link.sent) == 1)
    asker.ask("b", P0, P1)
    asker.ask("c", P2, support=Support.OLD_ERRORS)
    link.answer()
    await until_async(lambda: len(link.sent) == 2)
    first, second = link.sent
    assert [each.transactional_id for each in first.transactions] == ["a"]
    assert [
        (each.transactional_id, each.producer_id, each.verify_only, each.topics[0].partitions)
        for each in second.transactions
    ] == [("b", 7, False, [0, 1]), ("c", 7, True, [2])]
    link.answer(b=ErrorCode.PRODUCER_FENCED, c=ErrorCode.TRANSACTION_ABORTABLE)
    await until_async(lambda: len(asker.told) == 3)
    assert asker.told == [
        ("a", {P0: ErrorCode.NONE}),
        ("b", dict.fromkeys([P0, P1], ErrorCode.INVALID_PRODUCER_EPOCH)),
        ("c", {P2: ErrorCode.INVALID_TXN_STATE}),
    ]
    assert set(link.addresses) == {LeaderAddress(OTHER_BROKER_ID, "host-2", 9092)}
    assert asker.verifier._places.held == 0


async def test_one_transaction_is_asked_about_once_at_a_time(asker: Asker, link: FakeLink) -> None:
    """What can be asked together is; another epoch, or mere verification, is not."""
    asker.ask("a", P0)
    asker.ask("a", P1)
    asker.ask("a", P2)
    asker.ask("a", P0, epoch=1)
    asker.ask("a", P1, epoch=1, support=Support.ABORTABLE_ERROR)
    for expected in ([0], [1, 2], [0], [1]):
        count = len(asker.told)
        await until_async(lambda: link.pending is not None and not link.pending.done())
        (asked,) = link.sent[-1].transactions
        assert asked.topics[0].partitions == expected
        link.answer()
        await until_async(lambda count=count: len(asker.told) > count)
    assert [list(told) for _, told in asker.told] == [[P0], [P1], [P2], [P0], [P1]]


async def test_a_question_is_not_refused_for_another_one_that_was_asked_with_it(
    asker: Asker, coordinator: ScriptedCoordinator
) -> None:
    """As a group's offsets beside a topic that is being deleted: they are to be tried again."""
    coordinator.leader, coordinator.reply = BROKER_ID, None
    for partition in (P0, P1, P2):
        asker.ask("a", partition)
    coordinator.open.pop().answer()
    await until_async(lambda: bool(coordinator.open))
    coordinator.open.pop().done(
        {P1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, P2: ErrorCode.OPERATION_NOT_ATTEMPTED}
    )
    assert [told for _, told in asker.told] == [
        {P0: ErrorCode.NONE},
        {P1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        {P2: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
    ]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ConnectionError("lost"), ErrorCode.NETWORK_EXCEPTION),
        (TimeoutError(), ErrorCode.NETWORK_EXCEPTION),
        (AddPartitionsToTxnResponse(), ErrorCode.NETWORK_EXCEPTION),
        (
            AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            ErrorCode.INVALID_TXN_STATE,
        ),
        (
            AddPartitionsToTxnResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR),
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ),
    ],
)
async def test_requests_that_fail(
    asker: Asker, link: FakeLink, answer: Any, told: ErrorCode
) -> None:
    asker.ask("a", P0)
    await until_async(lambda: link.pending is not None)
    link.answer(answer)
    await until_async(lambda: bool(asker.told))
    assert asker.told == [("a", {P0: told})]
    asker.ask("a", P0)
    await until_async(lambda: len(link.sent) == 2)
    link.answer()
    await until_async(lambda: len(asker.told) == 2)


async def test_a_broker_that_cannot_verify(asker: Asker, link: FakeLink) -> None:
    link.version = 3
    asker.ask("a", P0)
    await until_async(lambda: bool(asker.told))
    assert asker.told == [("a", {P0: ErrorCode.COORDINATOR_NOT_AVAILABLE})]


async def test_a_broker_that_is_not_there(
    asker: Asker, coordinator: ScriptedCoordinator, link: FakeLink
) -> None:
    coordinator.leader = 77
    asker.ask("a", P0)
    await until_async(lambda: bool(asker.told))
    assert asker.told == [("a", {P0: ErrorCode.COORDINATOR_NOT_AVAILABLE})]
    assert not link.sent


async def test_a_retry_goes_to_the_coordinator_of_that_moment(
    broker: DataPath, asker: Asker, coordinator: ScriptedCoordinator, link: FakeLink
) -> None:
    asker.ask("a", P0)
    await until_async(lambda: link.pending is not None)
    link.answer(a=ErrorCode.CONCURRENT_TRANSACTIONS)
    coordinator.leader = BROKER_ID

    async def retried() -> bool:
        broker.clock.advance(20)
        return bool(coordinator.asked)

    await until_async(retried, what="the retry", deadline_s=20)
    assert asker.told == [("a", {P0: ErrorCode.NONE})]


async def test_a_stop_answers_every_waiting_caller(asker: Asker, link: FakeLink) -> None:
    asker.ask("a", P0)
    asker.ask("a", P1)
    asker.ask("b", P0)
    await until_async(lambda: link.pending is not None)
    await asker.verifier.close()
    await until_async(lambda: len(asker.told) == 3)
    assert link.is_closed
    assert asker.told == [
        ("a", {P0: ErrorCode.NETWORK_EXCEPTION}),
        ("b", {P0: ErrorCode.NETWORK_EXCEPTION}),
        ("a", {P1: ErrorCode.COORDINATOR_NOT_AVAILABLE}),
    ]
    assert asker.verifier._places.held == 0


async def test_what_is_measured(broker: DataPath, asker: Asker, link: FakeLink) -> None:
    asker.ask("a", P0, P1)
    await until_async(lambda: link.pending is not None)
    broker.clock.advance(7)
    link.answer(a=ErrorCode.INVALID_TXN_STATE)
    await until_async(lambda: bool(asker.told))
    found = {
        metric.name.partition("name=")[2]: metric.instrument
        for metric in broker.registry.collect()
        if "AddPartitionsToTxnManager" in metric.name
    }
    assert found["VerificationFailureRate"].value == 2
    times = found["VerificationTimeMs"]
    assert times.total / times.count == 7
