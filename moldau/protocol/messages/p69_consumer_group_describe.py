"""ConsumerGroupDescribe (69) v0-v1: describe consumer groups of the new protocol.

Versions: 1 adds the type of each member.
"""

from moldau.constants import MIN_INT32
from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import ZERO_UUID, Bool, Int8, Int16, Int32, String, Uuid


class ConsumerGroupDescribeRequest(
    Request["ConsumerGroupDescribeResponse"], versions="0-1", flexible="0+"
):
    group_ids: list[String] = field()
    include_authorized_operations: Bool = False


class TopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = field()


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field()


class Member(Struct):
    member_id: String = ""
    instance_id: String | None = field(None, nullable="0+")
    rack_id: String | None = field(None, nullable="0+")
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field()
    subscribed_topic_regex: String | None = field(None, nullable="0+")
    assignment: Assignment = field()
    target_assignment: Assignment = field()
    member_type: Int8 = field(-1, since=1, ignorable=True)


class DescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = field()
    authorized_operations: Int32 = MIN_INT32


class ConsumerGroupDescribeResponse(ThrottledResponse, answers=ConsumerGroupDescribeRequest):
    groups: list[DescribedGroup] = field()
