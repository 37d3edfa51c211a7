"""StreamsGroupTopology (type 23 of `__consumer_offsets`, version 0): the topology of a streams
group."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import Int16, Int32, String


@coordinator_record(23, versions="0", flexible="none")
class StreamsGroupTopologyKey(Message):
    group_id: String = ""


@struct
class TopicConfig(Struct):
    key: String = ""
    value: String = ""


@struct
class TopicInfo(Struct):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[TopicConfig] = field()


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
    epoch: Int32 = 0
    subtopologies: list[Subtopology] = field()
