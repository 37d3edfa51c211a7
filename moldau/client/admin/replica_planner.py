"""Plans a placement of replicas: even over brokers and racks, with as few copies as possible.

Owns the choice and nothing else: it asks and changes no cluster (a new topic's replicas without a
plan are placed in `controller.core.placement`). Invariants of a plan: every partition has the
requested number of replicas, each on another one of the allowed brokers; its racks are used as
evenly as their brokers allow; under these rules no plan is more even over the brokers, and among
the equally even ones none copies fewer replicas. Then, without further copies, the first replicas
(the preferred leaders) are spread as evenly as the sets of replicas allow.

Both steps look for the cheapest flow: units (replicas, leaderships) lie on brokers; a broker that
holds n of them costs n squared, a unit that was not there before costs a little. As long as there
is a cycle of shifts that makes the sum smaller, it is carried out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from moldau.protocol.types import TopicPartition

Cost = tuple[int, int]
"""Evenness first, then how many were moved; both compare and add like numbers."""

FREE: Final[Cost] = (0, 0)


class PlanImpossible(ValueError):
    """No placement has what was asked for; one line that says why."""


class RackUnknown(PlanImpossible):
    """Some brokers have a rack and others have none, so that no distances are known."""


def plan_replicas(
    current: Mapping[TopicPartition, Sequence[int]],
    racks: Mapping[int, str | None],
    *,
    replication_factor: int | None = None,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Plan the replicas of the partitions in `current`; unchanged ones are in the answer too.

    Args:
        current: the replicas now, the preferred leader first.
        racks: the brokers that may be used, each with its rack; no racks at all (None everywhere)
            make all brokers alike.
        replication_factor: for all partitions; None keeps the number that each has.

    Raises:
        PlanImpossible: too few brokers.
        RackUnknown: a rack is known of some of them only.
    """
    if not racks:
        raise PlanImpossible("no broker may be used")
    if replication_factor is not None and replication_factor < 1:
        raise PlanImpossible(f"a replication factor of {replication_factor} is below 1")
    without = sorted(broker_id for broker_id, rack in racks.items() if rack is None)
    if without and len(without) < len(racks):
        raise RackUnknown(
            f"brokers {', '.join(map(str, without))} have no broker.rack and others have one"
        )
    factors = {key: replication_factor or len(replicas) for key, replicas in current.items()}
    for key, factor in factors.items():
        if factor > len(racks):
            raise PlanImpossible(f"{key} needs {factor} brokers and {len(racks)} may be used")
    placement = _Placement(current, racks, factors)
    _make_even(placement)
    leaders = _Leaders(current, placement.replicas, racks)
    _make_even(leaders)
    return {
        key: _ordered(replicas, placement.replicas[key], leaders.leader[key])
        for key, replicas in current.items()
    }


def _ordered(before: Sequence[int], chosen: Collection[int], leader: int) -> tuple[int, ...]:
    """The leader, then those that stay in their order, then those that come."""
    stay = [each for each in dict.fromkeys(before) if each in chosen]
    come = sorted(each for each in chosen if each not in before)
    return (leader, *(each for each in (*stay, *come) if each != leader))


class _Units(Protocol):
    """Things that lie on brokers, one kind per step."""

    load: dict[int, int]

    def move_cost(self, key: TopicPartition, source: int, target: int) -> int | None:
        """What it costs to move this partition's unit; None when it is not allowed."""

    def keys_on(self, broker_id: int) -> Iterable[TopicPartition]: ...

    def targets_of(self, key: TopicPartition, source: int) -> Iterable[int]: ...

    def move(self, key: TopicPartition, source: int, target: int) -> None: ...


