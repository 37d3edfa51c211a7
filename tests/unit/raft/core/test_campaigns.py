"""How a replica comes to lead, and what a start or a lost election leaves it (KIP-595, 996)."""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import Role
from moldau.raft.core.effects import AppendEpochStart, ChangeLeadership, Persist, Send
from moldau.raft.core.messages import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.roles import TRANSITIONS, WITHIN_ONE_EPOCH
from moldau.raft.core.values import ElectionState
from tests.unit.raft.core.harness import Record, described, endpoints, key, voter_set
from tests.unit.raft.core.solo import ELECTION_TIMEOUT_MS, FETCH_TIMEOUT_MS, Solo


def test_no_way_leads_back_to_leader_but_over_a_new_epoch() -> None:
    before_leading = [role for role, after in TRANSITIONS.items() if Role.LEADER in after]
    assert before_leading == [Role.CANDIDATE]
    assert all(pair[1] is not Role.CANDIDATE for pair in WITHIN_ONE_EPOCH)
    assert all(after in TRANSITIONS[before] for before, after in WITHIN_ONE_EPOCH)


def test_an_election_timeout_leads_to_a_pre_vote_and_leaves_the_epoch_kip_996() -> None:
    solo = Solo(election=ElectionState(4))
    solo.wait(ELECTION_TIMEOUT_MS - 1)
    assert solo.role is Role.UNATTACHED
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE
    asked = solo.sent(VoteRequest)
    assert [node_id for node_id, _ in asked] == [2, 3]
    for node_id, request in asked:
        assert request.pre_vote
        assert request.leader_epoch == 4
        assert request.voter == key(node_id)
        assert request.candidate == key(1)
    assert solo.replica.election == ElectionState(4)


def test_a_won_pre_vote_raises_the_epoch_durably_before_it_asks() -> None:
    solo = Solo()
    solo.wait(ELECTION_TIMEOUT_MS)
    before = len(solo.effects)
    solo.grant(3)
    assert solo.role is Role.CANDIDATE
    after = solo.effects[before:]
    assert after[0] == Persist(ElectionState(1, -1, key(1)))
    requests = [each.request for each in after if isinstance(each, Send)]
    assert all(
        isinstance(each, VoteRequest) and not each.pre_vote and each.leader_epoch == 1
        for each in requests
    )
    assert len(requests) == 2


def test_a_majority_makes_the_leader_and_its_epoch_begins_with_its_own_batch() -> None:
    solo = Solo(records=(Record(1, "a"),))
    solo.stand()
    before = len(solo.effects)
    solo.grant(3)
    assert solo.role is Role.LEADER
    after = solo.effects[before:]
    assert after[0] == Persist(ElectionState(2, 1, key(1)))
    start = after[1]
    assert isinstance(start, AppendEpochStart)
    assert (start.leader_epoch, start.voter_ids) == (2, (1, 2, 3))
    assert start.granting_voter_ids == (1, 3)
    announced = [each for each in after if isinstance(each, ChangeLeadership)]
    assert announced[-1].epoch_start_offset == 1
    assert announced[-1].leadership.leader_id == 1


def test_the_first_leader_writes_the_voters_of_the_bootstrap_checkpoint_kip_853() -> None:
    solo = Solo()
    solo.lead()
    (start,) = solo.of(AppendEpochStart)
    assert isinstance(start, AppendEpochStart)
    assert start.voters == voter_set(1, 2, 3)


@pytest.mark.parametrize(
    "reason", ["voters in the log", "kraft.version 0", "a log without its begin"]
)
def test_a_later_leader_writes_no_voters(reason: str) -> None:
    if reason == "kraft.version 0":
        solo = Solo(voter_set(1, 2, 3, kraft_version=0))
    elif reason == "voters in the log":
        solo = Solo(records=(Record(1, "start", voter_set(1, 2, 3)),))
    else:
        solo = Solo()
        solo.replica.log.start = 1
    solo.lead()
    (start,) = solo.of(AppendEpochStart)
    assert isinstance(start, AppendEpochStart)
    assert start.voters is None


