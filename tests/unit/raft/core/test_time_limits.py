"""Each time limit of the quorum, a millisecond before it and at it; the dice show one half."""

from __future__ import annotations

import pickle

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import Role
from moldau.raft.core.effects import AppendVoters, ChangeLeadership, Complete
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    KraftVersionRequest,
    KraftVersionResponse,
    PeerRequest,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
)
from moldau.raft.core.settings import QuorumSettings
from moldau.raft.core.values import ElectionState
from moldau.raft.core.voters import VoterEndpoint, VoterSet
from tests.unit.raft.core.harness import Record, described, key, voter_set
from tests.unit.raft.core.solo import ELECTION_TIMEOUT_MS, FETCH_TIMEOUT_MS, Solo

DEFAULTS = QuorumSettings(key(1), ())
ELECTION_MS = DEFAULTS.election_timeout_ms
FETCH_MS = DEFAULTS.fetch_timeout_ms
RETRY_MS = DEFAULTS.retry_backoff_ms
REQUEST_MS = DEFAULTS.request_timeout_ms
PATIENCE_MS = ELECTION_MS / 4
JITTER_MS = ELECTION_MS / 8
"""Half of the share that followers of one leader campaign apart."""


def targets(solo: Solo, kind: type[PeerRequest] = FetchRequest) -> list[int]:
    """Where what is under way of a kind goes, the oldest first."""
    return [node_id for node_id, _ in solo.sent(kind)]


def leader(voters: VoterSet | None = None, *held: Record) -> Solo:
    """A leader that has committed in its epoch; its BeginQuorumEpochs are answered."""
    solo = Solo(voters, records=held)
    solo.lead()
    for node_id in targets(solo, BeginQuorumEpochRequest):
        response = BeginQuorumEpochResponse(ErrorCode.NONE, 1, solo.core.state.leader_epoch)
        solo.respond(BeginQuorumEpochRequest, node_id, response)
    solo.fetch_by(2)
    return solo


def keep(solo: Solo, duration_ms: float, *followers: int) -> None:
    """Let time go by while followers fetch every second; they wait for nothing."""
    until_ms = solo.now_ms + duration_ms
    while solo.now_ms < until_ms:
        for node_id in followers or (2, 3):
            solo.fetch_by(node_id, max_wait_ms=0)
        solo.wait(min(1_000.0, until_ms - solo.now_ms))


# -- followers -------------------------------------------------------------------------------------


def test_replicas_are_asked_for_the_leader_one_after_the_other() -> None:
    solo = Solo(node_id=9)
    asked = [targets(solo)]
    for _ in range(2):
        solo.wait(PATIENCE_MS - 1)
        assert targets(solo) == asked[-1]
        solo.wait(1)
        asked.append(targets(solo))
    assert asked == [[2], [2, 3], [2, 3, 1]]
    solo.wait(10 * PATIENCE_MS)
    assert targets(solo) == [2, 3, 1], "each is asked once at a time"


def test_a_replica_that_could_not_say_is_asked_again_after_the_backoff() -> None:
    solo = Solo(node_id=9)
    for node_id in (2, 3, 1):
        solo.respond(FetchRequest, node_id, FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, -1, 0))
    assert targets(solo) == []
    solo.wait(RETRY_MS - 1)
    assert targets(solo) == []
    solo.wait(1)
    assert targets(solo) == [2], "the one in the middle of three"


def test_a_leader_that_leads_no_more_is_followed_after_half_to_once_the_longest_backoff() -> None:
    solo = Solo()
    solo.follow()
    solo.fetched()
    solo.respond(FetchRequest, 2, FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 1))
    solo.wait(DEFAULTS.election_backoff_max_ms * 0.75 - 1)
    assert solo.role is Role.FOLLOWER
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE


@pytest.mark.parametrize(
    ("error", "leader_id", "node_id"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 2),
        (ErrorCode.BROKER_NOT_AVAILABLE, -1, 2),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 3),
    ],
)
def test_other_answers_do_not_say_that_the_leader_is_gone(
    error: ErrorCode, leader_id: int, node_id: int
) -> None:
    solo = Solo()
    solo.follow()
    solo.fetched()
    if node_id == 3:
        solo.respond(FetchRequest, 2, None)
        assert targets(solo)[-1] == 3
    solo.respond(FetchRequest, node_id, FetchResponse(error, leader_id, 1))
    assert solo.core.state.leadership.leader_id == 2
    solo.wait(ELECTION_TIMEOUT_MS)
    assert solo.role is Role.FOLLOWER


