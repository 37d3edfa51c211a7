"""Results of several steps put together into one."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
    Reply,
)
from moldau.protocol.errors import ErrorCode

RECORD = CoordinatorRecord(b"key", b"value", 0)


def test_records_of_a_transaction_stay_with_their_producer() -> None:
    result = CoordinatorResult()
    result.merge(CoordinatorResult(records=[RECORD], producer=Producer(7, 1)))
    assert (result.records, result.producer) == ([RECORD], Producer(7, 1))
    result.merge(CoordinatorResult())
    assert (result.records, result.producer) == ([RECORD], Producer(7, 1))


@pytest.mark.parametrize(
    "promised",
    [
        CoordinatorResult(timers=[CancelTimer("key")]),
        CoordinatorResult(replies=[Reply("caller", "answer")]),
        CoordinatorResult(commands=["command"]),
    ],
    ids=["timers", "replies", "commands"],
)
def test_each_thing_that_is_promised_comes_true_without_the_records(
    promised: CoordinatorResult,
) -> None:
    result = CoordinatorResult(records=[RECORD])
    result.merge(promised)
    after = result.whatever_happens(lambda: 0).after
    assert after is not None
    assert after(ErrorCode.NOT_ENOUGH_REPLICAS, 0.0) == promised
    assert after(ErrorCode.NONE, 0.0) == CoordinatorResult()
