"""Resigning, transfer of leadership, graceful shutdown, and what a stopped core answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import Role
from moldau.raft.core.effects import ChangeLeadership, Complete, Persist
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    KraftVersionRequest,
    KraftVersionResponse,
    PeerRequest,
    UpdateVoterRequest,
    VoteRequest,
    VoteResponse,
)
from moldau.raft.core.values import NO_SNAPSHOT, ElectionState
from tests.unit.raft.core.harness import Cluster, Record, described, endpoints, key, voter_set
from tests.unit.raft.core.solo import ELECTION_TIMEOUT_MS, Solo


def leader() -> Solo:
    solo = Solo()
    solo.lead()
    solo.replica.propose("a")
    solo.fetch_by(2, 1)
    solo.fetch_by(3, 2)
    return solo


def resign(solo: Solo, preferred: int | None = None) -> None:
    successor = key(preferred) if preferred is not None else None
    solo.replica.run(solo.core.resign("resign", successor, solo.now_ms))


def successors(solo: Solo) -> tuple[int, ...]:
    told = solo.sent(EndQuorumEpochRequest)
    return tuple(each.node_id for each in told[-1][1].preferred_candidates)


def test_a_resigning_leader_names_who_has_most_first() -> None:
    solo = leader()
    resign(solo)
    assert solo.role is Role.RESIGNED
    assert solo.completed() == [("resign", ErrorCode.NONE)]
    assert successors(solo) == (3, 2)
    announced = solo.of(ChangeLeadership)[-1]
    assert isinstance(announced, ChangeLeadership)
    assert announced.leadership.leader_id == -1


def test_a_preferred_successor_comes_first_once_it_has_everything() -> None:
    solo = leader()
    resign(solo, preferred=2)
    assert solo.role is Role.LEADER, "2 lacks a record that 3 has: 3 would refuse it its vote"
    assert solo.completed() == []
    solo.fetch_by(2)
    assert solo.role is Role.RESIGNED
    assert solo.completed() == [("resign", ErrorCode.NONE)]
    assert successors(solo) == (2, 3)


def test_a_successor_that_does_not_catch_up_is_not_waited_for_longer_than_an_election() -> None:
    solo = leader()
    resign(solo, preferred=2)
    solo.wait(ELECTION_TIMEOUT_MS * 0.5)
    solo.fetch_by(3)
    assert solo.role is Role.LEADER
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.RESIGNED
    assert successors(solo) == (2, 3)


def test_resignation_leaves_vote_and_leader_on_disk() -> None:
    solo = leader()
    persisted = len(solo.of(Persist))
    resign(solo)
    assert len(solo.of(Persist)) == persisted
    assert solo.replica.election == ElectionState(1, 1, key(1))


def test_a_successor_that_is_no_voter_is_refused() -> None:
    solo = leader()
    resign(solo, preferred=9)
    assert solo.completed() == [("resign", ErrorCode.VOTER_NOT_FOUND)]
    assert solo.role is Role.LEADER


def test_a_leader_that_shall_follow_itself_goes_on() -> None:
    solo = leader()
    resign(solo, preferred=1)
    assert solo.completed() == [("resign", ErrorCode.NONE)]
    assert solo.role is Role.LEADER


def test_only_a_leader_resigns() -> None:
    solo = Solo()
    resign(solo)
    assert solo.completed() == [("resign", ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_end_quorum_epoch_about_itself_transfers_leadership() -> None:
    solo = leader()
    response = solo.ask(EndQuorumEpochRequest(1, 1, (key(2),)))
    assert isinstance(response, EndQuorumEpochResponse)
    assert response.error is ErrorCode.NONE
    solo.fetch_by(2)
    assert solo.role is Role.RESIGNED
    assert successors(solo) == (2, 3)


@pytest.mark.parametrize("epoch", [0, 2])
def test_end_quorum_epoch_about_itself_in_another_epoch_does_not(epoch: int) -> None:
    solo = leader()
    response = solo.ask(EndQuorumEpochRequest(1, epoch, (key(2),)))
    assert isinstance(response, EndQuorumEpochResponse)
    assert response.error is not ErrorCode.NONE
    assert solo.role is Role.LEADER


def test_a_voter_that_has_not_acknowledged_gets_the_resignation_again() -> None:
    solo = leader()
    resign(solo)
    solo.respond(EndQuorumEpochRequest, 2, EndQuorumEpochResponse(ErrorCode.NONE, -1, 1))
    solo.respond(EndQuorumEpochRequest, 3, None)
    assert solo.sent(EndQuorumEpochRequest) == []
    solo.wait(20)
    assert [node_id for node_id, _ in solo.sent(EndQuorumEpochRequest)] == [3]


def test_a_resigned_replica_helps_to_elect_the_next_leader() -> None:
    solo = leader()
    resign(solo)
    pre_vote = solo.ask(VoteRequest(key(3), key(1), 1, 1, 2, pre_vote=True))
    assert isinstance(pre_vote, VoteResponse)
    assert pre_vote.vote_granted
    in_its_epoch = solo.ask(VoteRequest(key(3), key(1), 1, 0, 2, pre_vote=False))
    assert isinstance(in_its_epoch, VoteResponse)
    assert not in_its_epoch.vote_granted
    vote = solo.ask(VoteRequest(key(3), key(1), 2, 1, 2, pre_vote=False))
    assert isinstance(vote, VoteResponse)
    assert vote.vote_granted
    assert solo.role is Role.UNATTACHED


def test_a_resigned_replica_without_a_successor_is_unattached_in_the_next_epoch() -> None:
    solo = leader()
    resign(solo)
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.UNATTACHED
    assert solo.replica.election == ElectionState(2)


def test_transfer_in_a_cluster_is_fast_and_reaches_the_one_preferred() -> None:
    cluster = Cluster(voter_set(1, 2, 3), seed=3)
    cluster.start()
    old = cluster.elect()
    cluster.run_for(600)
    wanted = next(each for each in cluster.live() if each is not old)
    assert old.core is not None
    old.run(old.core.resign("transfer", key(wanted.node_id), cluster.now_ms))
    cluster.run_for(5)
    assert cluster.leader() is wanted
    assert old.core.state.leadership.leader_id == wanted.node_id


# Shutdown


def shut_down(solo: Solo) -> None:
    solo.replica.run(solo.core.shut_down("bye", solo.now_ms))


def test_a_follower_shuts_down_at_once() -> None:
    solo = Solo()
    solo.follow(2, 1)
    shut_down(solo)
    assert solo.completed() == [("bye", ErrorCode.NONE)]
    assert solo.core.state.is_stopped
    assert solo.core.next_tick_ms() is None
    assert solo.core.tick(solo.now_ms + 10_000) == []


def test_a_leader_that_shuts_down_waits_for_the_next() -> None:
    solo = leader()
    shut_down(solo)
    assert solo.role is Role.RESIGNED
    assert solo.completed() == []
    response = solo.begin(3, 2)
    assert response is not None
    assert solo.completed() == [("bye", ErrorCode.NONE)]


def test_a_leader_that_shuts_down_waits_an_election_timeout_at_most() -> None:
    solo = leader()
    shut_down(solo)
    solo.wait(ELECTION_TIMEOUT_MS - 1)
    assert solo.completed() == []
    solo.wait(1)
    assert solo.completed() == [("bye", ErrorCode.NONE)]
    assert solo.core.state.leader_epoch == 1


def test_a_sole_voter_shuts_down_at_once() -> None:
    solo = Solo(voter_set(1))
    shut_down(solo)
    assert solo.completed() == [("bye", ErrorCode.NONE)]


REQUESTS: list[PeerRequest] = [
    VoteRequest(key(2), None, 9, 1, 9, pre_vote=False),
    BeginQuorumEpochRequest(2, 9, None, endpoints(2)),
    EndQuorumEpochRequest(2, 9, (), endpoints(2)),
    FetchRequest(key(2), 1, 0, 0),
    FetchSnapshotRequest(key(2), 1, NO_SNAPSHOT, 0),
    UpdateVoterRequest(1, described(2), 0, 1),
    KraftVersionRequest(),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_nothing_is_answered_with_success_after_the_end(request_: PeerRequest) -> None:
    solo = Solo()
    shut_down(solo)
    persisted = len(solo.of(Persist))
    response = solo.ask(request_)
    assert response is not None
    assert response.error is ErrorCode.BROKER_NOT_AVAILABLE
    assert not (isinstance(response, VoteResponse) and response.vote_granted)
    if isinstance(response, KraftVersionResponse):
        assert response[1:] == (0, 0), "it names no versions"
    assert len(solo.of(Persist)) == persisted


def test_an_append_that_ends_after_the_end_commits_nothing() -> None:
    voters = voter_set(1, 2, 3)
    settings = replace(Cluster(voters).settings_for(9, 0), is_controller=False)
    solo = Solo(voters, node_id=9, settings=settings)
    solo.follow(2, 1)
    in_flight = solo.cluster.requests.pop()
    response = FetchResponse(ErrorCode.NONE, 2, 1, high_watermark=1, records=b"a")
    solo.core.on_response(in_flight.send, response, solo.now_ms)
    shut_down(solo)
    solo.replica.log.append(Record(1, "a"))
    assert solo.core.on_appended(solo.now_ms) == []
    assert solo.core.state.high_watermark == 0


def test_what_is_asked_of_a_stopped_leader_is_completed() -> None:
    solo = Solo()
    shut_down(solo)
    core, now_ms = solo.core, solo.now_ms
    for effects in (
        core.resign("t", None, now_ms),
        core.add_voter("t", described(4), now_ms, timeout_ms=1),
        core.remove_voter("t", key(2), now_ms, timeout_ms=1),
        core.upgrade_kraft_version("t", 1, now_ms, timeout_ms=1),
    ):
        (complete,) = effects
        assert isinstance(complete, Complete)
        assert complete.error is ErrorCode.BROKER_NOT_AVAILABLE
    assert core.shut_down("again", now_ms) == [Complete("again", ErrorCode.NONE)]


def test_kraft_version_is_answered_to_any_peer() -> None:
    solo = Solo(records=(Record(1, "a"),))
    assert solo.ask(KraftVersionRequest()) == KraftVersionResponse(ErrorCode.NONE, 0, 1)


def test_a_graceful_shutdown_of_the_leader_hands_over_within_milliseconds() -> None:
    cluster = Cluster(voter_set(1, 2, 3), seed=9)
    cluster.start()
    old = cluster.elect()
    cluster.run_for(600)
    assert old.core is not None
    old.run(old.core.shut_down("bye", cluster.now_ms))
    cluster.run_for(5)
    assert f"{old.node_id} completes bye: NONE" in cluster.lines
    assert cluster.leader() is not old
