"""Joining a classic group: who is let in, and when the first generation begins."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.group.core.classic_group import SESSION
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group.harness import (
    INITIAL_DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Groups,
    error_of,
    finish_rebalance,
    subscription,
)


def test_a_first_member_waits_for_others_and_leads() -> None:
    groups = Groups()
    member = groups.member()
    member.join()
    groups.advance(INITIAL_DELAY_MS - 1)
    assert not member.joining.is_answered
    groups.advance(1)
    answer = member.joined()
    assert answer.generation_id == 1
    assert answer.leader == member.member_id
    assert answer.protocol_type == "consumer"
    assert answer.protocol_name == "range"
    assert [each.member_id for each in answer.members] == [member.member_id]
    assert answer.members[0].metadata == subscription("events")
    assert member.member_id.startswith("client-")
    assert groups.group_state() == "CompletingRebalance"


def test_a_dynamic_member_is_given_its_id_first() -> None:
    groups = Groups()
    member = groups.member()
    answer = member.ask_to_join().answer
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("client-")
    assert groups.group_state() == "Empty"
    member.member_id = answer.member_id
    member.ask_to_join()
    assert groups.group_state() == "PreparingRebalance"


def test_old_clients_and_static_members_need_no_id_first() -> None:
    for options in ({"version": 3}, {"instance_id": "i-1"}):
        groups = Groups()
        member = groups.member(**options)
        member.ask_to_join()
        groups.advance(INITIAL_DELAY_MS)
        assert member.joined().generation_id == 1
        prefix = options.get("instance_id", "client")
        assert member.member_id.startswith(f"{prefix}-")


@pytest.mark.parametrize(("version", "rebalance_ms"), [(0, SESSION_MS), (1, 20_000)])
def test_a_join_that_names_no_rebalance_timeout_has_its_sessions(
    version: int, rebalance_ms: int
) -> None:
    """JoinGroup v0 has no such field."""
    groups = Groups()
    member = groups.member(version=version, rebalance_ms=20_000)
    member.ask_to_join()
    assert groups.state.groups["team"].rebalance_timeout_ms == rebalance_ms


@pytest.mark.parametrize(("version", "needs_id"), [(3, False), (4, True)])
def test_dynamic_members_get_an_id_first_since_version_4(version: int, needs_id: bool) -> None:
    asking = Groups().member(version=version).ask_to_join()
    assert asking.is_answered is needs_id
    assert not needs_id or error_of(asking) is ErrorCode.MEMBER_ID_REQUIRED


def test_an_unknown_member_leaves_no_group_of_nothing_behind() -> None:
    groups = Groups()
    groups.commit({("events", 0): 1})
    groups.delete_offsets({"events": [0]})
    assert groups.group_state() == "Empty"
    stranger = groups.member()
    stranger.member_id = "made-up"
    assert error_of(stranger.ask_to_join()) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.group_state() == "Dead"


def test_an_empty_instance_id_is_one() -> None:
    groups = Groups()
    member = groups.member(instance_id="")
    member.ask_to_join()
    groups.advance(INITIAL_DELAY_MS)
    assert member.joined().member_id.startswith("-")


def test_a_pending_id_lasts_a_session() -> None:
    groups = Groups()
    member = groups.member()
    member.member_id = member.ask_to_join().answer.member_id
    groups.advance(SESSION_MS)
    assert groups.group_state() == "Dead"
    assert error_of(member.ask_to_join()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_pour_in_prolong_the_first_rebalance_up_to_the_timeout() -> None:
    groups = Groups()
    members = []
    waited_ms = 0
    while not (members and members[0].joining.is_answered):
        members.append(groups.member(rebalance_ms=8000))
        members[-1].join()
        groups.advance(2000)
        waited_ms += 2000
        assert waited_ms <= 8000
    assert waited_ms == 8000
    assert all(member.joining.is_answered for member in members)
    assert {member.joined().leader for member in members} == {members[0].member_id}


def test_a_rebalance_timeout_within_the_first_delay_prolongs_nothing() -> None:
    groups = Groups()
    first, second = (groups.member(rebalance_ms=1000) for _ in range(2))
    first.join()
    groups.advance(1000)
    second.join()
    groups.advance(INITIAL_DELAY_MS - 1000)
    assert first.joined().generation_id == second.joined().generation_id == 1


def test_a_first_rebalance_whose_members_have_left_goes_on_with_the_next_one() -> None:
    groups = Groups()
    first = groups.member()
    first.join()
    first.leave()
    assert groups.group_state() == "PreparingRebalance"
    stranger = groups.member()
    stranger.protocols = {}
    assert error_of(stranger.ask_to_join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    second = groups.member()
    second.join()
    groups.advance(2 * INITIAL_DELAY_MS)
    answer = second.joined()
    assert (answer.generation_id, answer.leader) == (1, second.member_id)
    assert len(answer.members) == 1


def test_a_first_rebalance_without_a_member_left_is_a_generation_without_members() -> None:
    groups = Groups()
    first = groups.member()
    first.join()
    first.leave()
    groups.advance(INITIAL_DELAY_MS)
    assert groups.group_state() == "Empty"
    groups.fail_over()
    assert groups.group_state() == "Empty"
    (next_one,) = groups.stable()
    assert next_one.generation == 2, "no generation comes twice"


def test_without_initial_delay_the_first_member_does_not_wait() -> None:
    groups = Groups(group_initial_rebalance_delay_ms=0)
    member = groups.member()
    member.join()
    groups.advance(0)
    assert member.joined().generation_id == 1


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (("ab", "ba", "ba"), "b"),
        # Two votes each: c is not common, so its member votes for a; the first voted for wins.
        (("ab", "ba", "ba", "cab"), "a"),
    ],
)
def test_the_protocol_most_members_prefer_is_chosen_among_common_ones(
    preferences: tuple[str, ...], chosen: str
) -> None:
    groups = Groups()
    members = [
        groups.member(protocol_type="custom", protocols=dict.fromkeys(names, b"1"))
        for names in preferences
    ]
    for member in members:
        member.join()
    groups.advance(INITIAL_DELAY_MS)
    groups.advance(INITIAL_DELAY_MS)
    assert {member.joined().protocol_name for member in members} == {chosen}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_requests_that_cannot_be_accepted(changes: dict[str, object], error: ErrorCode) -> None:
    groups = Groups()
    member = groups.member(**changes)
    answer = member.ask_to_join().answer
    assert answer.error_code == error
    assert answer.generation_id == -1
    assert not groups.state.groups, "nothing is left of the attempt"


def test_no_protocols_or_a_foreign_type_do_not_fit_a_group() -> None:
    groups = Groups()
    groups.stable()
    for options in (
        {"protocols": {"sticky": b""}},
        {"protocol_type": "connect"},
    ):
        assert error_of(groups.member(**options).ask_to_join()) is (
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        )
    nothing = groups.member("other")
    nothing.protocols = {}
    assert error_of(nothing.ask_to_join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_unknown_member_id_is_refused_with_and_without_a_group() -> None:
    groups = Groups()
    member = groups.member()
    member.member_id = "made-up"
    assert error_of(member.ask_to_join()) is ErrorCode.UNKNOWN_MEMBER_ID
    groups.stable()
    assert error_of(member.ask_to_join()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_no_member_and_the_first_ones_are_in() -> None:
    groups = Groups(group_max_size=2)
    members = groups.stable(2)
    late = groups.member()
    answer = late.ask_to_join().answer
    assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert answer.member_id == ""
    # While it rebalances the two who come first stay, and one has left a place.
    members[0].protocols = {"range": subscription("events", "more")}
    members[0].join()
    late.member_id = ""
    late.version = 3
    late.ask_to_join()
    assert error_of(members[1].ask_to_join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    finish_rebalance([members[0], late])
    assert groups.group_state() == "Stable"
    assert set(groups.state.groups["team"].members) == {members[0].member_id, late.member_id}


def test_a_pending_member_over_the_limit_is_turned_away() -> None:
    groups = Groups(group_max_size=1)
    one, other = groups.member(), groups.member()
    for member in (one, other):
        member.member_id = member.ask_to_join().answer.member_id
    one.ask_to_join()
    assert error_of(other.ask_to_join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (SESSION, other.member_id) not in groups.timers
    groups.advance(INITIAL_DELAY_MS)
    assert one.joined().generation_id == 1
    one.sync({one.member_id: b"x"})
    one.join()
    assert one.joined().generation_id == 2, "the other one is not waited for"


def test_a_lost_answer_is_given_again_to_who_asks_the_same() -> None:
    groups = Groups()
    members = groups.stable(2)
    follower = next(each for each in members if each.joined().leader != each.member_id)
    again = follower.ask_to_join().answer
    assert again.generation_id == follower.generation
    assert again.members == []
    assert groups.group_state() == "Stable"


def test_in_completing_rebalance_the_same_request_gets_the_same_generation() -> None:
    groups = Groups()
    member = groups.member()
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    first = member.joined()
    assert member.ask_to_join().answer == first
    member.protocols = {"range": subscription("others")}
    assert not groups.member().join().is_answered
    member.ask_to_join()
    groups.advance(REBALANCE_MS)
    assert member.joined().generation_id == 2


def test_a_leader_that_joins_again_has_the_group_rebalance() -> None:
    groups = Groups()
    (leader,) = groups.stable()
    leader.ask_to_join()
    assert leader.joined().generation_id == 2


def test_a_member_that_wants_something_else_has_the_group_rebalance() -> None:
    groups = Groups()
    members = groups.stable(2)
    follower = next(each for each in members if each.joined().leader != each.member_id)
    leader = next(each for each in members if each is not follower)
    follower.protocols = {"range": subscription("else")}
    follower.ask_to_join()
    assert not follower.joining.is_answered
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    leader.ask_to_join()
    assert follower.joined().generation_id == leader.joined().generation_id == 2


def test_two_requests_of_one_member_are_both_answered() -> None:
    groups = Groups()
    members = groups.stable(2)
    follower, leader = sorted(members, key=lambda each: each.joined().leader == each.member_id)
    follower.protocols = {"range": subscription("else")}
    first = follower.ask_to_join()
    second = follower.ask_to_join()
    assert error_of(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.is_answered
    leader.ask_to_join()
    assert second.answer.generation_id == 2


@pytest.mark.parametrize("restarts", [False, True])
def test_a_new_member_that_stays_silent_is_dropped_after_five_minutes(restarts: bool) -> None:
    groups = Groups()
    members = groups.stable(1, rebalance_ms=1_000_000, session_ms=1_000_000)
    new = groups.member(instance_id="i")
    new.join()
    if restarts:
        new = groups.member(instance_id="i")
        new.join()
    groups.advance(5 * 60_000)
    assert error_of(new.joining) is ErrorCode.UNKNOWN_MEMBER_ID
    members[0].ask_to_join()
    assert members[0].joined().generation_id == 2


def test_long_ids_make_no_member_id_that_fits_nowhere() -> None:
    groups = Groups()
    member = groups.member(instance_id="ü" * 16_383)
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    member.joined()
    assert len(member.member_id.encode()) < 2**15
    member.sync({member.member_id: b"all"})
    assert member.syncing.answer.assignment == b"all"
    assert groups.group_state() == "Stable"
