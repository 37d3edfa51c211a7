"""Fetch (1) v4-v18: read record batches, as a consumer, a follower or an observer of the metadata
log.

Versions: 5 carries log start offsets, 7 fetch sessions (KIP-227). 9 fences by leader epoch, 11
adds the reader's rack. 12 detects diverged logs and is flexible. 13 names topics by id. 15
moves the replica id into a tagged struct with its epoch. 17 carries the replica's directory id,
18 its high watermark.
"""

from moldau.constants import MAX_INT32, MAX_INT64
from moldau.protocol.schema import FailablePartition, Request, Struct, ThrottledResponse, field
from moldau.protocol.types import ZERO_UUID, Int8, Int16, Int32, Int64, Records, String, Uuid


class ReplicaState(Struct):
    replica_id: Int32 = field(-1, since=15)
    replica_epoch: Int64 = field(-1, since=15)


class FetchPartition(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = field(-1, since=9, ignorable=True)
    fetch_offset: Int64 = 0
    last_fetched_epoch: Int32 = field(-1, since=12)
    log_start_offset: Int64 = field(-1, since=5, ignorable=True)
    partition_max_bytes: Int32 = 0
    replica_directory_id: Uuid = field(ZERO_UUID, since=17, tag=0, ignorable=True)
    high_watermark: Int64 = field(MAX_INT64, since=18, tag=1, ignorable=True)


class FetchTopic(Struct):
    topic: String = field("", until=12, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=13, ignorable=True)
    partitions: list[FetchPartition] = field()


class ForgottenTopic(Struct):
    topic: String = field("", since=7, until=12, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=13, ignorable=True)
    partitions: list[Int32] = field(since=7)


class FetchRequest(Request["FetchResponse"], versions="4-18", flexible="12+"):
    cluster_id: String | None = field(None, since=12, nullable="12+", tag=0, ignorable=True)
    replica_id: Int32 = field(-1, until=14)
    replica_state: ReplicaState = field(since=15, tag=1)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = MAX_INT32
    isolation_level: Int8 = 0
    session_id: Int32 = field(0, since=7, ignorable=True)
    session_epoch: Int32 = field(-1, since=7, ignorable=True)
    topics: list[FetchTopic] = field()
    forgotten_topics_data: list[ForgottenTopic] = field(since=7)
    rack_id: String = field("", since=11, ignorable=True)


class EpochEndOffset(Struct):
    epoch: Int32 = field(-1, since=12)
    end_offset: Int64 = field(-1, since=12)


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = field(-1, since=12)
    leader_epoch: Int32 = field(-1, since=12)


class SnapshotId(Struct):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Struct):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(FailablePartition):
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = field(-1, since=5, ignorable=True)
    diverging_epoch: EpochEndOffset = field(since=12, tag=0)
    current_leader: LeaderIdAndEpoch = field(since=12, tag=1)
    snapshot_id: SnapshotId = field(since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field(nullable="4+")
    preferred_read_replica: Int32 = field(-1, since=11)
    records: Records | None = field(None, nullable="0+")


class FetchableTopicResponse(Struct):
    topic: String = field("", until=12, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=13, ignorable=True)
    partitions: list[PartitionData] = field()


class NodeEndpoint(Struct):
    node_id: Int32 = field(0, since=16)
    host: String = field("", since=16)
    port: Int32 = field(0, since=16)
    rack: String | None = field(None, since=16, nullable="16+")


class FetchResponse(ThrottledResponse, answers=FetchRequest):
    error_code: Int16 = field(0, since=7, ignorable=True)
    session_id: Int32 = field(0, since=7)
    responses: list[FetchableTopicResponse] = field()
    node_endpoints: list[NodeEndpoint] = field(since=16, tag=0)
