"""ConfigRecord (type 4, version 0): one configuration value of a resource, set or removed."""

from moldau.protocol.schema import Message, field, metadata_record
from moldau.protocol.types import Int8, String


@metadata_record(4, versions="0", flexible="0+")
class ConfigRecord(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    value: String | None = field("", nullable="0+")
