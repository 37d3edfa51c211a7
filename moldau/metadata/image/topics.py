"""Topics and their partitions: image and delta.

Owns: lookup by id and by name, and the meaning of TopicRecord, PartitionRecord,
PartitionChangeRecord, RemoveTopicRecord and ClearElrRecord. Must not: decide changes. Invariants:
`topics_by_id` and `topics_by_name` hold the same TopicImage objects; a partition's leader epoch
grows by one with every PartitionChangeRecord that names a leader, its partition epoch with every
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple
from uuid import UUID

from moldau.metadata.features import partition_record_version
from moldau.metadata.image.overlay import layered
from moldau.metadata.image.values import (
    MIGRATING_DIRECTORY,
    NO_LEADER_CHANGE,
    InvalidMetadataRecord,
    PartitionRegistration,
)
from moldau.metadata.steps import Steps
from moldau.protocol import metadata_records as kinds
from moldau.protocol.schema import Message
from moldau.protocol.types import TopicPartition


class TopicImage(NamedTuple):
    """One topic; `partitions` by index."""

    name: str
    topic_id: UUID
    partitions: Mapping[int, PartitionRegistration]


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """All topics."""

    topics_by_id: Mapping[UUID, TopicImage] = field(default_factory=dict)
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)

    def partition(self, topic_id: UUID, partition_index: int) -> PartitionRegistration | None:
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(partition_index)

    def write(self, metadata_level: int) -> Iterator[tuple[Message, int]]:
        version = partition_record_version(metadata_level)
        for name in sorted(self.topics_by_name):
            topic = self.topics_by_name[name]
            yield kinds.TopicRecord(name=name, topic_id=topic.topic_id), 0
            for partition_index in sorted(topic.partitions):
                registration = topic.partitions[partition_index]
                yield (
                    partition_record(topic.topic_id, partition_index, registration, version),
                    version,
                )


def partition_record(
    topic_id: UUID, partition_index: int, registration: PartitionRegistration, version: int
) -> kinds.PartitionRecord:
    """The PartitionRecord that creates `registration`; what `version` cannot carry is left out."""
    return kinds.PartitionRecord(
        partition_id=partition_index,
        topic_id=topic_id,
        replicas=list(registration.replicas),
        isr=list(registration.isr),
        removing_replicas=list(registration.removing_replicas),
        adding_replicas=list(registration.adding_replicas),
        leader=registration.leader,
        leader_recovery_state=registration.leader_recovery_state,
        leader_epoch=registration.leader_epoch,
        partition_epoch=registration.partition_epoch,
        directories=list(registration.directories) if version >= 1 else [],
        eligible_leader_replicas=(list(registration.elr) or None) if version >= 2 else None,
        last_known_elr=(list(registration.last_known_elr) or None) if version >= 2 else None,
    )


@dataclass(slots=True)
class LocalChanges:
    """What a delta means for one broker's replicas, by partition name."""

    leaders: dict[TopicPartition, tuple[UUID, PartitionRegistration]] = field(default_factory=dict)
    followers: dict[TopicPartition, tuple[UUID, PartitionRegistration]] = field(
        default_factory=dict
    )
    deleted: dict[TopicPartition, UUID] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class TopicDelta:
    """Changed partitions of one topic. `created` says whether the topic is new with this delta."""

    image: TopicImage
    _: KW_ONLY
    created: bool
    partition_changes: dict[int, PartitionRegistration] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def topic_id(self) -> UUID:
        return self.image.topic_id

    def partition(self, partition_index: int) -> PartitionRegistration | None:
        """A partition as it is with the changes so far."""
        changed = self.partition_changes.get(partition_index)
        return changed if changed is not None else self.image.partitions.get(partition_index)

    def apply(self) -> TopicImage:
        if not self.partition_changes:
            return self.image
        if not self.image.partitions:
            return TopicImage(self.name, self.topic_id, self.partition_changes)
        return TopicImage(
            self.name, self.topic_id, {**self.image.partitions, **self.partition_changes}
        )


