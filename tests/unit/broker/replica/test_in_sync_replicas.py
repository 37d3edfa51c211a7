"""Who is in sync: what a leader knows of its followers, what it proposes, what answers come to."""

from __future__ import annotations

import pytest

from moldau.broker.replica.core.in_sync_set import (
    RECOVERED,
    RECOVERING,
    IsrAnswer,
    IsrChange,
    PartitionState,
)
from moldau.broker.replica.core.partition_core import REFUSAL_PAUSE_MS, PartitionCore
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.replica.test_partition_core import LOCAL, Cluster, fetched, leader, state

LAG_MS = Cluster().max_lag_ms


def wait(core: PartitionCore, elapsed_ms: float) -> None:
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    cluster.now += elapsed_ms


def committed(change: IsrChange, isr: tuple[int, ...] | None = None) -> PartitionState:
    """The state that the controller answers with when it has taken a proposal over."""
    return PartitionState(
        LOCAL,
        change.leader_epoch,
        change.partition_epoch + 1,
        (),
        change.isr if isr is None else isr,
        leader_recovery_state=change.leader_recovery_state,
    )


def hear(
    core: PartitionCore, *, partition_epoch: int, isr: tuple[int, ...], log_end_offset: int = 5
) -> None:
    """Metadata arrive, under the leader epoch in force."""
    core.apply_state(
        state(leader_epoch=core.leader_epoch, partition_epoch=partition_epoch, isr=isr),
        log_end_offset=log_end_offset,
        high_watermark=core.high_watermark,
    )


def must(change: IsrChange | None) -> IsrChange:
    assert change is not None
    return change


def expanding() -> tuple[PartitionCore, IsrChange]:
    """A leader whose proposal to let 3 join is under way; 2 goes on."""
    core = leader(isr=(1, 2))
    fetched(core, 3, 0)
    change = must(core.propose_after_fetch(3))
    core.local_log_grew(5, 1)
    fetched(core, 2, 5)
    wait(core, LAG_MS + 1)
    fetched(core, 2, 5)
    return core, change


# -- falling out of sync --------------------------------------------------------------------------


def test_a_member_that_has_lost_committed_records_is_to_leave_at_once() -> None:
    core = leader()
    core.local_log_grew(5, 1)
    for follower in (2, 3):
        fetched(core, follower, 5)
    assert core.high_watermark == 5
    for late in (3, 5, 0):
        fetched(core, 3, late)
        assert core.propose_after_fetch(3) is None, "one fetch may be a late one"
    fetched(core, 3, 4)
    change = must(core.propose_after_fetch(3))
    assert change.isr == (1, 2)
    assert "3 (1 records behind, it has lost committed records)" in change.reason
    assert core.high_watermark == 5


def test_a_member_that_lost_records_while_it_was_proposed_leaves_after_the_answer() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(5, 1)
    for follower in (2, 3):
        fetched(core, follower, 5)
    joining = must(core.propose_after_fetch(3))
    for end in (0, 4):
        fetched(core, 3, end)
    assert core.propose_after_fetch(3) is None, "one proposal at a time"
    core.isr_change_answered(joining, ErrorCode.NONE, committed(joining))
    assert must(core.propose()).isr == (1, 2)


def test_who_does_not_catch_up_in_time_is_to_leave() -> None:
    core = leader()
    core.local_log_grew(5, 1)
    fetched(core, 2, 5)
    wait(core, LAG_MS)
    assert core.propose() is None, "3 has the whole time from the start of the epoch"
    wait(core, 1)
    change = must(core.propose())
    assert change.isr == (1, 2)
    assert dict(change.broker_epochs) == {1: 11, 2: 12}
    assert (change.leader_epoch, change.partition_epoch) == (0, 0)
    assert "3 (not heard of yet" in change.reason
    assert core.propose() is None, "one proposal at a time"


