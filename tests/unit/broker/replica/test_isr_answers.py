"""What the controller's answers to proposals come to, and those that are lost, late or refused."""

from __future__ import annotations

import pytest

from moldau.broker.replica.core.in_sync_set import IsrAnswer, PartitionState
from moldau.broker.replica.core.partition_core import REFUSAL_PAUSE_MS, PartitionCore
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.replica.test_in_sync_replicas import (
    LAG_MS,
    committed,
    expanding,
    hear,
    must,
    wait,
)
from tests.unit.broker.replica.test_partition_core import LOCAL, fetched, leader, state


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_without_an_answer_the_same_is_proposed_again(error: ErrorCode) -> None:
    core, change = expanding()
    assert core.isr_change_answered(change, error, None) is IsrAnswer.RETRY
    assert core.in_sync.pending is change
    assert not core.advance_high_watermark(1)


REFUSALS = [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED]


def refused(error: ErrorCode = ErrorCode.INELIGIBLE_REPLICA) -> PartitionCore:
    """A leader whose proposal to let 3 join was refused; an earlier copy may be on its way."""
    core, change = expanding()
    assert core.isr_change_answered(change, ErrorCode.NETWORK_EXCEPTION, None) is IsrAnswer.RETRY
    assert core.isr_change_answered(change, error, None) is IsrAnswer.REFUSED
    return core


@pytest.mark.parametrize("error", REFUSALS)
def test_a_refused_replica_counts_while_a_late_copy_may_let_it_in(error: ErrorCode) -> None:
    core = refused(error)
    assert (core.isr, core.in_sync.pending) == ({1, 2}, None)
    assert not core.advance_high_watermark(1)
    again = must(core.propose())
    assert (again.isr, again.partition_epoch) == ((1, 2), 0)
    assert not core.advance_high_watermark(1), "the copy may be first"
    answer = core.isr_change_answered(again, ErrorCode.NONE, committed(again))
    assert answer is IsrAnswer.COMMITTED
    assert core.advance_high_watermark(1), "the partition epoch is another: older copies are void"
    assert core.high_watermark == 5


def test_a_late_copy_lets_a_refused_replica_in() -> None:
    core = refused()
    again = must(core.propose())
    error = ErrorCode.INVALID_UPDATE_VERSION
    assert core.isr_change_answered(again, error, None) is IsrAnswer.REFUSED
    assert not core.advance_high_watermark(1)
    hear(core, isr=(1, 2, 3), partition_epoch=1)
    assert not core.advance_high_watermark(1)
    fetched(core, 3, 5)
    assert core.high_watermark == 5


def test_metadata_of_a_later_partition_epoch_free_a_refused_replica() -> None:
    core = refused()
    hear(core, isr=(1, 2), partition_epoch=0)
    assert not core.advance_high_watermark(1), "these are the metadata it was refused under"
    hear(core, isr=(1, 2), partition_epoch=1)
    assert core.advance_high_watermark(1)


def test_a_shrink_frees_a_refused_replica() -> None:
    core = refused()
    core.local_log_grew(9, 1)
    wait(core, LAG_MS + 1)
    change = must(core.propose())
    assert change.isr == (1,)
    core.isr_change_answered(change, ErrorCode.NONE, committed(change))
    hear(core, isr=(1,), partition_epoch=1, log_end_offset=9)
    assert core.advance_high_watermark(1)
    assert core.high_watermark == 9


def test_a_controller_that_writes_nothing_frees_a_refused_replica() -> None:
    """Apache Kafka's answers the same ISR with the partition epoch as it was."""
    core = refused()
    again = must(core.propose())
    same = PartitionState(LOCAL, 0, again.partition_epoch, (), again.isr)
    assert core.isr_change_answered(again, ErrorCode.NONE, same) is IsrAnswer.COMMITTED
    assert core.advance_high_watermark(1)


