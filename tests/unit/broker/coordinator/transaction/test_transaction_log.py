"""Records of transactions, the table of transitions, and lists."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.core.result import CoordinatorRecord, Producer
from moldau.broker.coordinator.transaction.core.state import TransactionState
from moldau.broker.coordinator.transaction.core.transaction import (
    LEGAL_PREDECESSORS,
    Transaction,
    TransactionStatus,
    from_record,
    is_legal,
    record_key,
    record_value,
)
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from moldau.protocol.coordinator_records.transactions import TransactionLogValue
from moldau.protocol.errors import RemoteProtocolError
from tests.unit.broker.coordinator.harness import Caller
from tests.unit.broker.coordinator.transaction.bench import P0, P1, P2, Bench
from tests.unit.broker.coordinator.transaction.records import logged


@pytest.mark.parametrize(
    ("server_version", "client_version", "value_version"),
    [(0, 0, 0), (0, 2, 1), (1, 0, 1), (2, 0, 1), (2, 2, 1)],
)
def test_records_have_the_version_that_their_readers_know(
    server_version: int, client_version: int, value_version: int
) -> None:
    bench = Bench(server_version)
    producer = bench.init().answer.producer
    bench.add("t", producer, [P0, P1], client_version)
    _, value, version = logged(bench)[-1]
    assert version == value_version
    assert value is not None
    assert [(each.topic, each.partition_ids) for each in value.transaction_partitions or ()] == [
        ("outputs", [0, 1])
    ]
    assert value.client_transaction_version == (client_version if value_version else 0)


def test_an_empty_id_has_no_list_of_partitions_in_the_log() -> None:
    bench = Bench()
    bench.init()
    ((_, value, _),) = logged(bench)
    assert value is not None
    assert (value.transaction_partitions, value.transaction_start_timestamp_ms) == (None, -1)


@pytest.mark.parametrize("status", list(TransactionStatus))
def test_an_id_survives_the_way_through_the_log(status: TransactionStatus) -> None:
    transaction = Transaction(
        transactional_id="t",
        producer=Producer(7, 3),
        status=status,
        timeout_ms=5,
        last_update_ms=9,
        start_ms=8,
        partitions=frozenset() if status is TransactionStatus.EMPTY else frozenset({P0, P2}),
        previous_producer_id=6,
        next_producer=Producer(10, 11),
        client_version=2,
    )
    value = record_value(transaction, 1)
    key = record_key("t")
    data = TRANSACTION_STATE.encode_value(value, 1)
    read, _ = TRANSACTION_STATE.decode_value(key, data)
    assert isinstance(read, TransactionLogValue)
    assert from_record(key, read) == transaction


def test_a_state_that_there_is_not_fails_the_partition_loudly() -> None:
    bench = Bench()
    bench.init()
    value = logged(bench)[0][1]
    assert value is not None
    value.transaction_status = 9
    with pytest.raises(RemoteProtocolError, match="state 9"):
        bench.state.replay(CoordinatorRecord(record_key("t"), value, 1), 0, None)


def test_the_table_of_transitions_has_no_way_out_of_an_outcome_but_its_completion() -> None:
    for status, outcome in (
        (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT),
        (TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT),
    ):
        assert [after for after in LEGAL_PREDECESSORS if is_legal(status, after)] == [outcome]
    assert not is_legal(TransactionStatus.DEAD, TransactionStatus.EMPTY)


@pytest.mark.parametrize("status", list(TransactionStatus))
def test_a_transition_that_the_table_does_not_have_is_not_made(status: TransactionStatus) -> None:
    transaction = Transaction("t", Producer(7, 3), status, 5, 9, partitions=frozenset({P0}))
    made = {
        TransactionStatus.EMPTY: lambda: transaction.initialized(Producer(7, 4), 5, 10),
        TransactionStatus.ONGOING: lambda: transaction.with_partitions([P1], 2, 10),
        TransactionStatus.PREPARE_ABORT: lambda: transaction.fenced(
            server_version=2, spare_producer_id=8, now_ms=10
        ),
        TransactionStatus.PREPARE_COMMIT: lambda: transaction.prepared(
            is_commit=True, client_version=2, spare_producer_id=8, now_ms=10
        ),
    }
    for after, make in made.items():
        if is_legal(status, after):
            assert make().status is after
        else:
            with pytest.raises(AssertionError):
                make()


def test_listing_filters_and_sees_what_is_not_committed_only_later() -> None:
    bench = Bench(is_committing_at_once=False)
    bench.init("a")
    caller = Caller()

    def operation(state: TransactionState, now_ms: float) -> object:
        return state.list_transactions(lambda each: each.transactional_id == "a", caller)

    bench.runtime.call(0, operation)  # type: ignore[arg-type]
    assert not caller.is_answered
    bench.commit()
    assert [each.transactional_id for each in caller.answer] == ["a"]
