"""The values of the quorum's control records (KIP-595, KIP-630, KIP-853), and what the quorum's
requests have in common.
"""

from moldau.protocol.schema import Message, Struct, data, field, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, String, Uint16, Uuid


@struct
class LeaderChangeVoter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Uuid = field(ZERO_UUID, since=1)


@data(versions="0-1", flexible="0+")
class LeaderChangeMessage(Message):
    """With it a new leader of the quorum opens its epoch."""

    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[LeaderChangeVoter] = field()
    granting_voters: list[LeaderChangeVoter] = field()


@data(versions="0", flexible="0+")
class SnapshotHeaderRecord(Message):
    version: Int16 = 0
    last_contained_log_timestamp: Int64 = 0


@data(versions="0", flexible="0+")
class SnapshotFooterRecord(Message):
    version: Int16 = 0


@data(versions="0", flexible="0+")
class KRaftVersionRecord(Message):
    version: Int16 = 0
    kraft_version: Int16 = 0


@struct
class Endpoint(Struct):
    name: String = ""
    host: String = ""
    port: Uint16 = 0


@struct
class KRaftVersionFeature(Struct):
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@struct
class Voter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    endpoints: list[Endpoint] = field()
    kraft_version_feature: KRaftVersionFeature = field()


@data(versions="0", flexible="0+")
class VotersRecord(Message):
    version: Int16 = 0
    voters: list[Voter] = field()


@struct
class NodeEndpoint(Struct):
    """Where a response's leader listens."""

    node_id: Int32 = 0
    host: String = ""
    port: Uint16 = 0