def test_votes_of_another_epoch_and_pre_votes_do_not_count() -> None:
    solo = Solo()
    solo.wait(ELECTION_TIMEOUT_MS)
    late = solo.respond(VoteRequest, 2, VoteResponse(ErrorCode.NONE, -1, 0, vote_granted=True))
    assert solo.role is Role.CANDIDATE
    solo.again(late, VoteResponse(ErrorCode.NONE, -1, 0, vote_granted=True))
    assert solo.role is Role.CANDIDATE, "the answer to the PreVote has come twice"


def test_one_voter_counts_once() -> None:
    solo = Solo(voter_set(1, 2, 3, 4, 5))
    solo.wait(ELECTION_TIMEOUT_MS)
    send = solo.respond(VoteRequest, 2, VoteResponse(ErrorCode.NONE, -1, 0, vote_granted=True))
    solo.again(send, VoteResponse(ErrorCode.NONE, -1, 0, vote_granted=True))
    assert solo.role is Role.PROSPECTIVE
    solo.grant(3)
    assert solo.role is Role.CANDIDATE


def test_a_lost_pre_vote_asks_no_voter_for_more() -> None:
    """A vote asked for in the epoch of the PreVote would be a second one of that epoch."""
    solo = Solo(voter_set(1, 2, 3, 4, 5))
    solo.wait(ELECTION_TIMEOUT_MS)
    solo.respond(VoteRequest, 4, None)
    solo.refuse(2)
    solo.refuse(3)
    solo.cluster.now_ms += 20  # node 4 could be asked again
    solo.refuse(5)
    assert solo.role is Role.UNATTACHED
    assert solo.sent(VoteRequest) == []


def test_an_answer_in_a_higher_epoch_ends_the_campaign() -> None:
    solo = Solo()
    solo.stand()
    response = VoteResponse(ErrorCode.FENCED_LEADER_EPOCH, 3, 7, leader_endpoints=endpoints(3))
    solo.respond(VoteRequest, 3, response)
    assert solo.role is Role.FOLLOWER
    assert solo.replica.election == ElectionState(7, 3, None)
    assert solo.core.state.leadership.endpoints == endpoints(3)


def test_a_refused_prospective_with_no_leader_waits_a_whole_election_timeout() -> None:
    solo = Solo()
    solo.wait(ELECTION_TIMEOUT_MS)
    for node_id in (2, 3):
        solo.respond(VoteRequest, node_id, VoteResponse(ErrorCode.NONE, -1, 0))
    assert solo.role is Role.UNATTACHED
    assert solo.core.state.leader_epoch == 0
    solo.wait(ELECTION_TIMEOUT_MS - 1)
    assert solo.role is Role.UNATTACHED
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE


def test_a_refused_prospective_goes_back_to_its_leader_kip_996() -> None:
    solo = Solo()
    solo.follow(2, 1)
    solo.fetched()
    solo.wait(FETCH_TIMEOUT_MS)
    assert solo.role is Role.PROSPECTIVE
    refusal = VoteResponse(ErrorCode.NONE, 2, 1, leader_endpoints=endpoints(2))
    solo.respond(VoteRequest, 3, refusal)
    assert solo.role is Role.PROSPECTIVE, "hearsay"
    solo.respond(VoteRequest, 2, None)
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.FOLLOWER
    assert solo.core.state.leadership.leader_id == 2
    assert solo.core.state.leader_epoch == 1


def test_a_prospective_goes_back_to_a_leader_that_answers_itself() -> None:
    solo = Solo()
    solo.follow(2, 1)
    solo.wait(FETCH_TIMEOUT_MS)
    solo.respond(VoteRequest, 2, VoteResponse(ErrorCode.NONE, 2, 1, leader_endpoints=endpoints(2)))
    assert solo.role is Role.FOLLOWER


