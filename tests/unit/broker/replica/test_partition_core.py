"""The partition's state machine: roles, epochs, `min.insync.replicas`, high watermark."""

from __future__ import annotations

import pytest

from moldau.broker.replica.core.in_sync_set import RECOVERED, PartitionState
from moldau.broker.replica.core.partition_core import (
    LEGAL_TRANSITIONS,
    FollowerFetch,
    PartitionCore,
    ReplicaRole,
)
from moldau.protocol.errors import ErrorCode

LOCAL = 1


class Cluster:
    """The clock and the other brokers, as the test says."""

    def __init__(self) -> None:
        self.max_lag_ms = 10_000
        self.last_fetch_ms: dict[int, float] = {}
        self.now = 100_000.0
        self.epochs = {1: 11, 2: 12, 3: 13, 4: 14}
        self.out_of_service: set[int] = set()

    def now_ms(self) -> float:
        return self.now

    def broker_epoch(self) -> int:
        return self.epochs[LOCAL]

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return (
            broker_id in self.epochs
            and broker_id not in self.out_of_service
            and broker_epoch in (-1, self.epochs[broker_id])
        )


def state(
    leader_id: int = LOCAL,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    replicas: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] | None = None,
    leader_recovery_state: int = RECOVERED,
) -> PartitionState:
    return PartitionState(
        leader_id,
        leader_epoch,
        partition_epoch,
        replicas,
        replicas if isr is None else isr,
        leader_recovery_state=leader_recovery_state,
    )


def leader(
    log_end_offset: int = 0, cluster: Cluster | None = None, **fields: object
) -> PartitionCore:
    core = PartitionCore(LOCAL, cluster or Cluster())
    core.apply_state(
        state(**fields),  # type: ignore[arg-type]
        log_end_offset=log_end_offset,
        high_watermark=0,
    )
    return core


def fetched(
    core: PartitionCore,
    replica_id: int,
    log_end_offset: int,
    min_insync_replicas: int = 1,
    *,
    broker_epoch: int | None = None,
    log_start_offset: int = 0,
) -> bool:
    """A follower's fetch arrives now; whether the high watermark moved."""
    cluster = core.cluster
    assert isinstance(cluster, Cluster)
    cluster.last_fetch_ms[replica_id] = cluster.now
    epoch = cluster.epochs.get(replica_id, -1) if broker_epoch is None else broker_epoch
    assert core.check_follower(replica_id, epoch, core.leader_epoch) is ErrorCode.NONE
    fetch = FollowerFetch(replica_id, log_end_offset, log_start_offset, epoch, cluster.now)
    return core.follower_fetched(fetch, min_insync_replicas)


def test_every_role_has_its_transitions() -> None:
    assert set(LEGAL_TRANSITIONS) == set(ReplicaRole)
    assert ReplicaRole.NONE not in LEGAL_TRANSITIONS[ReplicaRole.NONE]


def test_a_new_leader_begins_its_epoch_at_the_log_end() -> None:
    core = PartitionCore(LOCAL, Cluster())
    assert core.apply_state(state(leader_epoch=3), log_end_offset=10, high_watermark=7)
    assert (core.role, core.leader_epoch_start_offset, core.high_watermark) == (
        ReplicaRole.LEADER,
        10,
        7,
    )
    assert not core.apply_state(
        state(leader_epoch=3, partition_epoch=1), log_end_offset=12, high_watermark=7
    ), "the same leader epoch is no new leadership"
    assert core.leader_epoch_start_offset == 10


def test_an_older_state_changes_nothing() -> None:
    core = leader(leader_epoch=5, partition_epoch=8)
    for epochs in ((4, 9), (5, 7)):
        older = state(LOCAL, *epochs, replicas=(1, 2))
        assert core.apply_state(older, log_end_offset=9, high_watermark=0) is False
        assert core.replicas == (1, 2, 3)
    assert (core.role, core.leader_epoch, core.partition_epoch) == (ReplicaRole.LEADER, 5, 8)


def test_what_the_controller_decided_is_known_as_it_is() -> None:
    decided = PartitionState(
        2, 3, 4, (1, 2, 3), (2, 1), adding_replicas=(3,), removing_replicas=(1,)
    )
    core = PartitionCore(LOCAL, Cluster())
    core.apply_state(decided, log_end_offset=0, high_watermark=0)
    assert core.state == decided


