"""Markers on their way to the partitions' leaders: routing, batching, repetition, giving up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from moldau.broker.coordinator import other_brokers
from moldau.broker.coordinator.core.result import Producer
from moldau.broker.coordinator.other_brokers import OtherBrokers
from moldau.broker.coordinator.ports import RuntimePorts
from moldau.broker.coordinator.transaction import marker_sender as module
from moldau.broker.coordinator.transaction.core.state import SendMarkers
from moldau.broker.coordinator.transaction.core.transaction import Transaction, TransactionStatus
from moldau.broker.coordinator.transaction.marker_sender import (
    MAX_RETRY_MS,
    RETRY_MS,
    MarkerSender,
)
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p27_write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.protocol.metadata_records import (
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from moldau.protocol.metadata_records.nodes import Endpoint
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import ConnectionLost
from moldau.runtime.connector import Connector
from moldau.runtime.telemetry.metrics import Registry
from moldau.runtime.timers import TimerWheel
from tests.kit.manual_clock import ManualClock
from tests.unit.broker.coordinator.transaction.bench import P0, P1, P2

BROKER, OTHER, THIRD = 1, 2, 3
TOPIC_ID = UUID(int=7)


def command(
    *partitions: TopicPartition, producer_id: int = 1000, is_commit: bool = True
) -> SendMarkers:
    status = TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT
    return SendMarkers(
        Transaction(
            f"t{producer_id}",
            Producer(producer_id, 5),
            status,
            60_000,
            0,
            partitions=frozenset(partitions),
            client_version=2,
        )
    )


def answer(
    request: WriteTxnMarkersRequest, errors: dict[TopicPartition, ErrorCode] | None = None
) -> WriteTxnMarkersResponse:
    """NONE for everything but what is named."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index,
                                error_code=(errors or {}).get(
                                    TopicPartition(topic.name, index), ErrorCode.NONE
                                ),
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def asked(request: WriteTxnMarkersRequest) -> dict[int, list[TopicPartition]]:
    """The partitions of each producer's marker."""
    return {
        marker.producer_id: [
            TopicPartition(topic.name, index)
            for topic in marker.topics
            for index in topic.partition_indexes
        ]
        for marker in request.markers
    }


class FakeLink:
    """The way to another broker: tests answer what it was given."""

    made: list[FakeLink]

    def __init__(self, **options: Any) -> None:
        self.sent: list[tuple[Any, WriteTxnMarkersRequest, asyncio.Future[Any]]] = []
        self.is_closed = False
        FakeLink.made.append(self)

    async def send(self, leader: Any, message: Any, *, timeout_ms: float) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.sent.append((leader, message, future))
        return await future

    async def close(self) -> None:
        self.is_closed = True
        for _, _, future in self.sent:
            if not future.done():
                future.set_exception(ConnectionLost("closed"))


