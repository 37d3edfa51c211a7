"""The records of streams groups (KIP-1071), in `__consumer_offsets`."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import Int8, Int16, Int32, Int64, String, Uint16


@coordinator_record(17, versions="0", flexible="none")
class StreamsGroupMetadataKey(Message):
    group_id: String = ""


@struct
class KeyValue(Struct):
    key: String = ""
    value: String = ""


@coordinator_record(17, versions="0", flexible="0+")
class StreamsGroupMetadataValue(Message):
    """A streams group itself."""

    epoch: Int32 = 0
    metadata_hash: Int64 = 0
    validated_topology_epoch: Int32 = field(-1, tag=0)
    last_assignment_configs: list[KeyValue] | None = field(nullable="0+", tag=1)


@coordinator_record(19, versions="0", flexible="none")
class StreamsGroupMemberMetadataKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class Endpoint(Struct):
    host: String = ""
    port: Uint16 = 0


@coordinator_record(19, versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue(Message):
    """What a member of a streams group reported about itself."""

    instance_id: String | None = field("", nullable="0+")
    rack_id: String | None = field("", nullable="0+")
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = field(None, nullable="0+")
    client_tags: list[KeyValue] = field()


@coordinator_record(20, versions="0", flexible="none")
class StreamsGroupTargetAssignmentMetadataKey(Message):
    group_id: String = ""


@coordinator_record(20, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue(Message):
    """The epoch of a streams group's target assignment."""

    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(0, tag=0)


@coordinator_record(21, versions="0", flexible="none")
class StreamsGroupTargetAssignmentMemberKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class TaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = field()


@coordinator_record(21, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue(Message):
    """The tasks that a streams group's member shall have."""

    active_tasks: list[TaskIds] = field()
    standby_tasks: list[TaskIds] = field()
    warmup_tasks: list[TaskIds] = field()


@coordinator_record(22, versions="0", flexible="none")
class StreamsGroupCurrentMemberAssignmentKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class CurrentTaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = field()
    assignment_epochs: list[Int32] | None = field(nullable="0+", tag=0)


@coordinator_record(22, versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue(Message):
    """The tasks of a streams group's member now."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    active_tasks: list[CurrentTaskIds] = field()
    standby_tasks: list[CurrentTaskIds] = field()
    warmup_tasks: list[CurrentTaskIds] = field()
    active_tasks_pending_revocation: list[CurrentTaskIds] = field()
    standby_tasks_pending_revocation: list[CurrentTaskIds] = field()
    warmup_tasks_pending_revocation: list[CurrentTaskIds] = field()


@coordinator_record(23, versions="0", flexible="none")
class StreamsGroupTopologyKey(Message):
    group_id: String = ""


@struct
class TopicInfo(Struct):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = field()


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


@coordinator_record(23, versions="0", flexible="0+")
class StreamsGroupTopologyValue(Message):
    """The topology of a streams group."""

    epoch: Int32 = 0
    subtopologies: list[Subtopology] = field()