@dataclass(slots=True, eq=False, repr=False)
class TopicsDelta:
    """Changed and deleted topics, by topic id."""

    _image: TopicsImage
    changed: dict[UUID, TopicDelta] = field(default_factory=dict)
    deleted: dict[UUID, TopicImage] = field(default_factory=dict)
    _created_by_name: dict[str, UUID] = field(default_factory=dict)

    @classmethod
    def from_nothing(cls, image: TopicsImage) -> TopicsDelta:
        """What makes `image` out of the empty one, without a detour by records."""
        delta = cls(TopicsImage())
        for topic_id, topic in image.topics_by_id.items():
            created = TopicDelta(TopicImage(topic.name, topic_id, {}), created=True)
            created.partition_changes = dict(topic.partitions)
            delta.changed[topic_id] = created
            delta._created_by_name[topic.name] = topic_id
        return delta

    @property
    def created(self) -> dict[UUID, TopicDelta]:
        return {topic_id: each for topic_id, each in self.changed.items() if each.created}

    def replay_topic(self, record: kinds.TopicRecord) -> None:
        """A new topic, or one that a snapshot repeats."""
        old = self._image.topics_by_id.get(record.topic_id)
        topic = TopicImage(record.name, record.topic_id, {})
        self.changed[record.topic_id] = TopicDelta(topic, created=old is None)
        self._created_by_name[record.name] = record.topic_id
        self.deleted.pop(record.topic_id, None)

    def replay_partition(self, record: kinds.PartitionRecord) -> None:
        replicas = tuple(record.replicas)
        directories = tuple(record.directories) or (MIGRATING_DIRECTORY,) * len(replicas)
        if len(directories) != len(replicas):
            raise InvalidMetadataRecord(f"replicas and directories differ in number: {record}")
        isr = tuple(record.isr)
        self._change(record.topic_id, record).partition_changes[record.partition_id] = (
            PartitionRegistration(
                replicas=replicas,
                directories=directories,
                isr=replicas if isr == replicas else isr,
                removing_replicas=tuple(record.removing_replicas),
                adding_replicas=tuple(record.adding_replicas),
                elr=tuple(record.eligible_leader_replicas or ()),
                last_known_elr=tuple(record.last_known_elr or ()),
                leader=record.leader,
                leader_recovery_state=record.leader_recovery_state,
                leader_epoch=record.leader_epoch,
                partition_epoch=record.partition_epoch,
            )
        )

    def replay_partition_change(self, record: kinds.PartitionChangeRecord) -> None:
        topic = self._change(record.topic_id, record)
        old = topic.partition(record.partition_id)
        if old is None:
            raise InvalidMetadataRecord(f"no such partition: {record}")
        topic.partition_changes[record.partition_id] = merge_partition_change(old, record)

    def replay_remove_topic(self, record: kinds.RemoveTopicRecord) -> str:
        """A topic is deleted with all its partitions; returns its name."""
        delta = self.changed.pop(record.topic_id, None)
        topic = self._image.topics_by_id.get(record.topic_id)
        if delta is None and topic is None:
            raise InvalidMetadataRecord(f"no such topic: {record}")
        if delta is not None and self._created_by_name.get(delta.name) == record.topic_id:
            del self._created_by_name[delta.name]
        if topic is not None:
            self.deleted[record.topic_id] = topic
            return topic.name
        assert delta is not None
        return delta.name

    def replay_clear_elr(self, record: kinds.ClearElrRecord) -> None:
        """Forget the eligible leader replicas of one topic, or of all when no name is given."""
        if record.topic_name:
            topic_id = self._topic_id(record.topic_name)
            if topic_id is None:
                raise InvalidMetadataRecord(f"no such topic: {record}")
            topic_ids = [topic_id]
        else:
            topic_ids = list({**self._image.topics_by_id, **self.changed})
        for topic_id in topic_ids:
            if topic_id in self.deleted:
                continue
            topic = self._change(topic_id, record)
            for index in {**topic.image.partitions, **topic.partition_changes}:
                partition = topic.partition(index)
                assert partition is not None
                if partition.elr or partition.last_known_elr:
                    # The partition epoch counts it like any other change.
                    topic.partition_changes[index] = partition._replace(
                        elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
                    )

    def finish_snapshot(self) -> None:
        for topic_id, topic in self._image.topics_by_id.items():
            if topic_id not in self.changed:
                self.deleted[topic_id] = topic

    def apply(self) -> Steps[TopicsImage]:
        """The image with the changes made; what it shares with the old one is not copied."""
        old = self._image
        by_id: dict[UUID, TopicImage | None] = {}
        by_name: dict[str, TopicImage | None] = {}
        for topic_id, topic in self.deleted.items():
            by_id[topic_id] = None
            if old.topics_by_name[topic.name].topic_id == topic_id:
                by_name[topic.name] = None
            yield
        for topic_id, delta in self.changed.items():
            by_id[topic_id] = by_name[delta.name] = delta.apply()
            yield
        return TopicsImage(layered(old.topics_by_id, by_id), layered(old.topics_by_name, by_name))

    def local_changes(self, broker_id: int) -> LocalChanges:
        """The replicas of `broker_id` that this delta made, changed or took away."""
        changes = LocalChanges()
        for topic in self.deleted.values():
            for index, partition in topic.partitions.items():
                if broker_id in partition.replicas:
                    changes.deleted[TopicPartition(topic.name, index)] = topic.topic_id
        for delta in self.changed.values():
            self._local_topic_changes(broker_id, delta, changes)
        return changes

    def _local_topic_changes(
        self, broker_id: int, delta: TopicDelta, changes: LocalChanges
    ) -> None:
        before = self._image.topics_by_id.get(delta.topic_id)
        old_partitions: Mapping[int, PartitionRegistration] = before.partitions if before else {}
        for index, partition in delta.partition_changes.items():
            old = old_partitions.get(index)
            if broker_id not in partition.replicas:
                if old is not None and broker_id in old.replicas:
                    changes.deleted[TopicPartition(delta.name, index)] = delta.topic_id
            elif partition != old:
                kind = changes.leaders if partition.leader == broker_id else changes.followers
                kind[TopicPartition(delta.name, index)] = (delta.topic_id, partition)

    def _topic_id(self, name: str) -> UUID | None:
        if name in self._created_by_name:
            return self._created_by_name[name]
        topic = self._image.topics_by_name.get(name)
        return None if topic is None or topic.topic_id in self.deleted else topic.topic_id

    def _change(self, topic_id: UUID, record: object) -> TopicDelta:
        delta = self.changed.get(topic_id)
        if delta is None:
            topic = self._image.topics_by_id.get(topic_id)
            if topic is None or topic_id in self.deleted:
                raise InvalidMetadataRecord(f"no such topic: {record}")
            delta = self.changed[topic_id] = TopicDelta(topic, created=False)
        return delta