@pytest.mark.parametrize(
    ("took_ms", "high_watermark", "is_paused"),
    [(0, 0, True), (RETRY_MS - 1, 0, True), (RETRY_MS, 0, False), (0, 1, False)],
)
def test_a_leader_that_has_nothing_and_does_not_wait_is_asked_again_after_a_pause(
    took_ms: float, high_watermark: int, is_paused: bool
) -> None:
    solo = Solo(records=(Record(1, "a"),))
    solo.follow()
    solo.wait(took_ms)
    answer = FetchResponse(ErrorCode.NONE, 2, 1, high_watermark=high_watermark)
    solo.respond(FetchRequest, 2, answer)
    assert (2 not in targets(solo)) is is_paused
    if is_paused:
        solo.wait(RETRY_MS - 1)
        assert 2 not in targets(solo)
        solo.wait(1)
        assert 2 in targets(solo)


def fail(solo: Solo, *after_ms: float) -> None:
    """The fetches to node 2 fail, each so long after it was sent."""
    for each_ms in after_ms:
        while 2 not in targets(solo):
            solo.wait(1)
        solo.wait(each_ms)
        solo.respond(FetchRequest, 2, None)


@pytest.mark.parametrize(
    ("after_ms", "is_given_up"),
    [
        ((0, 0, 0), True),
        ((0, 0), False),
        ((REQUEST_MS / 10,) * 3, True),
        ((0, 0, REQUEST_MS / 10 + 1, 0, 0), False),
        ((0, 0, REQUEST_MS / 10 + 1, 0, 0, 0), True),
    ],
)
def test_three_fetches_in_a_row_that_are_refused_give_a_leader_up_adr_0006(
    after_ms: tuple[float, ...], is_given_up: bool
) -> None:
    solo = Solo()
    solo.follow()
    solo.fetched()
    fail(solo, *after_ms)
    assert solo.role is Role.FOLLOWER
    solo.wait(JITTER_MS - 1)
    assert solo.role is Role.FOLLOWER
    solo.wait(1)
    assert (solo.role is Role.PROSPECTIVE) is is_given_up


def test_an_answer_begins_the_count_of_refusals_again_adr_0006() -> None:
    solo = Solo()
    solo.follow()
    fail(solo, 0, 0)
    while 2 not in targets(solo):
        solo.wait(1)
    solo.fetched()
    fail(solo, 0, 0)
    solo.wait(JITTER_MS)
    assert solo.role is Role.FOLLOWER


def test_a_follower_s_patience_begins_again_with_each_good_answer() -> None:
    solo = Solo()
    solo.follow()
    for _ in range(3):
        solo.wait(FETCH_TIMEOUT_MS - 51)
        solo.fetched()
    solo.wait(FETCH_TIMEOUT_MS - 1)
    assert solo.role is Role.FOLLOWER
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE


def test_records_that_can_be_used_begin_the_pauses_again() -> None:
    solo = Solo()
    solo.follow()

    def pause_ms() -> float:
        """How long it waits after records that are refused."""
        fetch = solo._take(FetchRequest, 2).send
        response = FetchResponse(ErrorCode.NONE, 2, 1, records=b"-", high_watermark=5)
        solo.core.on_response(fetch, response, solo.now_ms)
        solo.replica.run(solo.core.on_append_refused(solo.now_ms))
        refused_ms = solo.now_ms
        while 2 not in targets(solo):
            solo.wait(1)
        return solo.now_ms - refused_ms

    assert [pause_ms() for _ in range(3)] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS]
    assert solo.core.state.high_watermark == 0
    solo.fetched(records=pickle.dumps([Record(1, "a")]), high_watermark=0)
    assert [pause_ms() for _ in range(2)] == [RETRY_MS, 2 * RETRY_MS]


