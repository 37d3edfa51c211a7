"""What a leader counts as committed, whom it answers when, and when it gives up (KIP-595, 1166)."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import Role, replication
from moldau.raft.core.effects import AdvanceHighWatermark, ReadRecords, Reply
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from moldau.raft.core.replication import MAX_PARKED_FETCHES
from moldau.raft.core.values import EpochEnd, ReplicaKey, SnapshotId
from tests.unit.raft.core.harness import Record, endpoints, key, voter_set
from tests.unit.raft.core.solo import Solo

CHECK_QUORUM_MS = 3_000.0


def leader(*held: Record, voters: tuple[int, ...] = (1, 2, 3), **options: Any) -> Solo:
    solo = Solo(voter_set(*voters), records=held, **options)
    solo.lead()
    return solo


def answer(response: object) -> FetchResponse:
    assert isinstance(response, FetchResponse), response
    return response


# The high watermark


def test_a_majority_commits() -> None:
    solo = leader()
    assert solo.core.state.epoch_start_offset == 0
    assert solo.core.state.high_watermark == 0
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 1


def test_the_leaders_own_log_counts_only_when_flushed() -> None:
    solo = leader(flushes=False)
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 0
    solo.replica.flush()
    assert solo.core.state.high_watermark == 1


def test_a_majority_without_the_leader_commits_too() -> None:
    solo = leader(flushes=False)
    solo.fetch_by(2)
    solo.fetch_by(3)
    assert solo.core.state.high_watermark == 1


def test_records_of_earlier_epochs_are_not_committed_alone_raft_5_4_2() -> None:
    solo = leader(Record(1, "a"), Record(1, "b"))
    solo.fetch_by(2, 2)
    solo.fetch_by(3, 2)
    assert solo.core.state.high_watermark == 0
    solo.fetch_by(2, 3)
    assert solo.core.state.high_watermark == 3


def test_observers_do_not_count_and_neither_does_another_disk_of_a_voter_kip_853() -> None:
    solo = leader()
    solo.fetch_by(9)
    solo.fetch_by(2, replica=key(2, disk=1))
    solo.fetch_by(2, replica=ReplicaKey(2))
    assert solo.core.state.high_watermark == 0


def test_an_observer_reads_what_is_committed_with_the_high_watermark_above_it() -> None:
    """It reads both in one answer, when both are true; a voter reads at once, for the commit needs
    it to.
    """
    solo = leader()
    solo.fetch_by(2)
    committed = solo.core.state.high_watermark
    assert solo.fetch_by(9) is None, "it waits"
    solo.replica.propose("a")
    assert len(answer(solo.fetch_by(3, committed)).records) > 0
    now = answer(solo.fetch_by(8, committed, max_wait_ms=0))
    assert (now.high_watermark, len(now.records)) == (committed, 0)
    before = len(solo.answers())
    solo.fetch_by(2)
    late = [answer(each) for each in solo.answers()[before:]]
    assert [len(each.records) > 0 for each in late].count(True) == 1
    assert {each.high_watermark for each in late} == {committed + 1}


def test_an_observer_has_caught_up_that_has_what_is_committed() -> None:
    """Else a leader that always has something under way could never take a new voter."""
    solo = leader()
    solo.fetch_by(2)
    committed = solo.core.state.high_watermark
    solo.replica.propose("a")
    solo.fetch_by(9, committed, max_wait_ms=0)
    _, (observer,) = solo.core.progress()
    assert observer.last_caught_up_ms == solo.now_ms


def test_at_kraft_version_0_every_disk_of_a_configured_voter_counts() -> None:
    solo = Solo(voter_set(1, 2, 3, kraft_version=0))
    solo.lead()
    solo.fetch_by(2, replica=key(2, disk=4))
    assert solo.core.state.high_watermark == 1


def test_a_voter_that_lost_its_disk_does_not_bring_the_high_watermark_back() -> None:
    solo = leader()
    solo.replica.propose("a")
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 2
    solo.fetch_by(2, 0)
    assert solo.core.state.high_watermark == 2
    solo.replica.propose("b")
    assert solo.core.state.high_watermark == 2


def test_five_voters_need_three() -> None:
    solo = Solo(voter_set(1, 2, 3, 4, 5))
    solo.wait(1_500)
    for _ in range(2):
        solo.grant(2)
        solo.grant(3)
    assert solo.role is Role.LEADER
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 0
    solo.fetch_by(3)
    assert solo.core.state.high_watermark == 1


# Fetches


def test_a_fetch_gets_all_of_the_log_committed_or_not() -> None:
    solo = leader()
    solo.replica.propose("a")
    response = answer(solo.fetch_by(2, 1))
    assert response.error is ErrorCode.NONE
    read = solo.of(ReadRecords)[-1]
    assert isinstance(read, ReadRecords)
    assert (read.start_offset, read.end_offset) == (1, 2)
    assert (response.high_watermark, response.log_start_offset) == (1, 0)
    assert (response.leader_id, response.leader_epoch) == (1, 1)
    assert response.leader_endpoints == endpoints(1)


def test_a_fetch_with_nothing_new_waits_for_records() -> None:
    solo = leader()
    assert solo.fetch_by(2) is not None, "the high watermark is news"
    assert solo.fetch_by(2) is None
    solo.replica.propose("a")
    assert len(answer(solo.answers()[-1]).records) > 0


def test_a_waiting_fetch_is_answered_when_the_high_watermark_moves_kip_1166() -> None:
    solo = leader()
    solo.fetch_by(2)
    assert solo.fetch_by(3) is None
    solo.replica.propose("a")
    before = len(solo.answers())
    assert solo.fetch_by(3, 2) is not None, "it was told the high watermark at once"
    assert solo.core.state.high_watermark == 2
    assert solo.fetch_by(2, 2, high_watermark=1) is not None
    assert len(solo.answers()) == before + 2


def test_the_high_watermark_advances_before_it_is_answered() -> None:
    solo = leader()
    assert solo.fetch_by(3, high_watermark=0) is not None
    kinds = [type(each) for each in solo.effects]
    assert kinds.index(AdvanceHighWatermark) < kinds.index(Reply)


def test_a_waiting_fetch_is_answered_when_its_time_is_over() -> None:
    solo = leader()
    solo.fetch_by(2)
    assert solo.fetch_by(2, max_wait_ms=300) is None
    before = len(solo.answers())
    solo.wait(299)
    assert len(solo.answers()) == before
    solo.wait(1)
    assert len(answer(solo.answers()[-1]).records) == 0
    assert len(solo.answers()) == before + 1


def test_a_fetch_that_does_not_want_to_wait_does_not() -> None:
    solo = leader()
    solo.fetch_by(2)
    assert solo.fetch_by(2, max_wait_ms=0) is not None


def test_a_waiting_fetch_is_answered_when_leadership_ends() -> None:
    solo = leader()
    solo.fetch_by(2)
    assert solo.fetch_by(2) is None
    solo.follow(3, 5)
    response = answer(solo.answers()[-1])
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert (response.leader_id, response.leader_epoch) == (3, 5)


def test_a_replica_waits_only_once() -> None:
    solo = leader()
    solo.fetch_by(2)
    assert solo.fetch_by(2) is None
    before = len(solo.answers())
    assert solo.fetch_by(2) is None
    assert len(solo.answers()) == before + 1, "the older fetch is answered"


def test_waiting_fetches_are_bounded() -> None:
    solo = leader()
    for node_id in range(100, 100 + MAX_PARKED_FETCHES):
        assert solo.core.on_request(
            FetchRequest(key(node_id), 1, 1, 1, 0), (99, node_id), solo.now_ms
        ) in ([],)
    assert solo.fetch_by(9) is not None


def test_observers_beyond_a_number_are_served_and_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replication, "MAX_OBSERVERS", 5)
    solo = leader()
    for node_id in range(100, 120):
        response = answer(solo.fetch_by(node_id, max_wait_ms=0))
        assert response.error is ErrorCode.NONE
    state = solo.core.state
    assert state.leading is not None
    assert len(state.leading.progress) == len(state.leading.latest_key) == 5
    assert answer(solo.fetch_by(2, max_wait_ms=0)).error is ErrorCode.NONE, (
        "voters have their places"
    )
    assert key(2) in state.leading.progress


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (9, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_an_observers_fetch_in_another_epoch(leader_epoch: int, error: ErrorCode) -> None:
    solo = leader()
    response = answer(solo.fetch_by(9, leader_epoch=leader_epoch))
    assert response.error is error
    assert (response.leader_id, response.leader_epoch) == (1, 1)
    assert solo.role is Role.LEADER


def test_a_voters_fetch_in_a_higher_epoch_deposes_the_leader() -> None:
    solo = leader()
    response = answer(solo.fetch_by(2, leader_epoch=4))
    assert response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert response.leader_epoch == solo.replica.election.leader_epoch == 4
    assert solo.role is Role.UNATTACHED


def test_a_follower_refuses_fetches_and_names_the_leader() -> None:
    solo = Solo()
    solo.follow(2, 1)
    response = answer(solo.fetch_by(3))
    assert response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (response.leader_id, response.leader_endpoints) == (2, endpoints(2))


@pytest.mark.parametrize(("offset", "epoch", "wait"), [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_a_fetch_that_makes_no_sense_is_refused(offset: int, epoch: int, wait: int) -> None:
    solo = leader()
    response = answer(solo.fetch_by(2, offset, last_epoch=epoch, max_wait_ms=wait))
    assert response.error is ErrorCode.INVALID_REQUEST


HELD = (Record(1, "a"), Record(1, "b"), Record(3, "c"))


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"),
    [
        (2, 1, None),
        (3, 3, None),
        (0, 0, None),
        (3, 1, EpochEnd(1, 2)),
        (3, 2, EpochEnd(1, 2)),
        (9, 4, EpochEnd(4, 4)),
        (7, 6, EpochEnd(4, 4)),
        (5, 3, EpochEnd(3, 3)),
    ],
)
def test_where_the_logs_part_kip_595(offset: int, epoch: int, diverging: EpochEnd | None) -> None:
    solo = leader(*HELD)
    assert solo.core.state.leader_epoch == 4
    response = answer(solo.fetch_by(2, offset, last_epoch=epoch))
    assert response.error is ErrorCode.NONE
    assert response.diverging == diverging
    if diverging is not None:
        assert len(response.records) == 0
        voters, _ = solo.core.progress()
        assert voters[1].log_end_offset == -1, "it has not got what it says"


# Snapshots (KIP-630)


def trimmed() -> tuple[Solo, SnapshotId]:
    """A leader whose log starts at 3, above a snapshot that ends in epoch 1."""
    solo = leader()
    for value in ("a", "b", "c"):
        solo.replica.propose(value)
    solo.fetch_by(2)
    snapshot_id = solo.replica.snapshot(3)
    return solo, snapshot_id


@pytest.mark.parametrize(
    ("offset", "epoch", "needs_snapshot"),
    [(0, 0, True), (2, 1, True), (3, 1, False), (4, 1, False), (3, 0, True)],
)
def test_who_is_below_the_log_start_gets_a_snapshot_id(
    offset: int, epoch: int, needs_snapshot: bool
) -> None:
    solo, snapshot_id = trimmed()
    response = answer(solo.fetch_by(3, offset, last_epoch=epoch, max_wait_ms=0))
    assert response.snapshot_id == (snapshot_id if needs_snapshot else None)


def test_who_has_another_epoch_at_the_log_start_gets_a_snapshot_id() -> None:
    solo, snapshot_id = trimmed()
    response = answer(solo.fetch_by(3, 3, last_epoch=2, max_wait_ms=0))
    assert (response.snapshot_id, response.diverging) == (snapshot_id, None)


def test_an_epoch_of_later_records_at_the_log_start_is_another_one_too() -> None:
    solo = leader(*HELD)
    solo.fetch_by(2, 4, last_epoch=4)
    snapshot_id = solo.replica.snapshot(2)
    response = answer(solo.fetch_by(3, 2, last_epoch=3, max_wait_ms=0))
    assert (response.snapshot_id, len(response.records)) == (snapshot_id, 0)
    voters, _ = solo.core.progress()
    assert voters[2].log_end_offset == -1, "it has not got what it says"


def test_a_log_that_starts_at_1_sends_an_unknown_epoch_to_its_snapshot() -> None:
    solo = leader()
    solo.replica.propose("a")
    solo.fetch_by(2)
    snapshot_id = solo.replica.snapshot(1)
    response = answer(solo.fetch_by(3, 2, last_epoch=0, max_wait_ms=0))
    assert (response.snapshot_id, response.diverging) == (snapshot_id, None)


def test_an_empty_log_gets_the_snapshot_even_while_the_log_is_whole() -> None:
    solo = leader()
    solo.replica.propose("a")
    solo.fetch_by(2)
    snapshot_id = solo.replica.snapshot(2, trim=False)
    assert answer(solo.fetch_by(3, 0, last_epoch=0)).snapshot_id == snapshot_id
    assert answer(solo.fetch_by(3, 1, last_epoch=1)).snapshot_id is None


def test_fetch_snapshot_reads_from_the_position() -> None:
    solo, snapshot_id = trimmed()
    whole = solo.ask(FetchSnapshotRequest(key(3), 1, snapshot_id, 0))
    rest = solo.ask(FetchSnapshotRequest(key(3), 1, snapshot_id, 7))
    assert isinstance(whole, FetchSnapshotResponse)
    assert isinstance(rest, FetchSnapshotResponse)
    assert whole.snapshot_id == rest.snapshot_id == snapshot_id
    assert (rest.position, rest.size_bytes) == (7, whole.size_bytes)
    assert bytes(whole.data)[7:] == bytes(rest.data)[: len(whole.data) - 7]


@pytest.mark.parametrize(
    ("epoch", "end_offset", "position", "error"),
    [
        (1, 2, 0, ErrorCode.SNAPSHOT_NOT_FOUND),
        (1, 3, -1, ErrorCode.POSITION_OUT_OF_RANGE),
        (1, 3, 1 << 40, ErrorCode.POSITION_OUT_OF_RANGE),
        (0, 3, 0, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_fetch_snapshot_refusals(
    epoch: int, end_offset: int, position: int, error: ErrorCode
) -> None:
    solo, _ = trimmed()
    request = FetchSnapshotRequest(key(3), epoch, SnapshotId(end_offset, 1), position)
    response = solo.ask(request)
    assert isinstance(response, FetchSnapshotResponse)
    assert response.error is error
    assert response.leader_id == 1


@pytest.mark.parametrize(("node_id", "role"), [(2, Role.UNATTACHED), (9, Role.LEADER)])
def test_a_voters_snapshot_fetch_in_a_higher_epoch_deposes_the_leader(
    node_id: int, role: Role
) -> None:
    solo, snapshot_id = trimmed()
    response = solo.ask(FetchSnapshotRequest(key(node_id), 4, snapshot_id, 0))
    assert isinstance(response, FetchSnapshotResponse)
    is_leader = role is Role.LEADER
    assert response.error is (
        ErrorCode.UNKNOWN_LEADER_EPOCH if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    assert response.leader_epoch == solo.replica.election.leader_epoch == (1 if is_leader else 4)
    assert solo.role is role


# The quorum


def test_check_quorum_a_leader_without_a_majority_resigns() -> None:
    solo = leader()
    solo.wait(1_000)
    solo.fetch_by(2)
    solo.wait(CHECK_QUORUM_MS - 1)
    assert solo.role is Role.LEADER
    solo.wait(1)
    assert solo.role is Role.RESIGNED
    assert {node_id for node_id, _ in solo.sent(EndQuorumEpochRequest)} == {2, 3}


def test_check_quorum_counts_snapshot_fetches() -> None:
    solo, snapshot_id = trimmed()
    solo.wait(2_000)
    solo.ask(FetchSnapshotRequest(key(3), 1, snapshot_id, 0))
    solo.wait(2_000)
    assert solo.role is Role.LEADER


def test_check_quorum_does_not_count_observers() -> None:
    solo = leader()
    solo.wait(2_900)
    solo.fetch_by(9)
    solo.fetch_by(2, replica=key(2, disk=1))
    solo.wait(100)
    assert solo.role is Role.RESIGNED


def test_check_quorum_of_five_needs_two_others() -> None:
    solo = Solo(voter_set(1, 2, 3, 4, 5))
    solo.wait(1_500)
    for _ in range(2):
        solo.grant(2)
        solo.grant(3)
    for _ in range(4):
        solo.wait(1_000)
        if solo.role is Role.LEADER:
            solo.fetch_by(2)
    assert solo.role is Role.RESIGNED


def test_a_sole_voter_leads_without_votes_of_others() -> None:
    solo = Solo(voter_set(1))
    solo.wait(100_000)
    assert solo.role is Role.LEADER


def test_begin_quorum_epoch_until_every_voter_has_answered_or_fetched() -> None:
    solo = leader()
    assert [node_id for node_id, _ in solo.sent(BeginQuorumEpochRequest)] == [2, 3]
    assert solo.sent(BeginQuorumEpochRequest)[0][1].voter == key(2)
    solo.respond(BeginQuorumEpochRequest, 2, BeginQuorumEpochResponse(ErrorCode.NONE, 1, 1))
    solo.respond(BeginQuorumEpochRequest, 3, None)
    solo.wait(20)
    assert [node_id for node_id, _ in solo.sent(BeginQuorumEpochRequest)] == [3]
    solo.respond(BeginQuorumEpochRequest, 3, None)
    solo.fetch_by(3)
    solo.wait(900)
    assert solo.sent(BeginQuorumEpochRequest) == []


def test_begin_quorum_epoch_again_to_who_is_silent_for_half_a_fetch_timeout() -> None:
    solo = leader()
    for node_id in (2, 3):
        response = BeginQuorumEpochResponse(ErrorCode.NONE, 1, 1)
        solo.respond(BeginQuorumEpochRequest, node_id, response)
    solo.wait(600)
    solo.fetch_by(2)
    solo.wait(400)
    assert [node_id for node_id, _ in solo.sent(BeginQuorumEpochRequest)] == [3]


def test_a_higher_epoch_in_an_answer_ends_leadership() -> None:
    solo = leader()
    response = BeginQuorumEpochResponse(ErrorCode.FENCED_LEADER_EPOCH, 3, 9, endpoints(3))
    solo.respond(BeginQuorumEpochRequest, 2, response)
    assert solo.role is Role.FOLLOWER
    assert solo.replica.election.leader_epoch == 9


# DescribeQuorum


def test_progress_names_voters_and_observers() -> None:
    solo = leader()
    solo.replica.propose("a")
    solo.fetch_by(2, 1)
    solo.wait(100)
    solo.fetch_by(9, 2)
    voters, observers = solo.core.progress()
    assert [each.replica for each in voters] == [key(1), key(2), key(3)]
    assert [each.log_end_offset for each in voters] == [2, 1, -1]
    assert voters[2].last_fetch_ms is None
    assert voters[1].last_caught_up_ms is None
    assert [(each.replica, each.log_end_offset) for each in observers] == [(key(9), 2)]
    assert observers[0].last_caught_up_ms == observers[0].last_fetch_ms == solo.now_ms


def test_who_has_what_there_was_at_its_last_fetch_was_caught_up_then() -> None:
    solo = leader()
    solo.fetch_by(2)
    first_ms = solo.now_ms
    solo.wait(100)
    solo.replica.propose("a")
    solo.fetch_by(2, 1)
    second_ms = solo.now_ms
    solo.wait(100)
    solo.replica.propose("b")
    solo.fetch_by(2, 2)
    voters, _ = solo.core.progress()
    assert voters[1].last_caught_up_ms == second_ms > first_ms


def test_an_observer_is_forgotten_after_five_minutes_of_silence() -> None:
    solo = leader()
    solo.fetch_by(9)
    for _ in range(303):
        solo.fetch_by(2)
        solo.wait(1_000)
    assert solo.role is Role.LEADER
    assert solo.core.progress()[1] == []


def test_a_fetch_without_a_replica_id_is_no_observer() -> None:
    solo = leader()
    solo.fetch_by(-1, 1, last_epoch=1, replica=ReplicaKey(-1, key(9).directory_id))
    assert solo.core.progress()[1] == []


def test_a_follower_knows_no_progress() -> None:
    solo = Solo()
    solo.follow(2, 1)
    assert solo.core.progress() == ([], [])


def test_a_configured_voter_with_another_disk_is_still_one_replica() -> None:
    solo = Solo(voter_set(1, 2, 3, kraft_version=0))
    solo.lead()
    for disk in range(5):
        solo.fetch_by(2, replica=key(2, disk))
        solo.fetch_by(3, 0, replica=key(3, disk))
    voters, observers = solo.core.progress()
    assert [each.replica.node_id for each in voters] == [1, 2, 3]
    assert [each.log_end_offset for each in voters] == [1, 1, 0]
    assert observers == []
    assert solo.core.state.high_watermark == 1
