"""ListPartitionReassignments (46) v0: list reassignments in progress."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, Struct, field, request, response, struct
from moldau.protocol.types import Int16, Int32, String


@struct
class ListPartitionReassignmentsTopics(Struct):
    name: String = ""
    partition_indexes: list[Int32] = field()


@request(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = field(None, nullable="0+")


@struct
class OngoingPartitionReassignment(Struct):
    partition_index: Int32 = 0
    replicas: list[Int32] = field()
    adding_replicas: list[Int32] = field()
    removing_replicas: list[Int32] = field()


@struct
class OngoingTopicReassignment(Struct):
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = field()


@response(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
    topics: list[OngoingTopicReassignment] = field()
