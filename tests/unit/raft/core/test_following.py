"""What a follower does with the leader's answers, and with none (KIP-595, 1166)."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.raft.core import Role
from moldau.raft.core.effects import (
    AdvanceHighWatermark,
    AppendFetched,
    Persist,
    Send,
    Stop,
    Truncate,
)
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    VoteRequest,
)
from moldau.raft.core.values import Destination, ElectionState, EpochEnd, Leadership, ReplicaKey
from moldau.raft.core.voters import VoterEndpoint, VoterSet
from tests.unit.raft.core.harness import Cluster, InFlight, Record, endpoints, key, voter_set
from tests.unit.raft.core.solo import ELECTION_TIMEOUT_MS, FETCH_TIMEOUT_MS, Solo


def records(*values: object, epoch: int = 1) -> bytes:
    return pickle.dumps([Record(epoch, value) for value in values])


def follower(*held: Record, epoch: int = 1) -> Solo:
    solo = Solo(records=held)
    solo.follow(2, epoch)
    return solo


def fetches(solo: Solo) -> list[FetchRequest]:
    return [request for node_id, request in solo.sent(FetchRequest) if node_id == 2]


def test_begin_quorum_epoch_makes_a_follower_durably() -> None:
    solo = Solo()
    response = solo.begin(2, 3, key(1))
    assert isinstance(response, BeginQuorumEpochResponse)
    assert (response.error, response.leader_id) == (ErrorCode.NONE, 2)
    assert solo.role is Role.FOLLOWER
    assert solo.replica.election == ElectionState(3, 2, None)
    assert fetches(solo)[-1].leader_epoch == 3


def test_begin_quorum_epoch_of_an_older_epoch_is_fenced() -> None:
    solo = follower(epoch=4)
    response = solo.begin(3, 3)
    assert isinstance(response, BeginQuorumEpochResponse)
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert (response.leader_id, response.leader_epoch) == (2, 4)


def test_a_second_leader_in_one_epoch_is_refused() -> None:
    solo = follower(epoch=4)
    response = solo.begin(3, 4)
    assert isinstance(response, BeginQuorumEpochResponse)
    assert response.error is ErrorCode.INVALID_REQUEST
    assert solo.core.state.leadership.leader_id == 2


def test_a_leader_hears_of_no_second_leader_in_its_epoch() -> None:
    solo = Solo()
    solo.lead()
    response = solo.begin(2, 1)
    assert isinstance(response, BeginQuorumEpochResponse)
    assert (response.error, response.leader_id) == (ErrorCode.INVALID_REQUEST, 1)
    assert solo.role is Role.LEADER


@pytest.mark.parametrize("leader_id", [-1, 1])
def test_begin_quorum_epoch_of_no_other_node_is_refused(leader_id: int) -> None:
    solo = Solo()
    response = solo.begin(leader_id, 3)
    assert isinstance(response, BeginQuorumEpochResponse)
    assert response.error is ErrorCode.INVALID_REQUEST
    assert (solo.role, solo.core.state.leader_epoch) == (Role.UNATTACHED, 0)


def test_node_0_leads_and_resigns_like_any_other() -> None:
    solo = Solo(voter_set(0, 1, 2))
    response = solo.begin(0, 3)
    assert isinstance(response, BeginQuorumEpochResponse)
    assert (response.error, response.leader_id) == (ErrorCode.NONE, 0)
    ended = solo.ask(EndQuorumEpochRequest(0, 3, (key(1),), endpoints(0)))
    assert isinstance(ended, EndQuorumEpochResponse)
    assert ended.error is ErrorCode.NONE
    assert solo.role is Role.PROSPECTIVE


@pytest.mark.parametrize("leader_id", [-1, 3])
def test_end_quorum_epoch_of_another_than_the_leader_is_refused(leader_id: int) -> None:
    solo = follower()
    solo.fetched()
    response = solo.ask(EndQuorumEpochRequest(leader_id, 1, (key(1),)))
    assert isinstance(response, EndQuorumEpochResponse)
    assert response.error is ErrorCode.INVALID_REQUEST
    assert (solo.role, solo.core.state.leadership.leader_id) == (Role.FOLLOWER, 2)


def test_a_leader_is_reached_on_the_listener_by_which_this_replica_is_known() -> None:
    """The first one that it has is taken where it has none of that name."""
    for names, host in ((("OTHER", "CONTROLLER"), "h1"), (("OTHER", "ANOTHER"), "h0")):
        solo = Solo()
        where = tuple(VoterEndpoint(name, f"h{number}", 9) for number, name in enumerate(names))
        solo.ask(BeginQuorumEpochRequest(2, 1, None, where))
        assert solo.sent_hosts(FetchRequest)[-1] == host


def test_begin_quorum_epoch_for_another_disk_is_obeyed_and_refused_kip_853() -> None:
    solo = Solo()
    response = solo.begin(2, 3, ReplicaKey(1, key(1, disk=5).directory_id))
    assert isinstance(response, BeginQuorumEpochResponse)
    assert response.error is ErrorCode.INVALID_VOTER_KEY
    assert solo.role is Role.FOLLOWER, "there is a leader all the same"


def test_the_endpoints_in_the_request_are_used() -> None:
    solo = Solo()
    solo.ask_begin_with(2, 1, "elsewhere7")
    assert solo.sent_hosts(FetchRequest)[-1] == "elsewhere7"


def test_fetched_records_are_appended_and_the_next_fetch_acknowledges_them() -> None:
    solo = follower()
    solo.fetched(records=records("a", "b"), high_watermark=0)
    assert [record.value for record in solo.replica.log.records] == ["a", "b"]
    assert len(fetches(solo)) == 1
    assert (fetches(solo)[0].fetch_offset, fetches(solo)[0].last_fetched_epoch) == (2, 1)


def test_no_fetch_before_the_flush() -> None:
    solo = follower()
    (request,) = fetches(solo)
    in_flight = solo.cluster.requests.pop(-1)
    response = FetchResponse(ErrorCode.NONE, 2, 1, high_watermark=2, records=records("a", "b"))
    assert in_flight.send.request == request
    effects = solo.core.on_response(in_flight.send, response, solo.now_ms)
    assert [type(each) for each in effects] == [AppendFetched]
    solo.replica.log.append(Record(1, "a"), Record(1, "b"))
    assert solo.core.on_appended(solo.now_ms) == []
    assert solo.core.tick(solo.now_ms + 100) == []
    assert solo.core.state.high_watermark == 0, "not durable here yet"
    solo.replica.log.flush()
    solo.replica.run(solo.core.on_flushed(1, solo.now_ms))
    assert solo.core.state.high_watermark == 1
    assert fetches(solo) == []
    solo.replica.run(solo.core.on_flushed(2, solo.now_ms))
    assert solo.core.state.high_watermark == 2
    assert fetches(solo)[0].fetch_offset == 2


def test_the_high_watermark_is_the_leaders_up_to_the_own_end_and_never_goes_back() -> None:
    solo = follower()
    solo.fetched(records=records("a"), high_watermark=5)
    assert solo.core.state.high_watermark == 1
    solo.fetched(records=records("b", "c"), high_watermark=2)
    assert solo.core.state.high_watermark == 2
    solo.fetched(high_watermark=1)
    assert solo.core.state.high_watermark == 2
    advanced = [
        each.high_watermark for each in solo.effects if isinstance(each, AdvanceHighWatermark)
    ]
    assert advanced == [1, 2]


def test_the_fetch_names_the_high_watermark_kip_1166() -> None:
    solo = follower()
    solo.fetched(records=records("a"), high_watermark=1)
    assert fetches(solo)[0].high_watermark == 1


def test_an_answer_to_an_earlier_question_is_not_used() -> None:
    solo = follower()
    in_flight = solo.cluster.requests[-1]
    solo.fetched(records=records("a"), high_watermark=0)
    late = FetchResponse(ErrorCode.NONE, 2, 1, high_watermark=1, records=records("a"))
    solo.again(in_flight.send, late)
    assert solo.replica.log.log_end_offset == 1


def test_an_answer_of_an_earlier_epoch_is_not_used() -> None:
    solo = follower()
    in_flight = solo.cluster.requests[-1]
    solo.follow(3, 2)
    solo.again(in_flight.send, FetchResponse(ErrorCode.NONE, 2, 1, records=records("a")))
    assert solo.replica.log.log_end_offset == 0
    assert solo.core.state.leadership.leader_id == 3


def test_a_high_watermark_of_an_earlier_leader_is_forgotten() -> None:
    solo = follower()
    solo.fetched(records=records("a"), high_watermark=9)
    solo.follow(3, 2)
    in_flight = [each for each in solo.cluster.requests if each.send.destination.node_id == 3][-1]
    solo.again(
        in_flight.send,
        FetchResponse(ErrorCode.NONE, 3, 2, high_watermark=1, records=records("b", epoch=2)),
    )
    assert solo.replica.log.log_end_offset == 2
    assert solo.core.state.high_watermark == 1


# Truncation


def test_a_diverging_epoch_truncates_to_its_end_in_the_own_log() -> None:
    solo = follower(Record(1, "a"), Record(1, "b"), Record(2, "c"), Record(3, "d"), epoch=5)
    solo.fetched(diverging=EpochEnd(2, 9), high_watermark=4)
    assert solo.of(Truncate) == [Truncate(3)]
    assert solo.core.state.high_watermark == 0, "nothing is known to be the same yet"
    solo.wait(0)
    assert (fetches(solo)[0].fetch_offset, fetches(solo)[0].last_fetched_epoch) == (3, 2)


def test_a_diverging_epoch_truncates_to_its_end_in_the_leaders_log() -> None:
    solo = follower(Record(1, "a"), Record(1, "b"), Record(1, "c"), epoch=5)
    solo.fetched(diverging=EpochEnd(1, 2))
    assert solo.of(Truncate) == [Truncate(2)]


def test_a_diverging_epoch_that_the_own_log_lacks() -> None:
    solo = follower(Record(1, "a"), Record(4, "b"), Record(4, "c"), epoch=5)
    solo.fetched(diverging=EpochEnd(3, 7))
    assert solo.of(Truncate) == [Truncate(1)]


def test_truncation_below_the_high_watermark_stops_the_node() -> None:
    solo = follower()
    solo.fetched(records=records("a", "b"), high_watermark=2)
    solo.fetched(diverging=EpochEnd(1, 1))
    assert solo.of(Truncate) == []
    (stop,) = solo.of(Stop)
    assert isinstance(stop, Stop)
    assert "below the high watermark 2" in stop.reason
    assert solo.core.state.is_stopped
    assert solo.core.next_tick_ms() is None


def test_a_log_that_ends_below_the_high_watermark_stops_the_node() -> None:
    solo = follower()
    solo.fetched(records=records("a", "b"), high_watermark=2)
    solo.replica.log.truncate(1)
    solo.wait(FETCH_TIMEOUT_MS)
    (stop,) = solo.of(Stop)
    assert isinstance(stop, Stop)
    assert "below the high watermark 2" in stop.reason
    assert solo.role is Role.FOLLOWER


def test_truncation_undoes_the_voters_of_the_removed_records_kip_853() -> None:
    held = (Record(1, "start", voter_set(1, 2, 3)), Record(1, "voters", voter_set(1, 2, 3, 4)))
    solo = follower(*held, epoch=2)
    assert len(solo.core.state.voters.latest.voters) == 4
    solo.fetched(diverging=EpochEnd(1, 1))
    assert solo.core.state.voters.latest == voter_set(1, 2, 3)


def test_voters_take_effect_when_appended_kip_853() -> None:
    solo = follower()
    data = pickle.dumps([Record(1, "start", voter_set(1, 2, 3, 4))])
    solo.fetched(records=data, high_watermark=0)
    assert solo.core.state.voters.latest == voter_set(1, 2, 3, 4)
    assert solo.core.state.high_watermark == 0


def test_a_leader_whose_truncation_would_change_nothing_is_not_asked_at_once() -> None:
    solo = follower(Record(1, "a"), epoch=2)
    solo.fetched(diverging=EpochEnd(1, 5))
    assert solo.of(Truncate) == []
    assert fetches(solo) == []
    solo.wait(20)
    assert len(fetches(solo)) == 1


def test_a_damaged_batch_is_asked_for_again_after_a_backoff() -> None:
    solo = follower()
    in_flight = solo.cluster.requests.pop(-1)
    response = FetchResponse(ErrorCode.NONE, 2, 1, high_watermark=2, records=records("a", "b"))
    solo.core.on_response(in_flight.send, response, solo.now_ms)
    solo.replica.log.append(Record(1, "a"))
    solo.core.on_appended(solo.now_ms)
    solo.core.on_append_refused(solo.now_ms)
    solo.replica.flush()
    assert solo.core.state.high_watermark == 0, "of a damaged answer nothing counts"
    assert fetches(solo) == []
    solo.wait(20)
    assert fetches(solo)[0].fetch_offset == 1


# Leaders that are silent, gone, or elsewhere


def test_a_silent_leader_is_given_up_after_the_fetch_timeout() -> None:
    solo = follower()
    solo.fetched()
    solo.wait(FETCH_TIMEOUT_MS - 1)
    assert solo.role is Role.FOLLOWER
    solo.wait(1)
    assert solo.role is Role.PROSPECTIVE


def test_every_good_answer_restarts_the_fetch_timeout() -> None:
    solo = follower()
    for _ in range(4):
        solo.wait(2_000)
        solo.fetched()
    assert solo.role is Role.FOLLOWER


def test_an_error_does_not() -> None:
    solo = follower()
    solo.wait(2_000)
    solo.respond(FetchRequest, 2, FetchResponse(ErrorCode.BROKER_NOT_AVAILABLE, 2, 1))
    solo.wait(126)
    assert solo.role is Role.PROSPECTIVE


@pytest.mark.parametrize("is_controller", [True, False])
def test_only_a_broker_takes_what_is_committed_before_it_is_flushed(is_controller: bool) -> None:
    """It never votes: no majority counts on its disk. An observer that may be added to the voters
    has been counted on by then.
    """
    voters = voter_set(1, 2, 3)
    settings = replace(Cluster(voters).settings_for(9, 0), is_controller=is_controller)
    solo = Solo(voters, node_id=9, settings=settings)
    solo.follow(2, 1)
    solo.cluster.now_ms += 50
    fetches(solo)
    in_flight = solo.cluster.requests.pop(-1)
    response = FetchResponse(ErrorCode.NONE, 2, 1, high_watermark=2, records=records("a", "b"))
    solo.core.on_response(in_flight.send, response, solo.now_ms)
    solo.replica.log.append(Record(1, "a"), Record(1, "b"))
    effects = solo.core.on_appended(solo.now_ms)
    if is_controller:
        assert effects == []
        return
    assert [each for each in effects if isinstance(each, AdvanceHighWatermark)] == [
        AdvanceHighWatermark(2)
    ]
    (next_fetch,) = (each.request for each in effects if isinstance(each, Send))
    assert isinstance(next_fetch, FetchRequest)
    assert (next_fetch.fetch_offset, next_fetch.high_watermark) == (2, 2)
    assert solo.core.on_flushed(2, solo.now_ms) == []


def test_an_observer_without_a_leader_looks_for_another() -> None:
    solo = Solo(node_id=9)
    solo.follow(2, 1)
    solo.wait(FETCH_TIMEOUT_MS)
    assert solo.role is Role.UNATTACHED
    assert solo.sent(VoteRequest) == []
    assert solo.sent(FetchRequest)[-1][1].max_wait_ms == 0


def test_a_failed_fetch_is_repeated_and_others_are_asked_in_between() -> None:
    solo = follower()
    solo.respond(FetchRequest, 2, None)
    others = [node_id for node_id, request in solo.sent(FetchRequest) if node_id != 2]
    assert others
    solo.wait(20)
    assert len(fetches(solo)) == 1


def test_an_answer_that_names_a_newer_leader_is_believed() -> None:
    solo = follower()
    newer = FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, 3, 6, leader_endpoints=endpoints(3))
    solo.respond(FetchRequest, 2, newer)
    assert solo.role is Role.FOLLOWER
    assert solo.replica.election == ElectionState(6, 3, None)
    assert solo.sent(FetchRequest)[-1][0] == 3


def test_the_leader_is_found_by_fetches_to_voters_that_may_know_it() -> None:
    solo = Solo(node_id=9)
    (asked, request) = solo.sent(FetchRequest)[0]
    assert request.max_wait_ms == 0
    found = FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, 1, 4, leader_endpoints=endpoints(1))
    solo.respond(FetchRequest, asked, found)
    assert solo.role is Role.FOLLOWER
    assert solo.sent(FetchRequest)[-1][0] == 1
    assert solo.replica.election.leader_epoch == 4


def test_what_is_not_flushed_is_not_named_in_the_search() -> None:
    solo = Solo(node_id=9, flushes=False)
    solo.follow(2, 1)
    in_flight = solo.cluster.requests.pop(-1)
    answer = FetchResponse(ErrorCode.NONE, 2, 1, records=records("a"))
    (append,) = solo.core.on_response(in_flight.send, answer, solo.now_ms)
    assert isinstance(append, AppendFetched)
    solo.replica.log.append(Record(1, "a"))
    solo.replica.run(solo.core.on_appended(solo.now_ms))
    solo.cluster.requests.clear()
    solo.wait(2 * FETCH_TIMEOUT_MS)
    assert (solo.role, solo.sent(FetchRequest)) == (Role.UNATTACHED, [])
    solo.replica.flush()
    ((_, request),) = solo.sent(FetchRequest)
    assert (request.fetch_offset, request.last_fetched_epoch) == (1, 1)


def with_bootstrap_servers(*servers: Destination, voters: VoterSet | None = None) -> Solo:
    """Node 9, which asks these."""
    known = voters or VoterSet((), 1)
    settings = Cluster(known).settings_for(9, 0)
    return Solo(known, node_id=9, settings=replace(settings, bootstrap_servers=servers))


def test_bootstrap_servers_are_asked_but_not_this_replica_itself() -> None:
    servers = (
        Destination(-2, "node9", 9093),  # by its address
        Destination(9, "node99", 9093),  # by its id
        Destination(-3, "node9", 9094),
        Destination(-4, "node5", 9093),
    )
    solo = with_bootstrap_servers(*servers)
    solo.wait(2_000)
    asked = {(each.send.destination.host, each.send.destination.port) for each in requests(solo)}
    assert asked == {("node9", 9094), ("node5", 9093)}


def requests(solo: Solo) -> list[InFlight]:
    """The fetches under way."""
    return [each for each in solo.cluster.requests if isinstance(each.send.request, FetchRequest)]


def test_a_voter_that_is_a_bootstrap_server_is_asked_once() -> None:
    servers = (Destination(-2, "node2", 9093), Destination(-3, "node2", 9094))
    solo = with_bootstrap_servers(*servers, voters=voter_set(2, 3))
    solo.wait(2_000)
    asked = [each.send.destination for each in requests(solo)]
    assert sorted(asked, key=lambda each: (each.host, each.port)) == [
        *servers,
        Destination(3, "node3", 9093),
    ]


def test_a_leader_that_gives_no_address_is_where_it_has_answered() -> None:
    solo = with_bootstrap_servers(Destination(-2, "node5", 9093))
    solo.respond(FetchRequest, 5, FetchResponse(ErrorCode.NONE, 7, 4))
    assert solo.role is Role.FOLLOWER
    assert solo.core.state.leadership == Leadership(
        7, 4, (VoterEndpoint("CONTROLLER", "node5", 9093),)
    )
    assert requests(solo)[-1].send.destination == Destination(7, "node5", 9093)


def test_a_silent_replica_does_not_stop_the_search() -> None:
    solo = Solo(node_id=9)
    solo.wait(600)
    assert sorted(node_id for node_id, _ in solo.sent(FetchRequest)) == [1, 2, 3]


def test_the_search_goes_on_as_soon_as_one_replica_may_be_asked_again() -> None:
    solo = Solo(node_id=9)
    for node_id in (2, 3, 1):
        assert [each for each, _ in solo.sent(FetchRequest)] == [node_id]
        solo.wait(5)
        solo.respond(FetchRequest, node_id, None)
    solo.wait(9)
    assert solo.sent(FetchRequest) == []
    solo.wait(1)
    assert [each for each, _ in solo.sent(FetchRequest)] == [2]


@pytest.mark.parametrize(
    ("successors", "after_ms"), [((1, 3), 0), ((3, 1), 1_000), ((3, 4, 1), 1_000), ((3, 1, 4), 500)]
)
def test_a_resigning_leader_is_followed_by_its_successors_in_order(
    successors: tuple[int, ...], after_ms: float
) -> None:
    solo = follower()
    solo.fetched()
    request = EndQuorumEpochRequest(2, 1, tuple(key(each) for each in successors), endpoints(2))
    response = solo.ask(request)
    assert isinstance(response, EndQuorumEpochResponse)
    assert response.error is ErrorCode.NONE
    if after_ms:
        solo.wait(after_ms - 1)
        assert solo.role is Role.FOLLOWER
        solo.wait(1)
    assert solo.role is Role.PROSPECTIVE


def test_end_quorum_epoch_of_an_older_epoch_is_fenced() -> None:
    solo = follower(epoch=4)
    response = solo.ask(EndQuorumEpochRequest(3, 3, (key(1),)))
    assert isinstance(response, EndQuorumEpochResponse)
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert solo.role is Role.FOLLOWER


def test_hearsay_does_not_bring_a_resigned_leader_back() -> None:
    solo = follower()
    solo.fetched()
    solo.ask(EndQuorumEpochRequest(2, 1, (key(1), key(3)), endpoints(2)))
    assert solo.role is Role.PROSPECTIVE
    for node_id in (2, 3):
        solo.refuse(node_id, leader_id=2)
    assert solo.role is Role.UNATTACHED
    assert solo.core.state.leadership.leader_id == -1


def test_what_a_leader_said_before_it_led_does_not_mean_that_it_is_gone() -> None:
    """1 asks 2, a candidate, for the leader. 2 answers that it does not lead, and is elected.
    3. Its BeginQuorumEpoch overtakes the answer.
    """
    solo = Solo(node_id=9)
    solo.respond(FetchRequest, 2, FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, -1, 1))
    assert (solo.role, solo.core.state.leader_epoch) == (Role.UNATTACHED, 1)
    solo.wait(1_000)
    late = next(
        each.send for each in reversed(solo.cluster.requests) if each.send.destination.node_id == 2
    )
    assert solo.begin(2, 1) is not None
    solo.again(late, FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 1))
    assert solo.core.state.leadership.leader_id == 2
    solo.wait(1_500)
    assert solo.role is Role.FOLLOWER


def test_a_leader_believed_gone_that_answers_since_leads() -> None:
    solo = Solo(node_id=9)
    solo.follow(2, 1)
    solo.ask(EndQuorumEpochRequest(2, 1, (), endpoints(2)))
    solo.wait(1_000)
    assert solo.role is Role.UNATTACHED
    solo.wait(1_000)
    solo.respond(
        FetchRequest, 2, FetchResponse(ErrorCode.NONE, 2, 1, leader_endpoints=endpoints(2))
    )
    assert solo.role is Role.FOLLOWER


def test_a_follower_that_was_no_leader_persists_nothing_while_it_fetches() -> None:
    solo = follower()
    persisted = len(solo.of(Persist))
    solo.fetched(records=records("a"), high_watermark=1)
    solo.wait(ELECTION_TIMEOUT_MS)
    assert len(solo.of(Persist)) == persisted


def fail_at_once(solo: Solo, times: int) -> None:
    """Every fetch is refused the moment it is sent."""
    for _ in range(times):
        solo.respond(FetchRequest, 2, None)
        for _ in range(1_000):
            if fetches(solo) or solo.role is not Role.FOLLOWER:
                break
            solo.wait(1)


def test_a_leader_that_refuses_connections_is_given_up_long_before_the_fetch_timeout_adr_0006() -> (
    None
):
    solo = follower()
    solo.fetched()
    begin_ms = solo.now_ms
    fail_at_once(solo, 2)
    assert solo.role is Role.FOLLOWER
    fail_at_once(solo, 1)
    solo.wait(ELECTION_TIMEOUT_MS / 2)
    assert solo.role is Role.PROSPECTIVE
    assert solo.now_ms - begin_ms < FETCH_TIMEOUT_MS
    assert all(request.pre_vote for _, request in solo.sent(VoteRequest)), "it only asks"


def test_a_leader_that_answers_between_refusals_is_not_given_up_adr_0006() -> None:
    solo = follower()
    for _ in range(4):
        fail_at_once(solo, 2)
        solo.fetched()
    solo.wait(ELECTION_TIMEOUT_MS / 2)
    assert solo.role is Role.FOLLOWER


def test_fetches_that_are_lost_and_not_refused_wait_for_the_fetch_timeout_adr_0006() -> None:
    solo = follower()
    solo.fetched()
    begin_ms = solo.now_ms
    for _ in range(5):
        while not fetches(solo):
            solo.wait(1)
        solo.wait(FETCH_TIMEOUT_MS / 8)
        if solo.role is not Role.FOLLOWER:
            break
        solo.respond(FetchRequest, 2, None)
    assert solo.now_ms - begin_ms < FETCH_TIMEOUT_MS
    assert solo.role is Role.FOLLOWER


def test_who_meets_refusals_grants_a_pre_vote_kip_996_adr_0006() -> None:
    solo = follower()
    solo.fetched()
    asked = VoteRequest(key(3), key(1), 1, 1, 5, pre_vote=True)
    assert not solo.ask(asked).vote_granted  # type: ignore[union-attr]
    fail_at_once(solo, 3)
    assert solo.ask(asked).vote_granted  # type: ignore[union-attr]
