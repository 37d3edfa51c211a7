"""FetchSnapshot (59) v0-v1: read a snapshot of a replicated log in pieces.

Versions: 1 carries the replica's directory id and endpoints.
"""

from moldau.constants import MAX_INT32
from moldau.protocol.messages.quorum_records import NodeEndpoint
from moldau.protocol.schema import FailableResponse, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, Records, String, Uuid


class SnapshotId(Struct):
    end_offset: Int64 = 0
    epoch: Int32 = 0


class PartitionSnapshot(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = 0
    snapshot_id: SnapshotId = field()
    position: Int64 = 0
    replica_directory_id: Uuid = field(ZERO_UUID, since=1, tag=0, ignorable=True)


class TopicSnapshot(Struct):
    name: String = ""
    partitions: list[PartitionSnapshot] = field()


class FetchSnapshotRequest(Request["FetchSnapshotResponse"], versions="0-1", flexible="0+"):
    cluster_id: String | None = field(None, nullable="0+", tag=0)
    replica_id: Int32 = -1
    max_bytes: Int32 = MAX_INT32
    topics: list[TopicSnapshot] = field()


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class PartitionSnapshotResponse(Struct):
    index: Int32 = 0
    error_code: Int16 = 0
    snapshot_id: SnapshotId = field()
    current_leader: LeaderIdAndEpoch = field(tag=0)
    size: Int64 = 0
    position: Int64 = 0
    unaligned_records: Records | None = None


class TopicSnapshotResponse(Struct):
    name: String = ""
    partitions: list[PartitionSnapshotResponse] = field()


class FetchSnapshotResponse(FailableResponse, answers=FetchSnapshotRequest):
    topics: list[TopicSnapshotResponse] = field()
    node_endpoints: list[NodeEndpoint] = field(since=1, tag=0)
