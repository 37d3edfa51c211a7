"""The sticky assignors: even, and with as few moves as possible (KIP-54, KIP-429).

Owns what members tell about the partitions they had, and which of the two algorithms runs.
Invariant: of several claims to one partition the youngest generation's counts; two of the same
generation cancel each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct, error
from typing import ClassVar, Final

from moldau.client.consumer.assignors.assignor import (
    NO_GENERATION,
    Assignments,
    ConsumerPartitionAssignor,
    MemberAssignment,
    RebalanceProtocol,
    Subscription,
    Topics,
)
from moldau.client.consumer.assignors.java_hash import in_hash_order
from moldau.client.consumer.assignors.sticky_even import EvenAssignment
from moldau.client.consumer.assignors.sticky_racks import Racks
from moldau.client.consumer.assignors.sticky_uneven import Claim, UnevenAssignment
from moldau.client.consumer.assignors.sticky_user_data import (
    read_sticky_user_data,
    write_sticky_user_data,
)
from moldau.protocol.types import TopicPartition

_GENERATION: Final = Struct(">i")


@dataclass(frozen=True, slots=True)
class History:
    """What one member says it had; `generation_id` None when it does not say since when."""

    partitions: tuple[TopicPartition, ...]
    generation_id: int | None


class _Claims:
    """What members may keep, out of what they all say they had."""

    def __init__(
        self,
        topics: Topics,
        subscriptions: Mapping[str, Subscription],
        histories: Mapping[str, History],
    ) -> None:
        self.owned: dict[str, list[TopicPartition]] = {}
        self.contested: set[TopicPartition] = set()
        self.newest = NO_GENERATION
        owners: dict[TopicPartition, str] = {}
        for member_id in in_hash_order(subscriptions):
            history = histories[member_id]
            generation = _or_none(history.generation_id)
            self.newest = max(self.newest, generation)
            mine = self.owned[member_id] = []
            for partition in history.partitions:
                if not 0 <= partition.partition < len(topics.get(partition.topic, ())):
                    continue
                other = owners.get(partition)
                if other is not None:
                    others_generation = _or_none(subscriptions[other].generation_id)
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

    def earlier(self, histories: Mapping[str, History]) -> dict[TopicPartition, Claim]:
        """Who had a partition in the youngest of the older generations."""
        claims: dict[TopicPartition, Claim] = {}
        for member_id in in_hash_order(histories):
            generation = _or_none(histories[member_id].generation_id)
            if generation >= self.newest:
                continue
            for partition in histories[member_id].partitions:
                if partition not in claims or generation > claims[partition][1]:
                    claims[partition] = (member_id, generation)
        return claims


class _Sticky(ConsumerPartitionAssignor):
    def history(self, subscription: Subscription) -> History:
        """What the member had."""
        raise NotImplementedError

    def distribute(
        self, topics: Topics, subscriptions: Mapping[str, Subscription]
    ) -> tuple[Assignments, dict[TopicPartition, str] | None]:
        """Who gets what; and which of it others may still own, by new owner (None: not known)."""
        histories = {each: self.history(subscriptions[each]) for each in subscriptions}
        claims = _Claims(topics, subscriptions, histories)
        racks = Racks(topics, subscriptions)
        if _all_want_the_same(subscriptions):
            even = EvenAssignment(topics, claims.owned, claims.contested, racks)
            return even.assign(), even.transferring
        uneven = UnevenAssignment(
            topics, subscriptions, claims.owned, claims.earlier(histories), racks
        )
        return uneven.assign(), None


class StickyAssignor(_Sticky):
    """`sticky`: eager, so members remember by themselves what they had."""

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

    def history(self, subscription: Subscription) -> History:
        """From the user data: eager members own nothing when they join."""
        if not subscription.user_data:
            return History((), None)
        return History(*read_sticky_user_data(subscription.user_data))


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
        return _GENERATION.pack(self._generation_id)

    def on_assignment(self, assignment: MemberAssignment) -> None:
        """Remember the generation."""
        self._generation_id = assignment.generation_id

    def history(self, subscription: Subscription) -> History:
        """What the member owns, and since when: by its subscription, else by its user data."""
        generation_id = subscription.generation_id
        if generation_id is None and subscription.user_data is not None:
            try:
                (generation_id,) = _GENERATION.unpack_from(subscription.user_data)
            except error:
                generation_id = NO_GENERATION
        return History(subscription.owned_partitions, generation_id)

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        """As `sticky`, without what somebody else has yet to give up."""
        assignments, transferring = self.distribute(topics, subscriptions)
        if transferring is None:
            transferring = _transferring(subscriptions, assignments)
        for partition, member_id in transferring.items():
            assignments[member_id].remove(partition)
        return assignments


def _or_none(generation_id: int | None) -> int:
    return NO_GENERATION if generation_id is None else generation_id


def _all_want_the_same(subscriptions: Mapping[str, Subscription]) -> bool:
    return len({frozenset(each.topics) for each in subscriptions.values()}) == 1


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
