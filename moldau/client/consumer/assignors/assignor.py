"""What an assignor of the classic group protocol is, and what it works on.

Owns the interface that custom assignors implement. Must not know groups, brokers or the wire.
Invariant: an assignor sees the same input on whichever member it runs, so that any member may lead
the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias

from moldau.protocol.types import TopicPartition

NO_GENERATION = -1
"""The generation of a member that was in none yet, or does not say."""


class RebalanceProtocol(IntEnum):
    """How members hand over partitions (KIP-429)."""

    EAGER = 0
    """Everything is given up before joining again."""
    COOPERATIVE = 1
    """Members join again with what they own; only what moves is given up, in a second round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What one member of the group says about itself.

    Attributes:
        topics: what the member wants to consume.
        owned_partitions: what it consumes now; empty with eager assignors (it was given up).
        generation_id: the generation in which it got them; None when the member does not say.
        rack_id: its `client.rack` (KIP-881), None without one.
        group_instance_id: its static name (KIP-345), None for a dynamic member.
        user_data: what `subscription_user_data` returned on that member.
    """

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int | None = None
    rack_id: str | None = None
    group_instance_id: str | None = None
    user_data: bytes | None = None


PartitionRacks: TypeAlias = frozenset[str]
"""The racks in which a partition has replicas; empty where no broker says its rack."""

Topics: TypeAlias = Mapping[str, Sequence[PartitionRacks]]
"""Topics that exist, with the racks of each of their partitions, by partition number."""

Assignments: TypeAlias = dict[str, list[TopicPartition]]
"""What each member is to consume, by member id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """What the group's leader assigned to this member; `user_data` is what its assignor added."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None
    generation_id: int


class ConsumerPartitionAssignor:
    """Decides which member of a classic group consumes what (`partition.assignment.strategy`).

    Derive from it for an assignor of your own: set `name` and write `assign`. One instance serves
    one consumer; every member of the group must offer an assignor of that name. Names and meaning
    are those of Java's interface (KIP-429).
    """

    name: ClassVar[str]
    supported_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        """What to tell the leader's assignor about this member; called before each join."""
        return None

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        """Distribute the partitions; called only on the group's leader.

        Args:
            topics: what exists of all that the members want.
            subscriptions: the members, by member id.

        Returns:
            The partitions of every member id; a partition goes to one member at most, and only to
            one that subscribes to its topic.
        """
        raise NotImplementedError

    def assignment_user_data(self, member_id: str) -> bytes | None:
        """What to send to a member along with its part of the last `assign`."""
        return None

    def on_assignment(self, assignment: MemberAssignment) -> None:
        """Hears this member's assignment; called on every member of the group."""


def java_order(text: str) -> bytes:
    """A sort key with which texts compare as in Java: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def members_in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Static members by instance id first, then dynamic ones by member id (KIP-345)."""

    def order(member_id: str) -> tuple[bool, bytes]:
        instance_id = subscriptions[member_id].group_instance_id
        return instance_id is None, java_order(member_id if instance_id is None else instance_id)

    return sorted(subscriptions, key=order)


def racks_of_members(subscriptions: Mapping[str, Subscription]) -> dict[str, str]:
    return {
        member_id: subscription.rack_id
        for member_id, subscription in subscriptions.items()
        if subscription.rack_id
    }


def racks_matter(member_racks: Iterable[str], partitions: Iterable[PartitionRacks]) -> bool:
    """Whether an assignment that looks at racks can be better than one that does not (KIP-881):
    members and replicas share racks, and some partition is not in all of them.
    """
    of_members = set(member_racks)
    all_racks: set[str] = set()
    each = list(partitions)
    for racks in each:
        all_racks |= racks
    if not of_members or of_members.isdisjoint(all_racks):
        return False
    return any(racks != all_racks for racks in each)
