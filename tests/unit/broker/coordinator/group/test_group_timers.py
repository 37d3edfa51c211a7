"""Which timers of a group run: each member's session, what the group waits for, and no others."""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.group.core.classic_group import JOIN, SESSION, SYNC
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group.consumer_harness import Consumer, ConsumerShard
from tests.unit.broker.coordinator.group.harness import (
    INITIAL_DELAY_MS,
    SESSION_MS,
    Groups,
    Member,
    error_of,
)
from tests.unit.broker.coordinator.group.migration_harness import (
    assignment,
    rejoin,
    shard,
    stable_classic,
    subscription,
)

JOINS, SYNCS = (JOIN, ""), (SYNC, "")


def sessions(*members: Member) -> list[tuple[str, str]]:
    return sorted((SESSION, member.member_id) for member in members)


def pending_member(groups: Groups) -> Member:
    """It has been given an id, and has not come back with it."""
    member = groups.member()
    member.member_id = member.ask_to_join().answer.member_id
    return member


# -- the classic protocol ------------------------------------------------------------------------


def test_a_generation_from_its_first_member_to_its_last() -> None:
    groups = Groups()
    assert groups.timers == []
    member = pending_member(groups)
    assert groups.timers == sessions(member)
    member.ask_to_join()
    assert groups.timers == [JOINS, *sessions(member)]
    groups.advance(INITIAL_DELAY_MS)
    member.joined()
    assert groups.timers == [*sessions(member), SYNCS]
    member.sync({member.member_id: b"all"})
    assert groups.timers == sessions(member)
    member.leave()
    assert groups.timers == []


def test_a_rebalance_waits_for_joins_and_then_for_syncs() -> None:
    groups = Groups()
    leader, follower = groups.stable(2)
    assert groups.timers == sessions(leader, follower)
    leader.join()
    assert groups.timers == [JOINS, *sessions(leader, follower)]
    follower.join()
    assert groups.timers == [*sessions(leader, follower), SYNCS]
    for member in (leader, follower):
        member.joined()
    follower.sync()
    assert groups.timers == [*sessions(leader, follower), SYNCS]
    newcomer = groups.member()
    newcomer.join()
    assert groups.timers == [JOINS, *sessions(leader, follower, newcomer)]
    assert error_of(follower.syncing) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("ends_by", ["session", "leaving", "deletion"])
def test_an_id_that_was_only_given_out_leaves_no_timer_behind(ends_by: str) -> None:
    groups = Groups()
    pending = pending_member(groups)
    if ends_by == "session":
        groups.advance(SESSION_MS)
    elif ends_by == "leaving":
        pending.leave()
    else:
        assert groups.delete_group().answer is ErrorCode.NONE
    assert groups.timers == []
    assert groups.group_state() == "Dead"