class _Placement:
    """The replicas of all partitions. Invariant: each partition obeys the rules of racks."""

    def __init__(
        self,
        current: Mapping[TopicPartition, Sequence[int]],
        racks: Mapping[int, str | None],
        factors: Mapping[TopicPartition, int],
    ) -> None:
        self._racks = racks
        self._before = {key: frozenset(replicas) for key, replicas in current.items()}
        self._sizes = Counter(racks.values())
        self._bounds = {factor: self._rack_bounds(factor) for factor in set(factors.values())}
        self._factors = factors
        self.replicas: dict[TopicPartition, set[int]] = {}
        self.load = dict.fromkeys(racks, 0)
        self._by_broker: dict[int, set[TopicPartition]] = {each: set() for each in racks}
        for key in current:
            self.replicas[key] = self._kept(current[key], self._bounds[factors[key]])
            for broker_id in self.replicas[key]:
                self.load[broker_id] += 1
                self._by_broker[broker_id].add(key)
        for key in current:
            self._fill(key)

    def keys_on(self, broker_id: int) -> Iterable[TopicPartition]:
        return self._by_broker[broker_id]

    def targets_of(self, key: TopicPartition, source: int) -> Iterable[int]:
        return (each for each in self.load if each not in self.replicas[key])

    def move_cost(self, key: TopicPartition, source: int, target: int) -> int | None:
        replicas = self.replicas[key]
        if source not in replicas or target in replicas:
            return None
        left, entered = self._racks[source], self._racks[target]
        if left != entered:
            low, high = self._bounds[self._factors[key]]
            counts = self._rack_counts(replicas)
            if counts[left] <= low[left] or counts[entered] >= high[entered]:
                return None
        before = self._before[key]
        return (target not in before) - (source not in before)

    def move(self, key: TopicPartition, source: int, target: int) -> None:
        self._remove(key, source)
        self._add(key, target)

    def _rack_bounds(self, factor: int) -> tuple[dict[str | None, int], dict[str | None, int]]:
        """The fewest and the most replicas of one partition in each rack, filled level by level."""
        level = 0
        while sum(min(size, level + 1) for size in self._sizes.values()) <= factor:
            level += 1
            if level > factor:
                break
        low = {rack: min(size, level) for rack, size in self._sizes.items()}
        high = {rack: min(size, level + 1) for rack, size in self._sizes.items()}
        return low, high

    def _kept(
        self, before: Sequence[int], bounds: tuple[dict[str | None, int], dict[str | None, int]]
    ) -> set[int]:
        """As many of the present replicas as the racks' upper bounds let stay."""
        kept: set[int] = set()
        counts: Counter[str | None] = Counter()
        for broker_id in before:
            rack = self._racks.get(broker_id)
            if broker_id in self._racks and counts[rack] < bounds[1][rack]:
                kept.add(broker_id)
                counts[rack] += 1
        return kept

    def _fill(self, key: TopicPartition) -> None:
        """Bring one partition to its number of replicas and within the racks' bounds."""
        low, high = self._bounds[self._factors[key]]
        replicas = self.replicas[key]
        counts = self._rack_counts(replicas)

        def add_to(racks: Collection[str | None]) -> None:
            rack_of = self._racks
            free = (each for each in self.load if each not in replicas and rack_of[each] in racks)
            chosen = min(free, key=lambda each: (self.load[each], each))
            self._add(key, chosen)
            counts[rack_of[chosen]] += 1

        for rack, fewest in low.items():
            while counts[rack] < fewest:
                add_to([rack])
        while len(replicas) < self._factors[key]:
            add_to([rack for rack, most in high.items() if counts[rack] < most])
        while len(replicas) > self._factors[key]:
            spare = [
                each for each in replicas if counts[self._racks[each]] > low[self._racks[each]]
            ]
            came = [each for each in spare if each not in self._before[key]]
            chosen = max(came or spare, key=lambda each: (self.load[each], each))
            self._remove(key, chosen)
            counts[self._racks[chosen]] -= 1

    def _rack_counts(self, replicas: Iterable[int]) -> Counter[str | None]:
        return Counter(self._racks[each] for each in replicas)

    def _add(self, key: TopicPartition, broker_id: int) -> None:
        self.replicas[key].add(broker_id)
        self.load[broker_id] += 1
        self._by_broker[broker_id].add(key)

    def _remove(self, key: TopicPartition, broker_id: int) -> None:
        self.replicas[key].remove(broker_id)
        self.load[broker_id] -= 1
        self._by_broker[broker_id].remove(key)


class _Leaders:
    """Which of its replicas each partition prefers."""

    def __init__(
        self,
        current: Mapping[TopicPartition, Sequence[int]],
        replicas: Mapping[TopicPartition, Collection[int]],
        racks: Mapping[int, str | None],
    ) -> None:
        self._replicas = replicas
        self._before = {key: listed[0] if listed else -1 for key, listed in current.items()}
        self.load = dict.fromkeys(racks, 0)
        self.leader: dict[TopicPartition, int] = {}
        self._by_broker: defaultdict[int, set[TopicPartition]] = defaultdict(set)
        for key, listed in current.items():
            stays = (each for each in listed if each in replicas[key])
            self._set(key, next(stays, min(replicas[key])))

    def keys_on(self, broker_id: int) -> Iterable[TopicPartition]:
        return self._by_broker[broker_id]

    def targets_of(self, key: TopicPartition, source: int) -> Iterable[int]:
        return (each for each in self._replicas[key] if each != source)

    def move_cost(self, key: TopicPartition, source: int, target: int) -> int | None:
        if self.leader[key] != source or target not in self._replicas[key] or source == target:
            return None
        before = self._before[key]
        return (target != before) - (source != before)

    def move(self, key: TopicPartition, source: int, target: int) -> None:
        self.load[source] -= 1
        self._by_broker[source].remove(key)
        self._set(key, target)

    def _set(self, key: TopicPartition, broker_id: int) -> None:
        self.leader[key] = broker_id
        self.load[broker_id] += 1
        self._by_broker[broker_id].add(key)


def _make_even(units: _Units) -> None:
    """Shift units until no cycle of shifts is worth while."""
    shifts = _PossibleShifts(units)
    while found := _worthwhile_cycle(units.load, shifts.cheapest()):
        cycle = [_Edge(*pair, shifts.pick(*pair)) for pair in found]
        for edge in _each_key_once(units, cycle):
            if edge.key is not None:
                assert edge.source is not None
                assert edge.target is not None
                shifts.forget(edge.key)
                units.move(edge.key, edge.source, edge.target)
                shifts.learn(edge.key)