def moved(kraft_version: int) -> Solo:
    """A follower of whose address the leader does not know."""
    elsewhere = (VoterEndpoint("CONTROLLER", "elsewhere", 1),)
    old = voter_set(1, kraft_version=kraft_version).voters[0]._replace(endpoints=elsewhere)
    others = voter_set(2, 3, kraft_version=kraft_version).voters
    solo = Solo(VoterSet((old, *others), kraft_version))
    solo.follow()
    return solo


def fetch_for(solo: Solo, duration_ms: float) -> None:
    """Let time go by while the leader answers."""
    until_ms = solo.now_ms + duration_ms
    while solo.now_ms < until_ms:
        step_ms = min(1_000.0, until_ms - solo.now_ms)
        solo.wait(step_ms - 50)
        solo.fetched()


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, None])
@pytest.mark.parametrize("kraft_version", [0, 1])
def test_a_voter_reports_itself_again_after_three_fetch_timeouts(
    kraft_version: int, error: ErrorCode | None
) -> None:
    """At kraft.version 0 once it has been taken there is no record in which it could be seen."""
    solo = moved(kraft_version)
    assert targets(solo, UpdateVoterRequest) == []
    solo.fetched()
    assert targets(solo, UpdateVoterRequest) == [2]
    reported_ms = solo.now_ms
    response = None if error is None else UpdateVoterResponse(error, 2, 1)
    solo.respond(UpdateVoterRequest, 2, response)
    fetch_for(solo, 3 * FETCH_MS - 100)
    solo.wait(reported_ms + 3 * FETCH_MS - 1 - solo.now_ms)
    assert targets(solo, UpdateVoterRequest) == []
    solo.wait(1)
    is_done = kraft_version == 0 and error is ErrorCode.NONE
    assert targets(solo, UpdateVoterRequest) == ([] if is_done else [2])


def test_a_report_that_an_earlier_leader_has_taken_does_not_count_for_the_next() -> None:
    solo = moved(0)
    solo.fetched()
    late = solo._take(UpdateVoterRequest, 2).send
    solo.follow(3, 2)
    solo.again(late, UpdateVoterResponse(ErrorCode.NONE, 2, 1))
    solo.respond(FetchRequest, 3, FetchResponse(ErrorCode.NONE, 3, 2))
    assert targets(solo, UpdateVoterRequest) == [3]


# -- leaders ---------------------------------------------------------------------------------------


def test_a_fetch_waits_half_a_minute_at_most() -> None:
    solo = leader()
    assert solo.fetch_by(9, max_wait_ms=10**9) is None
    before = len(solo.answers())
    asked_ms = solo.now_ms
    for _ in range(29):
        keep(solo, 1_000)
    solo.wait(asked_ms + 29_999 - solo.now_ms)
    served = [each for each in solo.cluster.responses[before:] if each[0].token[1] == 2]
    assert served == []
    waiting = len(solo.cluster.waiting)
    solo.wait(1)
    assert len(solo.cluster.waiting) == waiting - 1


def test_node_0_waits_once_and_clients_without_an_id_as_often_as_they_like() -> None:
    solo = leader(voter_set(1, 2, 3))
    for node_id, answered in ((0, 1), (-1, 0)):
        assert solo.fetch_by(node_id) is None
        before = len(solo.answers())
        assert solo.fetch_by(node_id) is None
        assert len(solo.answers()) == before + answered


def test_begin_quorum_epoch_is_repeated_after_half_a_fetch_timeout() -> None:
    solo = leader()
    solo.wait(FETCH_MS / 2 - 1)
    assert targets(solo, BeginQuorumEpochRequest) == []
    solo.wait(1)
    assert targets(solo, BeginQuorumEpochRequest) == [2, 3]


def test_what_a_voter_answered_in_an_earlier_epoch_is_no_answer_in_this_one() -> None:
    solo = Solo()
    solo.lead()
    late = solo._take(BeginQuorumEpochRequest, 3).send
    solo.follow(2, 2)
    solo.lead()
    for node_id in (2, 3):
        solo.respond(BeginQuorumEpochRequest, node_id, None)
    solo.again(late, BeginQuorumEpochResponse(ErrorCode.NONE, 1, 1))
    solo.wait(RETRY_MS)
    sent = solo.sent(BeginQuorumEpochRequest)
    assert [node_id for node_id, request in sent if request.leader_epoch == 3] == [2, 3]


