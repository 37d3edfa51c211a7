"""The state machine over time: epochs, repetitions, timeouts, expiry, loading."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.core.result import LAST_CLIENT_EPOCH, Producer
from moldau.broker.coordinator.transaction.core.state import ProducerAnswer
from moldau.broker.coordinator.transaction.core.transaction import TransactionStatus
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import iter_batches
from moldau.protocol.types import TopicPartition
from tests.unit.broker.coordinator.harness import HOUR_MS, SETTINGS
from tests.unit.broker.coordinator.transaction.bench import P0, P1, P2, TIMEOUT_MS, Bench
from tests.unit.broker.coordinator.transaction.records import (
    DAY_MS,
    FIRST,
    LAST,
    logged,
    with_epoch,
)

# -- producers -------------------------------------------------------------------------------------


def test_each_producer_that_comes_has_a_higher_epoch_and_fences_the_one_before() -> None:
    bench = Bench()
    first = bench.init().answer.producer
    second = bench.init().answer.producer
    assert (first, second) == ((FIRST, 0), (FIRST, 1))
    assert bench.add("t", first, [P0]).answer == {P0: ErrorCode.PRODUCER_FENCED}
    assert bench.add("t", second, [P0]).answer == {P0: ErrorCode.NONE}


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


def test_a_repetition_is_the_same_request_before_anything_else_has_happened() -> None:
    """Both sides count: as what the producer came, and that it still is what it went on as."""
    bench = Bench()
    first = bench.init().answer.producer
    back = bench.init(expected=first).answer.producer
    for stranger in (Producer(FIRST + 7, 0), Producer(FIRST, 7)):
        assert bench.init(expected=stranger).answer.error is ErrorCode.PRODUCER_FENCED
    bench.add("t", back, [P0])
    bench.end("t", back, is_commit=True)
    bench.answer_markers()
    assert bench.init(expected=first).answer.error is ErrorCode.PRODUCER_FENCED
    assert bench.transaction().producer == (FIRST, 2)


@pytest.mark.parametrize("version", [0, 2])
def test_a_repetition_is_not_known_any_more_once_the_transaction_was_timed_out(
    version: int,
) -> None:
    bench = Bench(version)
    first = bench.init().answer.producer
    back = bench.init(expected=first).answer.producer
    bench.add("t", back, [P0], client_version=version)
    bench.advance(TIMEOUT_MS + 15_000)
    assert bench.init(expected=first).answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
    bench.answer_markers()
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
    assert bench.init().answer == ProducerAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
    (command,) = bench.commands
    assert not command.is_commit
    assert command.transaction.producer == (FIRST, 1)
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
    for allowed_ms in (1, 900_000):
        assert bench.init(timeout_ms=allowed_ms).answer.error is ErrorCode.NONE


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_from_version_2_on_every_transaction_has_its_own_epoch(is_commit: bool) -> None:
    bench = Bench()
    producer = bench.begin("t", P0, P1)
    answer = bench.end("t", producer, is_commit=is_commit).answer
    assert answer[:2] == (ErrorCode.NONE, (FIRST, 1))
    (command,) = bench.commands
    assert (command.is_commit, command.transaction.producer) == (is_commit, (FIRST, 1))
    assert command.transaction.client_version == 2
    bench.answer_markers()
    assert bench.status().name == ("COMPLETE_COMMIT" if is_commit else "COMPLETE_ABORT")
    assert bench.transaction().partitions == frozenset()
    # The answer was lost:
    assert bench.end("t", producer, is_commit=is_commit).answer == answer
    assert bench.add("t", answer.producer, [P2]).answer == {P2: ErrorCode.NONE}
    # And now it is too late for a repetition, which could be the next transaction's end.
    assert bench.end("t", producer, is_commit=is_commit).answer.error is ErrorCode.PRODUCER_FENCED


def test_below_version_2_the_epoch_stays() -> None:
    bench = Bench(version=1)
    producer = bench.init().answer.producer
    bench.add("t", producer, [P0], client_version=0)
    assert bench.end("t", producer, is_commit=True, client_version=0).answer[:2] == (0, producer)
    (command,) = bench.answer_markers()
    assert (command.transaction.producer, command.transaction.client_version) == (producer, 0)
    assert bench.transaction().producer == producer


@pytest.mark.parametrize("partition_count", [0, 1])
def test_an_abort_of_nothing_bumps_the_epoch_without_a_marker(partition_count: int) -> None:
    bench = Bench()
    producer = bench.init().answer.producer
    if partition_count:
        bench.add("t", producer, [P0])
        bench.end("t", producer, is_commit=True)
        bench.answer_markers()
        producer = Producer(FIRST, 1)
    after = producer._replace(producer_epoch=producer.producer_epoch + 1)
    assert bench.end("t", producer, is_commit=False).answer[:2] == (ErrorCode.NONE, after)
    assert bench.status() is TransactionStatus.COMPLETE_ABORT
    assert bench.commands == []


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_end_that_uses_up_the_epochs_goes_on_with_another_producer_id(is_commit: bool) -> None:
    bench = Bench()
    bench.init()
    with_epoch(bench, LAST_CLIENT_EPOCH)
    bench.add("t", LAST, [P0])
    answer = bench.end("t", LAST, is_commit=is_commit).answer
    assert answer[:2] == (ErrorCode.NONE, (FIRST + 1, 0))
    assert bench.commands[0].transaction.producer == (FIRST, LAST_CLIENT_EPOCH + 1)
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


def test_what_begins_with_the_next_producer_id_names_it_as_the_one_before_too() -> None:
    bench = Bench()
    bench.init()
    with_epoch(bench, LAST_CLIENT_EPOCH)
    bench.add("t", LAST, [P0])
    following = bench.end("t", LAST, is_commit=True).answer.producer
    bench.answer_markers()
    assert logged(bench)[-1][1].previous_producer_id == FIRST
    bench.add("t", following, [P0])
    assert logged(bench)[-1][1].previous_producer_id == following.producer_id == FIRST + 1


@pytest.mark.parametrize("client_version", [0, 1])
def test_an_end_that_keeps_the_epoch_uses_up_no_producer_id(client_version: int) -> None:
    bench = Bench(version=1)
    producer = bench.init().answer.producer
    bench.add("t", producer, [P0], client_version)
    spare = bench.ids.spare
    ended = bench.end("t", producer, is_commit=True, client_version=client_version).answer
    assert ended[:2] == (ErrorCode.NONE, producer)
    assert bench.ids.spare == spare


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


def test_an_outcome_is_answered_only_when_it_is_committed_and_no_marker_goes_before() -> None:
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


def test_an_answer_about_an_uncommitted_change_waits_for_its_commit() -> None:
    bench = Bench(is_committing_at_once=False)
    old = bench.init()
    bench.commit()
    bench.init()
    refused = bench.add("t", old.answer.producer, [P0])
    assert not refused.is_answered, "the one who fenced it may yet be forgotten"
    bench.fail_over(keep=bench.log.high_watermark)
    assert refused.answer == {P0: ErrorCode.NOT_COORDINATOR}
    added = bench.add("t", old.answer.producer, [P0])
    bench.commit()
    assert added.answer == {P0: ErrorCode.NONE}


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
    assert bench.add("t", producer, [P1]).answer == {P1: told}
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
    assert (command.is_commit, command.transaction.producer) == (
        is_commit,
        lost.transaction.producer,
    )
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
    assert (command.is_commit, command.transaction.producer) == (False, (FIRST, 1))
    bench.answer_markers()
    assert bench.status() is TransactionStatus.COMPLETE_ABORT
    assert bench.add("t", producer, [P0], client_version).answer == {P0: ErrorCode.PRODUCER_FENCED}
    committed = bench.end("t", producer, is_commit=True, client_version=client_version).answer
    assert committed.error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED)
    # It may come back, as long as no other producer has come (KIP-588).
    if version == 2:
        assert bench.init(expected=producer).answer.producer == (FIRST, 1)


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_transaction_that_began_before_the_clock_went_back_has_no_more_time(
    fails_over: bool,
) -> None:
    bench = Bench()
    bench.broker.jump_wall_clock(HOUR_MS)
    producer = bench.begin()
    bench.broker.jump_wall_clock(-HOUR_MS)
    if fails_over:
        bench.fail_over()
    bench.advance(TIMEOUT_MS // 2)
    bench.add("t", producer, [P1])
    assert bench.status() is TransactionStatus.ONGOING
    bench.advance(TIMEOUT_MS // 2 + 20_000)
    assert bench.status() is TransactionStatus.PREPARE_ABORT


def test_a_clock_that_goes_back_for_a_while_costs_a_transaction_no_time() -> None:
    bench = Bench()
    bench.advance(7_000)
    bench.begin()
    bench.broker.jump_wall_clock(-HOUR_MS)
    bench.advance(TIMEOUT_MS // 2)
    bench.broker.jump_wall_clock(HOUR_MS)
    bench.advance(TIMEOUT_MS // 2)
    assert bench.status() is TransactionStatus.ONGOING
    bench.advance(20_000)
    assert bench.status() is TransactionStatus.PREPARE_ABORT


def test_many_that_have_had_their_time_are_aborted_in_pieces() -> None:
    bench = Bench()
    ids = [f"t{number}" for number in range(120)]
    for transactional_id in ids:
        bench.begin(transactional_id)
    bench.advance(TIMEOUT_MS + 11_000)
    assert len(bench.commands) == 120
    sizes = [next(iter(iter_batches(batch)))[1].last_offset_delta for batch in bench.log.batches]
    assert max(sizes) == 49


def test_aborts_that_are_too_large_for_one_batch_go_in_several() -> None:
    bench = Bench()
    for number in range(5):
        bench.begin(f"t{number}")
    begun_count = len(bench.log.batches)
    bench.log.max_batch_bytes = 300
    bench.advance(TIMEOUT_MS + 11_000)
    assert len(bench.commands) == 5
    aborts = bench.log.batches[begun_count:]
    assert len(aborts) > 1
    assert max(map(len, aborts)) <= 300


def test_an_abort_that_no_batch_can_hold_holds_up_no_other() -> None:
    bench = Bench()
    for number in range(60):
        bench.begin(f"blocked{number}", *(TopicPartition("outputs", n) for n in range(100)))
        bench.begin(f"t{number}")
    bench.log.max_batch_bytes = 400
    bench.advance(TIMEOUT_MS + 15_000)
    assert sorted(command.transaction.transactional_id for command in bench.commands) == sorted(
        f"t{number}" for number in range(60)
    )
    # As soon as it fits, it is aborted too.
    bench.log.max_batch_bytes = 1_000_000
    bench.advance(15_000)
    assert len(bench.commands) == 120


def test_aborts_whose_second_batch_is_refused_are_carried_out_as_far_as_they_are_written() -> None:
    bench = Bench()
    for number in range(5):
        bench.begin(f"t{number}")
    bench.log.max_batch_bytes = 300
    bench.log.refuse_after(1, ErrorCode.NOT_ENOUGH_REPLICAS)
    bench.advance(TIMEOUT_MS + 15_000)
    aborted = {command.transaction.transactional_id for command in bench.commands}
    assert 0 < len(aborted) < 5
    bench.log.append_error = ErrorCode.NONE
    bench.advance(10_000)
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


def test_no_marker_is_sent_before_its_own_abort_is_committed() -> None:
    """A round whose records were refused waits for nothing that the next round writes."""
    bench = Bench(abort_interval_ms=100)
    bench.begin()
    bench.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    bench.advance(TIMEOUT_MS)
    bench.log.append_error = ErrorCode.NONE
    bench.log.is_committing_at_once = False
    bench.init("other")
    before_abort = bench.log.log_end_offset
    bench.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    bench.advance(200)
    bench.log.append_error = ErrorCode.NONE
    bench.advance(100)
    assert bench.status() is TransactionStatus.PREPARE_ABORT
    bench.log.commit(before_abort)
    assert bench.commands == []
    bench.commit()
    assert [command.transaction.transactional_id for command in bench.commands] == ["t"]


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


def test_an_abort_that_no_batch_can_hold_leaves_producer_ids_to_others() -> None:
    """All are of the last epoch, and there is one producer id for each round."""
    bench = Bench()
    bench.init()
    ids = ["t", "short1", "short2"]
    for transactional_id in ids:
        count = 100 if transactional_id == "t" else 1
        with_epoch(
            bench,
            LAST_CLIENT_EPOCH,
            transactional_id=transactional_id,
            status=TransactionStatus.ONGOING,
            start_ms=0,
            partitions=frozenset(TopicPartition("outputs", index) for index in range(count)),
        )
    bench.log.max_batch_bytes = 400
    bench.ids.is_scarce = True
    bench.advance(TIMEOUT_MS)
    for _ in range(4):
        bench.ids.is_available = True
        bench.advance(10_000)
    assert {command.transaction.transactional_id for command in bench.commands} == {
        "short1",
        "short2",
    }
    assert bench.status() is TransactionStatus.ONGOING


BEYOND = LAST._replace(producer_epoch=LAST_CLIENT_EPOCH + 1)
"""The pair of the markers that fence LAST: no client is given it."""


@pytest.mark.parametrize("version", [1, 2])
def test_the_epoch_of_the_last_markers_is_no_clients(version: int) -> None:
    bench = Bench(version)
    bench.init()
    with_epoch(bench, LAST_CLIENT_EPOCH + 1, client_version=0)
    fenced = ErrorCode.PRODUCER_FENCED
    assert bench.add("t", BEYOND, [P0], client_version=version).answer == {P0: fenced}
    assert bench.verify("t", BEYOND, [P0]).answer == {P0: fenced}
    for client_version in (0, version):
        ended = bench.end("t", BEYOND, is_commit=False, client_version=client_version)
        assert ended.answer.error is fenced
    assert bench.init(expected=BEYOND).answer.error is fenced
    assert bench.init().answer.producer == (FIRST + 1, 0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_transaction_that_was_fenced_with_the_last_epoch_begins_no_more(version: int) -> None:
    bench = Bench(version)
    bench.init()
    with_epoch(bench, LAST_CLIENT_EPOCH, client_version=0)
    bench.add("t", LAST, [P0], client_version=min(version, 1))
    assert bench.init().answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
    (command,) = bench.answer_markers()
    assert command.transaction.producer == BEYOND
    added = bench.add("t", BEYOND, [P0], client_version=min(version, 1)).answer
    assert ErrorCode.NONE not in added.values()
    assert bench.init().answer.producer[0] != FIRST


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_transaction_above_the_last_epoch_is_timed_out_as_the_others_are(
    version: int, is_kept: bool
) -> None:
    """Another coordinator has let it begin. No epoch is above it: its markers have its own."""
    bench = Bench(version)
    bench.begin("other")
    bench.init()
    beyond = BEYOND._replace(producer_id=FIRST + 1)
    kept = {"next_producer": Producer(FIRST + 9, 3)} if is_kept else {}
    with_epoch(
        bench,
        LAST_CLIENT_EPOCH + 1,
        status=TransactionStatus.ONGOING,
        start_ms=0,
        partitions=frozenset([P1]),
        client_version=min(version, 1),
        **kept,
    )
    bench.advance(TIMEOUT_MS + 15_000)
    commands = {command.transaction.transactional_id: command for command in bench.answer_markers()}
    assert set(commands) == {"t", "other"}
    assert commands["t"].transaction.producer == beyond
    assert commands["t"].transaction.client_version < 2, "from 2 on a marker's epoch is above"
    assert not bench.state.transactions["t"].status.is_prepared
    assert bench.init().answer.producer != beyond


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


def test_ids_with_long_names_are_forgotten_too() -> None:
    """500 tombstones of them are more than a batch holds."""
    bench = Bench(expiration_ms=1, expiry_interval_ms=1_000)
    for number in range(100):
        bench.init(f"{number:03}{'ü' * 16_000}")
    bench.init("short")
    begun_count = len(bench.log.batches)
    bench.advance(1_100)
    assert bench.state.transactions == {}
    assert max(map(len, bench.log.batches[begun_count:])) < 500_000, "not all in one turn"


def test_an_id_that_no_batch_can_hold_holds_up_no_other() -> None:
    bench = Bench(expiration_ms=1, expiry_interval_ms=1_000)
    for number in range(600):
        bench.init(f"{number:03}{'x' * 500}")
    for number in range(600):
        bench.init(f"t{number}")
    bench.log.max_batch_bytes = 400
    bench.advance(1_100)
    assert len(bench.state.transactions) == 600
    assert "t0" not in bench.state.transactions
    appended = bench.log.log_end_offset
    bench.advance(900)
    assert bench.log.log_end_offset == appended, "until the next round"


def test_many_ids_are_forgotten_in_pieces() -> None:
    bench = Bench(expiration_ms=1, expiry_interval_ms=1_000)
    for number in range(1_200):
        bench.init(f"t{number}")
    bench.advance(2_000)
    assert bench.state.transactions == {}
    deltas = [next(iter(iter_batches(batch)))[1].last_offset_delta for batch in bench.log.batches]
    assert max(deltas) == 499


# -- a former coordinator --------------------------------------------------------------------------


def committed_once(bench: Bench) -> Producer:
    """A producer of version 2 whose transaction is complete, as everything that is committed."""
    caller = bench.init()
    bench.commit()
    producer = caller.answer.producer
    bench.add("t", producer, [P0])
    bench.end("t", producer, is_commit=True)
    bench.commit()
    bench.answer_markers()
    bench.commit()
    assert bench.status() is TransactionStatus.COMPLETE_COMMIT
    return Producer(*bench.transaction().client_producer)


def test_a_former_coordinator_refuses_nothing_for_good() -> None:
    """What its successor has begun is nothing that it knows; it is about to hear of it."""
    bench = Bench(is_committing_at_once=False)
    producer = committed_once(bench)
    stranger = Producer(producer.producer_id, producer.producer_epoch + 1)
    ended = bench.end("t", producer, is_commit=True)
    back = bench.init(expected=stranger)
    added = bench.add("t", stranger, [P0])
    verified = bench.verify("t", producer, [P0])
    callers = (ended, back, added, verified)
    assert not any(caller.is_answered for caller in callers)
    bench.broker.depose()
    moved = ErrorCode.NOT_COORDINATOR
    assert (ended.answer.error, back.answer.error) == (moved, moved)
    assert added.answer == verified.answer == {P0: moved}


def test_one_commit_is_the_proof_for_all_refusals_before_it() -> None:
    bench = Bench(is_committing_at_once=False)
    producer = committed_once(bench)
    end_offset = bench.log.log_end_offset
    first = bench.end("t", producer, is_commit=True)
    later = [bench.end("t", producer, is_commit=True) for _ in range(20)]
    assert bench.log.log_end_offset == end_offset + 1
    bench.commit()
    # A follower may have had that record before it became the leader, and the others came then.
    assert first.answer.error is ErrorCode.INVALID_TXN_STATE
    assert not any(caller.is_answered for caller in later)
    assert bench.log.log_end_offset == end_offset + 2
    bench.commit()
    assert {caller.answer.error for caller in later} == {ErrorCode.INVALID_TXN_STATE}
    assert bench.log.log_end_offset == end_offset + 2


def test_a_coordinator_that_cannot_write_refuses_nothing_for_good() -> None:
    bench = Bench(is_committing_at_once=False)
    producer = committed_once(bench)
    bench.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    refused = bench.end("t", producer, is_commit=True)
    assert refused.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.log.append_error = ErrorCode.NONE
    waiting = [bench.end("t", producer, is_commit=True) for _ in range(2)]
    bench.advance(SETTINGS.write_timeout_ms)
    bench.commit()
    bench.broker.settle()
    assert waiting[0].answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert waiting[1].answer.error is ErrorCode.INVALID_TXN_STATE


def test_advice_to_try_again_needs_no_proof() -> None:
    bench = Bench(is_committing_at_once=False)
    producer = committed_once(bench)
    bench.add("t", producer, [P0])
    bench.end("t", producer, is_commit=True)
    bench.commit()
    end_offset = bench.log.log_end_offset
    busy = bench.end("t", producer, is_commit=False)
    assert busy.answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.log.log_end_offset == end_offset
