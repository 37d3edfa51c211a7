"""Generations of a classic group: assignments, heartbeats, leaving, dying, and static members."""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group.harness import (
    INITIAL_DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Groups,
    Member,
    error_of,
    finish_rebalance,
    subscription,
)


def leader_first(members: list[Member]) -> list[Member]:
    return sorted(members, key=lambda each: each.joined().leader != each.member_id)


# -- assignments ---------------------------------------------------------------------------------


def test_each_member_gets_its_share_once_the_assignment_is_committed() -> None:
    groups = Groups(is_committing_at_once=False)
    members = [groups.member() for _ in range(3)]
    for member in members:
        member.join()
    groups.advance(INITIAL_DELAY_MS)
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance(members)
    assert not any(member.syncing.is_answered for member in members)
    assert groups.group_state() == "CompletingRebalance"
    groups.log.commit()
    assert groups.group_state() == "Stable"
    for member in members:
        assert member.syncing.answer.assignment == f"share of {member.member_id}".encode()
        assert member.syncing.answer.protocol_name == "range"
        assert member.syncing.answer.protocol_type == "consumer"
        assert member.heartbeat() is ErrorCode.NONE


def test_who_asks_late_gets_the_share_at_once_and_who_got_none_gets_nothing() -> None:
    groups = Groups()
    leader, follower = groups.stable(2)
    assert follower.sync().answer.assignment == f"share of {follower.member_id}".encode()
    leader.join()
    follower.join()
    leader.joined()
    follower.joined()
    leader.sync({leader.member_id: b"all of it"})
    assert follower.sync().answer.assignment == b""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_cannot_be_written_fails_for_all_and_is_tried_again(
    error: ErrorCode, told: ErrorCode
) -> None:
    groups = Groups()
    members = leader_first(groups.stable(2))
    for member in members:
        member.join()
    groups.log.append_error = error
    for member in reversed(members):
        member.joined()
        member.sync({members[0].member_id: b"x"})
    assert [error_of(member.syncing) for member in members] == [told, told]
    assert groups.group_state() == "PreparingRebalance"
    groups.log.append_error = ErrorCode.NONE
    for member in members:
        member.join()
    finish_rebalance(members)
    assert groups.group_state() == "Stable"


