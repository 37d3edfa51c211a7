"""Who gets this replica's vote (KIP-595 "Vote", KIP-853, KIP-996, Raft 5.2 and 5.4.1)."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import Role
from moldau.raft.core.effects import Persist, Reply
from moldau.raft.core.messages import (
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.values import ElectionState, ReplicaKey
from tests.unit.raft.core.harness import Record, endpoints, key
from tests.unit.raft.core.solo import ELECTION_TIMEOUT_MS, FETCH_TIMEOUT_MS, Solo

LOG = (Record(1, "a"), Record(2, "b"))


def vote(
    candidate: ReplicaKey = key(2),  # noqa: B008 - a value
    epoch: int = 3,
    *,
    last_epoch: int = 2,
    end_offset: int = 2,
    pre_vote: bool = False,
    voter: ReplicaKey | None = None,
) -> VoteRequest:
    return VoteRequest(candidate, voter, epoch, last_epoch, end_offset, pre_vote)


def ask(solo: Solo, request: VoteRequest) -> VoteResponse:
    response = solo.ask(request)
    assert isinstance(response, VoteResponse)
    return response


def test_a_vote_is_persisted_before_it_is_answered() -> None:
    solo = Solo(records=LOG)
    before = len(solo.effects)
    assert ask(solo, vote()).vote_granted
    told = solo.effects[before:]
    persisted = next(i for i, each in enumerate(told) if isinstance(each, Persist))
    replied = next(i for i, each in enumerate(told) if isinstance(each, Reply))
    assert persisted < replied
    assert solo.replica.election == ElectionState(3, -1, key(2))


def test_one_vote_per_epoch_raft_5_2() -> None:
    solo = Solo(records=LOG)
    assert ask(solo, vote(key(2))).vote_granted
    refused = ask(solo, vote(key(3)))
    assert refused.error is ErrorCode.NONE
    assert not refused.vote_granted
    assert ask(solo, vote(key(2))).vote_granted, "the same candidate asks again"
    assert ask(solo, vote(key(3), epoch=4)).vote_granted


def test_the_vote_survives_a_restart() -> None:
    solo = Solo(records=LOG)
    ask(solo, vote(key(2)))
    solo.replica.crash()
    solo.replica.start()
    assert not ask(solo, vote(key(3))).vote_granted
    assert ask(solo, vote(key(2))).vote_granted


def test_the_same_node_on_another_disk_is_another_candidate_kip_853() -> None:
    solo = Solo(records=LOG)
    assert ask(solo, vote(key(2))).vote_granted
    assert not ask(solo, vote(key(2, disk=1))).vote_granted


@pytest.mark.parametrize(
    ("last_epoch", "end_offset", "granted"),
    [(2, 2, True), (2, 3, True), (2, 1, False), (1, 9, False), (3, 1, True)],
)
@pytest.mark.parametrize("pre_vote", [False, True])
def test_only_for_a_log_that_has_everything_raft_5_4_1(
    last_epoch: int, end_offset: int, granted: bool, pre_vote: bool
) -> None:
    solo = Solo(records=LOG)
    request = vote(epoch=5, last_epoch=last_epoch, end_offset=end_offset, pre_vote=pre_vote)
    assert ask(solo, request).vote_granted is granted


def test_a_candidate_outside_the_own_voter_set_may_get_it_kip_853() -> None:
    solo = Solo(records=LOG)
    assert ask(solo, vote(key(7))).vote_granted


def test_node_0_is_a_candidate_like_any_other() -> None:
    solo = Solo(records=LOG)
    assert ask(solo, vote(key(0))).vote_granted


def test_an_observer_grants_votes_too_kip_853() -> None:
    solo = Solo(records=LOG, node_id=9)
    assert not solo.core.state.is_voter
    assert ask(solo, vote()).vote_granted


def test_an_older_epoch_is_fenced() -> None:
    solo = Solo(records=LOG, election=ElectionState(5))
    response = ask(solo, vote(epoch=4))
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert response.leader_epoch == 5


def test_a_higher_epoch_is_adopted_even_when_the_vote_is_refused() -> None:
    solo = Solo(records=LOG)
    response = ask(solo, vote(epoch=8, end_offset=1))
    assert not response.vote_granted
    assert response.leader_epoch == solo.replica.election.leader_epoch == 8


def test_a_leader_in_a_higher_epoch_request_becomes_unattached() -> None:
    solo = Solo()
    solo.lead()
    epoch = solo.core.state.leader_epoch
    response = ask(solo, vote(epoch=epoch + 1, last_epoch=epoch, end_offset=9))
    assert response.vote_granted
    assert solo.role is Role.UNATTACHED


def test_a_request_for_another_disk_is_refused_kip_853() -> None:
    solo = Solo(records=LOG)
    response = ask(solo, vote(voter=ReplicaKey(1, UUID(int=77))))
    assert response.error is ErrorCode.INVALID_VOTER_KEY
    assert ask(solo, vote(epoch=4, voter=key(1))).vote_granted


@pytest.mark.parametrize(
    "request_",
    [
        vote(ReplicaKey(-1), epoch=5),
        vote(epoch=2, last_epoch=2),
        vote(epoch=5, end_offset=-1),
        vote(epoch=2, last_epoch=3, pre_vote=True),
    ],
)
def test_what_makes_no_sense_is_refused(request_: VoteRequest) -> None:
    assert ask(Solo(records=LOG), request_).error is ErrorCode.INVALID_REQUEST


def test_a_pre_vote_may_be_asked_for_in_the_epoch_of_the_last_record() -> None:
    solo = Solo(records=LOG, election=ElectionState(2))
    response = ask(solo, vote(epoch=2, last_epoch=2, pre_vote=True))
    assert (response.error, response.vote_granted) == (ErrorCode.NONE, True)
    assert solo.core.state.leader_epoch == 2


def test_no_vote_in_an_epoch_that_has_a_leader() -> None:
    solo = Solo()
    solo.follow(leader_id=2, leader_epoch=3)
    assert not ask(solo, vote(key(3), epoch=3, last_epoch=1, end_offset=9)).vote_granted


# PreVote (KIP-996)


def test_a_pre_vote_does_not_bind_the_voter() -> None:
    solo = Solo(records=LOG, election=ElectionState(3))
    persisted = len(solo.of(Persist))
    assert ask(solo, vote(key(2), pre_vote=True)).vote_granted
    assert ask(solo, vote(key(3), pre_vote=True)).vote_granted
    assert len(solo.of(Persist)) == persisted
    assert ask(solo, vote(key(3))).vote_granted


def test_no_pre_vote_while_the_leader_is_alive() -> None:
    solo = Solo()
    solo.follow(leader_id=2, leader_epoch=1)
    request = vote(key(3), epoch=1, last_epoch=0, end_offset=0, pre_vote=True)
    assert ask(solo, request).vote_granted, "it has not been able to fetch from it yet"
    solo.fetched()
    response = ask(solo, request)
    assert not response.vote_granted
    assert response.leader_id == 2
    assert response.leader_endpoints == endpoints(2)


def test_pre_vote_once_the_fetch_timeout_is_over() -> None:
    solo = Solo()
    solo.follow(leader_id=2, leader_epoch=1)
    solo.fetched()
    solo.wait(FETCH_TIMEOUT_MS)
    assert solo.role is Role.PROSPECTIVE
    request = vote(key(3), epoch=1, last_epoch=0, end_offset=0, pre_vote=True)
    assert ask(solo, request).vote_granted


def test_pre_vote_when_the_leader_has_resigned() -> None:
    solo = Solo()
    solo.follow(leader_id=2, leader_epoch=1)
    solo.fetched()
    solo.ask(EndQuorumEpochRequest(2, 1, (key(3), key(1)), endpoints(2)))
    request = vote(key(3), epoch=1, last_epoch=0, end_offset=0, pre_vote=True)
    assert ask(solo, request).vote_granted


def test_a_leader_grants_no_pre_vote() -> None:
    solo = Solo()
    solo.lead()
    request = vote(key(3), epoch=1, last_epoch=1, end_offset=9, pre_vote=True)
    response = ask(solo, request)
    assert not response.vote_granted
    assert response.leader_id == 1
    assert solo.role is Role.LEADER


def test_a_pre_vote_in_a_higher_epoch_raises_this_one() -> None:
    solo = Solo()
    solo.follow(leader_id=2, leader_epoch=1)
    response = ask(solo, vote(key(3), epoch=4, last_epoch=0, end_offset=0, pre_vote=True))
    assert response.vote_granted
    assert solo.replica.election == ElectionState(4, -1, None)


def test_a_granted_vote_restarts_the_election_timeout() -> None:
    solo = Solo(records=LOG)
    solo.wait(1_400)
    ask(solo, vote())
    solo.wait(1_400)
    assert solo.role is Role.UNATTACHED
    solo.wait(200)
    assert solo.role is Role.PROSPECTIVE


def test_an_answer_names_no_leader_that_is_known_to_have_resigned() -> None:
    solo = Solo()
    solo.follow(leader_id=2, leader_epoch=1)
    solo.ask(EndQuorumEpochRequest(2, 1, (key(3), key(1)), endpoints(2)))
    response = ask(solo, vote(epoch=1, last_epoch=0, end_offset=0))
    assert response.leader_id == -1


def test_a_leader_that_leads_no_more_is_noticed_by_its_answer() -> None:
    solo = Solo()
    solo.follow(leader_id=2, leader_epoch=1)
    solo.fetched()
    solo.respond(FetchRequest, 2, FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 1))
    assert solo.core.state.leadership.leader_id == -1
    solo.wait(400)
    assert solo.role is Role.FOLLOWER, "whom the leader wants to follow it goes first"
    solo.wait(ELECTION_TIMEOUT_MS - 400)
    assert solo.role is Role.PROSPECTIVE
