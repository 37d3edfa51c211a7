"""Metadata (3) v0-v13: describe brokers, topics and partitions.

Versions: 1 makes `topics` null mean all of them. 4 may create missing topics. 7 adds leader
epochs, 9 is flexible. 10 knows topic ids, 12 can ask by them. 13 adds an error for the whole
answer.
"""

from moldau.constants import MIN_INT32
from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Bool, Int16, Int32, String, Uuid


class MetadataRequestTopic(Struct):
    topic_id: Uuid = field(ZERO_UUID, since=10, ignorable=True)
    name: String | None = field("", nullable="10+")


class MetadataRequest(Request["MetadataResponse"], versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: Bool = field(True, since=4)
    include_cluster_authorized_operations: Bool = field(False, since=8, until=10)
    include_topic_authorized_operations: Bool = field(False, since=8)


class MetadataResponseBroker(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = field(None, since=1, nullable="1+", ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = field(-1, since=7, ignorable=True)
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    offline_replicas: list[Int32] = field(since=5, ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: Int16 = 0
    name: String | None = field("", nullable="12+")
    topic_id: Uuid = field(ZERO_UUID, since=10, ignorable=True)
    is_internal: Bool = field(False, since=1, ignorable=True)
    partitions: list[MetadataResponsePartition] = field()
    topic_authorized_operations: Int32 = field(MIN_INT32, since=8)


class MetadataResponse(Message, answers=MetadataRequest):
    throttle_time_ms: Int32 = field(0, since=3, ignorable=True)
    brokers: list[MetadataResponseBroker] = field()
    cluster_id: String | None = field(None, since=2, nullable="2+", ignorable=True)
    controller_id: Int32 = field(-1, since=1, ignorable=True)
    topics: list[MetadataResponseTopic] = field()
    cluster_authorized_operations: Int32 = field(MIN_INT32, since=8, until=10)
    error_code: Int16 = field(0, since=13, ignorable=True)
