"""Groups as values: what they count and answer, against a plain look at their members."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from moldau.broker.coordinator.core.result import CoordinatorResult
from moldau.broker.coordinator.group.core.classic_group import (
    JOIN,
    SESSION,
    SYNC,
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
)
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    ClassicProtocols,
    ConsumerGroupMember,
    MemberState,
    OwnedPartitions,
    ResolvedRegularExpression,
)
from moldau.broker.coordinator.group.core.joining import join_error
from moldau.protocol.coordinator_records.classic_groups import GroupMetadataValue
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p11_join_group import JoinGroupResponse
from tests.kit.dice import drawn_seed
from tests.unit.broker.coordinator.group.harness import subscription

TOPICS = ("a", "b", "c")
EXPRESSIONS = {"x": frozenset({"a", "d"}), "y": frozenset({"d", "e"}), "z": frozenset[str]()}
T1, T2 = UUID(int=1), UUID(int=2)

# -- consumer groups -----------------------------------------------------------------------------


def random_member(rng: random.Random, number: int) -> ConsumerGroupMember:
    classic = None
    if rng.random() < 0.5:
        names = rng.sample(["range", "sticky", "uniform"], rng.randint(1, 2))
        classic = ClassicProtocols(1000, tuple((name, b"") for name in names))
    return ConsumerGroupMember(
        f"m{number}",
        instance_id=f"i{number}" if number == 0 else None,
        subscribed_topic_names=frozenset(rng.sample(TOPICS, rng.randint(0, 2))),
        subscribed_topic_regex=rng.choice([None, "", *EXPRESSIONS]),
        server_assignor=rng.choice([None, "range", "uniform"]),
        classic=classic,
    )


def subscribed(members: list[ConsumerGroupMember], group: ConsumerGroup) -> set[str]:
    names = {name for member in members for name in member.subscribed_topic_names}
    for member in members:
        resolved = group.resolved.get(member.subscribed_topic_regex or "")
        names |= frozenset() if resolved is None else resolved.topic_names
    return names


def preferred(members: list[ConsumerGroupMember]) -> str | None:
    counts = Counter(each.server_assignor for each in members if each.server_assignor)
    return max(counts, key=lambda name: (counts[name], name), default=None)


def assert_counts(
    group: ConsumerGroup, members: list[ConsumerGroupMember], index: dict[str, set[str]]
) -> None:
    wanted = subscribed(members, group)
    assert set(group.subscribed_topic_names) == wanted
    assert index == {name: {"team"} for name in wanted}
    assert {name for name in (*TOPICS, "d", "e") if group.is_subscribed_to(name)} == wanted
    assert group.preferred_assignor() == preferred(members)
    classic = [each.classic for each in members if each.classic is not None]
    assert group.classic_member_count == len(classic)
    for names in (["range"], ["sticky", "uniform"], []):
        each_has = [{name for name, _ in each.protocols} for each in classic]
        common = any(all(name in has for has in each_has) for name in names)
        assert group.supports_classic_protocols(names) is common
    statics = {each.instance_id: each.member_id for each in members if each.instance_id}
    assert group.static_members == statics
    assert group.regex_counts == Counter(
        each.subscribed_topic_regex for each in members if each.subscribed_topic_regex
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_consumer_groups_counts_are_those_of_its_members(seed: int) -> None:
    rng = random.Random(drawn_seed(seed))
    index: dict[str, set[str]] = {}
    group = ConsumerGroup("team", index)
    members: dict[str, ConsumerGroupMember] = {}
    for _ in range(40):
        new = random_member(rng, rng.randint(0, 3))
        old = members.get(new.member_id)
        step = rng.random()
        if step < 0.2:
            expression = rng.choice([*EXPRESSIONS])
            result = None
            if rng.random() < 0.7:
                names = rng.choice([EXPRESSIONS[expression], frozenset({"b"})])
                result = ResolvedRegularExpression(names, 1, 1)
            group.set_resolved(expression, result)
        elif step < 0.45:
            leaving = [each for each in members.values() if rng.random() < 0.5]
            stays = [each for each in members.values() if each not in leaving]
            assert group.subscribed_without(leaving) == subscribed(stays, group)
            assert group.all_use_classic_protocol_without(leaving) is all(
                each.classic is not None for each in stays
            )
            group.remove_member(new.member_id)
            members.pop(new.member_id, None)
        else:
            then = [each for each in members.values() if each is not old] + [new]
            before = [] if old is None else [old]
            assert group.subscribed_without(before, new) == subscribed(then, group)
            assert group.preferred_assignor(old, new) == preferred(then)
            group.update_member(new)
            members[new.member_id] = new
        assert_counts(group, list(members.values()), index)
    group.forget_subscriptions()
    assert index == {}


def owner(
    number: int, epoch: int, assigned: OwnedPartitions, **more: object
) -> ConsumerGroupMember:
    return ConsumerGroupMember(f"m{number}", member_epoch=epoch, assigned=assigned, **more)  # type: ignore[arg-type]


def test_owners_are_those_who_have_or_have_yet_to_give_back() -> None:
    group = ConsumerGroup("team", {})
    group.update_member(owner(1, 5, {T1: {0: 5}}, pending_revocation={T1: {1: 4}, T2: {0: 4}}))
    assert [group.owner_of(T1, 0), group.owner_of(T1, 1), group.owner_of(T2, 0)] == ["m1"] * 3
    assert (group.owner_of(T1, 2), group.owner_of(UUID(int=3), 0)) == (None, None)
    group.update_member(owner(1, 6, {T1: {0: 5}}))
    assert group.owners == {T1: {0: "m1"}}
    with pytest.raises(AssertionError, match="still owns it"):
        group.update_member(owner(2, 6, {T1: {0: 6}}))
    loaded = ConsumerGroup("team", {})
    loaded.update_member(owner(2, 7, {T1: {0: 7}}), is_live=False)
    loaded.update_member(owner(1, 6, {T1: {0: 5, 1: 5}}), is_live=False)
    loaded.take_stock()
    assert loaded.owners == {T1: {0: "m2", 1: "m1"}}
    other = loaded.members["m1"]
    assert (other.assigned, other.state) == ({T1: {1: 5}}, MemberState.UNRELEASED_PARTITIONS)
    assert loaded.members["m2"].state is MemberState.STABLE
    loaded.update_member(owner(3, 9, {T2: {0: 9}}, pending_revocation={T2: {0: 8}}), is_live=False)
    loaded.take_stock()
    assert loaded.owners == {T1: {0: "m2", 1: "m1"}, T2: {0: "m3"}}, (
        "a record may contradict itself"
    )
    loaded.remove_member("m3")
    loaded.update_member(owner(1, 8, {T1: {1: 5}}))
    loaded.update_member(owner(2, 8, {T1: {0: 7}}))
    assert loaded.owners == {T1: {0: "m2", 1: "m1"}}
    loaded.remove_member("m1")
    loaded.remove_member("m1")
    assert loaded.owners == {T1: {0: "m2"}}


def test_the_state_of_a_group_follows_from_its_epochs_and_members() -> None:
    group = ConsumerGroup("team", {})
    assert (group.state_name, group.is_empty) == ("Empty", True)
    group.group_epoch, group.assignment_epoch = 3, 2
    group.update_member(owner(1, 2, {}))
    assert (group.state_name, group.is_empty) == ("Assigning", False)
    group.assignment_epoch = 3
    assert group.state_name == "Reconciling"
    group.update_member(owner(1, 3, {}, state=MemberState.UNRELEASED_PARTITIONS))
    assert group.state_name == "Reconciling"
    group.update_member(owner(1, 3, {}))
    assert group.state_name == "Stable"


def test_a_refresh_of_metadata_is_needed_until_it_is_made_and_again_when_it_is_lost() -> None:
    group = ConsumerGroup("team", {})
    assert group.needs_metadata_refresh
    group.group_epoch = 4
    group.metadata_refreshed(5)
    assert group.needs_metadata_refresh, "the epoch of that refresh was not written"
    group.group_epoch = 5
    assert not group.needs_metadata_refresh
    group.is_refresh_requested = True
    assert group.needs_metadata_refresh


def test_who_waits_for_partitions_of_others() -> None:
    group = ConsumerGroup("team", {})
    waiting = owner(1, 5, {T1: {0: 5}}, state=MemberState.UNRELEASED_PARTITIONS)
    group.update_member(waiting)
    group.targets["m1"] = {T1: frozenset({0, 1})}
    assert not group.waits_for_unreleased(waiting)
    group.update_member(owner(2, 5, {T1: {1: 5}}))
    assert group.waits_for_unreleased(waiting)
    stable = owner(1, 5, {T1: {0: 5}})
    assert not group.waits_for_unreleased(stable)


# -- classic groups ------------------------------------------------------------------------------


def member(number: int, *names: str, instance_id: str | None = None) -> ClassicMember:
    protocols = [(name, subscription("a")) for name in names or ("range",)]
    return ClassicMember(f"m{number}", instance_id, "c", "h", 1000 * number, 500, protocols)


def classic(*members: ClassicMember, state: ClassicGroupState | None = None) -> ClassicGroup:
    group = ClassicGroup("team", 77.9)
    for each in members:
        group.add(each, "consumer")
    if members:
        group.state = state or ClassicGroupState.STABLE
        group.generation_id = 4
        group.protocol_name = "range"
        group.read_subscriptions()
    elif state is not None:
        group.state = state
    return group


NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL, REBALANCING = ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("member_id", "instance_id", "generation", "is_transactional", "state", "error"),
    [
        ("m1", None, 4, False, ClassicGroupState.STABLE, NONE),
        ("m1", None, 3, False, ClassicGroupState.STABLE, ILLEGAL),
        ("m1", None, 5, True, ClassicGroupState.STABLE, ILLEGAL),
        ("m1", None, -1, False, ClassicGroupState.STABLE, ILLEGAL),
        ("m9", None, 4, False, ClassicGroupState.STABLE, UNKNOWN),
        ("", None, -1, False, ClassicGroupState.STABLE, UNKNOWN),
        ("", None, -1, True, ClassicGroupState.STABLE, NONE),
        ("", None, 0, True, ClassicGroupState.STABLE, UNKNOWN),
        ("", "i9", -1, True, ClassicGroupState.STABLE, UNKNOWN),
        ("m2", "i2", 4, False, ClassicGroupState.STABLE, NONE),
        ("m1", "i2", 4, False, ClassicGroupState.STABLE, ErrorCode.FENCED_INSTANCE_ID),
        ("m1", None, 4, False, ClassicGroupState.COMPLETING_REBALANCE, REBALANCING),
        ("m1", None, 4, True, ClassicGroupState.COMPLETING_REBALANCE, NONE),
        ("m1", None, 4, False, ClassicGroupState.PREPARING_REBALANCE, NONE),
    ],
)
def test_commits_to_a_classic_group(
    member_id: str,
    instance_id: str | None,
    generation: int,
    is_transactional: bool,
    state: ClassicGroupState,
    error: ErrorCode,
) -> None:
    group = classic(member(1), member(2, instance_id="i2"), state=state)
    found = group.validate_offset_commit(
        member_id, instance_id, generation, is_transactional=is_transactional, api_version=9
    )
    assert found is error


def test_what_an_empty_and_a_full_classic_group_allow() -> None:
    empty = classic()
    options = {"is_transactional": False, "api_version": 9}
    assert empty.validate_offset_commit("", None, -1, **options) is NONE  # type: ignore[arg-type]
    assert empty.validate_offset_commit("m1", "i1", -1, **options) is NONE  # type: ignore[arg-type]
    assert empty.validate_offset_commit("m1", None, 0, **options) is UNKNOWN  # type: ignore[arg-type]
    assert (empty.validate_offset_delete(), empty.validate_delete()) == (NONE, NONE)
    assert empty.validate_offset_fetch(None, -1) is NONE
    full = classic(member(1))
    assert (full.validate_delete(), full.validate_offset_delete()) == (
        ErrorCode.NON_EMPTY_GROUP,
        NONE,
    )
    full.protocol_type = "connect"
    assert full.validate_offset_delete() is ErrorCode.NON_EMPTY_GROUP


def test_from_when_on_offsets_of_a_classic_group_expire() -> None:
    simple = classic()
    assert simple.expiration_base_ms(5) == 5
    left = classic()
    left.protocol_type = "consumer"
    assert left.expiration_base_ms(5) == 77
    left.state_timestamp_ms = 0
    assert left.expiration_base_ms(5) == 0
    left.state_timestamp_ms = -1
    assert left.expiration_base_ms(5) == 5
    stable = classic(member(1))
    assert stable.expiration_base_ms(5) == 5
    stable.subscribed_topics = None
    assert stable.expiration_base_ms(5) is None
    for state in (ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.COMPLETING_REBALANCE):
        assert classic(member(1), state=state).expiration_base_ms(5) is None
    others = classic(member(1))
    others.protocol_type = "connect"
    assert others.expiration_base_ms(5) is None


def test_what_kind_of_group_a_classic_one_without_members_is() -> None:
    group = classic()
    assert (group.is_simple, group.is_unused, group.is_subscribed_to("a")) == (True, True, False)
    group.pending_members.add("m1")
    assert (group.is_simple, group.is_unused) == (False, False)
    group.pending_members.clear()
    group.generation_id = 1
    assert (group.is_simple, group.is_unused) == (True, False)
    group.generation_id, group.is_persisted = 0, True
    assert not group.is_unused
    group.protocol_type = "consumer"
    assert not group.is_simple
    full = classic(member(1))
    assert (full.is_simple, full.is_unused) == (False, False)
    assert (full.is_subscribed_to("a"), full.is_subscribed_to("b")) == (True, False)
    full.members["m1"].protocols = [("range", b"x")]
    full.read_subscriptions()
    assert full.is_subscribed_to("b"), "what cannot be read may be any topic"
    others = classic(member(1))
    others.protocol_type = "connect"
    others.read_subscriptions()
    assert (others.subscribed_topics, others.is_subscribed_to("a")) == (None, False)
    for metadata in (b"", b"\0", b"\0\0"):
        full.members["m1"].protocols = [("range", metadata)]
        full.read_subscriptions()
        assert full.subscribed_topics is None


def test_protocols_of_a_classic_group_are_those_that_all_members_have() -> None:
    empty = classic()
    assert empty.supports("consumer", ["any"])
    assert not empty.supports("consumer", [])
    assert not empty.supports("", ["any"])
    first, second = member(1, "range", "sticky"), member(2, "sticky", "other", "sticky")
    group = classic(first, second)
    assert group.supports("consumer", ["range", "sticky"])
    assert not group.supports("consumer", ["range", "other"])
    assert not group.supports("connect", ["sticky"])
    assert group.select_protocol() == "sticky"
    strangers = classic(member(1, "a", "x"), member(2, "b", "a"), member(3, "b", "x"))
    assert strangers.select_protocol() == "b", "only a log brings such members together"
    third = member(4, "other", "sticky")
    group.add(third, "consumer")
    assert not group.supports("consumer", ["range"])
    group.remove(third)
    group.update(second, [("range", b"")], 9000, 600)
    assert (second.rebalance_timeout_ms, second.session_timeout_ms) == (9000, 600)
    assert (group.supports("consumer", ["range"]), group.supports("consumer", ["sticky"])) == (
        True,
        False,
    )
    assert group.rebalance_timeout_ms == 9000
    group.remove(second)
    assert group.supports("consumer", ["sticky"])
    assert group.rebalance_timeout_ms == 1000
    group.remove(first)
    assert (group.rebalance_timeout_ms, group.leader_id) == (0, None)


@pytest.mark.parametrize(("written_ms", "rebalance_ms"), [(-1, 500), (0, 0), (7, 7)])
def test_a_member_written_without_a_rebalance_timeout_has_its_sessions(
    written_ms: int, rebalance_ms: int
) -> None:
    """Records of version 0 have none."""
    written = member(1, instance_id="i1")
    written.rebalance_timeout_ms = written_ms
    value = classic(written).record({"m1": b"all"}).value
    assert isinstance(value, GroupMetadataValue)
    group = ClassicGroup.from_record("team", value)
    (read,) = group.members.values()
    assert (read.rebalance_timeout_ms, read.session_timeout_ms) == (rebalance_ms, 500)
    assert (read.assignment, read.metadata("range")) == (b"all", subscription("a"))
    assert (group.leader_id, group.state) == ("m1", ClassicGroupState.STABLE)
    assert (group.static_members, group.is_persisted) == ({"i1": "m1"}, True)
    assert group.is_subscribed_to("a")
    assert not group.is_subscribed_to("b")


def test_a_group_written_without_a_leader_is_in_a_rebalance() -> None:
    group = classic(member(1), member(2))
    group.leader_id = None
    value = group.record({}).value
    assert isinstance(value, GroupMetadataValue)
    read = ClassicGroup.from_record("team", value)
    assert read.state is ClassicGroupState.PREPARING_REBALANCE
    assert read.previous_state is ClassicGroupState.STABLE
    value.leader = "gone"
    read = ClassicGroup.from_record("team", value)
    assert (read.state, read.leader_id) == (ClassicGroupState.STABLE, "m1")


def test_leaders_and_static_members_of_a_classic_group() -> None:
    first, second, third = member(1), member(2, instance_id="i2"), member(3)
    group = classic(first, second, third)
    assert group.leader_id == "m1"
    group.pending_sync |= {"m1", "m2"}
    group.remove(first)
    assert (group.leader_id, group.pending_sync) == ("m2", {"m2"})
    group.rename(second, "m9")
    assert (group.leader_id, group.pending_sync) == ("m9", {"m9"})
    assert (group.static_members, list(group.members)) == ({"i2": "m9"}, ["m3", "m9"])
    group.rename(second, "m10")
    group.wait_for_join(third, 1, 5)
    group.wait_for_join(third, 2, 6)
    assert (group.waiting_to_join_count, group.have_all_joined) == (1, False)
    assert group.elect_joined_leader()
    assert group.leader_id == "m3"
    group.wait_for_join(second, 3, 5)
    assert group.have_all_joined
    group.pending_members.add("m7")
    assert not group.have_all_joined
    assert group.elect_joined_leader()
    assert group.leader_id == "m3"
    assert [answered_joins(group, third) for _ in range(2)] == [[2], []]
    assert (group.waiting_to_join_count, third.join_api_version) == (1, 6)
    assert answered_joins(group, second) == [3]
    assert group.elect_joined_leader() is False
    group.remove(second)
    assert group.static_members == {}


def answered_joins(group: ClassicGroup, waiting: ClassicMember) -> list[Any]:
    """Which JoinGroups of the member are answered now."""
    out = CoordinatorResult()
    group.answer_join(waiting, JoinGroupResponse(), out)
    return [reply.to for reply in out.replies]


def test_a_generation_of_a_classic_group() -> None:
    group = classic(member(1, "a", "b"), member(2, "b", "a"), member(3, "b", "a"))
    group.transition_to(ClassicGroupState.PREPARING_REBALANCE, 99.9)
    assert (group.previous_state, group.state_timestamp_ms) == (ClassicGroupState.STABLE, 99)
    group.pending_sync.add("m1")
    group.begin_generation(100)
    assert (group.generation_id, group.protocol_name) == (5, "b")
    assert group.state is ClassicGroupState.COMPLETING_REBALANCE
    assert group.pending_sync == set()
    with pytest.raises(AssertionError):
        group.transition_to(ClassicGroupState.EMPTY, 101)
    group.transition_to(ClassicGroupState.PREPARING_REBALANCE, 101)
    for each in list(group.members.values()):
        group.remove(each)
    group.begin_generation(102)
    assert (group.generation_id, group.protocol_name, group.leader_id) == (6, None, None)
    assert (group.state, group.subscribed_topics) == (ClassicGroupState.EMPTY, frozenset())


# -- answers of the classic protocol -------------------------------------------------------------


def test_what_waits_is_refused_with_the_id_that_is_still_good() -> None:
    waiting, idle = member(1), member(2)
    group = classic(waiting, idle)
    for error, told in [(UNKNOWN, ""), (REBALANCING, "m1")]:
        group.wait_for_join(waiting, "join", 7)
        waiting.sync_reply_to = "sync"
        out = CoordinatorResult()
        for each in (waiting, idle):
            group.refuse_waiting(each, error, out)
        joined, synced = out.replies
        assert (joined.to, joined.message.error_code, joined.message.member_id) == (
            "join",
            error,
            told,
        )
        assert (synced.to, synced.message.error_code) == ("sync", error)
        assert (waiting.join_reply_to, waiting.sync_reply_to) == (None, None)


def test_a_refused_join_says_nothing_of_a_generation() -> None:
    for version, protocol_name in [(6, ""), (7, None)]:
        refused = join_error(UNKNOWN, "m1", version)
        assert (refused.generation_id, refused.protocol_name, refused.leader) == (
            -1,
            protocol_name,
            "",
        )


def test_only_the_leader_gets_the_members_of_the_generation() -> None:
    first, second = member(1), member(2, instance_id="i2")
    group = classic(first, second)
    led = group.join_response(first)
    assert (led.leader, led.generation_id, led.protocol_type) == ("m1", 4, "consumer")
    found = [(each.member_id, each.group_instance_id) for each in led.members]
    assert found == [("m1", None), ("m2", "i2")]
    assert led.members[0].metadata == subscription("a")
    followed = group.join_response(second)
    assert (followed.leader, followed.member_id, followed.members) == ("m1", "m2", [])
    deceived = group.join_response(first, leader_id="m9", skip_assignment=True)
    assert (deceived.leader, deceived.members, deceived.skip_assignment) == ("m9", [], True)


def test_all_timers_of_a_group_are_cancelled() -> None:
    group = classic(member(1))
    group.pending_members.add("m2")
    out = CoordinatorResult()
    group.cancel_timers(out)
    keys = {(each.key.kind, each.key.member_id) for each in out.timers}  # type: ignore[attr-defined]
    assert keys == {
        (SESSION, "m1"),
        (SESSION, "m2"),
        (JOIN, ""),
        (SYNC, ""),
    }
