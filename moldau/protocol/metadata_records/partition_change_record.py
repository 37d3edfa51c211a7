"""PartitionChangeRecord (type 5, versions 0-2): a change of a partition: what differs is tagged."""

from moldau.protocol.schema import Message, field, metadata_record
from moldau.protocol.types import ZERO_UUID, Int8, Int32, Uuid


@metadata_record(5, versions="0-2", flexible="0+")
class PartitionChangeRecord(Message):
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