def test_a_controller_that_writes_nothing_frees_no_replica_that_left() -> None:
    core = leader(isr=(1, 2))
    fetched(core, 2, 0)
    core.local_log_grew(5, 1)
    wait(core, LAG_MS + 1)
    shrink = must(core.propose())
    core.isr_change_answered(shrink, ErrorCode.NONE, committed(shrink))
    fetched(core, 3, 5)
    joining = must(core.propose_after_fetch(3))
    core.isr_change_answered(joining, ErrorCode.INELIGIBLE_REPLICA, None)
    again = must(core.propose())
    same = PartitionState(LOCAL, 0, again.partition_epoch, (), again.isr)
    core.isr_change_answered(again, ErrorCode.NONE, same)
    assert not core.advance_high_watermark(1), "2 left by an answer"
    hear(core, isr=(1,), partition_epoch=1)
    assert core.advance_high_watermark(1)


def test_a_refusal_of_the_isr_as_it_is_is_asked_again_at_the_next_look() -> None:
    core = refused()
    again = must(core.propose())
    core.isr_change_answered(again, ErrorCode.INELIGIBLE_REPLICA, None)
    assert not core.advance_high_watermark(1)
    assert must(core.propose()).isr == (1, 2)


def test_a_refused_shrink_needs_no_proof() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(5, 1)
    wait(core, LAG_MS + 1)
    change = must(core.propose())
    core.isr_change_answered(change, ErrorCode.INELIGIBLE_REPLICA, None)
    fetched(core, 2, 5)
    assert core.propose() is None


def test_a_refused_replica_is_proposed_again_after_a_pause_or_when_brokers_change() -> None:
    """The controller may have a reason that the leader cannot see: each attempt costs it a metadata
    record."""
    core = refused()
    fetched(core, 3, 5)
    again = must(core.propose())
    core.isr_change_answered(again, ErrorCode.NONE, committed(again))
    fetched(core, 3, 5)
    assert core.propose_after_fetch(3) is None
    assert core.propose() is None
    assert must(core.propose(again=True)).isr == (1, 2, 3)

    core = refused()
    again = must(core.propose())
    core.isr_change_answered(again, ErrorCode.NONE, committed(again))
    wait(core, REFUSAL_PAUSE_MS)
    fetched(core, 3, 5)
    assert core.propose_after_fetch(3) is None
    wait(core, 1)
    assert must(core.propose_after_fetch(3)).isr == (1, 2, 3)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_a_change_that_may_have_been_committed_counts_until_metadata_decide(
    error: ErrorCode,
) -> None:
    core, change = expanding()
    assert core.isr_change_answered(change, error, None) is IsrAnswer.REFUSED
    assert not core.advance_high_watermark(1), "an answer that was lost may have let 3 in"
    assert core.propose() is None
    assert core.isr_change_answered(change, ErrorCode.NONE, committed(change)) is IsrAnswer.STALE
    core.apply_state(
        state(partition_epoch=1, isr=(1, 2)), log_end_offset=5, high_watermark=core.high_watermark
    )
    assert core.in_sync.pending is None
    assert core.advance_high_watermark(1)


def test_newer_metadata_voids_a_proposal() -> None:
    core, change = expanding()
    core.apply_state(state(partition_epoch=1, isr=(1, 2, 3)), log_end_offset=5, high_watermark=0)
    assert core.in_sync.pending is None
    answer = core.isr_change_answered(change, ErrorCode.NONE, committed(change, (1,)))
    assert answer is IsrAnswer.STALE
    assert core.isr == {1, 2, 3}


def test_the_same_metadata_again_leaves_a_proposal_alone() -> None:
    core, change = expanding()
    core.apply_state(state(isr=(1, 2)), log_end_offset=5, high_watermark=0)
    assert core.in_sync.pending is change


def test_an_answer_of_the_past_is_not_taken_over() -> None:
    core, change = expanding()
    past = PartitionState(LOCAL, 0, -1, (), (1,))
    assert core.isr_change_answered(change, ErrorCode.NONE, past) is IsrAnswer.REFUSED
    assert core.isr == {1, 2}


def test_an_answer_may_name_another_isr() -> None:
    """A reassignment that the proposal completed takes replicas away in the same step."""
    core, change = expanding()
    core.isr_change_answered(change, ErrorCode.NONE, committed(change, (1, 3)))
    assert core.isr == {1, 3}
