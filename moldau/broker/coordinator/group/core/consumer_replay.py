"""Replay of the records of consumer groups into their table.

Owns: the meaning of record types 3 to 8 and 16. Must not: decide anything. Invariant: the order in
which a compacted log shows the records of a group does not matter for what it is in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.consumer_group import (
    ConsumerGroup,
    ResolvedRegularExpression,
)
from moldau.broker.coordinator.group.core.consumer_member import ConsumerGroupMember
from moldau.protocol import coordinator_records as kinds


def replay(
    groups: dict[str, Any],
    topic_index: dict[str, set[str]],
    topic_id_of: Callable[[str], UUID | None],
    record: CoordinatorRecord,
    *,
    is_live: bool,
) -> None:
    """Take in one record.

    Args:
        is_live: it has just been decided here; then a partition that gets a second owner is a
            bug. While a log is read it may be what compaction left of a longer story.
    """
    key: Any = record.key
    group = groups.get(key.group_id)
    if group is not None and group.kind != "consumer":
        # A classic group gives way to what was written behind its end: a simple one that offsets
        # have kept, or one whose end compaction has taken with it. What ends a consumer group that
        # has become classic again says nothing any more.
        group = None
    if group is None:
        if record.value is None:
            return
        group = groups[key.group_id] = ConsumerGroup(key.group_id, topic_index, topic_id_of)
    if record.value is None and type(key) is kinds.ConsumerGroupMetadataKey:
        group.forget_subscriptions()
        del groups[key.group_id]
        return
    apply(group, record, is_live=is_live)


def apply(group: ConsumerGroup, record: CoordinatorRecord, *, is_live: bool) -> None:
    """Take one record into its group."""
    _HANDLERS[type(record.key)](group, record.key, record.value, is_live)


def _group_metadata(group: ConsumerGroup, _key: Any, value: Any, _is_live: bool) -> None:
    if value is not None:
        group.group_epoch = value.epoch
        group.metadata_hash = value.metadata_hash


def _partition_metadata(group: ConsumerGroup, _key: Any, value: Any, _is_live: bool) -> None:
    group.has_partition_metadata_record = value is not None


def _member_metadata(group: ConsumerGroup, key: Any, value: Any, is_live: bool) -> None:
    if value is None:
        group.remove_member(key.member_id)
        return
    member = group.members.get(key.member_id) or ConsumerGroupMember(key.member_id)
    group.update_member(member.with_metadata(value), is_live=is_live)


def _target_epoch(group: ConsumerGroup, _key: Any, value: Any, _is_live: bool) -> None:
    group.assignment_epoch = 0 if value is None else value.assignment_epoch
    group.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp


def _target(group: ConsumerGroup, key: Any, value: Any, _is_live: bool) -> None:
    if value is None:
        group.targets.pop(key.member_id, None)
        return
    target: dict[UUID, frozenset[int]] = {
        topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
    }
    group.targets[key.member_id] = target


def _current_assignment(group: ConsumerGroup, key: Any, value: Any, is_live: bool) -> None:
    member = group.members.get(key.member_id)
    if value is None:
        if member is not None:
            group.update_member(member.without_assignment(), is_live=is_live)
        return
    member = member or ConsumerGroupMember(key.member_id)
    group.update_member(member.with_current_assignment(value), is_live=is_live)


def _regular_expression(group: ConsumerGroup, key: Any, value: Any, _is_live: bool) -> None:
    resolved = None
    if value is not None:
        resolved = ResolvedRegularExpression(
            frozenset(value.topics), value.version, value.timestamp
        )
    group.set_resolved(key.regular_expression, resolved)


_HANDLERS: Final[dict[type, Callable[[ConsumerGroup, Any, Any, bool], None]]] = {
    kinds.ConsumerGroupMetadataKey: _group_metadata,
    kinds.ConsumerGroupPartitionMetadataKey: _partition_metadata,
    kinds.ConsumerGroupMemberMetadataKey: _member_metadata,
    kinds.ConsumerGroupTargetAssignmentMetadataKey: _target_epoch,
    kinds.ConsumerGroupTargetAssignmentMemberKey: _target,
    kinds.ConsumerGroupCurrentMemberAssignmentKey: _current_assignment,
    kinds.ConsumerGroupRegularExpressionKey: _regular_expression,
}

RECORD_KEYS: Final = frozenset(_HANDLERS)
"""The classes of the keys of these records."""