def merge_partition_change(
    old: PartitionRegistration, record: kinds.PartitionChangeRecord
) -> PartitionRegistration:
    """The partition after `record`; absent fields (null, leader -2, state -1) keep theirs."""
    replicas = old.replicas if record.replicas is None else tuple(record.replicas)
    directories = old.directories
    if record.directories is not None:
        directories = tuple(record.directories)
    elif record.replicas is not None:
        # Written before there were directories (KIP-858): what a snapshot of that time makes.
        known = dict(zip(old.replicas, old.directories, strict=True))
        directories = tuple(known.get(replica, MIGRATING_DIRECTORY) for replica in replicas)
    if len(directories) != len(replicas):
        raise InvalidMetadataRecord(f"replicas and directories differ in number: {record}")
    changes_leader = record.leader != NO_LEADER_CHANGE
    state = record.leader_recovery_state
    return PartitionRegistration(
        replicas=replicas,
        directories=directories,
        isr=or_old(record.isr, old.isr),
        removing_replicas=or_old(record.removing_replicas, old.removing_replicas),
        adding_replicas=or_old(record.adding_replicas, old.adding_replicas),
        elr=or_old(record.eligible_leader_replicas, old.elr),
        last_known_elr=or_old(record.last_known_elr, old.last_known_elr),
        leader=record.leader if changes_leader else old.leader,
        leader_recovery_state=old.leader_recovery_state if state < 0 else state,
        leader_epoch=old.leader_epoch + 1 if changes_leader else old.leader_epoch,
        partition_epoch=old.partition_epoch + 1,
    )


def or_old(new: Sequence[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else tuple(new)
