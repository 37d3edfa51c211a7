"""PartitionRecord (type 3, versions 0-2): a partition as a whole."""

from moldau.protocol.schema import Message, field, metadata_record
from moldau.protocol.types import ZERO_UUID, Int8, Int32, Uuid


@metadata_record(3, versions="0-2", flexible="0+")
class PartitionRecord(Message):
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