def test_the_reason_says_how_far_behind_and_for_how_long() -> None:
    core = leader(isr=(1, 2))
    fetched(core, 2, 0)
    core.local_log_grew(120, 1)
    wait(core, LAG_MS + 3)
    assert "2 (120 records behind, not caught up for 10003 ms)" in must(core.propose()).reason


def test_a_level_follower_stays_however_long_nothing_is_written() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(5, 1)
    fetched(core, 2, 5)
    wait(core, 100 * LAG_MS)
    assert core.propose() is None


def test_the_last_fetch_of_any_partition_counts_for_who_was_level() -> None:
    """Fetch sessions do not name a partition in which nothing happens."""
    core = leader(isr=(1, 2))
    cluster = core.cluster
    fetched(core, 2, 0)
    wait(core, 5 * LAG_MS)
    cluster.last_fetch_ms[2] = cluster.now_ms()
    wait(core, LAG_MS - 10)
    core.local_log_grew(5, 1)
    assert core.propose() is None
    wait(core, 20)
    assert must(core.propose()).isr == (1,)


def test_a_follower_that_reads_only_other_partitions_is_not_level_any_more() -> None:
    core = leader(isr=(1, 2))
    cluster = core.cluster
    fetched(core, 2, 0)
    core.local_log_grew(5, 1)
    wait(core, LAG_MS)
    cluster.last_fetch_ms[2] = cluster.now_ms()
    core.local_log_grew(9, 1)
    assert core.propose() is None
    wait(core, 1)
    assert must(core.propose()).isr == (1,)


def test_a_follower_that_has_fallen_back_is_not_level_any_more() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(5, 1)
    fetched(core, 2, 5)
    wait(core, LAG_MS)
    fetched(core, 2, 3)
    core.local_log_grew(9, 1)
    assert core.propose() is None
    wait(core, 1)
    assert must(core.propose()).isr == (1,)


def test_a_fetch_of_one_member_takes_out_no_other() -> None:
    core = leader()
    core.local_log_grew(5, 1)
    wait(core, LAG_MS + 1)
    fetched(core, 2, 5)
    assert core.propose_after_fetch(2) is None
    assert must(core.propose()).isr == (1, 2), "that is for the next look at all of them"


@pytest.mark.parametrize(("replicas", "joins"), [((1, 2), False), ((1, 3), True)])
def test_only_a_replica_that_is_still_assigned_joins(
    replicas: tuple[int, ...], joins: bool
) -> None:
    core = leader(isr=(1,))
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    cluster.out_of_service.add(3)
    fetched(core, 3, 0)
    core.apply_state(
        state(partition_epoch=1, replicas=replicas, isr=(1,)), log_end_offset=0, high_watermark=0
    )
    cluster.out_of_service.clear()
    change = core.propose()
    assert (change is not None) is joins
    assert change is None or change.isr == (1, 3)


def test_a_level_follower_that_has_gone_leaves_with_the_next_write() -> None:
    core = leader(isr=(1, 2))
    fetched(core, 2, 0)
    wait(core, 5 * LAG_MS)
    core.local_log_grew(5, 1)
    assert must(core.propose()).isr == (1,)


def test_a_follower_under_steady_load_is_caught_up_to_its_fetch_before() -> None:
    """It never asks for the very end, but always for what the leader had a moment ago."""
    core = leader(isr=(1, 2))
    end = 0
    for _ in range(10):
        core.local_log_grew(end + 5, 1)
        fetched(core, 2, end)
        end += 5
        wait(core, LAG_MS / 2)
        assert core.propose() is None


def test_a_follower_that_always_lags_leaves_although_it_fetches() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(1_000, 1)
    end = 0
    for _ in range(5):
        fetched(core, 2, end)
        core.local_log_grew(1_000 + end, 1)
        end += 10
        wait(core, LAG_MS / 4)
    assert must(core.propose()).isr == (1,)


