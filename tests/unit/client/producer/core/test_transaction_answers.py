"""What the answers to a transactional producer's requests lead to, and batches that fail."""

from __future__ import annotations

import pytest

from moldau.client.producer.core.transaction_manager import (
    CoordinatorFeatures,
    Pause,
    Step,
    TransactionManager,
)
from moldau.client.producer.core.transaction_requests import (
    Destination,
    OffsetsCommit,
    RequestKind,
)
from moldau.client.producer.core.transaction_states import (
    LAST_PRODUCER_EPOCH,
    NO_PRODUCER,
    Problem,
    ProducerIdAndEpoch,
    TransactionState,
)
from moldau.client.records import ConsumerGroupMetadata as GroupMember
from moldau.client.records import OffsetAndMetadata as Position
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.p26_end_txn import EndTxnResponse
from moldau.protocol.types import TopicPartition
from tests.unit.client.producer.core.transaction_scripts import (
    SPOILED,
    answer,
    ask,
    in_state,
    in_transaction,
    initialized,
    settle,
)
from tests.unit.client.producer.core.transaction_world import producer_of, refused

S = TransactionState
K = RequestKind
A = TopicPartition("t", 0)
B = TopicPartition("t", 1)
PAIR = ProducerIdAndEpoch(7, 3)
NEXT_EPOCH = InitProducerIdResponse(producer_id=7, producer_epoch=4)
ABORT_OF_NOTHING = EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize(
    ("code", "is_known", "expected"),
    [
        (ErrorCode.CONCURRENT_TRANSACTIONS, False, Step(Pause.SHORT)),
        (ErrorCode.CONCURRENT_TRANSACTIONS, True, Step(Pause.BACK_OFF)),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False, Step(Pause.BACK_OFF)),
        (ErrorCode.NOT_COORDINATOR, False, Step(Pause.BACK_OFF, look_up=True)),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True, Step(Pause.BACK_OFF, look_up=True)),
    ],
)
def test_how_long_a_refusal_that_passes_is_waited_for(
    code: ErrorCode, is_known: bool, expected: Step
) -> None:
    """The transaction before is completed soon, unless this one has begun already."""
    manager = in_transaction(1)
    if is_known:
        manager.admit(B)
        answer(manager, K.ADD_PARTITIONS)
    manager.admit(A)
    asked = ask(manager, K.ADD_PARTITIONS)
    assert manager.answered(asked, refused(asked, code)) == expected
    assert ask(manager, K.ADD_PARTITIONS).partitions == (A,)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_answered", [False, True])
def test_offsets_make_the_transaction_known_as_partitions_do(
    version: int, is_answered: bool
) -> None:
    manager = in_transaction(version)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    asked = ask(manager, K.ADD_OFFSETS if version == 1 else K.COMMIT_OFFSETS)
    if is_answered:
        manager.answered(asked, refused(asked, ErrorCode.NONE))
    else:
        manager.unanswered(asked)
    manager.abort()
    settle(manager)
    answer(manager, K.END, ABORT_OF_NOTHING)
    if is_answered:
        assert manager.state is S.FATAL_ERROR, "something else has ended it"
    else:
        answer(manager, K.INITIALIZE, NEXT_EPOCH)
        assert manager.state is S.READY


def test_partitions_are_named_by_their_topics() -> None:
    manager = in_transaction(1)
    for each in (A, TopicPartition("u", 5), B):
        manager.admit(each)
    asked = ask(manager, K.ADD_PARTITIONS)
    request = asked.request
    assert (request.v3_and_below_transactional_id, producer_of(asked)) == ("tid", PAIR)
    named = [(each.name, each.partitions) for each in request.v3_and_below_topics]
    assert named == [("t", [0, 1]), ("u", [5])]


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize(("version", "versions"), [(1, (0, 4)), (2, (5, 5))])
def test_the_end_names_the_producer_and_the_outcome(
    version: int, versions: tuple[int, int], is_commit: bool
) -> None:
    manager = in_transaction(version)
    manager.admit(A)
    if version == 1:
        answer(manager, K.ADD_PARTITIONS)
    assert (manager.commit() if is_commit else manager.abort()) is None
    settle(manager)
    asked = ask(manager, K.END)
    assert (asked.request.transactional_id, asked.request.committed) == ("tid", is_commit)
    assert producer_of(asked) == PAIR
    assert (asked.lowest_version, asked.highest_version) == versions