@pytest.mark.parametrize(("wait_ms", "is_named"), [(300_000, True), (302_000, False)])
def test_an_observer_is_named_for_five_minutes_after_its_last_fetch(
    wait_ms: float, is_named: bool
) -> None:
    solo = leader()
    solo.fetch_by(9)
    keep(solo, wait_ms)
    assert [each.replica for each in solo.core.progress()[1]] == ([key(9)] if is_named else [])
    solo.fetch_by(9)
    assert [each.replica for each in solo.core.progress()[1]] == [key(9)]


def test_a_handover_waits_an_election_timeout_at_most() -> None:
    solo = leader()
    solo.replica.propose("a")
    solo.fetch_by(3)
    solo.replica.run(solo.core.resign("resign", key(2), solo.now_ms))
    solo.wait(ELECTION_MS - 1)
    assert solo.role is Role.LEADER
    solo.wait(1)
    assert solo.role is Role.RESIGNED
    (_, request) = solo.sent(EndQuorumEpochRequest)[-1]
    assert [each.node_id for each in request.preferred_candidates] == [2, 3]


def test_a_successor_that_has_never_fetched_is_not_waited_for() -> None:
    solo = leader()
    solo.replica.run(solo.core.resign("resign", key(3), solo.now_ms))
    assert solo.role is Role.RESIGNED
    (_, request) = solo.sent(EndQuorumEpochRequest)[-1]
    assert [each.node_id for each in request.preferred_candidates] == [3, 2]


def test_a_resigned_replica_stays_for_an_election_timeout() -> None:
    solo = leader()
    solo.replica.run(solo.core.resign("resign", None, solo.now_ms))
    solo.wait(ELECTION_TIMEOUT_MS - 1)
    assert (solo.role, solo.core.state.leader_epoch) == (Role.RESIGNED, 1)
    solo.wait(1)
    assert (solo.role, solo.core.state.leader_epoch) == (Role.UNATTACHED, 2)


@pytest.mark.parametrize(("away_ms", "is_added"), [(FETCH_MS, True), (FETCH_MS + 1, False)])
def test_a_new_voter_has_caught_up_within_a_fetch_timeout(away_ms: float, is_added: bool) -> None:
    solo = leader()
    solo.fetch_by(4)
    solo.wait(away_ms)
    effects = solo.core.add_voter("add", described(4), solo.now_ms, timeout_ms=5_000)
    solo.replica.run(effects)
    solo.respond(KraftVersionRequest, 4, KraftVersionResponse(ErrorCode.NONE, 0, 1))
    assert bool(solo.of(AppendVoters)) is is_added


@pytest.mark.parametrize("change", ["add", "remove", "upgrade"])
def test_a_change_of_voters_ends_at_its_time_limit(change: str) -> None:
    kraft_version = 0 if change == "upgrade" else 1
    solo = leader(voter_set(1, 2, 3, kraft_version=kraft_version))
    core, now_ms = solo.core, solo.now_ms
    if change == "add":
        effects = core.add_voter("token", described(4), now_ms, timeout_ms=700)
    elif change == "remove":
        effects = core.remove_voter("token", key(3), now_ms, timeout_ms=700)
    else:
        for node_id in (2, 3):
            solo.ask(UpdateVoterRequest(1, described(node_id), 0, 1))
        effects = core.upgrade_kraft_version("token", 1, now_ms, timeout_ms=700)
    solo.replica.run(effects)
    solo.wait(699)
    assert solo.completed() == []
    solo.wait(1)
    (complete,) = solo.of(Complete)
    assert isinstance(complete, Complete)
    assert (complete.token, complete.error) == ("token", ErrorCode.REQUEST_TIMED_OUT)
    stage = "could not begin in time" if change == "add" else "is not committed yet"
    assert complete.message.endswith(stage)


def test_an_update_that_is_not_committed_is_answered_after_the_request_timeout() -> None:
    solo = leader()
    elsewhere = (VoterEndpoint("CONTROLLER", "elsewhere", 1),)
    voter = described(3)._replace(endpoints=elsewhere)
    assert solo.ask(UpdateVoterRequest(1, voter, 0, 1)) is None
    solo.wait(REQUEST_MS - 1)
    answers = [each for each in solo.answers() if isinstance(each, UpdateVoterResponse)]
    assert answers == []
    solo.wait(1)
    answers = [each for each in solo.answers() if isinstance(each, UpdateVoterResponse)]
    assert [each.error for each in answers] == [ErrorCode.REQUEST_TIMED_OUT]


