"""Transactions that an outside coordinator decides on (KIP-939)."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.core.result import LAST_CLIENT_EPOCH, Producer
from moldau.broker.coordinator.transaction.core.state import ProducerAnswer
from moldau.broker.coordinator.transaction.core.transaction import NO_TIMEOUT_MS, TransactionStatus
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.transaction.bench import P0, P1, P2, Bench
from tests.unit.broker.coordinator.transaction.records import DAY_MS, FIRST, LAST, with_epoch


def two_phase_bench() -> Bench:
    """Days go by in these tests: timed-out transactions are looked for once a day."""
    return Bench(two_phase_commit_enabled=True, abort_interval_ms=DAY_MS)


def two_phase(bench: Bench, **options: object) -> ProducerAnswer:
    answer: ProducerAnswer = bench.init(enable_two_phase=True, **options).answer
    return answer


def test_two_phase_commit_has_to_be_enabled() -> None:
    assert two_phase(Bench()).error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_transaction_of_a_two_phase_commit_is_never_timed_out() -> None:
    bench = two_phase_bench()
    producer = two_phase(bench, timeout_ms=0).producer
    bench.add("t", producer, [P0])
    assert bench.transaction().timeout_ms == NO_TIMEOUT_MS
    for _ in range(10):
        bench.advance(10 * DAY_MS)
        bench.fail_over()
    assert bench.status() is TransactionStatus.ONGOING
    assert bench.end("t", producer, is_commit=True).answer.error is ErrorCode.NONE


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("fails_over", [True, False])
def test_a_prepared_transaction_is_kept_for_who_comes_and_ended_by_it(
    is_commit: bool, fails_over: bool
) -> None:
    bench = two_phase_bench()
    crashed = two_phase(bench).producer
    bench.add("t", crashed, [P0, P1])
    kept = two_phase(bench, keep_prepared=True)
    assert kept == (ErrorCode.NONE, (FIRST, 1), (FIRST, 0))
    if fails_over:
        bench.fail_over()
    # Who crashed is fenced; who came may end it, and nothing else.
    assert bench.add("t", crashed, [P0]).answer == {P0: ErrorCode.PRODUCER_FENCED}
    assert bench.verify("t", crashed, [P0]).answer == {P0: ErrorCode.PRODUCER_FENCED}
    assert bench.end("t", crashed, is_commit=True).answer.error is ErrorCode.PRODUCER_FENCED
    assert bench.add("t", kept.producer, [P2]).answer == {P2: ErrorCode.INVALID_TXN_STATE}
    bench.advance(30 * DAY_MS)
    assert bench.status() is TransactionStatus.ONGOING
    answer = bench.end("t", kept.producer, is_commit=is_commit).answer
    assert answer[:2] == (ErrorCode.NONE, (FIRST, 2))
    (command,) = bench.commands
    assert (command.transaction.producer, command.remaining) == ((FIRST, 1), {P0, P1})
    assert command.is_commit is is_commit
    bench.answer_markers()
    assert bench.transaction().producer == (FIRST, 2)
    assert bench.end("t", kept.producer, is_commit=is_commit).answer == answer
    assert bench.add("t", answer.producer, [P2]).answer == {P2: ErrorCode.NONE}


def test_a_producer_id_that_a_kept_transaction_never_had_is_not_fenced_but_unknown() -> None:
    bench = two_phase_bench()
    crashed = two_phase(bench).producer
    bench.add("t", crashed, [P0])
    two_phase(bench, keep_prepared=True)
    other = Producer(FIRST + 77, 0)
    unknown = {P0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert bench.add("t", other, [P0]).answer == unknown
    assert bench.verify("t", other, [P0]).answer == unknown


def test_each_who_takes_over_fences_the_one_before_and_sees_the_same_transaction() -> None:
    bench = two_phase_bench()
    crashed = two_phase(bench).producer
    bench.add("t", crashed, [P0])
    answers = [two_phase(bench, keep_prepared=True) for _ in range(3)]
    assert [answer.producer.producer_epoch for answer in answers] == [1, 2, 3]
    assert {answer.ongoing for answer in answers} == {crashed}
    assert bench.end("t", answers[1].producer, is_commit=True).answer.error is (
        ErrorCode.PRODUCER_FENCED
    )
    assert bench.end("t", answers[2].producer, is_commit=True).answer.producer == (FIRST, 4)
    assert bench.commands[0].transaction.producer == (FIRST, 1)


def test_a_kept_transaction_can_be_given_up_by_who_comes_without_keeping() -> None:
    bench = two_phase_bench()
    crashed = two_phase(bench).producer
    bench.add("t", crashed, [P0])
    kept = two_phase(bench, keep_prepared=True).producer
    assert two_phase(bench).error is ErrorCode.CONCURRENT_TRANSACTIONS
    (command,) = bench.answer_markers()
    assert (command.is_commit, command.transaction.producer) == (False, (FIRST, 1))
    assert two_phase(bench).producer == (FIRST, 3)
    assert bench.end("t", kept, is_commit=True).answer.error is ErrorCode.PRODUCER_FENCED


def test_keeping_when_there_is_nothing_to_keep_is_an_ordinary_start() -> None:
    bench = two_phase_bench()
    first = two_phase(bench, keep_prepared=True)
    assert first == (ErrorCode.NONE, (FIRST, 0), (-1, -1))
    bench.add("t", first.producer, [P0])
    bench.end("t", first.producer, is_commit=True)
    assert two_phase(bench, keep_prepared=True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.answer_markers()
    assert two_phase(bench, keep_prepared=True) == (ErrorCode.NONE, (FIRST, 2), (-1, -1))


def test_keeping_needs_no_two_phase_commit_but_leaves_its_timeout_alone() -> None:
    bench = two_phase_bench()
    producer = two_phase(bench).producer
    bench.add("t", producer, [P0])
    bench.init(keep_prepared=True)
    bench.advance(30 * DAY_MS)
    assert bench.status() is TransactionStatus.ONGOING
    other = bench.begin("u")
    bench.init("u", keep_prepared=True, timeout_ms=5_000)
    bench.advance(2 * DAY_MS)
    bench.answer_markers()
    assert bench.status("u") is TransactionStatus.COMPLETE_ABORT
    assert bench.end("u", other, is_commit=True).answer.error is ErrorCode.PRODUCER_FENCED


def test_keeping_needs_transaction_version_2() -> None:
    bench = Bench(version=1, two_phase_commit_enabled=True)
    answer = two_phase(bench, keep_prepared=True)
    assert answer.error is ErrorCode.UNSUPPORTED_VERSION


def test_keeping_a_transaction_of_the_last_epoch_takes_another_producer_id() -> None:
    bench = two_phase_bench()
    two_phase(bench)
    with_epoch(bench, LAST_CLIENT_EPOCH, timeout_ms=NO_TIMEOUT_MS)
    bench.add("t", LAST, [P0])
    kept = two_phase(bench, keep_prepared=True)
    assert kept == (ErrorCode.NONE, (FIRST + 1, 0), LAST)
    bench.fail_over()
    answer = bench.end("t", kept.producer, is_commit=True).answer
    assert answer[:2] == (ErrorCode.NONE, (FIRST + 1, 1))
    assert bench.commands[0].transaction.producer == (FIRST, LAST_CLIENT_EPOCH + 1)
    bench.answer_markers()
    assert bench.end("t", kept.producer, is_commit=True).answer == answer
    bench.fail_over()
    assert bench.end("t", kept.producer, is_commit=True).answer == answer
    assert bench.end("t", LAST, is_commit=True).answer.error is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


def test_ending_a_kept_transaction_with_the_last_epoch_takes_another_producer_id() -> None:
    bench = two_phase_bench()
    two_phase(bench)
    with_epoch(bench, LAST_CLIENT_EPOCH - 1, timeout_ms=NO_TIMEOUT_MS)
    bench.add("t", LAST._replace(producer_epoch=LAST_CLIENT_EPOCH - 1), [P0])
    kept = two_phase(bench, keep_prepared=True).producer
    assert kept == LAST
    answer = bench.end("t", kept, is_commit=True).answer
    assert answer[:2] == (ErrorCode.NONE, (FIRST + 1, 0))
    bench.fail_over()
    assert bench.end("t", kept, is_commit=True).answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.commands.pop(0)
    bench.answer_markers()
    assert bench.end("t", kept, is_commit=True).answer == answer
