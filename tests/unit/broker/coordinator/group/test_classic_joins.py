"""JoinGroup to a consumer group: who may, whose place it takes, and the answer (KIP-848)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tests.unit.broker.coordinator.group.harness import (
    REBALANCE_MS,
    SESSION_MS,
    error_of,
)
from tests.unit.broker.coordinator.group.migration_harness import (
    owned,
    rejoin,
    shard,
    stable_classic,
    subscription,
)


def test_an_expelled_classic_member_gives_everything_up_before_it_is_back() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3], rebalance_ms=300_000)
    new = groups.consumer("team", ["events"])
    new.join()
    groups.advance(SESSION_MS)
    new.heartbeat()
    assert new.owned == {"events": {0, 1, 2, 3}}
    # It has not heard of that, and still reads what it had.
    old.protocols = {"range": subscription({"events": [0, 1, 2, 3]}, "events")}
    assert error_of(old.join()) is ErrorCode.UNKNOWN_MEMBER_ID
    old.protocols = {"range": subscription({}, "events")}
    old.join()
    old.joined()
    old.sync()
    assert owned(old) == {}


def test_a_static_member_moves_between_the_protocols() -> None:
    groups = shard()
    (old,) = stable_classic(groups, [0, 1, 2, 3], instance_id="i")
    other = groups.consumer("team", ["events"], instance_id="j")
    other.join()
    # Up: the restarted client takes its own place.
    new = groups.consumer("team", ["events"], instance_id="i")
    new.join()
    groups.settle([new, other])
    assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert sorted([*new.owned["events"], *other.owned["events"]]) == [0, 1, 2, 3]
    # Down: one by one, the last of them takes the group along.
    epoch = groups.consumer_group().group_epoch
    protocols = {"range": subscription({}, "events")}
    back_i = groups.member(instance_id="i", protocols=protocols)
    back_i.join()
    back_i.joined()
    back_i.sync()
    assert set(owned(back_i)["events"]) == new.owned["events"]
    assert groups.state.groups["team"].kind == "consumer"
    back_j = groups.member(instance_id="j", protocols=protocols)
    back_j.join()
    back_j.joined()
    assert groups.state.groups["team"].kind == "classic"
    back_j.sync()
    assert set(owned(back_j)["events"]) == other.owned["events"]
    assert groups.state.groups["team"].generation_id == epoch
    groups.advance(10)
    assert groups.group_state() == "Stable"
    assert back_i.heartbeat() is ErrorCode.NONE


@pytest.mark.parametrize("version", [8, 9])
def test_a_member_of_a_group_that_went_down_looks_after_its_topics(version: int) -> None:
    """The one that takes the group along, asked not to assign, or any of them after a rebalance."""
    groups = shard()
    news = [groups.consumer("team", ["events"], instance_id=name) for name in "ij"]
    for new in news:
        new.join()
    groups.settle(news)
    protocols = {"range": subscription({}, "events")}
    backs = [groups.member(instance_id=name, protocols=protocols, version=version) for name in "ij"]
    for back in backs:
        back.join()
        back.joined()
        back.sync()
    assert groups.state.groups["team"].kind == "classic"
    if version == 8:
        assert error_of(backs[1].syncing) is ErrorCode.REBALANCE_IN_PROGRESS
        for back in backs:
            back.join()
    leaders = [back for back in backs if back.joining.answer.leader == back.member_id]
    assert len(leaders) == 1
    led = leaders[0].joining.answer
    assert {each.member_id for each in led.members} == {back.member_id for back in backs}
    assert led.skip_assignment == (version == 9)
    if version == 9:
        assert groups.group_state() == "Stable"
        assert owned(backs[0])["events"] + owned(backs[1])["events"] == [0, 1, 2, 3]


@pytest.mark.parametrize(("max_size", "kind"), [(1, "consumer"), (2, "classic")])
def test_a_group_goes_down_only_if_a_classic_one_may_be_as_large(max_size: int, kind: str) -> None:
    groups = shard(group_max_size=max_size)
    news = [groups.consumer("team", ["events"], instance_id=name) for name in "ij"]
    for new in news:
        new.join()
    groups.settle(news)
    protocols = {"range": subscription({}, "events")}
    for name in "ij":
        back = groups.member(instance_id=name, protocols=protocols)
        back.join()
        back.joined()
    assert groups.state.groups["team"].kind == kind


def test_a_group_that_goes_down_before_new_partitions_are_assigned_rebalances() -> None:
    groups = shard()
    news = [groups.consumer("team", ["events"], instance_id=name) for name in "ij"]
    for new in news:
        new.join()
    groups.settle(news)
    protocols = {"range": subscription({}, "events")}
    backs = [groups.member(instance_id=name, protocols=protocols) for name in "ij"]
    backs[0].join()
    backs[0].joined()
    backs[0].sync()
    assert groups.group_state() == "Stable"
    groups.grow_topic("events", 4, 6)
    backs[1].join()
    assert groups.state.groups["team"].kind == "classic"
    groups.advance(10)
    assert groups.group_state() == "PreparingRebalance"
    assert backs[0].heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_that_goes_down_before_all_are_in_its_epoch_rebalances() -> None:
    groups = shard()
    new = groups.consumer("team", ["events", "more"], instance_id="i")
    new.join()
    protocols = {"range": subscription({}, "events")}
    other = groups.member(protocols=protocols)
    other.join()
    other.joined()
    other.sync()
    groups.settle([new])
    rejoin(other, {})
    groups.create_topic("more", 1)
    groups.settle([new])
    assert new.owned["more"] == {0}
    assert other.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    back = groups.member(instance_id="i", protocols={"range": subscription({}, "events", "more")})
    back.join()
    assert groups.state.groups["team"].kind == "classic"
    assert groups.state.consumer_groups.classic_members._joining == set()
    groups.advance(10)
    assert groups.group_state() == "PreparingRebalance"


def test_a_join_says_the_members_rack() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    racked = ConsumerProtocolSubscription(topics=["events"], rack_id="r1").to_bytes(3)
    member = groups.member(protocols={"range": b"\0\3" + racked})
    member.join()
    member.joined()
    assert groups.consumer_group().members[member.member_id].rack_id == "r1"


def test_a_member_that_goes_back_to_the_classic_protocol_has_no_expression_any_more() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    new = groups.consumer("team", regex="ev.*", instance_id="i")
    new.join()
    assert groups.consumer_group().resolved.keys() == {"ev.*"}
    back = groups.member(instance_id="i", protocols={"range": subscription({}, "events")})
    back.join()
    group = groups.consumer_group()
    assert group.members[back.joined().member_id].subscribed_topic_regex == ""
    assert (group.resolved, +group.regex_counts) == ({}, Counter())


@pytest.mark.parametrize(("version", "needs_id"), [(3, False), (4, True)])
def test_dynamic_members_of_older_clients_need_no_id_first(version: int, needs_id: bool) -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    member = groups.member(protocols={"range": subscription({}, "events")}, version=version)
    answer = member.ask_to_join().answer
    assert (answer.error_code == ErrorCode.MEMBER_ID_REQUIRED) is needs_id
    assert answer.member_id


def test_a_classic_member_of_several_protocols_goes_on_with_its_first_one() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"])
    new.join()
    protocols = {"range": subscription({}, "events"), "sticky": subscription({}, "events")}
    member = groups.member(protocols=protocols)
    member.join()
    assert member.joined().protocol_name == "range"
    refused = member.sync(protocol_name="sticky")
    assert error_of(refused) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = member.sync(protocol_name="range", protocol_type="consumer").answer
    assert (answer.error_code, answer.protocol_name, answer.protocol_type) == (
        ErrorCode.NONE,
        "range",
        "consumer",
    )


def test_a_static_member_goes_down_under_its_own_id() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"], instance_id="i")
    new.join()
    epoch = groups.consumer_group().group_epoch
    protocols = {"range": subscription({"events": [0, 1, 2, 3]}, "events")}
    back = groups.member(instance_id="i", protocols=protocols)
    back.member_id = new.member_id
    back.join()
    assert back.joined().member_id == new.member_id
    assert groups.state.groups["team"].kind == "classic"
    assert groups.state.groups["team"].generation_id == epoch
    back.sync()
    assert owned(back) == {"events": [0, 1, 2, 3]}


@pytest.mark.parametrize(("rebalance_ms", "kept_ms"), [(-1, SESSION_MS), (0, 0), (7, 7)])
def test_a_join_that_names_no_rebalance_timeout_has_its_sessions(
    rebalance_ms: int, kept_ms: int
) -> None:
    """JoinGroup v0 has no such field."""
    groups = shard()
    groups.consumer("team", ["events"]).join()
    member = groups.member(
        protocols={"range": subscription({}, "events")}, rebalance_ms=rebalance_ms, version=0
    )
    member.join()
    member.joined()
    kept = groups.consumer_group().members[member.member_id]
    assert kept.rebalance_timeout_ms == kept_ms


def test_a_join_that_could_not_be_written_is_owed_no_sync() -> None:
    groups = shard()
    groups.create_topic("more", 1)
    new = groups.consumer("team", ["events"])
    new.join()
    member = groups.member(protocols={"range": subscription({}, "events")})
    member.join()
    member.joined()
    member.sync()
    groups.settle([new])
    rejoin(member, owned(member))
    member.protocols = {"range": subscription(owned(member), "events", "more")}
    groups.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert error_of(member.ask_to_join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    groups.log.append_error = ErrorCode.NONE
    for _ in range(REBALANCE_MS // 9_000 + 1):
        groups.advance(9_000)
        new.heartbeat()
        assert member.heartbeat() is ErrorCode.NONE
    assert member.member_id in groups.consumer_group().members


def test_refused_classic_members_get_no_id() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    stranger = groups.member(protocols={"range": subscription({}, "events")}, protocol_type="other")
    stranger.member_id = "stranger"
    answer = stranger.ask_to_join().answer
    assert error_of(stranger.joining) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert answer.member_id == ""


def test_dynamic_classic_members_first_get_an_id() -> None:
    groups = shard()
    groups.consumer("team", ["events"]).join()
    member = groups.member(protocols={"range": subscription({}, "events")})
    answer = member.ask_to_join().answer
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_ms": 2**31 - 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": -1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_consumer_group_is_no_way_around_the_checks(
    changes: dict[str, Any], error: ErrorCode, is_empty: bool
) -> None:
    groups = shard()
    new = groups.consumer("team", ["events"])
    new.join()
    if is_empty:
        new.leave()
    written_count = groups.written_count
    asking = groups.member(**{"protocols": {"range": subscription({}, "events")}, **changes})
    assert error_of(asking.ask_to_join()) is error
    assert asking.joining.answer.generation_id == -1
    assert groups.written_count == written_count
    assert groups.consumer_group().is_empty is is_empty


def test_an_empty_consumer_group_stays_when_a_member_that_it_does_not_know_asks() -> None:
    groups = shard()
    new = groups.consumer("team", ["events"])
    new.join()
    new.leave()
    asking = groups.member(protocols={"range": subscription({}, "events")})
    asking.member_id = "made-up"
    assert error_of(asking.ask_to_join()) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.consumer_group().is_empty
