"""A consumer group (KIP-848): what its records say, and what follows from them.

Owns members, epochs, target assignment, resolved regular expressions, and the counts and indexes
that can be computed from them; the replay of record types 3 to 8 and 16. Must not decide anything
about members, or write records other than its own end. Invariants: while records are replayed as
they are written, no partition has two owners; `take_stock` puts right what a log read during
compaction shows for a moment; the order in which a compacted log shows the records of a group does
not matter for what the group is in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias
from uuid import UUID

from moldau.broker.coordinator.core.kept_memory import KeptMemory
from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    NOTHING,
    STATIC_LEAVE_EPOCH,
    Assignment,
    ConsumerGroupMember,
    MemberState,
    OwnedPartitions,
    ResolvedRegularExpression,
    member_tombstones,
)
from moldau.broker.coordinator.group.core.context import (
    CONSUMER_PROTOCOL_TYPE,
    GROUP_BYTES,
    NAME_BYTES,
    PARTITION_BYTES,
    ConsumerGroupSettings,
    GroupSettings,
    Refusal,
)
from moldau.broker.coordinator.group.core.metadata_hash import TopicHashes
from moldau.broker.coordinator.group.core.offset_store import OffsetStore
from moldau.metadata.image import MetadataImage
from moldau.protocol.coordinator_records import consumer_groups as kinds
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID

_MIN_OFFSET_COMMIT_VERSION: Final = 9
"""The first version of OffsetCommit that members of the new protocol may use."""


RecordKey: TypeAlias = (
    kinds.ConsumerGroupMetadataKey
    | kinds.ConsumerGroupPartitionMetadataKey
    | kinds.ConsumerGroupMemberMetadataKey
    | kinds.ConsumerGroupTargetAssignmentMetadataKey
    | kinds.ConsumerGroupTargetAssignmentMemberKey
    | kinds.ConsumerGroupCurrentMemberAssignmentKey
    | kinds.ConsumerGroupRegularExpressionKey
)
"""The keys of a consumer group's records."""


