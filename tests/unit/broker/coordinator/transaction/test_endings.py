"""Endings of transactions: those in the log of a new coordinator, and one that is written late."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.transaction.core.state import COMPLETE_RETRY_MS
from moldau.broker.coordinator.transaction.core.transaction import TransactionStatus
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from tests.unit.broker.coordinator.transaction.bench import P0, P1, Bench

S = TransactionStatus


@pytest.mark.parametrize(
    "partitions_by_id",
    [
        {"a": []},
        {"a": [], "b": []},
        {"a": [], "b": [P0]},
        {"a": [P0], "b": []},
        {"a": [], "b": [P0, P1], "c": [], "d": [P1]},
    ],
)
def test_all_endings_in_the_log_are_carried_out(
    partitions_by_id: dict[str, list[TopicPartition]],
) -> None:
    """An abort of a transaction that has not got as far as the coordinator has no partitions."""
    bench = Bench()
    producers = {name: bench.init(name).answer.producer for name in partitions_by_id}
    for name, partitions in partitions_by_id.items():
        if partitions:
            bench.add(name, producers[name], partitions)
    bench.log.is_committing_at_once = False
    for name in partitions_by_id:
        bench.end(name, producers[name], is_commit=False)
    bench.fail_over()
    assert {bench.status(name) for name in partitions_by_id} == {S.PREPARE_ABORT}
    assert bench.commands == [], "the outcomes may be lost"
    bench.log.is_committing_at_once = True
    bench.commit()
    sent = {command.transaction.transactional_id: command for command in bench.commands}
    expected = {name: set(each) for name, each in partitions_by_id.items() if each}
    assert {name: command.remaining for name, command in sent.items()} == expected
    bench.answer_markers()
    bench.advance(5)
    assert {bench.status(name) for name in partitions_by_id} == {S.COMPLETE_ABORT}


def test_an_ending_that_was_written_before_it_is_tried_again_stays_as_it_is() -> None:
    bench = Bench()
    producer = bench.begin("t", P0)
    bench.end("t", producer, is_commit=True)
    (command,) = bench.commands
    bench.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    bench.marker_written(command, [P0])
    assert bench.status() is S.PREPARE_COMMIT
    bench.log.append_error = ErrorCode.NONE
    bench.marker_written(command, [P0])
    assert bench.status() is S.COMPLETE_COMMIT
    end_offset = bench.log.log_end_offset
    bench.advance(COMPLETE_RETRY_MS + 5)
    assert bench.status() is S.COMPLETE_COMMIT
    assert bench.log.log_end_offset == end_offset
