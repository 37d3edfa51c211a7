"""Produce within transactions: who is asked before a batch begins one, and the answer in each
version (KIP-98, KIP-890).
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.replica import verification_guards
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.transaction.scripted_coordinator import (
    ScriptedCoordinator,
    script,
)
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, FakeRequest
from tests.unit.broker.messages import batch, only, produce

ID = "mine"
PRODUCER = 71


@pytest.fixture
async def coordinator(broker: DataPath) -> ScriptedCoordinator:
    broker.create_topic("topic", 3)
    return script(broker)


def transactional(
    sequence: int = 0, *, count: int = 1, producer_epoch: int = 4, producer_id: int = PRODUCER
) -> bytearray:
    return batch(
        count,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def send(
    broker: DataPath,
    *batches: Any,
    api_version: int = 12,
    transactional_id: str | None = ID,
    acks: int = -1,
) -> FakeRequest:
    """One batch for each partition from 0 on."""
    request = produce(
        {("topic", index): records for index, records in enumerate(batches)},
        api_version=api_version,
        transactional_id=transactional_id,
        acks=acks,
    )
    return broker.send(request, api_version)


def errors(request: FakeRequest) -> list[int]:
    assert request.is_answered
    return [
        each.error_code
        for topic in request.response.responses
        for each in topic.partition_responses
    ]


def end(
    broker: DataPath,
    *,
    is_commit: bool = True,
    producer_epoch: int = 5,
    version: int = 2,
    index: int = 0,
) -> ErrorCode:
    result = broker.partition("topic", index).append_marker(
        PRODUCER, producer_epoch, 0, is_commit=is_commit, transaction_version=version
    )
    error: ErrorCode = result.error
    return error


@pytest.mark.parametrize("api_version", [3, 9, 10, 11, 12, 13])
async def test_the_coordinator_is_asked_once_for_each_transaction(
    broker: DataPath, coordinator: ScriptedCoordinator, api_version: int
) -> None:
    for sequence in range(3):
        request = send(broker, transactional(sequence), api_version=api_version)
        assert errors(request) == [ErrorCode.NONE]
    (asked,) = coordinator.asked
    assert asked.transactional_id == ID
    assert asked.producer == (PRODUCER, 4)
    assert asked.partitions == [TopicPartition("topic", 0)]
    assert asked.verify_only == (api_version < 12)
    assert end(broker) is ErrorCode.NONE
    request = send(broker, transactional(0, producer_epoch=5), api_version=api_version)
    assert errors(request) == [ErrorCode.NONE]
    assert len(coordinator.asked) == 2


async def test_all_partitions_of_a_request_are_asked_about_together(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    assert errors(send(broker, transactional())) == [ErrorCode.NONE]
    request = send(broker, transactional(1), transactional(), transactional())
    assert errors(request) == [ErrorCode.NONE] * 3
    assert [each.partitions for each in coordinator.asked] == [
        [TopicPartition("topic", 0)],
        [TopicPartition("topic", 1), TopicPartition("topic", 2)],
    ]


OLD, NEW, TV2 = 10, 11, 12


@pytest.mark.parametrize(
    ("said", "api_version", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, OLD, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, NEW, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, TV2, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_TXN_STATE, OLD, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_TXN_STATE, TV2, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.PRODUCER_FENCED, OLD, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.PRODUCER_FENCED, TV2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_EPOCH, TV2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, OLD, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.NOT_COORDINATOR, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, TV2, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, TV2, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, TV2, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, NEW, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, TV2, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_each_version_gets_its_error_code(
    broker: DataPath,
    coordinator: ScriptedCoordinator,
    said: ErrorCode,
    api_version: int,
    told: ErrorCode,
) -> None:
    coordinator.reply = said
    assert errors(send(broker, transactional(), api_version=api_version)) == [told]
    assert broker.log("topic").log_end_offset == 0


async def test_without_a_coordinator_the_producer_tries_again(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.leader = None
    assert errors(send(broker, transactional())) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    coordinator.leader = BROKER_ID
    assert errors(send(broker, transactional())) == [ErrorCode.NONE]


async def test_a_coordinator_elsewhere_that_cannot_be_reached(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.leader = OTHER_BROKER_ID
    request = send(broker, transactional())
    await until_async(lambda: request.is_answered)
    assert errors(request) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert broker.network.attempts == [(f"host-{OTHER_BROKER_ID}", 9092)]


async def test_a_busy_coordinator_is_asked_again_for_a_while(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.reply = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3 + [ErrorCode.NONE]
    request = send(broker, transactional())
    while not request.is_answered:
        broker.clock.advance(20)
    assert errors(request) == [ErrorCode.NONE]
    assert len(coordinator.asked) == 4

    assert end(broker) is ErrorCode.NONE
    coordinator.reply = ErrorCode.CONCURRENT_TRANSACTIONS
    request = send(broker, transactional(0, producer_epoch=5))
    for _ in range(10):
        broker.clock.advance(20)
    assert errors(request) == [ErrorCode.CONCURRENT_TRANSACTIONS]


async def test_batches_of_a_producer_stay_in_order_while_the_coordinator_is_asked(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.reply = None
    requests = [send(broker, transactional(sequence)) for sequence in range(4)]
    assert not any(each.is_answered for each in requests)
    (asked,) = coordinator.open
    asked.answer()
    await until_async(lambda: all(each.is_answered for each in requests))
    assert [errors(each) for each in requests] == [[ErrorCode.NONE]] * 4
    assert [only(each.response).base_offset for each in requests] == [0, 1, 2, 3]
    assert len(coordinator.asked) == 1, "the first one's append answered for the others"


async def test_nothing_overtakes_a_batch_that_still_waits_for_its_answer(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    """The first batch is in the log, so that the transaction is known; the second one's request
    also wants another partition, and waits for that when the third one comes.
    """
    coordinator.reply = None
    requests = [send(broker, transactional(0)), send(broker, transactional(1), transactional(0))]
    coordinator.open.pop().answer()
    assert errors(requests[0]) == [ErrorCode.NONE]
    requests.append(send(broker, transactional(2)))
    assert not requests[2].is_answered
    await until_async(lambda: bool(coordinator.open))
    requests.append(send(broker, transactional(3)))
    coordinator.open.pop().answer()
    await until_async(lambda: all(each.is_answered for each in requests))
    assert [errors(each)[0] for each in requests] == [ErrorCode.NONE] * 4
    assert len(coordinator.asked) == 2
    after = send(broker, transactional(4))
    assert errors(after) == [ErrorCode.NONE], "nobody waits any more"


async def test_questions_of_one_transaction_are_asked_together(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.reply = None
    first = send(broker, transactional())
    others = [
        broker.send(
            produce({("topic", index): transactional()}, api_version=12, transactional_id=ID), 12
        )
        for index in (1, 2)
    ]
    coordinator.open.pop().answer()
    await until_async(lambda: first.is_answered and bool(coordinator.open))
    (asked,) = coordinator.open
    assert asked.partitions == [TopicPartition("topic", 1), TopicPartition("topic", 2)]
    asked.answer()
    assert [errors(each) for each in [first, *others]] == [[ErrorCode.NONE]] * 3


async def test_a_marker_between_question_and_append_is_noticed(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    """The coordinator said yes, but aborted before the answer was here: an append now would leave
    a transaction open that no coordinator ends."""
    coordinator.reply = None
    request = send(broker, transactional(), api_version=11)
    assert end(broker, is_commit=False, producer_epoch=4, version=0) is ErrorCode.NONE
    coordinator.open.pop().answer()
    assert errors(request) == [ErrorCode.INVALID_TXN_STATE]
    assert broker.log("topic").producer_state.first_unstable_offset is None


async def test_the_marker_before_does_not_disturb_a_transaction_with_its_own_epoch(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.reply = None
    request = send(broker, transactional(0, producer_epoch=5))
    assert end(broker, producer_epoch=5) is ErrorCode.NONE
    coordinator.open.pop().answer()
    assert errors(request) == [ErrorCode.NONE]
    assert broker.log("topic").producer_state.has_open_transaction(PRODUCER, 5)


async def test_an_answer_from_before_another_leader_is_too_old(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.reply = None
    broker.create_topic("other", replicas=(BROKER_ID, OTHER_BROKER_ID))
    records = {("other", 0): transactional()}
    request = broker.send(produce(records, transactional_id=ID), 12)
    broker.change_partition("other", leader=OTHER_BROKER_ID)
    broker.change_partition("other", leader=BROKER_ID)
    coordinator.open.pop().answer()
    assert errors(request) == [ErrorCode.NOT_LEADER_OR_FOLLOWER], "to be tried again"
    assert broker.log("other").log_end_offset == 0


async def test_a_leader_that_stays_leader_keeps_what_it_knows(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.reply = None
    broker.create_topic("other", replicas=(BROKER_ID, OTHER_BROKER_ID), isr=(BROKER_ID,))
    request = broker.send(produce({("other", 0): transactional()}, transactional_id=ID, acks=1), 12)
    broker.change_partition("other", leader=BROKER_ID)
    assert broker.partition("other").core.leader_epoch == 1
    coordinator.open.pop().answer()
    assert errors(request) == [ErrorCode.NONE]


async def test_a_later_batch_does_not_overtake_one_that_was_turned_away(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    """The producer is unknown here, so that its sequence alone would not tell."""
    coordinator.reply = ErrorCode.NOT_COORDINATOR
    assert errors(send(broker, transactional(3), api_version=11)) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    coordinator.reply = ErrorCode.NONE
    assert errors(send(broker, transactional(4), api_version=11)) == [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    ]
    assert errors(send(broker, transactional(3), api_version=11)) == [ErrorCode.NONE]
    assert errors(send(broker, transactional(4), api_version=11)) == [ErrorCode.NONE]


async def test_a_batch_beside_an_unknown_partition_is_tried_again_in_its_order(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    """The coordinator does not know partition 1, and adds nothing that is asked with it."""
    coordinator.reply = None
    request = send(broker, transactional(3), transactional(0), api_version=11)
    left_out, unknown = coordinator.open[0].partitions
    coordinator.open.pop().done(
        {
            left_out: ErrorCode.OPERATION_NOT_ATTEMPTED,
            unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
    )
    assert errors(request) == [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    coordinator.reply = ErrorCode.NONE
    told = [errors(send(broker, transactional(sequence), api_version=11)) for sequence in (4, 3, 4)]
    assert told == [
        [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER],
        [ErrorCode.NONE],
        [ErrorCode.NONE],
    ]


async def test_a_stranger_leaves_nothing_behind(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    """A client claims the id of another client's producer; its owner goes on undisturbed."""
    coordinator.reply = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert errors(send(broker, transactional(0), api_version=11)) == [
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    ]
    assert not len(broker.partition("topic").guards)
    coordinator.reply = ErrorCode.NONE
    assert errors(send(broker, transactional(9), api_version=11)) == [ErrorCode.NONE]


