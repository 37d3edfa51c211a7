"""How a member of a consumer group gets from what it owns to what it shall own (KIP-848).

Must not know other members; `is_released` tells whether another one still owns a partition.
Invariants: a member gets a partition only when no other member owns it; it goes to the epoch of the
target assignment only when it has nothing to give back.

Transitions of a member's state:

    STABLE, UNRELEASED_PARTITIONS -> UNREVOKED_PARTITIONS   it owns what it shall not
    UNREVOKED_PARTITIONS -> (the next step, whatever it is) it has given back everything asked for
    any -> UNRELEASED_PARTITIONS                            another member owns what it shall own
    any -> STABLE                                           it has all of the target
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from moldau.broker.coordinator.group.core.consumer_member import (
    NOTHING_OWNED,
    Assignment,
    ConsumerGroupMember,
    MemberState,
    OwnedPartitions,
)
from moldau.broker.coordinator.group.core.context import Refusal
from moldau.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What the next step of a member depends on.

    Attributes:
        target_epoch: the epoch of the target assignment.
        is_subscribed: whether the member is subscribed to a topic; it may own nothing of others,
            whatever the target says (which may be of an older epoch).
        has_subscription_changed: the member has just changed its subscription; it must give back
            unsubscribed topics at once, without a new target assignment.
        is_released: whether no other member owns a partition.
        owned: what the member says it owns; None: it does not say, and may own everything that it
            was given.
    """

    target_epoch: int
    target: Assignment
    is_subscribed: Callable[[UUID], bool]
    has_subscription_changed: bool
    is_released: Callable[[UUID, int], bool]
    owned: Mapping[UUID, frozenset[int]] | None

    def next_step(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """The member after the step; the same object when there is nothing to do.

        Raises:
            Refusal: FENCED_MEMBER_EPOCH, its state is not one this coordinator knows.
        """
        if member.state is MemberState.STABLE:
            if member.member_epoch != self.target_epoch:
                return self._toward_target(member, member.member_epoch)
            if self.has_subscription_changed:
                return self._without_unsubscribed(member)
            return member
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            if self._still_has(member.pending_revocation):
                return (
                    self._without_unsubscribed(member) if self.has_subscription_changed else member
                )
            return self._toward_target(member, member.member_epoch)
        if member.state is MemberState.UNRELEASED_PARTITIONS:
            return self._toward_target(member, member.member_epoch)
        if self.owned is None or any(self.owned.values()):
            raise Refusal(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The member is in a state this coordinator does not know; it must give up all its "
                "partitions and join again.",
            )
        return self._toward_target(member, self.target_epoch)

    def _still_has(self, partitions: OwnedPartitions) -> bool:
        """Whether the member, as far as known, still owns any of these."""
        if self.owned is None:
            return True
        return any(
            index in partitions[topic_id]
            for topic_id, indexes in self.owned.items()
            if topic_id in partitions
            for index in indexes
        )

    def _without_unsubscribed(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """Ask the unsubscribed topics back, in the member's epoch."""
        gone = {
            topic_id: partitions
            for topic_id, partitions in member.assigned.items()
            if not self.is_subscribed(topic_id)
        }
        if not gone:
            return member
        kept = {
            topic_id: partitions
            for topic_id, partitions in member.assigned.items()
            if topic_id not in gone
        }
        pending: dict[UUID, Mapping[int, int]] = dict(member.pending_revocation)
        for topic_id, partitions in gone.items():
            pending[topic_id] = {**pending.get(topic_id, {}), **partitions}
        if not self._still_has(pending):
            return _at(member, member.member_epoch, member.state, kept, member.pending_revocation)
        return _at(member, member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending)

    def _toward_target(self, member: ConsumerGroupMember, epoch: int) -> ConsumerGroupMember:
        """Compare with the target: first give partitions back, then take those that are free."""
        assigned: dict[UUID, dict[int, int]] = {}
        revoked: dict[UUID, dict[int, int]] = {}
        wanted: dict[UUID, list[int]] = {}
        is_unreleased = False
        for topic_id in self.target.keys() | member.assigned.keys():
            target = frozenset[int]()
            if self.is_subscribed(topic_id):
                target = self.target.get(topic_id, target)
            has = member.assigned.get(topic_id, {})
            kept = {index: since for index, since in has.items() if index in target}
            given_back = {index: since for index, since in has.items() if index not in target}
            new = [index for index in target if index not in has]
            free = [index for index in new if self.is_released(topic_id, index)]
            is_unreleased = is_unreleased or len(free) < len(new)
            if kept:
                assigned[topic_id] = kept
            if given_back:
                revoked[topic_id] = given_back
            if free:
                wanted[topic_id] = free
        if revoked and self._still_has(revoked):
            return _at(member, epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoked)
        for topic_id, indexes in wanted.items():
            assigned.setdefault(topic_id, {}).update(dict.fromkeys(indexes, self.target_epoch))
        state = MemberState.UNRELEASED_PARTITIONS if is_unreleased else MemberState.STABLE
        return _at(member, self.target_epoch, state, assigned, NOTHING_OWNED)


def _at(
    member: ConsumerGroupMember,
    member_epoch: int,
    state: MemberState,
    assigned: OwnedPartitions,
    pending_revocation: OwnedPartitions,
) -> ConsumerGroupMember:
    """The member in an epoch; a new epoch keeps the one before as the previous one."""
    if (
        member_epoch == member.member_epoch
        and state is member.state
        and assigned == member.assigned
        and pending_revocation == member.pending_revocation
    ):
        return member
    return replace(
        member,
        member_epoch=member_epoch,
        previous_member_epoch=member.member_epoch,
        state=state,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )
