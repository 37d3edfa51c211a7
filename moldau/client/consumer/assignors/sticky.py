"""The sticky assignors: even, and with as few moves as possible (KIP-54, KIP-429).

Owns what members report about the partitions they had, and the two algorithms: one for groups whose
members all subscribe to the same topics, one for all others. Invariant: of several claims to one
partition the youngest generation's counts; two claims of the same generation cancel each other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct, error
from typing import ClassVar, Final

from moldau.client.consumer.assignors.assignor import (
    NO_GENERATION,
    Assignments,
    ConsumerPartitionAssignor,
    MemberAssignment,
    PartitionRacks,
    RebalanceProtocol,
    Subscription,
    Topics,
    java_order,
    racks_matter,
    racks_of_members,
)
from moldau.client.consumer.assignors.java_hash import PartitionHashSet, in_hash_order
from moldau.protocol.types import TopicPartition, by_topic

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")

#: Which member claims a partition since which generation.
_Claim = tuple[str, int]
#: The member that had a partition, the member that has it.
_Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _History:
    """What one member says it had; NO_GENERATION when it does not say since when."""

    partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


def write_sticky_user_data(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Version 1 of what an eager member sends along: what it has, and since which generation. The
    bytes carry no version number.
    """
    topics = by_topic(partitions)
    parts = [_INT32.pack(len(topics))]
    for topic, indexes in topics.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(indexes)))
        parts += (_INT32.pack(index) for index in indexes)
    parts.append(_INT32.pack(generation_id))
    return b"".join(parts)


def _read_sticky_user_data(user_data: bytes) -> _History:
    """Version 0 has no generation. What an older or broken member sent never fails the group: what
    cannot be read counts as nothing.
    """
    partitions: list[TopicPartition] = []
    data = memoryview(user_data)
    try:
        (topic_count,) = _INT32.unpack_from(data, 0)
        at = 4
        for _ in range(topic_count):
            (size,) = _INT16.unpack_from(data, at)
            at += 2
            topic = bytes(data[at : at + size]).decode()
            at += size
            (count,) = _INT32.unpack_from(data, at)
            at += 4
            for _ in range(count):
                partitions.append(TopicPartition(topic, _INT32.unpack_from(data, at)[0]))
                at += 4
    except (error, ValueError):
        return _History()
    if len(data) >= at + 4:
        return _History(tuple(partitions), _INT32.unpack_from(data, at)[0])
    return _History(tuple(partitions))