def test_while_a_removal_is_proposed_the_removed_still_count() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(5, 1)
    wait(core, LAG_MS + 1)
    change = must(core.propose())
    assert not core.advance_high_watermark(1)
    answer = core.isr_change_answered(change, ErrorCode.NONE, committed(change))
    assert answer is IsrAnswer.COMMITTED
    assert (core.isr, core.partition_epoch) == ({1}, 1)
    assert not core.advance_high_watermark(1)
    hear(core, isr=(1,), partition_epoch=1)
    assert core.advance_high_watermark(1)
    assert core.high_watermark == 5


def shrunk(*, log_end_offset: int = 5) -> PartitionCore:
    """A leader to which the controller has answered that 2 is out of sync; the metadata with that
    change have not arrived."""
    core = leader(isr=(1, 2))
    fetched(core, 2, 0)
    core.local_log_grew(log_end_offset, 1)
    wait(core, LAG_MS + 1)
    change = must(core.propose())
    core.isr_change_answered(change, ErrorCode.NONE, committed(change))
    return core


def test_a_replica_that_left_counts_until_the_metadata_say_so() -> None:
    """The controller may ask for more in-sync replicas than the leader knows of: then the replica
    that left is eligible to lead, and has to have what counts as committed."""
    core = shrunk()
    assert core.isr == {1}
    assert not core.advance_high_watermark(1)
    assert core.is_committed(5, 1) is None
    hear(core, isr=(1,), partition_epoch=1)
    assert not core.advance_high_watermark(2), "the metadata brought a minimum of 2 before"
    assert core.is_under_min_isr(2)
    assert core.advance_high_watermark(1), "until less is asked for"
    assert core.is_committed(5, 1) is ErrorCode.NONE


def test_a_replica_that_left_holds_nothing_back_that_it_has() -> None:
    core = shrunk()
    assert fetched(core, 2, 3)
    assert core.high_watermark == 3


def test_a_replica_that_left_joins_again_after_the_metadata_say_that_it_left() -> None:
    core = shrunk()
    fetched(core, 2, 5)
    assert core.propose_after_fetch(2) is None
    assert core.propose() is None
    hear(core, isr=(1,), partition_epoch=1)
    assert must(core.propose()).isr == (1, 2)


def test_a_shrink_after_a_shrink_counts_until_its_own_metadata() -> None:
    core = leader()
    fetched(core, 2, 0)
    fetched(core, 3, 0)
    core.local_log_grew(5, 1)
    fetched(core, 2, 5)
    wait(core, LAG_MS + 1)
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    first = must(core.propose())
    assert first.isr == (1, 2)
    core.isr_change_answered(first, ErrorCode.NONE, committed(first))
    core.local_log_grew(7, 1)
    wait(core, LAG_MS + 1)
    second = must(core.propose())
    assert second.isr == (1,)
    core.isr_change_answered(second, ErrorCode.NONE, committed(second))
    hear(core, isr=(1, 2), partition_epoch=1)
    assert not core.advance_high_watermark(1), "this says nothing of 2"
    assert core.isr == {1}
    hear(core, isr=(1,), partition_epoch=2)
    assert core.advance_high_watermark(1)
    assert core.high_watermark == 7


def test_the_metadata_of_a_shrink_leave_what_is_proposed_since() -> None:
    core = shrunk()
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    fetched(core, 3, 5)
    joining = must(core.propose_after_fetch(3))
    core.local_log_grew(9, 1)
    hear(core, isr=(1,), partition_epoch=1, log_end_offset=9)
    assert core.in_sync.pending is joining
    core.advance_high_watermark(1)
    assert core.high_watermark == 5, "3 may be in sync"


def test_a_replica_that_joins_needs_no_metadata() -> None:
    core = leader(isr=(1,))
    fetched(core, 2, 0)
    change = must(core.propose_after_fetch(2))
    core.isr_change_answered(change, ErrorCode.NONE, committed(change))
    core.local_log_grew(5, 2)
    assert fetched(core, 2, 5, 2)
    assert core.high_watermark == 5


