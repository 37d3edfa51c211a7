"""Topics and their partitions: the image.

Owns: lookup by id and by name. Must not: know records except to write itself as such.
Invariant: `topics_by_id` and `topics_by_name` hold the same TopicImage objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from moldau.metadata.features import partition_record_version
from moldau.metadata.image.values import PartitionRegistration
from moldau.protocol.metadata_records import PartitionRecord, TopicRecord
from moldau.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class TopicImage:
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
        """One partition, None when there is no such topic or partition."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(partition_index)

    def write(self, metadata_level: int) -> Iterator[tuple[Message, int]]:
        """The records that make this image."""
        version = partition_record_version(metadata_level)
        for name in sorted(self.topics_by_name):
            topic = self.topics_by_name[name]
            yield TopicRecord(name=name, topic_id=topic.topic_id), 0
            for partition_index in sorted(topic.partitions):
                registration = topic.partitions[partition_index]
                yield (
                    partition_record(topic.topic_id, partition_index, registration, version),
                    version,
                )


def partition_record(
    topic_id: UUID, partition_index: int, registration: PartitionRegistration, version: int
) -> PartitionRecord:
    """The PartitionRecord that creates `registration`; what `version` cannot carry is left out."""
    return PartitionRecord(
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
