"""What transactional ids take in memory, as the coordinator estimates it, and where it ends."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.core.result import Producer
from moldau.broker.coordinator.transaction.core.transaction import (
    PARTITION_BYTES,
    TRANSACTION_BYTES,
    Transaction,
    TransactionStatus,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from tests.unit.broker.coordinator.transaction.bench import P0, P1, Bench


@pytest.mark.parametrize("partition_count", [0, 1, 3])
def test_an_id_takes_its_name_and_its_partitions(partition_count: int) -> None:
    transaction = Transaction(
        "12345",
        Producer(1, 0),
        TransactionStatus.ONGOING,
        1000,
        0,
        partitions=frozenset(TopicPartition("a", index) for index in range(partition_count)),
    )
    partitions_bytes = PARTITION_BYTES * partition_count
    assert transaction.size_bytes == TRANSACTION_BYTES + 5 + partitions_bytes


def used_bytes(bench: Bench) -> int:
    return bench.state._memory.limit.used_bytes


def test_an_id_takes_memory_until_it_is_forgotten() -> None:
    bench = Bench(expiration_ms=1000, expiry_interval_ms=1000)
    assert used_bytes(bench) == 0
    producer = bench.init("t").answer.producer
    assert used_bytes(bench) == TRANSACTION_BYTES + 1
    bench.add("t", producer, [P0, P1])
    assert used_bytes(bench) == TRANSACTION_BYTES + 1 + 2 * PARTITION_BYTES
    bench.end("t", producer, is_commit=True)
    bench.answer_markers()
    assert used_bytes(bench) == TRANSACTION_BYTES + 1
    memory = bench.state._memory
    bench.broker.depose()
    assert memory.limit.used_bytes == 0
    bench.broker.elect()
    assert used_bytes(bench) == TRANSACTION_BYTES + 1
    bench.advance(3000)
    assert bench.state.transactions == {}
    assert used_bytes(bench) == 0


def test_an_id_that_is_forgotten_leaves_nothing_behind() -> None:
    bench = Bench(expiration_ms=1000, expiry_interval_ms=1000)
    first = bench.init("t").answer.producer
    assert bench.init("t", expected=first).answer.error is ErrorCode.NONE
    state = bench.state
    assert state._recoveries.keys() == {"t"}
    bench.advance(3000)
    assert (state.transactions, state._recoveries, state._open) == ({}, {}, {})


@pytest.mark.parametrize(
    ("missing_bytes", "error"), [(0, ErrorCode.NONE), (1, ErrorCode.COORDINATOR_NOT_AVAILABLE)]
)
def test_a_new_id_needs_room_for_its_name(missing_bytes: int, error: ErrorCode) -> None:
    bench = Bench()
    bench.state._memory.limit.max_bytes = TRANSACTION_BYTES + 5 - missing_bytes
    assert bench.init("12345").answer.error is error
    assert bool(bench.state.transactions) is (error is ErrorCode.NONE)


def test_at_the_limit_a_known_id_goes_on_and_takes_no_more() -> None:
    bench = Bench()
    producer = bench.begin("t", P0)
    limit = bench.state._memory.limit
    limit.max_bytes = limit.used_bytes
    assert bench.add("t", producer, [P1]).answer == {P1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert bench.add("t", producer, [P0]).answer == {P0: ErrorCode.NONE}
    assert bench.end("t", producer, is_commit=True).answer.error is ErrorCode.NONE
    bench.answer_markers()
    assert bench.init("t").answer.error is ErrorCode.NONE
    assert bench.init("u").answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
