"""The control record that lists the quorum's voters."""

from moldau.protocol.schema import Message, Struct, data, field, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, String, Uint16, Uuid


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
