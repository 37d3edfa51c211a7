"""Results of several steps put together into one."""

from __future__ import annotations

from moldau.broker.coordinator.core.result import (
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
)

RECORD = CoordinatorRecord(b"key", b"value", 0)


def test_records_of_a_transaction_stay_with_their_producer() -> None:
    result = CoordinatorResult()
    result.merge(CoordinatorResult(records=[RECORD], producer=Producer(7, 1)))
    assert (result.records, result.producer) == ([RECORD], Producer(7, 1))
    result.merge(CoordinatorResult())
    assert (result.records, result.producer) == ([RECORD], Producer(7, 1))


def test_what_is_merged_with_a_result_that_holds_anyway_holds_anyway() -> None:
    result = CoordinatorResult()
    result.merge(CoordinatorResult(records=[RECORD]))
    assert not result.holds_anyway
    result.merge(CoordinatorResult(holds_anyway=True))
    result.merge(CoordinatorResult())
    assert result.holds_anyway
