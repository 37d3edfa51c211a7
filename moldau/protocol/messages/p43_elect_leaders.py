"""ElectLeaders (43) v0-v2: elect leaders: preferred ones, or any replica at all.

Versions: 1 adds the type of election.
"""

from enum import IntEnum

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int8, Int16, Int32, String


class ElectionType(IntEnum):
    """Which replica may be elected: the preferred one, or any live one with data loss (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


class TopicPartitions(Struct):
    topic: String = ""
    partitions: list[Int32] = field()


class ElectLeadersRequest(Request["ElectLeadersResponse"], versions="0-2", flexible="2+"):
    election_type: Int8 = field(0, since=1)
    topic_partitions: list[TopicPartitions] | None = field(nullable="0+")
    timeout_ms: Int32 = 60000


class PartitionResult(Struct):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")


class ReplicaElectionResult(Struct):
    topic: String = ""
    partition_result: list[PartitionResult] = field()


class ElectLeadersResponse(ThrottledResponse, answers=ElectLeadersRequest):
    error_code: Int16 = field(0, since=1)
    replica_election_results: list[ReplicaElectionResult] = field()