def test_a_lost_answer_is_asked_for_again_elsewhere() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    asked = ask(manager, K.ADD_PARTITIONS)
    assert manager.unanswered(asked) == Step(Pause.BACK_OFF, look_up=True)
    assert ask(manager, K.ADD_PARTITIONS).partitions == (A,)


@pytest.mark.parametrize(
    ("code", "pause", "state"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, Pause.BACK_OFF, S.IN_TRANSACTION),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Pause.BACK_OFF, S.IN_TRANSACTION),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Pause.NONE, S.FATAL_ERROR),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Pause.NONE, S.ABORTABLE_ERROR),
    ],
)
def test_a_coordinator_that_cannot_be_reached(
    code: ErrorCode, pause: Pause, state: TransactionState
) -> None:
    manager = in_transaction(2)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    wanted = manager.next_ask()
    assert wanted is not None
    problem = Problem(code, "unreachable")
    assert manager.not_let_through(wanted, problem) is pause
    assert manager.state is state
    assert manager.problem == (None if pause is Pause.BACK_OFF else problem)


def test_a_producer_that_is_broken_off_is_of_no_use() -> None:
    manager = in_transaction(2)
    commit = manager.add_offsets(GroupMember("g"), {A: Position(1)})
    ask(manager, K.COMMIT_OFFSETS)
    manager.break_off(SPOILED)
    assert isinstance(commit, OffsetsCommit)
    assert commit.problem == manager.problem == SPOILED
    manager.break_off(Problem(ErrorCode.UNKNOWN_SERVER_ERROR, "later"))
    assert manager.problem == SPOILED, "the first reason stays"
    assert manager.next_ask() is None


