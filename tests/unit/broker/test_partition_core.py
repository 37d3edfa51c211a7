"""The partition's state machine: roles, epochs, in-sync replicas, high watermark."""

from __future__ import annotations

import os
import random

import pytest

from moldau.broker.partition.core import (
    LEGAL_TRANSITIONS,
    PartitionCore,
    PartitionState,
    ReplicaRole,
)
from moldau.broker.partition.core.replica_state import last_stable_offset
from moldau.protocol.errors import ErrorCode

LOCAL = 1


def state(
    leader_id: int = LOCAL,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    replicas: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] | None = None,
) -> PartitionState:
    return PartitionState(
        leader_id, leader_epoch, partition_epoch, replicas, replicas if isr is None else isr
    )


def leader(log_end_offset: int = 0, **fields: object) -> PartitionCore:
    core = PartitionCore(LOCAL)
    core.apply_state(
        state(**fields),  # type: ignore[arg-type]
        log_end_offset=log_end_offset,
        high_watermark=0,
    )
    return core


def test_every_role_has_its_transitions() -> None:
    assert set(LEGAL_TRANSITIONS) == set(ReplicaRole)
    assert ReplicaRole.NONE not in LEGAL_TRANSITIONS[ReplicaRole.NONE]


def test_a_new_leader_begins_its_epoch_at_the_log_end() -> None:
    core = PartitionCore(LOCAL)
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
    core.apply_state(state(leader_id=2, leader_epoch=4, partition_epoch=9), log_end_offset=0,
                     high_watermark=0)  # fmt: skip
    core.apply_state(state(leader_id=2, leader_epoch=5, partition_epoch=7), log_end_offset=0,
                     high_watermark=0)  # fmt: skip
    assert (core.role, core.leader_epoch, core.partition_epoch) == (ReplicaRole.LEADER, 5, 8)


def test_checkpointed_high_watermark_never_passes_the_log_end() -> None:
    core = PartitionCore(LOCAL)
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


def test_check_isr() -> None:
    core = leader(isr=(1, 2))
    assert core.check_isr(2, -1) is ErrorCode.NONE
    assert core.check_isr(3, -1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert core.check_isr(3, 1) is ErrorCode.NONE
    alone = leader(replicas=(1,))
    assert alone.check_isr(2, -1) is ErrorCode.NONE, "more cannot be asked for than are assigned"


def test_one_replica_commits_what_it_has() -> None:
    core = leader(replicas=(1,))
    assert core.update_log_end_offset(LOCAL, 5, 1)
    assert core.high_watermark == 5
    assert not core.update_log_end_offset(LOCAL, 5, 1)


def test_the_slowest_in_sync_replica_decides() -> None:
    core = leader(isr=(1, 2))
    assert not core.update_log_end_offset(LOCAL, 10, 1)
    assert not core.update_log_end_offset(3, 10, 1), "3 is not in sync"
    assert core.update_log_end_offset(2, 6, 1)
    assert core.high_watermark == 6
    assert core.update_log_end_offset(2, 12, 1), "ahead of the leader counts as its end"
    assert core.high_watermark == 10


def test_a_stranger_moves_nothing() -> None:
    core = leader(replicas=(1, 2))
    core.update_log_end_offset(LOCAL, 10, 1)
    assert not core.update_log_end_offset(9, 10, 1)
    assert 9 not in core.log_end_offsets


def test_nothing_commits_under_min_isr() -> None:
    core = leader(isr=(1,))
    assert not core.update_log_end_offset(LOCAL, 10, 2)
    assert core.high_watermark == 0
    assert core.advance_high_watermark(1)
    assert core.high_watermark == 10


def test_is_committed() -> None:
    core = leader(isr=(1, 2))
    core.update_log_end_offset(LOCAL, 10, 2)
    assert core.is_committed(10, 2) is None
    core.update_log_end_offset(2, 10, 2)
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
    core = PartitionCore(LOCAL)
    core.apply_state(state(leader_id=2), log_end_offset=10, high_watermark=8)
    core.truncate_local_log(5)
    assert core.high_watermark == 5


@pytest.mark.parametrize(
    ("first_unstable_offset", "expected"), [(None, 10), (4, 4), (10, 10), (12, 10)]
)
def test_last_stable_offset(first_unstable_offset: int | None, expected: int) -> None:
    assert last_stable_offset(10, first_unstable_offset) == expected


@pytest.mark.parametrize("round_number", range(20))
def test_invariants_hold_whatever_happens(round_number: int) -> None:
    """The high watermark of a leader epoch never goes back nor past the leader's log; what is
    committed is on every replica that is in sync.
    """
    seed = int(os.environ.get("MOLDAU_SEED", 99)) + round_number
    print(f"MOLDAU_SEED={seed}")
    chance = random.Random(seed)
    ends = dict.fromkeys((1, 2, 3), 0)
    isr: tuple[int, ...] = (1, 2, 3)
    core = leader()
    epochs = [0, 0]
    for _ in range(400):
        before = core.high_watermark
        min_insync_replicas = chance.randint(1, 3)
        event = chance.randrange(4)
        if event == 0:
            ends[LOCAL] += chance.randint(1, 5)
            core.update_log_end_offset(LOCAL, ends[LOCAL], min_insync_replicas)
        elif event == 1:
            replica = chance.choice((2, 3))
            ends[replica] = min(ends[LOCAL], ends[replica] + chance.randint(0, 8))
            core.update_log_end_offset(replica, ends[replica], min_insync_replicas)
        elif event == 2:
            caught_up = tuple(r for r in (2, 3) if ends[r] >= core.high_watermark)
            isr = (LOCAL, *(r for r in caught_up if chance.random() < 0.7))
            epochs[1] += 1
            core.apply_state(
                state(leader_epoch=epochs[0], partition_epoch=epochs[1], isr=isr),
                log_end_offset=ends[LOCAL],
                high_watermark=core.high_watermark,
            )
        else:
            core.advance_high_watermark(min_insync_replicas)
        assert before <= core.high_watermark <= ends[LOCAL]
        assert all(ends[replica] >= core.high_watermark for replica in isr)
