"""StreamsGroupDescribe (89) v0: describe streams groups."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import Bool, Int16, Int32, Int64, String, Uint16


@request(ApiKey.STREAMS_GROUP_DESCRIBE, versions="0", flexible="0+")
class StreamsGroupDescribeRequest(Message):
    group_ids: list[String] = field()
    include_authorized_operations: Bool = False


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
class Assignment(Struct):
    active_tasks: list[TaskIds] = field()
    standby_tasks: list[TaskIds] = field()
    warmup_tasks: list[TaskIds] = field()


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
class Subtopology(Struct):
    subtopology_id: String = ""
    source_topics: list[String] = field()
    repartition_sink_topics: list[String] = field()
    state_changelog_topics: list[TopicInfo] = field()
    repartition_source_topics: list[TopicInfo] = field()


@struct
class Topology(Struct):
    epoch: Int32 = 0
    subtopologies: list[Subtopology] | None = field(None, nullable="0+")


@struct
class Member(Struct):
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = field(None, nullable="0+")
    rack_id: String | None = field(None, nullable="0+")
    client_id: String = ""
    client_host: String = ""
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = field(None, nullable="0+")
    client_tags: list[KeyValue] = field()
    task_offsets: list[TaskOffset] = field()
    task_end_offsets: list[TaskOffset] = field()
    assignment: Assignment = field()
    target_assignment: Assignment = field()
    is_classic: Bool = False


@struct
class DescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: Topology | None = field(None, nullable="0+")
    members: list[Member] = field()
    authorized_operations: Int32 = -2147483648


@response(ApiKey.STREAMS_GROUP_DESCRIBE, versions="0", flexible="0+")
class StreamsGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = field()