class _Racks:
    """The racks of members and replicas in one assignment; empty where they do not matter."""

    def __init__(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> None:
        of_members = racks_of_members(subscriptions)
        every = [racks for partitions in topics.values() for racks in partitions]
        matter = racks_matter(of_members.values(), every)
        self.of_members: Final = of_members if matter else {}
        self._topics: Final = topics
        self._member_count: Final = Counter(self.of_members.values())

    def __bool__(self) -> bool:
        return bool(self.of_members)

    def mismatch(self, member_id: str, partition: TopicPartition) -> bool:
        """Whether the member has a rack and no replica of the partition in it."""
        rack = self.of_members.get(member_id)
        return rack is not None and rack not in self._of(partition)

    def scarcest_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Partitions that few members can read in their own rack come first."""
        if not self:
            return partitions
        return sorted(partitions, key=self._nearby_count)

    def next_nearby(self, partition: TopicPartition, members: Sequence[str], first: int) -> int:
        """The place of the first member from `first` on, in a circle, whose rack has a replica; -1
        when there is none.
        """
        racks = self._of(partition)
        for step in range(len(members) if racks else 0):
            index = (first + step) % len(members)
            if self.of_members.get(members[index]) in racks:
                return index
        return -1

    def _nearby_count(self, partition: TopicPartition) -> int:
        return sum(self._member_count[rack] for rack in self._of(partition))

    def _of(self, partition: TopicPartition) -> PartitionRacks:
        return self._topics[partition.topic][partition.partition]


class _EvenAssignment:
    """One assignment of a group whose members all subscribe to the same topics.

    Invariant: every member ends with the lower or the upper quota (the average, rounded down or
    up), and keeps as much of what it had as that allows.

    Args:
        owned: what each member had and may claim, by member id.
        contested: partitions that several members of one generation claimed: no member keeps them.

    Attributes:
        transferring: partitions that another member may still own, by their new owner.
    """

    def __init__(
        self,
        topics: Topics,
        owned: Mapping[str, list[TopicPartition]],
        contested: set[TopicPartition],
        racks: _Racks,
    ) -> None:
        self.transferring: dict[TopicPartition, str] = {}
        self._topics: Final = topics
        self._owned: Final = owned
        self._contested: Final = contested
        self._racks: Final = racks
        partition_count = sum(len(partitions) for partitions in topics.values())
        self._low_quota, self._over_low_allowed = divmod(partition_count, len(owned))
        self._high_quota = self._low_quota + (1 if self._over_low_allowed else 0)
        self._over_low_count = 0
        self._assignments: Assignments = {member_id: [] for member_id in owned}
        self._lacking: list[str] = []  # below the lower quota
        self._at_low: list[str] = []  # at the lower quota, may get one more
        self._given_up: dict[TopicPartition, str] = {}

    def assign(self) -> Assignments:
        for member_id in in_hash_order(self._owned):
            self._keep(member_id)
        kept = {each for partitions in self._assignments.values() for each in partitions}
        unassigned = [
            partition
            for topic in sorted(self._topics, key=java_order)
            for index in range(len(self._topics[topic]))
            if (partition := TopicPartition(topic, index)) not in kept
        ]
        self._lacking.sort(key=java_order)
        self._at_low.sort(key=java_order)
        unassigned = self._racks.scarcest_first(unassigned)
        if self._racks:
            unassigned = self._fill_by_rack(unassigned)
        self._fill(unassigned)
        return self._assignments

    def _keep(self, member_id: str) -> None:
        mine = []
        for partition in self._owned[member_id]:
            if self._racks.mismatch(member_id, partition):
                self._given_up[partition] = member_id
            elif partition not in self._contested:
                mine.append(partition)
        mine.sort(key=lambda each: (each.partition, java_order(each.topic)))
        if len(mine) < self._low_quota:
            self._lacking.append(member_id)
            quota = len(mine)
        elif len(mine) >= self._high_quota and self._over_low_count < self._over_low_allowed:
            quota = self._high_quota
            self._one_more_over_low()
        else:
            quota = self._low_quota
            if self._over_low_count < self._over_low_allowed:
                self._at_low.append(member_id)
        self._assignments[member_id].extend(mine[:quota])
        for partition in mine[quota:]:
            self._given_up[partition] = member_id

    def _one_more_over_low(self) -> None:
        self._over_low_count += 1
        if self._over_low_count == self._over_low_allowed:
            self._at_low.clear()

    def _fill_by_rack(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Give each partition to a member nearby that has room; the rest is returned."""
        rest = []
        turn = 0
        for partition in partitions:
            index = self._racks.next_nearby(partition, self._lacking, turn)
            if index >= 0:
                member_id = self._lacking[index]
                count = self._give(partition, member_id)
                if count >= self._low_quota:
                    del self._lacking[index]
                    if self._over_low_count < self._over_low_allowed:
                        self._at_low.append(member_id)
                else:
                    index += 1
                turn = index % len(self._lacking) if self._lacking else 0
                continue
            index = self._racks.next_nearby(partition, self._at_low, 0)
            if index < 0:
                rest.append(partition)
                continue
            member_id = self._at_low[index]
            if self._give(partition, member_id) == self._high_quota:
                del self._at_low[index]
                self._one_more_over_low()
        return rest

    def _fill(self, partitions: list[TopicPartition]) -> None:
        """Deal out the rest: first to those below the lower quota, in turn, then one more each."""
        turn = 0
        for partition in partitions:
            if self._lacking:
                turn %= len(self._lacking)
                member_id = self._lacking[turn]
                if self._give(partition, member_id) == self._low_quota:
                    del self._lacking[turn]
                    self._at_low.append(member_id)
                else:
                    turn += 1
            else:
                self._give(partition, self._at_low.pop(0))

    def _give(self, partition: TopicPartition, member_id: str) -> int:
        partitions = self._assignments[member_id]
        partitions.append(partition)
        before = self._given_up.get(partition, member_id)
        if before != member_id or partition in self._contested:
            self.transferring[partition] = member_id
        return len(partitions)


class _Movements:
    """The moves of one assignment, recorded to move one partition of a topic rather than two: when
    A gave B a partition and B is to give A another one of the same topic, the first simply goes
    back (KIP-54). A partition that is back where it was has no record.
    """

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, _Pair] = {}
        self._by_topic: dict[str, dict[_Pair, PartitionHashSet]] = {}

    def move(self, partition: TopicPartition, source: str, destination: str) -> None:
        earlier = self._pairs.pop(partition, None)
        if earlier is not None:
            moved = self._by_topic[partition.topic]
            moved[earlier].discard(partition)
            if not len(moved[earlier]):
                del moved[earlier]
            if not moved:
                del self._by_topic[partition.topic]
            source = earlier[0]
        if source != destination:
            pair = (source, destination)
            self._pairs[partition] = pair
            moved = self._by_topic.setdefault(partition.topic, {})
            moved.setdefault(pair, PartitionHashSet()).add(partition)

    def to_move(self, partition: TopicPartition, source: str, destination: str) -> TopicPartition:
        """What to move instead of `partition`: one that went the other way before, if any did."""
        earlier = self._pairs.get(partition)
        if earlier is not None:
            source = earlier[0]
        back = self._by_topic.get(partition.topic, {}).get((destination, source))
        return partition if back is None else next(iter(back))