class _Edge(NamedTuple):
    """One step of a cycle: a shift between two brokers, or (without a key) a change of load."""

    source: int | None
    target: int | None
    key: TopicPartition | None


def _each_key_once(units: _Units, cycle: list[_Edge]) -> list[_Edge]:
    """The cycle, or a part of it that is worth while too, in which no partition moves twice.

    Two moves of one partition may not be possible together. With a to b and c to d, a to d and c
    to b cost the same and close two cycles, of which one is worth while.
    """
    while True:
        first_use: dict[TopicPartition, int] = {}
        for second, edge in enumerate(cycle):
            if edge.key is None:
                continue
            first = first_use.setdefault(edge.key, second)
            if first != second:
                break
        else:
            return cycle
        one, other = cycle[first], cycle[second]
        inner = cycle[first + 1 : second]
        outer = cycle[second + 1 :] + cycle[:first]
        if inner:
            inner.append(_Edge(other.source, one.target, edge.key))
        if outer:
            outer.append(_Edge(one.source, other.target, edge.key))
        cycle = inner if inner and _cycle_cost(units, inner) < FREE else outer
        assert cycle
        assert _cycle_cost(units, cycle) < FREE


def _cycle_cost(units: _Units, cycle: Iterable[_Edge]) -> Cost:
    squares = moves = 0
    for source, target, key in cycle:
        if key is not None:
            assert source is not None
            assert target is not None
            cost = units.move_cost(key, source, target)
            assert cost is not None
            moves += cost
        elif target is None:
            assert source is not None
            squares += 2 * units.load[source] + 1
        else:
            squares += 1 - 2 * units.load[target]
    return squares, moves


class _PossibleShifts:
    """How many units could move between two brokers, by what it costs."""

    def __init__(self, units: _Units) -> None:
        self._units = units
        self._counts: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self._known: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        for key in sorted({key for broker_id in units.load for key in units.keys_on(broker_id)}):
            self.learn(key)

    def learn(self, key: TopicPartition) -> None:
        """Take over what can be done with one partition's units now."""
        found = []
        for source in self._units.load:
            if key not in self._units.keys_on(source):
                continue
            for target in self._units.targets_of(key, source):
                cost = self._units.move_cost(key, source, target)
                if cost is not None:
                    found.append((source, target, cost))
                    self._counts[source, target][cost] += 1
        self._known[key] = found

    def forget(self, key: TopicPartition) -> None:
        for source, target, cost in self._known.pop(key):
            counts = self._counts[source, target]
            counts[cost] -= 1
            if not counts[cost]:
                del counts[cost]

    def cheapest(self) -> dict[tuple[int, int], int]:
        return {pair: min(counts) for pair, counts in self._counts.items() if counts}

    def pick(self, source: int | None, target: int | None) -> TopicPartition | None:
        """A partition whose unit moves at that price: the first by name, so plans repeat."""
        if source is None or target is None:
            return None
        price = min(self._counts[source, target])
        return min(
            key
            for key in self._units.keys_on(source)
            if self._units.move_cost(key, source, target) == price
        )


def _worthwhile_cycle(
    load: Mapping[int, int], prices: Mapping[tuple[int, int], int]
) -> list[tuple[int | None, int | None]]:
    """A cycle of negative cost, empty when there is none (Bellman and Ford).

    The node None stands for the sum of squares: into it from the broker that ends with one unit
    more, out of it to the one that ends with one fewer.
    """
    edges: list[tuple[int | None, int | None, int, int]] = [
        (source, target, 0, price) for (source, target), price in prices.items()
    ]
    edges += [(each, None, 2 * count + 1, 0) for each, count in load.items()]
    edges += [(None, each, 1 - 2 * count, 0) for each, count in load.items() if count]
    nodes: list[int | None] = [None, *load]
    distance: dict[int | None, Cost] = dict.fromkeys(nodes, FREE)
    parent: dict[int | None, int | None] = {}
    for _ in range(len(nodes) + 1):
        changed = False
        for source, target, squares, moves in edges:
            known = distance[source]
            reached = (known[0] + squares, known[1] + moves)
            if reached < distance[target]:
                distance[target] = reached
                parent[target] = source
                changed = True
        if not changed:
            return []
        cycle = _cycle_of(parent)
        if cycle:
            return cycle
    raise AssertionError("still changing after as many rounds as there are nodes, and no cycle")


def _cycle_of(parent: Mapping[int | None, int | None]) -> list[tuple[int | None, int | None]]:
    """A cycle among the parents, in the direction of the edges; empty when there is none."""
    done: set[int | None] = set()
    for start in parent:
        path: list[int | None] = []
        on_path: set[int | None] = set()
        node = start
        while node in parent and node not in done and node not in on_path:
            path.append(node)
            on_path.add(node)
            node = parent[node]
        if node in on_path:
            nodes = path[path.index(node) :]
            return [(parent[each], each) for each in reversed(nodes)]
        done.update(path)
    return []
