"""Plans: their invariants on anything, and on small clusters that nothing better exists."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.admin.replica_planner import PlanImpossible, plan_replicas
from moldau.protocol.types import TopicPartition

Current = dict[TopicPartition, tuple[int, ...]]
Racks = dict[int, str | None]


def partition(index: int) -> TopicPartition:
    return TopicPartition("t", index)


@st.composite
def situations(
    draw: st.DrawFn, *, most_brokers: int, most_partitions: int
) -> tuple[Current, Racks, int | None]:
    """Replicas on any brokers, some of which may be used; racks of all of them or of none."""
    count = draw(st.integers(1, most_brokers))
    names = draw(st.sampled_from([[None], ["a"], ["a", "b"], ["a", "b", "c"]]))
    racks = {each: draw(st.sampled_from(names)) for each in range(count)}
    gone = [count, count + 1]
    rows = st.lists(st.sampled_from([*racks, *gone]), min_size=1, max_size=count, unique=True)
    listed = draw(st.lists(rows, max_size=most_partitions))
    factor = draw(st.none() | st.integers(1, count))
    return {partition(index): tuple(row) for index, row in enumerate(listed)}, racks, factor


def loads(plan: Mapping[TopicPartition, Sequence[int]], racks: Racks) -> list[int]:
    count = Counter(each for replicas in plan.values() for each in replicas)
    return [count[each] for each in racks]


def copies(current: Current, plan: Mapping[TopicPartition, Sequence[int]]) -> int:
    return sum(len(set(plan[each]) - set(current[each])) for each in current)


def rack_use(replicas: Sequence[int], racks: Racks) -> tuple[int, ...]:
    """Replicas per rack, the fullest first: the smallest of these is the most even."""
    return tuple(sorted(Counter(racks[each] for each in replicas).values(), reverse=True))


def most_even_use(factor: int, racks: Racks) -> tuple[int, ...]:
    return min(rack_use(chosen, racks) for chosen in itertools.combinations(racks, factor))


@given(situations(most_brokers=7, most_partitions=15))
def test_a_plan_keeps_its_promises(situation: tuple[Current, Racks, int | None]):
    current, racks, factor = situation
    plan = plan_replicas(current, racks, replication_factor=factor)
    assert plan.keys() == current.keys()
    for each, replicas in plan.items():
        assert len(replicas) == len(set(replicas)) == (factor or len(current[each]))
        assert set(replicas) <= racks.keys()
        assert rack_use(replicas, racks) == most_even_use(len(replicas), racks)
        stay = [broker_id for broker_id in current[each] if broker_id in replicas[1:]]
        assert [broker_id for broker_id in replicas[1:] if broker_id in stay] == stay
    if len(set(racks.values())) == 1:
        assert max(loads(plan, racks)) - min(loads(plan, racks)) <= 1
    assert plan_replicas(current, racks, replication_factor=factor) == plan, "it is repeatable"


@given(situations(most_brokers=7, most_partitions=15))
def test_a_planned_cluster_needs_no_further_plan(situation: tuple[Current, Racks, int | None]):
    current, racks, factor = situation
    plan = plan_replicas(current, racks, replication_factor=factor)
    assert plan_replicas(plan, racks, replication_factor=factor) == plan


@settings(max_examples=60, deadline=None)
@given(situations(most_brokers=4, most_partitions=4))
def test_no_plan_is_more_even_or_copies_less(situation: tuple[Current, Racks, int | None]):
    """Against every plan there is."""
    current, racks, factor = situation
    possible = []
    for replicas in current.values():
        wanted = factor or len(replicas)
        best_use = most_even_use(wanted, racks)
        every = itertools.combinations(racks, wanted)
        possible.append([chosen for chosen in every if rack_use(chosen, racks) == best_use])

    def quality(plan: Mapping[TopicPartition, Sequence[int]]) -> tuple[int, int]:
        return sum(load * load for load in loads(plan, racks)), copies(current, plan)

    best = min(
        quality(dict(zip(current, chosen, strict=True))) for chosen in itertools.product(*possible)
    )
    assert quality(plan_replicas(current, racks, replication_factor=factor)) == best


@settings(max_examples=60, deadline=None)
@given(situations(most_brokers=4, most_partitions=5))
def test_no_choice_of_leaders_is_more_even_or_changes_less(
    situation: tuple[Current, Racks, int | None],
):
    current, racks, factor = situation
    plan = plan_replicas(current, racks, replication_factor=factor)

    def quality(leaders: Sequence[int]) -> tuple[int, int]:
        count = Counter(leaders)
        changed = sum(
            leader != replicas[0]
            for leader, replicas in zip(leaders, current.values(), strict=True)
        )
        return sum(load * load for load in count.values()), changed

    best = min(quality(leaders) for leaders in itertools.product(*plan.values()))
    assert quality([replicas[0] for replicas in plan.values()]) == best


def test_a_new_broker_gets_its_share_and_nothing_else_moves():
    current = {partition(n): (n % 3, (n + 1) % 3) for n in range(12)}
    plan = plan_replicas(current, dict.fromkeys(range(4)))
    assert copies(current, plan) == 6
    assert all(set(plan[each]) - set(current[each]) <= {3} for each in current)
    assert Counter(replicas[0] for replicas in plan.values()) == {0: 3, 1: 3, 2: 3, 3: 3}


def test_an_emptied_broker_gives_away_only_what_it_had():
    current = {partition(n): (n % 4, (n + 1) % 4) for n in range(12)}
    plan = plan_replicas(current, dict.fromkeys(range(3)))
    assert copies(current, plan) == 6
    assert loads(plan, dict.fromkeys(range(4))) == [8, 8, 8, 0]


def test_racks_come_before_few_copies():
    racks: Racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    plan = plan_replicas({partition(0): (1, 2)}, racks)
    assert len({racks[each] for each in plan[partition(0)]}) == 2
    assert plan[partition(0)][0] in (1, 2)


@pytest.mark.parametrize(
    ("current", "racks", "factor", "said"),
    [
        ((1,), {}, None, "no broker may be used"),
        ((1, 2, 3), {1: None, 2: None}, None, "t-0 needs 3 brokers and 2 may be used"),
        ((1,), {1: None}, 2, "t-0 needs 2 brokers and 1 may be used"),
        ((1,), {1: None}, 0, "a replication factor of 0 is below 1"),
        ((1,), {1: "a", 2: None, 3: None}, 1, "brokers 2, 3 have no broker.rack and others have"),
    ],
)
def test_what_cannot_be_planned(
    current: tuple[int, ...], racks: Racks, factor: int | None, said: str
):
    with pytest.raises(PlanImpossible, match=said):
        plan_replicas({partition(0): current}, racks, replication_factor=factor)