def test_a_member_that_was_turned_away_leaves_no_timer_behind() -> None:
    groups = Groups(group_max_size=1)
    (member,) = groups.stable()
    pending = groups.member()
    assert error_of(pending.ask_to_join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.timers == sessions(member)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_static_member_that_comes_back_has_one_session_under_the_id_that_counts(
    is_written: bool,
) -> None:
    groups = Groups()
    (member,) = groups.stable(instance_id="i")
    groups.log.append_error = ErrorCode.NONE if is_written else ErrorCode.NOT_ENOUGH_REPLICAS
    back = groups.member(instance_id="i")
    back.ask_to_join()
    if is_written:
        back.joined()
    assert groups.timers == sessions(back if is_written else member)


def test_an_emptied_group_that_is_deleted_leaves_no_timer_behind() -> None:
    groups = Groups()
    (member,) = groups.stable()
    member.leave()
    pending_member(groups)
    assert groups.delete_group().answer is ErrorCode.NONE
    assert groups.timers == []


# -- the new protocol ----------------------------------------------------------------------------


def session(member_id: str) -> tuple[str, str]:
    return ("session", member_id)


def revoking(instance_id: str | None = None) -> tuple[ConsumerShard, Consumer, Consumer]:
    """A group in which "a" is asked to give partitions back to "b", and has not done it."""
    groups = shard()
    first = groups.consumer("team", ["events"], member_id="a", instance_id=instance_id)
    first.join()
    assert groups.timers == [session("a")]
    first.is_slow = True
    second = groups.consumer("team", ["events"], member_id="b")
    second.join()
    assert groups.timers == [session("a"), session("b")]
    first.heartbeat()
    assert groups.timers == [("rebalance", "a"), session("a"), session("b")]
    return groups, first, second


def test_a_consumer_has_its_rebalance_timeout_while_it_gives_back() -> None:
    groups, first, second = revoking()
    first.release()
    first.heartbeat()
    second.heartbeat()
    assert groups.timers == [session("a"), session("b")]
    first.leave()
    assert groups.timers == [session("b")]
    second.leave()
    assert groups.timers == []


def test_a_consumer_that_leaves_takes_its_rebalance_timeout_along() -> None:
    groups, first, _ = revoking()
    first.leave()
    assert groups.timers == [session("b")]


def test_a_static_consumer_that_is_away_has_nothing_to_give_back() -> None:
    groups, first, _ = revoking("i")
    first.leave(-2)
    assert groups.timers == [session("a"), session("b")]
    away = groups.consumer_group().members["a"]
    epochs = {epoch for partitions in away.assigned.values() for epoch in partitions.values()}
    assert (away.member_epoch, epochs, away.pending_revocation) == (-2, {0}, {})
    groups.consumer("team", ["events"], member_id="c", instance_id="i").join()
    assert groups.timers == [session("b"), session("c")]


def test_the_next_coordinator_has_the_same_timers() -> None:
    groups, first, second = revoking()
    before = groups.timers
    groups.fail_over()
    assert groups.timers == before
    groups.advance(1000)
    assert set(groups.consumer_group().members) == {"a", "b"}
    for _ in range(2):
        groups.advance(29_000)
        second.heartbeat()
        first.heartbeat()
    assert set(groups.consumer_group().members) == {"a", "b"}
    groups.advance(1000)
    assert set(groups.consumer_group().members) == {"b"}


# -- between the protocols -----------------------------------------------------------------------


def test_a_classic_member_of_a_consumer_group_waits_for_its_sync_and_its_next_join() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"], member_id="new")
    new.join()
    member = groups.member(protocols={"range": subscription({}, "events")}, session_ms=300_000)
    member.join()
    name = member.joined().member_id
    both = [session(name), session("new")]
    assert groups.timers == sorted([*both, ("sync", name)])
    member.sync()
    assert groups.timers == sorted(both)
    groups.settle([new])
    for _ in range(2):
        assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert groups.timers == sorted([*both, ("join", name)])
    member.join()
    member.joined()
    assert groups.timers == sorted([*both, ("sync", name)])
    groups.grow_topic("events", 4, 5)
    new.heartbeat()
    assert error_of(member.sync()) is ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.timers == sorted([*both, ("join", name), ("sync", name)])
    member.join()
    member.joined()
    member.sync()
    groups.settle([new])
    rejoin(member, {})
    assert groups.timers == sorted(both)
    assert member.leave().answer.members[0].error_code == ErrorCode.NONE
    assert groups.timers == [session("new")]


def test_a_sync_that_waits_too_long_for_its_commit_is_to_be_repeated() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    member = groups.member(protocols={"range": subscription({}, "events")}, session_ms=300_000)
    member.join()
    member.joined()
    groups.log.is_committing_at_once = False
    groups.commit({("events", 0): 1}, "another")
    member.sync()
    groups.advance(5000)  # offsets.commit.timeout.ms
    assert error_of(member.syncing) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert ("sync", member.member_id) in groups.timers


def test_the_next_coordinator_waits_for_a_classic_member_that_gives_back() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3], session_ms=300_000)
    groups.consumer("team", ["events"], member_id="new").join()
    rejoin(old, {"events": [0, 1, 2, 3]})
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    expected = sorted([session(old.member_id), session("new"), ("join", old.member_id)])
    assert groups.timers == expected
    groups.fail_over()
    assert groups.timers == expected


