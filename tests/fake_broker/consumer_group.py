"""A consumer group of the new protocol (KIP-848): epochs, targets, reconciliation.

Owns members, the target assignment and each member's way to it. Must not know requests. Invariant:
a partition is given to a member only when no other member owns it or has yet to give it back.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from tests.fake_broker.cluster import FakeCluster

Partition = tuple[UUID, int]


@dataclass(eq=False, slots=True)
class ConsumerMember:
    """A member: `assigned` is what it was given, `revoking` what it has yet to give back."""

    member_id: str
    instance_id: str | None
    client_id: str
    rack_id: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] = ()
    regex: str | None = None
    assignor: str | None = None
    assigned: frozenset[Partition] = frozenset()
    revoking: frozenset[Partition] = frozenset()
    told: frozenset[Partition] | None = None
    timer: asyncio.TimerHandle | None = None
    is_away: bool = False


@dataclass(eq=False, slots=True)
class ConsumerGroup:
    """One group."""

    cluster: FakeCluster
    group_id: str
    epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, frozenset[Partition]] = field(default_factory=dict)
    target_topics: dict[UUID, int] = field(default_factory=dict)
    assignor: str = "uniform"

    @property
    def state_name(self) -> str:
        """Kafka's name of the state."""
        if not self.members:
            return "Empty"
        is_stable = all(
            member.epoch == self.epoch and member.assigned == self.target[member.member_id]
            for member in self.members.values()
        )
        return "Stable" if is_stable else "Reconciling"

    # -- membership -----------------------------------------------------------------------------

    def by_instance(self, instance_id: str | None) -> ConsumerMember | None:
        """The member that holds an instance id."""
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def subscribed_topics(self, member: ConsumerMember) -> list[str]:
        """The existing topics that a member wants."""
        names = {name for name in member.topics if name in self.cluster.topics}
        if member.regex is not None:
            pattern = re.compile(member.regex)
            names |= {name for name in self.cluster.topics if pattern.fullmatch(name)}
        return sorted(names)

    def refresh(self, *, force: bool = False) -> None:
        """A new target when members, subscriptions or topics have changed."""
        topics = {
            self.cluster.topics[name].topic_id: len(self.cluster.topics[name].partitions)
            for member in self.members.values()
            for name in self.subscribed_topics(member)
        }
        if not force and topics == self.target_topics:
            return
        self.epoch += 1
        self.target_topics = topics
        self.target = self._uniform()
        self.cluster.grew()

    def _uniform(self) -> dict[str, frozenset[Partition]]:
        """Even shares; partitions stay where they are while that is fair."""
        wants = {
            member.member_id: {
                self.cluster.topics[name].topic_id for name in self.subscribed_topics(member)
            }
            for member in self.members.values()
        }
        shares: dict[str, set[Partition]] = {member_id: set() for member_id in wants}
        partitions = [
            (topic_id, index)
            for topic_id, count in sorted(self.target_topics.items())
            for index in range(count)
        ]
        fair = -(-len(partitions) // max(len(wants), 1))
        free = []
        for partition in partitions:
            owner = next(
                (m for m, share in self.target.items() if partition in share and m in wants), None
            )
            if owner and partition[0] in wants[owner] and len(shares[owner]) < fair:
                shares[owner].add(partition)
            else:
                free.append(partition)
        for partition in free:
            takers = [member_id for member_id, ids in wants.items() if partition[0] in ids]
            if takers:
                shares[min(takers, key=lambda each: (len(shares[each]), each))].add(partition)
        self._level(shares, wants)
        return {member_id: frozenset(share) for member_id, share in shares.items()}

    def _level(self, shares: dict[str, set[Partition]], wants: dict[str, set[UUID]]) -> None:
        """Move partitions from who has most to who has least, while that evens them out."""
        while True:
            by_size = sorted(shares, key=lambda each: len(shares[each]))
            for few in by_size:
                for many in reversed(by_size):
                    movable = [p for p in sorted(shares[many]) if p[0] in wants[few]]
                    if len(shares[many]) - len(shares[few]) >= 2 and movable:
                        shares[many].discard(movable[-1])
                        shares[few].add(movable[-1])
                        break
                else:
                    continue
                break
            else:
                return

    # -- reconciliation -------------------------------------------------------------------------

    def reconcile(self, member: ConsumerMember, owned: frozenset[Partition] | None) -> None:
        """One step of a member towards its target; `owned` is what it says it owns (None: as it
        said before).
        """
        if member.revoking:
            if owned is None or owned & member.revoking:
                return
            member.revoking = frozenset()
            self.cluster.grew()
        target = self.target[member.member_id]
        surplus = member.assigned - target
        if surplus:
            member.assigned -= surplus
            member.revoking = surplus
            return
        if member.epoch != self.epoch:
            member.previous_epoch = member.epoch
            member.epoch = self.epoch
        taken = frozenset().union(
            *(
                other.assigned | other.revoking
                for other in self.members.values()
                if other is not member
            )
        )
        member.assigned = target - taken

    def touch(self, member: ConsumerMember) -> None:
        """The member has been heard of."""
        if member.timer is not None:
            member.timer.cancel()
        member.timer = asyncio.get_running_loop().call_later(
            self.cluster.settings.consumer_session_timeout_ms / 1000, self._expire, member
        )

    def _expire(self, member: ConsumerMember) -> None:
        if self.members.get(member.member_id) is member:
            self.remove(member)

    def remove(self, member: ConsumerMember) -> None:
        """The member has gone."""
        if member.timer is not None:
            member.timer.cancel()
        self.members.pop(member.member_id, None)
        self.target.pop(member.member_id, None)
        self.refresh(force=True)

    def close(self) -> None:
        """Stop the timers."""
        for member in self.members.values():
            if member.timer is not None:
                member.timer.cancel()