def test_a_leader_that_hands_in_twice_is_answered_twice_whatever_is_written() -> None:
    groups = Groups(is_committing_at_once=False)
    member = groups.member()
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    member.joined()
    first = member.sync({member.member_id: b"x"})
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    second = member.sync({member.member_id: b"x"})
    assert error_of(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert error_of(second) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_assignment_that_is_not_committed_in_time_is_taken_back() -> None:
    groups = Groups(is_committing_at_once=False)
    member = groups.member()
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance([member])
    groups.advance(5000)
    assert error_of(member.syncing) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert groups.group_state() == "PreparingRebalance"


def test_a_generation_that_ends_while_its_assignment_is_written_stays_over() -> None:
    groups = Groups(is_committing_at_once=False)
    member = groups.member()
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance([member])
    other = groups.member()
    other.join()
    assert error_of(member.syncing) is ErrorCode.REBALANCE_IN_PROGRESS
    groups.log.commit()
    assert groups.group_state() == "PreparingRebalance"
    member.join()
    finish_rebalance([member, other])
    groups.log.commit()
    assert member.syncing.answer.assignment
    assert other.syncing.answer.assignment


def test_a_member_that_never_asks_for_its_share_is_dropped() -> None:
    groups = Groups()
    members = leader_first(groups.stable(2, session_ms=400_000))
    for member in members:
        member.join()
        member.heartbeat()
    for member in members:
        member.joined()
    members[0].sync({})
    groups.advance(REBALANCE_MS)
    assert groups.group_state() == "PreparingRebalance"
    assert members[1].heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    members[0].join()
    assert members[0].joined().generation_id == 3


def test_a_leader_that_never_hands_in_an_assignment_loses_its_place() -> None:
    groups = Groups()
    members = leader_first(groups.stable(2, session_ms=400_000))
    for member in members:
        member.join()
    for member in members:
        member.joined()
    members[1].sync()
    groups.advance(REBALANCE_MS)
    assert error_of(members[1].syncing) is ErrorCode.REBALANCE_IN_PROGRESS
    members[1].join()
    assert members[1].joined().leader == members[1].member_id


def test_two_requests_for_one_share_are_both_answered() -> None:
    groups = Groups()
    members = leader_first(groups.stable(2))
    for member in members:
        member.join()
    for member in members:
        member.joined()
    first = members[1].sync()
    second = members[1].sync()
    assert error_of(first) is ErrorCode.REBALANCE_IN_PROGRESS
    members[0].sync({members[1].member_id: b"x"})
    assert second.answer.assignment == b"x"


def test_a_member_that_waits_for_its_share_is_not_silent() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    for member in (leader, follower):
        member.join()
    for member in (leader, follower):
        member.joined()
    follower.sync()
    for _ in range(5):
        groups.advance(SESSION_MS / 2)
        assert leader.heartbeat() is ErrorCode.NONE
    leader.sync({follower.member_id: b"x"})
    assert follower.syncing.answer.assignment == b"x"
    groups.advance(SESSION_MS / 2)
    assert leader.heartbeat() is ErrorCode.NONE
    groups.advance(SESSION_MS / 2)
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS, "now the other one is silent"


# -- who may ask ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_sync_requests_that_are_refused(changes: dict[str, object], error: ErrorCode) -> None:
    groups = Groups()
    (member,) = groups.stable()
    assert error_of(member.sync(**changes)) is error
    assert groups.group_state() == "Stable"


def test_sync_in_other_states_and_without_a_group() -> None:
    groups = Groups()
    nobody = groups.member()
    assert error_of(nobody.sync()) is ErrorCode.UNKNOWN_MEMBER_ID
    nobody.group_id = ""
    assert error_of(nobody.sync()) is ErrorCode.INVALID_GROUP_ID
    (member,) = groups.stable()
    groups.member().join()
    assert error_of(member.sync()) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, ErrorCode.NONE),
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_heartbeats(changes: dict[str, object], error: ErrorCode) -> None:
    groups = Groups()
    (member,) = groups.stable()
    assert member.heartbeat(**changes) is error


def test_heartbeats_without_a_group_and_without_a_name() -> None:
    groups = Groups()
    nobody = groups.member()
    assert nobody.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    nobody.group_id = ""
    assert nobody.heartbeat() is ErrorCode.INVALID_GROUP_ID


# -- leaving and dying ---------------------------------------------------------------------------


def test_the_last_one_to_leave_leaves_an_empty_group_behind() -> None:
    groups = Groups(is_committing_at_once=False)
    member = groups.member()
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance([member])
    groups.log.commit()
    leaving = member.leave()
    assert groups.group_state() == "Empty"
    assert not leaving.is_answered
    groups.log.commit()
    assert leaving.answer.members[0].error_code == ErrorCode.NONE
    groups.fail_over()
    assert groups.group_state() == "Empty"
    assert groups.state.groups["team"].generation_id == 2
    assert groups.state.groups["team"].protocol_type == "consumer"


