"""CreateTopics (19) v2-v7: create topics.

Versions: 4 takes the broker's defaults for counts. 5 returns the topic's configuration, 7 its
id.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import ZERO_UUID, Bool, Int8, Int16, Int32, String, Uuid


class CreatableReplicaAssignment(Struct):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = field()


class CreatableTopicConfig(Struct):
    name: String = ""
    value: String | None = field("", nullable="0+")


class CreatableTopic(Struct):
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = field()
    configs: list[CreatableTopicConfig] = field()


class CreateTopicsRequest(Request["CreateTopicsResponse"], versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = field()
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreatableTopicConfigs(Struct):
    name: String = field("", since=5)
    value: String | None = field("", since=5, nullable="5+")
    read_only: Bool = field(False, since=5)
    config_source: Int8 = field(-1, since=5, ignorable=True)
    is_sensitive: Bool = field(False, since=5)


class CreatableTopicResult(Struct):
    name: String = ""
    topic_id: Uuid = field(ZERO_UUID, since=7, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
    topic_config_error_code: Int16 = field(0, since=5, tag=0, ignorable=True)
    num_partitions: Int32 = field(-1, since=5, ignorable=True)
    replication_factor: Int16 = field(-1, since=5, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field(since=5, nullable="5+", ignorable=True)


class CreateTopicsResponse(ThrottledResponse, answers=CreateTopicsRequest):
    topics: list[CreatableTopicResult] = field()
