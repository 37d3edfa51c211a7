"""ShareGroupDescribe (77) v1: describe share groups."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Bool, Int16, Int32, String, Uuid


@request(ApiKey.SHARE_GROUP_DESCRIBE, versions="1", flexible="0+")
class ShareGroupDescribeRequest(Message):
    group_ids: list[String] = field()
    include_authorized_operations: Bool = False


@struct
class TopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = field()


@struct
class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field()


@struct
class Member(Struct):
    member_id: String = ""
    rack_id: String | None = field(None, nullable="0+")
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field()
    assignment: Assignment = field()


@struct
class DescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = field()
    authorized_operations: Int32 = -2147483648


@response(ApiKey.SHARE_GROUP_DESCRIBE, versions="1", flexible="0+")
class ShareGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = field()
