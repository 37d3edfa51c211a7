"""A replica whose disk has no room: it leads no more, does not stand, and comes back with room."""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import Role
from moldau.raft.core.effects import AppendFetched, AppendVoters, Persist, WriteSnapshotChunk
from moldau.raft.core.messages import (
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.settings import QuorumSettings
from moldau.raft.core.values import SnapshotId
from tests.unit.raft.core.harness import key, voter_set
from tests.unit.raft.core.solo import ELECTION_TIMEOUT_MS, FETCH_TIMEOUT_MS, Solo


def lose_room(solo: Solo, *, may_lead_on: bool = True) -> None:
    solo.replica.run(solo.core.on_no_room(solo.now_ms, may_lead_on=may_lead_on))


def regain_room(solo: Solo) -> None:
    solo.replica.run(solo.core.on_room(solo.now_ms))


def vote_asked_by(solo: Solo, node_id: int, *, pre_vote: bool = False) -> VoteResponse:
    response = solo.ask(
        VoteRequest(
            candidate=key(node_id),
            voter=key(1),
            leader_epoch=solo.core.state.leader_epoch + (0 if pre_vote else 1),
            last_leader_epoch=solo.replica.log.last_leader_epoch,
            log_end_offset=solo.replica.log.log_end_offset,
            pre_vote=pre_vote,
        )
    )
    assert isinstance(response, VoteResponse)
    return response


def test_a_leader_without_room_hands_over_to_the_longest_log() -> None:
    solo = Solo()
    solo.lead()
    solo.replica.propose("a")
    solo.fetch_by(2, 1)
    solo.fetch_by(3, 2)
    lose_room(solo)
    assert solo.role is Role.RESIGNED
    told = solo.sent(EndQuorumEpochRequest)
    assert [each.node_id for each in told[-1][1].preferred_candidates] == [3, 2]


def test_a_voter_without_room_votes_and_does_not_stand_until_there_is_room() -> None:
    solo = Solo()
    lose_room(solo)
    solo.wait(20 * ELECTION_TIMEOUT_MS)
    assert solo.role is Role.UNATTACHED
    assert solo.sent(VoteRequest) == []
    assert vote_asked_by(solo, 2, pre_vote=True).vote_granted
    assert vote_asked_by(solo, 2).vote_granted
    regain_room(solo)
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.PROSPECTIVE


def test_a_leader_without_room_that_resigned_keeps_its_epoch() -> None:
    """A new epoch would have to be written down, and no vote is wanted in it."""
    solo = Solo()
    solo.lead()
    lose_room(solo)
    solo.wait(2 * ELECTION_TIMEOUT_MS)
    assert solo.role is Role.UNATTACHED
    assert solo.core.state.leader_epoch == 1
    regain_room(solo)
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.PROSPECTIVE


def test_a_campaign_ends_with_the_room() -> None:
    solo = Solo()
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.PROSPECTIVE
    lose_room(solo)
    assert solo.role is Role.UNATTACHED
    regain_room(solo)
    solo.stand()
    lose_room(solo)
    assert solo.role is Role.UNATTACHED
    solo.grant(2)
    assert solo.role is Role.UNATTACHED, "the vote came too late"


def test_a_follower_without_room_does_not_stand_when_its_leader_is_gone() -> None:
    solo = Solo()
    solo.follow()
    lose_room(solo)
    solo.wait(3 * FETCH_TIMEOUT_MS)
    assert solo.role is Role.UNATTACHED
    assert solo.sent(VoteRequest) == []


def test_the_only_voter_leads_on_without_room() -> None:
    solo = Solo(voter_set(1))
    assert solo.role is Role.LEADER
    for _ in range(3):
        lose_room(solo)
        assert solo.role is Role.LEADER
    regain_room(solo)
    solo.replica.propose("a")
    assert solo.core.state.high_watermark == solo.replica.log.log_end_offset
    assert solo.core.state.leader_epoch == 1


def test_the_only_voter_whose_own_batch_found_no_room_leads_again_with_room() -> None:
    """Else the change of voters would be in no log, and keep all others from beginning."""
    solo = Solo(voter_set(1))
    lose_room(solo, may_lead_on=False)
    solo.wait(20 * ELECTION_TIMEOUT_MS)
    assert solo.role is Role.UNATTACHED
    assert len(solo.of(Persist)) < 10, "no epoch after the other"
    regain_room(solo)
    assert solo.role is Role.LEADER
    assert solo.core.state.leader_epoch == 2


def test_a_change_of_voters_that_found_no_room_ends() -> None:
    solo = Solo()
    solo.lead()
    solo.fetch_by(2)
    solo.fetch_by(3)
    solo.replica.flush()
    effects = solo.core.remove_voter("remove", key(3), solo.now_ms, timeout_ms=60_000)
    assert isinstance(effects[-1], AppendVoters)
    lose_room(solo, may_lead_on=False)
    assert solo.completed() == [("remove", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert solo.role is Role.RESIGNED


def test_records_that_find_no_room_are_fetched_less_and_less_often() -> None:
    solo = Solo()
    solo.follow()
    pauses: list[float] = []
    for _ in range(12):
        fetch = solo._take(FetchRequest, 2).send
        response = FetchResponse(ErrorCode.NONE, 2, 1, records=b"-", high_watermark=0)
        (append,) = solo.core.on_response(fetch, response, solo.now_ms)
        assert isinstance(append, AppendFetched)
        lose_room(solo)
        solo.replica.run(solo.core.on_append_refused(solo.now_ms))
        refused_ms = solo.now_ms
        while 2 not in [to for to, _ in solo.sent(FetchRequest)]:
            due_ms = solo.core.next_tick_ms()
            assert due_ms is not None
            solo.wait(due_ms - solo.now_ms)
        pauses.append(solo.now_ms - refused_ms)
    assert pauses == sorted(pauses)
    assert pauses[-1] == QuorumSettings(key(1), ()).fetch_timeout_ms / 2
    assert solo.role is Role.FOLLOWER, "it fetches often enough for its leader"


def test_no_snapshot_is_fetched_without_room() -> None:
    solo = Solo()
    solo.follow()
    lose_room(solo)
    for _ in range(3):
        solo.fetched(snapshot_id=SnapshotId(10, 1))
        solo.wait(FETCH_TIMEOUT_MS / 2)
    assert solo.sent(FetchSnapshotRequest) == []
    assert solo.of(WriteSnapshotChunk) == []
    regain_room(solo)
    solo.fetched(snapshot_id=SnapshotId(10, 1))
    assert len(solo.sent(FetchSnapshotRequest)) == 1
