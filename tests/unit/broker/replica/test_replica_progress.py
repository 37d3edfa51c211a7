"""What a leader reports of a follower's lag, and whose copies count while a proposal is under
way.
"""

from __future__ import annotations

import pytest

from moldau.broker.replica.core.in_sync_set import RECOVERED, InSyncSet, IsrChange
from moldau.broker.replica.core.partition_core import FollowerFetch, ReplicaProgress

MAX_LAG_MS = 10_000.0


def follower(end: int, *, leader_end: int, at_ms: float = 1_000.0) -> ReplicaProgress:
    """It fetched once, at `at_ms`, when the leader's log ended at `leader_end`."""
    progress = ReplicaProgress(2, caught_up_ms=500.0)
    progress.fetched(FollowerFetch(2, end, 3, 7, at_ms), leader_end)
    return progress


@pytest.mark.parametrize(
    ("end", "lag", "age_ms"),
    [(10, 10, 4_500.0), (19, 1, 4_500.0), (20, 0, 0.0), (25, 0, 0.0)],
)
def test_the_figures_of_a_follower(end: int, lag: int, age_ms: float) -> None:
    progress = follower(end, leader_end=30)
    figures = progress.figures(20, 5_000.0, is_in_sync=True)
    assert (figures.replica_id, figures.log_start_offset, figures.log_end_offset) == (2, 3, end)
    assert (figures.lag, figures.caught_up_age_ms, figures.is_in_sync) == (lag, age_ms, True)


def test_a_follower_that_was_never_heard_of_has_no_lag_and_no_age() -> None:
    figures = ReplicaProgress(2).figures(0, 5_000.0, is_in_sync=False)
    assert (figures.log_end_offset, figures.lag, figures.caught_up_age_ms) == (-1, -1, -1.0)


def test_what_the_log_says_of_a_follower_that_lags() -> None:
    assert follower(10, leader_end=30).describe(20, 5_000.0) == (
        "2 (10 records behind, not caught up for 4500 ms)"
    )
    assert follower(10, leader_end=10).describe(20, 1_000.0) == (
        "2 (10 records behind, not caught up for 0 ms)"
    )
    assert follower(20, leader_end=30).describe(20, 5_000.0).startswith("2 (0 records behind")
    assert ReplicaProgress(2).describe(0, 5_000.0) == "2 (not heard of yet, not caught up yet)"


@pytest.mark.parametrize(("now_ms", "is_caught_up"), [(11_000.0, True), (11_001.0, False)])
def test_a_follower_is_caught_up_for_the_whole_lag_time(now_ms: float, is_caught_up: bool) -> None:
    progress = follower(10, leader_end=10)
    assert progress.is_caught_up(11, now_ms, MAX_LAG_MS) is is_caught_up
    assert progress.is_caught_up(10, now_ms, MAX_LAG_MS), "level, whatever the clock says"


def test_a_follower_with_no_moment_of_having_everything_is_not_caught_up() -> None:
    progress = ReplicaProgress(2)
    assert not progress.is_caught_up(1, 0.0, MAX_LAG_MS)


def test_proposed_members_count_from_the_proposal_on_and_removed_ones_until_its_answer() -> None:
    in_sync = InSyncSet()
    in_sync.apply_metadata((1, 2))
    assert in_sync.maximal == {1, 2}
    in_sync.propose(IsrChange(5, 6, (1, 3), {1: 11, 3: 13}, RECOVERED, "because"))
    assert (in_sync.committed, in_sync.maximal) == ({1, 2}, {1, 2, 3})
    in_sync.withdraw()
    assert in_sync.maximal == {1, 2}