class ConsumerGroup:
    """One group. States: Empty, Assigning, Reconciling, Stable; they follow from the records.

    Args:
        topic_index: ids of the groups subscribed to a topic, by its name; shared by the partition's
            groups, and kept up to date.
        topic_id_of: the id of the topic of a name, None when there is none.
    """

    kind: Final = "consumer"
    protocol_type: Final = CONSUMER_PROTOCOL_TYPE

    def __init__(
        self,
        group_id: str,
        topic_index: dict[str, set[str]],
        topic_id_of: Callable[[str], UUID | None] = lambda _name: None,
    ) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Assignment] = {}
        self.resolved: dict[str, ResolvedRegularExpression] = {}
        self.has_partition_metadata_record = False
        self.owners: dict[UUID, dict[int, str]] = {}
        self.regex_counts: Counter[str] = Counter()
        self.assignor_counts: Counter[str] = Counter()
        self.classic_protocol_counts: Counter[str] = Counter()
        self.classic_member_count = 0
        self.is_refresh_requested = True
        self._refreshed_epoch = self.group_epoch
        self._topic_counts: Counter[str] = Counter()
        self._topic_index = topic_index
        self._topic_id_of = topic_id_of
        self._members_bytes = 0
        self._target_count = 0
        self._resolved_count = 0

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about, without its offsets."""
        return (
            GROUP_BYTES
            + len(self.group_id)
            + self._members_bytes
            + PARTITION_BYTES * self._target_count
            + NAME_BYTES * self._resolved_count
        )

    def member_bytes(self, member_id: str, instance_id: str | None) -> int:
        """What the member with that id, or else of that instance, takes; 0 without one."""
        member = self.members.get(member_id or self.static_members.get(instance_id or "", ""))
        return 0 if member is None else member.size_bytes

    # -- what follows from the records -----------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        epoch = self.assignment_epoch
        is_stable = all(member.is_reconciled_to(epoch) for member in self.members.values())
        return "Stable" if is_stable else "Reconciling"

    @property
    def needs_metadata_refresh(self) -> bool:
        """Whether subscribed topics may have changed since the hash was last computed, or what was
        written then has been lost.
        """
        return self.is_refresh_requested or self.group_epoch < self._refreshed_epoch

    def metadata_refreshed(self, group_epoch: int) -> None:
        """The hash has been computed; with it the group is to get this epoch."""
        self.is_refresh_requested = False
        self._refreshed_epoch = group_epoch

    @property
    def subscribed_topic_names(self) -> Iterable[str]:
        """Every topic that members are subscribed to, by name or by expression."""
        return self._topic_counts.keys()

    def static_member(self, instance_id: str) -> ConsumerGroupMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def check_size(self, joining_id: str, limit: int) -> None:
        """Raise GROUP_MAX_SIZE_REACHED where there is no room for one more member."""
        if len(self.members) >= limit and joining_id not in self.members:
            raise Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group is full: it has {limit} members."
            )

    def known(self, member_id: str, instance_id: str | None = None) -> ConsumerGroupMember:
        """The member with that id, and with that instance id if one is named. Raises: Refusal,
        UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
        """
        if instance_id is None:
            member = self.members.get(member_id)
            if member is None:
                raise Refusal(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Group {self.group_id} has no member {member_id}."
                )
            return member
        member = self.static_member(instance_id)
        if member is None:
            raise Refusal(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"No member of group {self.group_id} has instance id {instance_id}.",
            )
        if member.member_id != member_id:
            raise Refusal(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Instance id {instance_id} is no longer {member_id}'s but {member.member_id}'s.",
            )
        return member

    def released_static_member(
        self, instance_id: str, member_id: str
    ) -> ConsumerGroupMember | None:
        """The member whose place a joining static member may take, itself included, or None when
        the instance id has no member. Raises: Refusal, UNRELEASED_INSTANCE_ID: another member has
        the instance id, and has not left.
        """
        member = self.static_member(instance_id)
        if (
            member is not None
            and member.member_id != member_id
            and not member.uses_classic_protocol
            and member.member_epoch != STATIC_LEAVE_EPOCH
        ):
            raise Refusal(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Instance id {instance_id} still belongs to {member.member_id}, so {member_id} "
                "cannot have it.",
            )
        return member

    def target_of(self, member: ConsumerGroupMember) -> Assignment:
        """What a member, or the one whose instance id it takes over, shall own."""
        member_id = member.member_id
        if member.instance_id is not None:
            member_id = self.static_members.get(member.instance_id, member_id)
        return self.targets.get(member_id, NOTHING)

    def owner_of(self, topic_id: UUID, partition: int) -> str | None:
        """The member that owns a partition, or still has to give it back."""
        return self.owners.get(topic_id, {}).get(partition)

    def preferred_assignor(
        self, old: ConsumerGroupMember | None = None, new: ConsumerGroupMember | None = None
    ) -> str | None:
        """The assignor that most members ask for, as if `old` had become `new`."""
        counts = self.assignor_counts
        if new is not None:
            counts = Counter(counts)
            _count(counts, None if old is None else old.server_assignor, -1)
            _count(counts, new.server_assignor, 1)
        return max(counts, key=lambda name: (counts[name], name), default=None)

    def subscribed_without(
        self, removed: Iterable[ConsumerGroupMember], added: ConsumerGroupMember | None = None
    ) -> set[str]:
        """Subscribed topics had some members left and one come; expressions as resolved so far."""
        names: Counter[str] = Counter()
        regexes: Counter[str] = Counter()
        for member in removed:
            names.subtract(member.subscribed_topic_names)
            regexes.subtract(filter(None, [member.subscribed_topic_regex]))
        if added is not None:
            names.update(added.subscribed_topic_names)
            regexes.update(filter(None, [added.subscribed_topic_regex]))
        for expression, change in regexes.items():
            before = self.regex_counts[expression]
            if expression in self.resolved and (before > 0) != (before + change > 0):
                for name in self.resolved[expression].topic_names:
                    names[name] += 1 if before == 0 else -1
        subscribed = set(self._topic_counts)
        for name, change in names.items():
            if self._topic_counts[name] + change > 0:
                subscribed.add(name)
            else:
                subscribed.discard(name)
        return subscribed

    def supports_classic_protocols(self, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can join: one that all classic members have."""
        return any(
            self.classic_protocol_counts[name] == self.classic_member_count for name in names
        )

    def all_use_classic_protocol_without(self, leaving: Iterable[ConsumerGroupMember]) -> bool:
        leaving = list(leaving)
        classic = self.classic_member_count - sum(each.uses_classic_protocol for each in leaving)
        return classic == len(self.members) - len(leaving)

    def waits_for_unreleased(self, member: ConsumerGroupMember) -> bool:
        """Whether another member still owns a partition of the target of `member`."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            index not in member.assigned.get(topic_id, {})
            and self.owner_of(topic_id, index) is not None
            for topic_id, partitions in self.targets.get(member.member_id, NOTHING).items()
            for index in partitions
        )

    # -- what every kind of group answers --------------------------------------------------------

    def validate_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_or_member_epoch: int,
        *,
        is_transactional: bool,
        api_version: int,
    ) -> ErrorCode:
        """Whether a member may commit offsets; an older epoch than the member's is looked at per
        partition (`partition_commit_error`, KIP-1251).
        """
        if generation_or_member_epoch < 0 and not self.members:
            return ErrorCode.NONE
        if (
            is_transactional
            and generation_or_member_epoch == -1
            and not member_id
            and group_instance_id is None
        ):
            # A transactional producer that does not say which member it works for.
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if (
            not is_transactional
            and not member.uses_classic_protocol
            and api_version < _MIN_OFFSET_COMMIT_VERSION
        ):
            return ErrorCode.UNSUPPORTED_VERSION
        if generation_or_member_epoch > member.member_epoch:
            return _stale(member)
        return ErrorCode.NONE

    def partition_commit_error(
        self,
        member_id: str,
        generation_or_member_epoch: int,
        topic_id: UUID,
        topic_name: str,
        partition_index: int,
        *,
        is_transactional: bool,
    ) -> ErrorCode:
        """Whether a commit counts for one partition: under an older epoch only if the member has
        had it since before that epoch, or in it; in a transaction never if it is another's.
        `topic_id` is all zeros when the request has only the name.
        """
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.NONE
        is_current = generation_or_member_epoch == member.member_epoch
        if is_current and not is_transactional:
            return ErrorCode.NONE
        found = self._topic_id_of(topic_name) if topic_id == ZERO_UUID else topic_id
        epoch = None if found is None else member.epoch_of(found, partition_index)
        if is_current:
            # Its epoch is no proof: a member may know its new epoch before it has stopped with the
            # partitions that it lost with it.
            owner = None if found is None else self.owner_of(found, partition_index)
            return ErrorCode.NONE if owner in (None, member_id) else _stale(member)
        if epoch is None or generation_or_member_epoch < epoch:
            return _stale(member)
        return ErrorCode.NONE

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether a member may read offsets; without a member it is an administrator's request."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.member_epoch else _stale(member)

    def validate_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def validate_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._topic_counts

    def expiration_base_ms(self, commit_timestamp_ms: float) -> float | None:
        return commit_timestamp_ms

    def tombstones(self) -> list[CoordinatorRecord]:
        records = [
            record
            for member_id in self.members
            for record in member_tombstones(self.group_id, member_id)
        ]
        keys: list[RecordKey] = [
            kinds.ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id),
            *(
                kinds.ConsumerGroupRegularExpressionKey(
                    group_id=self.group_id, regular_expression=expression
                )
                for expression in self.resolved
            ),
            kinds.ConsumerGroupPartitionMetadataKey(group_id=self.group_id),
            kinds.ConsumerGroupMetadataKey(group_id=self.group_id),
        ]
        return records + [CoordinatorRecord(key, None) for key in keys]

    # -- what records change ---------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, *, is_live: bool) -> None:
        """Take in a record with a RecordKey, but for the end of the group.

        Args:
            is_live: it has just been decided here; then a partition that gets a second owner is a
                bug. While a log is read it may be what compaction left of a longer story.
        """
        key = record.key
        value: Any = record.value
        match key:
            case kinds.ConsumerGroupMetadataKey():
                if value is not None:
                    self.group_epoch = value.epoch
                    self.metadata_hash = value.metadata_hash
            case kinds.ConsumerGroupPartitionMetadataKey():
                self.has_partition_metadata_record = value is not None
            case kinds.ConsumerGroupMemberMetadataKey():
                if value is None:
                    self.remove_member(key.member_id)
                else:
                    member = self._replayed(key.member_id).with_metadata(value)
                    self.update_member(member, is_live=is_live)
            case kinds.ConsumerGroupTargetAssignmentMetadataKey():
                self.assignment_epoch = 0 if value is None else value.assignment_epoch
                self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp
            case kinds.ConsumerGroupTargetAssignmentMemberKey():
                self._target_count -= _count_of(self.targets.pop(key.member_id, NOTHING))
                if value is not None:
                    target = self.targets[key.member_id] = {
                        topic.topic_id: frozenset(topic.partitions)
                        for topic in value.topic_partitions
                    }
                    self._target_count += _count_of(target)
            case kinds.ConsumerGroupCurrentMemberAssignmentKey():
                if value is not None:
                    member = self._replayed(key.member_id).with_current_assignment(value)
                    self.update_member(member, is_live=is_live)
                elif key.member_id in self.members:
                    member = self.members[key.member_id].without_assignment()
                    self.update_member(member, is_live=is_live)
            case kinds.ConsumerGroupRegularExpressionKey():
                resolved = None
                if value is not None:
                    resolved = ResolvedRegularExpression(
                        frozenset(value.topics), value.version, value.timestamp
                    )
                self.set_resolved(key.regular_expression, resolved)

    def _replayed(self, member_id: str) -> ConsumerGroupMember:
        return self.members.get(member_id) or ConsumerGroupMember(member_id)

    def update_member(self, member: ConsumerGroupMember, *, is_live: bool = True) -> None:
        old = self.members.get(member.member_id)
        self._members_bytes += member.size_bytes
        if old is not None:
            self._members_bytes -= old.size_bytes
            self._disown(old)
            if _told(old) != _told(member):
                self._count_member(old, -1)
                self._count_member(member, 1)
        else:
            self._count_member(member, 1)
        self.members[member.member_id] = member
        self._own(member, is_live=is_live)

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._members_bytes -= member.size_bytes
            self._disown(member)
            self._count_member(member, -1)

    def set_resolved(self, expression: str, resolved: ResolvedRegularExpression | None) -> None:
        """Set, or with None forget, which topics an expression stands for."""
        old = self.resolved.get(expression)
        is_used = self.regex_counts[expression] > 0
        self._resolved_count += 0 if resolved is None else 1 + len(resolved.topic_names)
        self._resolved_count -= 0 if old is None else 1 + len(old.topic_names)
        if resolved is None:
            self.resolved.pop(expression, None)
        else:
            self.resolved[expression] = resolved
        if is_used:
            new_names = frozenset() if resolved is None else resolved.topic_names
            old_names = frozenset() if old is None else old.topic_names
            for name in new_names - old_names:
                self._count_topic(name, 1)
            for name in old_names - new_names:
                self._count_topic(name, -1)

    def take_stock(self) -> None:
        """After loading: compute the owners from the members. If two claim the same partition, the
        one of the newer epoch owns it, and the other waits for it. One of them may have left, and
        compaction has removed its tombstone before this replica had it.
        """
        self.owners = {}
        newest_last = sorted(self.members.values(), key=lambda each: each.member_epoch)
        for member in reversed(newest_last):
            rightful = self._without_claims(member)
            self.members[member.member_id] = rightful
            self._own(rightful, is_live=False)

    def _without_claims(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """The member without partitions that another one owns."""
        claimed = any(
            self.owner_of(topic_id, index) is not None
            for topic_id, partitions in member.may_read.items()
            for index in partitions
        )
        if not claimed:
            return member
        is_stable = member.state is MemberState.STABLE
        return replace(
            member,
            assigned=self._unowned(member.assigned),
            pending_revocation=self._unowned(member.pending_revocation),
            state=MemberState.UNRELEASED_PARTITIONS if is_stable else member.state,
        )

    def _unowned(self, owned: OwnedPartitions) -> OwnedPartitions:
        left = {
            topic_id: {
                index: epoch
                for index, epoch in partitions.items()
                if self.owner_of(topic_id, index) is None
            }
            for topic_id, partitions in owned.items()
        }
        return {topic_id: partitions for topic_id, partitions in left.items() if partitions}

    def forget_subscriptions(self) -> None:
        """The group goes: take it out of the shared index."""
        for name in list(self._topic_counts):
            self._count_topic(name, -self._topic_counts[name])

    def _own(self, member: ConsumerGroupMember, *, is_live: bool) -> None:
        owned = chain(member.assigned.items(), member.pending_revocation.items())
        for topic_id, partitions in owned:
            owners = self.owners.setdefault(topic_id, {})
            for index in partitions:
                previous = owners.get(index)
                if is_live and previous is not None:
                    raise AssertionError(
                        f"{topic_id}-{index} of group {self.group_id} goes to {member.member_id}, "
                        f"but {previous} still owns it"
                    )
                owners[index] = member.member_id

    def _disown(self, member: ConsumerGroupMember) -> None:
        owned = chain(member.assigned.items(), member.pending_revocation.items())
        for topic_id, partitions in owned:
            owners = self.owners.get(topic_id)
            if owners is None:
                continue
            for index in partitions:
                if owners.get(index) == member.member_id:
                    del owners[index]
            if not owners:
                del self.owners[topic_id]

    def _count_member(self, member: ConsumerGroupMember, change: int) -> None:
        instance_id = member.instance_id
        if instance_id is not None:
            if change > 0:
                self.static_members[instance_id] = member.member_id
            elif self.static_members.get(instance_id) == member.member_id:
                del self.static_members[instance_id]
        _count(self.assignor_counts, member.server_assignor, change)
        if member.classic is not None:
            self.classic_member_count += change
            for name in {name for name, _metadata in member.classic.protocols}:
                _count(self.classic_protocol_counts, name, change)
        for topic in member.subscribed_topic_names:
            self._count_topic(topic, change)
        expression = member.subscribed_topic_regex
        if expression:
            was_used = self.regex_counts[expression] > 0
            _count(self.regex_counts, expression, change)
            is_used = self.regex_counts[expression] > 0
            if was_used != is_used and expression in self.resolved:
                for topic in self.resolved[expression].topic_names:
                    self._count_topic(topic, change)

    def _count_topic(self, name: str, change: int) -> None:
        before = self._topic_counts[name]
        _count(self._topic_counts, name, change)
        if before + change <= 0:
            subscribed = self._topic_index.get(name)
            if subscribed is not None:
                subscribed.discard(self.group_id)
                if not subscribed:
                    del self._topic_index[name]
        elif before <= 0:
            self._topic_index.setdefault(name, set()).add(self.group_id)


def _count_of(target: Assignment) -> int:
    return sum(map(len, target.values()))


def _told(member: ConsumerGroupMember) -> tuple[object, ...]:
    """What counts and indexes depend on."""
    return (
        member.instance_id,
        member.subscribed_topic_names,
        member.subscribed_topic_regex,
        member.server_assignor,
        member.classic,
    )


def _count(counts: Counter[str], name: str | None, change: int) -> None:
    if name:
        value = counts[name] + change
        if value > 0:
            counts[name] = value
        else:
            del counts[name]


def _stale(member: ConsumerGroupMember) -> ErrorCode:
    if member.uses_classic_protocol:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH


def owned_by_topic(owned: OwnedPartitions) -> Mapping[UUID, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


Groups: TypeAlias = dict[str, ClassicGroup | ConsumerGroup]
"""Every group of a partition, of either kind, by id."""


@dataclass(slots=True)
class GroupContext:
    """What the parts of one partition's state machine work with.

    Attributes:
        random_id: a new member id, a random UUID in its usual notation.
        count: counts events for the metrics, by name (`consumer-group-rebalance`).
    """

    settings: GroupSettings
    consumer_settings: ConsumerGroupSettings
    metadata: Callable[[], MetadataImage]
    random_id: Callable[[], str]
    count: Callable[[str, int], None]
    groups: Groups = field(default_factory=dict)
    offsets: OffsetStore = field(default_factory=OffsetStore)
    memory: KeptMemory = field(default_factory=KeptMemory)
    topic_hashes: TopicHashes = field(default_factory=TopicHashes)

    def metadata_hash(self, topic_names: Iterable[str]) -> int:
        return self.topic_hashes.of_group(topic_names, self.metadata())

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def existing_consumer_group(self, group_id: str) -> ConsumerGroup:
        """As `consumer_group`. Raises: Refusal, GROUP_ID_NOT_FOUND."""
        group = self.consumer_group(group_id)
        if group is None:
            reason = "not found" if group_id not in self.groups else "is not a consumer group"
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group
