"""Where each broker's partitions are: indexes over the image, so that no decision scans all of it.

Owns: the partitions by ISR member, by eligible leader, by leader, and those being reassigned. Must
not: decide, or know anything that the image does not say. Invariant: equal to what a scan over the
image finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from moldau.metadata.image import NO_LEADER, PartitionRegistration, TopicImage, TopicsDelta
from moldau.metadata.steps import Steps

PartitionKey: TypeAlias = tuple[UUID, int]
_Partitions: TypeAlias = dict[UUID, set[int]]

_NOWHERE: _Partitions = {}


@dataclass(slots=True, repr=False)
class PartitionIndex:
    """Partitions by broker. Iterators give topic id and partition index, in a fixed order."""

    _by_isr_member: dict[int, _Partitions] = field(default_factory=dict)
    _by_elr_member: dict[int, _Partitions] = field(default_factory=dict)
    _by_leader: dict[int, _Partitions] = field(default_factory=dict)
    _imbalanced: _Partitions = field(default_factory=dict)
    _reassigning: _Partitions = field(default_factory=dict)

    def replay(self, delta: TopicsDelta) -> Steps[None]:
        for topic in delta.deleted.values():
            for partition_index, partition in topic.partitions.items():
                self._move(topic.topic_id, partition_index, partition, None)
                yield
        for changed in delta.changed.values():
            old_partitions = changed.image.partitions
            for partition_index, partition in changed.partition_changes.items():
                old = old_partitions.get(partition_index)
                self._move(changed.topic_id, partition_index, old, partition)
                yield

    def move(self, old: Mapping[UUID, TopicImage], new: Mapping[UUID, TopicImage]) -> None:
        """Move from one image's topics to another's; what both share costs next to nothing."""
        for topic_id, old_topic in old.items():
            new_topic = new.get(topic_id)
            if old_topic is not new_topic:
                self._move_topic(topic_id, old_topic, new_topic)
        for topic_id, new_topic in new.items():
            if topic_id not in old:
                self._move_topic(topic_id, None, new_topic)

    def _move_topic(
        self, topic_id: UUID, old_topic: TopicImage | None, new_topic: TopicImage | None
    ) -> None:
        old_partitions = {} if old_topic is None else old_topic.partitions
        new_partitions = {} if new_topic is None else new_topic.partitions
        for partition_index in {**old_partitions, **new_partitions}:
            before = old_partitions.get(partition_index)
            after = new_partitions.get(partition_index)
            if before is not after:
                self._move(topic_id, partition_index, before, after)

    def _move(
        self,
        topic_id: UUID,
        partition_index: int,
        old: PartitionRegistration | None,
        new: PartitionRegistration | None,
    ) -> None:
        key = (topic_id, partition_index)
        old_isr = () if old is None else old.isr
        new_isr = () if new is None else new.isr
        if old_isr != new_isr:
            _move_members(self._by_isr_member, key, old_isr, new_isr)
        old_elr = () if old is None else old.elr
        new_elr = () if new is None else new.elr
        if old_elr != new_elr:
            _move_members(self._by_elr_member, key, old_elr, new_elr)
        old_leader = () if old is None else (old.leader,)
        new_leader = () if new is None else (new.leader,)
        if old_leader != new_leader:
            _move_members(self._by_leader, key, old_leader, new_leader)
        was_imbalanced = old is not None and not old.has_preferred_leader
        is_imbalanced = new is not None and not new.has_preferred_leader
        _mark(self._imbalanced, key, was_imbalanced, is_imbalanced)
        was_reassigning = old is not None and old.is_reassigning
        _mark(self._reassigning, key, was_reassigning, new is not None and new.is_reassigning)

    def leads_anything(self, broker_id: int) -> bool:
        return bool(self._by_leader.get(broker_id))

    def with_isr_member(self, broker_id: int) -> Iterator[PartitionKey]:
        return _iterate(self._by_isr_member.get(broker_id, _NOWHERE))

    def with_elr_member(self, broker_id: int) -> Iterator[PartitionKey]:
        return _iterate(self._by_elr_member.get(broker_id, _NOWHERE))

    def without_leader(self) -> Iterator[PartitionKey]:
        return _iterate(self._by_leader.get(NO_LEADER, _NOWHERE))

    def without_preferred_leader(self) -> Iterator[PartitionKey]:
        """Partitions whose first replica does not lead."""
        return _iterate(self._imbalanced)

    def reassigning(self) -> Iterator[PartitionKey]:
        return _iterate(self._reassigning)

    def members(self) -> list[int]:
        """Every broker that leads something or is in an ISR, in order."""
        brokers = {*self._by_isr_member, *self._by_leader} - {NO_LEADER}
        return sorted(brokers)


def _iterate(partitions: _Partitions) -> Iterator[PartitionKey]:
    for topic_id, indexes in partitions.items():
        for partition_index in sorted(indexes):
            yield topic_id, partition_index


def _move_members(
    by_member: dict[int, _Partitions], key: PartitionKey, old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    for broker_id in old:
        if broker_id not in new:
            partitions = by_member[broker_id]
            _mark(partitions, key, True, False)
            if not partitions:
                del by_member[broker_id]
    for broker_id in new:
        if broker_id not in old:
            _mark(by_member.setdefault(broker_id, {}), key, False, True)


def _mark(partitions: _Partitions, key: PartitionKey, was_in: bool, is_in: bool) -> None:
    if was_in == is_in:
        return
    topic_id, partition_index = key
    if is_in:
        partitions.setdefault(topic_id, set()).add(partition_index)
        return
    indexes = partitions[topic_id]
    indexes.discard(partition_index)
    if not indexes:
        del partitions[topic_id]
