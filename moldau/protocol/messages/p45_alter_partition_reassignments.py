"""AlterPartitionReassignments (45) v0-v1: start or cancel the reassignment of replicas.

Versions: 1 can refuse a change of the replication factor.
"""

from moldau.protocol.schema import FailablePartition, Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bool, Int16, Int32, String


class ReassignablePartition(Struct):
    partition_index: Int32 = 0
    replicas: list[Int32] | None = field(None, nullable="0+")


class ReassignableTopic(Struct):
    name: String = ""
    partitions: list[ReassignablePartition] = field()


class AlterPartitionReassignmentsRequest(
    Request["AlterPartitionReassignmentsResponse"], versions="0-1", flexible="0+"
):
    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Bool = field(True, since=1)
    topics: list[ReassignableTopic] = field()


class ReassignablePartitionResponse(FailablePartition):
    error_message: String | None = field("", nullable="0+")


class ReassignableTopicResponse(Struct):
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = field()


class AlterPartitionReassignmentsResponse(
    ThrottledResponse, answers=AlterPartitionReassignmentsRequest
):
    allow_replication_factor_change: Bool = field(True, since=1, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
    responses: list[ReassignableTopicResponse] = field()