@pytest.mark.parametrize(
    ("kind", "transactional_id", "text"),
    [
        (K.INITIALIZE, None, "get a producer id for the idempotent producer: CLUSTER_"),
        (K.INITIALIZE, "tid", "get a producer id for 'tid': CLUSTER_AUTHORIZATION_FAILED"),
        (K.ADD_PARTITIONS, "tid", "add partitions to the transaction (t-0) for 'tid': CLUSTER_"),
        (K.END, "tid", "end the transaction for 'tid': CLUSTER_AUTHORIZATION_FAILED: "),
    ],
)
def test_a_refusal_names_the_request_and_its_producer(
    kind: RequestKind, transactional_id: str | None, text: str
) -> None:
    manager = TransactionManager(transactional_id, 60_000)
    manager.initialize()
    if kind is not K.INITIALIZE:
        answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=3))
        manager.begin()
        manager.admit(A)
    if kind is K.END:
        answer(manager, K.ADD_PARTITIONS)
        manager.commit()
        settle(manager)
    asked = ask(manager, kind)
    manager.answered(asked, refused(asked, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert manager.problem is not None
    assert manager.problem.message.startswith(text)
    assert "ended the other way" not in manager.problem.message
    restarts = kind is K.INITIALIZE
    assert manager.state is (S.UNINITIALIZED if restarts else S.FATAL_ERROR)


def test_the_worst_of_several_errors_decides() -> None:
    """A partition that will come back does not hide one that never does."""
    for worst_first in (False, True):
        manager = in_transaction(1)
        for each in (A, B):
            manager.admit(each)
        asked = ask(manager, K.ADD_PARTITIONS)
        response = refused(asked, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        worst = response.results_by_topic_v3_and_below[0 if worst_first else 1]
        worst.results_by_partition[0].partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert manager.answered(asked, response) == Step()
        assert manager.state is S.ABORTABLE_ERROR
        assert manager.problem is not None
        assert f"({A if worst_first else B})" in manager.problem.message


def test_partitions_that_were_added_beside_a_refused_one_are_not_asked_for_again() -> None:
    manager = in_transaction(1)
    for each in (A, B):
        manager.admit(each)
    asked = ask(manager, K.ADD_PARTITIONS)
    response = refused(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    of_a = response.results_by_topic_v3_and_below[0].results_by_partition[0]
    of_a.partition_error_code = ErrorCode.NONE
    manager.answered(asked, response)
    assert manager.admit(A)
    assert not manager.admit(B)
    assert ask(manager, K.ADD_PARTITIONS).partitions == (B,)


@pytest.mark.parametrize(
    ("code", "is_known", "state"),
    [
        (ErrorCode.INVALID_TXN_STATE, False, S.ABORTING),
        (ErrorCode.INVALID_TXN_STATE, True, S.FATAL_ERROR),
        (ErrorCode.UNKNOWN_PRODUCER_ID, False, S.ABORTING),
        (ErrorCode.UNKNOWN_PRODUCER_ID, True, S.ABORTING),
        (ErrorCode.TRANSACTION_ABORTABLE, True, S.FATAL_ERROR),
        (ErrorCode.PRODUCER_FENCED, False, S.FATAL_ERROR),
    ],
)
def test_an_abort_that_is_refused(code: ErrorCode, is_known: bool, state: TransactionState) -> None:
    """What the coordinator has forgotten is aborted by another epoch; an abort has no abort."""
    manager = in_transaction(1)
    manager.admit(A)
    asked = ask(manager, K.ADD_PARTITIONS)
    if is_known:
        manager.answered(asked, refused(asked, ErrorCode.NONE))
    else:
        manager.unanswered(asked)
    manager.abort()
    settle(manager)
    answer(manager, K.END, EndTxnResponse(error_code=code))
    assert manager.state is state
    if state is S.ABORTING:
        assert producer_of(ask(manager, K.INITIALIZE)) == PAIR
    else:
        assert manager.problem is not None
        assert manager.problem.code is code


def test_a_commit_that_is_refused_may_leave_an_abort() -> None:
    manager = in_transaction(2)
    manager.admit(A)
    manager.commit()
    settle(manager)
    answer(manager, K.END, EndTxnResponse(error_code=ErrorCode.TRANSACTION_ABORTABLE))
    assert manager.state is S.ABORTABLE_ERROR
    assert manager.abort() is None


def test_version_1_keeps_its_epoch_whatever_the_answer_says() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.commit()
    settle(manager)
    answer(manager, K.END, EndTxnResponse(producer_id=8, producer_epoch=0))
    assert (manager.state, manager.producer) == (S.READY, PAIR)


def test_version_2_needs_no_other_epoch_than_the_one_of_the_answer() -> None:
    manager = in_transaction(2)
    manager.admit(A)
    manager.commit()
    manager.batches_settled(needs_new_epoch=True)
    answer(manager, K.END, EndTxnResponse(producer_id=7, producer_epoch=4))
    assert (manager.state, manager.producer) == (S.READY, ProducerIdAndEpoch(7, 4))


@pytest.mark.parametrize("call", ["commit", "abort"])
@pytest.mark.parametrize("init_version", [2, 3])
def test_left_out_numbers_need_a_broker_that_gives_another_epoch(
    init_version: int, call: str
) -> None:
    manager = in_transaction(1, init_version=init_version)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    getattr(manager, call)()
    manager.batches_settled(needs_new_epoch=True)
    answer(manager, K.END, EndTxnResponse())
    if init_version == 3:
        answer(manager, K.INITIALIZE, NEXT_EPOCH)
        assert (manager.state, manager.producer) == (S.READY, ProducerIdAndEpoch(7, 4))
        assert manager.untold_outcome is (call == "commit")
    else:
        assert manager.state is S.FATAL_ERROR
        assert manager.problem is not None
        assert manager.problem.code is ErrorCode.UNKNOWN_PRODUCER_ID


def test_numbers_left_out_while_records_still_come_are_remembered() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.batches_settled(needs_new_epoch=True)
    assert manager.state is S.IN_TRANSACTION
    manager.commit()
    assert manager.awaits_batches
    settle(manager)
    answer(manager, K.END, EndTxnResponse())
    answer(manager, K.INITIALIZE, NEXT_EPOCH)


@pytest.mark.parametrize("init_version", [2, 3])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("may_be_written", [False, True])
def test_what_a_failed_batch_leads_to(
    may_be_written: bool, version: int, init_version: int
) -> None:
    """One that may be in a log takes another epoch: version 2 gives one with every end."""
    manager = in_transaction(version, init_version=init_version)
    manager.admit(A)
    problem = Problem(ErrorCode.MESSAGE_TOO_LARGE, "large")
    manager.batch_failed(A, problem, may_be_written=may_be_written)
    is_fatal = may_be_written and version == 1 and init_version == 2
    assert manager.state is (S.FATAL_ERROR if is_fatal else S.ABORTABLE_ERROR)
    assert manager.problem is not None
    assert manager.problem.code is ErrorCode.MESSAGE_TOO_LARGE
    assert manager.problem.message.startswith("t-0: large")
    assert ("Apache Kafka 2.5" in manager.problem.message) == is_fatal


@pytest.mark.parametrize("state", [S.ABORTING, S.ABORTABLE_ERROR])
def test_a_batch_that_fails_later_changes_no_more_than_the_epoch(state: TransactionState) -> None:
    manager = in_state(state, version=1)
    before = manager.problem
    manager.batch_failed(A, Problem(ErrorCode.INVALID_RECORD, "late"), may_be_written=True)
    assert (manager.state, manager.problem) == (state, before)


def test_an_older_view_of_the_features_changes_nothing_and_an_equal_one_counts() -> None:
    for epoch, version in ((6, 1), (7, 2), (8, 2)):
        manager = initialized(1)
        manager.met_coordinator(CoordinatorFeatures(5, 7, 1))
        manager.met_coordinator(CoordinatorFeatures(5, epoch, 2))
        manager.begin()
        manager.commit()
        settle(manager)
        assert manager.transaction_version == version


def test_a_cluster_without_features_is_of_version_1() -> None:
    manager = TransactionManager("tid", 60_000)
    manager.initialize()
    manager.met_coordinator(CoordinatorFeatures(1, -1, 1))
    answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=3))
    assert manager.transaction_version == 1
    assert manager.highest_produce_version == 11


def test_an_upgrade_during_an_empty_transaction_needs_no_epoch() -> None:
    manager = in_transaction(1)
    manager.met_coordinator(CoordinatorFeatures(6, features_epoch=2, transaction_version=2))
    manager.commit()
    settle(manager)
    assert (manager.state, manager.is_version_2) == (S.READY, True)
    assert manager.next_ask() is None


def test_an_idempotent_producer_bumps_only_an_epoch_that_it_has() -> None:
    manager = TransactionManager(None, 60_000)
    manager.bump_epoch()
    assert (manager.state, manager.producer) == (S.UNINITIALIZED, NO_PRODUCER)
    assert not manager.admit(A)
    assert manager.state is S.INITIALIZING
    manager.bump_epoch()
    assert manager.producer == NO_PRODUCER
    asked = ask(manager, K.INITIALIZE)
    assert (asked.request.transactional_id, asked.request.keep_prepared_txn) == (None, False)
    assert asked.destination is Destination.ANY_BROKER
    manager.answered(asked, InitProducerIdResponse(producer_id=7, producer_epoch=3))
    manager.bump_epoch()
    assert (manager.state, manager.producer) == (S.READY, ProducerIdAndEpoch(7, 4))


def test_an_idempotent_producer_tries_again_with_the_next_batch() -> None:
    manager = TransactionManager(None, 60_000)
    manager.admit(A)
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    answer(manager, K.INITIALIZE, InitProducerIdResponse(error_code=code))
    assert (manager.state, manager.problem is None) == (S.UNINITIALIZED, False)
    assert not manager.admit(A)
    assert (manager.state, manager.problem) == (S.INITIALIZING, None)
    answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=3))
    assert manager.admit(A)