def test_a_leader_corrects_its_own_entry_for_a_request_timeout() -> None:
    """A change that is asked for then is refused, and hears why."""
    elsewhere = (VoterEndpoint("CONTROLLER", "elsewhere", 1),)
    old = described(1)._replace(endpoints=elsewhere)
    voters = VoterSet((old, described(2), described(3)), 1)
    solo = leader(None, Record(1, "start", voters))
    assert len(solo.of(AppendVoters)) == 1

    def refusal() -> str:
        solo.replica.run(solo.core.remove_voter("x", key(3), solo.now_ms, timeout_ms=1))
        complete = solo.of(Complete)[-1]
        assert isinstance(complete, Complete)
        assert complete.error is ErrorCode.REQUEST_TIMED_OUT
        return complete.message

    solo.wait(REQUEST_MS - 1)
    assert "has not finished another voter change (updating 1@" in refusal()
    solo.wait(1)
    assert "the last voter change, at offset 2, is not committed" in refusal()
    assert len(solo.of(AppendVoters)) == 1


# -- campaigns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", ["refused", "failed", "refused and failed"])
def test_a_candidate_that_no_voter_elects_begins_again_after_the_backoff(answers: str) -> None:
    solo = Solo()
    solo.stand()
    for node_id in (2, 3):
        if answers == "failed" or (answers != "refused" and node_id == 3):
            solo.respond(VoteRequest, node_id, None)
        else:
            solo.refuse(node_id)
    solo.wait(99)
    assert solo.role is Role.CANDIDATE
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE


def test_a_candidate_waits_for_the_votes_that_are_still_to_come() -> None:
    solo = Solo(voter_set(1, 2, 3, 4, 5))
    solo.wait(ELECTION_TIMEOUT_MS)
    for node_id in (2, 3):
        solo.grant(node_id)
    assert solo.role is Role.CANDIDATE
    for _ in range(3):  # one voter that fails over and over is one voter
        solo.respond(VoteRequest, 2, None)
        solo.wait(200)
    solo.refuse(3)
    assert solo.role is Role.CANDIDATE
    solo.grant(4)
    solo.wait(300)
    assert solo.role is Role.CANDIDATE
    solo.grant(5)
    assert solo.role is Role.LEADER


def test_a_candidate_gives_up_after_an_election_timeout() -> None:
    solo = Solo()
    solo.stand()
    solo.wait(ELECTION_TIMEOUT_MS - 1)
    assert solo.role is Role.CANDIDATE
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE


def test_a_prospective_gives_up_after_an_election_timeout() -> None:
    solo = Solo()
    solo.follow()
    solo.wait(FETCH_TIMEOUT_MS + ELECTION_TIMEOUT_MS - 1)
    assert solo.role is Role.PROSPECTIVE
    solo.wait(1)
    assert solo.role is Role.FOLLOWER


def test_a_shutdown_of_a_resigned_replica_ends_with_its_epoch() -> None:
    solo = Solo(records=(Record(3, "start"),), election=ElectionState(3, 1, key(1)))
    assert solo.role is Role.RESIGNED
    solo.replica.run(solo.core.shut_down("bye", solo.now_ms))
    solo.wait(ELECTION_TIMEOUT_MS - 1)
    assert solo.completed() == []
    solo.wait(1)
    assert solo.completed() == [("bye", ErrorCode.NONE)]
    assert solo.core.state.leader_epoch == 3


def test_every_leader_is_announced_once() -> None:
    solo = Solo()
    solo.lead()
    solo.wait(500)
    solo.follow(2, 2)
    solo.wait(500)
    announced = [
        (each.leadership.leader_id, each.leadership.leader_epoch, each.epoch_start_offset)
        for each in solo.of(ChangeLeadership)
        if isinstance(each, ChangeLeadership)
    ]
    assert announced == [(-1, 0, -1), (-1, 1, -1), (1, 1, 0), (2, 2, -1)]