def test_leaving_that_cannot_be_written_is_an_error_and_has_happened_all_the_same() -> None:
    groups = Groups()
    (member,) = groups.stable()
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert error_of(member.leave()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert groups.group_state() == "Empty"
    groups.log.append_error = ErrorCode.NONE
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_one_of_several_leaves_and_the_others_rebalance() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    assert leader.leave().answer.members[0].error_code == ErrorCode.NONE
    assert follower.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    follower.join()
    assert follower.joined().leader == follower.member_id
    assert follower.joined().generation_id == 2


def test_leaving_names_each_ones_error() -> None:
    groups = Groups()
    members = groups.stable(1, instance_id="i-1")
    pending = groups.member()
    pending.member_id = pending.ask_to_join().answer.member_id
    answer = groups.leave(
        ("stranger", None),
        ("", None),
        ("", "i-2"),
        ("stranger", "i-1"),
        (pending.member_id, None),
        ("", "i-1"),
    ).answer
    assert [each.error_code for each in answer.members] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert members[0].heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.group_state() == "Empty"


def test_a_stranger_that_leaves_disturbs_no_member() -> None:
    groups = Groups()
    (member,) = groups.stable(1, instance_id="i-1")
    groups.leave(("stranger", None), ("stranger", "i-1"), ("", "i-2"))
    assert groups.group_state() == "Stable"
    assert member.heartbeat() is ErrorCode.NONE


def test_one_that_was_only_given_an_id_leaves_and_the_others_rebalance() -> None:
    groups = Groups()
    (member,) = groups.stable(1)
    pending = groups.member()
    pending.member_id = pending.ask_to_join().answer.member_id
    assert pending.leave().answer.members[0].error_code == ErrorCode.NONE
    assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_are_described_with_their_assignments_while_they_rebalance() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    follower.join()
    leader.leave()
    assert groups.group_state() != "Stable"
    (described,) = groups.describe().members
    assert described.member_assignment == f"share of {follower.member_id}".encode()
    assert described.member_metadata == b""


def test_leaving_a_group_that_is_not_there() -> None:
    groups = Groups()
    answer = groups.leave(("m", None), ("", "i")).answer
    assert [each.error_code for each in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert error_of(groups.leave(("m", None), group_id="")) is ErrorCode.INVALID_GROUP_ID


def test_a_member_removed_while_it_waits_is_answered() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    follower.protocols = {"range": subscription("else")}
    follower.join()
    follower.leave()
    assert error_of(follower.joining) is ErrorCode.UNKNOWN_MEMBER_ID
    assert follower.joining.answer.member_id == ""
    leader.join()
    assert leader.joined().generation_id == 2


def test_a_member_removed_while_it_waits_for_its_share_is_answered() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    for member in (leader, follower):
        member.join()
    leader.joined()
    follower.joined()
    follower.sync()
    follower.leave()
    assert error_of(follower.syncing) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    for _ in range(3):
        groups.advance(SESSION_MS / 2)
        if leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
            break
    assert follower.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    leader.join()
    assert leader.joined().generation_id == 2


def test_who_does_not_join_in_time_is_left_behind_and_static_members_are_not() -> None:
    groups = Groups()
    patient = groups.stable(1, session_ms=100_000)[0]
    slow = groups.member(session_ms=100_000)
    fixed = groups.member(instance_id="i-1", session_ms=100_000)
    for member in (slow, fixed):
        member.join()
    patient.join()
    finish_rebalance([patient, slow, fixed])
    patient.join()
    groups.advance(REBALANCE_MS)
    answer = patient.joined()
    assert answer.generation_id == 3
    assert {each.member_id for each in answer.members} == {patient.member_id, fixed.member_id}
    assert slow.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert fixed.heartbeat(generation=3) is ErrorCode.NONE


def test_while_only_static_members_are_missing_the_rebalance_goes_on() -> None:
    groups = Groups()
    (fixed,) = groups.stable(1, instance_id="i-1", session_ms=150_000)
    other = groups.member()
    other.join()
    groups.leave((other.member_id, None))
    groups.advance(REBALANCE_MS)
    assert groups.group_state() == "PreparingRebalance", "nobody could lead"
    fixed.join()
    assert fixed.joined().leader == fixed.member_id


def test_a_rebalance_that_only_an_absent_static_member_could_lead_goes_on_with_the_next_one() -> (
    None
):
    groups = Groups()
    (fixed,) = groups.stable(1, instance_id="i-1", session_ms=400_000)
    other = groups.member()
    other.join()
    other.leave()
    groups.advance(REBALANCE_MS)
    newcomer = groups.member()
    newcomer.join()
    assert not newcomer.joining.is_answered, "the static member may still come"
    groups.advance(REBALANCE_MS)
    answer = newcomer.joined()
    assert answer.leader == newcomer.member_id
    assert {each.member_id for each in answer.members} == {fixed.member_id, newcomer.member_id}


def test_a_rebalance_waits_for_an_id_that_was_given_out_no_longer_than_its_session() -> None:
    groups = Groups()
    (member,) = groups.stable()
    groups.member(session_ms=6_000).ask_to_join()
    newcomer = groups.member()
    newcomer.join()
    member.join()
    assert not member.joining.is_answered
    groups.advance(6_000)
    assert member.joined().generation_id == newcomer.joined().generation_id == 2


def test_a_member_that_finds_its_place_taken_holds_up_no_other() -> None:
    groups = Groups(group_max_size=2)
    first, second = groups.stable(2)
    first.leave()
    newcomers = [groups.member() for _ in range(2)]
    for newcomer in newcomers:
        newcomer.join()
    assert not any(newcomer.joining.is_answered for newcomer in newcomers)
    assert error_of(second.ask_to_join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {newcomer.joined().generation_id for newcomer in newcomers} == {2}
    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_waits_is_answered_even_if_the_emptied_group_cannot_be_written() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    follower.protocols = {"range": subscription("else")}
    follower.join()
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    leaving = groups.leave((leader.member_id, None), (follower.member_id, None))
    assert error_of(leaving) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    # Nothing that it writes proves that it leads, so that the member has to ask again.
    assert error_of(follower.joining) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert groups.group_state() == "Empty"


# -- static members ------------------------------------------------------------------------------


def came_back(member: Member, **changes: object) -> Member:
    """The same instance after a restart: it does not know its member id any more."""
    again = member.groups.member(
        member.group_id,
        **{"instance_id": member.instance_id, "version": member.version, **changes},
    )
    again.ask_to_join()
    return again


def test_a_static_follower_that_restarts_goes_on_without_a_rebalance() -> None:
    groups = Groups()
    leader = groups.member(instance_id="i-1")
    follower = groups.member(instance_id="i-2")
    for member in (leader, follower):
        member.join()
    groups.advance(INITIAL_DELAY_MS)
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance([leader, follower])
    share = follower.syncing.answer.assignment
    again = came_back(follower)
    assert again.joined().generation_id == 1
    assert again.member_id != follower.member_id
    assert again.joined().leader == leader.member_id
    assert again.sync().answer.assignment == share
    assert follower.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.heartbeat(instance_id=None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(follower.sync()) is ErrorCode.FENCED_INSTANCE_ID
    assert error_of(follower.ask_to_join()) is ErrorCode.FENCED_INSTANCE_ID
    groups.fail_over()
    assert again.heartbeat() is ErrorCode.NONE
    assert again.sync().answer.assignment == share


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_that_restarts_does_not_assign_again(version: int) -> None:
    groups = Groups()
    (leader,) = groups.stable(1, instance_id="i-1", version=version)
    again = came_back(leader)
    answer = again.joined()
    assert answer.generation_id == 1
    if version == 9:
        assert answer.leader == again.member_id
        assert answer.skip_assignment
        assert [each.member_id for each in answer.members] == [again.member_id]
    else:
        assert answer.leader == leader.member_id, "it takes itself for a follower"
        assert answer.members == []
    assert again.sync().answer.assignment == f"share of {leader.member_id}".encode()


def test_a_static_member_that_restarts_has_one_session() -> None:
    groups = Groups()
    groups.stable(1, instance_id="i")
    timer_count = len(groups.broker.timers)
    for _ in range(3):
        assert error_of(groups.member(instance_id="i").join()) is ErrorCode.NONE
    assert len(groups.broker.timers) == timer_count


def test_a_static_member_that_comes_back_with_another_protocol_has_the_group_rebalance() -> None:
    groups = Groups()
    both = {"range": subscription("events"), "sticky": subscription("events")}
    (member,) = groups.stable(1, instance_id="i-1", protocols=both)
    again = came_back(member, protocols={"sticky": b"", "range": b""})
    assert again.joined().generation_id == 2
    assert again.joined().protocol_name == "sticky"
    assert len(groups.log.batches) == 1, "nothing is written before it is assigned"


def test_a_static_member_that_comes_back_before_the_assignment_restarts_the_rebalance() -> None:
    groups = Groups()
    member = groups.member(instance_id="i-1")
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    member.joined()
    again = came_back(member)
    assert again.joined().generation_id == 2
    assert error_of(member.sync()) is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_comes_back_while_it_waits_is_fenced() -> None:
    groups = Groups()
    member = groups.member(instance_id="i-1")
    member.join()
    again = came_back(member)
    assert error_of(member.joining) is ErrorCode.FENCED_INSTANCE_ID
    groups.advance(INITIAL_DELAY_MS)
    assert again.joined().generation_id == 1


def test_a_return_that_cannot_be_written_has_not_happened() -> None:
    groups = Groups()
    (member,) = groups.stable(1, instance_id="i-1")
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    again = came_back(member)
    assert error_of(again.joining) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    groups.log.append_error = ErrorCode.NONE
    assert member.heartbeat() is ErrorCode.NONE
    again.ask_to_join()
    assert again.joined().generation_id == 1
    assert member.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


def test_a_return_that_cannot_be_written_leaves_the_member_as_it_was() -> None:
    groups = Groups()
    (member,) = groups.stable(1, instance_id="i-1")
    before = groups.describe()
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    came_back(member, session_ms=6_000, protocols={"range": subscription("else")})
    groups.log.append_error = ErrorCode.NONE
    assert groups.describe() == before
    groups.advance(SESSION_MS - 1)
    assert groups.group_state() == "Stable"
    groups.advance(1)
    assert groups.group_state() == "Empty"


def test_a_member_that_comes_back_twice_before_it_is_written_is_answered_twice() -> None:
    groups = Groups()
    (member,) = groups.stable(1, instance_id="i-1")
    groups.log.is_committing_at_once = False
    first = came_back(member)
    end_of_first = groups.log.log_end_offset
    second = came_back(member)
    groups.log.commit(end_of_first)
    assert not second.joining.is_answered, "its own return is not written yet"
    for _ in range(3):
        groups.log.commit()
    assert error_of(first.joining) is ErrorCode.FENCED_INSTANCE_ID
    assert second.joined().generation_id == 1
    groups.log.is_committing_at_once = True
    assert second.heartbeat() is ErrorCode.NONE
    assert second.sync().answer.assignment == f"share of {member.member_id}".encode()


def test_who_waits_for_a_return_is_answered_when_the_next_one_cannot_be_written() -> None:
    groups = Groups()
    (member,) = groups.stable(1, instance_id="i-1")
    groups.log.is_committing_at_once = False
    first = came_back(member)
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    second = came_back(member)
    assert error_of(second.joining) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert error_of(first.joining) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_return_that_is_written_after_the_session_begins_another_one() -> None:
    groups = Groups(offsets_commit_timeout_ms=4 * SESSION_MS)
    (member,) = groups.stable(1, instance_id="i-1")
    groups.log.is_committing_at_once = False
    again = came_back(member)
    groups.advance(2 * SESSION_MS)
    assert not again.joining.is_answered
    groups.log.commit()
    groups.log.is_committing_at_once = True
    again.joined()
    groups.advance(SESSION_MS - 1)
    assert groups.group_state() == "Stable"
    groups.advance(1)
    assert groups.group_state() == "Empty"


def test_a_leader_that_came_back_leads_the_next_generation_too() -> None:
    groups = Groups()
    leader, follower = (groups.member(instance_id=f"i-{n}") for n in (1, 2))
    for member in (leader, follower):
        member.join()
    groups.advance(INITIAL_DELAY_MS)
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance([leader, follower])
    assert leader.joined().leader == leader.member_id
    again = came_back(leader)
    again.joined()
    newcomer = groups.member()
    newcomer.join()
    follower.join()
    again.join()
    assert again.joined().generation_id == 2
    assert {each.joined().leader for each in (again, follower, newcomer)} == {again.member_id}


def test_a_return_whose_commit_takes_too_long_is_what_the_log_says() -> None:
    groups = Groups()
    (member,) = groups.stable(1, instance_id="i-1", session_ms=60_000)
    groups.log.is_committing_at_once = False
    again = came_back(member)
    assert not again.joining.is_answered
    groups.advance(5000)  # offsets.commit.timeout.ms
    assert error_of(again.joining) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    beating = member.beat()
    assert not beating.is_answered
    in_memory = set(groups.state.groups["team"].members)
    groups.log.commit()
    groups.broker.settle()
    assert error_of(beating) is ErrorCode.FENCED_INSTANCE_ID
    groups.fail_over()
    assert set(groups.state.groups["team"].members) == in_memory
    groups.log.is_committing_at_once = True
    assert member.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    again.ask_to_join()
    assert again.joined().generation_id == 1


def test_a_return_whose_commit_takes_too_long_has_a_session() -> None:
    groups = Groups()
    (member,) = groups.stable(1, instance_id="i-1")
    groups.log.is_committing_at_once = False
    came_back(member)
    groups.advance(5000)
    groups.log.commit()
    groups.log.is_committing_at_once = True
    groups.advance(SESSION_MS)
    assert groups.group_state() == "Empty"


def test_a_static_member_may_be_away_for_a_session() -> None:
    groups = Groups()
    leader, follower = (groups.member(instance_id=f"i-{n}") for n in (1, 2))
    for member in (leader, follower):
        member.join()
    groups.advance(INITIAL_DELAY_MS)
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance([leader, follower])
    groups.advance(SESSION_MS / 2)
    leader.heartbeat()
    groups.advance(SESSION_MS / 2 - 1)
    assert leader.heartbeat() is ErrorCode.NONE
    groups.advance(1)
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


# -- failover ------------------------------------------------------------------------------------


def test_another_coordinator_knows_the_group_its_members_and_their_shares() -> None:
    groups = Groups()
    members = groups.stable(2)
    before = groups.describe()
    groups.fail_over()
    assert groups.describe() == before
    for member in members:
        assert member.heartbeat() is ErrorCode.NONE
        assert member.sync().answer.assignment == f"share of {member.member_id}".encode()
    groups.advance(SESSION_MS)
    assert members[0].heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.group_state() == "Empty"


def test_another_coordinator_knows_what_the_members_are_subscribed_to() -> None:
    groups = Groups()
    (member,) = groups.stable()
    member.commit({("events", 0): 1, ("former", 0): 1})
    groups.fail_over()
    subscribed = groups.delete_offsets({"events": [0]})
    assert error_of(subscribed) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert error_of(groups.delete_offsets({"former": [0]})) is ErrorCode.NONE
    assert (groups.offset("events", 0), groups.offset("former", 0)) == (1, -1)


def test_another_coordinator_knows_the_leader() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    groups.fail_over()
    assert follower.ask_to_join().answer.generation_id == 1
    assert not leader.ask_to_join().is_answered, "a leader that joins begins a rebalance"


def test_who_waits_when_leadership_is_lost_is_sent_away() -> None:
    groups = Groups()
    leader, follower = leader_first(groups.stable(2))
    new = groups.member()
    new.join()
    groups.broker.depose(0)
    assert error_of(new.joining) is ErrorCode.NOT_COORDINATOR
    groups.broker.elect(0)
    for member in (leader, follower):
        assert member.heartbeat() is ErrorCode.NONE, "the rebalance was never written"
    for member in (leader, follower):
        member.join()
    for member in (leader, follower):
        member.joined()
    follower.sync()
    groups.broker.depose(0)
    assert error_of(follower.syncing) is ErrorCode.NOT_COORDINATOR


def test_an_uncommitted_assignment_that_is_lost_was_not_answered() -> None:
    groups = Groups(is_committing_at_once=False)
    member = groups.member()
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    finish_rebalance([member])
    groups.fail_over(keep=0)
    assert error_of(member.syncing) is ErrorCode.NOT_COORDINATOR
    assert groups.group_state() == "Dead"


def test_a_group_that_is_too_big_after_loading_rebalances() -> None:
    groups = Groups()
    groups.stable(3)
    records = groups.log.batches
    for max_size, state in ((2, "PreparingRebalance"), (3, "Stable")):
        small = Groups(group_max_size=max_size, is_led=False)
        small.log.batches = list(records)
        small.log.log_end_offset = small.log.high_watermark = groups.log.log_end_offset
        small.broker.elect(0)
        assert small.group_state() == state


def test_a_whole_life_is_one_record_per_generation() -> None:
    groups = Groups()
    members = groups.stable(3)
    assert len(groups.log.batches) == 1
    for member in members:
        member.join()
    finish_rebalance(members)
    assert len(groups.log.batches) == 2
    for member in members:
        member.leave()
    assert len(groups.log.batches) == 3, "and one when it is empty"