def test_a_shrink_below_the_minimum_commits_nothing() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(5, 2)
    wait(core, LAG_MS + 1)
    change = must(core.propose())
    core.isr_change_answered(change, ErrorCode.NONE, committed(change))
    hear(core, isr=(1,), partition_epoch=1)
    assert not core.advance_high_watermark(2)
    assert core.is_under_min_isr(2)
    assert core.advance_high_watermark(1), "until less is asked for"


# -- joining --------------------------------------------------------------------------------------


def test_who_has_everything_committed_joins() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(10, 1)
    fetched(core, 2, 8)
    assert core.high_watermark == 8
    fetched(core, 3, 7)
    assert core.propose_after_fetch(3) is None
    fetched(core, 3, 8)
    change = must(core.propose_after_fetch(3))
    assert change.isr == (1, 2, 3)
    assert dict(change.broker_epochs) == {1: 11, 2: 12, 3: 13}
    assert change.leader_recovery_state == RECOVERED
    assert core.propose_after_fetch(3) is None
    fetched(core, 2, 10)
    assert core.high_watermark == 8, "who may be in sync already is waited for"


def test_no_follower_joins_before_it_has_the_start_of_the_leader_epoch() -> None:
    core = PartitionCore(LOCAL, Cluster())
    core.apply_state(state(isr=(1, 2)), log_end_offset=10, high_watermark=3)
    fetched(core, 3, 5)
    assert core.propose_after_fetch(3) is None
    fetched(core, 3, 10)
    assert must(core.propose_after_fetch(3)).isr == (1, 2, 3)


@pytest.mark.parametrize("cause", ["fenced", "unregistered", "restarted"])
def test_no_follower_joins_that_the_controller_would_refuse(cause: str) -> None:
    core = leader(isr=(1, 2))
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    fetched(core, 3, 0)
    if cause == "fenced":
        cluster.out_of_service.add(3)
    elif cause == "unregistered":
        del cluster.epochs[3]
    else:
        cluster.epochs[3] = 99
    assert core.propose_after_fetch(3) is None
    cluster.out_of_service.clear()
    cluster.epochs[3] = 13
    assert must(core.propose()).isr == (1, 2, 3), "unfenced, without another fetch of the partition"


@pytest.mark.parametrize(("silent_ms", "joins"), [(LAG_MS, True), (LAG_MS + 1, False)])
def test_who_has_not_fetched_for_long_does_not_join_by_itself(
    silent_ms: float, joins: bool
) -> None:
    core = leader(isr=(1, 2))
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    cluster.out_of_service.add(3)
    fetched(core, 3, 0)
    assert core.propose_after_fetch(3) is None
    cluster.out_of_service.clear()
    fetched(core, 2, 0)
    wait(core, silent_ms)
    assert (core.propose() is not None) is joins


def refused() -> PartitionCore:
    """A leader whose proposal to let 3 join the controller has refused, and that has had the ISR
    confirmed as it is.
    """
    core = leader(isr=(1, 2))
    fetched(core, 3, 0)
    change = must(core.propose_after_fetch(3))
    answer = core.isr_change_answered(change, ErrorCode.INELIGIBLE_REPLICA, None)
    assert answer is IsrAnswer.REFUSED
    as_it_is = must(core.propose())
    assert as_it_is.isr == (1, 2)
    core.isr_change_answered(as_it_is, ErrorCode.NONE, committed(as_it_is))
    return core


def test_a_follower_that_was_refused_is_proposed_again_after_a_pause() -> None:
    core = refused()
    for elapsed_ms, is_proposed in ((0, False), (REFUSAL_PAUSE_MS, False), (1, True)):
        wait(core, elapsed_ms)
        fetched(core, 3, 0)
        assert (core.propose_after_fetch(3) is not None) is is_proposed


def test_a_follower_that_was_refused_is_proposed_at_once_when_brokers_have_changed() -> None:
    core = refused()
    assert core.propose() is None
    assert must(core.propose(again=True)).isr == (1, 2, 3)


