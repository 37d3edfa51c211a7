"""Scripts for the transaction manager: what is asked in which order, and what errors lead to."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.client.producer.core.transaction_manager import (
    MAX_WAITING_COMMITS,
    CoordinatorFeatures,
    Pause,
    Step,
    TransactionManager,
)
from moldau.client.producer.core.transaction_requests import (
    FIRST_END_IN_VERSION_2,
    MAX_PARTITIONS_PER_REQUEST,
    OffsetsCommit,
    RequestKind,
    Verdict,
    verdict_of,
)
from moldau.client.producer.core.transaction_states import (
    LAST_PRODUCER_EPOCH,
    NO_PRODUCER,
    TRANSITIONS,
    Problem,
    ProducerIdAndEpoch,
    TransactionState,
)
from moldau.client.records import ConsumerGroupMetadata as GroupMember
from moldau.client.records import OffsetAndMetadata as Position
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p28_txn_offset_commit as committing
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.p26_end_txn import EndTxnResponse
from moldau.protocol.types import TopicPartition
from tests.unit.client.producer.core.transaction_scripts import (
    answer,
    ask,
    in_transaction,
    initialized,
    meet,
    settle,
)
from tests.unit.client.producer.core.transaction_world import producer_of, refused

S = TransactionState
K = RequestKind
A = TopicPartition("t", 0)
B = TopicPartition("t", 1)
NONE = ErrorCode.NONE
PAIR = ProducerIdAndEpoch(7, 3)
TIME_LIMIT = "transaction.timeout.ms"


def test_every_code_has_a_verdict_for_every_request() -> None:
    for kind in RequestKind:
        for code in ErrorCode:
            verdict = verdict_of(kind, code)
            if kind is not K.PRODUCE and code.retriable:
                assert verdict.is_passing, (kind, code)
    assert verdict_of(K.PRODUCE, ErrorCode.REQUEST_TIMED_OUT) is Verdict.ABORT


def test_no_transition_leads_out_of_a_fatal_error() -> None:
    assert set(TRANSITIONS) == set(S)
    assert not TRANSITIONS[S.FATAL_ERROR]


def test_version_1_adds_partitions_before_they_are_written() -> None:
    manager = in_transaction(1)
    assert manager.highest_produce_version == 11
    assert not manager.admit(A)
    assert not manager.admit(B)
    asked = ask(manager, K.ADD_PARTITIONS)
    assert asked.partitions == (A, B)
    assert asked.highest_version == 3
    manager.answered(asked, refused(asked, NONE))
    assert manager.admit(A)
    manager.commit()
    assert manager.admit(B), "the batches before the commit still go out"
    assert manager.next_ask() is None
    settle(manager)
    end = ask(manager, K.END)
    assert (end.lowest_version, end.highest_version) == (0, 4)
    manager.answered(end, EndTxnResponse())
    assert (manager.state, manager.producer) == (S.READY, PAIR)
    assert manager.untold_outcome is True


def test_version_2_asks_for_the_end_only_and_goes_on_with_the_answered_epoch() -> None:
    manager = in_transaction(2)
    assert manager.highest_produce_version is None
    assert manager.admit(A)
    assert manager.next_ask() is None
    manager.commit()
    settle(manager)
    end = ask(manager, K.END)
    assert end.lowest_version == 5
    manager.answered(end, EndTxnResponse(producer_id=8, producer_epoch=0))
    assert manager.producer == ProducerIdAndEpoch(8, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_an_empty_transaction_asks_no_coordinator(version: int) -> None:
    manager = in_transaction(version)
    manager.commit()
    settle(manager)
    assert (manager.state, manager.untold_outcome) == (S.READY, True)
    manager.begin()
    manager.abort()
    settle(manager)
    assert (manager.state, manager.untold_outcome) == (S.READY, False)


def test_many_partitions_are_added_in_several_requests() -> None:
    manager = in_transaction(1)
    for index in range(MAX_PARTITIONS_PER_REQUEST + 1):
        manager.admit(TopicPartition("t", index))
    answer(manager, K.ADD_PARTITIONS)
    assert len(ask(manager, K.ADD_PARTITIONS).partitions) == 1


def test_offsets_of_version_1_need_their_group_added_once() -> None:
    manager = in_transaction(1)
    member = GroupMember("g", 4, "m")
    for offset in (1, 2):
        commit = manager.add_offsets(member, {A: Position(offset)})
        assert isinstance(commit, OffsetsCommit)
        if offset == 1:
            answer(manager, K.ADD_OFFSETS)
        asked = ask(manager, K.COMMIT_OFFSETS)
        assert (asked.lowest_version, asked.highest_version) == (3, 4)
        manager.answered(asked, refused(asked, NONE))
        assert commit.is_done


def test_old_brokers_take_offsets_only_of_a_producer_that_is_no_member() -> None:
    manager = in_transaction(1)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    answer(manager, K.ADD_OFFSETS)
    asked = ask(manager, K.COMMIT_OFFSETS)
    assert asked.lowest_version == 0


def test_only_the_offsets_that_were_not_taken_are_sent_again() -> None:
    manager = in_transaction(2)
    commit = manager.add_offsets(GroupMember("g"), {A: Position(1), B: Position(2)})
    assert isinstance(commit, OffsetsCommit)
    asked = ask(manager, K.COMMIT_OFFSETS)
    response = refused(asked, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    response.topics[0].partitions[0].error_code = NONE
    assert manager.answered(asked, response).pause is not Pause.NONE
    again = ask(manager, K.COMMIT_OFFSETS)
    assert again.partitions == (B,)
    manager.answered(again, refused(again, NONE))
    assert commit.is_done


def test_a_commit_waits_for_offsets_whose_caller_has_gone() -> None:
    manager = in_transaction(2)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    manager.commit()
    settle(manager)
    answer(manager, K.COMMIT_OFFSETS)
    answer(manager, K.END, EndTxnResponse(producer_id=7, producer_epoch=4))
    assert manager.state is S.READY


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
def test_a_group_that_has_moved_on_makes_the_transaction_abortable(code: ErrorCode) -> None:
    manager = in_transaction(2)
    commit = manager.add_offsets(GroupMember("g", 1, "m"), {A: Position(1)})
    assert isinstance(commit, OffsetsCommit)
    asked = ask(manager, K.COMMIT_OFFSETS)
    manager.answered(asked, refused(asked, code))
    assert manager.state is S.ABORTABLE_ERROR
    assert commit.problem is not None
    assert commit.problem.code is code
    problem = manager.commit()
    assert problem is not None
    assert problem.code is code
    assert manager.abort() is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
@pytest.mark.parametrize("kind", [K.ADD_PARTITIONS, K.ADD_OFFSETS, K.COMMIT_OFFSETS, K.END])
def test_fencing_is_fatal(kind: RequestKind, code: ErrorCode) -> None:
    manager = in_transaction(1)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    if kind is K.ADD_PARTITIONS:
        manager.admit(A)
    elif kind is not K.ADD_OFFSETS:
        answer(manager, K.ADD_OFFSETS)
    if kind is K.END:
        answer(manager, K.COMMIT_OFFSETS)
        manager.commit()
        settle(manager)
    asked = ask(manager, kind)
    manager.answered(asked, refused(asked, code))
    assert manager.state is S.FATAL_ERROR
    for call in (manager.begin, manager.commit, manager.abort):
        problem = call()
        assert problem is not None
        assert problem.code is code
    assert manager.next_ask() is None
    assert not manager.admit(A)


@pytest.mark.parametrize("is_commit", [True, False])
def test_another_producer_id_fences_the_producer_of_a_prepared_transaction(is_commit: bool) -> None:
    """Its successor has ended it and used up the epochs: it can neither be aborted nor gone on."""
    manager = in_transaction(2, two_phase=True)
    manager.admit(A)
    manager.prepare()
    settle(manager)
    assert (manager.commit() if is_commit else manager.abort()) is None
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    answer(manager, K.END, EndTxnResponse(error_code=code))
    assert manager.state is S.FATAL_ERROR
    assert manager.problem is not None
    assert manager.problem.code is code
    assert manager.next_ask() is None


def test_partitions_left_out_beside_one_that_does_not_exist_yet_are_added_later() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    manager.admit(B)
    asked = ask(manager, K.ADD_PARTITIONS)
    response = refused(asked, ErrorCode.OPERATION_NOT_ATTEMPTED)
    of_a = response.results_by_topic_v3_and_below[0].results_by_partition[0]
    of_a.partition_error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert manager.answered(asked, response) == Step(Pause.BACK_OFF)
    assert manager.state is S.IN_TRANSACTION
    answer(manager, K.ADD_PARTITIONS)
    assert manager.admit(A)
    assert manager.admit(B)


def test_not_attempted_is_never_raised_as_the_cause() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    manager.admit(B)
    asked = ask(manager, K.ADD_PARTITIONS)
    response = refused(asked, ErrorCode.OPERATION_NOT_ATTEMPTED)
    response.results_by_topic_v3_and_below[1].results_by_partition[
        0
    ].partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    manager.answered(asked, response)
    assert manager.problem is not None
    assert manager.problem.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_the_end_is_asked_again_as_the_same_producer_until_it_is_answered() -> None:
    manager = in_transaction(2)
    manager.admit(A)
    manager.commit()
    settle(manager)
    for _ in range(3):
        asked = ask(manager, K.END)
        assert (producer_of(asked), asked.request.committed) == (PAIR, True)
        assert manager.unanswered(asked).look_up
    problem = manager.abort()
    assert problem is not None, "it may have been committed"
    answer(manager, K.END, EndTxnResponse(producer_id=7, producer_epoch=4))
    assert manager.untold_outcome is True


def test_a_commit_that_has_not_been_asked_for_may_become_an_abort() -> None:
    manager = in_transaction(2)
    manager.admit(A)
    manager.commit()
    assert manager.abort() is None
    settle(manager)
    assert ask(manager, K.END).request.committed is False


@pytest.mark.parametrize("call", ["commit", "prepare"])
def test_a_record_without_a_batch_spoils_the_transaction_until_all_are_settled(call: str) -> None:
    problem = Problem(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "held in vain")
    manager = in_transaction(2, two_phase=True)
    manager.admit(A)
    getattr(manager, call)()
    manager.record_refused(problem)
    assert (manager.state, manager.problem) == (S.ABORTABLE_ERROR, problem)
    manager.abort()
    settle(manager)
    answer(manager, K.END, EndTxnResponse(producer_id=7, producer_epoch=4))
    manager.begin()
    manager.admit(A)
    getattr(manager, call)()
    settle(manager)
    state = manager.state
    manager.record_refused(problem)
    assert (manager.state, manager.problem) == (state, None)


def test_version_1_bumps_its_epoch_after_a_batch_of_unknown_fate() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.batch_failed(A, Problem(ErrorCode.REQUEST_TIMED_OUT, ""), may_be_written=True)
    manager.abort()
    settle(manager)
    answer(manager, K.END, EndTxnResponse())
    assert manager.state is S.ABORTING
    asked = ask(manager, K.INITIALIZE)
    assert (producer_of(asked), asked.lowest_version) == (PAIR, 3)
    manager.answered(asked, InitProducerIdResponse(producer_id=7, producer_epoch=4))
    assert (manager.state, manager.producer) == (S.READY, ProducerIdAndEpoch(7, 4))


def test_brokers_that_cannot_bump_an_epoch_make_that_fatal() -> None:
    manager = in_transaction(1, init_version=1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.batch_failed(A, Problem(ErrorCode.REQUEST_TIMED_OUT, ""), may_be_written=True)
    assert manager.state is S.FATAL_ERROR


def test_an_answer_behind_a_fatal_error_leads_to_nothing() -> None:
    manager = in_transaction(1, init_version=1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.admit(B)
    asked = ask(manager, K.ADD_PARTITIONS)
    manager.batch_failed(A, Problem(ErrorCode.REQUEST_TIMED_OUT, ""), may_be_written=True)
    assert manager.state is S.FATAL_ERROR
    assert manager.answered(asked, refused(asked, ErrorCode.CONCURRENT_TRANSACTIONS)) == Step()
    assert manager.state is S.FATAL_ERROR


def test_an_abort_of_what_the_coordinator_never_heard_of_ends_in_a_new_epoch() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    manager.unanswered(ask(manager, K.ADD_PARTITIONS))
    manager.abort()
    settle(manager)
    answer(manager, K.END, EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE))
    answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=4))
    assert manager.state is S.READY


def test_an_abort_of_what_another_producer_has_committed_is_fatal() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.abort()
    settle(manager)
    answer(manager, K.END, EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE))
    assert manager.state is S.FATAL_ERROR
    assert manager.problem is not None
    assert manager.problem.message.endswith("; it has ended the other way, as after " + TIME_LIMIT)


def test_an_upgraded_cluster_is_followed_after_the_transaction_with_a_new_epoch() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.met_coordinator(CoordinatorFeatures(6, features_epoch=2, transaction_version=2))
    assert not manager.is_version_2
    manager.commit()
    settle(manager)
    answer(manager, K.END, EndTxnResponse())
    answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=4))
    assert (manager.state, manager.is_version_2) == (S.READY, True)
    manager.met_coordinator(CoordinatorFeatures(6, features_epoch=1, transaction_version=1))
    manager.begin()
    manager.commit()
    settle(manager)
    assert manager.is_version_2, "an older view of the features changes nothing"


def test_a_refusal_to_initialize_may_be_followed_by_another_try() -> None:
    manager = TransactionManager("tid", 60_000)
    manager.initialize()
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    answer(manager, K.INITIALIZE, InitProducerIdResponse(error_code=code))
    assert manager.state is S.UNINITIALIZED
    assert manager.problem is not None
    assert manager.initialize() is None


@pytest.mark.parametrize("level", [1, 2])
def test_a_prepared_transaction_is_taken_over_and_ended_by_the_new_pair(level: int) -> None:
    """The rules of version 2 hold, also when the coordinator was met before the cluster was
    reached.
    """
    manager = TransactionManager("tid", 60_000, two_phase=True)
    manager.initialize(keep_prepared=True)
    meet(manager, level)
    asked = ask(manager, K.INITIALIZE)
    assert asked.lowest_version == 6
    manager.answered(
        asked,
        InitProducerIdResponse(
            producer_id=7,
            producer_epoch=9,
            ongoing_txn_producer_id=7,
            ongoing_txn_producer_epoch=3,
        ),
    )
    assert (manager.state, manager.prepared) == (S.PREPARED, PAIR)
    assert manager.refusal is not None
    manager.commit()
    end = ask(manager, K.END)
    assert producer_of(end) == ProducerIdAndEpoch(7, 9)
    assert end.lowest_version == FIRST_END_IN_VERSION_2
    manager.answered(end, EndTxnResponse(producer_id=7, producer_epoch=10))
    assert manager.producer == ProducerIdAndEpoch(7, 10)
    assert (manager.state, manager.untold_outcome) == (S.READY, True)


def test_a_transaction_is_prepared_when_everything_is_settled() -> None:
    manager = in_transaction(2, two_phase=True)
    manager.admit(A)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    assert manager.prepare() is None
    settle(manager)
    assert manager.state is S.PREPARING
    answer(manager, K.COMMIT_OFFSETS)
    assert (manager.state, manager.prepared) == (S.PREPARED, PAIR)
    assert manager.next_ask() is None
    manager.abort()
    assert ask(manager, K.END).request.committed is False


def test_prepare_needs_two_phase_commit() -> None:
    problem = in_transaction(2).prepare()
    assert problem is not None
    assert "transaction.two.phase.commit.enable" in problem.message


def test_an_idempotent_producer_asks_any_broker_and_counts_its_epochs_itself() -> None:
    manager = TransactionManager(None, 60_000)
    assert manager.refusal is None
    assert not manager.admit(A)
    answer(
        manager,
        K.INITIALIZE,
        InitProducerIdResponse(producer_id=7, producer_epoch=LAST_PRODUCER_EPOCH - 1),
    )
    assert manager.admit(A)
    manager.bump_epoch()
    assert manager.producer == ProducerIdAndEpoch(7, LAST_PRODUCER_EPOCH)
    manager.bump_epoch()
    assert (manager.producer, manager.state) == (NO_PRODUCER, S.INITIALIZING)
    asked = ask(manager, K.INITIALIZE)
    assert not producer_of(asked).is_known
    manager.answered(asked, InitProducerIdResponse(producer_id=8, producer_epoch=0))
    assert manager.admit(A)


def test_a_batch_that_an_idempotent_producer_loses_harms_no_other() -> None:
    manager = TransactionManager(None, 60_000)
    manager.initialize()
    answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=0))
    manager.batch_failed(A, Problem(ErrorCode.MESSAGE_TOO_LARGE, ""), may_be_written=False)
    assert manager.refusal is None
    manager.batch_failed(
        A, Problem(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no"), may_be_written=False
    )
    assert manager.state is S.FATAL_ERROR
    assert manager.refusal is not None


@pytest.mark.parametrize("state", [S.UNINITIALIZED, S.READY, S.COMMITTING, S.ABORTING, S.PREPARING])
def test_records_are_refused_with_what_to_do(state: TransactionState) -> None:
    manager = TransactionManager("tid", 60_000)
    if state is not S.UNINITIALIZED:
        manager = initialized(2, two_phase=True)
    if state not in (S.UNINITIALIZED, S.READY):
        manager.begin()
        {
            S.COMMITTING: manager.commit,
            S.ABORTING: manager.abort,
            S.PREPARING: manager.prepare,
        }[state]()
    assert manager.state is state
    assert manager.refusal is not None
    assert manager.refusal.code is ErrorCode.INVALID_TXN_STATE


def test_calls_out_of_turn_change_nothing() -> None:
    manager = initialized(2)
    for call in (manager.initialize, manager.commit, manager.abort):
        problem = call()
        assert problem is not None
        assert problem.code is ErrorCode.INVALID_TXN_STATE
    assert manager.state is S.READY
    manager.begin()
    assert manager.begin() is not None
    assert manager.state is S.IN_TRANSACTION


def test_calls_for_offsets_have_a_limit() -> None:
    manager = in_transaction(2)
    for _ in range(MAX_WAITING_COMMITS):
        manager.add_offsets(GroupMember("g"), {A: Position(1)})
    assert isinstance(manager.add_offsets(GroupMember("g"), {A: Position(1)}), Problem)


def test_an_answer_that_leaves_a_partition_out_is_no_success() -> None:
    manager = in_transaction(2)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    answer(manager, K.COMMIT_OFFSETS, committing.TxnOffsetCommitResponse())
    assert manager.state is S.FATAL_ERROR


@pytest.mark.parametrize(
    "text", ["", "7", "7:", "-1:0", "7:3:1", "x:y", f"7:{2**15}", f"{2**63}:0"]
)
def test_what_is_no_pair_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"PRODUCER_ID:PRODUCER_EPOCH|too large"):
        ProducerIdAndEpoch.parse(text)


def test_a_pair_survives_being_written_down() -> None:
    assert ProducerIdAndEpoch.parse(str(PAIR)) == PAIR


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (K.INITIALIZE, S.UNINITIALIZED),
        (K.COMMIT_OFFSETS, S.ABORTABLE_ERROR),
        (K.END, S.FATAL_ERROR),
    ],
)
def test_what_a_coordinator_is_too_old_to_be_asked(kind: RequestKind, state: S) -> None:
    """A start may be tried again, a transaction without those offsets committed."""
    manager = TransactionManager("tid", 60_000) if kind is K.INITIALIZE else in_transaction(2)
    commit: Any = None
    if kind is K.INITIALIZE:
        manager.initialize()
    else:
        manager.admit(A)
    if kind is K.COMMIT_OFFSETS:
        commit = manager.add_offsets(GroupMember("g", 4, "m"), {A: Position(1)})
    elif kind is K.END:
        manager.commit()
        settle(manager)
    asked = manager.next_ask()
    assert asked is not None
    assert asked.kind is kind
    manager.cannot_be_asked(asked, "too old")
    assert manager.state is state
    assert manager.problem == Problem(ErrorCode.UNSUPPORTED_VERSION, "too old")
    assert manager.next_ask() is None
    assert commit is None or commit.problem == manager.problem
