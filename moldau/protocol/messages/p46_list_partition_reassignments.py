"""ListPartitionReassignments (46) v0: list reassignments in progress."""

from moldau.protocol.schema import ExplainedResponse, Request, Struct, field
from moldau.protocol.types import Int32, String


class ListPartitionReassignmentsTopics(Struct):
    name: String = ""
    partition_indexes: list[Int32] = field()


class ListPartitionReassignmentsRequest(
    Request["ListPartitionReassignmentsResponse"], versions="0", flexible="0+"
):
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = field(None, nullable="0+")


class OngoingPartitionReassignment(Struct):
    partition_index: Int32 = 0
    replicas: list[Int32] = field()
    adding_replicas: list[Int32] = field()
    removing_replicas: list[Int32] = field()


class OngoingTopicReassignment(Struct):
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = field()


class ListPartitionReassignmentsResponse(
    ExplainedResponse, answers=ListPartitionReassignmentsRequest
):
    topics: list[OngoingTopicReassignment] = field()
