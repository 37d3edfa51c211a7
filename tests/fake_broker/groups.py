"""All groups of a cluster: who coordinates them, and their committed offsets.

Owns offsets, transactional ones included, and which protocol a group uses. Must not run the
protocols: `group` and `consumer_group` do. Invariant: an offset of an open transaction is pending,
and invisible until the transaction's end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.protocol import ErrorCode
from tests.fake_broker.consumer_group import ConsumerGroup
from tests.fake_broker.group import ClassicGroup, GroupState, Offsets, StoredOffset

if TYPE_CHECKING:
    from tests.fake_broker.cluster import FakeCluster
    from tests.fake_broker.context import Context


@dataclass(eq=False, slots=True)
class FakeGroup:
    """A group id: members of one protocol or none, and its offsets."""

    group_id: str
    classic: ClassicGroup
    consumer: ConsumerGroup
    offsets: Offsets = field(default_factory=dict)
    pending: dict[int, Offsets] = field(default_factory=dict)
    """The offsets by producer id."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no member."""
        return not self.classic.members and not self.consumer.members

    @property
    def type_name(self) -> str:
        """Kafka's name of the protocol."""
        return "Consumer" if self.consumer.members else "Classic"

    @property
    def state_name(self) -> str:
        """Kafka's name of the state."""
        if self.consumer.members:
            return self.consumer.state_name
        return self.classic.state.value

    def is_pending(self, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset for it."""
        return any((topic, partition) in offsets for offsets in self.pending.values())


class Groups:
    """The groups, by id."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._groups: dict[str, FakeGroup] = {}
        self._next_member_number = 0

    def get(self, group_id: str) -> FakeGroup:
        """A group, made when it is new."""
        group = self._groups.get(group_id)
        if group is None:
            classic = ClassicGroup(
                group_id,
                self._cluster.grew,
                self._cluster.settings.group_initial_rebalance_delay_ms,
            )
            consumer = ConsumerGroup(self._cluster, group_id)
            group = self._groups[group_id] = FakeGroup(group_id, classic, consumer)
        return group

    def find(self, group_id: str) -> FakeGroup | None:
        """A group that exists."""
        return self._groups.get(group_id)

    def all(self) -> list[FakeGroup]:
        """Every group."""
        return list(self._groups.values())

    def delete(self, group_id: str) -> None:
        """Forget one."""
        self._groups.pop(group_id)

    def committed(self, group_id: str, topic: str, partition: int = 0) -> int | None:
        """A committed offset, for tests."""
        group = self._groups.get(group_id)
        stored = group.offsets.get((topic, partition)) if group else None
        return stored.offset if stored else None

    def set_committed(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        """Commit an offset, for tests."""
        self.get(group_id).offsets[topic, partition] = StoredOffset(offset)

    def new_member_id(self, client_id: str | None) -> str:
        """An id that no member has had."""
        self._next_member_number += 1
        return f"{client_id or 'member'}-{self._next_member_number:04}"

    def here(self, context: Context, group_id: str) -> ErrorCode:
        """NOT_COORDINATOR unless the asked broker coordinates the group."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if self._cluster.coordinator_of("group", group_id) != context.node.node_id:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    def end_transaction(self, group_id: str, producer_id: int, *, commit: bool) -> None:
        """Make a transaction's offsets visible, or drop them."""
        group = self.get(group_id)
        pending = group.pending.pop(producer_id, {})
        if commit:
            group.offsets.update(pending)

    def unload(self, group_id: str) -> None:
        """Another broker coordinates it: waiting requests get that answer, members stay."""
        group = self._groups.get(group_id)
        if group is None:
            return
        classic = group.classic
        classic.close(ErrorCode.NOT_COORDINATOR)
        is_rebalancing = classic.state in (GroupState.PREPARING, GroupState.COMPLETING)
        if is_rebalancing:
            classic.state = GroupState.STABLE
            classic.prepare()
        for member in classic.members.values():
            classic.touch(member)

    def close(self) -> None:
        """Stop all timers."""
        for group in self._groups.values():
            group.classic.close(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            group.consumer.close()
