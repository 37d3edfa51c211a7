"""What a change of one member leads to in its consumer group.

Owns the way from a member before and after its request to the records of the group's next epoch, of
the target assignment and of what the member owns then. Both protocols go this way:
ConsumerGroupHeartbeat and, in a group that is being migrated, JoinGroup. Must not change the group
(replay does), or answer. Invariants: the group's epoch grows with every change of subscriptions,
topics or members; the target assignment is never ahead of it, and gives each partition to one
member at most (asserted every time).

`Reconciliation` is how a member gets from what it owns to what it shall own. It does not know other
members; `is_released` says whether another one still owns a partition. Invariants: a member gets a
partition only when no other member owns it; it goes to the epoch of the target assignment only when
it has nothing to give back. Transitions of a member's state:

    STABLE, UNRELEASED_PARTITIONS -> UNREVOKED_PARTITIONS   it owns what it shall not
    UNREVOKED_PARTITIONS -> (the next step, whatever it is) it has given back everything asked for
    any -> UNRELEASED_PARTITIONS                            another member owns what it shall own
    any -> STABLE                                           it has all of the target
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from moldau.broker.coordinator.core.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    SetTimer,
)
from moldau.broker.coordinator.group.core.assignors import (
    ASSIGNORS,
    GroupSpec,
    MemberSpec,
    check_assignment,
)
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup, GroupContext
from moldau.broker.coordinator.group.core.consumer_member import (
    NOTHING_OWNED,
    Assignment,
    ConsumerGroupMember,
    MemberState,
    OwnedPartitions,
    ResolvedRegularExpression,
    current_assignment_record,
    group_epoch_record,
    member_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from moldau.broker.coordinator.group.core.context import ClientInfo, ConsumerTimer, Refusal
from moldau.broker.coordinator.group.core.regular_expressions import (
    Change,
    RegularExpressions,
)
from moldau.metadata.image import MetadataImage
from moldau.protocol.coordinator_records.consumer_groups import ConsumerGroupPartitionMetadataKey
from moldau.protocol.errors import ErrorCode


class Reconciliation(NamedTuple):
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
        """The member after the step; the same object when there is nothing to do. Raises: Refusal,
        FENCED_MEMBER_EPOCH: its state is not one this coordinator knows.
        """
        if member.state is MemberState.UNKNOWN and (self.owned is None or any(self.owned.values())):
            raise Refusal(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The member is in a state this coordinator does not know; it must give up all "
                "its partitions and join again.",
            )
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            stays = self._still_has(member.pending_revocation)
        else:
            stays = member.is_reconciled_to(self.target_epoch)
        if not stays:
            return self._toward_target(member, member.member_epoch)
        return self._without_unsubscribed(member) if self.has_subscription_changed else member

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


@dataclass(slots=True)
class MemberUpdate:
    """One member's change, from what it was to what it is when the records are replayed.

    Attributes:
        old: the member as the group has it, or, of a static member that takes over a place, as the
            records so far make it; a new member has epoch 0 and owns nothing.
        new: with what the request says.
        replaced_id: the id of the member whose place it takes.
        owned: the partitions that it says it owns; None: it does not say.
        result: the records, timers and look-ups that it leads to.
    """

    group: ConsumerGroup
    old: ConsumerGroupMember
    new: ConsumerGroupMember
    client: ClientInfo
    now_ms: float
    owned: Mapping[UUID, frozenset[int]] | None
    replaced_id: str | None = None
    result: CoordinatorResult = field(default_factory=CoordinatorResult)
    group_epoch: int = 0
    has_subscription_changed: bool = False


@dataclass(slots=True, eq=False)
class MemberUpdates:
    """Carries out `MemberUpdate`s for the groups of one coordinator partition."""

    _context: GroupContext
    _expressions: RegularExpressions

    def tell(self, update: MemberUpdate) -> None:
        """Write the member's metadata, and the group's new epoch if they mean one. Raises: Refusal,
        INVALID_REGULAR_EXPRESSION.
        """
        group, old, new = update.group, update.old, update.new
        is_known = old.member_id in group.members or update.replaced_id is not None
        changed = False
        if new is not old or not is_known:
            update.result.records.append(member_record(group.group_id, new))
            changed = new.subscribed_topic_names != old.subscribed_topic_names
        change = self._expressions.plan(
            group, old, new, update.client, update.now_ms, update.result
        )
        update.has_subscription_changed = changed or change is not Change.NONE
        update.group_epoch = group.group_epoch
        needs_epoch = changed or change is Change.UPDATED_AND_RESOLVED
        if update.has_subscription_changed or group.needs_metadata_refresh or not is_known:
            self._refresh_epoch(update, needs_epoch=needs_epoch)

    def refresh_epoch(self, update: MemberUpdate) -> None:
        """See whether the subscribed topics have changed, for a member that said nothing new."""
        update.group_epoch = update.group.group_epoch
        if update.group.needs_metadata_refresh:
            self._refresh_epoch(update, needs_epoch=False)

    def _refresh_epoch(self, update: MemberUpdate, *, needs_epoch: bool) -> None:
        group = update.group
        is_member = update.old.member_id in group.members
        old = update.old if is_member else group.members.get(update.replaced_id or "")
        names = group.subscribed_without([] if old is None else [old], update.new)
        metadata_hash = self._context.metadata_hash(names)
        # A member without subscriptions is in a new group from its first epoch on; one with
        # subscriptions makes the next epoch, as in Apache Kafka 4.x.
        update.group_epoch = group.group_epoch or 1
        if needs_epoch or metadata_hash != group.metadata_hash:
            update.group_epoch += 1
        if update.group_epoch > group.group_epoch:
            update.result.records.append(
                group_epoch_record(group.group_id, update.group_epoch, metadata_hash)
            )
            self._context.count("consumer-group-rebalance", 1)
        group.metadata_refreshed(update.group_epoch)
        if group.has_partition_metadata_record:
            key = ConsumerGroupPartitionMetadataKey(group_id=group.group_id)
            update.result.records.append(CoordinatorRecord(key, None))

    def refresh_target(self, update: MemberUpdate) -> tuple[int, Assignment]:
        """The target assignment for the member and its epoch: a new one, if the group's epoch is
        newer and the last one was computed long enough ago (`consumer.assignment.interval.ms`).
        """
        group = update.group
        times = self._context.consumer_settings.of_group(
            self._context.metadata().configs, group.group_id
        )
        age_ms = update.now_ms - group.assignment_timestamp_ms
        # Below zero: the wall clock was set back, here or from one coordinator to the next.
        is_due = not 0 <= age_ms < times.assignment_interval_ms
        if group.assignment_epoch >= update.group_epoch or not is_due:
            return group.assignment_epoch, group.target_of(update.new)
        members = dict(group.members)
        if update.replaced_id is not None:
            del members[update.replaced_id]
        members[update.new.member_id] = update.new
        replaced = group.members.get(update.replaced_id or "") or group.members.get(
            update.old.member_id
        )
        assignor = group.preferred_assignor(replaced, update.new)
        settings = self._context.consumer_settings
        targets = self._compute_target(
            update, members, assignor if assignor in settings.assignors else settings.assignors[0]
        )
        return update.group_epoch, targets[update.new.member_id]

    def _compute_target(
        self, update: MemberUpdate, members: dict[str, ConsumerGroupMember], assignor_name: str
    ) -> dict[str, Assignment]:
        """The target assignment of the group's new epoch for `members`, as they are with what is
        about to be written; adds its records.
        """
        group, image = update.group, self._context.metadata()
        subscriptions = _Subscriptions(image, group.resolved)
        specs = {
            member_id: MemberSpec(
                member.instance_id, subscriptions.topic_ids(member), group.target_of(member)
            )
            for member_id, member in members.items()
        }
        topics = image.topics.topics_by_id
        subscriptions_by_identity = {id(spec.topic_ids): spec.topic_ids for spec in specs.values()}
        wanted: set[UUID] = set().union(*subscriptions_by_identity.values())
        spec = GroupSpec(specs, {topic_id: len(topics[topic_id].partitions) for topic_id in wanted})
        targets = ASSIGNORS[assignor_name](spec)
        check_assignment(spec, targets)
        update.result.records += [
            target_record(group.group_id, member_id, targets[member_id])
            for member_id in members
            if targets[member_id] != specs[member_id].target
        ]
        update.result.records.append(
            target_epoch_record(group.group_id, update.group_epoch, int(update.now_ms))
        )
        return targets

    def reconcile(self, update: MemberUpdate, target_epoch: int, target: Assignment) -> None:
        """Let the member take its next step toward the target; `update.new` is the member then.
        Raises: Refusal, FENCED_MEMBER_EPOCH.
        """
        group, member = update.group, update.new
        if not update.has_subscription_changed and member.is_reconciled_to(target_epoch):
            return
        own_ids = (None, member.member_id, update.replaced_id)
        step = Reconciliation(
            target_epoch=target_epoch,
            target=target,
            is_subscribed=self._subscription(group, member),
            has_subscription_changed=update.has_subscription_changed,
            is_released=lambda topic_id, index: group.owner_of(topic_id, index) in own_ids,
            owned=update.owned,
        )
        after = step.next_step(member)
        if after is member:
            return
        update.new = after
        update.result.records.append(current_assignment_record(group.group_id, after))
        if after.uses_classic_protocol:
            return
        key = ConsumerTimer("rebalance", group.group_id, after.member_id)
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            update.result.timers.append(SetTimer(key, after.rebalance_timeout_ms))
        else:
            update.result.timers.append(CancelTimer(key))

    def _subscription(
        self, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> Callable[[UUID], bool]:
        """Whether a member is subscribed to a topic; an expression may match very many of them."""
        topics = self._context.metadata().topics.topics_by_id
        names = member.subscribed_topic_names
        matched = frozenset[str]()
        if member.subscribed_topic_regex and member.subscribed_topic_regex in group.resolved:
            matched = group.resolved[member.subscribed_topic_regex].topic_names

        def is_subscribed(topic_id: UUID) -> bool:
            topic = topics.get(topic_id)
            return topic is not None and (topic.name in names or topic.name in matched)

        return is_subscribed


class _Subscriptions:
    """The topic ids that members are subscribed to; equal subscriptions give the same object."""

    def __init__(
        self, image: MetadataImage, resolved: Mapping[str, ResolvedRegularExpression]
    ) -> None:
        self._topics_by_name = image.topics.topics_by_name
        self._resolved = resolved
        self._known: dict[tuple[frozenset[str], str | None], frozenset[UUID]] = {}
        self._shared: dict[frozenset[UUID], frozenset[UUID]] = {}

    def topic_ids(self, member: ConsumerGroupMember) -> frozenset[UUID]:
        subscription = (member.subscribed_topic_names, member.subscribed_topic_regex)
        found = self._known.get(subscription)
        if found is None:
            names = member.subscribed_topic_names
            expression = member.subscribed_topic_regex
            if expression and expression in self._resolved:
                names |= self._resolved[expression].topic_names
            found = frozenset(
                self._topics_by_name[name].topic_id
                for name in names
                if name in self._topics_by_name
            )
            found = self._shared.setdefault(found, found)
            self._known[subscription] = found
        return found


def replacement_records(
    group: ConsumerGroup, old_member_id: str, new: ConsumerGroupMember
) -> list[CoordinatorRecord]:
    """A static member comes back under a new id: the old one ends, the new one has its place."""
    target = group.targets.get(old_member_id, {})
    return [
        *member_tombstones(group.group_id, old_member_id),
        member_record(group.group_id, new),
        target_record(group.group_id, new.member_id, target),
        current_assignment_record(group.group_id, new),
    ]