def test_a_replica_that_knows_no_pre_vote_counts_as_granting_kip_996() -> None:
    solo = Solo()
    solo.wait(ELECTION_TIMEOUT_MS)
    solo.respond(VoteRequest, 2, VoteResponse(ErrorCode.UNSUPPORTED_VERSION, -1, 0))
    assert solo.role is Role.CANDIDATE


def test_a_lost_election_is_followed_by_a_backoff_and_a_pre_vote() -> None:
    solo = Solo()
    solo.stand()
    for node_id in (2, 3):
        solo.respond(VoteRequest, node_id, VoteResponse(ErrorCode.NONE, -1, 1))
    assert solo.role is Role.CANDIDATE
    solo.wait(99)
    assert solo.role is Role.CANDIDATE
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE
    assert solo.core.state.leader_epoch == 1


def test_the_backoff_doubles_with_every_lost_election_up_to_its_bound() -> None:
    solo = Solo()
    solo.wait(ELECTION_TIMEOUT_MS)
    waited = []
    for _ in range(6):
        solo.grant(2)
        assert solo.role is Role.CANDIDATE
        epoch, began_ms = solo.core.state.leader_epoch, solo.now_ms
        for node_id in (2, 3):
            refusal = VoteResponse(ErrorCode.NONE, -1, epoch)
            while solo.sent(VoteRequest) and solo.role is Role.CANDIDATE:
                pending = [n for n, r in solo.sent(VoteRequest) if n == node_id]
                if not pending:
                    break
                solo.respond(VoteRequest, node_id, refusal)
        while solo.role is Role.CANDIDATE:
            solo.wait(10)
        waited.append(round((solo.now_ms - began_ms) / 10) * 10)
    assert waited == [100, 200, 400, 800, 1000, 1000]


def test_the_backoff_begins_again_after_a_leader() -> None:
    solo = Solo()
    solo.stand()
    solo.refuse(2)
    solo.refuse(3)
    solo.follow(2, 2)
    solo.stand()
    solo.refuse(2)
    solo.refuse(3)
    solo.wait(99)
    assert solo.role is Role.CANDIDATE
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE


@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_an_error_is_no_refusal_of_a_vote(is_pre_vote: bool) -> None:
    solo = Solo()
    if is_pre_vote:
        solo.wait(ELECTION_TIMEOUT_MS)
    else:
        solo.stand()
    role, epoch = solo.role, solo.core.state.leader_epoch
    for node_id in (2, 3):
        error = VoteResponse(ErrorCode.BROKER_NOT_AVAILABLE, -1, epoch)
        solo.respond(VoteRequest, node_id, error)
    assert solo.role is role
    solo.wait(20)
    assert solo.role is role
    assert {node_id for node_id, _ in solo.sent(VoteRequest)} == {2, 3}


def test_a_leader_has_lost_no_election() -> None:
    solo = Solo()
    solo.stand()
    for node_id in (2, 3):
        solo.refuse(node_id)
    solo.wait(100)
    assert solo.core.state.lost_elections_count == 1
    solo.grant(2)
    solo.grant(2)
    assert solo.role is Role.LEADER
    assert solo.core.state.lost_elections_count == 0


def test_unanswered_votes_are_asked_for_again_after_the_retry_backoff() -> None:
    solo = Solo()
    solo.wait(ELECTION_TIMEOUT_MS)
    solo.respond(VoteRequest, 2, None)
    assert [node_id for node_id, _ in solo.sent(VoteRequest)] == [3]
    solo.wait(19)
    assert [node_id for node_id, _ in solo.sent(VoteRequest)] == [3]
    solo.wait(1)
    assert [node_id for node_id, _ in solo.sent(VoteRequest)] == [3, 2]


# Starts


def test_a_sole_voter_leads_at_once() -> None:
    solo = Solo(voter_set(1))
    assert solo.role is Role.LEADER
    assert solo.core.state.leader_epoch == 1
    assert solo.replica.committed == 1


