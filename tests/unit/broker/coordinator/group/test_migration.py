"""Groups that change between the classic protocol and the new one while they work (KIP-848)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau.broker.coordinator.core.result import CoordinatorResult
from moldau.broker.coordinator.group.core.consumer_member import ClassicProtocols, member_record
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from tests.unit.broker.coordinator.group.consumer_harness import ConsumerShard
from tests.unit.broker.coordinator.group.harness import (
    INITIAL_DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Member,
    error_of,
    topic_id_of,
)
from tests.unit.broker.coordinator.group.migration_harness import (
    assignment,
    owned,
    rejoin,
    shard,
    stable_classic,
    subscription,
)


def test_the_first_member_of_the_new_protocol_takes_the_group_along() -> None:
    groups = shard()
    first, second = stable_classic(groups, [0, 1], [2, 3])
    generation = first.generation
    newcomer = groups.consumer("team", ["events"])
    newcomer.join()
    group = groups.consumer_group()
    assert group.group_epoch == generation + 1
    assert set(group.members) == {first.member_id, second.member_id, newcomer.member_id}
    assert newcomer.owned == {}
    # No member has lost a partition yet.
    old = group.members[first.member_id]
    assert [sorted(partitions) for partitions in old.assigned.values()] == [[0, 1]]
    assert {member.member_type for member in groups.described().members} == {0, 1}


def test_a_newcomer_that_wants_nothing_changes_nothing_for_the_others() -> None:
    """The group keeps its generation as its epoch, and what the leader gave to whom."""
    groups = shard()
    first, second = stable_classic(groups, [0, 1, 2], [3])
    for member in (first, second):
        member.protocols = {"range": subscription({}, "events", "missing")}
    for _ in range(2):
        for member in (first, second):
            member.join()
        leader, *_ = (each for each in (first, second) if each.joined().leader == each.member_id)
        shares = zip((first, second), ([0, 1, 2], [3]), strict=True)
        leader.sync({each.member_id: assignment(events=share) for each, share in shares})
    for member in (first, second):
        member.joined()
        member.sync()
    generation = first.generation
    assert generation == 3
    newcomer = groups.consumer("team", [])
    assert newcomer.join().member_epoch == generation
    assert groups.consumer_group().group_epoch == generation
    assert [member.heartbeat() for member in (first, second)] == [ErrorCode.NONE] * 2
    assert groups.group_state() == "Stable"
    assert (owned(first), owned(second)) == ({"events": [0, 1, 2]}, {"events": [3]})
    targets = groups.consumer_group().targets
    assert targets[first.member_id] == {topic_id_of("events"): {0, 1, 2}}
    second_newcomer = groups.consumer("team", ["events"])
    second_newcomer.join()
    assert groups.consumer_group().group_epoch == generation + 1


def test_classic_members_reconcile_step_by_step() -> None:
    groups = shard(6)
    first, second = stable_classic(groups, [0, 1, 2], [3, 4, 5])
    newcomer = groups.consumer("team", ["events"])
    newcomer.join()
    for member, had in ((first, [0, 1, 2]), (second, [3, 4, 5])):
        assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        kept = rejoin(member, {"events": had})
        assert len(kept["events"]) == 2
        assert set(kept["events"]) < set(had)
        # It has to say that it gave the rest back.
        assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        newcomer.heartbeat()
        assert not set(newcomer.owned.get("events", ())) & set(had)
        assert rejoin(member, kept) == kept
        assert member.heartbeat() is ErrorCode.NONE
    newcomer.heartbeat()
    assert len(newcomer.owned["events"]) == 2
    assert groups.group_state() == "Stable"


def test_members_can_move_over_one_by_one_and_back() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    old.commit({("events", 0): 11})
    new = groups.consumer("team", ["events"])
    new.join()
    old.leave()
    groups.settle([new])
    assert new.owned == {"events": {0, 1, 2, 3}}
    assert groups.offset("events", 0) == 11
    # A classic member joins the group of the new protocol, and the last of the new one goes.
    back = groups.member(protocols={"range": subscription({}, "events")})
    back.join()
    back.joined()
    back.sync()
    assert owned(back) == {}
    new.leave()
    assert groups.state.groups["team"].kind == "classic"
    groups.advance(1)
    assert groups.group_state() == "PreparingRebalance"
    assert back.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    back.join()
    assert back.joined().leader == back.member_id
    back.sync({back.member_id: assignment(events=[0, 1, 2, 3])})
    assert owned(back) == {"events": [0, 1, 2, 3]}
    assert groups.group_state() == "Stable"
    assert groups.offset("events", 0) == 11


def test_a_failover_keeps_a_group_that_is_between_the_protocols() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    new.join()
    rejoin(old, {"events": [0, 1, 2, 3]})
    before = groups.described()
    groups.fail_over()
    assert groups.described() == before
    kept = rejoin(old, {"events": [0, 1]})
    groups.settle([new])
    assert sorted([*kept["events"], *new.owned["events"]]) == [0, 1, 2, 3]


def test_a_downgraded_group_survives_a_failover() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    new.join()
    new.leave()
    groups.fail_over()
    group = groups.state.groups["team"]
    assert (group.kind, list(group.members)) == ("classic", [old.member_id])


@pytest.mark.parametrize("delay_ms", [0, 1])
def test_a_downgraded_group_rebalances_after_a_failover(delay_ms: int) -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    new.join()
    rejoin(old, rejoin(old, {"events": [0, 1, 2, 3]}))
    new.heartbeat()
    new.leave()
    groups.advance(delay_ms)
    for _ in range(2):
        groups.fail_over()
        assert groups.group_state() == "PreparingRebalance"
        assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert old.joined().leader == old.member_id
    old.sync({old.member_id: assignment(events=[0, 1, 2, 3])})
    assert owned(old) == {"events": [0, 1, 2, 3]}
    groups.fail_over()
    assert groups.group_state() == "Stable"


def test_a_downgraded_group_that_failed_over_does_not_wait_for_ever() -> None:
    groups = shard()
    old = stable_classic(groups, [0, 1], [2, 3], session_ms=300_000)
    new = groups.consumer("team", ["events"])
    new.join()
    new.leave()
    groups.fail_over()
    old[1].join()
    assert not old[1].joining.is_answered
    groups.advance(REBALANCE_MS)
    assert old[1].joined().leader == old[1].member_id
    assert list(groups.state.groups["team"].members) == [old[1].member_id]


def test_a_group_that_changes_over_assigns_what_its_topics_have_got_since() -> None:
    """The static member that comes back asks for no rebalance by itself."""
    groups = shard(2)
    (old,) = stable_classic(groups, [0, 1], instance_id="i")
    groups.grow_topic("events", 2, 4)
    assert old.heartbeat() is ErrorCode.NONE
    back = groups.consumer("team", ["events"], instance_id="i")
    back.join()
    back.heartbeat()
    assert back.owned == {"events": {0, 1, 2, 3}}


@pytest.mark.parametrize("rejoins", [0, 1, 2])
def test_a_downgrade_and_an_upgrade_give_nothing_away_that_a_member_reads(rejoins: int) -> None:
    """The old member has heard nothing, has been asked to give up two partitions, or has done
    so.
    """
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    new.join()
    kept = {"events": [0, 1, 2, 3]}
    for _ in range(rejoins):
        kept = rejoin(old, kept)
    new.leave()
    assert groups.state.groups["team"].kind == "classic"
    newer = groups.consumer("team", ["events"])
    newer.join()
    left = {0, 1, 2, 3}.difference(kept["events"]) if rejoins == 2 else set()
    assert set(newer.owned.get("events", ())) == left


def test_no_member_gets_its_share_before_the_downgraded_group_has_rebalanced() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    new.join()
    rejoin(old, rejoin(old, {"events": [0, 1, 2, 3]}))
    new.leave()
    # In the same turn, before any timer.
    assert old.sync().answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    old.join()
    assert old.joined().leader == old.member_id
    assert groups.group_state() == "CompletingRebalance"


def test_a_static_member_that_takes_the_group_along_waits_for_what_others_hold() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"], instance_id="i")
    new.join()
    old.heartbeat()
    rejoin(old, {"events": [0, 1, 2, 3]})  # it has not given anything back yet
    back = groups.member(instance_id="i", protocols={"range": subscription({}, "events")})
    back.join()
    back.joined()
    assert groups.state.groups["team"].kind == "classic"
    assert back.sync().answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    groups.fail_over()
    assert groups.group_state() == "PreparingRebalance"


def test_what_a_classic_member_owed_ends_with_the_consumer_group() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3], rebalance_ms=20_000, session_ms=300_000)
    for _ in range(2):
        new = groups.consumer("team", ["events"])
        new.join()
        assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        new.leave()
        old.join()
        old.joined()
        old.sync({old.member_id: assignment(events=[0, 1, 2, 3])})
    groups.advance(20_000)
    new = groups.consumer("team", ["events"])
    new.join()
    groups.advance(10_000)
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    groups.advance(19_000)
    new.heartbeat()
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    groups.advance(1100)
    assert old.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def owners(groups: ConsumerShard) -> dict[int, str]:
    """Who owns which partition of "events"."""
    by_topic = groups.consumer_group().owners
    return {index: owner for partitions in by_topic.values() for index, owner in partitions.items()}


def rejoined(groups: ConsumerShard, members: list[Member]) -> None:
    """Have all of them answer the rebalance that has begun: no member has synced afterwards."""
    for member in members:
        member.join()
    for member in members:
        member.joined()
    assert groups.group_state() == "CompletingRebalance"


@pytest.mark.parametrize("is_repeated", [False, True])
def test_an_upgrade_within_a_rebalance_takes_nothing_that_is_still_read(is_repeated: bool) -> None:
    groups = shard()
    old = stable_classic(groups, [0, 1], [2, 3])
    third = groups.member(protocols={"range": subscription({}, "events")})
    third.join()
    rejoined(groups, [*old, third])
    if is_repeated:  # back to PreparingRebalance, and through it once more
        third.leave()
        rejoined(groups, old)
    new = groups.consumer("team", ["events"])
    new.join()
    new.heartbeat()
    assert new.owned == {}
    first, second = (member.member_id for member in old)
    assert owners(groups) == {0: first, 1: first, 2: second, 3: second}
    for member in old:
        stale = member.commit({("events", 0): 5}, generation=member.generation - 1)
        assert error_of(stale) is ErrorCode.ILLEGAL_GENERATION
        assert member.sync().answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        rejoin(member, {})
    groups.settle([new])
    assert new.owned["events"]


def test_an_upgrade_leaves_a_member_what_it_is_giving_back() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    # Its leader takes 3 away; until it joins again it is busy with that.
    old.protocols = {"range": subscription({"events": [0, 1, 2, 3]}, "events")}
    old.join()
    old.joined()
    old.sync({old.member_id: assignment(events=[0, 1, 2])})
    new = groups.consumer("team", ["events"])
    new.join()
    new.heartbeat()
    assert new.owned == {}
    kept = rejoin(old, rejoin(old, {"events": [0, 1, 2]}))
    new.heartbeat()
    assert sorted([*kept["events"], *new.owned["events"]]) == [0, 1, 2, 3]


def test_what_a_member_says_it_has_is_not_taken_from_another() -> None:
    groups = shard()
    first, second = stable_classic(groups, [0, 1], [2, 3])
    first.protocols = {"range": subscription({"events": [0, 1, 2, 3]}, "events")}
    second.protocols = {"range": subscription({"events": [2, 3]}, "events")}
    third = groups.member(protocols={"range": subscription({}, "events")})
    third.join()
    rejoined(groups, [first, second, third])
    groups.consumer("team", ["events"]).join()
    a, b = first.member_id, second.member_id
    assert owners(groups) == {0: a, 1: a, 2: b, 3: b}


def test_an_upgrade_within_a_rebalance_goes_on_with_it() -> None:
    groups = shard()
    first, second = stable_classic(groups, [0, 1], [2, 3])
    second.leave()
    # The newcomer wants nothing, so that nothing but the rebalance makes a new assignment.
    groups.consumer("team", []).join()
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(first, {"events": [0, 1]}) == {"events": [0, 1, 2, 3]}


def test_waiting_classic_members_are_sent_to_join_again() -> None:
    groups = shard()
    protocols = {"range": subscription({}, "events")}
    waiting = groups.member(protocols=protocols)
    waiting.join()
    assert not waiting.joining.is_answered
    groups.consumer("team", ["events"]).join()
    assert error_of(waiting.joining) is ErrorCode.REBALANCE_IN_PROGRESS
    waiting.join()
    waiting.joined()
    assert waiting.sync().answer.error_code == ErrorCode.NONE


def test_waiting_members_are_answered_even_if_the_upgrade_cannot_be_written() -> None:
    groups = shard()
    waiting = groups.member(protocols={"range": subscription({}, "events")})
    waiting.join()
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    new = groups.consumer("team", ["events"])
    assert new.error(**new.full()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert error_of(waiting.joining) is ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.state.groups["team"].kind == "classic"


def test_a_refused_upgrade_leaves_the_classic_group_alone() -> None:
    groups = shard()
    waiting = groups.member(protocols={"range": subscription({}, "events")})
    waiting.join()
    new = groups.consumer("team", regex="(")
    assert new.error(**new.full()) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not waiting.joining.is_answered


def test_groups_that_cannot_be_understood_are_not_upgraded() -> None:
    for options, shares in (
        ({"protocol_type": "connect"}, b"\0\1"),
        ({"protocols": {"mine": subscription({}, "events")}}, assignment(b"state", events=[0])),
        ({"protocols": {"mine": subscription({}, "events")}}, b"\0"),
    ):
        groups = shard()
        member = groups.member(**options)
        member.join()
        groups.advance(INITIAL_DELAY_MS)
        member.joined()
        member.sync({member.member_id: shares})
        new = groups.consumer("team", ["events"])
        assert new.error(**new.full()) is ErrorCode.GROUP_ID_NOT_FOUND
        assert member.heartbeat() is ErrorCode.NONE


def test_every_protocol_of_a_member_has_to_be_readable() -> None:
    protocols = {"range": subscription({}, "events"), "mine": b"?"}
    groups = shard()
    groups.consumer("team", ["events"]).join()
    joining = groups.member(protocols=protocols)
    assert error_of(joining.join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    groups = shard()
    waiting = groups.member(protocols=protocols)
    waiting.join()
    new = groups.consumer("team", ["events"])
    assert new.error(**new.full()) is ErrorCode.GROUP_ID_NOT_FOUND
    assert not waiting.joining.is_answered


def test_a_member_that_the_log_holds_with_unreadable_protocols_keeps_no_other_alive() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3], session_ms=120_000)
    groups.consumer("team", ["events"]).join()
    member = groups.consumer_group().members[old.member_id]
    unreadable = replace(member, classic=ClassicProtocols(120_000, (("range", b"?"),)))
    groups.call("team", lambda *_: CoordinatorResult(records=[member_record("team", unreadable)]))
    groups.fail_over()
    groups.advance(45_000)
    group = groups.state.groups["team"]
    assert (group.kind, list(group.members)) == ("classic", [old.member_id])


def test_a_protocol_that_a_member_named_twice_has_its_first_subscription_again() -> None:
    """As in a group that was classic all the time, and as the consumer group read it."""
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    new.join()
    member = groups.consumer_group().members[old.member_id]
    first, second = (subscription({}, *topics) for topics in (["events"], ["events", "others"]))
    protocols = ClassicProtocols(SESSION_MS, (("range", first), ("range", second)))
    named_twice = member_record("team", replace(member, classic=protocols))
    groups.call("team", lambda *_: CoordinatorResult(records=[named_twice]))
    new.leave()
    group = groups.state.groups["team"]
    assert group.kind == "classic"
    assert group.members[old.member_id].metadata("range") == first


def test_a_group_too_big_for_a_classic_record_stays_without_its_silent_members() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3], session_ms=120_000)
    new = groups.consumer("team", ["events"])
    new.join()
    groups.log.max_batch_bytes = 450
    assert new.leave() is ErrorCode.UNKNOWN_SERVER_ERROR
    groups.advance(45_000)
    assert list(groups.consumer_group().members) == [old.member_id]


def test_what_sticky_assignors_keep_is_no_obstacle() -> None:
    groups = shard()
    member = groups.member(protocols={"cooperative-sticky": subscription({}, "events")})
    member.join()
    groups.advance(INITIAL_DELAY_MS)
    member.joined()
    member.sync({member.member_id: assignment(b"what it had", events=[0, 1])})
    groups.consumer("team", ["events"]).join()
    assert groups.consumer_group().members[member.member_id].uses_classic_protocol


@pytest.mark.parametrize(
    ("max_size", "error"),
    [
        (1, ErrorCode.GROUP_ID_NOT_FOUND),
        (2, ErrorCode.GROUP_MAX_SIZE_REACHED),
        (3, ErrorCode.NONE),
    ],
)
def test_a_group_that_is_too_large_cannot_be_upgraded(max_size: int, error: ErrorCode) -> None:
    groups = shard(group_consumer_max_size=max_size)
    stable_classic(groups, [0, 1], [2, 3])
    new = groups.consumer("team", ["events"])
    assert new.error(**new.full()) is error


def test_members_are_upgraded_with_what_they_want_by_the_groups_protocol() -> None:
    groups = shard()
    first = groups.member(protocols={"range": subscription({}, "events")})
    second = groups.member(
        protocols={"sticky": subscription({}, "others"), "range": subscription({}, "events")}
    )
    for member in (first, second):
        member.join()
    groups.advance(2 * INITIAL_DELAY_MS)
    assert second.joined().protocol_name == "range"
    groups.consumer("team", []).join()
    upgraded = groups.consumer_group().members[second.member_id]
    assert upgraded.subscribed_topic_names == {"events"}


def test_without_a_policy_an_empty_classic_group_gives_way_all_the_same() -> None:
    groups = shard(group_consumer_migration_policy="disabled")
    (old,) = stable_classic(groups, [0, 1, 2, 3])
    old.leave()
    assert groups.group_state() == "Empty"
    assert groups.consumer("team", ["events"]).join().error_code == ErrorCode.NONE
    assert groups.state.groups["team"].kind == "consumer"


def test_a_classic_members_heartbeat_takes_the_group_on_when_the_interval_is_over() -> None:
    groups = shard(
        group_consumer_migration_policy="upgrade", group_consumer_assignment_interval_ms=1000
    )
    new = groups.consumer("team", ["events"])
    new.join()
    old = groups.member(protocols={"range": subscription({}, "events")})
    old.join()
    old.joined()
    old.sync()
    groups.advance(1000)
    new.leave()
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(old, {}) == {"events": [0, 1, 2, 3]}


def test_the_policy_can_forbid_either_way() -> None:
    groups = shard(group_consumer_migration_policy="downgrade")
    stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    assert new.error(**new.full()) is ErrorCode.GROUP_ID_NOT_FOUND
    groups = shard(group_consumer_migration_policy="UPGRADE")
    stable_classic(groups, [0, 1, 2, 3])
    new = groups.consumer("team", ["events"])
    new.join()
    new.leave()
    assert groups.state.groups["team"].kind == "consumer"


def test_a_partition_that_a_leader_gave_twice_has_one_owner_afterwards() -> None:
    groups = shard()
    stable_classic(groups, [0, 1, 2], [2, 3])
    groups.consumer("team", ["events"]).join()
    group = groups.consumer_group()
    owners = [owner for partitions in group.owners.values() for owner in partitions.values()]
    assert len(owners) == 4


def test_a_classic_member_that_does_not_rejoin_is_fenced() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3], rebalance_ms=20_000)
    new = groups.consumer("team", ["events"])
    new.join()
    for _ in range(5):
        old.heartbeat()
        new.heartbeat()
        groups.advance(SESSION_MS // 2)
    groups.settle([new])
    assert list(groups.consumer_group().members) == [new.member_id]
    assert new.owned == {"events": {0, 1, 2, 3}}


def test_a_classic_member_that_joins_but_does_not_sync_is_fenced() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"])
    new.join()
    member = groups.member(
        protocols={"range": subscription({}, "events")}, session_ms=2 * REBALANCE_MS
    )
    member.join()
    for _ in range(REBALANCE_MS // 10_000 + 1):
        new.heartbeat()
        groups.advance(10_000)
    assert list(groups.consumer_group().members) == [new.member_id]


def test_classic_members_commit_under_their_generation() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    member = groups.member(protocols={"range": subscription({}, "events")})
    member.join()
    member.joined()
    assert error_of(member.commit({("events", 1): 3}, version=7)) is ErrorCode.NONE
    too_new = member.commit({("events", 1): 3}, generation=member.generation + 1)
    assert error_of(too_new) is ErrorCode.ILLEGAL_GENERATION


def test_a_classic_member_whose_join_takes_too_long_has_a_session() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"])
    new.join()
    lost = groups.member(protocols={"range": subscription({}, "events")})
    lost.ask_to_join()
    lost.member_id = lost.joining.answer.member_id
    groups.log.is_committing_at_once = False
    lost.ask_to_join()
    groups.advance(5000)  # offsets.commit.timeout.ms
    assert error_of(lost.joining) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(groups.consumer_group().members) == {new.member_id, lost.member_id}
    groups.log.commit()
    groups.log.is_committing_at_once = True
    new.heartbeat()
    groups.advance(SESSION_MS)
    assert set(groups.consumer_group().members) == {new.member_id}


def test_a_classic_member_that_waits_for_its_answer_is_not_silent() -> None:
    groups = shard(offsets_commit_timeout_ms=REBALANCE_MS)
    (member,) = stable_classic(groups, [0, 1, 2, 3])
    groups.consumer("team", ["events"]).join()
    groups.log.is_committing_at_once = False
    groups.commit({("events", 0): 1}, "another")
    beat = HeartbeatRequest(
        group_id="team", generation_id=member.generation, member_id=member.member_id
    )
    caller = groups.call(
        "team", lambda state, to, now_ms: state.protocol_of("team").heartbeat(beat, to, now_ms)
    )
    groups.advance(2 * SESSION_MS)
    assert not caller.is_answered
    assert member.member_id in groups.consumer_group().members
    groups.log.commit()
    groups.log.is_committing_at_once = True
    assert error_of(caller) is ErrorCode.REBALANCE_IN_PROGRESS
    groups.advance(SESSION_MS + 10)
    assert member.member_id not in groups.consumer_group().members


def test_a_classic_member_asked_to_join_by_a_refused_write_has_its_rebalance_timeout() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"])
    new.join()
    old = groups.member(protocols={"range": subscription({}, "events")}, session_ms=300_000)
    old.join()
    old.joined()
    old.sync()
    # The next heartbeat takes the group on to its next assignment, which cannot be written.
    groups.grow_topic("events", 4, 5)
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert old.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    groups.log.append_error = ErrorCode.NONE
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(3):
        groups.advance(REBALANCE_MS / 3)
        new.heartbeat()
    assert set(groups.consumer_group().members) == {new.member_id}


def test_a_session_that_begins_after_the_downgrade_expels_no_classic_member() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"])
    new.join()
    old = groups.member(protocols={"range": subscription({}, "events")})
    old.join()
    old.joined()
    groups.log.is_committing_at_once = False
    groups.commit({("events", 0): 1}, "another")
    old.sync()
    new.leave()
    assert groups.group_state() == "PreparingRebalance"
    # Only now SyncGroup is answered, and begins the session of a member of the new protocol.
    groups.log.commit()
    groups.log.is_committing_at_once = True
    groups.advance(SESSION_MS / 2)
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    groups.advance(SESSION_MS / 2 + 10)
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