@pytest.mark.parametrize(
    ("epochs_on", "outcome"), [(1, IsrAnswer.COMMITTED), (0, IsrAnswer.COMMITTED), (-1, None)]
)
def test_an_answer_counts_if_it_is_not_older_than_its_proposal(
    epochs_on: int, outcome: IsrAnswer | None
) -> None:
    """Apache Kafka's controller confirms an ISR as it is under the same partition epoch."""
    core = leader(isr=(1, 2), partition_epoch=4)
    fetched(core, 3, 0)
    change = must(core.propose_after_fetch(3))
    answer = committed(change)._replace(partition_epoch=change.partition_epoch + epochs_on)
    found = core.isr_change_answered(change, ErrorCode.NONE, answer)
    assert found is (outcome or IsrAnswer.REFUSED)
    assert core.in_sync.is_awaiting_metadata is (outcome is None)
    assert core.isr == ({1, 2} if outcome is None else {1, 2, 3})


def test_the_same_state_again_leaves_the_proposal_under_way() -> None:
    core, change = expanding()
    assert not core.apply_state(core.state, log_end_offset=5, high_watermark=0)
    assert core.in_sync.pending is change
    answer = core.isr_change_answered(change, ErrorCode.NONE, committed(change))
    assert answer is IsrAnswer.COMMITTED


def test_whom_the_controller_took_out_has_to_say_where_it_is_now() -> None:
    """Its log may have failed and begun again: that it was level proves nothing any more."""
    core = leader(isr=(1, 2))
    core.local_log_grew(5, 1)
    fetched(core, 2, 5)
    cluster = core.cluster
    core.apply_state(state(partition_epoch=1, isr=(1,)), log_end_offset=5, high_watermark=5)
    cluster.last_fetch_ms[2] = cluster.now_ms()
    assert core.propose() is None
    assert core.needs_position(2)
    assert core.local_log_grew(6, 1), "nor is it waited for"
    fetched(core, 2, 0)
    assert core.propose_after_fetch(2) is None
    fetched(core, 2, 6)
    assert must(core.propose_after_fetch(2)).isr == (1, 2)


@pytest.mark.parametrize("cause", ["fenced", "proposed"])
def test_who_left_the_isr_with_its_log_is_still_known(cause: str) -> None:
    core = leader(isr=(1, 2))
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    fetched(core, 2, 0)
    if cause == "fenced":
        cluster.out_of_service.add(2)
    else:
        core.local_log_grew(5, 1)
        wait(core, LAG_MS + 1)
        assert must(core.propose()).isr == (1,)
        fetched(core, 2, 5)
    core.apply_state(state(partition_epoch=1, isr=(1,)), log_end_offset=5, high_watermark=0)
    cluster.out_of_service.clear()
    assert not core.needs_position(2)
    assert must(core.propose()).isr == (1, 2)


def test_two_that_catch_up_at_once_join_one_after_the_other() -> None:
    core = leader(isr=(1,))
    fetched(core, 2, 0)
    first = must(core.propose_after_fetch(2))
    fetched(core, 3, 0)
    assert core.propose_after_fetch(3) is None
    core.isr_change_answered(first, ErrorCode.NONE, committed(first))
    second = must(core.propose())
    assert (second.isr, second.partition_epoch) == ((1, 2, 3), 1)


def test_the_high_watermark_waits_for_who_is_about_to_join() -> None:
    core = leader(isr=(1, 2))
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    cluster.out_of_service.add(3)
    fetched(core, 3, 0)
    cluster.out_of_service.clear()
    core.local_log_grew(5, 1)
    assert not fetched(core, 2, 5), "3 was level a moment ago and may join"
    cluster.out_of_service.add(3)
    assert core.advance_high_watermark(1), "not if it has gone"
    cluster.out_of_service.clear()
    core.local_log_grew(9, 1)
    assert not fetched(core, 2, 9)
    wait(core, LAG_MS + 1)
    assert core.advance_high_watermark(1), "not for longer than the lag"