def test_a_sole_voter_that_led_leads_the_next_epoch() -> None:
    solo = Solo(voter_set(1))
    solo.replica.crash()
    solo.replica.start()
    assert solo.role is Role.LEADER
    assert solo.core.state.leader_epoch == 2


def test_who_led_an_epoch_resigns_it_after_a_restart() -> None:
    solo = Solo(records=(Record(3, "start"),), election=ElectionState(3, 1, key(1)))
    assert solo.role is Role.RESIGNED
    assert solo.core.state.leadership.leader_id == -1
    told = solo.sent(EndQuorumEpochRequest)
    assert [node_id for node_id, _ in told] == [2, 3]
    assert told[0][1].leader_epoch == 3
    for node_id in (2, 3):
        solo.respond(EndQuorumEpochRequest, node_id, EndQuorumEpochResponse(ErrorCode.NONE, -1, 3))
    solo.wait(10)
    assert solo.sent(EndQuorumEpochRequest) == []
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.UNATTACHED
    assert solo.core.state.leader_epoch == 4, "it has voted in 3"


def test_a_candidate_does_not_stand_again_in_its_epoch_after_a_restart() -> None:
    solo = Solo(election=ElectionState(3, -1, key(1)))
    assert solo.role is Role.UNATTACHED
    solo.wait(ELECTION_TIMEOUT_MS)
    solo.grant(2)
    assert solo.role is Role.CANDIDATE
    assert solo.core.state.leader_epoch == 4


def test_a_follower_fetches_from_its_leader_again_after_a_restart() -> None:
    solo = Solo(election=ElectionState(3, 2, None))
    assert solo.role is Role.FOLLOWER
    assert [node_id for node_id, _ in solo.sent(FetchRequest)] == [2]


def test_an_epoch_in_the_log_above_the_election_state_counts() -> None:
    solo = Solo(records=(Record(6, "a"),), election=ElectionState(4, 2, key(2)))
    assert solo.replica.election == ElectionState(6)
    assert solo.role is Role.UNATTACHED


def test_a_replica_that_is_no_voter_never_campaigns() -> None:
    solo = Solo(node_id=9)
    solo.wait(60_000)
    assert solo.role is Role.UNATTACHED
    assert solo.sent(VoteRequest) == []


def test_who_has_its_own_removal_only_appended_may_campaign_raft_dissertation_4_2_2() -> None:
    removed = (Record(1, "start", voter_set(1, 2)), Record(1, "voters", voter_set(2)))
    solo = Solo(voter_set(1, 2), records=removed, election=ElectionState(1, -1))
    assert not solo.core.state.is_voter
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.PROSPECTIVE
    assert [node_id for node_id, _ in solo.sent(VoteRequest)] == [2]
    solo.grant(2)
    solo.grant(2)
    assert solo.role is Role.LEADER
    solo.fetch_by(2)
    assert solo.replica.committed == 3
    assert solo.role is Role.RESIGNED, "its removal is committed"
    assert solo.core.state.voters.latest.voters == (described(2),)


# -- the last epoch, which only a peer's word brings about -----------------------------------------


def test_a_replica_in_the_last_epoch_does_not_campaign() -> None:
    solo = Solo()
    solo.ask(VoteRequest(key(2), None, 2**31 - 1, 1, 9, pre_vote=False))
    solo.wait(10 * ELECTION_TIMEOUT_MS)
    assert (solo.role, solo.core.state.leader_epoch) == (Role.UNATTACHED, 2**31 - 1)
    assert solo.begin(2, 2**31 - 1).error is ErrorCode.NONE
    solo.wait(10 * FETCH_TIMEOUT_MS)
    assert (solo.role, solo.core.state.leader_epoch) == (Role.UNATTACHED, 2**31 - 1)


def test_a_candidate_of_the_last_epoch_that_is_not_elected_gives_up() -> None:
    solo = Solo(election=ElectionState(2**31 - 2))
    solo.stand()
    solo.wait(ELECTION_TIMEOUT_MS)
    assert (solo.role, solo.core.state.leader_epoch) == (Role.UNATTACHED, 2**31 - 1)
