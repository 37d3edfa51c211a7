"""The records of streams groups (KIP-1071), in `__consumer_offsets`."""

from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import Int8, Int16, Int32, Int64, String, Uint16


class StreamsGroupMetadataKey(Message, number=17, versions="0", flexible="none"):
    group_id: String = ""


class KeyValue(Struct):
    key: String = ""
    value: String = ""


class StreamsGroupMetadataValue(Message, number=17, versions="0", flexible="0+"):
    """A streams group itself."""

    epoch: Int32 = 0
    metadata_hash: Int64 = 0
    validated_topology_epoch: Int32 = field(-1, tag=0)
    last_assignment_configs: list[KeyValue] | None = field(nullable="0+", tag=1)


class StreamsGroupMemberMetadataKey(Message, number=19, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class Endpoint(Struct):
    host: String = ""
    port: Uint16 = 0


class StreamsGroupMemberMetadataValue(Message, number=19, versions="0", flexible="0+"):
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


class StreamsGroupTargetAssignmentMetadataKey(Message, number=20, versions="0", flexible="none"):
    group_id: String = ""


class StreamsGroupTargetAssignmentMetadataValue(Message, number=20, versions="0", flexible="0+"):
    """The epoch of a streams group's target assignment."""

    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(0, tag=0)


class StreamsGroupTargetAssignmentMemberKey(Message, number=21, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class TaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = field()


class StreamsGroupTargetAssignmentMemberValue(Message, number=21, versions="0", flexible="0+"):
    """The tasks that a streams group's member shall have."""

    active_tasks: list[TaskIds] = field()
    standby_tasks: list[TaskIds] = field()
    warmup_tasks: list[TaskIds] = field()


class StreamsGroupCurrentMemberAssignmentKey(Message, number=22, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class CurrentTaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = field()
    assignment_epochs: list[Int32] | None = field(nullable="0+", tag=0)


class StreamsGroupCurrentMemberAssignmentValue(Message, number=22, versions="0", flexible="0+"):
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


class StreamsGroupTopologyKey(Message, number=23, versions="0", flexible="none"):
    group_id: String = ""


class TopicInfo(Struct):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = field()


class CopartitionGroup(Struct):
    source_topics: list[Int16] = field()
    source_topic_regex: list[Int16] = field()
    repartition_source_topics: list[Int16] = field()


class Subtopology(Struct):
    subtopology_id: String = ""
    source_topics: list[String] = field()
    source_topic_regex: list[String] = field()
    state_changelog_topics: list[TopicInfo] = field()
    repartition_sink_topics: list[String] = field()
    repartition_source_topics: list[TopicInfo] = field()
    copartition_groups: list[CopartitionGroup] = field()


class StreamsGroupTopologyValue(Message, number=23, versions="0", flexible="0+"):
    """The topology of a streams group."""

    epoch: Int32 = 0
    subtopologies: list[Subtopology] = field()