# -- epochs ---------------------------------------------------------------------------------------


def test_a_new_leader_epoch_begins_without_knowledge() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(5, 1)
    fetched(core, 2, 3)
    core.apply_state(
        state(leader_epoch=1, partition_epoch=1, isr=(1, 2)), log_end_offset=5, high_watermark=3
    )
    assert core.followers[2].log_end_offset == -1
    assert not core.advance_high_watermark(1)
    wait(core, LAG_MS)
    assert core.propose() is None
    fetched(core, 2, 5)
    assert core.high_watermark == 5


def test_who_was_level_in_an_earlier_leader_epoch_does_not_join_by_that() -> None:
    core = leader(isr=(1, 2))
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    cluster.out_of_service.add(3)
    fetched(core, 3, 0)
    cluster.out_of_service.clear()
    core.apply_state(
        state(leader_epoch=1, partition_epoch=1, isr=(1, 2)), log_end_offset=0, high_watermark=0
    )
    assert core.propose() is None
    fetched(core, 3, 0)
    assert must(core.propose_after_fetch(3)).isr == (1, 2, 3)


def test_an_earlier_life_of_a_broker_is_refused() -> None:
    core = leader(isr=(1, 2))
    fetched(core, 2, 0, broker_epoch=20)
    assert core.check_follower(2, 19, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert core.check_follower(2, 20, 0) is ErrorCode.NONE
    assert core.check_follower(2, 21, 0) is ErrorCode.NONE
    assert core.check_follower(2, -1, 0) is ErrorCode.NONE, "a fetch before v15 does not say"


def test_a_leader_elected_uncleanly_says_that_it_has_recovered() -> None:
    core = leader(7, isr=(1,), leader_recovery_state=RECOVERING)
    change = must(core.propose())
    assert (change.isr, change.leader_recovery_state) == ((1,), RECOVERED)
    core.isr_change_answered(change, ErrorCode.NONE, committed(change))
    assert core.leader_recovery_state == RECOVERED
    assert core.propose() is None


def test_a_follower_proposes_nothing() -> None:
    core = leader(leader_id=2, leader_recovery_state=RECOVERING)
    wait(core, 10 * LAG_MS)
    assert core.propose() is None


def test_who_leads_no_more_forgets_its_proposal() -> None:
    core, change = expanding()
    core.apply_state(
        state(leader_id=2, leader_epoch=1, partition_epoch=1), log_end_offset=5, high_watermark=0
    )
    assert core.isr_change_answered(change, ErrorCode.NONE, committed(change)) is IsrAnswer.STALE
    assert (core.partition_epoch, core.followers) == (1, {})


# -- figures --------------------------------------------------------------------------------------


def test_low_watermark_is_that_of_the_live_replicas() -> None:
    core = leader()
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    assert core.low_watermark(8) == -1, "nothing heard yet"
    fetched(core, 2, 10, log_start_offset=4)
    fetched(core, 3, 10, log_start_offset=9)
    assert core.low_watermark(8) == 4
    cluster.out_of_service.add(2)
    assert core.low_watermark(8) == 8


def test_figures() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(10, 1)
    fetched(core, 2, 10)
    wait(core, 100)
    fetched(core, 3, 4, log_start_offset=2)
    figures = {each.replica_id: each for each in core.replica_figures(1)}
    assert list(figures) == [1, 2, 3]
    assert figures[1] == (1, 1, 10, 0, True, 0.0)
    assert figures[2] == (2, 0, 10, 0, True, 0.0)
    assert figures[3] == (3, 2, 4, 6, False, -1.0)
    core.local_log_grew(12, 1)
    assert core.replica_figures(1)[1] == (2, 0, 10, 2, True, 100.0)
    assert leader(leader_id=2).replica_figures(0) == []
