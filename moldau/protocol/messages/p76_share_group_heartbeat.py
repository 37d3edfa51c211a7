"""ShareGroupHeartbeat (76) v1: join, stay in and leave a share group (KIP-932)."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, String, Uuid


@request(ApiKey.SHARE_GROUP_HEARTBEAT, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest(Message):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: String | None = field(None, nullable="0+")
    subscribed_topic_names: list[String] | None = field(None, nullable="0+")


@struct
class TopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = field()


@struct
class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field()


@response(ApiKey.SHARE_GROUP_HEARTBEAT, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    member_id: String | None = field(None, nullable="0+")
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = field(None, nullable="0+")