class Sender:
    """A sender with everything around it. P0 is led here, P1 and P2 by the other broker."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = TimerWheel(self.clock)
        self.registry = Registry(self.clock.monotonic_ms)
        self.image = MetadataImage.EMPTY
        self.coordinator_epochs = {0: 9}
        self.here: list[tuple[WriteTxnMarkersRequest, Callable[[Any], None]]] = []
        self.written: list[tuple[int, SendMarkers, list[TopicPartition]]] = []
        self.refused: SendMarkers | None = None
        """What is written of this one is not taken."""
        self.tasks: list[asyncio.Task[None]] = []
        FakeLink.made = []
        self.sender = MarkerSender(
            RuntimePorts(
                broker_id=BROKER,
                clock=self.clock,
                timers=self.timers,
                registry=self.registry,
                partition=lambda topic, index: None,
                soon=lambda function: None,
                start=self._start,
            ),
            OtherBrokers(lambda: self.image, "PLAINTEXT", Connector(), 1_000),
            lambda index: self.coordinator_epochs.get(index, -1),
            lambda request, done: self.here.append((request, done)),
            self._written,
        )
        self.replay(
            *[
                RegisterBrokerRecord(
                    broker_id=broker_id,
                    broker_epoch=broker_id,
                    end_points=[Endpoint(name="PLAINTEXT", host=f"h{broker_id}", port=9092)],
                    rack=None,
                    fenced=False,
                )
                for broker_id in (BROKER, OTHER, THIRD)
            ],
            TopicRecord(name="outputs", topic_id=TOPIC_ID),
            *[
                PartitionRecord(
                    partition_id=index,
                    topic_id=TOPIC_ID,
                    replicas=[BROKER, OTHER, THIRD],
                    isr=[BROKER, OTHER, THIRD],
                    leader=leader,
                )
                for index, leader in enumerate((BROKER, OTHER, OTHER))
            ],
        )

    def _written(
        self, partition_index: int, command: SendMarkers, partitions: list[TopicPartition]
    ) -> None:
        if command is self.refused:
            raise KeyError(command.transaction.transactional_id)
        self.written.append((partition_index, command, partitions))

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def replay(self, *records: Any) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(Provenance(0, 0, 0))
        self.sender.on_metadata_update()

    def lead(self, partition: TopicPartition, leader: int) -> None:
        self.replay(
            PartitionChangeRecord(
                partition_id=partition.partition, topic_id=TOPIC_ID, leader=leader
            )
        )

    async def turn(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def send(self, *commands: SendMarkers) -> None:
        for each in commands:
            self.sender.send(0, each)
        await self.turn()

    async def retry(self) -> None:
        self.clock.advance(RETRY_MS + 10)
        await self.turn()

    def there(self) -> list[tuple[Any, WriteTxnMarkersRequest, asyncio.Future[Any]]]:
        return [sent for link in FakeLink.made for sent in link.sent]


@pytest.fixture
async def sender(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(other_brokers, "LeaderLink", FakeLink)
    made = Sender()
    yield made
    await made.sender.close()
    await asyncio.gather(*made.tasks)


async def test_each_leader_gets_its_markers_in_one_request(sender: Sender) -> None:
    one, two = command(P0, P1, P2), command(P1, producer_id=1001, is_commit=False)
    await sender.send(one, two)
    ((here, _),) = sender.here
    ((leader, there, _),) = sender.there()
    assert asked(here) == {1000: [P0]}
    assert (leader.node_id, leader.host, leader.port) == (OTHER, "h2", 9092)
    assert asked(there) == {1000: [P1, P2], 1001: [P1]}
    (first, second) = there.markers
    assert (first.producer_epoch, first.coordinator_epoch, first.transaction_version) == (5, 9, 2)
    assert (first.transaction_result, second.transaction_result) == (True, False)


async def test_what_is_written_is_reported_and_not_sent_again(sender: Sender) -> None:
    one = command(P0, P1)
    await sender.send(one)
    request, done = sender.here[0]
    done(answer(request))
    _, request, future = sender.there()[0]
    future.set_result(answer(request))
    await sender.turn()
    assert sender.written == [(0, one, [P0]), (0, one, [P1])]
    await sender.retry()
    assert (len(sender.here), len(sender.there())) == (1, 1)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ],
)
async def test_what_was_not_written_is_sent_again_to_who_leads_then(
    sender: Sender, error: ErrorCode
) -> None:
    one = command(P1, P2)
    await sender.send(one)
    _, request, future = sender.there()[0]
    future.set_result(answer(request, {P1: error}))
    await sender.turn()
    assert sender.written == [(0, one, [P2])]
    one.remaining.discard(P2)
    assert sender.here == []
    sender.lead(P1, BROKER)
    await sender.retry()
    assert [asked(request) for request, _ in sender.here] == [{1000: [P1]}]


@pytest.mark.parametrize(
    "outcome", [ConnectionLost("gone"), TimeoutError(), OSError("refused"), None]
)
async def test_without_an_answer_everything_is_sent_again(sender: Sender, outcome: Any) -> None:
    one = command(P1, P2)
    await sender.send(one)
    _, _, future = sender.there()[0]
    if outcome is None:
        future.set_result(WriteTxnMarkersResponse())
    else:
        future.set_exception(outcome)
    await sender.turn()
    await sender.retry()
    assert [asked(request) for _, request, _ in sender.there()] == [{1000: [P1, P2]}] * 2


async def test_the_pause_grows_while_a_marker_is_not_written(sender: Sender) -> None:
    async def refuse() -> None:
        request, done = sender.here[-1]
        done(answer(request, {P0: ErrorCode.NOT_ENOUGH_REPLICAS}))
        await sender.turn()

    await sender.send(command(P0))
    begin_ms = sender.clock.monotonic_ms()
    while sender.clock.monotonic_ms() < begin_ms + 60_000:
        await refuse()
        before = len(sender.here)
        while len(sender.here) == before:
            sender.clock.advance(10)
            await sender.turn()
    assert 60_000 / MAX_RETRY_MS - 10 < len(sender.here) < 60_000 / MAX_RETRY_MS + 10
    await sender.send(command(P0, producer_id=1001))
    assert asked(sender.here[-1][0]) == {1001: [P0]}, "another one has no pause"


async def test_a_new_leader_is_asked_without_a_pause(sender: Sender) -> None:
    await sender.send(command(P1))
    _, request, future = sender.there()[0]
    future.set_result(answer(request, {P1: ErrorCode.NOT_LEADER_OR_FOLLOWER}))
    await sender.turn()
    sender.lead(P2, BROKER)
    await sender.turn()
    assert len(sender.there()) == 1, "the leader of P1 is the same"
    sender.lead(P1, THIRD)
    await sender.turn()
    assert [leader.node_id for leader, _, _ in sender.there()] == [OTHER, THIRD]
    await sender.retry()
    assert len(sender.there()) == 2, "it is sent once"


@pytest.mark.parametrize(
    "error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
)
async def test_a_coordinator_that_is_fenced_gives_up(
    sender: Sender, error: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    one = command(P0, P1)
    await sender.send(one)
    request, done = sender.here[0]
    done(answer(request, {P0: error}))
    _, _, future = sender.there()[0]
    future.set_exception(ConnectionLost("gone"))
    await sender.turn()
    await sender.retry()
    assert (len(sender.here), len(sender.there())) == (1, 1)
    assert error.name in caplog.text


async def test_a_command_that_cannot_be_reported_holds_up_nothing_else(sender: Sender) -> None:
    """What raises is the caller's; what is left to be sent and the other commands go on."""
    one, two = command(P0, producer_id=1000), command(P0, producer_id=1001)
    again = command(P0, producer_id=1002)
    sender.refused = one
    await sender.send(one, two, again)
    request, done = sender.here[0]
    response = answer(request)
    response.markers[2].topics[0].partitions[0].error_code = ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(KeyError):
        done(response)
    assert sender.written == [(0, two, [P0])]
    await sender.retry()
    assert asked(sender.here[1][0]) == {1002: [P0]}


