"""AlterPartition (56) v2-v3: a leader asks the controller to change a partition's ISR or recovery
state.

Versions: 3 names ISR members with their broker epochs.
"""

from moldau.protocol.schema import FailablePartition, FailableResponse, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int8, Int32, Int64, Uuid


class BrokerState(Struct):
    broker_id: Int32 = field(0, since=3)
    broker_epoch: Int64 = field(-1, since=3)


class PartitionData(Struct):
    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: list[Int32] = field(until=2)
    new_isr_with_epochs: list[BrokerState] = field(since=3)
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


class TopicData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = field()


class AlterPartitionRequest(Request["AlterPartitionResponse"], versions="2-3", flexible="0+"):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[TopicData] = field()


class PartitionDataResponse(FailablePartition):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = field()
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


class TopicDataResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionDataResponse] = field()


class AlterPartitionResponse(FailableResponse, answers=AlterPartitionRequest):
    topics: list[TopicDataResponse] = field()
