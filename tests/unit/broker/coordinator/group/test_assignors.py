"""The assignors: no member gets too much, no partition is left over or moves without need."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.coordinator.group.core.assignors import (
    Assignor,
    GroupSpec,
    MemberSpec,
    assign_range,
    assign_uniform,
    check_assignment,
)
from moldau.broker.coordinator.group.core.consumer_member import Assignment

TOPICS = [UUID(int=number) for number in range(1, 6)]

partition_counts = st.dictionaries(
    st.sampled_from(TOPICS), st.integers(0, 9), min_size=1, max_size=len(TOPICS)
)
member_ids = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ({"a": {TOPICS[0]: {0}}, "b": {TOPICS[0]: {1}}}, None),
        ({"a": {TOPICS[0]: {0, 1}}, "b": {TOPICS[0]: {1}}}, "assigned twice"),
        ({"a": {TOPICS[0]: {0}}, "b": {}}, "left over"),
        ({"a": {TOPICS[1]: {0}}, "b": {}}, "not subscribed"),
    ],
)
def test_what_no_assignment_may_be(
    assignment: dict[str, dict[UUID, set[int]]], problem: str | None
) -> None:
    member = MemberSpec(None, frozenset({TOPICS[0]}), {})
    spec = GroupSpec({"a": member, "b": member}, {TOPICS[0]: 2, TOPICS[1]: 1})
    frozen = {
        member_id: {topic: frozenset(indexes) for topic, indexes in topics.items()}
        for member_id, topics in assignment.items()
    }
    if problem is None:
        check_assignment(spec, frozen)
    else:
        with pytest.raises(AssertionError, match=problem):
            check_assignment(spec, frozen)


@st.composite
def equal_groups(draw: st.DrawFn) -> GroupSpec:
    """Members that all want the same topics; what they had may be anything."""
    counts = draw(partition_counts)
    wanted = frozenset(counts)
    return GroupSpec(
        {
            member_id: MemberSpec(draw(st.none() | st.just(member_id)), wanted, draw(old_targets))
            for member_id in draw(member_ids)
        },
        counts,
    )


@st.composite
def mixed_groups(draw: st.DrawFn) -> GroupSpec:
    """Members that want different topics."""
    counts = draw(partition_counts)
    wanted = st.frozensets(st.sampled_from(sorted(counts)))
    return GroupSpec(
        {
            member_id: MemberSpec(None, draw(wanted), draw(old_targets))
            for member_id in draw(member_ids)
        },
        counts,
    )


old_targets = st.dictionaries(
    st.sampled_from(TOPICS), st.frozensets(st.integers(0, 10), max_size=4), max_size=3
)


def assert_whole(spec: GroupSpec, assignment: dict[str, Assignment]) -> None:
    """Every partition has one owner, and no member is shown a topic of which it has nothing."""
    check_assignment(spec, assignment)
    assert all(indexes for topics in assignment.values() for indexes in topics.values())
    assert assignment.keys() == spec.members.keys()


def sizes(assignment: dict[str, Assignment]) -> list[int]:
    return [sum(map(len, topics.values())) for topics in assignment.values()]


def again(spec: GroupSpec, assignment: dict[str, Assignment], assignor: Assignor) -> GroupSpec:
    """The group as it is with the assignment as what its members had."""
    return GroupSpec(
        {
            member_id: member._replace(target=assignment.get(member_id, {}))
            for member_id, member in spec.members.items()
        },
        spec.partition_counts,
    )


def moved(before: dict[str, Assignment], after: dict[str, Assignment]) -> int:
    """How many partitions have another owner, of those that had one that is still there."""
    owners = {
        (topic_id, index): member_id
        for member_id, topics in after.items()
        for topic_id, partitions in topics.items()
        for index in partitions
    }
    return sum(
        owners.get((topic_id, index), member_id) != member_id
        for member_id, topics in before.items()
        for topic_id, partitions in topics.items()
        for index in partitions
    )


@settings(max_examples=40, deadline=None)
@given(equal_groups())
def test_uniform_is_balanced_whatever_members_had(spec: GroupSpec) -> None:
    assignment = assign_uniform(spec)
    assert_whole(spec, assignment)
    assert max(sizes(assignment)) - min(sizes(assignment)) <= 1


@settings(max_examples=40, deadline=None)
@given(equal_groups() | mixed_groups())
def test_uniform_moves_nothing_when_nothing_has_changed(spec: GroupSpec) -> None:
    first = assign_uniform(spec)
    assert assign_uniform(again(spec, first, assign_uniform)) == first


@settings(max_examples=40, deadline=None)
@given(equal_groups())
def test_uniform_gives_a_leavers_partitions_away_and_moves_no_other(spec: GroupSpec) -> None:
    first = assign_uniform(spec)
    left = again(spec, first, assign_uniform)
    gone = sorted(spec.members)[0]
    rest = GroupSpec(
        {name: member for name, member in left.members.items() if name != gone},
        spec.partition_counts,
    )
    second = assign_uniform(rest)
    check_assignment(rest, second)
    staying = {name: topics for name, topics in first.items() if name != gone}
    assert moved(staying, second) == 0


@settings(max_examples=40, deadline=None)
@given(equal_groups())
def test_uniform_moves_to_a_newcomer_only_what_it_shall_have(spec: GroupSpec) -> None:
    first = assign_uniform(spec)
    wanted = next(iter(spec.members.values())).topic_ids
    grown = GroupSpec(
        {
            **again(spec, first, assign_uniform).members,
            "new": MemberSpec(None, wanted, {}),
        },
        spec.partition_counts,
    )
    second = assign_uniform(grown)
    assert moved(first, second) == sum(map(len, second["new"].values()))


@settings(max_examples=100, deadline=None)
@given(mixed_groups())
def test_no_single_move_makes_a_mixed_group_more_equal(spec: GroupSpec) -> None:
    assignment = assign_uniform(spec)
    assert_whole(spec, assignment)
    load = {member_id: sum(map(len, topics.values())) for member_id, topics in assignment.items()}
    for giver, topics in assignment.items():
        for topic_id, partitions in topics.items():
            for taker, member in spec.members.items():
                if partitions and topic_id in member.topic_ids:
                    assert load[giver] - load[taker] <= 1


@settings(max_examples=40, deadline=None)
@given(equal_groups() | mixed_groups())
def test_range_gives_consecutive_partitions_in_the_members_order(spec: GroupSpec) -> None:
    assignment = assign_range(spec)
    assert_whole(spec, assignment)
    order = sorted(
        spec.members,
        key=lambda member_id: (
            spec.members[member_id].instance_id is None,
            spec.members[member_id].instance_id or member_id,
        ),
    )
    for topic_id, count in spec.partition_counts.items():
        parts = [
            sorted(assignment[member_id].get(topic_id, ()))
            for member_id in order
            if topic_id in spec.members[member_id].topic_ids
        ]
        if parts:
            assert [index for part in parts for index in part] == list(range(count))
            assert [len(part) for part in parts] == sorted(map(len, parts), reverse=True)
            assert len(parts[0]) - len(parts[-1]) <= 1


def test_range_gives_equal_topics_alike() -> None:
    counts = {TOPICS[0]: 5, TOPICS[1]: 5}
    wanted = frozenset(counts)
    spec = GroupSpec({name: MemberSpec(None, wanted, {}) for name in "abc"}, counts)
    for topics in assign_range(spec).values():
        assert topics[TOPICS[0]] == topics[TOPICS[1]]


def test_uniform_spreads_each_topic() -> None:
    counts = {TOPICS[0]: 2, TOPICS[1]: 2}
    wanted = frozenset(counts)
    spec = GroupSpec({name: MemberSpec(None, wanted, {}) for name in "ab"}, counts)
    for topics in assign_uniform(spec).values():
        assert {topic_id: len(parts) for topic_id, parts in topics.items()} == {
            TOPICS[0]: 1,
            TOPICS[1]: 1,
        }


def test_a_group_without_members_or_topics_gets_an_empty_assignment() -> None:
    nobody = GroupSpec({}, {})
    assert assign_uniform(nobody) == assign_range(nobody) == {}
    nothing = GroupSpec({"a": MemberSpec(None, frozenset(), {})}, {})
    assert assign_uniform(nothing) == assign_range(nothing) == {"a": {}}


def test_uniform_gives_free_partitions_to_those_that_have_least_and_moves_no_other() -> None:
    counts = {TOPICS[0]: 6, TOPICS[1]: 0}
    has = {TOPICS[0]: frozenset({3, 4, 5})}
    spec = GroupSpec(
        {
            "a": MemberSpec(None, frozenset(counts), has),
            "b": MemberSpec(None, frozenset({TOPICS[0]}), {}),
        },
        counts,
    )
    assert assign_uniform(spec) == {"a": has, "b": {TOPICS[0]: frozenset({0, 1, 2})}}


def test_uniform_balances_along_a_chain_of_topics() -> None:
    """Only "b" can pass on what "a" has too much of, and only after it has given to "c"."""
    x, y = TOPICS[0], TOPICS[1]
    counts = {x: 6, y: 4}
    spec = GroupSpec(
        {
            "a": MemberSpec(None, frozenset({x}), {x: frozenset(range(6))}),
            "b": MemberSpec(None, frozenset({x, y}), {y: frozenset(range(4))}),
            "c": MemberSpec(None, frozenset({y}), {}),
        },
        counts,
    )
    assert sorted(sizes(assign_uniform(spec))) == [3, 3, 4]
