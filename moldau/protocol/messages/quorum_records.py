"""The values of the quorum's control records (KIP-595, KIP-630, KIP-853), and what the quorum's
requests have in common.
"""

from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, String, Uint16, Uuid


class LeaderChangeVoter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Uuid = field(ZERO_UUID, since=1)


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    """With it a new leader of the quorum opens its epoch."""

    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[LeaderChangeVoter] = field()
    granting_voters: list[LeaderChangeVoter] = field()


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    version: Int16 = 0
    last_contained_log_timestamp: Int64 = 0


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    version: Int16 = 0


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    version: Int16 = 0
    kraft_version: Int16 = 0


class Endpoint(Struct):
    name: String = ""
    host: String = ""
    port: Uint16 = 0


class KRaftVersionFeature(Struct):
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class Voter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    endpoints: list[Endpoint] = field()
    kraft_version_feature: KRaftVersionFeature = field()


class VotersRecord(Message, versions="0", flexible="0+"):
    version: Int16 = 0
    voters: list[Voter] = field()


class NodeEndpoint(Struct):
    """Where a response's leader listens."""

    node_id: Int32 = 0
    host: String = ""
    port: Uint16 = 0
