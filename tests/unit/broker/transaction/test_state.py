"""The state machine over time: epochs, repetitions, timeouts, expiry, loading, two-phase commit."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.transaction.core.answers import InitProducerIdAnswer
from moldau.broker.transaction.core.state import TransactionState
from moldau.broker.transaction.core.statuses import LEGAL_PREDECESSORS, TransactionStatus, is_legal
from moldau.broker.transaction.core.transaction import (
    LAST_CLIENT_EPOCH,
    NO_TIMEOUT_MS,
    ProducerIdAndEpoch,
    Transaction,
    from_record,
    record_key,
    record_value,
)
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from moldau.protocol.coordinator_records.transaction_log import TransactionLogValue
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.records import decode_records, iter_batches
from tests.unit.broker.coordinator.harness import Caller
from tests.unit.broker.transaction.bench import FIRST_PRODUCER_ID, P0, P1, P2, TIMEOUT_MS, Bench

DAY_MS = 24 * 3600 * 1000
LAST = ProducerIdAndEpoch(FIRST_PRODUCER_ID, LAST_CLIENT_EPOCH)
FIRST = FIRST_PRODUCER_ID


def logged(bench: Bench) -> list[tuple[str, TransactionLogValue | None, int]]:
    """Id, value and value version of every record in the log."""
    found = []
    for batch in bench.log.batches:
        for position, _ in iter_batches(batch):
            for record in decode_records(batch, position):
                key = TRANSACTION_STATE.decode_key(record.key)
                value, version = None, -1
                if record.value is not None:
                    value, version = TRANSACTION_STATE.decode_value(key, record.value)
                found.append((key.transactional_id, value, version))
    return found


def with_epoch(bench: Bench, producer_epoch: int, **changes: object) -> None:
    """The id "t" as if it had gone on to that epoch: written into the log."""
    transaction = bench.transaction()
    made = Transaction(
        **{
            "transactional_id": "t",
            "producer_id": transaction.producer_id,
            "producer_epoch": producer_epoch,
            "status": TransactionStatus.EMPTY,
            "timeout_ms": TIMEOUT_MS,
            "last_update_ms": transaction.last_update_ms,
            "client_version": 2,
            **changes,
        }
    )
    append(bench, CoordinatorRecord(record_key("t"), record_value(made, 1), 1))


def append(bench: Bench, record: CoordinatorRecord) -> None:
    from moldau.broker.coordinator.core.result import CoordinatorResult

    bench.runtime.call(0, lambda state, now_ms: CoordinatorResult(records=[record]))


# -- producers -------------------------------------------------------------------------------------


def test_each_producer_that_comes_has_a_higher_epoch_and_fences_the_one_before() -> None:
    bench = Bench()
    first = bench.init().answer.producer
    second = bench.init().answer.producer
    assert (first, second) == ((FIRST, 0), (FIRST, 1))
    assert bench.add("t", first, [P0]).answer.errors == {P0: ErrorCode.PRODUCER_FENCED}
    assert bench.add("t", second, [P0]).answer.errors == {P0: ErrorCode.NONE}


def test_a_producer_that_comes_back_goes_on_with_the_next_epoch() -> None:
    bench = Bench()
    first = bench.init().answer.producer
    back = bench.init(expected=first).answer
    assert back == (ErrorCode.NONE, (FIRST, 1), (-1, -1))


def test_a_producer_that_comes_back_again_as_it_has_no_answer_gets_the_same() -> None:
    bench = Bench()
    first = bench.init().answer.producer
    answers = [bench.init(expected=first).answer.producer for _ in range(3)]
    assert answers == [(FIRST, 1)] * 3


def test_a_repetition_is_not_known_any_more_once_another_producer_has_come() -> None:
    bench = Bench()
    first = bench.init().answer.producer
    bench.init(expected=first)
    bench.init()
    assert bench.init(expected=first).answer.error is ErrorCode.PRODUCER_FENCED


def test_what_was_remembered_of_an_append_that_failed_means_nothing() -> None:
    bench = Bench()
    first = bench.init().answer.producer
    bench.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert bench.init(expected=first).answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.log.append_error = ErrorCode.NONE
    assert bench.init().answer.producer == (FIRST, 1)
    assert bench.init(expected=first).answer.error is ErrorCode.PRODUCER_FENCED


def test_a_fenced_producer_that_comes_back_does_not_abort_its_successors_transaction() -> None:
    bench = Bench()
    zombie = bench.init().answer.producer
    bench.begin()
    assert bench.init(expected=zombie).answer.error is ErrorCode.PRODUCER_FENCED
    assert bench.status() is TransactionStatus.ONGOING


def test_a_new_producer_has_the_open_transaction_aborted_first() -> None:
    bench = Bench()
    old = bench.begin("t", P0, P1)
    assert bench.init().answer == InitProducerIdAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
    (command,) = bench.commands
    assert not command.is_commit
    assert command.producer == (FIRST, 1)
    assert command.remaining == {P0, P1}
    assert bench.init().answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.answer_markers()
    assert bench.init().answer.producer == (FIRST, 2)
    assert bench.end("t", old, is_commit=True).answer.error is ErrorCode.PRODUCER_FENCED


def test_without_a_producer_id_at_hand_a_new_id_has_to_wait() -> None:
    bench = Bench()
    bench.ids.is_available = False
    assert bench.init().answer.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert "t" not in bench.state.transactions


def test_when_the_epochs_are_used_up_the_next_producer_has_another_id() -> None:
    bench = Bench()
    bench.init()
    with_epoch(bench, LAST_CLIENT_EPOCH)
    assert bench.init(expected=LAST).answer.producer == (FIRST + 1, 0)
    # Its answer was lost:
    assert bench.init(expected=LAST).answer.producer == (FIRST + 1, 0)
    assert bench.init(expected=LAST._replace(producer_epoch=5)).answer.error is (
        ErrorCode.PRODUCER_FENCED
    )


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_that_is_not_allowed(timeout_ms: int) -> None:
    bench = Bench()
    assert bench.init(timeout_ms=timeout_ms).answer.error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert bench.init(timeout_ms=900_000).answer.error is ErrorCode.NONE


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_from_version_2_on_every_transaction_has_an_epoch_of_its_own(is_commit: bool) -> None:
    bench = Bench()
    producer = bench.begin("t", P0, P1)
    answer = bench.end("t", producer, is_commit=is_commit).answer
    assert answer == (ErrorCode.NONE, (FIRST, 1))
    (command,) = bench.commands
    assert (command.is_commit, command.producer) == (is_commit, (FIRST, 1))
    assert command.transaction_version == 2
    bench.answer_markers()
    assert bench.status().name == ("COMPLETE_COMMIT" if is_commit else "COMPLETE_ABORT")
    assert bench.transaction().partitions == frozenset()
    # The answer was lost:
    assert bench.end("t", producer, is_commit=is_commit).answer == answer
    assert bench.add("t", answer.producer, [P2]).answer.errors == {P2: ErrorCode.NONE}
    # And now it is too late for a repetition, which could be the next transaction's end.
    assert bench.end("t", producer, is_commit=is_commit).answer.error is ErrorCode.PRODUCER_FENCED


def test_below_version_2_the_epoch_stays() -> None:
    bench = Bench(version=1)
    producer = bench.init().answer.producer
    bench.add("t", producer, [P0], client_version=0)
    assert bench.end("t", producer, is_commit=True, client_version=0).answer == (0, producer)
    (command,) = bench.answer_markers()
    assert (command.producer, command.transaction_version) == (producer, 0)
    assert bench.transaction().own_producer == producer


@pytest.mark.parametrize("partition_count", [0, 1])
def test_an_abort_of_nothing_bumps_the_epoch_without_a_marker(partition_count: int) -> None:
    bench = Bench()
    producer = bench.init().answer.producer
    if partition_count:
        bench.add("t", producer, [P0])
        bench.end("t", producer, is_commit=True)
        bench.answer_markers()
        producer = ProducerIdAndEpoch(FIRST, 1)
    after = producer._replace(producer_epoch=producer.producer_epoch + 1)
    assert bench.end("t", producer, is_commit=False).answer == (ErrorCode.NONE, after)
    assert bench.status() is TransactionStatus.COMPLETE_ABORT
    assert bench.commands == []


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_end_that_uses_up_the_epochs_goes_on_with_another_producer_id(is_commit: bool) -> None:
    bench = Bench()
    bench.init()
    with_epoch(bench, LAST_CLIENT_EPOCH)
    bench.add("t", LAST, [P0])
    answer = bench.end("t", LAST, is_commit=is_commit).answer
    assert answer == (ErrorCode.NONE, (FIRST + 1, 0))
    assert bench.commands[0].producer == (FIRST, LAST_CLIENT_EPOCH + 1)
    assert bench.end("t", LAST, is_commit=is_commit).answer.error is (
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    bench.fail_over()
    bench.commands.pop(0)
    bench.answer_markers()
    assert bench.end("t", LAST, is_commit=is_commit).answer == answer
    bench.fail_over()
    assert bench.end("t", LAST, is_commit=is_commit).answer == answer
    assert bench.end("t", LAST, is_commit=not is_commit).answer.error is (
        ErrorCode.INVALID_TXN_STATE
    )


def test_without_a_producer_id_at_hand_the_last_epoch_cannot_be_ended_yet() -> None:
    bench = Bench()
    bench.init()
    with_epoch(bench, LAST_CLIENT_EPOCH)
    bench.add("t", LAST, [P0])
    bench.ids.is_available = False
    assert bench.end("t", LAST, is_commit=True).answer.error is (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    assert bench.status() is TransactionStatus.ONGOING
    bench.ids.is_available = True
    assert bench.end("t", LAST, is_commit=True).answer.error is ErrorCode.NONE


def test_an_outcome_is_told_only_when_it_is_committed_and_no_marker_goes_before() -> None:
    bench = Bench(is_committing_at_once=False)
    first = bench.init()
    assert not first.is_answered
    bench.commit()
    bench.add("t", first.answer.producer, [P0])
    bench.commit()
    ended = bench.end("t", first.answer.producer, is_commit=True)
    assert bench.status() is TransactionStatus.PREPARE_COMMIT
    assert (ended.is_answered, bench.commands) == (False, [])
    bench.commit()
    assert ended.answer.error is ErrorCode.NONE
    assert len(bench.commands) == 1


def test_what_is_told_of_an_uncommitted_change_waits_for_it() -> None:
    bench = Bench(is_committing_at_once=False)
    old = bench.init()
    bench.commit()
    bench.init()
    refused = bench.add("t", old.answer.producer, [P0])
    assert not refused.is_answered, "the one who fenced it may yet be forgotten"
    bench.fail_over(keep=bench.log.high_watermark)
    assert refused.answer.errors == {P0: ErrorCode.NOT_COORDINATOR}
    added = bench.add("t", old.answer.producer, [P0])
    bench.commit()
    assert added.answer.errors == {P0: ErrorCode.NONE}


@pytest.mark.parametrize(
    ("append_error", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_write_that_fails_changes_nothing(append_error: ErrorCode, told: ErrorCode) -> None:
    bench = Bench()
    producer = bench.begin()
    bench.log.append_error = append_error
    assert bench.end("t", producer, is_commit=True).answer.error is told
    assert bench.add("t", producer, [P1]).answer.errors == {P1: told}
    bench.log.append_error = ErrorCode.NONE
    assert bench.status() is TransactionStatus.ONGOING
    assert bench.end("t", producer, is_commit=True).answer.error is ErrorCode.NONE


def test_an_outcome_whose_client_has_waited_too_long_is_carried_out_all_the_same() -> None:
    bench = Bench(is_committing_at_once=False)
    first = bench.init()
    bench.commit()
    bench.add("t", first.answer.producer, [P0])
    ended = bench.end("t", first.answer.producer, is_commit=True)
    for _ in range(3):
        bench.advance(10_000)
    assert ended.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.commands == []
    bench.commit()
    assert [command.is_commit for command in bench.commands] == [True]


# -- markers ---------------------------------------------------------------------------------------


def test_it_is_complete_only_when_every_partition_has_answered() -> None:
    bench = Bench()
    producer = bench.begin("t", P0, P1, P2)
    bench.end("t", producer, is_commit=True)
    (command,) = bench.commands
    for partition in (P2, P0, P0, P2):
        bench.marker_written(command, [partition])
        assert bench.status() is TransactionStatus.PREPARE_COMMIT
    bench.marker_written(command, [P1])
    assert bench.status() is TransactionStatus.COMPLETE_COMMIT
    assert command.is_cancelled
    log_end = bench.log.log_end_offset
    bench.marker_written(command, [P1])
    assert bench.log.log_end_offset == log_end


def test_answers_to_an_earlier_ending_of_the_same_producer_do_not_count() -> None:
    bench = Bench(version=0)
    producer = bench.init().answer.producer
    for _ in range(2):
        bench.add("t", producer, [P0], client_version=0)
        bench.end("t", producer, is_commit=True, client_version=0)
    earlier = bench.commands.pop(0)
    bench.marker_written(earlier, [P0])
    bench.add("t", producer, [P0], client_version=0)
    bench.end("t", producer, is_commit=False, client_version=0)
    bench.marker_written(earlier, [P0])
    assert bench.status() is TransactionStatus.PREPARE_ABORT


def test_a_completion_that_cannot_be_written_is_tried_again() -> None:
    bench = Bench()
    producer = bench.begin()
    bench.end("t", producer, is_commit=True)
    bench.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    bench.answer_markers()
    bench.advance(1_000)
    assert bench.status() is TransactionStatus.PREPARE_COMMIT
    bench.log.append_error = ErrorCode.NONE
    bench.advance(1_000)
    assert bench.status() is TransactionStatus.COMPLETE_COMMIT


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_next_leader_goes_on_with_the_markers(is_commit: bool) -> None:
    bench = Bench()
    producer = bench.begin("t", P0, P1)
    bench.end("t", producer, is_commit=is_commit)
    (lost,) = bench.commands
    bench.marker_written(lost, [P0])
    bench.commands.clear()
    bench.fail_over()
    (command,) = bench.commands
    assert lost.is_cancelled
    assert command.remaining == {P0, P1}
    assert (command.is_commit, command.producer) == (is_commit, lost.producer)
    bench.marker_written(lost, [P1])
    assert bench.status().is_prepared, "the old leader's answers are not the new one's"
    bench.answer_markers()
    assert not bench.status().is_prepared


def test_the_next_leader_sends_no_marker_for_an_outcome_that_may_be_lost() -> None:
    bench = Bench(is_committing_at_once=False)
    first = bench.init()
    bench.commit()
    bench.add("t", first.answer.producer, [P0])
    bench.commit()
    bench.end("t", first.answer.producer, is_commit=True)
    bench.fail_over()
    assert bench.status() is TransactionStatus.PREPARE_COMMIT
    assert bench.commands == []
    bench.commit()
    assert len(bench.commands) == 1


# -- timeouts and expiry ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_transaction_that_has_had_its_time_is_aborted_and_its_producer_fenced(
    version: int,
) -> None:
    bench = Bench(version)
    client_version = 2 if version == 2 else 0
    producer = bench.init().answer.producer
    bench.add("t", producer, [P0], client_version)
    bench.advance(TIMEOUT_MS - 15_000)
    assert bench.commands == []
    bench.advance(30_000)
    (command,) = bench.commands
    assert (command.is_commit, command.producer) == (False, (FIRST, 1))
    bench.answer_markers()
    assert bench.status() is TransactionStatus.COMPLETE_ABORT
    assert bench.add("t", producer, [P0], client_version).answer.errors == {
        P0: ErrorCode.PRODUCER_FENCED
    }
    committed = bench.end("t", producer, is_commit=True, client_version=client_version).answer
    assert committed.error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED)
    # It may come back, as long as nobody else has come (KIP-588).
    if version == 2:
        assert bench.init(expected=producer).answer.producer == (FIRST, 1)


def test_many_that_have_had_their_time_are_aborted_in_pieces() -> None:
    bench = Bench()
    ids = [f"t{number}" for number in range(120)]
    for transactional_id in ids:
        bench.begin(transactional_id)
    bench.advance(TIMEOUT_MS + 11_000)
    assert len(bench.commands) == 120
    sizes = [next(iter(iter_batches(batch)))[1].last_offset_delta for batch in bench.log.batches]
    assert max(sizes) == 49


def test_an_abort_that_is_too_large_for_one_batch_goes_one_by_one() -> None:
    bench = Bench()
    for number in range(5):
        bench.begin(f"t{number}")
    bench.log.max_batch_bytes = 300
    bench.advance(TIMEOUT_MS + 11_000)
    bench.advance(20_000)
    assert len(bench.commands) == 5


def test_an_abort_that_cannot_be_written_is_tried_again() -> None:
    bench = Bench()
    bench.begin()
    bench.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    bench.advance(TIMEOUT_MS + 15_000)
    assert bench.status() is TransactionStatus.ONGOING
    bench.log.append_error = ErrorCode.NONE
    bench.advance(10_000)
    assert bench.status() is TransactionStatus.PREPARE_ABORT


def test_a_timed_out_transaction_of_the_last_epoch_waits_for_a_producer_id() -> None:
    bench = Bench()
    bench.init()
    with_epoch(bench, LAST_CLIENT_EPOCH)
    bench.add("t", LAST, [P0])
    bench.ids.is_available = False
    bench.advance(TIMEOUT_MS + 15_000)
    assert bench.status() is TransactionStatus.ONGOING
    bench.ids.is_available = True
    bench.advance(10_000)
    assert bench.transaction().producer_after_end == (FIRST + 1, 0)


def test_ids_without_a_transaction_are_forgotten_in_time() -> None:
    bench = Bench(abort_interval_ms=DAY_MS)
    bench.init("empty")
    done = bench.begin("done")
    bench.end("done", done, is_commit=True)
    bench.answer_markers()
    prepared = bench.begin("prepared")
    bench.end("prepared", prepared, is_commit=True)
    bench.advance(6 * DAY_MS)
    bench.init("late")
    bench.advance(DAY_MS + 3_700_000)
    assert set(bench.state.transactions) == {"prepared", "late"}
    tombstones = {name for name, value, _ in logged(bench) if value is None}
    assert tombstones == {"empty", "done"}
    bench.fail_over()
    assert set(bench.state.transactions) == {"prepared", "late"}


def test_many_ids_are_forgotten_in_pieces() -> None:
    bench = Bench(expiration_ms=1, expiry_interval_ms=1_000)
    for number in range(1_200):
        bench.init(f"t{number}")
    bench.advance(2_000)
    assert bench.state.transactions == {}
    deltas = [next(iter(iter_batches(batch)))[1].last_offset_delta for batch in bench.log.batches]
    assert max(deltas) == 499


# -- two-phase commit (KIP-939) --------------------------------------------------------------------


def two_phase_bench() -> Bench:
    """Days go by in these tests: timed-out transactions are looked for once a day."""
    return Bench(two_phase_commit_enabled=True, abort_interval_ms=DAY_MS)


def two_phase(bench: Bench, **options: object) -> InitProducerIdAnswer:
    answer: InitProducerIdAnswer = bench.init(enable_two_phase=True, **options).answer
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
    assert bench.add("t", crashed, [P0]).answer.errors == {P0: ErrorCode.PRODUCER_FENCED}
    assert bench.verify("t", crashed, [P0]).answer.errors == {P0: ErrorCode.PRODUCER_FENCED}
    assert bench.end("t", crashed, is_commit=True).answer.error is ErrorCode.PRODUCER_FENCED
    assert bench.add("t", kept.producer, [P2]).answer.errors == {P2: ErrorCode.INVALID_TXN_STATE}
    bench.advance(30 * DAY_MS)
    assert bench.status() is TransactionStatus.ONGOING
    answer = bench.end("t", kept.producer, is_commit=is_commit).answer
    assert answer == (ErrorCode.NONE, (FIRST, 2))
    (command,) = bench.commands
    assert (command.producer, command.remaining) == ((FIRST, 1), {P0, P1})
    assert command.is_commit is is_commit
    bench.answer_markers()
    assert bench.transaction().own_producer == (FIRST, 2)
    assert bench.end("t", kept.producer, is_commit=is_commit).answer == answer
    assert bench.add("t", answer.producer, [P2]).answer.errors == {P2: ErrorCode.NONE}


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
    assert bench.commands[0].producer == (FIRST, 1)


def test_a_kept_transaction_can_be_given_up_by_who_comes_without_keeping() -> None:
    bench = two_phase_bench()
    crashed = two_phase(bench).producer
    bench.add("t", crashed, [P0])
    kept = two_phase(bench, keep_prepared=True).producer
    assert two_phase(bench).error is ErrorCode.CONCURRENT_TRANSACTIONS
    (command,) = bench.answer_markers()
    assert (command.is_commit, command.producer) == (False, (FIRST, 1))
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
    assert answer == (ErrorCode.NONE, (FIRST + 1, 1))
    assert bench.commands[0].producer == (FIRST, LAST_CLIENT_EPOCH + 1)
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
    assert answer == (ErrorCode.NONE, (FIRST + 1, 0))
    bench.fail_over()
    assert bench.end("t", kept, is_commit=True).answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.commands.pop(0)
    bench.answer_markers()
    assert bench.end("t", kept, is_commit=True).answer == answer


# -- the log ---------------------------------------------------------------------------------------


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
        producer_id=7,
        producer_epoch=3,
        status=status,
        timeout_ms=5,
        last_update_ms=9,
        start_ms=8,
        partitions=frozenset() if status is TransactionStatus.EMPTY else frozenset({P0, P2}),
        previous_producer_id=6,
        next_producer_id=10,
        next_producer_epoch=11,
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
    transaction = Transaction("t", 7, 3, status, 5, 9, partitions=frozenset({P0}))
    made = {
        TransactionStatus.EMPTY: lambda: transaction.initialized(ProducerIdAndEpoch(7, 4), 5, 10),
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
        return state.list_transactions(lambda each: each.transactional_id == "a", caller, now_ms)

    bench.runtime.call(0, operation)  # type: ignore[arg-type]
    assert not caller.is_answered
    bench.commit()
    assert [each.transactional_id for each in caller.answer.transactions] == ["a"]