@pytest.mark.parametrize("state", [S.UNINITIALIZED, S.READY, S.ABORTING, S.ABORTABLE_ERROR])
def test_a_refused_record_concerns_only_a_transaction_that_takes_records(
    state: TransactionState,
) -> None:
    manager = in_state(state)
    problem = manager.problem
    manager.record_refused(Problem(ErrorCode.INVALID_RECORD, "another"))
    assert (manager.state, manager.problem) == (state, problem)


def test_a_transaction_may_be_handed_over_without_two_phase_commit() -> None:
    manager = in_transaction(2)
    assert manager.prepare() is not None
    assert manager.state is S.IN_TRANSACTION
    manager.admit(A)
    assert manager.prepare(is_handed_over=True) is None
    settle(manager)
    assert (manager.state, manager.prepared) == (S.PREPARED, PAIR)


def test_the_largest_pair_is_read() -> None:
    largest = ProducerIdAndEpoch(2**63 - 1, LAST_PRODUCER_EPOCH)
    assert ProducerIdAndEpoch.parse(f" {largest}\n") == largest
    assert ProducerIdAndEpoch.parse("0:0") == ProducerIdAndEpoch(0, 0)
    assert ProducerIdAndEpoch(0, 0).is_known
    assert not NO_PRODUCER.is_known


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (ErrorCode.INVALID_TXN_STATE, S.FATAL_ERROR),
        (ErrorCode.UNKNOWN_PRODUCER_ID, S.ABORTABLE_ERROR),
    ],
)
def test_a_commit_of_what_the_coordinator_does_not_have(
    code: ErrorCode, state: TransactionState
) -> None:
    """Its records are in no transaction, or in one that has been aborted: it is never taken for an
    abort that has nothing to do.
    """
    manager = in_transaction(2)
    manager.admit(A)
    manager.commit()
    settle(manager)
    answer(manager, K.END, EndTxnResponse(error_code=code))
    assert manager.state is state
    assert manager.problem is not None
    assert manager.problem.code is code
    has_ended = code is ErrorCode.INVALID_TXN_STATE
    assert ("ended the other way" in manager.problem.message) == has_ended
    assert manager.untold_outcome is None