def test_a_new_leader_commits_up_to_the_end_of_its_log() -> None:
    core = leader(10, replicas=(1,))
    assert core.advance_high_watermark(1)
    assert core.high_watermark == 10


def test_a_replica_that_resigns_knows_of_no_other() -> None:
    core = leader(isr=(1, 2))
    fetched(core, 3, 0)
    change = core.propose_after_fetch(3)
    assert change is not None
    core.resign()
    assert (core.role, core.in_sync.pending, core.followers) == (ReplicaRole.NONE, None, {})


def test_checkpointed_high_watermark_never_passes_the_log_end() -> None:
    core = PartitionCore(LOCAL, Cluster())
    core.apply_state(state(), log_end_offset=4, high_watermark=9)
    assert core.high_watermark == 4


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_leader_epochs(leader_epoch: int, error: ErrorCode) -> None:
    assert leader(leader_epoch=5).check_leader(leader_epoch) is error
    follower = leader(leader_id=2, leader_epoch=5)
    assert follower.check_leader_epoch(leader_epoch) is error
    expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if error is ErrorCode.NONE else error
    assert follower.check_leader(leader_epoch) is expected


def test_under_min_isr() -> None:
    core = leader(isr=(1, 2))
    assert not core.is_under_min_isr(2)
    assert core.is_under_min_isr(3)
    alone = leader(replicas=(1,))
    assert not alone.is_under_min_isr(2), "no more can be required than are assigned"


def test_one_replica_commits_what_it_has() -> None:
    core = leader(replicas=(1,))
    assert core.local_log_grew(5, 1)
    assert core.high_watermark == 5
    assert not core.local_log_grew(5, 1)


def test_the_slowest_in_sync_replica_decides() -> None:
    core = leader(isr=(1, 2))
    assert not core.local_log_grew(10, 1)
    assert not fetched(core, 3, 10), "3 is not in sync"
    assert fetched(core, 2, 6)
    assert core.high_watermark == 6
    assert fetched(core, 2, 12), "ahead of the leader counts as its end"
    assert core.high_watermark == 10


def test_a_stranger_may_not_fetch() -> None:
    core = leader(replicas=(1, 2), leader_epoch=4)
    assert core.check_follower(9, 1, 4) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert core.check_follower(9, 1, -1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert core.check_follower(9, 1, 3) is ErrorCode.FENCED_LEADER_EPOCH
    assert core.check_follower(LOCAL, 1, -1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    first_epoch = leader(replicas=(1, 2), leader_epoch=0)
    assert first_epoch.check_follower(9, 1, 0) is ErrorCode.UNKNOWN_LEADER_EPOCH
    follows = leader(leader_id=2)
    assert follows.check_follower(3, 13, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_nothing_commits_under_min_isr() -> None:
    core = leader(isr=(1,))
    assert not core.local_log_grew(10, 2)
    assert core.high_watermark == 0
    assert core.advance_high_watermark(1)
    assert core.high_watermark == 10


def test_is_committed() -> None:
    core = leader(isr=(1, 2))
    core.local_log_grew(10, 2)
    assert core.is_committed(10, 2) is None
    fetched(core, 2, 10, 2)
    assert core.is_committed(10, 2) is ErrorCode.NONE
    core.apply_state(state(partition_epoch=1, isr=(1,)), log_end_offset=10, high_watermark=10)
    assert core.is_committed(10, 2) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    core.resign()
    assert core.is_committed(10, 2) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_under_replicated() -> None:
    assert leader(isr=(1, 2)).is_under_replicated
    assert not leader().is_under_replicated
    assert not leader(leader_id=2, isr=(2,)).is_under_replicated


def test_a_follower_is_cut_back_with_its_log() -> None:
    core = PartitionCore(LOCAL, Cluster())
    core.apply_state(state(leader_id=2), log_end_offset=10, high_watermark=8)
    core.local_log_was_cut(5)
    assert core.high_watermark == 5


def test_a_followers_high_watermark_follows_and_stays() -> None:
    core = leader(leader_id=2)
    assert core.follow_high_watermark(7, 5)
    assert core.high_watermark == 5, "not past its own end"
    assert not core.follow_high_watermark(3, 9), "a new leader may know less"
    assert not core.follow_high_watermark(5, 9)
    assert core.high_watermark == 5