class _ByLoad:
    """Members in the order of how many partitions they have, then of their ids."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, bytes, str]] = []

    def add(self, member_id: str, load: int) -> None:
        insort(self._entries, (load, java_order(member_id), member_id))

    def remove(self, member_id: str, load: int) -> None:
        entry = (load, java_order(member_id), member_id)
        index = bisect_left(self._entries, entry)
        assert self._entries[index] == entry, "the order has lost a member"
        del self._entries[index]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return ((load, member_id) for load, _, member_id in self._entries)

    def least(self) -> int:
        return self._entries[0][0]

    def most(self) -> int:
        return self._entries[-1][0]

    def __len__(self) -> int:
        return len(self._entries)


class _UnevenAssignment:
    """One assignment of a group whose members subscribe to different topics: what members keep,
    what is left, and moves until nothing can be balanced better (KIP-54).

    Invariant: every move makes the group more even, or brings a partition back to the member that
    had it; when the moves together bring nothing, none of them happens.

    Args:
        owned: what each member had and may claim, by member id.
        earlier: the member that had a partition in an older generation; the partition goes back to
            it where that helps.
    """

    def __init__(
        self,
        topics: Topics,
        subscriptions: Mapping[str, Subscription],
        owned: Mapping[str, list[TopicPartition]],
        earlier: Mapping[TopicPartition, _Claim],
        racks: _Racks,
    ) -> None:
        self._topics: Final = topics
        self._racks: Final = racks
        self._earlier: Final = earlier
        self._wanted: Final = {
            member_id: frozenset(topic for topic in subscription.topics if topic in topics)
            for member_id, subscription in subscriptions.items()
        }
        self._takers: Final[dict[str, list[str]]] = {topic: [] for topic in topics}
        for member_id, wanted in self._wanted.items():
            for topic in wanted:
                self._takers[topic].append(member_id)
        self._assignments: Assignments = {}
        self._owner: dict[TopicPartition, str] = {}
        self._owners_of_topic: dict[str, Counter[str]] = {topic: Counter() for topic in topics}
        self._has_lost = False
        for member_id, partitions in owned.items():
            self._assignments[member_id] = []
            for partition in partitions:
                if partition.topic in self._wanted[member_id] and not racks.mismatch(
                    member_id, partition
                ):
                    self._own(partition, member_id)
                else:
                    self._has_lost = True
        self._by_load = _ByLoad()
        for member_id, partitions in self._assignments.items():
            self._by_load.add(member_id, len(partitions))
        self._movements = _Movements()

    def assign(self) -> Assignments:
        everything = [
            TopicPartition(topic, index)
            for topic in sorted(
                self._topics, key=lambda each: (len(self._takers[each]), java_order(each))
            )
            for index in range(len(self._topics[topic]))
        ]
        unassigned = [partition for partition in everything if partition not in self._owner]
        from_nothing = self._by_load.most() == 0
        self._fill(unassigned)
        everything = [each for each in everything if len(self._takers[each.topic]) > 1]
        unassigned = [each for each in unassigned if len(self._takers[each.topic]) > 1]
        fixed = [each for each in self._assignments if not self._can_change(each)]
        for member_id in fixed:
            self._by_load.remove(member_id, len(self._assignments[member_id]))
        if len(self._by_load) > 1:
            self._balance(everything, unassigned, from_nothing)
        return self._assignments

    def _balance(
        self, everything: list[TopicPartition], unassigned: list[TopicPartition], from_nothing: bool
    ) -> None:
        loads = [load for load, _ in self._by_load]
        before = {member_id: list(each) for member_id, each in self._assignments.items()}
        if not self._has_lost:
            # Where nothing has to move, first only what is new anyway.
            self._move(unassigned)
        moved = self._move(everything)
        if (
            moved
            and not from_nothing
            and _score([load for load, _ in self._by_load]) >= _score(loads)
        ):
            self._assignments = before

    def _fill(self, partitions: list[TopicPartition]) -> None:
        """Each to the least loaded member that may have it; with racks, nearby members first."""
        rest = partitions
        if self._racks:
            rest = [each for each in partitions if not self._give(each, nearby=True)]
        for partition in rest:
            self._give(partition, nearby=False)

    def _give(self, partition: TopicPartition, *, nearby: bool) -> bool:
        for load, member_id in self._by_load:
            if partition.topic not in self._wanted[member_id]:
                continue
            if nearby and self._racks.mismatch(member_id, partition):
                continue
            self._by_load.remove(member_id, load)
            self._own(partition, member_id)
            self._by_load.add(member_id, load + 1)
            return True
        return False

    def _own(self, partition: TopicPartition, member_id: str) -> None:
        self._assignments[member_id].append(partition)
        self._owner[partition] = member_id
        self._owners_of_topic[partition.topic][member_id] += 1

    def _can_change(self, member_id: str) -> bool:
        """Whether the member lacks something it wants, or has something that others want too."""
        partitions = self._assignments[member_id]
        if len(partitions) < sum(len(self._topics[each]) for each in self._wanted[member_id]):
            return True
        return any(len(self._takers[each.topic]) > 1 for each in partitions)

    def _move(self, partitions: list[TopicPartition]) -> bool:
        """Move partitions until a whole round brings nothing; whether any was moved."""
        moved, moved_any = True, False
        while moved:
            moved = False
            for partition in partitions:
                if self._is_balanced():
                    break
                destination = self._better_owner(partition)
                if destination is not None:
                    self._reassign(partition, destination)
                    moved = moved_any = True
        return moved_any

    def _better_owner(self, partition: TopicPartition) -> str | None:
        load = len(self._assignments[self._owner[partition]])
        earlier_owner, _ = self._earlier.get(partition, ("", NO_GENERATION))
        # Unlike Kafka, never to a member that no longer subscribes to the topic.
        if (
            partition.topic in self._wanted.get(earlier_owner, ())
            and load > len(self._assignments[earlier_owner]) + 1
        ):
            return earlier_owner
        for other_load, other in self._by_load:
            if load <= other_load + 1:
                return None
            if partition.topic in self._wanted[other]:
                return other
        return None

    def _is_balanced(self) -> bool:
        most = self._by_load.most()
        if self._by_load.least() >= most - 1:
            return True
        heaviest = {
            topic: max((len(self._assignments[each]) for each in owners), default=0)
            for topic, owners in self._owners_of_topic.items()
        }
        for load, member_id in self._by_load:
            if load + 1 >= most:
                return True
            if any(load + 1 < heaviest[topic] for topic in self._wanted[member_id]):
                return False
        return True

    def _reassign(self, partition: TopicPartition, destination: str) -> None:
        partition = self._movements.to_move(partition, self._owner[partition], destination)
        source = self._owner[partition]
        source_load = len(self._assignments[source])
        destination_load = len(self._assignments[destination])
        self._by_load.remove(source, source_load)
        if destination != source:
            self._by_load.remove(destination, destination_load)
        self._movements.move(partition, source, destination)
        self._assignments[source].remove(partition)
        owners = self._owners_of_topic[partition.topic]
        owners[source] -= 1
        if not owners[source]:
            del owners[source]
        self._own(partition, destination)
        for member_id in {source, destination}:
            self._by_load.add(member_id, len(self._assignments[member_id]))


def _score(loads: list[int]) -> int:
    """How uneven the loads are: the sum of the differences of all pairs; zero is best."""
    ordered = sorted(loads)
    count = len(ordered)
    return sum(load * (2 * place - count + 1) for place, load in enumerate(ordered))


class _Claims:
    """What each member may keep, out of what all members say they had."""

    def __init__(
        self,
        topics: Topics,
        subscriptions: Mapping[str, Subscription],
        histories: Mapping[str, _History],
    ) -> None:
        self.owned: dict[str, list[TopicPartition]] = {}
        self.contested: set[TopicPartition] = set()
        self.newest = NO_GENERATION
        owners: dict[TopicPartition, str] = {}
        for member_id in in_hash_order(subscriptions):
            history = histories[member_id]
            generation = history.generation_id
            self.newest = max(self.newest, generation)
            mine = self.owned[member_id] = []
            for partition in history.partitions:
                if not 0 <= partition.partition < len(topics.get(partition.topic, ())):
                    continue
                other = owners.get(partition)
                if other is not None:
                    others_generation = subscriptions[other].generation_id
                    if others_generation is None:
                        others_generation = NO_GENERATION
                    if generation < others_generation:
                        continue
                    if partition in self.owned[other]:
                        self.owned[other].remove(partition)
                    owners[partition] = member_id
                    if generation == others_generation:
                        self.contested.add(partition)
                        continue
                owners[partition] = member_id
                mine.append(partition)

    def earlier(self, histories: Mapping[str, _History]) -> dict[TopicPartition, _Claim]:
        """The member that had a partition in the youngest of the older generations."""
        claims: dict[TopicPartition, _Claim] = {}
        for member_id in in_hash_order(histories):
            generation = histories[member_id].generation_id
            if generation >= self.newest:
                continue
            for partition in histories[member_id].partitions:
                if partition not in claims or generation > claims[partition][1]:
                    claims[partition] = (member_id, generation)
        return claims


class _Sticky(ConsumerPartitionAssignor):
    def history(self, subscription: Subscription) -> _History:
        raise NotImplementedError

    def distribute(
        self, topics: Topics, subscriptions: Mapping[str, Subscription]
    ) -> tuple[Assignments, dict[TopicPartition, str] | None]:
        """The assignments, and those partitions in them that another member may still own, by new
        owner (None: not known).
        """
        histories = {each: self.history(subscriptions[each]) for each in subscriptions}
        claims = _Claims(topics, subscriptions, histories)
        racks = _Racks(topics, subscriptions)
        if len({frozenset(each.topics) for each in subscriptions.values()}) == 1:
            even = _EvenAssignment(topics, claims.owned, claims.contested, racks)
            return even.assign(), even.transferring
        uneven = _UnevenAssignment(
            topics, subscriptions, claims.owned, claims.earlier(histories), racks
        )
        return uneven.assign(), None


class StickyAssignor(_Sticky):
    """`sticky`: eager, so each member remembers what it had and sends it along when it joins."""

    name: ClassVar[str] = "sticky"

    def __init__(self) -> None:
        self._remembered: tuple[TopicPartition, ...] | None = None
        self._generation_id = NO_GENERATION

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """What this member had at the end of the last rebalance, and its generation."""
        if self._remembered is None:
            return None
        return write_sticky_user_data(self._remembered, self._generation_id)

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        """Evenly, and with as few moves as that allows."""
        return self.distribute(topics, subscriptions)[0]

    def on_assignment(self, assignment: MemberAssignment) -> None:
        """Remember it for the next rebalance."""
        self._remembered = assignment.partitions
        self._generation_id = assignment.generation_id

    def history(self, subscription: Subscription) -> _History:
        """From the user data: eager members own nothing when they join."""
        return _read_sticky_user_data(subscription.user_data or b"")


class CooperativeStickyAssignor(_Sticky):
    """`cooperative-sticky`: members keep consuming what stays theirs while the group rebalances.

    A partition that moves is first given up by its owner and handed to the new one in a second
    rebalance, which follows at once (KIP-429).
    """

    name: ClassVar[str] = "cooperative-sticky"
    supported_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (
        RebalanceProtocol.COOPERATIVE,
        RebalanceProtocol.EAGER,
    )

    def __init__(self) -> None:
        self._generation_id = NO_GENERATION

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """The generation, for leaders that do not find it in the subscription itself."""
        return _INT32.pack(self._generation_id)

    def on_assignment(self, assignment: MemberAssignment) -> None:
        """Remember the generation."""
        self._generation_id = assignment.generation_id

    def history(self, subscription: Subscription) -> _History:
        """What the member owns, and since when: by its subscription, else by its user data."""
        generation_id = subscription.generation_id
        if generation_id is None:
            try:
                (generation_id,) = _INT32.unpack_from(subscription.user_data or b"")
            except error:
                generation_id = NO_GENERATION
        return _History(subscription.owned_partitions, generation_id)

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        """As `sticky`, without the partitions that another member has yet to give up."""
        assignments, transferring = self.distribute(topics, subscriptions)
        if transferring is None:
            transferring = _transferring(subscriptions, assignments)
        for partition, member_id in transferring.items():
            assignments[member_id].remove(partition)
        return assignments


def _transferring(
    subscriptions: Mapping[str, Subscription], assignments: Assignments
) -> dict[TopicPartition, str]:
    """Partitions that one member got and another one still has, by the new owner."""
    gained: dict[TopicPartition, str] = {}
    lost: set[TopicPartition] = set()
    for member_id, partitions in assignments.items():
        owned = set(subscriptions[member_id].owned_partitions)
        gained.update((each, member_id) for each in partitions if each not in owned)
        lost |= owned.difference(partitions)
    return {partition: gained[partition] for partition in gained if partition in lost}
