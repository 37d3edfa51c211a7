"""ConsumerGroupHeartbeat (68) v0-v1: join, stay in and leave a consumer group of the new protocol
(KIP-848).

Versions: 1 adds subscription by regular expression.
"""

from moldau.protocol.schema import FailableResponse, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int32, String, Uuid


class TopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = field()


class ConsumerGroupHeartbeatRequest(
    Request["ConsumerGroupHeartbeatResponse"], versions="0-1", flexible="0+"
):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = field(None, nullable="0+")
    rack_id: String | None = field(None, nullable="0+")
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = field(None, nullable="0+")
    subscribed_topic_regex: String | None = field(None, since=1, nullable="1+")
    server_assignor: String | None = field(None, nullable="0+")
    topic_partitions: list[TopicPartitions] | None = field(None, nullable="0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field()


class ConsumerGroupHeartbeatResponse(FailableResponse, answers=ConsumerGroupHeartbeatRequest):
    error_message: String | None = field(None, nullable="0+")
    member_id: String | None = field(None, nullable="0+")
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = field(None, nullable="0+")