def test_only_the_end_of_a_transaction_may_have_ended_the_other_way() -> None:
    manager = in_transaction(1)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    asked = ask(manager, K.ADD_OFFSETS)
    manager.answered(asked, refused(asked, ErrorCode.INVALID_TXN_STATE))
    assert manager.problem is not None
    assert "ended the other way" not in manager.problem.message


def test_an_end_that_names_no_pair_keeps_the_one_so_far() -> None:
    manager = in_transaction(2)
    manager.admit(A)
    manager.commit()
    settle(manager)
    answer(manager, K.END, EndTxnResponse())
    assert (manager.state, manager.producer) == (S.READY, PAIR)


def test_a_batch_that_fails_between_transactions_costs_the_next_one_no_epoch() -> None:
    manager = initialized(1)
    manager.batch_failed(A, Problem(ErrorCode.REQUEST_TIMED_OUT, "late"), may_be_written=True)
    assert manager.state is S.READY
    manager.begin()
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.commit()
    settle(manager)
    answer(manager, K.END, EndTxnResponse())
    assert (manager.state, manager.producer) == (S.READY, PAIR)


def test_a_prepared_transaction_that_has_ended_otherwise_is_no_empty_one() -> None:
    manager = TransactionManager("tid", 60_000, two_phase=True)
    manager.initialize(keep_prepared=True)
    ongoing = InitProducerIdResponse(
        producer_id=7, producer_epoch=9, ongoing_txn_producer_id=7, ongoing_txn_producer_epoch=3
    )
    answer(manager, K.INITIALIZE, ongoing)
    manager.abort()
    settle(manager)
    answer(manager, K.END, ABORT_OF_NOTHING)
    assert manager.state is S.FATAL_ERROR


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.CONCURRENT_TRANSACTIONS, Step(Pause.BACK_OFF)),
        (ErrorCode.NOT_COORDINATOR, Step(Pause.BACK_OFF, look_up=True)),
    ],
)
def test_an_end_that_is_refused_for_a_moment_is_asked_for_again(
    code: ErrorCode, expected: Step, is_commit: bool
) -> None:
    manager = in_transaction(1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    assert (manager.commit() if is_commit else manager.abort()) is None
    settle(manager)
    asked = ask(manager, K.END)
    assert manager.answered(asked, EndTxnResponse(error_code=code)) == expected
    assert ask(manager, K.END).request.committed is is_commit


def test_an_epoch_that_is_not_permitted_any_more_ends_the_producer() -> None:
    """Its transaction has ended, and the next one has no numbers."""
    manager = in_transaction(1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.commit()
    manager.batches_settled(needs_new_epoch=True)
    answer(manager, K.END, EndTxnResponse())
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    answer(manager, K.INITIALIZE, InitProducerIdResponse(error_code=code))
    assert manager.state is S.FATAL_ERROR
    assert manager.problem is not None
    assert manager.problem.code is code