@pytest.mark.parametrize("is_commit", [False, True])
async def test_a_sequence_of_the_transaction_before_is_no_repetition(
    broker: DataPath, coordinator: ScriptedCoordinator, is_commit: bool
) -> None:
    """librdkafka takes sequences back when it aborts; "written already" would lose the record."""
    assert errors(send(broker, transactional(0), api_version=11)) == [ErrorCode.NONE]
    assert errors(send(broker, transactional(0), api_version=11)) == [ErrorCode.NONE]
    assert broker.log("topic").log_end_offset == 1, "within the transaction it is one"
    assert end(broker, is_commit=is_commit, producer_epoch=4, version=0) is ErrorCode.NONE
    assert errors(send(broker, transactional(0), api_version=11)) == [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    ]
    assert broker.log("topic").log_end_offset == 2


async def test_its_own_epoch_begins_at_zero(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    assert errors(send(broker, transactional(7))) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert errors(send(broker, transactional(0))) == [ErrorCode.NONE]


@pytest.mark.parametrize("api_version", [3, 12, 13])
async def test_transactional_records_need_a_transactional_id(
    broker: DataPath, coordinator: ScriptedCoordinator, api_version: int
) -> None:
    request = send(broker, transactional(), batch(), api_version=api_version, transactional_id=None)
    assert errors(request) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    assert not coordinator.asked
    assert broker.log("topic", 1).log_end_offset == 0


async def test_one_request_holds_one_producers_transaction(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    request = send(broker, transactional(), transactional(producer_id=72))
    assert errors(request) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    request = send(broker, transactional(), transactional(producer_epoch=5))
    assert errors(request) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert not coordinator.asked


async def test_records_outside_of_transactions_need_no_coordinator(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    idempotent = batch(producer_id=PRODUCER, producer_epoch=4, base_sequence=0)
    assert errors(send(broker, idempotent, batch())) == [ErrorCode.NONE] * 2
    assert not coordinator.asked


async def test_a_batch_outside_of_the_producers_open_transaction_is_refused(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    assert errors(send(broker, transactional())) == [ErrorCode.NONE]
    idempotent = batch(producer_id=PRODUCER, producer_epoch=4, base_sequence=1)
    assert errors(send(broker, idempotent)) == [ErrorCode.INVALID_TXN_STATE]


async def test_a_partition_led_elsewhere_is_not_asked_about(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    broker.create_topic("away", leader=OTHER_BROKER_ID, replicas=(BROKER_ID, OTHER_BROKER_ID))
    request = broker.send(
        produce({("away", 0): transactional(), ("topic", 0): transactional()}, transactional_id=ID),
        12,
    )
    assert errors(request) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
    (asked,) = coordinator.asked
    assert asked.partitions == [TopicPartition("topic", 0)]


async def test_verification_can_be_switched_off_where_it_only_verifies(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    broker.services.coordinators.verifier.is_enabled = False
    assert errors(send(broker, transactional(), api_version=11)) == [ErrorCode.NONE]
    assert not coordinator.asked
    assert end(broker, producer_epoch=4, version=0) is ErrorCode.NONE
    assert errors(send(broker, transactional(1), api_version=12)) == [ErrorCode.NONE]
    assert [each.verify_only for each in coordinator.asked] == [False]


async def test_a_retry_of_the_first_batch_is_recognised(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    for _ in range(2):
        request = send(broker, transactional(count=3))
        assert errors(request) == [ErrorCode.NONE]
        assert only(request.response).base_offset == 0
    assert broker.log("topic").log_end_offset == 3


async def test_other_producers_do_not_wait_for_a_silent_coordinator(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.reply = None
    waiting = send(broker, transactional())
    assert errors(send(broker, batch(), transactional_id=None)) == [ErrorCode.NONE]
    other = produce({("topic", 0): transactional(producer_id=99)}, transactional_id="other")
    other_request = broker.send(other, 12)
    coordinator.open[1].answer()
    assert errors(other_request) == [ErrorCode.NONE]
    assert not waiting.is_answered
    coordinator.open[0].answer()
    assert errors(waiting) == [ErrorCode.NONE]


async def test_a_stop_answers_who_waits_for_a_busy_coordinator(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    coordinator.reply = ErrorCode.CONCURRENT_TRANSACTIONS
    request = send(broker, transactional())
    assert not request.is_answered
    await broker.services.coordinators.verifier.close()
    assert errors(request) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert errors(send(broker, transactional())) == [ErrorCode.NOT_ENOUGH_REPLICAS]


async def test_recompression_keeps_the_transaction(
    broker: DataPath, coordinator: ScriptedCoordinator
) -> None:
    broker.configure("topic", "compression.type", "gzip")
    requests = [send(broker, transactional(sequence)) for sequence in range(3)]
    await until_async(lambda: all(each.is_answered for each in requests))
    assert [errors(each) for each in requests] == [[ErrorCode.NONE]] * 3
    assert broker.log("topic").producer_state.has_open_transaction(PRODUCER, 4)


async def test_the_number_of_guards_is_limited(
    broker: DataPath, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification_guards, "MAX_GUARDS", 3)
    coordinator.reply = None
    requests = []
    for producer_id in range(1000, 1005):
        records = {("topic", 0): transactional(producer_id=producer_id)}
        requests.append(broker.send(produce(records, transactional_id=str(producer_id)), 12))
    assert len(broker.partition("topic").guards) == 3
    for asked in coordinator.open:
        asked.answer()
    told = [errors(each) for each in requests]
    assert told == [[ErrorCode.INVALID_TXN_STATE]] * 2 + [[ErrorCode.NONE]] * 3


async def test_the_number_of_questions_is_limited(
    broker: DataPath, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.services.coordinators.verifier._places, "capacity", 2)
    coordinator.reply = None
    waiting = send(broker, transactional())
    assert errors(send(broker, batch(), transactional(0))) == [
        ErrorCode.NONE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ]
    broker.connection.principal = "User:other"
    other = send(broker, transactional(producer_id=77), transactional_id="other")
    assert not other.is_answered, "there is a place left for others"
    for asked in coordinator.open:
        asked.answer()
    assert errors(waiting) == errors(other) == [ErrorCode.NONE]
