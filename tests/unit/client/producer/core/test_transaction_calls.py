"""What each call of a transactional producer does in each state, and what it leaves to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from moldau.client.producer.core.transaction_manager import (
    MAX_WAITING_COMMITS,
    Pause,
    TransactionManager,
)
from moldau.client.producer.core.transaction_requests import (
    NO_TIMEOUT_MS,
    Destination,
    OffsetsCommit,
    RequestKind,
)
from moldau.client.producer.core.transaction_states import (
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
    meet,
    settle,
)
from tests.unit.client.producer.core.transaction_world import producer_of, refused

S = TransactionState
K = RequestKind
A = TopicPartition("t", 0)
B = TopicPartition("t", 1)
PAIR = ProducerIdAndEpoch(7, 3)

CALLS: Mapping[str, Callable[[TransactionManager], Any]] = {
    "init_transactions()": lambda manager: manager.initialize(),
    "begin_transaction()": lambda manager: manager.begin(),
    "send_offsets()": lambda manager: manager.add_offsets(GroupMember("g"), {A: Position(1)}),
    "prepare_transaction()": lambda manager: manager.prepare(),
    "commit_transaction()": lambda manager: manager.commit(),
    "abort_transaction()": lambda manager: manager.abort(),
}

ALLOWED: Mapping[TransactionState, Mapping[str, TransactionState]] = {
    S.UNINITIALIZED: {"init_transactions()": S.INITIALIZING},
    S.INITIALIZING: {"init_transactions()": S.INITIALIZING},
    S.READY: {"begin_transaction()": S.IN_TRANSACTION},
    S.IN_TRANSACTION: {
        "send_offsets()": S.IN_TRANSACTION,
        "prepare_transaction()": S.PREPARING,
        "commit_transaction()": S.COMMITTING,
        "abort_transaction()": S.ABORTING,
    },
    S.PREPARING: {"prepare_transaction()": S.PREPARING, "abort_transaction()": S.ABORTING},
    S.PREPARED: {
        "prepare_transaction()": S.PREPARED,
        "commit_transaction()": S.COMMITTING,
        "abort_transaction()": S.ABORTING,
    },
    S.COMMITTING: {"commit_transaction()": S.COMMITTING, "abort_transaction()": S.ABORTING},
    S.ABORTING: {"abort_transaction()": S.ABORTING},
    S.ABORTABLE_ERROR: {"abort_transaction()": S.ABORTING},
    S.FATAL_ERROR: {},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", S)
def test_a_call_out_of_turn_changes_nothing_and_says_why(
    state: TransactionState, call: str
) -> None:
    manager = in_state(state)
    answered = CALLS[call](manager)
    following = ALLOWED[state].get(call)
    if following is not None:
        assert answered is None or isinstance(answered, OffsetsCommit)
        assert manager.state is following
        return
    assert manager.state is state
    if state in (S.ABORTABLE_ERROR, S.FATAL_ERROR):
        assert answered is manager.problem is SPOILED
    else:
        message = f"{call} is out of turn: the producer is {state.value}"
        assert answered == Problem(ErrorCode.INVALID_TXN_STATE, message)


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (S.UNINITIALIZED, "call init_transactions() and begin_transaction() first"),
        (S.INITIALIZING, "init_transactions() has not ended"),
        (S.READY, "no transaction is open"),
        (S.IN_TRANSACTION, None),
        (S.PREPARING, "being prepared and takes no more records"),
        (S.PREPARED, "is prepared and takes no more records"),
        (S.COMMITTING, "wait for commit_transaction()"),
        (S.ABORTING, "wait for abort_transaction()"),
        (S.ABORTABLE_ERROR, SPOILED.message),
        (S.FATAL_ERROR, SPOILED.message),
    ],
)
def test_what_keeps_records_out_and_whether_batches_have_to_be_settled(
    state: TransactionState, advice: str | None
) -> None:
    manager = in_state(state)
    refusal = manager.refusal
    assert (refusal is None) == (advice is None)
    if refusal is not None and advice is not None:
        assert advice in refusal.message
    assert manager.awaits_batches == (state in (S.PREPARING, S.COMMITTING, S.ABORTING))
    assert not manager.is_outcome_asked
    assert manager.admit(A) == (state in (S.IN_TRANSACTION, S.PREPARING, S.COMMITTING))


@pytest.mark.parametrize(("call", "after"), [("prepare", S.PREPARED), ("commit", S.COMMITTING)])
def test_once_its_batches_are_settled_a_transaction_takes_no_more(
    call: str, after: TransactionState
) -> None:
    manager = in_state(S.IN_TRANSACTION)
    assert manager.admit(A)
    getattr(manager, call)()
    assert manager.admit(A)
    settle(manager)
    assert manager.state is after
    assert not manager.awaits_batches
    assert not manager.admit(A)


def test_a_decided_outcome_of_a_prepared_transaction_needs_no_more_batches() -> None:
    for call in ("commit", "abort"):
        manager = in_state(S.IN_TRANSACTION)
        manager.admit(A)
        manager.prepare()
        settle(manager)
        getattr(manager, call)()
        assert not manager.awaits_batches
        assert ask(manager, K.END).request.committed is (call == "commit")


@pytest.mark.parametrize("version", [1, 2])
def test_an_outcome_is_asked_once_its_request_goes_out(version: int) -> None:
    manager = in_transaction(version)
    manager.admit(A)
    if version == 1:
        answer(manager, K.ADD_PARTITIONS)
    manager.commit()
    settle(manager)
    assert not manager.is_outcome_asked
    ask(manager, K.END)
    assert manager.is_outcome_asked
    problem = manager.abort()
    assert problem is not None
    assert "may have committed the transaction already" in problem.message
    assert manager.state is S.COMMITTING


def test_an_abort_that_has_been_asked_for_may_be_called_again() -> None:
    manager = in_transaction(2)
    manager.admit(A)
    manager.abort()
    settle(manager)
    ask(manager, K.END)
    assert not manager.is_outcome_asked
    assert manager.abort() is None


def test_a_producer_starts_with_nothing_known() -> None:
    manager = TransactionManager("tid", 60_000)
    assert manager.producer == manager.prepared == NO_PRODUCER
    assert (manager.problem, manager.untold_outcome) == (None, None)
    assert manager.is_transactional
    assert not manager.is_version_2
    assert not TransactionManager(None, 60_000).is_transactional
    assert TransactionManager(None, 60_000).highest_produce_version is None
    assert manager.next_ask() is None


@pytest.mark.parametrize("keep_prepared", [False, True])
def test_only_the_same_initialization_may_be_called_again(keep_prepared: bool) -> None:
    manager = TransactionManager("tid", 60_000, two_phase=True)
    assert manager.initialize(keep_prepared=keep_prepared) is None
    assert manager.initialize(keep_prepared=keep_prepared) is None
    assert manager.initialize(keep_prepared=not keep_prepared) is not None
    assert ask(manager, K.INITIALIZE).request.keep_prepared_txn is keep_prepared


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("keep_prepared", [False, True])
def test_the_first_request_has_the_settings(two_phase: bool, keep_prepared: bool) -> None:
    manager = TransactionManager("tid", 60_000, two_phase=two_phase)
    manager.initialize(keep_prepared=keep_prepared)
    asked = ask(manager, K.INITIALIZE)
    request = asked.request
    assert (request.transactional_id, asked.key) == ("tid", "tid")
    assert asked.destination is Destination.TRANSACTION_COORDINATOR
    assert request.transaction_timeout_ms == (NO_TIMEOUT_MS if two_phase else 60_000)
    assert (request.enable2_pc, request.keep_prepared_txn) == (two_phase, keep_prepared)
    assert producer_of(asked) == NO_PRODUCER
    is_new = two_phase or keep_prepared
    assert (asked.lowest_version, asked.highest_version) == ((6, 6) if is_new else (0, 5))


def test_a_new_epoch_never_keeps_the_prepared_transaction() -> None:
    manager = TransactionManager("tid", 60_000, two_phase=True)
    manager.initialize(keep_prepared=True)
    meet(manager, 1, init_version=6)
    answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=3))
    assert (manager.state, manager.prepared) == (S.READY, NO_PRODUCER)
    manager.begin()
    manager.admit(A)
    answer(manager, K.ADD_PARTITIONS)
    manager.commit()
    manager.batches_settled(needs_new_epoch=True)
    answer(manager, K.END, EndTxnResponse())
    asked = ask(manager, K.INITIALIZE)
    assert producer_of(asked) == PAIR
    assert asked.request.keep_prepared_txn is False


@pytest.mark.parametrize("keep_prepared", [False, True])
def test_an_ongoing_transaction_is_taken_over_only_when_it_is_to_be_kept(
    keep_prepared: bool,
) -> None:
    manager = TransactionManager("tid", 60_000, two_phase=True)
    manager.initialize(keep_prepared=keep_prepared)
    ongoing = InitProducerIdResponse(
        producer_id=7, producer_epoch=9, ongoing_txn_producer_id=7, ongoing_txn_producer_epoch=3
    )
    answer(manager, K.INITIALIZE, ongoing)
    expected = (S.PREPARED, PAIR) if keep_prepared else (S.READY, NO_PRODUCER)
    assert (manager.state, manager.prepared) == expected
    assert manager.producer == ProducerIdAndEpoch(7, 9)
    if keep_prepared:
        assert manager.abort() is None
        answer(manager, K.END, EndTxnResponse(producer_id=7, producer_epoch=10))
        assert (manager.state, manager.untold_outcome) == (S.READY, False)
        manager.begin()
        assert manager.prepared == NO_PRODUCER


def test_a_start_that_was_refused_leaves_no_problem_behind_once_it_succeeds() -> None:
    manager = TransactionManager("tid", 60_000)
    manager.initialize()
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    answer(manager, K.INITIALIZE, InitProducerIdResponse(error_code=code))
    problem = manager.begin()
    assert problem is not None
    assert problem.code is ErrorCode.INVALID_TXN_STATE
    assert manager.initialize() is None
    assert manager.problem is None
    answer(manager, K.INITIALIZE, InitProducerIdResponse(producer_id=7, producer_epoch=3))
    assert (manager.state, manager.problem, manager.producer) == (S.READY, None, PAIR)
    assert not manager.is_version_2, "no broker has said so"


def test_the_next_transaction_begins_with_nothing_of_the_one_before() -> None:
    manager = in_transaction(2)
    manager.admit(A)
    manager.record_refused(SPOILED)
    manager.abort()
    settle(manager)
    answer(manager, K.END, EndTxnResponse(producer_id=7, producer_epoch=4))
    assert (manager.problem, manager.untold_outcome) == (None, False)
    manager.begin()
    assert manager.untold_outcome is None
    assert manager.refusal is None
    manager.commit()
    settle(manager)
    assert (manager.state, manager.untold_outcome) == (S.READY, True), "no request for nothing"


def test_partitions_of_the_last_transaction_are_added_again() -> None:
    manager = in_transaction(1)
    for _ in range(2):
        assert not manager.admit(A)
        answer(manager, K.ADD_PARTITIONS)
        assert manager.admit(A)
        manager.add_offsets(GroupMember("g"), {A: Position(1)})
        answer(manager, K.ADD_OFFSETS)
        answer(manager, K.COMMIT_OFFSETS)
        manager.commit()
        settle(manager)
        answer(manager, K.END, EndTxnResponse())
        assert manager.state is S.READY
        manager.begin()


# -- offsets -------------------------------------------------------------------------------------


def test_no_offsets_are_done_at_once() -> None:
    manager = in_transaction(2)
    commit = manager.add_offsets(GroupMember("g"), {})
    assert isinstance(commit, OffsetsCommit)
    assert commit.is_done
    assert manager.next_ask() is None
    waiting = manager.add_offsets(GroupMember("g"), {A: Position(1)})
    assert isinstance(waiting, OffsetsCommit)
    assert not waiting.is_done


def test_the_last_call_within_the_limit_is_taken() -> None:
    manager = in_transaction(2)
    commits = [
        manager.add_offsets(GroupMember("g"), {A: Position(number)})
        for number in range(MAX_WAITING_COMMITS + 1)
    ]
    assert [isinstance(each, OffsetsCommit) for each in commits[-2:]] == [True, False]
    assert isinstance(commits[-1], Problem)
    assert commits[-1].code is ErrorCode.INVALID_TXN_STATE
    assert str(MAX_WAITING_COMMITS) in commits[-1].message
    answer(manager, K.COMMIT_OFFSETS)
    assert isinstance(manager.add_offsets(GroupMember("g"), {A: Position(1)}), OffsetsCommit)


def test_offsets_are_committed_in_the_order_of_their_calls() -> None:
    manager = in_transaction(2)
    given = [manager.add_offsets(GroupMember("g"), {A: Position(each)}) for each in (5, 6)]
    for commit, offset in zip(given, (5, 6), strict=True):
        asked = ask(manager, K.COMMIT_OFFSETS)
        (topic,) = asked.request.topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index) == ("t", 0)
        assert partition.committed_offset == offset
        assert isinstance(commit, OffsetsCommit)
        assert not commit.is_done
        manager.answered(asked, refused(asked, ErrorCode.NONE))
        assert commit.is_done


@pytest.mark.parametrize(("epoch", "sent"), [(None, -1), (0, 0), (4, 4)])
def test_offsets_carry_what_the_consumer_knows(epoch: int | None, sent: int) -> None:
    manager = in_transaction(2)
    manager.add_offsets(GroupMember("g", 4, "m", "i"), {A: Position(9, "note", epoch)})
    asked = ask(manager, K.COMMIT_OFFSETS)
    request = asked.request
    assert (request.transactional_id, request.group_id) == ("tid", "g")
    assert (request.generation_id, request.member_id, request.group_instance_id) == (4, "m", "i")
    assert producer_of(asked) == PAIR
    partition = request.topics[0].partitions[0]
    assert partition.committed_offset == 9
    assert (partition.committed_leader_epoch, partition.committed_metadata) == (sent, "note")


@pytest.mark.parametrize(
    ("member", "lowest"),
    [
        (GroupMember("g"), 0),
        (GroupMember("g", 0), 3),
        (GroupMember("g", -1, "m"), 3),
        (GroupMember("g", -1, "", "i"), 3),
    ],
)
def test_a_member_needs_a_broker_that_checks_it(member: GroupMember, lowest: int) -> None:
    manager = in_transaction(1)
    manager.add_offsets(member, {A: Position(1)})
    answer(manager, K.ADD_OFFSETS)
    asked = ask(manager, K.COMMIT_OFFSETS)
    assert (asked.lowest_version, asked.highest_version) == (lowest, 4)
    assert (asked.destination, asked.key) == (Destination.GROUP_COORDINATOR, "g")


def test_offsets_of_version_2_need_a_broker_that_adds_their_group() -> None:
    manager = in_transaction(2)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    asked = ask(manager, K.COMMIT_OFFSETS)
    assert (asked.lowest_version, asked.highest_version) == (5, 5)


def test_partitions_are_added_before_offsets_and_the_end_comes_last() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    manager.commit()
    settle(manager)
    answer(manager, K.ADD_PARTITIONS)
    answer(manager, K.ADD_OFFSETS)
    answer(manager, K.COMMIT_OFFSETS)
    answer(manager, K.END, EndTxnResponse())
    assert manager.state is S.READY


def test_an_abort_gives_up_what_has_not_been_added_yet() -> None:
    manager = in_transaction(1)
    manager.admit(A)
    commit = manager.add_offsets(GroupMember("g"), {A: Position(1)})
    assert isinstance(commit, OffsetsCommit)
    manager.abort()
    assert commit.problem == Problem(ErrorCode.INVALID_TXN_STATE, "the transaction is aborted")
    assert manager.next_ask() is None
    settle(manager)
    assert (manager.state, manager.untold_outcome) == (S.READY, False)


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.FENCED_INSTANCE_ID]
)
def test_a_group_that_was_not_added_is_asked_for_again_or_spoils_the_transaction(
    code: ErrorCode,
) -> None:
    manager = in_transaction(1)
    manager.add_offsets(GroupMember("g"), {A: Position(1)})
    asked = ask(manager, K.ADD_OFFSETS)
    assert asked.request.group_id == "g"
    pause = manager.answered(asked, refused(asked, code)).pause
    if code.retriable:
        assert pause is Pause.BACK_OFF
        answer(manager, K.ADD_OFFSETS)
        answer(manager, K.COMMIT_OFFSETS)
    else:
        assert manager.state is S.ABORTABLE_ERROR