async def test_a_command_that_cannot_be_reported_keeps_no_marker_back(sender: Sender) -> None:
    gone = TopicPartition("never", 0)
    one = command(gone, P0)
    sender.refused = one
    with pytest.raises(KeyError):
        sender.sender.send(0, one)
    await sender.turn()
    assert [asked(request) for request, _ in sender.here] == [{1000: [P0]}]


async def test_markers_wait_until_their_partition_has_a_leader(sender: Sender) -> None:
    sender.lead(P1, -1)
    one = command(P1)
    await sender.send(one)
    await sender.retry()
    [waiting] = sender.registry.collect()
    assert waiting.instrument.value == 1
    assert sender.there() == []
    sender.lead(P1, THIRD)
    await sender.turn()
    ((leader, request, _),) = sender.there()
    assert (leader.node_id, asked(request)) == (THIRD, {1000: [P1]})


async def test_a_partition_that_is_gone_needs_no_marker(sender: Sender) -> None:
    sender.lead(P1, -1)
    one, other = command(P1), command(TopicPartition("never", 0), producer_id=1001)
    await sender.send(one, other)
    assert sender.written == [(0, other, [TopicPartition("never", 0)])]
    sender.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert sender.written[1:] == [(0, one, [P1])]


async def test_nothing_is_sent_for_a_partition_of_the_log_that_is_lost(sender: Sender) -> None:
    one, two = command(P0), command(P0, producer_id=1001)
    one.is_cancelled = True
    sender.coordinator_epochs[1] = 4
    sender.sender.send(0, one)
    sender.sender.send(1, two)
    sender.coordinator_epochs.clear()
    await sender.turn()
    assert sender.here == []


async def test_what_is_cancelled_while_it_is_on_its_way_is_not_sent_again(sender: Sender) -> None:
    """Late, it might end the producer's next transaction."""
    one = command(P0)
    await sender.send(one)
    request, done = sender.here[0]
    done(answer(request, {P0: ErrorCode.REQUEST_TIMED_OUT}))
    one.is_cancelled = True
    await sender.retry()
    assert len(sender.here) == 1


async def test_a_slow_broker_has_a_few_requests_at_a_time(sender: Sender) -> None:
    commands = [command(P1, producer_id=producer_id) for producer_id in range(1, 10)]
    for each in commands:
        await sender.send(each)
    assert len(sender.there()) == module.MAX_IN_FLIGHT
    _, request, future = sender.there()[0]
    future.set_result(answer(request))
    await sender.turn()
    assert len(sender.there()) == module.MAX_IN_FLIGHT + 1
    assert list(asked(sender.there()[-1][1])) == [5, 6, 7, 8, 9]
