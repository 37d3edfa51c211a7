"""StreamsGroupHeartbeat (88) v0: join, stay in and leave a streams group (KIP-1071)."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import Bool, Int8, Int16, Int32, Int64, String, Uint16


@struct
class KeyValue(Struct):
    key: String = ""
    value: String = ""


@struct
class TopicInfo(Struct):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = field()


@struct
class Endpoint(Struct):
    host: String = ""
    port: Uint16 = 0


@struct
class TaskOffset(Struct):
    subtopology_id: String = ""
    partition: Int32 = 0
    offset: Int64 = 0


@struct
class TaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = field()


@struct
class CopartitionGroup(Struct):
    source_topics: list[Int16] = field()
    source_topic_regex: list[Int16] = field()
    repartition_source_topics: list[Int16] = field()


@struct
class Subtopology(Struct):
    subtopology_id: String = ""
    source_topics: list[String] = field()
    source_topic_regex: list[String] = field()
    state_changelog_topics: list[TopicInfo] = field()
    repartition_sink_topics: list[String] = field()
    repartition_source_topics: list[TopicInfo] = field()
    copartition_groups: list[CopartitionGroup] = field()


@struct
class Topology(Struct):
    epoch: Int32 = 0
    subtopologies: list[Subtopology] = field()


@request(ApiKey.STREAMS_GROUP_HEARTBEAT, versions="0", flexible="0+")
class StreamsGroupHeartbeatRequest(Message):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: String | None = field(None, nullable="0+")
    rack_id: String | None = field(None, nullable="0+")
    rebalance_timeout_ms: Int32 = -1
    topology: Topology | None = field(None, nullable="0+")
    active_tasks: list[TaskIds] | None = field(None, nullable="0+")
    standby_tasks: list[TaskIds] | None = field(None, nullable="0+")
    warmup_tasks: list[TaskIds] | None = field(None, nullable="0+")
    process_id: String | None = field(None, nullable="0+")
    user_endpoint: Endpoint | None = field(None, nullable="0+")
    client_tags: list[KeyValue] | None = field(None, nullable="0+")
    task_offsets: list[TaskOffset] | None = field(None, nullable="0+")
    task_end_offsets: list[TaskOffset] | None = field(None, nullable="0+")
    shutdown_application: Bool = False


@struct
class Status(Struct):
    status_code: Int8 = 0
    status_detail: String = ""


@struct
class TopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = field()


@struct
class EndpointToPartitions(Struct):
    user_endpoint: Endpoint = field()
    active_partitions: list[TopicPartition] = field()
    standby_partitions: list[TopicPartition] = field()


@response(ApiKey.STREAMS_GROUP_HEARTBEAT, versions="0", flexible="0+")
class StreamsGroupHeartbeatResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    member_id: String = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int32 = 0
    task_offset_interval_ms: Int32 = 0
    status: list[Status] | None = field(nullable="0+")
    active_tasks: list[TaskIds] | None = field(None, nullable="0+")
    standby_tasks: list[TaskIds] | None = field(None, nullable="0+")
    warmup_tasks: list[TaskIds] | None = field(None, nullable="0+")
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field(None, nullable="0+")