@pytest.mark.parametrize("is_rebalancing", [False, True])
def test_an_upgraded_group_has_the_timers_of_its_members_alone(is_rebalancing: bool) -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    newcomer = groups.member(protocols={"range": subscription({}, "events")})
    if is_rebalancing:
        newcomer.join()
        assert JOINS in groups.timers
    else:
        newcomer.member_id = newcomer.ask_to_join().answer.member_id
    groups.consumer("team", ["events"], member_id="new").join()
    members = [old.member_id, "new", *([newcomer.member_id] if is_rebalancing else [])]
    assert groups.timers == sorted(session(member_id) for member_id in members)


@pytest.mark.parametrize("keeps_its_id", [False, True])
@pytest.mark.parametrize("owes", ["join", "sync"])
def test_a_static_member_that_changes_its_protocol_owes_nothing_of_the_old_one(
    owes: str, keeps_its_id: bool
) -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3], instance_id="i")
    groups.consumer("team", ["events"], member_id="other").join()
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    if owes == "sync":
        old.join()
        old.joined()
    assert (owes, old.member_id) in groups.timers
    member_id = old.member_id if keeps_its_id else "new"
    groups.consumer("team", ["events"], instance_id="i", member_id=member_id).join()
    assert groups.timers == sorted([session(member_id), session("other")])
    assert groups.state.consumer_groups.classic_members._joining == set()


@pytest.mark.parametrize("keeps_its_id", [False, True])
def test_a_static_consumer_that_goes_back_owes_nothing_of_the_new_protocol(
    keeps_its_id: bool,
) -> None:
    groups, _, _ = revoking("i")
    back = groups.member(instance_id="i", protocols={"range": subscription({}, "events")})
    back.member_id = "a" if keeps_its_id else ""
    back.join()
    name = back.joined().member_id
    assert (name == "a") is keeps_its_id
    assert groups.timers == sorted([session(name), session("b"), ("sync", name)])


def test_a_classic_member_that_restarts_within_a_consumer_group_has_one_session() -> None:
    groups = shard()
    groups.consumer("team", ["events"], member_id="new").join()
    protocols = {"range": subscription({}, "events")}
    old, back = (groups.member(instance_id="i", protocols=protocols) for _ in range(2))
    old.join()
    old.joined()
    back.join()
    name = back.joined().member_id
    assert name != old.member_id
    assert groups.timers == sorted([session(name), session("new"), ("sync", name)])


def test_a_session_that_begins_after_its_member_has_left_expels_no_other() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"], member_id="new")
    new.join()
    old = groups.member(protocols={"range": subscription({}, "events")})
    old.join()
    old.joined()
    groups.log.is_committing_at_once = False
    groups.commit({("events", 0): 1}, "another")
    old.sync()
    old.leave()
    # Only now SyncGroup is answered, which begins a session.
    groups.log.commit()
    groups.log.is_committing_at_once = True
    groups.advance(2 * SESSION_MS)
    new.heartbeat()
    assert groups.timers == [session("new")]
    assert set(groups.consumer_group().members) == {"new"}


def test_a_downgraded_group_has_the_timers_of_a_classic_one() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    new.join()
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    new.leave()
    assert groups.timers == [("downgraded", "")]
    groups.advance(5)
    assert groups.timers == [JOINS, *sessions(old)]
    old.join()
    old.joined()
    old.sync({old.member_id: assignment(events=[0, 1, 2, 3])})
    assert groups.timers == sessions(old)
