"""Results of several steps put together into one."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.coordinator.core.result import (
    MAX_BYTES_AT_ONCE,
    CallbackReply,
    Collector,
    CoordinatorRecord,
    CoordinatorResult,
    Portion,
    Producer,
)
from moldau.broker.coordinator.group.core.offset_store import (
    PartitionKey,
    StoredOffset,
    offset_record,
    offset_tombstone,
)
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode

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


def test_what_stands_for_itself_and_what_does_not_are_appended_as_one() -> None:
    for parts, is_atomic in (
        ([True], True),
        ([False], False),
        ([False, False], False),
        ([False, True], True),
        ([True, False], True),
        ([], True),
    ):
        result = CoordinatorResult()
        for part_is_atomic in parts:
            result.merge(CoordinatorResult(records=[RECORD], is_atomic=part_is_atomic))
            result.merge(CoordinatorResult(is_atomic=not part_is_atomic))
        assert result.is_atomic is is_atomic, parts


def test_every_step_behind_a_write_is_taken_in_order_and_given_its_outcome() -> None:
    taken: list[tuple[str, ErrorCode, float]] = []

    def step(name: str) -> Any:
        def after(error: ErrorCode, now_ms: float) -> CoordinatorResult:
            taken.append((name, error, now_ms))
            return CoordinatorResult(commands=[name])

        return after

    result = CoordinatorResult(after=step("first"))
    result.add_after(step("second"))
    result.merge(CoordinatorResult(after=step("third")))
    assert result.after is not None
    joined = result.after(ErrorCode.NOT_COORDINATOR, 5.0)
    names = ["first", "second", "third"]
    assert joined.commands == names
    assert taken == [(name, ErrorCode.NOT_COORDINATOR, 5.0) for name in names]


def test_an_answer_waits_for_its_commit_or_says_why_there_is_none() -> None:
    for error, expected in ((ErrorCode.NONE, "good"), (ErrorCode.NOT_COORDINATOR, "bad")):
        answers: list[object] = []
        reply_to = CallbackReply(answers.append)
        result = CoordinatorResult.reply_when_committed(
            reply_to, "good", on_error=lambda _error: "bad", records=[RECORD]
        )
        assert (result.records, result.replies) == ([RECORD], [])
        assert result.after is not None
        ((to, message, on_error),) = result.after(error, 0.0).replies
        assert (to, message, on_error) == (reply_to, expected, None)


# -- portions ------------------------------------------------------------------------------------


def test_a_portion_is_full_by_count() -> None:
    portion = Portion(CONSUMER_OFFSETS, 3)
    for number in range(3):
        assert not portion.is_full
        portion.add(offset_tombstone("team", "events", number))
    assert portion.is_full
    assert len(portion.records) == 3


@pytest.mark.parametrize("is_tombstone", [False, True])
def test_a_portion_is_full_by_the_bytes_of_its_keys_and_values(is_tombstone: bool) -> None:
    group_id, metadata = ("g" * 1000, "") if is_tombstone else ("team", "m" * 1000)
    where = PartitionKey(group_id, "events", 0)
    record = offset_record(where, StoredOffset(5, metadata=metadata))
    if is_tombstone:
        record = offset_tombstone(*where)
    size_bytes = len(CONSUMER_OFFSETS.encode_key(record.key))
    if record.value is not None:
        size_bytes += len(CONSUMER_OFFSETS.encode_value(record.value, record.value_version))
    portion = Portion(CONSUMER_OFFSETS, 10_000)
    while not portion.is_full:
        portion.add(record)
    count = len(portion.records)
    assert (count - 1) * size_bytes < MAX_BYTES_AT_ONCE <= count * size_bytes


def test_what_cannot_be_encoded_weighs_nothing() -> None:
    portion = Portion(CONSUMER_OFFSETS, 10_000)
    for _ in range(20):
        portion.add(offset_tombstone("g" * 2**15, "events", 0))
    assert (len(portion.records), portion.is_full) == (20, False)


# -- answers of several parts --------------------------------------------------------------------


def test_parts_are_handed_over_together_in_the_order_in_which_they_were_asked_for() -> None:
    done: list[list[Any]] = []
    collector: Collector[Any] = Collector(done.append)
    first, second = collector.part(), collector.part(lambda message: message * 2)
    second.respond(2)
    third = collector.part()
    third.respond(3)
    first.respond(1)
    assert done == [], "there may be more parts"
    last = collector.part()
    collector.all_asked()
    assert done == []
    last.respond(4)
    assert done == [[1, 4, 3, 4]]


def test_without_parts_the_answer_comes_at_once() -> None:
    done: list[list[Any]] = []
    collector: Collector[Any] = Collector(done.append)
    collector.all_asked()
    assert done == [[]]


def test_a_part_is_answered_once() -> None:
    collector: Collector[Any] = Collector(lambda _parts: None)
    part = collector.part()
    collector.part()
    part.respond(1)
    with pytest.raises(AssertionError, match="answered once"):
        part.respond(2)
