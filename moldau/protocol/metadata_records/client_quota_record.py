"""ClientQuotaRecord (type 14, version 0): a client quota, set or removed."""

from moldau.protocol.schema import Message, Struct, field, metadata_record, struct
from moldau.protocol.types import Bool, Float64, String


@struct
class EntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = field("", nullable="0+")


@metadata_record(14, versions="0", flexible="0+")
class ClientQuotaRecord(Message):
    entity: list[EntityData] = field()
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False
