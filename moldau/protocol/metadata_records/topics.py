"""The records of topics and their partitions."""

from moldau.protocol.schema import Message, field
from moldau.protocol.types import ZERO_UUID, Int8, Int32, String, Uuid


class TopicRecord(Message, number=2, versions="0", flexible="0+"):
    name: String = ""
    topic_id: Uuid = ZERO_UUID


class RemoveTopicRecord(Message, number=9, versions="0", flexible="0+"):
    topic_id: Uuid = ZERO_UUID


class PartitionRecord(Message, number=3, versions="0-2", flexible="0+"):
    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    replicas: list[Int32] = field()
    isr: list[Int32] = field()
    removing_replicas: list[Int32] = field()
    adding_replicas: list[Int32] = field()
    leader: Int32 = -1
    leader_recovery_state: Int8 = field(0, tag=0)
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: list[Uuid] = field(since=1)
    eligible_leader_replicas: list[Int32] | None = field(None, since=2, nullable="2+", tag=1)
    last_known_elr: list[Int32] | None = field(None, since=2, nullable="2+", tag=2)


class PartitionChangeRecord(Message, number=5, versions="0-2", flexible="0+"):
    """A change of a partition: what differs is tagged."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    isr: list[Int32] | None = field(None, nullable="0+", tag=0)
    leader: Int32 = field(-2, tag=1)
    replicas: list[Int32] | None = field(None, nullable="0+", tag=2)
    removing_replicas: list[Int32] | None = field(None, nullable="0+", tag=3)
    adding_replicas: list[Int32] | None = field(None, nullable="0+", tag=4)
    leader_recovery_state: Int8 = field(-1, tag=5)
    directories: list[Uuid] | None = field(None, since=1, nullable="1+", tag=8)
    eligible_leader_replicas: list[Int32] | None = field(None, since=2, nullable="2+", tag=6)
    last_known_elr: list[Int32] | None = field(None, since=2, nullable="2+", tag=7)


class ClearElrRecord(Message, number=28, versions="0", flexible="0+"):
    """Forgets the eligible leader replicas of one topic, or of all."""

    topic_name: String = ""
