"""One transactional id as a value: epochs, timeouts and its record, at each edge."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.coordinator.core.result import LAST_CLIENT_EPOCH, LAST_EPOCH, Producer
from moldau.broker.coordinator.transaction.core import rules
from moldau.broker.coordinator.transaction.core.transaction import (
    LEGAL_PREDECESSORS,
    NO_TIMEOUT_MS,
    Transaction,
    TransactionStatus,
    from_record,
    is_legal,
    new_transaction,
    record_key,
    record_value,
    value_version,
)
from moldau.protocol.coordinator_records.transactions import TransactionLogValue
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.types import TopicPartition

S = TransactionStatus
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def transaction(status: TransactionStatus = S.ONGOING, **changes: Any) -> Transaction:
    values: dict[str, Any] = {
        "transactional_id": "t",
        "producer": Producer(7, 3),
        "status": status,
        "timeout_ms": 1000,
        "last_update_ms": 500,
        "start_ms": 400,
        "previous_producer_id": 7,
    }
    return Transaction(**(values | changes))


def test_epochs_of_clients_and_of_markers() -> None:
    found = [
        (Producer(1, epoch).is_exhausted, Producer(1, epoch).is_of_markers)
        for epoch in (LAST_CLIENT_EPOCH - 1, LAST_CLIENT_EPOCH, LAST_EPOCH)
    ]
    assert found == [(False, False), (True, False), (True, True)]
    assert (LAST_CLIENT_EPOCH, LAST_EPOCH) == (32766, 32767)


@pytest.mark.parametrize(
    ("now_ms", "open_ms", "changes", "is_over"),
    [
        (1400, 1000, {}, False),
        (1401, 0, {}, True),
        (0, 1001, {}, True),
        (0, 1000, {}, False),
        (5000, 5000, {"status": S.PREPARE_ABORT}, False),
        (5000, 5000, {"status": S.EMPTY}, False),
        (10**12, 10**12, {"timeout_ms": NO_TIMEOUT_MS}, False),
        (10**12, 10**12, {"timeout_ms": NO_TIMEOUT_MS - 1}, True),
    ],
)
def test_when_a_transaction_has_had_its_time(
    now_ms: int, open_ms: int, changes: dict[str, Any], is_over: bool
) -> None:
    assert transaction()._replace(**changes).is_timed_out(now_ms, open_ms) is is_over


def test_an_id_is_unused_since_its_last_record_unless_a_transaction_is_open() -> None:
    for status in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
        found = [transaction(status).is_unused_since(at_ms) for at_ms in (499, 500, 501)]
        assert found == [False, True, True]
    for status in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT):
        assert not transaction(status).is_unused_since(10**9)


@pytest.mark.parametrize(
    ("changes", "ended_by"),
    [
        ({}, Producer(7, 2)),
        ({"producer": Producer(7, 1)}, Producer(7, 0)),
        ({"producer": Producer(7, 0), "previous_producer_id": 6}, Producer(6, 32766)),
        ({"client_version": 1}, None),
        ({"status": S.EMPTY}, None),
        ({"status": S.COMPLETE_ABORT}, Producer(7, 2)),
        ({"status": S.PREPARE_COMMIT}, None),
    ],
)
def test_who_ended_a_transaction(changes: dict[str, Any], ended_by: Producer | None) -> None:
    values = {"status": S.COMPLETE_COMMIT, "client_version": 2} | changes
    assert transaction(**values).ended_by == (ended_by)


@pytest.mark.parametrize(
    ("epoch", "client_version", "expected"),
    [
        # (epoch of the markers, client version, producer that goes on)
        (3, 0, (3, 0, Producer(7, 3))),
        (3, 2, (4, 2, Producer(7, 4))),
        (32765, 2, (32766, 2, Producer(7, 32766))),
        (32766, 2, (32767, 2, Producer(99, 0))),
        (32767, 2, (32767, 1, Producer(99, 0))),
        (32766, 1, (32766, 1, Producer(7, 32766))),
    ],
)
@pytest.mark.parametrize("is_commit", [True, False])
def test_the_pair_that_goes_on_after_a_transaction(
    epoch: int, client_version: int, is_commit: bool, expected: tuple[int, int, Producer]
) -> None:
    before = transaction(producer=Producer(7, epoch), partitions=frozenset({A0}))
    prepared = before.prepared(
        is_commit=is_commit, client_version=client_version, spare_producer_id=99, now_ms=600.9
    )
    assert prepared.status is (S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT)
    producer_id, producer_epoch = prepared.producer
    assert (producer_id, prepared.last_update_ms, prepared.start_ms) == (7, 600, 400)
    going_on = prepared.producer_after_end
    assert (producer_epoch, prepared.client_version, going_on) == expected
    assert prepared.partitions == {A0}
    complete = prepared.completed(700)
    assert complete.status is (S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT)
    assert complete.producer == going_on
    assert complete.previous_producer_id == 7
    assert complete.next_producer == (-1, -1)
    assert complete.partitions == frozenset()


def test_an_abort_of_nothing_begins_when_it_is_asked_for() -> None:
    empty = transaction(S.EMPTY, start_ms=-1)
    prepared = empty.prepared(is_commit=False, client_version=2, spare_producer_id=9, now_ms=600)
    assert prepared.start_ms == 600


@pytest.mark.parametrize(
    ("epoch", "server_version", "expected"),
    [(3, 0, (4, 0)), (32766, 1, (32767, 0)), (32767, 1, (32767, 0)), (3, 2, (4, 2))],
)
def test_a_fenced_transaction_has_an_epoch_that_its_producer_has_not(
    epoch: int, server_version: int, expected: tuple[int, int]
) -> None:
    fenced = transaction(producer=Producer(7, epoch)).fenced(
        server_version=server_version, spare_producer_id=99, now_ms=600
    )
    assert fenced.status is S.PREPARE_ABORT
    assert (fenced.producer.producer_epoch, fenced.client_version) == expected


def test_a_kept_transaction_is_ended_by_who_has_taken_it_over() -> None:
    heir = Producer(7, 4)
    kept = transaction().kept_for(heir, 2000, 600)
    assert (kept.is_kept, kept.client_producer, kept.producer) == (True, heir, (7, 3))
    assert kept.timeout_ms == 2000
    two_phase = transaction(timeout_ms=NO_TIMEOUT_MS).kept_for(heir, 2000, 600)
    assert two_phase.timeout_ms == NO_TIMEOUT_MS
    ended = kept.prepared(is_commit=True, client_version=2, spare_producer_id=99, now_ms=700)
    assert (ended.producer, ended.producer_after_end) == ((7, 4), (7, 5))
    assert not ended.is_kept
    last = transaction().kept_for(Producer(8, LAST_CLIENT_EPOCH), 2000, 600)
    ended = last.prepared(is_commit=True, client_version=2, spare_producer_id=99, now_ms=700)
    assert (ended.producer_after_end, ended.previous_producer_id) == ((99, 0), 8)
    assert ended.next_producer == (99, 0)


def test_partitions_are_added_to_an_open_transaction_and_begin_a_new_one() -> None:
    first = transaction(S.COMPLETE_COMMIT, partitions=frozenset({B0})).with_partitions([A0], 2, 900)
    assert (first.partitions, first.start_ms, first.client_version) == ({A0}, 900, 2)
    more = first.with_partitions([A1], 0, 950)
    assert (more.partitions, more.start_ms, more.last_update_ms) == ({A0, A1}, 900, 950)
    assert more.client_version == 0


def test_a_new_producer_has_an_empty_transaction() -> None:
    made = new_transaction("t", 5, 1000, 12.9)
    assert made == transaction(
        S.EMPTY,
        producer=Producer(5, 0),
        last_update_ms=12,
        start_ms=-1,
        previous_producer_id=5,
    )
    pair = Producer(5, 1)
    open_one = made.with_partitions([A0], 2, 20).kept_for(pair, 1000, 21)
    prepared = open_one.prepared(is_commit=False, client_version=2, spare_producer_id=9, now_ms=22)
    again = prepared.completed(23).initialized(Producer(5, 3), 2000, 24)
    assert (again.status, again.timeout_ms, again.start_ms) == (S.EMPTY, 2000, -1)
    assert (again.producer, again.next_producer, again.partitions) == ((5, 3), (-1, -1), set())


def test_a_transition_that_is_not_legal_is_not_made() -> None:
    for before in S:
        for after in S:
            assert is_legal(before, after) is (before in LEGAL_PREDECESSORS.get(after, ()))
    with pytest.raises(AssertionError):
        transaction(S.ONGOING).completed(1)
    with pytest.raises(AssertionError):
        transaction(S.PREPARE_COMMIT).with_partitions([A0], 0, 1)


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        ((8, 4), ErrorCode.INVALID_TXN_STATE),
        ((8, 3), ErrorCode.PRODUCER_FENCED),
        ((7, 3), ErrorCode.PRODUCER_FENCED),
        ((7, 4), ErrorCode.PRODUCER_FENCED),
        ((9, 4), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_no_producer_writes_into_a_transaction_that_was_taken_over(
    producer: tuple[int, int], error: ErrorCode
) -> None:
    kept = transaction().kept_for(Producer(8, 4), 2000, 600)
    assert rules.write_refusal(kept, Producer(*producer)) is error


# -- the record ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [s for s in S if s not in (S.DEAD, S.PREPARE_EPOCH_FENCE)])
def test_a_record_says_all_of_a_transaction(status: TransactionStatus) -> None:
    before = transaction(
        status,
        partitions=frozenset({A1, A0, B0}) if status is not S.EMPTY else frozenset(),
        previous_producer_id=6,
        next_producer=Producer(8, 4),
        client_version=2,
    )
    value, _ = TransactionLogValue.decode(record_value(before, 1).to_bytes(1), 1)
    assert from_record(record_key("t"), value) == before
    old, _ = TransactionLogValue.decode(record_value(before, 0).to_bytes(0), 0)
    without = before._replace(
        previous_producer_id=-1,
        next_producer=Producer(-1, -1),
        client_version=0,
    )
    assert from_record(record_key("t"), old) == without


def test_a_record_names_partitions_by_topic_and_none_of_an_empty_id() -> None:
    value = record_value(transaction(partitions=frozenset({B0, A1, A0})), 0)
    assert value.transaction_partitions is not None
    found = [(each.topic, each.partition_ids) for each in value.transaction_partitions]
    assert found == [("a", [0, 1]), ("b", [0])]
    assert record_value(transaction(S.EMPTY), 0).transaction_partitions is None
    assert record_value(transaction(), 0).transaction_partitions == []


@pytest.mark.parametrize(
    ("changes", "server_version", "version"),
    [
        ({}, 0, 0),
        ({}, 1, 1),
        ({}, 2, 1),
        ({"client_version": 1}, 0, 0),
        ({"client_version": 2}, 0, 1),
        ({"next_producer": Producer(0, -1)}, 0, 1),
    ],
)
def test_the_version_of_a_record_holds_what_it_says(
    changes: dict[str, Any], server_version: int, version: int
) -> None:
    assert value_version(transaction(**changes), server_version) == version


def test_a_state_that_there_is_none_of() -> None:
    value = record_value(transaction(), 0)
    value.transaction_status = 8
    with pytest.raises(RemoteProtocolError, match="state 8"):
        from_record(record_key("t"), value)
