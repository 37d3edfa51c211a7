"""Adding, removing and updating voters, and kraft.version (KIP-853)."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID
from moldau.raft.core import Role
from moldau.raft.core.effects import AppendVoters
from moldau.raft.core.messages import (
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    KraftVersionRequest,
    KraftVersionResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
)
from moldau.raft.core.values import ElectionState, ReplicaKey
from moldau.raft.core.voters import VoterDescription, VoterEndpoint, VoterSet
from tests.unit.raft.core.harness import (
    Cluster,
    Record,
    described,
    directory,
    endpoints,
    key,
    voter_set,
)
from tests.unit.raft.core.solo import Solo

TIMEOUT_MS = 5_000
SPEAKS_IT = KraftVersionResponse(ErrorCode.NONE, 0, 1)
ELSEWHERE = (VoterEndpoint("CONTROLLER", "elsewhere", 1),)


def leader(voters: VoterSet | None = None) -> Solo:
    """One that has committed in its epoch."""
    solo = Solo(voters)
    solo.lead()
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 1
    return solo


def add(solo: Solo, voter: VoterDescription, *, ack_when_committed: bool = True) -> None:
    effects = solo.core.add_voter(
        "add",
        voter,
        solo.now_ms,
        ack_when_committed=ack_when_committed,
        timeout_ms=TIMEOUT_MS,
    )
    solo.replica.run(effects)


def remove(solo: Solo, voter: ReplicaKey, token: str = "remove") -> None:
    solo.replica.run(solo.core.remove_voter(token, voter, solo.now_ms, timeout_ms=TIMEOUT_MS))


def upgrade(solo: Solo, level: int = 1) -> None:
    effects = solo.core.upgrade_kraft_version("up", level, solo.now_ms, timeout_ms=TIMEOUT_MS)
    solo.replica.run(effects)


def ids(solo: Solo) -> list[int]:
    return [voter.voter_id for voter in solo.core.state.voters.latest.voters]


# Adding


def test_a_new_voter_is_asked_then_waited_for_then_added_then_committed() -> None:
    solo = leader()
    add(solo, described(4))
    assert [node_id for node_id, _ in solo.sent(KraftVersionRequest)] == [4]
    assert solo.of(AppendVoters) == []
    solo.respond(KraftVersionRequest, 4, SPEAKS_IT)
    assert solo.of(AppendVoters) == [], "it has not caught up"
    solo.fetch_by(4, 0)
    assert solo.of(AppendVoters) == []
    solo.fetch_by(4)
    assert solo.of(AppendVoters) == [AppendVoters(1, voter_set(1, 2, 3, 4))]
    assert ids(solo) == [1, 2, 3, 4], "in force as soon as it is appended"
    assert solo.completed() == []
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 1, "two of four are no majority"
    solo.fetch_by(4)
    assert solo.core.state.high_watermark == 2
    assert solo.completed() == [("add", ErrorCode.NONE)]


def test_an_answer_at_append_kip_1186() -> None:
    solo = leader()
    add(solo, described(4), ack_when_committed=False)
    solo.fetch_by(4)
    solo.respond(KraftVersionRequest, 4, SPEAKS_IT)
    assert ids(solo) == [1, 2, 3, 4]
    assert solo.core.state.high_watermark == 1
    assert solo.completed() == [("add", ErrorCode.NONE)]
    remove(solo, key(3))
    assert solo.completed()[-1] == ("remove", ErrorCode.REQUEST_TIMED_OUT), "not committed yet"


def test_a_new_voter_that_never_catches_up_times_out() -> None:
    solo = leader()
    add(solo, described(4))
    solo.respond(KraftVersionRequest, 4, SPEAKS_IT)
    for _ in range(6):
        solo.fetch_by(2)
        solo.wait(1_000)
    assert solo.completed() == [("add", ErrorCode.REQUEST_TIMED_OUT)]
    solo.fetch_by(4)
    assert ids(solo) == [1, 2, 3]


def test_having_caught_up_long_ago_is_not_enough() -> None:
    solo = leader()
    solo.fetch_by(4)
    solo.wait(2_500)
    add(solo, described(4))
    solo.respond(KraftVersionRequest, 4, SPEAKS_IT)
    assert solo.of(AppendVoters) == []
    solo.fetch_by(4)
    assert ids(solo) == [1, 2, 3, 4]


def test_a_new_voter_that_does_not_answer_is_asked_again() -> None:
    solo = leader()
    add(solo, described(4))
    solo.respond(KraftVersionRequest, 4, None)
    solo.wait(20)
    assert len(solo.sent(KraftVersionRequest)) == 1


@pytest.mark.parametrize("versions", [(0, 0), (2, 3)])
def test_a_new_voter_must_speak_the_version(versions: tuple[int, int]) -> None:
    solo = leader()
    add(solo, described(4))
    solo.respond(KraftVersionRequest, 4, KraftVersionResponse(ErrorCode.NONE, *versions))
    assert solo.completed() == [("add", ErrorCode.INVALID_REQUEST)]
    solo.fetch_by(4)
    assert ids(solo) == [1, 2, 3]


@pytest.mark.parametrize("disk", [0, 1])
def test_a_node_that_is_a_voter_cannot_be_added_not_even_with_another_disk(disk: int) -> None:
    solo = leader()
    add(solo, described(3, disk))
    assert solo.completed() == [("add", ErrorCode.DUPLICATE_VOTER)]


@pytest.mark.parametrize(
    "voter",
    [
        VoterDescription(4, ZERO_UUID, endpoints(4)),
        VoterDescription(4, directory(4), ()),
        VoterDescription(-1, directory(4), endpoints(4)),
    ],
)
def test_a_new_voter_needs_id_directory_and_endpoints(voter: VoterDescription) -> None:
    solo = leader()
    add(solo, voter)
    assert solo.completed() == [("add", ErrorCode.INVALID_REQUEST)]


# What must be so before any change


def test_only_the_leader_changes_voters() -> None:
    solo = Solo()
    solo.follow(2, 1)
    add(solo, described(4))
    remove(solo, key(3))
    upgrade(solo)
    assert [error for _, error in solo.completed()] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3


def test_no_change_before_a_record_of_the_epoch_is_committed() -> None:
    solo = Solo()
    solo.lead()
    remove(solo, key(3))
    add(solo, described(4))
    assert [error for _, error in solo.completed()] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert solo.of(AppendVoters) == []


def test_no_change_before_a_record_of_the_epoch_is_committed_whatever_was_before() -> None:
    """Else two leaders could change the same committed voters, each with its own majority
    (the later correction to the Raft dissertation, 4.1).
    """
    solo = Solo(voter_set(1, 2, 3, kraft_version=0))
    solo.follow(2, 1)
    solo.fetched(records=pickle.dumps([Record(1, "earlier")]), high_watermark=1)
    assert solo.core.state.high_watermark == 1
    solo.lead()
    update(solo, described(2))
    update(solo, described(3))
    upgrade(solo)
    assert solo.completed() == [("up", ErrorCode.REQUEST_TIMED_OUT)]
    assert solo.of(AppendVoters) == []
    solo.fetch_by(2)
    upgrade(solo)
    assert solo.of(AppendVoters) == [AppendVoters(2, voter_set(1, 2, 3), True)]


@pytest.mark.parametrize("is_another_under_way", [False, True])
def test_an_answer_after_its_addition_has_ended_begins_nothing(
    *, is_another_under_way: bool
) -> None:
    solo = leader()
    add(solo, described(4))
    for _ in range(6):
        solo.fetch_by(2)
        solo.wait(1_000)
    completed = [("add", ErrorCode.REQUEST_TIMED_OUT)]
    assert solo.completed() == completed
    if is_another_under_way:
        remove(solo, key(3))
    solo.fetch_by(4)
    solo.respond(KraftVersionRequest, 4, SPEAKS_IT)
    assert solo.completed() == completed
    assert ids(solo) == ([1, 2] if is_another_under_way else [1, 2, 3])


def test_one_change_at_a_time() -> None:
    solo = leader()
    add(solo, described(4))
    remove(solo, key(3))
    assert solo.completed() == [("remove", ErrorCode.REQUEST_TIMED_OUT)]


def test_the_next_change_only_when_the_last_is_committed() -> None:
    solo = leader()
    remove(solo, key(3))
    assert solo.completed() == []
    solo.wait(900)
    remove(solo, key(2), "second")
    assert solo.completed() == [("second", ErrorCode.REQUEST_TIMED_OUT)]
    solo.fetch_by(2)
    assert solo.completed()[-1] == ("remove", ErrorCode.NONE)
    remove(solo, key(2), "third")
    assert ids(solo) == [1]
    assert solo.completed()[-1] == ("third", ErrorCode.NONE), "the leader alone is a majority now"


def test_a_change_that_timed_out_after_its_append_still_bars_the_next() -> None:
    solo = leader(voter_set(1, 2, 3))
    remove(solo, key(3))
    for _ in range(6):
        solo.wait(1_000)
        solo.fetch_by(2, 1, last_epoch=1)
    assert solo.completed() == [("remove", ErrorCode.REQUEST_TIMED_OUT)]
    remove(solo, key(2), "second")
    assert solo.completed()[-1] == ("second", ErrorCode.REQUEST_TIMED_OUT)
    solo.fetch_by(2)
    remove(solo, key(2), "third")
    assert ids(solo) == [1]


def test_no_change_at_kraft_version_0() -> None:
    solo = leader(voter_set(1, 2, 3, kraft_version=0))
    add(solo, described(4))
    remove(solo, ReplicaKey(3))
    assert [error for _, error in solo.completed()] == [ErrorCode.UNSUPPORTED_VERSION] * 2


def test_a_change_under_way_ends_with_leadership() -> None:
    solo = leader()
    remove(solo, key(3))
    solo.follow(2, 4)
    assert solo.completed() == [("remove", ErrorCode.NOT_LEADER_OR_FOLLOWER)]


# Removing


def test_a_removed_voter_counts_no_more() -> None:
    solo = leader()
    remove(solo, key(3))
    assert ids(solo) == [1, 2]
    solo.fetch_by(3)
    assert solo.core.state.high_watermark == 1
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 2


@pytest.mark.parametrize("voter", [key(4), key(3, disk=1), ReplicaKey(3)])
def test_who_is_no_voter_cannot_be_removed(voter: ReplicaKey) -> None:
    solo = leader()
    remove(solo, voter)
    assert solo.completed() == [("remove", ErrorCode.VOTER_NOT_FOUND)]


def test_the_last_voter_stays() -> None:
    solo = Solo(voter_set(1))
    remove(solo, key(1))
    assert solo.completed() == [("remove", ErrorCode.INVALID_REQUEST)]
    assert ids(solo) == [1]


def test_a_leader_that_removes_itself_leads_uncounted_until_that_is_committed() -> None:
    solo = leader()
    remove(solo, key(1))
    assert ids(solo) == [2, 3]
    assert solo.role is Role.LEADER
    assert not solo.core.state.is_voter
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 1, "itself does not count"
    solo.fetch_by(9)
    assert [each.replica for each in solo.core.progress()[1]] == [key(1), key(9)]
    solo.fetch_by(3)
    assert solo.core.state.high_watermark == 2
    assert solo.completed() == [("remove", ErrorCode.NONE)]
    assert solo.role is Role.RESIGNED
    assert [node_id for node_id, _ in solo.sent(EndQuorumEpochRequest)] == [2, 3]
    solo.wait(5_000)
    assert solo.role is Role.UNATTACHED
    assert solo.core.state.leader_epoch == 1, "who is no voter raises no epoch"


def test_a_removed_leader_needs_the_majority_of_the_others_to_go_on() -> None:
    solo = leader(voter_set(1, 2, 3))
    remove(solo, key(1))
    solo.wait(1_000)
    solo.fetch_by(2, 1, last_epoch=1)
    solo.wait(2_500)
    assert solo.role is Role.RESIGNED


# Updating


def update(solo: Solo, voter: VoterDescription, *, versions: tuple[int, int] = (0, 1)) -> object:
    return solo.ask(UpdateVoterRequest(solo.core.state.leader_epoch, voter, *versions))


def error_of(response: object) -> ErrorCode:
    assert isinstance(response, UpdateVoterResponse)
    return response.error


def test_a_voter_that_has_moved_is_updated_and_answered_when_that_is_committed() -> None:
    solo = leader()
    moved = described(3)._replace(endpoints=ELSEWHERE)
    assert update(solo, moved) is None
    assert solo.core.state.voters.latest.voters[2] == moved
    solo.fetch_by(2)
    responses = [each for each in solo.answers() if isinstance(each, UpdateVoterResponse)]
    assert [each.error for each in responses] == [ErrorCode.NONE]


def test_an_update_that_changes_nothing_is_answered_at_once() -> None:
    solo = leader()
    assert error_of(update(solo, described(3))) is ErrorCode.NONE
    assert solo.of(AppendVoters) == []


def test_update_refusals() -> None:
    solo = leader()
    assert error_of(update(solo, described(3, disk=1))) is ErrorCode.VOTER_NOT_FOUND
    assert error_of(update(solo, described(4))) is ErrorCode.VOTER_NOT_FOUND
    moved = described(3)._replace(endpoints=ELSEWHERE)
    assert error_of(update(solo, moved, versions=(0, 0))) is ErrorCode.INVALID_REQUEST
    assert error_of(update(solo, moved._replace(endpoints=()))) is ErrorCode.INVALID_REQUEST
    assert error_of(update(solo, moved, versions=(2, 3))) is ErrorCode.INVALID_REQUEST
    nowhere = moved._replace(directory_id=ZERO_UUID)
    assert error_of(update(solo, nowhere)) is ErrorCode.INVALID_REQUEST
    unreachable = moved._replace(endpoints=(VoterEndpoint("ANOTHER", "elsewhere", 1),))
    assert error_of(update(solo, unreachable)) is ErrorCode.INVALID_REQUEST
    stale = solo.ask(UpdateVoterRequest(0, moved, 0, 1))
    assert error_of(stale) is ErrorCode.FENCED_LEADER_EPOCH
    future = solo.ask(UpdateVoterRequest(8, moved, 0, 1))
    assert error_of(future) is ErrorCode.UNKNOWN_LEADER_EPOCH
    remove(solo, key(2))
    assert error_of(update(solo, moved)) is ErrorCode.REQUEST_TIMED_OUT


def test_a_follower_is_asked_for_no_update() -> None:
    solo = Solo()
    solo.follow(2, 1)
    assert error_of(update(solo, described(3))) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_update_under_way_is_answered_when_leadership_ends() -> None:
    solo = leader()
    assert update(solo, described(3)._replace(endpoints=ELSEWHERE)) is None
    solo.follow(2, 4)
    responses = [each for each in solo.answers() if isinstance(each, UpdateVoterResponse)]
    assert responses[-1].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def moved_replica() -> Solo:
    """Node 1, of which the voters record has an old endpoint."""
    old = described(1)._replace(endpoints=ELSEWHERE)
    voters = VoterSet((old, described(2), described(3)), 1)
    solo = Solo(records=(Record(1, "start", voters),), election=ElectionState(1))
    return solo


def test_a_follower_that_has_moved_updates_its_voter_after_its_first_fetch() -> None:
    solo = moved_replica()
    solo.follow(2, 2)
    assert solo.sent(UpdateVoterRequest) == []
    solo.fetched()
    ((node_id, request),) = solo.sent(UpdateVoterRequest)
    assert (node_id, request.leader_epoch) == (2, 2)
    assert request.voter == described(1)
    assert (request.min_kraft_version, request.max_kraft_version) == (0, 1)
    solo.respond(UpdateVoterRequest, 2, UpdateVoterResponse(ErrorCode.REQUEST_TIMED_OUT, 2, 2))
    for _ in range(6):
        assert solo.sent(UpdateVoterRequest) == []
        solo.wait(950)
        solo.fetched()
    assert len(solo.sent(UpdateVoterRequest)) == 1, "again after three fetch timeouts"


def test_a_follower_whose_entry_stays_wrong_updates_its_voter_again_even_after_a_success() -> None:
    solo = moved_replica()
    solo.follow(2, 2)
    solo.fetched()
    solo.respond(UpdateVoterRequest, 2, UpdateVoterResponse(ErrorCode.NONE, 2, 2))
    for _ in range(6):
        assert solo.sent(UpdateVoterRequest) == []
        solo.wait(950)
        solo.fetched()
    assert len(solo.sent(UpdateVoterRequest)) == 1


def test_a_voter_without_addresses_sends_no_update() -> None:
    voters = voter_set(1, 2, 3, kraft_version=0)
    settings = replace(Cluster(voters).settings_for(1, 0), endpoints=())
    solo = Solo(voters, settings=settings)
    solo.follow(2, 1)
    solo.fetched()
    assert solo.sent(UpdateVoterRequest) == []


def test_a_follower_with_the_right_entry_sends_no_update() -> None:
    solo = Solo()
    solo.follow(2, 1)
    solo.fetched()
    assert solo.sent(UpdateVoterRequest) == []


def test_a_leader_that_has_moved_corrects_its_own_entry() -> None:
    solo = moved_replica()
    solo.lead()
    assert solo.of(AppendVoters) == []
    solo.fetch_by(2)
    assert solo.of(AppendVoters) == [AppendVoters(2, voter_set(1, 2, 3))]
    solo.fetch_by(2)
    assert solo.core.state.high_watermark == 3
    assert solo.completed() == []


def test_a_leader_corrects_its_endpoints_once_in_its_epoch() -> None:
    solo = moved_replica()
    solo.lead()
    solo.fetch_by(2)
    solo.fetch_by(2)
    assert solo.core.state.voters.latest == voter_set(1, 2, 3)
    assert update(solo, described(1)._replace(endpoints=ELSEWHERE)) is None
    for _ in range(3):
        solo.fetch_by(2)
        solo.wait(100)
    assert solo.core.state.voters.latest.voters[0].endpoints == ELSEWHERE


# kraft.version


def test_the_upgrade_writes_the_voters_that_have_sent_their_directories() -> None:
    solo = leader(voter_set(1, 2, 3, kraft_version=0))
    upgrade(solo)
    assert solo.completed() == [("up", ErrorCode.INVALID_UPDATE_VERSION)]
    assert error_of(update(solo, described(2))) is ErrorCode.NONE
    assert error_of(update(solo, described(3))) is ErrorCode.NONE
    assert error_of(update(solo, described(4))) is ErrorCode.VOTER_NOT_FOUND
    upgrade(solo)
    assert solo.of(AppendVoters) == [AppendVoters(1, voter_set(1, 2, 3), True)]
    assert solo.core.state.voters.latest.kraft_version == 1
    solo.fetch_by(2)
    assert solo.completed()[-1] == ("up", ErrorCode.NONE)
    remove(solo, key(3))
    assert ids(solo) == [1, 2]


def test_an_upgrade_that_is_not_committed_is_no_success_when_it_is_asked_for_again() -> None:
    solo = leader(voter_set(1, 2, 3, kraft_version=0))
    update(solo, described(2))
    update(solo, described(3))
    upgrade(solo)
    upgrade(solo)
    assert solo.completed() == [("up", ErrorCode.REQUEST_TIMED_OUT)], "the first one waits"
    solo.wait(TIMEOUT_MS / 2)
    solo.fetch_by(2, 1)  # keeps the leader, and has nothing new
    solo.wait(TIMEOUT_MS / 2)
    upgrade(solo)
    assert solo.completed()[1:] == [("up", ErrorCode.REQUEST_TIMED_OUT)] * 2
    solo.fetch_by(2)
    upgrade(solo)
    assert solo.completed()[3:] == [("up", ErrorCode.NONE)]
    assert len(solo.of(AppendVoters)) == 1


@pytest.mark.parametrize("versions", [(0, 0), (2, 3)])
def test_the_upgrade_needs_voters_that_speak_the_version(versions: tuple[int, int]) -> None:
    solo = leader(voter_set(1, 2, 3, kraft_version=0))
    update(solo, described(2))
    update(solo, described(3), versions=versions)
    upgrade(solo)
    assert solo.completed() == [("up", ErrorCode.INVALID_UPDATE_VERSION)]


@pytest.mark.parametrize(
    ("level", "error"),
    [
        (1, ErrorCode.NONE),
        (0, ErrorCode.INVALID_UPDATE_VERSION),
        (2, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_other_levels(level: int, error: ErrorCode) -> None:
    solo = leader()
    upgrade(solo, level)
    assert solo.completed() == [("up", error)]
    assert solo.of(AppendVoters) == []


def test_at_kraft_version_0_every_follower_sends_every_leader_its_directory() -> None:
    solo = Solo(voter_set(1, 2, 3, kraft_version=0))
    solo.follow(2, 1)
    solo.fetched()
    (asked,) = solo.sent(UpdateVoterRequest)
    assert asked[1].voter == described(1)
    solo.respond(UpdateVoterRequest, 2, UpdateVoterResponse(ErrorCode.NONE, 2, 1))
    solo.wait(1_900)
    solo.fetched()
    solo.wait(1_900)
    assert solo.sent(UpdateVoterRequest) == []
    solo.follow(3, 2)
    solo.respond(FetchRequest, 3, FetchResponse(ErrorCode.NONE, 3, 2))
    assert [node_id for node_id, _ in solo.sent(UpdateVoterRequest)] == [3]


# Whole clusters


def test_a_quorum_moves_to_other_machines_one_voter_at_a_time() -> None:
    cluster = Cluster(voter_set(1, 2, 3), observers=(4, 5, 6), seed=11)
    cluster.start()
    for number, (new, old) in enumerate(((4, 1), (5, 2), (6, 3))):
        leader_ = cluster.elect()
        assert leader_.core is not None
        leader_.propose(f"record {number}")
        effects = leader_.core.add_voter(
            f"add {new}", described(new), cluster.now_ms, timeout_ms=TIMEOUT_MS
        )
        leader_.run(effects)
        cluster.run_for(1_500)
        leader_ = cluster.elect()
        assert leader_.core is not None
        effects = leader_.core.remove_voter(
            f"remove {old}", key(old), cluster.now_ms, timeout_ms=TIMEOUT_MS
        )
        leader_.run(effects)
        cluster.run_for(3_000)
        cluster.crash(old)
    leader_ = cluster.elect()
    assert leader_.core is not None
    leader_.propose("last")
    cluster.run_for(1_000)
    assert sorted(voter.voter_id for voter in leader_.core.state.voters.latest.voters) == [4, 5, 6]
    values = [record.value for record in cluster.agreed if str(record.value).startswith("rec")]
    assert values == ["record 0", "record 1", "record 2"]
    assert {each.committed for each in cluster.live()} == {leader_.log.log_end_offset}


def test_a_wiped_disk_is_another_replica() -> None:
    cluster = Cluster(voter_set(1, 2, 3), seed=12)
    cluster.start()
    first = cluster.elect()
    first.propose("a")
    cluster.run_for(600)
    wiped = cluster[next(each for each in (1, 2, 3) if each != first.node_id)]
    cluster.crash(wiped.node_id)
    cluster.wipe(wiped.node_id)
    cluster.run_for(3_000)
    leader_ = cluster.elect()
    assert leader_.core is not None
    assert wiped.core is not None
    assert not wiped.core.state.is_voter
    assert key(wiped.node_id, 1) in [each.replica for each in leader_.core.progress()[1]]
    for token, effects in (
        (
            "out",
            lambda core: core.remove_voter(
                "out", key(wiped.node_id), cluster.now_ms, timeout_ms=TIMEOUT_MS
            ),
        ),
        (
            "in",
            lambda core: core.add_voter(
                "in", described(wiped.node_id, 1), cluster.now_ms, timeout_ms=TIMEOUT_MS
            ),
        ),
    ):
        leader_.run(effects(leader_.core))
        cluster.run_for(1_500)
        assert f"{leader_.node_id} completes {token}: NONE" in cluster.lines
    assert wiped.core.state.is_voter
