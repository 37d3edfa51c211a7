"""Results of several steps put together into one."""

from __future__ import annotations

from moldau.broker.coordinator.core.result import CoordinatorRecord, CoordinatorResult, Producer
from moldau.broker.group.core.results import merge

RECORD = CoordinatorRecord(b"key", b"value", 0)


def test_records_of_a_transaction_stay_with_their_producer() -> None:
    result = CoordinatorResult()
    merge(result, CoordinatorResult(records=[RECORD], producer=Producer(7, 1)))
    assert (result.records, result.producer) == ([RECORD], Producer(7, 1))
    merge(result, CoordinatorResult())
    assert (result.records, result.producer) == ([RECORD], Producer(7, 1))
